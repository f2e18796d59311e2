"""Laws that every schedule obeys."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from seqdiff.schedules import Completed, Cosine, Geometric, LogLinear, NoiseSchedule, Polynomial
from tests.oracles import COMPLETE_SCHEDULES

EVERY = [*COMPLETE_SCHEDULES, Geometric(1e-4, 20.0), LogLinear(1e-3), Cosine(1e-3), Polynomial(0.5)]
schedules = pytest.mark.parametrize("schedule", EVERY, ids=repr)
times = st.floats(1e-3, 1 - 1e-3)


@schedules
@given(t=times)
def test_derivative_is_autograd_of_alpha(schedule: NoiseSchedule, t: float) -> None:
    time = torch.tensor(t, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(schedule.alpha(time), time)
    assert float(schedule.dalpha(time.detach())) == pytest.approx(float(slope), rel=1e-9, abs=1e-13)


@schedules
@given(t=times)
def test_weight_and_sigma_follow_from_alpha(schedule: NoiseSchedule, t: float) -> None:
    time = torch.tensor(t, dtype=torch.float64)
    alpha, dalpha = float(schedule.alpha(time)), float(schedule.dalpha(time))
    # A schedule that starts below 1 keeps the weight of its extension to 1.
    start = float(schedule.alpha(torch.tensor(0.0, dtype=torch.float64)))
    if start == 1:
        expected = -dalpha / (1 - alpha)
        assert float(schedule.nelbo_weight(time)) == pytest.approx(expected, rel=1e-6)
    assert float(schedule.sigma(time)) == pytest.approx(-math.log(alpha), rel=1e-9, abs=1e-12)
    assert float(schedule.dsigma(time)) == pytest.approx(-dalpha / alpha, rel=1e-9, abs=1e-12)


@schedules
@given(s=times, t=times)
def test_alpha_decreases_and_stays_a_probability(
    schedule: NoiseSchedule, s: float, t: float
) -> None:
    early, late = schedule.alpha(torch.tensor(sorted((s, t)), dtype=torch.float64)).tolist()
    assert 0 <= late <= early <= 1


@schedules
@given(t=times)
def test_inverse_round_trip(schedule: NoiseSchedule, t: float) -> None:
    time = torch.tensor(t, dtype=torch.float64)
    assert float(schedule.inverse(schedule.alpha(time))) == pytest.approx(t, abs=1e-7)


@schedules
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtype_is_preserved(schedule: NoiseSchedule, dtype: torch.dtype) -> None:
    t = torch.tensor([0.2, 0.7], dtype=dtype)
    for function in (schedule.alpha, schedule.dalpha, schedule.nelbo_weight, schedule.sigma):
        assert function(t).dtype == dtype
    assert schedule.inverse(schedule.alpha(t)).dtype == dtype


@pytest.mark.parametrize("schedule", COMPLETE_SCHEDULES, ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ends_are_exact(schedule: NoiseSchedule, dtype: torch.dtype) -> None:
    assert schedule.alpha(torch.tensor([0.0, 1.0], dtype=dtype)).tolist() == [1.0, 0.0]


@pytest.mark.parametrize("schedule", COMPLETE_SCHEDULES, ids=repr)
def test_weight_stays_accurate_near_zero(schedule: NoiseSchedule) -> None:
    """In float32, where 1 - alpha loses its digits."""
    t = torch.tensor([1e-3, 1e-4])
    exact = schedule.nelbo_weight(t.double())
    torch.testing.assert_close(schedule.nelbo_weight(t).double(), exact, rtol=1e-5, atol=0)


@given(t=times)
def test_geometric_sigma_is_geometric(t: float) -> None:
    sigma = float(Geometric(1e-3, 20.0).sigma(torch.tensor(t, dtype=torch.float64)))
    assert sigma == pytest.approx(1e-3 ** (1 - t) * 20.0**t, rel=1e-12)


def test_completed_geometric_keeps_its_shape() -> None:
    inner = Geometric(1e-3, 20.0)
    t = torch.linspace(0, 1, 11, dtype=torch.float64)
    gap = Completed(inner).alpha(t) - inner.alpha(t)
    assert gap.abs().max() < 1.01e-3


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: LogLinear(1.0), r"LogLinear.eps must be in \[0, 1\), got 1.0"),
        (lambda: Cosine(-0.1), r"Cosine.eps must be in \[0, 1\), got -0.1"),
        (lambda: Polynomial(0.0), "Polynomial.power must be positive, got 0.0"),
        (lambda: Geometric(2.0, 1.0), "sigma_min < sigma_max"),
    ],
)
def test_bad_arguments(build, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()

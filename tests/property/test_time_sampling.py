"""Time samplers: their strata and densities, and independence of the batch."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from seqdiff.objectives.time_sampling import (
    VDM,
    Importance,
    Sobol,
    Stratified,
    TimeSampler,
    Uniform,
)
from seqdiff.rng import CounterNoise

SAMPLERS: list[TimeSampler] = [
    Uniform(),
    Stratified(8),
    VDM(8),
    Sobol(),
    Importance((1.0, 3.0, 0.5)),
    Importance((2.0, 1.0), Stratified(8)),
]
samplers = pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)


@samplers
@given(seed=st.integers(0, 2**32 - 1), start=st.integers(0, 2**40))
def test_times_do_not_depend_on_the_batch(sampler: TimeSampler, seed: int, start: int) -> None:
    noise, index = CounterNoise(seed), start + torch.arange(13)
    t, inverse = sampler.sample(index, noise=noise)
    order = torch.randperm(13)
    for part in order.split(5):
        t_part, inverse_part = sampler.sample(index[part], noise=noise)
        assert torch.equal(t_part, t[part]) and torch.equal(inverse_part, inverse[part])
    assert (t > 0).all() and (t < 1).all()


@pytest.mark.parametrize(
    "sampler", [Stratified(16), VDM(16), Importance((1.0,), VDM(16))], ids=repr
)
@given(seed=st.integers(0, 2**32 - 1), block=st.integers(0, 1000))
def test_each_group_hits_every_stratum_once(sampler: TimeSampler, seed: int, block: int) -> None:
    t, _ = sampler.sample(16 * block + torch.arange(16), noise=CounterNoise(seed))
    assert sorted((t * 16).long().tolist()) == list(range(16))


@given(seed=st.integers(0, 2**32 - 1))
def test_strata_are_not_tied_to_rows(seed: int) -> None:
    t, _ = Stratified(8).sample(torch.arange(800), noise=CounterNoise(seed))
    strata = (t * 8).long().view(100, 8)
    assert all(len(strata[:, row].unique()) == 8 for row in range(8))


def test_sobol_is_the_library_sequence_rotated() -> None:
    t, _ = Sobol().sample(torch.arange(64), noise=CounterNoise(1))
    library = torch.quasirandom.SobolEngine(1).draw(64, dtype=torch.float64)[:, 0]
    shift = t[0]
    torch.testing.assert_close(((t - shift) % 1).sort().values, library.sort().values)


@samplers
def test_estimates_are_unbiased(sampler: TimeSampler) -> None:
    """n = 1e5 draws of cos(3t) + t^2; seven standard errors of the plain mean."""
    t, inverse = sampler.sample(torch.arange(100_000), noise=CounterNoise(0))
    values = (torch.cos(3 * t) + t**2) * inverse
    exact = float(torch.sin(torch.tensor(3.0)) / 3) + 1 / 3
    error = float(values.std()) / 100_000**0.5
    assert float(values.mean()) == pytest.approx(exact, abs=5 * error)
    biased = ((torch.cos(3 * t) + t**2) * (inverse + 0.1 * t)).mean()
    assert abs(float(biased) - exact) > 5 * error


def test_importance_density_integrates_to_one() -> None:
    t, inverse = Importance((1.0, 3.0, 0.5), VDM(9000)).sample(
        torch.arange(9000), noise=CounterNoise(0)
    )
    share = [float(((t * 3).long() == i).double().mean()) for i in range(3)]
    assert share == pytest.approx([1 / 4.5, 3 / 4.5, 0.5 / 4.5], abs=1e-3)
    assert float(inverse.mean()) == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Stratified(0), "Stratified.group must be at least 1, got 0"),
        (lambda: VDM(-1), "VDM.group must be at least 1, got -1"),
        (lambda: Importance(()), "Importance.weights must be positive and not empty"),
        (lambda: Importance((1.0, 0.0)), "Importance.weights must be positive"),
    ],
)
def test_bad_arguments(build, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()

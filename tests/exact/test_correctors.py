"""Correctors against enumeration: their stationary distribution, and how far they move others."""

import itertools
from collections import defaultdict
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from seqdiff.parameterization import Full, LeaveOneOut, MaskColumn, Subs
from seqdiff.process import Absorbing, DiscreteProcess, Hybrid, Uniform
from seqdiff.samplers import GibbsSampler, PredictorCorrectorSampler
from seqdiff.schedules import Cosine, Geometric, LogLinear
from tests.enumeration import Distribution, Tokens, distance
from tests.noisy_worlds import (
    Joint,
    Request,
    ends,
    every_row,
    exact,
    mislabelled,
    push,
)

K = 3


def name(thing: object) -> str:
    return getattr(thing, "name", type(thing).__name__)


def corrected(
    sampler, denoiser, s: float, distribution: Distribution, length: int = 2
) -> Distribution:
    now = torch.tensor(s, dtype=torch.float64)
    request = Request.nothing(denoiser, length)
    return push(distribution, denoiser, request, lambda canvas: sampler.correct(canvas, now, 1))


def redrawn(noisy: Distribution, row: Tokens, *positions: int) -> Distribution:
    """p(every position redrawn given the others of ``row``), for these positions together."""
    total: Distribution = {row: 1.0}
    for position in positions:
        rest = row[:position] + row[position + 1 :]
        fits = {
            z[position]: p for z, p in noisy.items() if z[:position] + z[position + 1 :] == rest
        }
        mass = sum(fits.values())
        total = {
            (*z[:position], symbol, *z[position + 1 :]): chance * p / mass
            for z, chance in total.items()
            for symbol, p in fits.items()
        }
    return total


def mean(distributions: Sequence[tuple[float, Distribution]]) -> Distribution:
    total: defaultdict[Tokens, float] = defaultdict(float)
    for weight, distribution in distributions:
        for row, chance in distribution.items():
            total[row] += weight * chance
    return dict(total)


@pytest.mark.parametrize(
    "process",
    [Uniform(K), Uniform(K, Geometric(0.05, 3.0)), Hybrid(K, 0.3)],
    ids=["uniform", "geometric", "hybrid"],
)
def test_a_gibbs_step_draws_a_token_given_all_others(process) -> None:
    """It keeps p_s, and the new token does not depend on the old one.

    FULL instead of LOO would keep p_s too (it draws x0 given z, then z given x0), but the new token
    would depend on the old one.
    """
    joint, s = Joint.random(K, 2, seed=1), 0.4
    noisy = joint.noisy(s, process)
    row = (0, 1)
    wanted = mean([(1 / 2, redrawn(noisy, row, position)) for position in (0, 1)])
    for kind in (LeaveOneOut(), Full()):
        denoiser = exact(joint, process, kind)
        assert distance(corrected(GibbsSampler(), denoiser, s, noisy), noisy) < 1e-12
        assert distance(corrected(GibbsSampler(), denoiser, s, {row: 1.0}), wanted) < 1e-12
    sticky = corrected(GibbsSampler(), mislabelled(joint, process), s, {row: 1.0})
    assert distance(sticky, wanted) > 2e-2, "FULL in the place of LOO"
    at_once = mean([(chance, redrawn(noisy, z, 0, 1)) for z, chance in noisy.items()])
    assert distance(at_once, noisy) > 1e-3, "all positions at once"


def step_matrix(joint: Joint, z: Tensor, s: float, t: float, process: DiscreteProcess) -> Tensor:
    """Every row at t to every row at s, position by position, from the posterior of ``process``."""
    times = [torch.full(z.shape, x, dtype=torch.float64) for x in (s, t)]
    log_loo = joint.log_loo(z, times[1][:, 0], process).log_softmax(dim=-1)
    distribution = process.log_posterior(log_loo, z, *times).exp().nan_to_num()
    if s == 0:
        distribution[..., joint.size :] = 0.0
    return distribution[:, torch.arange(joint.length), z].prod(dim=-1)


def noise_matrix(z: Tensor, s: float, r: float, process: DiscreteProcess) -> Tensor:
    """Every row at s to every row at r by q(z_r | z_s)."""
    states = torch.arange(process.states)
    times = [torch.full(states.shape, x, dtype=torch.float64) for x in (s, r)]
    forward = process.log_step(states, *times).exp().T
    return forward[z[:, None], z[None]].prod(dim=-1)


@pytest.mark.parametrize(
    ("process", "kind"),
    [
        (Absorbing(2, Cosine()), Subs()),
        (Absorbing(2, Cosine()), MaskColumn()),
        (Uniform(2), Full()),
        (Hybrid(2, 0.3), LeaveOneOut()),
    ],
    ids=name,
)
def test_predictor_corrector_adds_noise_and_takes_it_back(process, kind) -> None:
    joint, z = Joint.random(2, 2, seed=3), every_row(process.states, 2)
    sampler = PredictorCorrectorSampler(num_steps=2, renoise=0.4)
    denoiser = exact(joint, process, kind)
    alpha = process.alpha(torch.tensor(0.5, dtype=torch.float64))
    r = float(process.inverse(0.6 * alpha))
    start = torch.zeros(len(z), dtype=torch.float64)
    for number, row in enumerate(map(tuple, z.tolist())):
        start[number] = joint.noisy(1.0, process).get(row, 0.0)
    there = start @ step_matrix(joint, z, 0.5, 1.0, process)
    noised = there @ noise_matrix(z, 0.5, r, process)
    back = noised @ step_matrix(joint, z, 0.5, r, process)
    wanted, plain = ((x @ step_matrix(joint, z, 0.0, 0.5, process)) for x in (back, there))

    def distribution(probs: Tensor) -> Distribution:
        return dict(zip(map(tuple, z.tolist()), probs.tolist(), strict=True))

    found = ends(sampler, denoiser, Request.nothing(denoiser, 2))
    assert distance(found, distribution(wanted)) < 1e-12
    assert distance(found, distribution(plain)) > 1e-3, "no corrector"


@pytest.mark.parametrize("process", [Absorbing(2), Uniform(2), Hybrid(2, 0.3)], ids=name)
def test_a_corrector_step_errs_by_the_square_of_its_noise(process) -> None:
    joint = Joint.random(2, 2, seed=3)
    masks = isinstance(process, Absorbing)
    denoiser = exact(joint, process, MaskColumn() if masks else None)
    s = 0.4
    noisy = joint.noisy(s, process)

    def moved(renoise: float) -> float:
        sampler = PredictorCorrectorSampler(renoise=renoise)
        return distance(corrected(sampler, denoiser, s, noisy), noisy)

    errors = [moved(renoise) for renoise in (0.08, 0.04, 0.02)]
    assert all(3.5 < a / b < 4.5 for a, b in itertools.pairwise(errors))
    if not masks:
        twin = corrected(
            PredictorCorrectorSampler(renoise=0.02), mislabelled(joint, process), s, noisy
        )
        assert distance(twin, noisy) > 5 * errors[-1], "FULL errs by the noise itself"


def test_predictor_corrector_needs_less_noise_in_more_steps() -> None:
    """With a fixed ``renoise`` an error remains; with 1 / num_steps it falls with the step size."""
    joint, process = Joint.random(2, 2, seed=3), Absorbing(2)
    denoiser = exact(joint, process, MaskColumn())  # SUBS in the general form: one draw per step
    request = Request.nothing(denoiser, 2)

    def error(num_steps: int, renoise: float) -> float:
        sampler = PredictorCorrectorSampler(num_steps=num_steps, renoise=renoise)
        distribution: Distribution = {tuple(request.given.tolist()): 1.0}
        for t, s in itertools.pairwise(sampler.times(torch.device("cpu"))):
            distribution = push(
                distribution, denoiser, request, lambda c, s=s, t=t: sampler.advance(c, s, t, 1)
            )
            if float(s) > 0:
                distribution = push(
                    distribution, denoiser, request, lambda c, s=s: sampler.correct(c, s, 1)
                )
        return distance(distribution, joint.distribution)

    assert PredictorCorrectorSampler.draws_from == "another"
    assert error(24, 0.5) > error(6, 0.5) > 0.01
    assert error(6, 1 / 6) > 3 * error(24, 1 / 24)


def test_noise_never_goes_beyond_the_end_of_time() -> None:
    """A network has no noise level beyond that of t = 1."""
    for schedule in (LogLinear(0.1), Geometric(0.05, 3.0)):
        process = Uniform(2, schedule)
        denoiser = exact(Joint.random(2, 2), process)
        sampler = PredictorCorrectorSampler(num_steps=20, renoise=0.5)
        sampler.sample(denoiser, torch.full((2, 2), 2), seeds=torch.arange(2))
        assert denoiser.backbone.latest == 1.0
        late = torch.tensor(0.95, dtype=torch.float64)
        assert float(process.inverse(0.5 * process.alpha(late))) > 1.01, "without the bound"

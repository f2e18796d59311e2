"""Forward processes against their definitions: Markov property, Bayes' rule, rates, draws."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from seqdiff.process import Absorbing, DiscreteProcess, Hybrid, Interpolating, Uniform
from seqdiff.schedules import Geometric, Linear, LogLinear
from tests.oracles import COMPLETE_SCHEDULES

K = 3
PROCESSES: list[Interpolating] = [
    *(Absorbing(K, schedule) for schedule in COMPLETE_SCHEDULES),
    Uniform(K, Linear()),
    Uniform(K, LogLinear(1e-3)),
    Uniform(K, Geometric(1e-3, 8.0)),
    Hybrid(K, 0.0),
    Hybrid(K, 0.2),
    Hybrid(K, 0.9),
]
TIMES = torch.tensor([0.13, 0.4, 0.77], dtype=torch.float64)


def name(process: DiscreteProcess) -> str:
    return f"{process.name}-{PROCESSES.index(process)}"


each = pytest.mark.parametrize("process", PROCESSES, ids=name)


def marginals(process: DiscreteProcess, t: Tensor) -> Tensor:
    """q_t(y | x), ``[K, states]``."""
    return process.log_marginal(process.one_hot(torch.arange(K)), t.expand(K)).exp()


def steps(process: DiscreteProcess, s: Tensor, t: Tensor) -> Tensor:
    """q(z_t = z | z_s = y), ``[y, z]``, for every pair of states."""
    z = torch.arange(process.states)
    return process.log_step(z, s.expand(len(z)), t.expand(len(z))).exp().T


@each
def test_marginals_are_distributions_that_start_clean_and_end_at_the_prior(process):
    for t in TIMES:
        torch.testing.assert_close(marginals(process, t).sum(dim=-1), torch.ones(K).double())
    zero = marginals(process, torch.tensor(0.0).double())
    kept = zero[torch.arange(K), torch.arange(K)]
    assert process.starts_clean == bool((kept == 1).all())
    if process.starts_clean:
        assert (kept == 1).all()
    one = marginals(process, torch.tensor(1.0).double())
    prior = process.log_prior().exp()
    divergence = torch.xlogy(one, one / prior).nan_to_num().sum(dim=-1)
    torch.testing.assert_close(process.prior_kl(torch.arange(K)), divergence)
    assert process.forgets == bool((divergence == 0).all())


@each
def test_steps_compose_as_a_markov_chain_does(process):
    s, middle, t = TIMES
    one, two, both = (
        steps(process, s, middle),
        steps(process, middle, t),
        steps(process, s, t),
    )
    torch.testing.assert_close(both.sum(dim=-1), torch.ones(process.states).double())
    torch.testing.assert_close(one @ two, both, atol=1e-12, rtol=0)
    torch.testing.assert_close(
        marginals(process, s) @ both, marginals(process, t), atol=1e-12, rtol=0
    )
    rows = process.log_forward(
        torch.arange(process.states),
        s.expand(process.states),
        t.expand(process.states),
    ).exp()
    torch.testing.assert_close(rows, both, atol=1e-12, rtol=0)


@each
def test_posterior_is_bayes_rule(process):
    s, _, t = TIMES
    forward, before = steps(process, s, t), marginals(process, s)
    for x in range(K):
        for z in range(process.states):
            joint = before[x] * forward[:, z]
            if joint.sum() == 0:
                continue
            found = process.log_posterior(
                process.one_hot(torch.tensor([x])), torch.tensor([z]), s[None], t[None]
            )
            torch.testing.assert_close(found[0].exp(), joint / joint.sum(), atol=1e-12, rtol=0)


@each
def test_rates_are_derivatives_of_steps(process):
    t, h = TIMES[1], 1e-6
    z = torch.arange(process.states)
    rates = process.rate_into(z, t.expand(len(z))).expand(len(z), process.states)
    slope = (steps(process, t, t + h) - torch.eye(process.states).double()) / h
    off = ~torch.eye(process.states, dtype=torch.bool)
    torch.testing.assert_close(rates.T[off], slope[off], atol=1e-5, rtol=1e-4)
    transposed = rates[off]  # the twin: y -> z and z -> y swapped
    if isinstance(process, Absorbing):
        assert not torch.allclose(transposed, slope[off], atol=1e-3)


@each
def test_evidence_is_the_column_of_the_marginals(process):
    for t in TIMES:
        z = torch.arange(process.states)
        found = process.log_likelihood(z, t.expand(len(z))).exp()
        torch.testing.assert_close(found, marginals(process, t).T, atol=1e-12, rtol=0)
        generic = DiscreteProcess.log_likelihood(process, z, t.expand(len(z))).exp()
        torch.testing.assert_close(found, generic, atol=1e-12, rtol=0)


@each
def test_corruption_inverts_the_distribution_function(process):
    """With noise at the centres of n cells, each state gets its fraction of them up to one cell."""
    cells, t = 3000, TIMES[1]
    noise = (torch.arange(cells).double() + 0.5) / cells
    for x in range(K):
        rows = process.corrupt(torch.full((cells, 1), x), t.expand(cells), noise=noise[:, None])
        counts = torch.bincount(rows[:, 0], minlength=process.states).double() / cells
        torch.testing.assert_close(counts, marginals(process, t)[x], atol=2 / cells, rtol=0)


@each
def test_unknown_and_kept_tokens_stay(process):
    x0 = torch.tensor([[0, K, 1, 2]])
    keep = torch.tensor([[False, False, True, False]])
    noise = torch.full((1, 4), 0.999, dtype=torch.float64)
    z = process.corrupt(x0, torch.tensor([0.9]), keep=keep, noise=noise)
    assert z[0, 1] == K and z[0, 2] == 1


@each
def test_time_of_a_fraction_and_its_slope(process):
    fraction, h = torch.tensor([0.2, 0.6], dtype=torch.float64), 1e-6
    t, slope = process.time_at(fraction)
    later, _ = process.time_at(fraction + h)
    torch.testing.assert_close(slope, (later - t) / h, rtol=1e-4, atol=1e-6)
    if not isinstance(process, Hybrid):
        ends = process.alpha(torch.tensor([0.0, 1.0], dtype=torch.float64))
        torch.testing.assert_close(process.alpha(t), ends[0] - (ends[0] - ends[1]) * fraction)
    torch.testing.assert_close(process.inverse(process.alpha(t)), t, atol=1e-9, rtol=0)


@each
def test_times_of_fractions_next_to_the_ends_are_finite(process):
    """1 - 1e-17 rounds to 1, which gives time 0, where the slope of a cosine's time is infinite."""
    fraction = torch.tensor([1e-300, 1e-17, 2**-53, 1 - 2**-53], dtype=torch.float64)
    t, slope = process.time_at(fraction)
    assert (t.isfinite() & slope.isfinite()).all()
    assert t[:3].max() < 1e-4 and t[3] > 1 - 1e-4
    if not isinstance(process, Hybrid):
        ends = torch.tensor([0.0, 1.0], dtype=torch.float64)
        torch.testing.assert_close(process.alpha(t[[0, 3]]), process.alpha(ends))


def test_hybrid_noise_has_the_chosen_fraction_of_random_tokens_at_the_middle():
    for p_u in (0.0, 0.1, 0.5):
        noise = Hybrid(K, p_u).noise_probs(torch.tensor([0.5], dtype=torch.float64))[0]
        torch.testing.assert_close(float(noise[:K].sum()), p_u)


def test_hybrid_noise_without_random_tokens_is_linear_masking():
    hybrid, masking = Hybrid(K, 0.0), Absorbing(K, Linear())
    for t in TIMES:
        torch.testing.assert_close(marginals(hybrid, t), marginals(masking, t))


@pytest.mark.parametrize("p_u", [-0.1, 1.0, 1.5, float("nan")])
def test_fractions_out_of_range_are_refused(p_u):
    with pytest.raises(ValueError, match=r"Hybrid.p_u must be in \[0, 1\), got .*; "):
        Hybrid(K, p_u)


def test_a_schedule_that_leaves_tokens_visible_is_counted_by_uniform_noise():
    assert float(Uniform(K, LogLinear(0.1)).prior_kl(torch.tensor([0]))) > 0

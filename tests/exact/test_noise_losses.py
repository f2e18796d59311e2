"""Formulas of the losses against each other, in every form used in the papers."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from seqdiff.denoiser.discrete import tweedie
from seqdiff.losses import ctmc_nelbo, discrete_kl, mask_column_kl, score_entropy
from seqdiff.parameterization import (
    MaskColumn,
    Score,
    distribution_from_scores,
    evidence_added,
    evidence_removed,
    scores_from_distribution,
)
from seqdiff.parameterization.score import log_expm1
from seqdiff.process import Absorbing, DiscreteProcess, Hybrid, Interpolating, Uniform
from seqdiff.schedules import Cosine, Geometric, Linear, LogLinear

K = 4
PROCESSES: list[Interpolating] = [
    Absorbing(K, Linear()),
    Absorbing(K, Cosine()),
    Uniform(K, Linear()),
    Uniform(K, Geometric(1e-3, 8.0)),
    Hybrid(K, 0.1),
    Hybrid(K, 0.6),
]
each = pytest.mark.parametrize("process", PROCESSES, ids=lambda p: f"{p.name}-{PROCESSES.index(p)}")


def every_place(process: DiscreteProcess, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Random predictions, every possible pair of clean and noisy ids, and random times."""
    generator = torch.Generator().manual_seed(seed)
    x0, z = torch.cartesian_prod(torch.arange(K), torch.arange(process.states)).T
    t = torch.rand(len(x0), dtype=torch.float64, generator=generator) * 0.9 + 0.05
    possible = process.log_marginal(process.one_hot(x0), t).gather(-1, z[:, None])[:, 0].isfinite()
    x0, z, t = x0[possible], z[possible], t[possible]
    distribution = torch.randn(len(x0), K, dtype=torch.float64, generator=generator).log_softmax(-1)
    return distribution, x0, z, t


def at(values: Tensor, index: Tensor) -> Tensor:
    return values.gather(-1, index[:, None])[:, 0]


@each
def test_bound_density_in_the_form_of_a_divergence(process):
    """Form A: rho(z) / q(z|x) [KL(q(.|x) || q(.|xth)) + R - 1 - log R]."""
    distribution, x0, z, t = every_place(process)
    true = process.log_marginal(process.one_hot(x0), t)
    model = process.log_marginal(distribution, t)
    divergence = (torch.xlogy(true.exp(), true.exp()) - true.exp() * model).nan_to_num().sum(-1)
    ratio = (at(true, z) - at(model, z)).exp()
    rates = process.rate_into(z, t)[:, 0]
    expected = rates / at(true, z).exp() * (divergence + ratio - 1 - ratio.log())
    torch.testing.assert_close(
        ctmc_nelbo(distribution, x0, z, t, process), expected, atol=1e-10, rtol=1e-10
    )


@each
def test_bound_density_in_the_form_of_scores(process):
    """Form B: rho(z) sum_{y != z} [s - r log s + r (log r - 1)]."""
    distribution, x0, z, t = every_place(process)
    s = scores_from_distribution(distribution, z, t, process).exp()
    r = scores_from_distribution(process.one_hot(x0), z, t, process).exp()
    terms = s - torch.xlogy(r, s) + torch.xlogy(r, r) - r
    off = z[:, None] != torch.arange(process.states)
    rates = process.rate_into(z, t)[:, 0]
    expected = rates * (terms * off).sum(-1)
    found = ctmc_nelbo(distribution, x0, z, t, process)
    torch.testing.assert_close(found, expected, atol=1e-10, rtol=1e-10)
    diagonal = rates * (terms - (s - torch.xlogy(r, s) + torch.xlogy(r, r) - r) * off).sum(-1)
    if not isinstance(process, Absorbing):
        assert diagonal.abs().max() < 1e-12  # s = r = 1 there: -1 + 1 = 0 with Kf's -1
        dropped = torch.where(z == x0, 0.0, found)  # the twin: unchanged positions do not count
        assert (found - dropped).max() > 1e-3


def test_bound_density_of_uniform_noise_in_the_form_of_udlm():
    """Form C, Schiff et al. 2024, equation 18."""
    process = Uniform(K, Cosine())
    distribution, x0, z, t = every_place(process)
    alpha = process.alpha(t)[:, None]
    w = K * alpha * torch.nn.functional.one_hot(x0, K) + 1 - alpha
    wth = K * alpha * distribution.exp() + 1 - alpha
    wz, wthz = at(w, z)[:, None], at(wth, z)[:, None]
    inner = (w / wz * (wthz * w / (wth * wz)).log()).sum(-1) - K / wz[:, 0] + K / wthz[:, 0]
    expected = -process.schedule.dalpha(t) / (K * alpha[:, 0]) * inner
    torch.testing.assert_close(
        ctmc_nelbo(distribution, x0, z, t, process), expected, atol=1e-10, rtol=1e-10
    )


def test_bound_density_of_masks_is_weighted_cross_entropy():
    process = Absorbing(K, Cosine())
    distribution, x0, z, t = every_place(process)
    masked = z == process.mask_id
    expected = torch.where(masked, process.schedule.nelbo_weight(t) * -at(distribution, x0), 0.0)
    torch.testing.assert_close(
        ctmc_nelbo(distribution, x0, z, t, process), expected, atol=1e-10, rtol=1e-10
    )


def test_hybrid_noise_on_the_mask_alone_is_masking():
    hybrid, masking = Hybrid(K, 0.0), Absorbing(K, Linear())
    distribution, x0, z, t = every_place(masking)
    torch.testing.assert_close(
        ctmc_nelbo(distribution, x0, z, t, hybrid), ctmc_nelbo(distribution, x0, z, t, masking)
    )


def test_hybrid_weights_are_those_of_gidd():
    """(c + (1-t)c')/K / ((1-t)(1-t+c/K)) at z = x, (c + (1-t)c')/((1-t)c) at random, 1/(t(1-t))."""
    process, B = Hybrid(K, 0.2), 2 * 0.2 / 0.8
    t = torch.tensor([0.2, 0.5, 0.9], dtype=torch.float64)
    c = B * (t * (1 - t)).sqrt()
    dc = B * (1 - 2 * t) / (2 * (t * (1 - t)).sqrt())
    x0 = torch.zeros(3, dtype=torch.int64)
    scale = c + (1 - t) * dc
    expected = {
        0: scale / K / ((1 - t) * (1 - t + c / K)),
        1: scale / ((1 - t) * c),
        K: 1 / (t * (1 - t)),
    }
    for state, weight in expected.items():
        z = torch.full((3,), state)
        q = at(process.log_marginal(process.one_hot(x0), t), z).exp()
        torch.testing.assert_close(process.rate_into(z, t)[:, 0] / q, weight)


@each
def test_densities_and_divergences_are_never_negative_and_vanish_for_the_truth(process):
    distribution, x0, z, t = every_place(process)
    s = t * 0.7
    sharp = torch.where(torch.arange(K) == x0[:, None], 0.0, -torch.inf).double()
    for terms in (
        ctmc_nelbo(distribution, x0, z, t, process),
        discrete_kl(distribution, x0, z, s, t, process),
    ):
        assert (terms >= -1e-14).all()
    for terms in (ctmc_nelbo(sharp, x0, z, t, process), discrete_kl(sharp, x0, z, s, t, process)):
        torch.testing.assert_close(terms, torch.zeros_like(terms), atol=1e-12, rtol=0)


@each
def test_permuted_symbols_change_nothing(process):
    distribution, x0, z, t = every_place(process)
    order = torch.tensor([2, 0, 3, 1])
    moved = torch.cat((order, torch.tensor([K])))
    inverse = order.argsort()
    torch.testing.assert_close(
        ctmc_nelbo(distribution[:, inverse], order[x0], moved[z], t, process),
        ctmc_nelbo(distribution, x0, z, t, process),
    )


@each
def test_step_divergence_in_two_vectors(process):
    """KL = sum_y q(y|z,x) log[q_s(y|x)/q_s(y|xth)] - log[q_t(z|x)/q_t(z|xth)]."""
    distribution, x0, z, t = every_place(process)
    s = t * 0.6
    true = process.log_posterior(process.one_hot(x0), z, s, t).exp()
    q_s, p_s = process.log_marginal(process.one_hot(x0), s), process.log_marginal(distribution, s)
    q_t, p_t = process.log_marginal(process.one_hot(x0), t), process.log_marginal(distribution, t)
    gain = torch.where(true > 0, true * (q_s - p_s), 0.0).sum(-1)
    expected = gain - (at(q_t, z) - at(p_t, z))
    torch.testing.assert_close(
        discrete_kl(distribution, x0, z, s, t, process), expected, atol=1e-11, rtol=0
    )


@each
def test_many_small_steps_are_the_density(process):
    distribution, x0, z, t = every_place(process)
    h = 1e-6
    rate = discrete_kl(distribution, x0, z, t - h, t, process) / h
    torch.testing.assert_close(
        rate, ctmc_nelbo(distribution, x0, z, t, process), atol=1e-3, rtol=1e-4
    )


@each
def test_full_and_leave_one_out_predictions_convert_both_ways(process):
    distribution, _, z, t = every_place(process)
    full = evidence_added(distribution, z, t, process)
    torch.testing.assert_close(full.exp().sum(-1), torch.ones(len(z)).double())
    visible = isinstance(process, Absorbing) & (z < K)
    back = evidence_removed(full, z, t, process)
    torch.testing.assert_close(back[~visible], distribution[~visible], atol=1e-10, rtol=0)
    masked = z == K  # a mask carries no information about x0
    torch.testing.assert_close(full[masked], distribution[masked], atol=1e-12, rtol=0)
    if not isinstance(process, Absorbing):
        assert (full - distribution)[z < K].abs().max() > 0.1


def test_evidence_of_uniform_noise_is_one_logit():
    """FULL logits = LOO logits + log1p(K alpha / (1 - alpha)) at the observed symbol."""
    process = Uniform(K, Linear())
    distribution, _, z, t = every_place(process)
    alpha = process.alpha(t)
    shift = torch.log1p(K * alpha / (1 - alpha))[:, None] * torch.nn.functional.one_hot(z, K)
    torch.testing.assert_close(
        evidence_added(distribution, z, t, process), (distribution + shift).log_softmax(-1)
    )


@each
def test_scores_and_predictions_convert_both_ways(process):
    distribution, _, z, t = every_place(process)
    scores = scores_from_distribution(distribution, z, t, process)
    torch.testing.assert_close(at(scores, z), torch.zeros(len(z)).double())
    torch.testing.assert_close(
        distribution_from_scores(scores, z, t, process), distribution, atol=1e-9, rtol=0
    )


@pytest.mark.parametrize("process", [Uniform(K, Linear()), Uniform(K, Geometric(1e-4, 20.0))])
def test_scores_of_no_distribution_leave_every_symbol_a_chance(process):
    """A negative probability is replaced by a tiny one, so that constraints can still choose it."""
    t, z = torch.tensor([1 - 1e-9], dtype=torch.float64), torch.tensor([0])
    scores = torch.tensor([[0.0, 0.3, -0.1, -0.1]], dtype=torch.float64)
    distribution = distribution_from_scores(scores, z, t, process)
    assert distribution.isfinite().all(), "the twin that clamps to 0 leaves nothing to choose from"
    assert distribution[0, 1] > -1e-12 and distribution[0, [0, 2, 3]].max() < math.log(1e-29)
    chosen = torch.tensor([False, False, True, True])
    restricted = distribution[0].masked_fill(~chosen, -torch.inf).log_softmax(-1).exp()
    torch.testing.assert_close(restricted, torch.tensor([0.0, 0.0, 0.5, 0.5]).double())


@each
def test_plug_in_of_leave_one_out_is_the_mixture_of_full(process):
    """The three exact kernels agree: plug-in(LOO) = mixture(FULL) = analytic step of the scores."""
    distribution, _, z, t = every_place(process)
    s = t * 0.5
    plug_in = process.log_posterior(distribution, z, s, t).exp()
    full = evidence_added(distribution, z, t, process).exp()
    mixture = torch.zeros_like(plug_in)
    for v in range(K):
        kernel = process.log_posterior(process.one_hot(torch.full_like(z, v)), z, s, t).exp()
        mixture += torch.where(full[:, v] > 0, full[:, v], 0.0)[:, None] * kernel.nan_to_num()
    torch.testing.assert_close(mixture, plug_in, atol=1e-12, rtol=0)
    scores = scores_from_distribution(distribution, z, t, process)
    analytic = tweedie(scores, z, s, t, process).exp()
    torch.testing.assert_close(analytic, plug_in, atol=1e-10, rtol=0)
    twin = process.log_posterior(full.log(), z, s, t).exp()  # FULL instead of LOO
    if not isinstance(process, Absorbing):
        assert (twin - plug_in).abs().max() > 0.02


# SEDD


def test_score_entropy_of_masks_is_the_bound_and_an_excess():
    """SEDD = MDLM(p) + sigma' r (c - 1 - log c), with c the sum of scores over r."""
    process = Absorbing(K, LogLinear())
    _, x0, z, t = every_place(process)
    z = torch.full_like(x0, process.mask_id)
    generator = torch.Generator().manual_seed(3)
    log_scores = torch.randn(len(x0), K + 1, dtype=torch.float64, generator=generator)
    log_scores[:, K] = 0.0
    alpha = process.alpha(t)
    r = alpha / (1 - alpha)
    c = log_scores[:, :K].exp().sum(-1) / r
    distribution = (log_scores[:, :K] - (c * r).log()[:, None]).log_softmax(-1)
    weight = process.schedule.dsigma(t) * r
    expected = -process.schedule.nelbo_weight(t) * at(distribution, x0) + weight * (c - 1 - c.log())
    found = score_entropy(log_scores, x0, z, t, process)
    torch.testing.assert_close(found, expected)
    assert (found >= ctmc_nelbo(distribution, x0, z, t, process) - 1e-12).all()


def test_outputs_of_zero_are_the_scores_of_a_uniform_predictor_of_masks():
    process = Absorbing(K, LogLinear())
    _, x0, z, t = every_place(process)
    scores = Score().read(torch.zeros(len(x0), K + 1), z, t, process)
    flat = torch.full((len(x0), K), -math.log(K), dtype=torch.float64)
    masked = z == process.mask_id
    expected = scores_from_distribution(flat, z, t, process)
    torch.testing.assert_close(scores[masked], expected[masked])
    assert not torch.allclose(scores[masked] + math.log(K), expected[masked])  # without its offset
    torch.testing.assert_close(at(scores, z), torch.zeros(len(z)).double())


def test_log_expm1_keeps_its_digits():
    sigma = torch.tensor([1e-12, 1e-6, 0.5, 1.5, 50.0, 700.0], dtype=torch.float64)
    expected = torch.tensor([math.log(math.expm1(s)) for s in sigma.tolist()], dtype=torch.float64)
    torch.testing.assert_close(log_expm1(sigma), expected, atol=1e-13, rtol=1e-13)


def test_scores_of_uniform_noise_lie_between_two_bounds():
    process = Uniform(K, Linear())
    distribution, _, z, t = every_place(process)
    alpha = process.alpha(t)
    least = (1 - alpha) / (1 - alpha + K * alpha)
    scores = scores_from_distribution(distribution, z, t, process).exp()
    assert (scores >= least[:, None] - 1e-12).all() and (scores <= 1 / least[:, None] + 1e-9).all()


# D3PM with a mask column


def mask_column_world() -> tuple[Absorbing, Tensor, Tensor, Tensor, Tensor]:
    process = Absorbing(K, Cosine())
    generator = torch.Generator().manual_seed(5)
    x0 = torch.arange(K).repeat(8)
    t = torch.rand(len(x0), dtype=torch.float64, generator=generator) * 0.9 + 0.05
    outputs = torch.randn(len(x0), K + 1, dtype=torch.float64, generator=generator)
    z = torch.full_like(x0, process.mask_id)
    return process, MaskColumn().read(outputs, z, t, process), x0, z, t


def test_mask_column_in_closed_form():
    process, distribution, x0, z, t = mask_column_world()
    for s in (t * 0.5, torch.zeros_like(t)):
        closed = mask_column_kl(distribution, x0, s, t, process)
        assert (closed >= 0).all()
        general = discrete_kl(distribution, x0, z, s, t, process)
        torch.testing.assert_close(closed, general, atol=1e-11, rtol=0)
    without = distribution[:, :K].log_softmax(-1)
    unmask = process.unmask_probability(t * 0.5, t)
    for same in (without, torch.nn.functional.pad(without, (0, 1), value=-torch.inf)):
        found = mask_column_kl(same, x0, t * 0.5, t, process)
        torch.testing.assert_close(found, -unmask * at(without, x0))


@pytest.mark.parametrize(("s", "t"), [(0.3, 0.7), (0.0, 0.2), (0.8, 1.0)])
def test_mask_column_is_the_divergence_of_two_posteriors_by_bayes_rule(s, t):
    """q(z_s | z_t = mask) where x0 may be any of K + 1 states, written out."""
    process, distribution, x0, _, _ = mask_column_world()
    ends = torch.tensor([s, t], dtype=torch.float64)
    alpha_s, alpha_t = process.alpha(ends).tolist()
    to_mask = torch.full((K + 1,), 1 - alpha_t / alpha_s, dtype=torch.float64)
    to_mask[K] = 1

    def posterior(probs: Tensor) -> Tensor:
        joint = (alpha_s * probs + (1 - alpha_s) * torch.eye(K + 1).double()[K]) * to_mask
        return joint / joint.sum(-1, keepdim=True)

    q, p = posterior(torch.nn.functional.one_hot(x0, K + 1).double()), posterior(distribution.exp())
    expected = torch.where(q > 0, q * (q / p).log(), 0.0).sum(-1)
    found = mask_column_kl(distribution, x0, *(end.expand(len(x0)) for end in ends), process)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("end", [0.2, 1.0])
def test_a_step_that_ends_at_zero_is_finite_and_has_a_gradient(end):
    """The released function is NaN there: 0 times the logarithm of infinity."""
    process, distribution, x0, z, _ = mask_column_world()
    zero, t = torch.zeros(len(x0)).double(), torch.full((len(x0),), end).double()
    outputs = distribution.clone().requires_grad_()
    read = MaskColumn().read(outputs, z, t, process)
    found = mask_column_kl(read, x0, zero, t, process)
    (slope,) = torch.autograd.grad(found.sum(), outputs)
    assert found.isfinite().all() and (found > 0).all()
    assert slope.isfinite().all() and slope.abs().max() > 0.1

    def released(alpha_s: float, alpha_t: float) -> Tensor:
        ends, mu = torch.tensor([alpha_s, alpha_t], dtype=torch.float64), distribution[:, K].exp()
        at_s, at_t = (torch.log1p(mu * a / (1 - a)) for a in ends)
        unmask = (alpha_s - alpha_t) / (1 - alpha_t)
        return unmask * (at_t - at(distribution, x0)) + (1 - unmask) * (at_t - at_s)

    alpha_t = float(process.alpha(t[0]))
    assert released(1.0, alpha_t).isnan().all()
    torch.testing.assert_close(released(1 - 1e-12, alpha_t), found.detach(), atol=1e-8, rtol=0)


def test_no_floor_hides_a_wrong_sign():
    """D3PM's code takes max(KL, 0): with it the twin passes for a divergence that vanishes."""
    process, distribution, x0, _, t = mask_column_world()
    s = t * 0.5
    right = mask_column_kl(distribution, x0, s, t, process)
    twin = (-right).clamp_min(0)
    assert (twin >= 0).all() and (right > 0.01).any() and not twin.any()
    too_likely = mask_column_kl(distribution[:, :K] + 5, x0, s, t, process)  # not a distribution
    assert (too_likely < 0).any(), "a mistake of the caller shows"


def test_mask_column_in_continuous_time_is_a_score_with_too_little_mass():
    """s_y = alpha p(y) / (alpha mu + 1 - alpha): c = (1-alpha)(1-mu) / (1-alpha+alpha mu) <= 1."""
    process, distribution, x0, z, t = mask_column_world()
    alpha, mu = process.alpha(t)[:, None], distribution[:, K:].exp()
    scores = alpha.log() + distribution[:, :K] - (alpha * mu + 1 - alpha).log()
    log_scores = torch.cat((scores, torch.zeros(len(x0), 1).double()), dim=-1)
    density = score_entropy(log_scores, x0, z, t, process)
    h = 1e-6
    torch.testing.assert_close(
        mask_column_kl(distribution, x0, t - h, t, process) / h, density, atol=1e-3, rtol=1e-4
    )
    torch.testing.assert_close(ctmc_nelbo(distribution, x0, z, t, process), density)
    c = scores.exp().sum(-1) * (1 - alpha[:, 0]) / alpha[:, 0]
    assert (c <= 1).all()


def test_a_wrong_grid_is_noticed():
    """A copy of the step loss that takes alpha_s = t - dt instead of 1 - (t - dt)."""
    process = Absorbing(K, Linear())
    distribution, x0, _, t = every_place(process)
    s = t - 0.01
    right = mask_column_kl(distribution, x0, s, t, process)
    twin = mask_column_kl(distribution, x0, 1 - s, t, process)
    assert (right - twin).abs().max() > 0.1

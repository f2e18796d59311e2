"""D3PM and SEDD against definitions by enumeration."""

import pytest
import torch

from seqdiff.losses import d3pm_nelbo, discrete_nelbo, score_entropy
from seqdiff.parameterization import subs_log_probs
from seqdiff.process import MaskedDiffusion
from seqdiff.schedules import Cosine, Linear, NoiseSchedule
from seqdiff.score_parameterization import d3pm_log_probs, subs_log_score
from tests.oracles import unit_quadrature

K = 3
X0, X_T = torch.tensor([[0, 1, 2, 2, K]]), torch.tensor([[K, 1, K, K, K]])
STATES = torch.eye(K + 1, dtype=torch.float64)


def times(s: float, t: float) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor([s], dtype=torch.float64), torch.tensor([t], dtype=torch.float64)


def masked_posterior(law: torch.Tensor, alpha_s: float, alpha_t: float) -> torch.Tensor:
    """q(x_s | x_t = mask) by Bayes' rule when x0 has the given law over K + 1 states."""
    at_s = alpha_s * law + (1 - alpha_s) * STATES[K]
    to_mask = torch.full((K + 1,), 1 - alpha_t / alpha_s, dtype=torch.float64)
    to_mask[K] = 1
    joint = at_s * to_mask
    return joint / joint.sum()


@pytest.mark.parametrize("schedule", [Linear(), Cosine()], ids=repr)
@pytest.mark.parametrize(("s", "t"), [(0.3, 0.7), (0.0, 0.2), (0.8, 1.0)])
def test_d3pm_step_is_the_divergence_of_two_posteriors(
    schedule: NoiseSchedule, s: float, t: float
) -> None:
    process = MaskedDiffusion(K, schedule)
    log_probs = d3pm_log_probs(torch.randn(1, 5, K + 1, dtype=torch.float64))
    ours = d3pm_nelbo(log_probs, X0, X_T, *times(s, t), process)[0]
    alpha_s, alpha_t = (float(schedule.alpha(time)) for time in times(s, t))
    for position in (0, 2, 3):
        theta, x0 = log_probs[0, position].exp(), STATES[X0[0, position]]
        q, p = (masked_posterior(law, alpha_s, alpha_t) for law in (x0, theta))
        kl = torch.where(q > 0, q * (q / p).log(), 0.0).sum()
        assert float(ours[position]) == pytest.approx(float(kl), abs=1e-12)
    assert ours[1] == 0 and ours[4] == 0


def test_d3pm_without_mass_on_the_mask_is_subs() -> None:
    process, logits = MaskedDiffusion(K, Linear()), torch.randn(1, 5, K, dtype=torch.float64)
    walled = torch.cat((logits, torch.full((1, 5, 1), -torch.inf, dtype=torch.float64)), dim=-1)
    s, t = times(0.25, 0.5)
    torch.testing.assert_close(
        d3pm_nelbo(d3pm_log_probs(walled), X0, X_T, s, t, process),
        discrete_nelbo(subs_log_probs(logits, X_T), X0, X_T, s, t, process),
    )


def test_score_entropy_of_a_subs_score_is_the_cross_entropy_weight() -> None:
    """dsigma * score entropy of the implied score equals the MDLM term (Sahoo 2024, C.3)."""
    logits = torch.randn(1, 5, K, dtype=torch.float64)
    log_probs = subs_log_probs(logits, X_T)
    schedule = Linear()
    for t in unit_quadrature(4, 1)[0]:
        sigma = schedule.sigma(t[None])
        entropy = score_entropy(subs_log_score(log_probs, X_T, sigma), X0, X_T, sigma)
        expected = -log_probs[0, [0, 2, 3], X0[0, [0, 2, 3]]] / t
        ours = (schedule.dsigma(t[None]) * entropy)[0, [0, 2, 3]]
        torch.testing.assert_close(ours, expected)

"""Terms of the negative evidence lower bound (NELBO), per token, in nats, unreduced.

The bound of a sequence is the sum of its terms; per token it is that sum divided by the number of
tokens that count, never by the number that happens to be masked.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from seqdiff.blocks import spread
from seqdiff.process import BlockDiffusion, MaskedDiffusion
from seqdiff.schedules import NoiseSchedule


def weighted_mlm(
    log_probs: Float[Tensor, "B L K"],
    x0: Int[Tensor, "B L"],
    x_t: Int[Tensor, "B L"],
    weight: Float[Tensor, " B"] | Float[Tensor, "B L"],
) -> Float[Tensor, "B L"]:
    """Masked-language-model cross-entropy times a weight: what every bound here is.

    With k of n positions masked at random, k uniform on 1..n, and weight n/k, the expected sum
    over a row is the NELBO (Ou et al. 2024, arXiv:2406.03736, theorem 2).

    Args:
        log_probs: Law of x0 given x_t, in nats.
        x0: Clean ids in ``0..K``; K where unknown.
        x_t: Corrupted ids in ``0..K``.
        weight: One a row, or one a token.

    Returns:
        Nats; 0 where the token is visible or unknown.
    """
    counted, at_x0 = _at_x0(log_probs, x0, x_t, mask_id=log_probs.shape[-1])
    return torch.where(counted, -at_x0, 0.0) * weight.to(log_probs.dtype).view(len(x0), -1)


def nelbo(
    log_probs: Float[Tensor, "B L K"],
    x0: Int[Tensor, "B L"],
    x_t: Int[Tensor, "B L"],
    t: Float[Tensor, " B"],
    schedule: NoiseSchedule,
) -> Float[Tensor, "B L"]:
    """Continuous-time NELBO density at time t; its mean over t ~ U(0, 1) is the bound.

    Source: Sahoo et al. 2024, arXiv:2406.07524, equation 10.

    Args:
        log_probs: Law of x0 given x_t, in nats.
        x0: Clean ids in ``0..K``; K where unknown.
        x_t: Ids at time t.
        t: Times in (0, 1].
        schedule: The schedule that x_t was drawn with.

    Returns:
        Nats per unit time; 0 where the token is visible or unknown.
    """
    return weighted_mlm(log_probs, x0, x_t, schedule.nelbo_weight(t))


def block_nelbo(
    log_probs: Float[Tensor, "B L K"],
    x0: Int[Tensor, "B L"],
    x_t: Int[Tensor, "B L"],
    t: Float[Tensor, "B n"],
    process: BlockDiffusion,
) -> Float[Tensor, "B L"]:
    """``nelbo`` with a time for each of a row's n blocks; its mean over times is the bound.

    Source: Arriola et al. 2025, arXiv:2503.09573, equations 6 to 8.

    Args:
        log_probs: Law of x0 given x_t in the same block and x0 in the earlier ones, in nats.
        x0: Clean ids in ``0..K``; K where unknown.
        x_t: Ids, each block's at its time.
        t: Times in (0, 1].
        process: The process that x_t was drawn with.

    Returns:
        Nats per unit time; 0 where the token is visible or unknown.
    """
    weight = process.schedule.nelbo_weight(t)
    return weighted_mlm(log_probs, x0, x_t, spread(weight, process.block_size, x0.shape[1]))


def discrete_nelbo(
    log_probs: Float[Tensor, "B L K"],
    x0: Int[Tensor, "B L"],
    x_t: Int[Tensor, "B L"],
    s: Float[Tensor, " B"],
    t: Float[Tensor, " B"],
    process: MaskedDiffusion,
) -> Float[Tensor, "B L"]:
    """One step's term of the T-step NELBO; summed over the T steps from 1 to 0 it is the bound.

    The step that ends at s = 0 is the reconstruction term. Source: Sahoo et al. 2024,
    arXiv:2406.07524, equation 8.

    Args:
        log_probs: Law of x0 given x_t, in nats.
        x0: Clean ids in ``0..K``; K where unknown.
        x_t: Ids at time t.
        s: The step's end, in [0, t).
        t: The step's start, in (0, 1].
        process: The process that x_t was drawn with.

    Returns:
        Nats; 0 where the token is visible or unknown.
    """
    return weighted_mlm(log_probs, x0, x_t, process.reveal_probability(s, t))


def d3pm_nelbo(
    log_probs: Float[Tensor, "B L V"],
    x0: Int[Tensor, "B L"],
    x_t: Int[Tensor, "B L"],
    s: Float[Tensor, " B"],
    t: Float[Tensor, " B"],
    process: MaskedDiffusion,
) -> Float[Tensor, "B L"]:
    """One step's divergence of the T-step bound when the x0-prediction gives the mask some mass.

    With a mass of zero on the mask it is ``discrete_nelbo``. Source: Austin et al. 2021,
    arXiv:2107.03006, equation 4, for the absorbing kernel.

    Args:
        log_probs: Law of x0 given x_t over the K symbols and the mask, in nats.
        x0: Clean ids in ``0..K``; K where unknown.
        x_t: Ids at time t.
        s: The step's end, in [0, t).
        t: The step's start, in (0, 1].
        process: The process that x_t was drawn with.

    Returns:
        Nats; 0 where the token is visible or unknown.
    """
    counted, at_x0 = _at_x0(log_probs, x0, x_t, mask_id=process.mask_id)
    at_mask = log_probs[..., process.mask_id].exp()
    reveal = process.reveal_probability(s, t)[:, None]
    excess_s, excess_t = (_masked_excess(process.schedule, time, at_mask) for time in (s, t))
    terms = reveal * (excess_t - at_x0)
    terms = terms + torch.where(reveal < 1, (1 - reveal) * (excess_t - excess_s), 0.0)
    return torch.where(counted, terms, 0.0).to(log_probs.dtype)


def _masked_excess(schedule: NoiseSchedule, time: Tensor, at_mask: Tensor) -> Tensor:
    """Log of how much likelier a mask is when x0 may itself be the mask; finite at time 0."""
    alpha = schedule.alpha(time.double())[:, None]
    odds = torch.where(alpha < 1, alpha / (1 - alpha), 0.0)
    return torch.log1p(odds * at_mask)


def score_entropy(
    log_score: Float[Tensor, "B L V"],
    x0: Int[Tensor, "B L"],
    x_t: Int[Tensor, "B L"],
    sigma: Float[Tensor, " B"],
) -> Float[Tensor, "B L"]:
    """SEDD's denoising score entropy; times dsigma(t) and averaged over t it is a NELBO.

    Source: Lou et al. 2024, arXiv:2310.16834, equation 9 and appendix C.

    Args:
        log_score: Log-ratios of the K symbols and the mask, see ``sedd_log_score``.
        x0: Clean ids in ``0..K``; K where unknown.
        x_t: Ids at time t.
        sigma: Total noise -log alpha(t), positive.

    Returns:
        Nats per unit of sigma; 0 where the token is visible or unknown.
    """
    mask_id = log_score.shape[-1] - 1
    counted, at_x0 = _at_x0(log_score, x0, x_t, mask_id=mask_id)
    ratio = (1 / torch.expm1(sigma)).to(log_score.dtype)[:, None]
    total = log_score[..., :mask_id].exp().sum(dim=-1)
    return torch.where(counted, total - ratio * at_x0 + ratio * (ratio.log() - 1), 0.0)


def _at_x0(values: Tensor, x0: Tensor, x_t: Tensor, *, mask_id: int) -> tuple[Tensor, Tensor]:
    """Where a term counts: masked and known; and the value there of the true symbol."""
    counted = (x_t == mask_id) & (x0 != mask_id)
    return counted, values.gather(-1, torch.where(counted, x0, 0)[..., None]).squeeze(-1)

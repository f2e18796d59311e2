"""How the baselines D3PM and SEDD turn logits into laws and scores, and the score SUBS implies."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from seqdiff.parameterization import own_log_probs


def subs_log_score(
    log_probs: Float[Tensor, "B L K"], x_t: Int[Tensor, "B L"], sigma: Float[Tensor, " B"]
) -> Float[Tensor, "B L K+1"]:
    """The concrete score p_t(y) / p_t(x_t) that a SUBS law implies, as logarithms.

    Source: Sahoo et al. 2024, arXiv:2406.07524, appendix C.3; Ou et al. 2024, arXiv:2406.03736,
    theorem 1.

    Args:
        log_probs: Law of x0 given x_t from ``subs_log_probs``.
        x_t: Ids in ``0..K``.
        sigma: Total noise -log alpha(t), positive.

    Returns:
        One log-ratio for each of the K symbols and, last, the mask.
    """
    log_odds = _log_expm1(sigma).to(log_probs.dtype)[:, None, None]
    masked = (x_t == log_probs.shape[-1])[..., None]
    symbols = torch.where(masked, log_probs - log_odds, log_probs)
    mask = torch.where(masked, 0.0, log_odds)
    return torch.cat((symbols, mask), dim=-1)


def d3pm_log_probs(logits: Float[Tensor, "B L V"]) -> Float[Tensor, "B L V"]:
    """Normalise over the K symbols and the mask: D3PM's x0-prediction, mask column kept.

    Source: Austin et al. 2021, arXiv:2107.03006, section 3.3.
    """
    return own_log_probs(logits)


def sedd_log_score(
    logits: Float[Tensor, "B L V"], x_t: Int[Tensor, "B L"], sigma: Float[Tensor, " B"]
) -> Float[Tensor, "B L V"]:
    """Scale logits to log-scores of the absorbing process, 0 for the present token.

    Source: Lou et al. 2024, arXiv:2310.16834, appendix C.2.

    Args:
        logits: Of the K symbols and, last, the mask.
        x_t: Ids in ``0..K``.
        sigma: Total noise -log alpha(t), positive.
    """
    scores = logits.to(torch.promote_types(logits.dtype, torch.float32))
    num_others = logits.shape[-1] - 1
    scores = scores - _log_expm1(sigma).to(scores.dtype)[:, None, None] - math.log(num_others)
    return scores.scatter(-1, x_t[..., None], 0.0)


def _log_expm1(sigma: Tensor) -> Tensor:
    return sigma + torch.log(-torch.expm1(-sigma))

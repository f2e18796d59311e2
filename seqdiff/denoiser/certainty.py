"""How certain a model is of a token, and the order of positions that follows from it.

Adaptive samplers unmask in this order, and ``likelihood.ConfidentOrder`` follows it to compute the
likelihood of their samples.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor


def confidence(log_probs: Float64[Tensor, "N K"]) -> Float64[Tensor, " N"]:
    """Certainty as the log-probability of the most likely symbol."""
    return log_probs.amax(dim=-1)


def margin(log_probs: Float64[Tensor, "N K"]) -> Float64[Tensor, " N"]:
    """Certainty as the gap between the two most likely symbols; 1 if there is a single symbol."""
    best = log_probs.exp().topk(min(2, log_probs.shape[-1]), dim=-1).values
    return best[:, 0] - best[:, 1:].sum(dim=-1)


def negative_entropy(log_probs: Float64[Tensor, "N K"]) -> Float64[Tensor, " N"]:
    """Certainty as minus the entropy in nats."""
    return -torch.special.entr(log_probs.exp()).sum(dim=-1)


def rank_by_certainty(
    masked: Bool[Tensor, "B L"], certainty: Float64[Tensor, " N"]
) -> tuple[Float64[Tensor, "B L"], Int64[Tensor, "B L"]]:
    """Order the masked positions of each row, the most certain first; ties go to the left.

    Args:
        masked: The positions.
        certainty: Certainty of each, in the order of ``masked.nonzero()``.

    Returns:
        The certainties falling along each row, ``-inf`` after the last masked position; and the
        rank of each position from 0, in which masked positions come first.
    """
    every = torch.full(masked.shape, -torch.inf, dtype=torch.float64, device=masked.device)
    every[masked] = certainty
    order = every.argsort(dim=-1, descending=True, stable=True)
    rank = torch.empty_like(order)
    places = torch.arange(order.shape[-1], device=order.device).expand_as(order)
    return every.gather(-1, order), rank.scatter_(-1, order, places)


def even_count(
    start: Int64[Tensor, " B"], num_steps: int | Int64[Tensor, " B"], step: int
) -> Int64[Tensor, " B"]:
    """Number of positions that a step unmasks, if steps differ in size by at most one.

    The first step has the largest size.

    Args:
        start: Masked positions of each row at the start.
        num_steps: Number of steps, at least 1.
        step: Number of the step, from 0.
    """
    return -(-start * (step + 1) // num_steps) + (-start * step // num_steps)

"""First-hitting sampling: simulate only the times at which something happens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Int64
from torch import Tensor

from seqdiff.rng import permutation_rank
from seqdiff.samplers.canvas import Canvas
from seqdiff.samplers.decoding import DecodingSampler


def share_out(
    rank: Int64[Tensor, "B L"], count: Int64[Tensor, " B"], num_steps: int | None
) -> Int64[Tensor, "B L"]:
    """Cut each row's queue of positions into steps of as equal a size as can be.

    Args:
        rank: Place in the queue, from 0.
        count: Length of each queue.
        num_steps: Steps at most; ``None`` takes one for each position.

    Returns:
        The step of each place, from 0.
    """
    if num_steps is None:
        return rank
    return rank * count.clamp_max(num_steps)[:, None] // count.clamp_min(1)[:, None]


@dataclass(frozen=True)
class FirstHittingSampler(DecodingSampler):
    """The model's own distribution exactly, one evaluation a token; approximate with num_steps.

    The process run backwards reveals the masked tokens of a row one at a time, in a uniformly
    random order, at the times where 1 - alpha(t) equals the largest, second largest, ... of as many
    independent uniforms. Nothing happens in between, so nothing is evaluated there. Each row has
    its own order; all rows advance together. Source: Zheng et al. 2024, arXiv:2409.02908;
    there t <- t u^(1/n), which is the next smaller of n uniforms.

    Attributes:
        num_steps: Evaluations a row at most. Fewer than masks reveal several tokens from one
            prediction, in steps of equal size; ``None`` reveals one at a time.
    """

    num_steps: int | None = None

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            ValueError: If one is out of its range.
        """
        super().__post_init__()
        self._require(
            self.num_steps is None or self.num_steps >= 1,
            "num_steps",
            "be at least 1",
            "leave it out to reveal one token at a time",
        )

    def fill(self, canvas: Canvas) -> None:
        """See ``Sampler``."""
        masked = canvas.masked
        levels = canvas.draws.levels(masked)
        rank = permutation_rank(1 - levels, masked)
        opens_in = share_out(rank, masked.sum(dim=-1), self.num_steps)
        for step in range(int(opens_in[masked].max()) + 1 if bool(masked.any()) else 0):
            where = masked & (opens_in == step)
            level = torch.where(where, levels, 0.0).amax(dim=-1)
            t = canvas.absorbing.schedule.inverse(1 - level)
            self._reveal(canvas, where, canvas.log_probs(where, t))
            canvas.end_step()

"""First-hitting sampling: simulate only the times at which a token is unmasked."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor
from typing_extensions import override

from seqdiff.rng import permutation_rank
from seqdiff.samplers.canvas import Canvas
from seqdiff.samplers.decoding import Decoding
from seqdiff.samplers.protocol import Sampler, option

UNMASK_STEPS = ("be at least 1", "leave it out to unmask one token at a time")


def draw_queue(
    canvas: Canvas, num_steps: int | None
) -> tuple[Float64[Tensor, "B L"], Int64[Tensor, "B L"]]:
    """Draw the unmask time of each masked position, and the step that it falls into.

    The positions of a row are split into at most ``num_steps`` steps of sizes as equal as possible,
    or into one step for each position.
    """
    masked = canvas.masked
    times = canvas.draws.unmask_times(masked)
    rank = permutation_rank(1 - times, masked)
    if num_steps is None:
        return times, rank
    count = masked.sum(dim=-1)[:, None]
    return times, rank * count.clamp_max(num_steps) // count.clamp_min(1)


def count_steps(unmasked_in: Int64[Tensor, "B L"], masked: Bool[Tensor, "B L"]) -> int:
    """Count the steps that a batch takes."""
    return int(unmasked_in[masked].max()) + 1 if bool(masked.any()) else 0


def step_time(
    canvas: Canvas, times: Float64[Tensor, "B L"], where: Bool[Tensor, "B L"]
) -> Float64[Tensor, " B"]:
    """Return the time of a step: that of the first position that it unmasks."""
    fraction = torch.where(where, times, 0.0).amax(dim=-1)
    return canvas.absorbing.schedule.inverse(1 - fraction)


@dataclass(frozen=True)
class FirstHittingSampler(Decoding, Sampler):
    """The model's own distribution exactly, one evaluation per token; approximate with num_steps.

    The reverse process unmasks the tokens of a row one at a time, in a uniformly random order, at
    the times where 1 - alpha(t) equals the largest, second largest, ... of as many independent
    uniforms. Nothing happens in between, so the network is not evaluated there. Each row has its
    own order, and all rows advance together. Source: Zheng et al. 2024, arXiv:2409.02908; there
    t <- t u^(1/n), which is the next smaller of n uniforms.

    Attributes:
        num_steps: Maximum evaluations per row. With fewer than there are masks, several tokens are
            drawn from one prediction, in steps of equal size. The default unmasks one at a time.
    """

    num_steps: int | None = option(None, lambda value: value >= 1, *UNMASK_STEPS)

    @override
    def fill(self, canvas: Canvas) -> None:
        masked = canvas.masked
        times, unmasked_in = draw_queue(canvas, self.num_steps)
        for step in range(count_steps(unmasked_in, masked)):
            where = masked & (unmasked_in == step)
            self._draw(canvas, where, canvas.log_probs(where, step_time(canvas, times, where)))
            canvas.end_step()

"""Sampling from an autoregressive model: one token after the other."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seqdiff.samplers.canvas import Canvas
from seqdiff.samplers.checks import check_kind
from seqdiff.samplers.decoding import DecodingSampler


@dataclass(frozen=True)
class LeftToRightSampler(DecodingSampler):
    """An autoregressive model's own law exactly, one evaluation a token; for no other model.

    Visible tokens must come before all masked ones: a prompt. The network reads the row anew for
    each token, up to that token. ``allowed`` restricts each token's law given those before it,
    which is not the model's law given that all tokens are allowed.
    """

    kind = "causal"
    directed = True

    def fill(self, canvas: Canvas) -> None:
        """See ``Sampler``.

        Raises:
            ValueError: If the model is one of masked diffusion, or a token to the right of a mask
                is visible.
        """
        check_kind(type(self).__name__, canvas.denoiser, kind=self.kind)
        _check_prompt(canvas)
        for end in range(1, canvas.x_t.shape[1] + 1):
            part = canvas.window(0, end)
            where = part.masked
            if bool(where.any()):
                self._reveal(part, where, part.law(where, part.time))
                part.end_step()


def _check_prompt(canvas: Canvas) -> None:
    real: Tensor = torch.ones_like(canvas.free) if canvas.padding is None else ~canvas.padding
    masked = canvas.masked
    after_a_mask = masked.cumsum(dim=-1) > 0
    bad = real & ~masked & after_a_mask
    if bool(bad.any()):
        row, column = bad.nonzero()[0].tolist()
        raise ValueError(
            "LeftToRightSampler.x_init must hold visible tokens before all masks only, got token "
            f"{int(canvas.x_t[row, column])} after a mask at row {row}, position {column}; "
            "an autoregressive model cannot look ahead: fill in with a run of masked diffusion"
        )

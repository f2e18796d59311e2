"""Sampling from an autoregressive model: one token after the other."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from typing_extensions import override

from seqdiff.denoiser import Needs
from seqdiff.process import LeftToRight
from seqdiff.samplers.canvas import Canvas
from seqdiff.samplers.decoding import Decoding
from seqdiff.samplers.protocol import Sampler


@dataclass(frozen=True)
class LeftToRightSampler(Decoding, Sampler):
    """An autoregressive model's own distribution, one evaluation a token; for no other model.

    Visible tokens must come before all masked ones: a prompt. The network reads the row again for
    each token, up to that token. ``allowed`` restricts each token given those before it, which is
    not the model's distribution given that all tokens are allowed.
    """

    needs = Needs((LeftToRight,))
    order_dependent = True

    @override
    def fill(self, canvas: Canvas) -> None:
        """Fill every masked position of the canvas.

        Raises:
            ValueError: If a token to the right of a mask is given.
        """
        masked = canvas.masked
        bad = canvas.real & ~masked & (masked.cumsum(dim=-1) > 0)
        if bool(bad.any()):
            row, column = bad.nonzero()[0].tolist()
            raise ValueError(
                "LeftToRightSampler.x_init must hold visible tokens before all masks only, got "
                f"token {int(canvas.x_t[row, column])} after a mask at row {row}, position "
                f"{column}; an autoregressive model cannot look ahead: fill in with a run of "
                "masked diffusion"
            )
        zero = torch.zeros(len(canvas.x_t), dtype=torch.float64, device=canvas.x_t.device)
        for end in range(1, canvas.x_t.shape[1] + 1):
            part = canvas.window(0, end)
            where = part.masked
            if bool(where.any()):
                self._draw(part, where, part.log_probs(where, zero))
                part.end_step()

"""Samplers that go from left to right: token by token, or with a sliding window."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from typing_extensions import override

from seqdiff.denoiser import Needs
from seqdiff.process import Absorbing, LeftToRight
from seqdiff.samplers.block import Growth, real_tokens
from seqdiff.samplers.canvas import Canvas
from seqdiff.samplers.decoding import Decoding
from seqdiff.samplers.first_hitting import FirstHittingSampler
from seqdiff.samplers.protocol import Sampler, require


@dataclass(frozen=True)
class LeftToRightSampler(Decoding, Sampler):
    """An autoregressive model's own distribution, one evaluation per token.

    Visible tokens must come before all masked ones: a prompt. A transformer keeps the keys and
    values of earlier tokens, so each evaluation runs one position; other networks read the row
    again for each token, up to that token. ``allowed`` restricts each token given those before it,
    which is not the model's distribution given that all tokens are allowed.
    """

    needs = Needs((LeftToRight,))
    order_dependent = True

    @override
    def fill(self, canvas: Canvas) -> None:
        """Fill every masked position of the canvas.

        Raises:
            ValueError: If a token to the right of a mask is given, or rows are longer than the
                network can read.
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
        length, most = canvas.x_t.shape[1], canvas.denoiser.backbone.max_length
        if most is not None and length > most:
            raise ValueError(
                f"LeftToRightSampler.x_init must be at most max_length = {most} long, got "
                f"{length}; draw shorter rows"
            )
        if not bool(masked.any()):
            return
        if canvas.denoiser.caches_prefix and _padded_at_the_end(canvas):
            for _ in Growth.begin(canvas, real_tokens(canvas), None).grow(self._draw_all):
                pass
            return
        for end in range(1, length + 1):
            part = canvas.window(0, end)
            if bool(part.masked.any()):
                self._draw_all(part)

    def _draw_all(self, canvas: Canvas) -> None:
        """Draw the only masked token of each row of a canvas."""
        where = canvas.masked
        zero = torch.zeros(len(where), dtype=torch.float64, device=where.device)
        self._draw(canvas, where, canvas.log_probs(where, zero))
        canvas.end_step()


def _padded_at_the_end(canvas: Canvas) -> bool:
    padding = canvas.padding
    return padding is None or not bool((padding[:, :-1] & ~padding[:, 1:]).any())


@dataclass(frozen=True)
class SemiAutoregressiveSampler(Sampler):
    """Fill a sliding window by another sampler, move it by a stride and keep its tokens.

    The network sees one window at a time, so a row may be longer than the training rows. The first
    window is drawn as a whole. Each later window sees the tokens that it has in common with the one
    before it. The last window ends with the row. Source: Sahoo et al. 2024, arXiv:2406.07524.

    Attributes:
        window: Tokens that the network sees at a time.
        stride: Tokens that the window moves by, at most ``window``.
        inner: Fills each window. It has its own temperature and the like.
    """

    order_dependent = True
    fills_blocks = False
    draws_from = "another"
    window: int
    stride: int
    inner: Sampler = field(default_factory=FirstHittingSampler)

    def __post_init__(self) -> None:
        super().__post_init__()
        fix = "build one, such as FirstHittingSampler()"
        require(self, isinstance(self.inner, Sampler), "inner", "be a sampler", fix)
        if not self.inner.needs.include(Absorbing, "loo"):
            raise ValueError(
                "SemiAutoregressiveSampler.inner must be a sampler of masked diffusion, got "
                f"{type(self.inner).__name__}; choose first_hitting or ancestral"
            )
        require(
            self,
            1 <= self.stride <= self.window,
            "stride",
            f"be in 1..window = {self.window}",
            "half the window is a good choice",
        )

    @override
    def context_length(self, length: int) -> int:
        return self.inner.context_length(min(length, self.window))

    @override
    def fill(self, canvas: Canvas) -> None:
        length = canvas.x_t.shape[1]
        for start in range(0, max(1, length - self.window + self.stride), self.stride):
            self.inner.fill(canvas.window(start, min(start + self.window, length)))

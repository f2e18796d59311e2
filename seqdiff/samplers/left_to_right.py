"""Samplers that go from left to right: token by token, or with a sliding window."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from typing_extensions import override

from seqdiff.denoiser import Needs
from seqdiff.process import Absorbing, LeftToRight
from seqdiff.samplers.canvas import Canvas
from seqdiff.samplers.decoding import Decoding
from seqdiff.samplers.first_hitting import FirstHittingSampler
from seqdiff.samplers.protocol import Sampler, require


@dataclass(frozen=True)
class LeftToRightSampler(Decoding, Sampler):
    """An autoregressive model's own distribution, one evaluation per token.

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

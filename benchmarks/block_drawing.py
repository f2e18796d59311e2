"""Draws blocks after a given number of tokens, as the block sampler does, for its benchmarks."""

from __future__ import annotations

import time
from dataclasses import replace

import torch
from jaxtyping import Int64
from torch import Tensor

from benchmarks.common import wait
from seqdiff.denoiser import Denoiser
from seqdiff.samplers import Canvas, FirstHittingSampler, Growth, SeededDraws, real_tokens

_PIECE = 4096


class Drawing:
    """Rows with a known start, and the blocks to draw after it, as often as wanted.

    Args:
        denoiser: A model of block diffusion, on the device that draws.
        inner: The sampler that fills each block.
        start: Known tokens of each row, a multiple of the block size.
        blocks: Blocks to draw.
        rows: Rows.
    """

    @torch.no_grad()
    def __init__(
        self,
        denoiser: Denoiser,
        inner: FirstHittingSampler,
        start: int,
        blocks: int,
        rows: int = 1,
    ) -> None:
        size, symbols = denoiser.block_size, denoiser.vocab_size
        assert start % size == 0
        self.inner, self.first, self.blocks = inner, start // size, blocks
        self.tokens = rows * blocks * size
        device = next(denoiser.parameters()).device
        x_init = torch.full((rows, start + blocks * size), symbols)
        source = torch.Generator().manual_seed(0)
        x_init[:, :start] = torch.randint(symbols, (rows, start), generator=source)
        self.x_init = x_init.to(device)
        draws = SeededDraws(torch.arange(rows, device=device))
        canvas = Canvas.open(denoiser, draws, self.x_init)
        self.growth = Growth.begin(canvas, real_tokens(canvas), None)
        for block in range(0, self.first + 1, max(1, _PIECE // size)):
            self.growth.catch_up(block)  # in parts, so that memory stays small
        self.growth.catch_up(self.first)

    @torch.no_grad()
    def seconds(self) -> tuple[float, Int64[Tensor, "B L"]]:
        """Draw the blocks and append each to the cache.

        Returns:
            The seconds that it took, and the tokens drawn.
        """
        every = torch.arange(len(self.x_init), device=self.x_init.device)
        known = self.growth
        known.canvas.x_t.copy_(self.x_init)
        growth = replace(known, prefix=known.prefix.take(every))
        wait(self.x_init.device.type)
        start = time.perf_counter()
        for block in range(self.first, self.first + self.blocks):
            growth.leave(block)
            growth.fill(block, self.inner.fill)
            growth.catch_up(block + 1)
        wait(self.x_init.device.type)
        spent = time.perf_counter() - start
        return spent, growth.canvas.x_t[:, self.first * growth.size :].clone()

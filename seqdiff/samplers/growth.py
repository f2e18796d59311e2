"""Rows that grow block by block, while a network keeps what it needs of their clean blocks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from seqdiff.block_denoiser import BlockDenoiser, Prefix
from seqdiff.blocks import cut
from seqdiff.samplers.canvas import Canvas
from seqdiff.samplers.protocol import Sampler


@dataclass
class Growth:
    """The rows of a canvas while they grow; those that are complete have left.

    Attributes:
        canvas: The rows.
        size: Tokens of a block.
        open: Blocks that hold masks.
        until: Number of blocks up to the last that holds masks.
        end: Real tokens of each row.
        rows: Those that still grow.
        prefix: What the network keeps of those rows.
        known: Blocks that it has taken in.
    """

    canvas: Canvas
    size: int
    open: Bool[Tensor, "B n"]
    until: Int64[Tensor, " B"]
    end: Int64[Tensor, " B"]
    rows: Int64[Tensor, " b"]
    prefix: Prefix
    known: int = 0

    @classmethod
    def begin(cls, canvas: Canvas, denoiser: BlockDenoiser, window: int | None) -> Growth:
        """Look at all rows, once, and open a prefix for those that have masks, of which there are.

        Args:
            canvas: The rows.
            denoiser: The canvas's.
            window: See ``BlockBackbone.block_cache``.

        Raises:
            ValueError: If padding is not at the end of rows, or the window does not fit the
                network.
        """
        size = denoiser.block_size
        batch = len(canvas.x_t)
        opened = cut(canvas.masked, size).any(dim=-1).view(batch, -1)
        number = torch.arange(1, opened.shape[1] + 1, device=opened.device)
        last = torch.where(opened, number, 0)
        until = last.amax(dim=-1)
        rows, end = until.nonzero().squeeze(-1), _ends(canvas)
        return cls(canvas, size, opened, until, end, rows, denoiser.start(len(rows), window=window))

    @property
    def num_blocks(self) -> int:
        """Blocks up to the last of any row that holds masks."""
        return int(self.until.max())

    def leave(self, block: int) -> None:
        """Let rows go that have no masks from a block on."""
        stays = self.until[self.rows] > block
        if not bool(stays.all()):
            self.rows = self.rows[stays]
            self.prefix = self.prefix.take(stays.nonzero().squeeze(-1))

    def is_open(self, block: int) -> bool:
        """Whether a row that grows has masks in a block."""
        return bool(self.open[self.rows, block].any())

    def catch_up(self, block: int) -> None:
        """Take in all blocks before one that have not been, at once."""
        if self.known < block:
            x0 = self.canvas.x_t[self.rows, self.known * self.size : block * self.size]
            self.prefix.append(x0)
            each = self.canvas.denoiser.evaluations(x0)
            self.canvas.nfe[self.rows] += each * (block - self.known)
            self.known = block

    def fill(self, block: int, inner: Sampler) -> None:
        """Fill a block of the rows that have masks there.

        Only rows whose block is cut short alike share a batch, for the network takes no padding.
        """
        start = block * self.size
        opened = self.open[self.rows, block]
        width = (self.end[self.rows] - start).clamp_max(self.size)
        for size in width[opened].unique().tolist():
            chosen = (opened & (width == size)).nonzero().squeeze(-1)
            whole = len(chosen) == len(self.rows)
            prefix = self.prefix if whole else self.prefix.take(chosen)
            rows = self.rows[chosen]
            self.canvas.fill_block(rows, start, start + size, prefix, inner.fill)


def _ends(canvas: Canvas) -> Int64[Tensor, " B"]:
    """Count the real tokens of each row.

    Raises:
        ValueError: If padding is before one of them.
    """
    batch, length = canvas.x_t.shape
    if canvas.padding is None:
        return torch.full((batch,), length, device=canvas.x_t.device)
    bad = canvas.padding[:, :-1] & ~canvas.padding[:, 1:]
    if bool(bad.any()):
        row, column = bad.nonzero()[0].tolist()
        raise ValueError(
            "BlockSampler.padding must come after the last token of a row, got a token after it "
            f"at row {row}, position {column + 1}; move the tokens to the left"
        )
    return (~canvas.padding).sum(dim=-1)

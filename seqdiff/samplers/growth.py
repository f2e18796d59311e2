"""Rows that grow block by block: the cached states of their clean blocks, and when a row ends."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from seqdiff.blocks import cut
from seqdiff.denoiser import Prefix
from seqdiff.samplers.canvas import Canvas
from seqdiff.samplers.protocol import Sampler
from seqdiff.types import Inputs


def unigram_entropy(tokens: Int64[Tensor, "B n"]) -> Float64[Tensor, " B"]:
    """Entropy in nats of the frequencies of the symbols in each row.

    Args:
        tokens: Any integers; their range does not matter.
    """
    ordered = tokens.sort(dim=-1).values
    first = torch.searchsorted(ordered, ordered)
    count = torch.searchsorted(ordered, ordered, right=True) - first
    return math.log(max(1, tokens.shape[1])) - count.double().log().mean(dim=-1)


@dataclass(frozen=True)
class StopRules:
    """A symbol that ends a row, and how monotonous the end of a row may become.

    Attributes:
        stop_id: The symbol.
        min_entropy: In nats.
        entropy_window: Tokens at the end of a row whose entropy is looked at.
    """

    stop_id: int | None
    min_entropy: float | None
    entropy_window: int

    def check(self, owner: str, vocab_size: int) -> None:
        """Refuse rules that no row or every row would fulfil.

        Args:
            owner: Whose options these are, for the message.
            vocab_size: K.

        Raises:
            ValueError: If there is no such symbol, or no row can have the entropy.
        """
        if self.stop_id is not None and not 0 <= self.stop_id < vocab_size:
            raise ValueError(
                f"{owner}.stop_id must be in 0..{vocab_size - 1}, got {self.stop_id}; "
                "the tokenizer's encode gives ids"
            )
        most = math.log(min(vocab_size, self.entropy_window))
        if self.min_entropy is not None and self.min_entropy >= most:
            raise ValueError(
                f"{owner}.min_entropy must be below {most:.4g} nats, all that {self.entropy_window}"
                f" tokens of {vocab_size} symbols can have, got {self.min_entropy}; lower it"
            )

    @property
    def idle(self) -> bool:
        """Whether there is no rule."""
        return self.stop_id is None and self.min_entropy is None

    @property
    def sight(self) -> int:
        """Tokens at the end of a row that the rules look at, besides those of the last block."""
        return 0 if self.min_entropy is None else self.entropy_window

    def ends(
        self,
        tail: Int64[Tensor, "B n"],
        drawn: Bool[Tensor, "B size"],
        end: int,
        earliest: Int64[Tensor, " B"],
    ) -> Int64[Tensor, " B"]:
        """Say which rows end now that a block is finished.

        Args:
            tail: Last tokens of the rows: the block, and ``sight`` tokens if there are as many.
            drawn: Positions of the block that were not given.
            end: Where the block ends.
            earliest: Tokens that a row has at least.

        Returns:
            The number of tokens of each row; -1 for those that go on.
        """
        ends, size = torch.full_like(earliest, -1), drawn.shape[1]
        if self.min_entropy is not None and end >= self.entropy_window:
            low = unigram_entropy(tail[:, -self.entropy_window :]) < self.min_entropy
            ends[low & (earliest <= end)] = end
        if self.stop_id is not None:
            number = torch.arange(end - size + 1, end + 1, device=ends.device)
            hit = drawn & (tail[:, -size:] == self.stop_id)
            hit &= (number >= earliest[:, None]) & (number > 1)
            first = torch.where(hit, number, end + 1).amin(dim=-1)
            ends = torch.where(first <= end, first, ends)
        return ends


@dataclass
class Growth:
    """The rows of a canvas while they grow; those that are complete have left.

    Attributes:
        canvas: The rows.
        size: Tokens of a block.
        open: Blocks that hold masks.
        until: Number of blocks up to the last that holds masks.
        end: Tokens of each row.
        earliest: Where each row may end at the earliest: after its last visible token.
        rows: Those that still grow.
        prefix: What the network keeps of those rows.
        known: Blocks that it has taken in.
    """

    canvas: Canvas
    size: int
    open: Bool[Tensor, "B n"]
    until: Int64[Tensor, " B"]
    end: Int64[Tensor, " B"]
    earliest: Int64[Tensor, " B"]
    rows: Int64[Tensor, " b"]
    prefix: Prefix
    known: int = 0

    @classmethod
    def begin(cls, canvas: Canvas, end: Int64[Tensor, " B"], window: int | None) -> Growth:
        """Look at all rows, once, and open a prefix for those that have masks, of which there are.

        Args:
            canvas: The rows.
            end: Tokens of each row; falls where a row stops.
            window: See ``Backbone.block_cache``.

        Raises:
            ValueError: If the window does not fit the network.
        """
        denoiser = canvas.denoiser
        size = denoiser.block_size
        place = torch.arange(canvas.x_t.shape[1], device=end.device)
        earliest = _last(~canvas.free & (place < end[:, None]))
        opened = cut(canvas.masked, size).any(dim=-1).view(len(end), -1)
        until = _last(opened)
        rows = until.nonzero().squeeze(-1)
        prefix = denoiser.start(len(rows), window=window)
        return cls(canvas, size, opened, until, end, earliest, rows, prefix)

    @property
    def num_blocks(self) -> int:
        """Blocks up to the last of any row that holds masks."""
        return int(self.until.max())

    def leave(self, block: int) -> None:
        """Let rows go that have no masks from a block on."""
        stays = self.until[self.rows] > block
        if not bool(stays.all()):
            self.rows = self.rows[stays]
            if len(self.rows):
                self.prefix = self.prefix.take(stays.nonzero().squeeze(-1))

    def is_open(self, block: int) -> bool:
        """Whether a row that grows has masks in a block."""
        return bool(self.open[self.rows, block].any())

    def catch_up(self, block: int) -> None:
        """Take in all blocks before one that have not been, at once."""
        if self.known < block:
            x0 = self.canvas.x_t[self.rows, self.known * self.size : block * self.size]
            self.prefix.append(x0)
            each = self.canvas.denoiser.evaluations(Inputs(x0))
            self.canvas.nfe[self.rows] += each * (block - self.known)
            self.known = block

    def fill(self, block: int, inner: Sampler) -> None:
        """Fill a block of the rows that have masks there.

        Only rows whose block is cut short alike share a batch, for the network takes no padding.
        """
        start = block * self.size
        opened = self.open[self.rows, block]
        width = (self.end[self.rows] - start).clamp_max(self.size)
        for part in width[opened].unique().tolist():
            chosen = (opened & (width == part)).nonzero().squeeze(-1)
            whole = len(chosen) == len(self.rows)
            prefix = self.prefix if whole else self.prefix.take(chosen)
            rows = self.rows[chosen]
            self.canvas.fill_block(rows, start, start + part, prefix, inner.fill)

    def stop(self, block: int, rules: StopRules) -> None:
        """End the rows that stop with a block, and mask what they have beyond their ends.

        The step that finished the block is reported again, without what was masked.

        Args:
            block: Its number; it is filled.
            rules: When to stop.
        """
        rows = self.rows[self.open[self.rows, block]]
        start, x_t, free = block * self.size, self.canvas.x_t, self.canvas.free
        end = min(start + self.size, x_t.shape[1])
        tail = x_t[rows, max(0, min(start, end - rules.sight)) : end]
        found = rules.ends(tail, free[rows, start:end], end, self.earliest[rows])
        found = found.minimum(self.end[rows])
        ended = (found >= 0) & (found < self.end[rows])
        if not bool(ended.any()):
            return
        self.end[rows[ended]] = found[ended]
        self.until[rows[ended]] = block + 1
        for row, last in zip(rows[ended].tolist(), found[ended].tolist(), strict=True):
            x_t[row, last:end].masked_fill_(free[row, last:end], self.canvas.unknown_id)
            free[row, last:] = False
        self.canvas.report(self.canvas.step)


def _last(x: Bool[Tensor, "B n"]) -> Int64[Tensor, " B"]:
    """Count the entries of each row up to the last that is True."""
    number = torch.arange(1, x.shape[1] + 1, device=x.device)
    return torch.where(x, number, 0).amax(dim=-1)


def real_tokens(canvas: Canvas) -> Int64[Tensor, " B"]:
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

"""Sampling from a model of block diffusion, block by block; rows may end early."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor
from typing_extensions import override

from seqdiff.blocks import cut
from seqdiff.denoiser import Denoiser, Needs, Prefix
from seqdiff.process import Absorbing, Blockwise
from seqdiff.samplers.canvas import Canvas
from seqdiff.samplers.first_hitting import FirstHittingSampler
from seqdiff.samplers.protocol import Sampler, option, require
from seqdiff.types import Inputs


def unigram_entropy(tokens: Int64[Tensor, "B n"]) -> Float64[Tensor, " B"]:
    """Compute the entropy of the symbols in each row in nats; symbols may be any integers."""
    ordered = tokens.sort(dim=-1).values
    first = torch.searchsorted(ordered, ordered)
    count = torch.searchsorted(ordered, ordered, right=True) - first
    return math.log(max(1, tokens.shape[1])) - count.double().log().mean(dim=-1)


@dataclass
class Growth:
    """The rows of a canvas while they grow; complete rows leave.

    Attributes:
        canvas: The rows.
        size: Tokens of a block.
        open: True for blocks that hold masks.
        until: Number of blocks up to the last that holds masks.
        end: Tokens of each row.
        earliest: Smallest allowed end of each row, after its last visible token.
        rows: The rows that still grow.
        prefix: The network's state or cache of those rows.
        known: Number of blocks that it has read.
        counted: Whether reading a block costs an evaluation.
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
    counted: bool = True

    @classmethod
    def begin(
        cls, canvas: Canvas, end: Int64[Tensor, " B"], window: int | None, refresh: int = 1
    ) -> Growth:
        """Start the prefix of the rows with masks; there must be at least one such row.

        An autoregressive model has blocks of one token, which cost nothing to read.

        Args:
            canvas: The rows.
            end: Tokens of each row; updated in place when a row stops.
            window: See ``Backbone.block_cache``.
            refresh: See ``PartialCache.logits_of``.

        Raises:
            ValueError: If the window does not fit the network.
        """
        denoiser = canvas.denoiser
        counted = not denoiser.caches_prefix
        size = denoiser.block_size if counted else 1
        place = torch.arange(canvas.x_t.shape[1], device=end.device)
        earliest = _last(~canvas.free & (place < end[:, None]))
        opened = cut(canvas.masked, size).any(dim=-1).view(len(end), -1)
        until = _last(opened)
        rows = until.nonzero().squeeze(-1)
        signal = None if canvas.signal is None else canvas.signal[rows]
        prefix = denoiser.start(len(rows), window=window, signal=signal)
        prefix = replace(prefix, refresh=refresh)
        return cls(canvas, size, opened, until, end, earliest, rows, prefix, counted=counted)

    @property
    def num_blocks(self) -> int:
        """Number of blocks up to the last one of any row that holds masks."""
        return int(self.until.max())

    def leave(self, block: int) -> None:
        """Drop the rows that have no masks from a block on."""
        stays = self.until[self.rows] > block
        if not bool(stays.all()):
            self.rows = self.rows[stays]
            if len(self.rows):
                self.prefix = self.prefix.take(stays.nonzero().squeeze(-1))

    def is_open(self, block: int) -> bool:
        """Whether a growing row has masks in a block."""
        return bool(self.open[self.rows, block].any())

    def catch_up(self, block: int) -> None:
        """Let the network read all unread blocks before one, in one call."""
        if self.known < block:
            x0 = self.canvas.x_t[self.rows, self.known * self.size : block * self.size]
            self.prefix.append(x0)
            if self.counted:
                each = self.canvas.denoiser.evaluations(Inputs(x0))
                self.canvas.nfe[self.rows] += each * (block - self.known)
            self.known = block

    def grow(self, fill: Callable[[Canvas], None]) -> Iterator[int]:
        """Fill block after block; give the number of each block that was filled.

        Args:
            fill: Fills the canvas of a block.
        """
        for block in range(self.num_blocks):
            self.leave(block)
            if self.is_open(block):
                self.catch_up(block)
                self.fill(block, fill)
                yield block

    def fill(self, block: int, fill: Callable[[Canvas], None]) -> None:
        """Fill a block of the rows that have masks there.

        Rows are batched by the width of their block, because the network takes no padding.
        """
        start = block * self.size
        opened = self.open[self.rows, block]
        width = (self.end[self.rows] - start).clamp_max(self.size)
        for part in width[opened].unique().tolist():
            chosen = (opened & (width == part)).nonzero().squeeze(-1)
            whole = len(chosen) == len(self.rows)
            prefix = self.prefix if whole else self.prefix.only(chosen)
            rows = self.rows[chosen]
            self.canvas.fill_block(rows, start, start + part, prefix, fill)

    def follow(self, origin: Int64[Tensor, " B"]) -> None:
        """Replace the prefix of each row by that of another row, whose blocks have the same masks.

        Args:
            origin: The other row.
        """
        chosen = torch.searchsorted(self.rows, origin[self.rows])
        self.prefix = self.prefix.take(chosen)

    def stop(self, block: int, sampler: BlockSampler) -> None:
        """End the rows that stop with a block, and mask their tokens after the end.

        The step that finished the block is reported again, without those tokens.
        """
        rows = self.rows[self.open[self.rows, block]]
        start, x_t, free = block * self.size, self.canvas.x_t, self.canvas.free
        end = min(start + self.size, x_t.shape[1])
        window = 0 if sampler.min_entropy is None else sampler.entropy_window
        tail = x_t[rows, max(0, min(start, end - window)) : end]
        found = sampler.ends(tail, free[rows, start:end], end, self.earliest[rows])
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
        ValueError: If padding comes before one of them.
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


@dataclass(frozen=True)
class BlockSampler(Sampler):
    """For block diffusion: fill block after block by another sampler, given the earlier blocks.

    The network keeps a state of finished blocks, or the tokens in its window, so that every block
    costs the same. Visible tokens may be anywhere: a prompt of any length, which may differ between
    rows, or tokens between gaps. A block does not see the tokens to its right, so each block
    follows the model's distribution given the tokens before it, not given all visible tokens. A row
    without masks leaves the batch.
    Source: Arriola et al. 2025, arXiv:2503.09573, section 3.

    A row may end before it is full; ``SampleOutput.length`` is its length. It ends with the first
    stop symbol that was drawn, which stays its last token. It also ends after a block if the
    entropy of its last tokens is too low (``min_entropy``). It never ends before its last visible
    token, nor with a stop symbol in the first position, because some texts begin with that symbol.

    Network evaluations are counted in blocks. A block is evaluated as often as the inner sampler
    needs, and once more, clean, when the network reads it. A block of a prompt is only read, and
    the last block of a row is never read.

    A transformer keeps the keys and values of finished blocks, which is exact. With ``refresh``
    above 1 it also keeps those of the tokens within the present block, which is approximate: an
    evaluation computes only the positions that the inner sampler asks for and the tokens drawn
    since the last evaluation. So the block does not follow the inner sampler's distribution.
    Source of the idea: Wu et al. 2025, arXiv:2505.22618, section 3.2.

    Attributes:
        inner: Fills each block. It has its own temperature and the like.
        window: Tokens that the network sees at a time, including those of the block; those further
            back are forgotten. Rows may be longer than the window. By default the network decides.
            A network that keeps a state does not use it.
        stop_id: The symbol that ends a row.
        min_entropy: A row ends after a block if the unigram entropy of its last ``entropy_window``
            tokens, including those of a prompt, is below this number of nats. For subwords the
            published value is 4. The entropy of natural text must be well above the value.
        entropy_window: See ``min_entropy``; shorter rows do not end by it.
        refresh: For transformers: every how many evaluations the whole block is computed. 1 is
            exact. At the block size or above, only the first evaluation of a block computes all of
            it.
    """

    needs = Needs((Blockwise,), any_order=True)
    order_dependent = True
    inner: Sampler = field(default_factory=FirstHittingSampler)
    window: int | None = None
    stop_id: int | None = None
    min_entropy: float | None = None
    entropy_window: int = option(256, lambda value: value >= 1, "be at least 1", "256 is published")
    refresh: int = option(1, lambda value: value >= 1, "be at least 1", "1 is exact")

    def __post_init__(self) -> None:
        super().__post_init__()
        fix = "build one, such as FirstHittingSampler()"
        require(self, isinstance(self.inner, Sampler), "inner", "be a sampler", fix)
        masks = self.inner.needs.include(Absorbing, "loo")
        if not (masks and self.inner.fills_blocks):
            raise ValueError(
                "BlockSampler.inner must be a sampler of masked diffusion that can fill a block "
                f"by itself, got {type(self.inner).__name__}; choose first_hitting or ancestral"
            )

    @override
    def context_length(self, length: int) -> int:
        return length if self.window is None else min(length, self.window)

    @override
    def fill(self, canvas: Canvas) -> None:
        """Fill every masked position; steps are those of all blocks, one after the other.

        Raises:
            ValueError: See ``check``; or if padding is not at the end of rows.
        """
        size = self.check(canvas.denoiser)
        end = real_tokens(canvas)
        stops = self.stop_id is not None or self.min_entropy is not None
        if stops:
            canvas.length = end
        if not bool(canvas.masked.any()):
            return
        behind = None if self.window is None else (self.window // size - 1) * size
        growth = Growth.begin(canvas, end, behind, self.refresh)
        for block in growth.grow(self.inner.fill):
            if stops:
                growth.stop(block, self)

    def check(self, denoiser: Denoiser) -> int:
        """Check that the options fit a model, and return the number of tokens of a block.

        Raises:
            ValueError: If the model is of another kind, the window does not hold two blocks, there
                is no such stop symbol, no row can have the entropy, or the network cannot evaluate
                a part of a block.
        """
        self.check_fit(denoiser)
        if self.refresh > 1 and not denoiser.backbone.reuses_keys:
            raise ValueError(
                "BlockSampler.refresh must be 1 for a network without keys and values of single "
                f"tokens, got {self.refresh} for {type(denoiser.backbone).__name__}; leave it out, "
                "or train a Transformer"
            )
        size, symbols = denoiser.block_size, denoiser.vocab_size
        if self.window is not None and self.window < 2 * size:
            raise ValueError(
                f"BlockSampler.window must hold two blocks of {size} tokens, got {self.window}; "
                "the length of the training rows is a good choice"
            )
        if self.stop_id is not None and not 0 <= self.stop_id < symbols:
            raise ValueError(
                f"BlockSampler.stop_id must be in 0..{symbols - 1}, got {self.stop_id}; "
                "the tokenizer's encode gives ids"
            )
        most = math.log(min(symbols, self.entropy_window))
        if self.min_entropy is not None and self.min_entropy >= most:
            raise ValueError(
                f"BlockSampler.min_entropy must be below {most:.4g} nats, all that "
                f"{self.entropy_window} tokens of {symbols} symbols can have, got "
                f"{self.min_entropy}; lower it"
            )
        return size

    def ends(
        self,
        tail: Int64[Tensor, "B n"],
        drawn: Bool[Tensor, "B size"],
        end: int,
        earliest: Int64[Tensor, " B"],
    ) -> Int64[Tensor, " B"]:
        """Return the end of each row that ends with a finished block.

        Args:
            tail: Last tokens of the rows: those of the block, and ``entropy_window`` tokens if the
                entropy matters and there are as many.
            drawn: Positions of the block that were not given.
            end: End of the block.
            earliest: Least number of tokens of each row.

        Returns:
            The number of tokens of each row; -1 for rows that continue.
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

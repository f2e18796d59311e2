"""Passes of a transformer over [x_t ; x0]: every block of x_t given the clean ones before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from seqdiff.backbones.transformer.block_attention import (
    attend_clean,
    attend_noisy,
    block_diffusion_mask,
    clean_length,
)
from seqdiff.backbones.transformer.layers import AdaptiveBlock, Rotary
from seqdiff.backbones.transformer.packing import Layout, Packed, Padded, lay_out


class Layers(NamedTuple):
    """The layers that a pass runs.

    Attributes:
        embedding: Of the ids.
        rotary: Gives the table of some positions.
        blocks: In order.
        condition: One vector for each row of the batch, or one for all.
    """

    embedding: Callable[[Tensor], Tensor]
    rotary: Callable[[Tensor], Rotary]
    blocks: Sequence[AdaptiveBlock]
    condition: Tensor


class Pair(NamedTuple):
    """Two rows of tokens that share their positions.

    Attributes:
        x_t: Corrupted ids.
        x0: Clean ids.
        block_size: Tokens of a block; less than the length.
        padding: True at positions that hold nothing, after the last token of a shorter row.
    """

    x_t: Int[Tensor, "B L"]
    x0: Int[Tensor, "B L"]
    block_size: int
    padding: Bool[Tensor, "B L"] | None


Pass = Callable[[Layers, Pair], Tensor]


def choose_pass(pair: Pair) -> Pass:
    """Choose what is fastest: see each of them.

    Args:
        pair: What is to be read.
    """
    device = pair.x_t.device.type
    if pair.block_size >= pair.x_t.shape[1]:
        return plain_pass
    if device == "cuda":
        return flex_pass
    if device == "cpu" and not torch.compiler.is_compiling():
        return structured_pass
    return dense_pass


def plain_pass(layers: Layers, pair: Pair) -> Tensor:
    """Go over x_t alone, where a block is as long as the row.

    Args:
        layers: Of the network.
        pair: What is read.

    Returns:
        The residual stream of x_t before the head, ``[B, L, D]``.
    """
    layout = lay_out(pair.x_t, pair.padding)
    return layout.unpack(_through(layers, layout.pack(pair.x_t), layout))


def _through(layers: Layers, tokens: Tensor, layout: Layout | Flexible) -> Tensor:
    x, rotary = layers.embedding(tokens), layers.rotary(layout.positions)
    for block in layers.blocks:
        x = block(x, layers.condition, rotary, layout)
    return x


# One row of both halves


def dense_pass(layers: Layers, pair: Pair, window: int | None = None) -> Tensor:
    """Go over both halves as one row, under a mask of four quadrants.

    Args:
        layers: Of the network.
        pair: What is read.
        window: See ``block_diffusion_mask``.

    Returns:
        See ``plain_pass``.
    """
    place = torch.arange(pair.x_t.shape[1], device=pair.x_t.device)
    mask = block_diffusion_mask(len(place), pair.block_size, place.device, window)
    if pair.padding is not None:
        nothing = pair.padding.repeat(1, 2)[:, None]
        mask = mask & ~(nothing[:, :, None] & ~nothing[..., None])
    return _one_row(layers, pair, Padded(place.repeat(2), mask))


class Flexible(NamedTuple):
    """Rows whose attention leaves out the empty parts of a mask by itself.

    Attributes:
        positions: The place of each token in its row.
        mask: Who sees whom.
    """

    positions: Int[Tensor, " L"]
    mask: BlockMask

    def spread(self, x: Float[Tensor, "#B C"]) -> Float[Tensor, "#b #l C"]:
        """See ``Padded``."""
        return x[:, None]

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See ``Padded``."""
        attend = _compiled_flex() if q.is_cuda else flex_attention
        mixed = attend(q, k, v, block_mask=self.mask)
        assert isinstance(mixed, Tensor)
        return mixed


def flex_pass(layers: Layers, pair: Pair) -> Tensor:
    """Go over both halves as one row with FlexAttention, which has no backward on the CPU.

    Args:
        layers: Of the network.
        pair: What is read.

    Returns:
        See ``plain_pass``.
    """
    length = pair.x_t.shape[1]
    behind = clean_length(length, pair.block_size)
    place = torch.arange(length, device=pair.x_t.device)
    make = _flex_mask if pair.padding is None else _flex_mask.__wrapped__
    mask = make(length, pair.block_size, place.device, pair.padding)
    return _one_row(layers, pair, Flexible(torch.cat((place, place[:behind])), mask))


def _one_row(layers: Layers, pair: Pair, layout: Padded | Flexible) -> Tensor:
    length = pair.x_t.shape[1]
    both = torch.cat((pair.x_t, pair.x0), dim=1)[:, : len(layout.positions)]
    return _through(layers, both, layout)[:, :length]


@lru_cache(maxsize=1)
def _compiled_flex() -> Callable[..., object]:
    return torch.compile(flex_attention)


@lru_cache(maxsize=8)
def _flex_mask(
    length: int, block_size: int, device: torch.device, padding: Tensor | None
) -> BlockMask:
    """Who sees whom in [x_t ; x0], x0 without its last block."""

    def seen(batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        from_clean, to_clean = query >= length, key >= length
        query, key = query % length, key % length
        mine, other = query // block_size, key // block_size
        allowed = ((from_clean == to_clean) & (mine == other)) | (to_clean & (other < mine))
        if padding is None:
            return allowed
        return allowed & ~(padding[batch, key] & ~padding[batch, query])

    tokens = length + clean_length(length, block_size)
    rows = None if padding is None else len(padding)
    return create_block_mask(seen, rows, None, tokens, tokens, device=str(device))


# Two rows, one of which is read by the other


class _Clean(NamedTuple):
    """Clean rows, whose keys and values are kept.

    Attributes:
        layout: Of the rows.
        block_size: Tokens of a block.
        kept: Gains the keys and values of every block of the network.
    """

    layout: Layout
    block_size: int
    kept: list[tuple[Tensor, Tensor]]

    def spread(self, x: Tensor) -> Tensor:
        """See ``Mixing``."""
        return self.layout.spread(x)

    @_disable_dynamo
    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See ``Mixing``."""
        self.kept.append((k, v))
        queries, keys, values = (self.layout.rows(x) for x in (q, k, v))
        batches = zip(queries, keys, values, strict=True)
        return self.layout.line([attend_clean(*batch, self.block_size) for batch in batches])


class _Noisy(NamedTuple):
    """Noisy rows, and the keys and values of the clean rows that they read.

    Attributes:
        layout: Of the rows.
        behind: Layout of the clean rows.
        block_size: Tokens of a block.
        keys: Of the clean rows.
        values: Of the clean rows.
    """

    layout: Layout
    behind: Layout
    block_size: int
    keys: Tensor
    values: Tensor

    def spread(self, x: Tensor) -> Tensor:
        """See ``Mixing``."""
        return self.layout.spread(x)

    @_disable_dynamo
    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See ``Mixing``."""
        queries, keys, values = (self.layout.rows(x) for x in (q, k, v))
        clean_keys, clean_values = (self.behind.rows(x) for x in (self.keys, self.values))
        batches = zip(queries, keys, values, clean_keys, clean_values, strict=True)
        return self.layout.line([attend_noisy(*batch, self.block_size) for batch in batches])


def structured_pass(layers: Layers, pair: Pair) -> Tensor:
    """Go over both halves in turn, with no work on padding or on what nobody reads.

    That is the clean half's last block, and beyond its keys and values its last layer.

    Args:
        layers: Of the network.
        pair: What is read.

    Returns:
        See ``plain_pass``.
    """
    layout = lay_out(pair.x_t, pair.padding)
    clean = _before_the_last_block(layout, pair.block_size)
    tokens = clean.pack(pair.x0)[:, : len(clean.positions)]
    if not tokens.shape[1]:
        return plain_pass(layers, pair)
    x, rotary = layers.embedding(layout.pack(pair.x_t)), layers.rotary(layout.positions)
    x0, turned = layers.embedding(tokens), layers.rotary(clean.positions)
    reading = _Clean(clean, pair.block_size, [])
    for block in layers.blocks:
        if block is layers.blocks[-1]:
            kept = block.modulated_keys_values(x0, layers.condition, turned, clean)
        else:
            x0 = block(x0, layers.condition, turned, reading)
            kept = reading.kept.pop()
        x = block(x, layers.condition, rotary, _Noisy(layout, clean, pair.block_size, *kept))
    return layout.unpack(x)


def _before_the_last_block(layout: Layout, block_size: int) -> Layout:
    """Lay out the tokens of all blocks but a row's last, in the order of the rows."""
    if isinstance(layout, Padded):
        return Padded(layout.positions[: clean_length(len(layout.positions), block_size)])
    groups = tuple((rows, clean_length(length, block_size)) for rows, length in layout.groups)
    ends = [end for _, end in groups]
    tokens = [rows * length for rows, length in layout.groups]
    device = layout.positions.device
    end = torch.tensor(ends, device=device).repeat_interleave(torch.tensor(tokens, device=device))
    there = layout.positions < end
    return Packed(layout.positions[there], layout.row[there], layout.shape, groups)

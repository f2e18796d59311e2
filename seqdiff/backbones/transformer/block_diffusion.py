"""Block diffusion over [x_t ; x0]: its attention, and forward passes that use it.

[x_t ; x0] is the noisy row followed by the clean row, its two halves. A query attends to its own
block in its own half and to the earlier blocks of the clean half.

On the CPU, the structured form of this attention divides rows into chunks of whole blocks. A query
attends to all clean tokens of the earlier chunks, so this *far* part needs no mask. The *near*
part, attention within the query's chunk, needs one. The parts are combined by their normalisers
(the log-sum-exp of the scores), as in Dao et al. 2022, arXiv:2205.14135, section 3.1. The gradient
of each part needs only the combined output and normaliser.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from seqdiff.backbones.transformer.layers import AdaptiveBlock, Block, Rotary
from seqdiff.backbones.transformer.packing import Layout, Packed, Padded, lay_out

CHUNK = 64
"""A chunk holds as many whole blocks as fit in this number of tokens, and at least one."""
_attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_attend_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def clean_length(length: int, block_size: int) -> int:
    """Count the clean tokens that noisy queries attend to: those of all blocks but the last."""
    return max(0, length - 1) // block_size * block_size


def block_diffusion_mask(
    length: int, block_size: int, device: torch.device | None = None
) -> Bool[Tensor, "M M"]:
    """Build the mask of [x_t ; x0], True where a query (row) attends to a key (column).

    A query attends to its own block in its own half, and to the earlier blocks of x0. Source:
    Arriola et al. 2025, arXiv:2503.09573, section 3.1 and appendix B.6.

    Args:
        length: Length of each half; M is twice this.
        block_size: Number of tokens in a block; the last one may be shorter.
        device: Device of the mask.
    """
    position = torch.arange(2 * length, device=device)
    return _sees(position[:, None], position[None], length, block_size)


def _sees(query: Tensor, key: Tensor, length: int, block_size: int) -> Tensor:
    """Tell whether queries attend to keys, given their positions in [x_t ; x0]."""
    from_clean, to_clean = query >= length, key >= length
    mine, other = query % length // block_size, key % length // block_size
    return ((from_clean == to_clean) & (mine == other)) | (to_clean & (other < mine))


def attend_blocks(
    q: Float[Tensor, "B H L C"],
    k: Float[Tensor, "B H L C"],
    v: Float[Tensor, "B H L C"],
    block_size: int,
    clean: tuple[Float[Tensor, "B H l C"], Float[Tensor, "B H l C"]] | None = None,
) -> Float[Tensor, "B H L C"]:
    """Attend to the block of the query and to the earlier blocks of the clean row, on the CPU.

    Args:
        q: Queries.
        k: Keys of the same row.
        v: Values of the same row.
        block_size: Number of tokens in a block; the last one may be shorter.
        clean: Keys and values of the first ``clean_length`` tokens of the clean row; ``None`` if
            the queries are those of the clean row.
    """
    if not q.shape[2]:
        return v
    nothing = k[:, :, :0]
    clean_k, clean_v = (nothing, nothing) if clean is None else clean
    return _BlockAttention.apply(q, k, v, clean_k, clean_v, block_size, clean is not None)


class _Near(NamedTuple):
    """Chunks of the same shape, for the near part of the attention.

    Attributes:
        start: First position of the first chunk.
        chunks: Number of chunks.
        size: Number of queries in a chunk, and of keys from their own row.
        clean: Number of keys in a chunk from the clean row, which come before the other keys.
        mask: Added to the scores; ``None`` if queries attend to every key.
    """

    start: int
    chunks: int
    size: int
    clean: int
    mask: Tensor | None

    def fold(self, x: Tensor, size: int) -> Tensor:
        """Make each chunk a row of the batch, of ``size`` tokens."""
        if self.chunks == 1:
            return x[:, :, self.start : self.start + size]
        part = x[:, :, self.start : self.start + self.chunks * size].transpose(1, 2)
        return part.unflatten(1, (self.chunks, size)).flatten(0, 1).transpose(1, 2)

    def unfold(self, x: Tensor) -> Tensor:
        """Undo ``fold``."""
        if self.chunks == 1:
            return x
        rows = x.transpose(1, 2).unflatten(0, (-1, self.chunks)).flatten(1, 2)
        return rows.transpose(1, 2)

    def keys(self, clean: Tensor, own: Tensor) -> Tensor:
        """Return the keys or values of each chunk."""
        mine = self.fold(own, self.size)
        return torch.cat((self.fold(clean, self.clean), mine), dim=2) if self.clean else mine


class _Plan(NamedTuple):
    """How a row is divided into chunks.

    Attributes:
        near: Groups of chunks of the same shape.
        chunk: Number of tokens in a chunk.
        length: Number of tokens in the row.
    """

    near: tuple[_Near, ...]
    chunk: int
    length: int

    @classmethod
    def of(
        cls, length: int, behind: int, block_size: int, noisy: bool, dtype: torch.dtype
    ) -> _Plan:
        """Divide a row into full chunks and a rest.

        Args:
            length: Number of tokens in the row.
            behind: Number of clean tokens that a noisy row attends to.
            block_size: Number of tokens in a block.
            noisy: Whether the row is x_t rather than x0.
            dtype: Dtype of the masks.
        """
        chunk = block_size * max(1, CHUNK // block_size)
        with_clean = noisy and chunk > block_size
        whole = (min(length, behind) if with_clean else length) // chunk
        start = whole * chunk
        rest, near = length - start, []
        if whole:
            clean = chunk * with_clean
            near.append(_Near(0, whole, chunk, clean, _mask(chunk, clean, block_size, dtype)))
        if rest:
            clean = behind - start if with_clean else 0
            near.append(_Near(start, 1, rest, clean, _mask(rest, clean, block_size, dtype)))
        return cls(tuple(near), chunk, length)

    def far(self) -> Iterator[tuple[slice, slice]]:
        """Yield the queries of each chunk and the keys of all chunks before it."""
        for start in range(self.chunk, self.length, self.chunk):
            yield slice(start, min(start + self.chunk, self.length)), slice(0, start)


def _mask(size: int, clean: int, block_size: int, dtype: torch.dtype) -> Tensor | None:
    """Build the mask of a chunk, which is added to the scores; clean keys come first.

    A chunk without clean keys belongs to the clean row or is a single block.
    """
    if size <= block_size and not clean:
        return None
    block = torch.arange(size) // block_size
    seen = block <= block[:, None]
    if clean:
        own = block == block[:, None]
        seen = torch.cat(((seen & ~own)[:, :clean], own), dim=1)
    return torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, -torch.inf)


_plan = lru_cache(maxsize=64)(_Plan.of)


class _BlockAttention(torch.autograd.Function):
    """Near and far attention; the backward pass recomputes each part."""

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        clean_k: Tensor,
        clean_v: Tensor,
        block_size: int,
        noisy: bool,
    ) -> Tensor:
        plan = _plan(q.shape[2], clean_k.shape[2], block_size, noisy, q.dtype)
        parts = []
        for near in plan.near:
            keys, values = near.keys(clean_k, k), near.keys(clean_v, v)
            mixed = _attend(near.fold(q, near.size), keys, values, attn_mask=near.mask)
            parts.append([near.unfold(x) for x in (mixed[0], mixed[1][..., None])])
        out, norm = (torch.cat(x, dim=2) for x in zip(*parts, strict=True))
        far_k, far_v = (clean_k, clean_v) if noisy else (k, v)
        for here, before in plan.far():
            mixed, other = _attend(q[:, :, here], far_k[:, :, before], far_v[:, :, before])
            ours, other = norm[:, :, here], other[..., None]
            out[:, :, here].lerp_(mixed, (other - ours).sigmoid().to(out.dtype))
            ours.copy_(torch.logaddexp(ours, other))
        ctx.save_for_backward(q, k, v, clean_k, clean_v, out, norm)
        ctx.plan, ctx.noisy = plan, noisy  # pyright: ignore[reportAttributeAccessIssue]
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        q, k, v, clean_k, clean_v, out, norm = ctx.saved_tensors
        dq, dk, dv, dclean_k, dclean_v = (torch.zeros_like(x) for x in (q, k, v, clean_k, clean_v))
        for near in ctx.plan.near:
            here = slice(near.start, near.start + near.chunks * near.size)
            keys, values = near.keys(clean_k, k), near.keys(clean_v, v)
            given, asked, mixed, weights = (near.fold(x, near.size) for x in (grad, q, out, norm))
            dmixed = _attend_backward(
                *(given, asked, keys, values, mixed, weights[..., 0]),
                dropout_p=0.0,
                is_causal=False,
                attn_mask=near.mask,
            )
            dq[:, :, here] = near.unfold(dmixed[0])
            for total, clean, part in ((dk, dclean_k, dmixed[1]), (dv, dclean_v, dmixed[2])):
                behind = slice(near.start, near.start + near.chunks * near.clean)
                clean[:, :, behind] = near.unfold(part[:, :, : near.clean])
                total[:, :, here] = near.unfold(part[:, :, near.clean :])
        far_k, far_v, dfar_k, dfar_v = (
            (clean_k, clean_v, dclean_k, dclean_v) if ctx.noisy else (k, v, dk, dv)
        )
        for here, before in ctx.plan.far():
            given, asked, mixed, weights = (x[:, :, here] for x in (grad, q, out, norm))
            dmixed = _attend_backward(
                *(given, asked, far_k[:, :, before], far_v[:, :, before], mixed, weights[..., 0]),
                dropout_p=0.0,
                is_causal=False,
            )
            dq[:, :, here] += dmixed[0]
            dfar_k[:, :, before] += dmixed[1]
            dfar_v[:, :, before] += dmixed[2]
        return dq, dk, dv, dclean_k, dclean_v, None, None


# Passes over both halves


class Layers(NamedTuple):
    """The parts of a network that a pass runs.

    Attributes:
        embedding: Embeds ids.
        rotary: Computes the rotary table of some positions.
        blocks: The blocks, from first to last.
        condition: One vector for each row of the batch, or one for all rows; ``None`` if the blocks
            are not modulated.
        signal: Vectors that are added to the embedded tokens: ``[B, 1, D]`` for rows, ``[B, L, D]``
            for positions.
    """

    embedding: Callable[[Tensor], Tensor]
    rotary: Callable[[Tensor], Rotary]
    blocks: Sequence[Block]
    condition: Tensor | None
    signal: Tensor | None = None

    def embed(self, tokens: Int[Tensor, "B L"], layout: Layout) -> Tensor:
        """Embed the tokens of a layout, which may lack the last block of each row."""
        count = len(layout.positions)
        x = self.embedding(layout.pack(tokens)[:, :count])
        if self.signal is None:
            return x
        signal = self.signal.expand(*tokens.shape, self.signal.shape[-1])
        return x + layout.pack(signal)[:, :count]

    def run(self, x: Tensor, layout: Layout | Flexible) -> Tensor:
        """Run all blocks."""
        rotary = self.rotary(layout.positions)
        for block in self.blocks:
            x = block(x, self.condition, rotary, layout)
        return x


class Pair(NamedTuple):
    """A noisy and a clean batch of rows, which share their positions.

    Attributes:
        x_t: Corrupted ids.
        x0: Clean ids.
        block_size: Number of tokens in a block.
        padding: True at padding, which comes after the last token of a shorter row.
    """

    x_t: Int[Tensor, "B L"]
    x0: Int[Tensor, "B L"]
    block_size: int
    padding: Bool[Tensor, "B L"] | None


# A pass runs a network and returns the residual stream of x_t before the head, [B, L, D].
Pass = Callable[[Layers, Pair], Tensor]


def choose_pass(pair: Pair) -> Pass:
    """Choose the fastest pass for the device and the block size."""
    device = pair.x_t.device.type
    if pair.block_size >= pair.x_t.shape[1]:
        return plain_pass
    if device == "cuda":
        return flex_pass
    if device == "cpu" and not torch.compiler.is_compiling():
        return structured_pass
    return dense_pass


def plain_pass(layers: Layers, pair: Pair) -> Tensor:
    """Run x_t alone; a block must be at least as long as the row.

    Args:
        layers: Parts of the network.
        pair: The rows.
    """
    layout = lay_out(pair.x_t, pair.padding)
    return layout.unpack(layers.run(layers.embed(pair.x_t, layout), layout))


def dense_pass(layers: Layers, pair: Pair) -> Tensor:
    """Run both halves as one row under the dense mask of ``block_diffusion_mask``.

    Args:
        layers: Parts of the network.
        pair: The rows.
    """
    place = torch.arange(pair.x_t.shape[1], device=pair.x_t.device)
    mask = block_diffusion_mask(len(place), pair.block_size, place.device)
    if pair.padding is not None:
        nothing = pair.padding.repeat(1, 2)[:, None]
        mask = mask & ~(nothing[:, :, None] & ~nothing[..., None])
    return _run_as_one_row(layers, pair, Padded(place.repeat(2), mask))


class Flexible(NamedTuple):
    """A layout for FlexAttention, which skips the empty parts of a mask.

    Attributes:
        positions: The position of each token in its row.
        mask: Determines which queries attend to which keys.
    """

    positions: Int[Tensor, " L"]
    mask: BlockMask

    def spread(self, x: Float[Tensor, "#B C"]) -> Float[Tensor, "#b #l C"]:
        """Assign to each token the vector of its row."""
        return x[:, None]

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Compute attention."""
        attend = _compiled_flex() if q.is_cuda else flex_attention
        mixed = attend(q, k, v, block_mask=self.mask)
        assert isinstance(mixed, Tensor)
        return mixed


def flex_pass(layers: Layers, pair: Pair) -> Tensor:
    """Run both halves as one row with FlexAttention, which has no backward pass on the CPU.

    Args:
        layers: Parts of the network.
        pair: The rows.
    """
    length = pair.x_t.shape[1]
    behind = clean_length(length, pair.block_size)
    place = torch.arange(length, device=pair.x_t.device)
    make = _flex_mask if pair.padding is None else _flex_mask.__wrapped__
    mask = make(length, pair.block_size, place.device, pair.padding)
    return _run_as_one_row(layers, pair, Flexible(torch.cat((place, place[:behind])), mask))


def _run_as_one_row(layers: Layers, pair: Pair, layout: Padded | Flexible) -> Tensor:
    count, length = len(layout.positions), pair.x_t.shape[1]
    x = layers.embedding(torch.cat((pair.x_t, pair.x0), dim=1)[:, :count])
    if layers.signal is not None:
        signal = layers.signal.expand(-1, length, -1)
        x = x + torch.cat((signal, signal), dim=1)[:, :count]
    return layers.run(x, layout)[:, :length]


@lru_cache(maxsize=1)
def _compiled_flex() -> Callable[..., object]:
    return torch.compile(flex_attention)


@lru_cache(maxsize=32)  # one for every block size of a network, and for every length
def _flex_mask(
    length: int, block_size: int, device: torch.device, padding: Tensor | None
) -> BlockMask:
    """Build the mask of [x_t ; x0], where x0 lacks its last block."""

    def seen(batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        allowed = _sees(query, key, length, block_size)
        if padding is None:
            return allowed
        query, key = query % length, key % length
        return allowed & ~(padding[batch, key] & ~padding[batch, query])

    tokens = length + clean_length(length, block_size)
    rows = None if padding is None else len(padding)
    return create_block_mask(seen, rows, None, tokens, tokens, device=str(device))


@dataclass(frozen=True, eq=False)
class _Half:
    """One half of [x_t ; x0], as ``structured_pass`` attends to it.

    It is not a tuple, because FSDP2 of PyTorch 2.10 gives a layer copies of tuples and of the lists
    in them. The layer must append to the list of ``structured_pass``.

    Attributes:
        layout: Layout of the rows.
        block_size: Number of tokens in a block.
        kept: For the clean half, the list to which ``mix`` appends its keys and values.
        clean: For the noisy half, the layout, the keys and the values of the clean half.
    """

    layout: Layout
    block_size: int
    kept: list[tuple[Tensor, Tensor]]
    clean: tuple[Layout, Tensor, Tensor] | None = None

    def spread(self, x: Tensor) -> Tensor:
        """Assign to each token the vector of its row."""
        return self.layout.spread(x)

    @_disable_dynamo
    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Compute attention."""
        queries, keys, values = (self.layout.rows(x) for x in (q, k, v))
        clean = [None] * len(queries)
        if self.clean is None:
            self.kept.append((k, v))
        else:
            behind, clean_k, clean_v = self.clean
            clean = list(zip(behind.rows(clean_k), behind.rows(clean_v), strict=True))
        batches = zip(queries, keys, values, clean, strict=True)
        return self.layout.line(
            [attend_blocks(q, k, v, self.block_size, behind) for q, k, v, behind in batches]
        )


def structured_pass(layers: Layers, pair: Pair) -> Tensor:
    """Run both halves layer by layer, with separate attention.

    Nothing is computed for padding, or for what no query attends to: the last block of the clean
    half and, in the last layer, everything but the keys and values of the clean half.

    Args:
        layers: Parts of the network.
        pair: The rows.
    """
    layout = lay_out(pair.x_t, pair.padding)
    clean = _before_the_last_block(layout, pair.block_size)
    if not len(clean.positions):
        return plain_pass(layers, pair)
    x, rotary = layers.embed(pair.x_t, layout), layers.rotary(layout.positions)
    x0, clean_rotary = layers.embed(pair.x0, clean), layers.rotary(clean.positions)
    reading = _Half(clean, pair.block_size, [])
    for block in layers.blocks:
        if block is layers.blocks[-1]:
            assert isinstance(block, AdaptiveBlock)
            assert layers.condition is not None
            kept = block.modulated_keys_values(x0, layers.condition, clean_rotary, clean)
        else:
            x0 = block(x0, layers.condition, clean_rotary, reading)
            kept = reading.kept.pop()
        noisy = _Half(layout, pair.block_size, [], (clean, *kept))
        x = block(x, layers.condition, rotary, noisy)
    return layout.unpack(x)


def _before_the_last_block(layout: Layout, block_size: int) -> Layout:
    """Return the layout without the last block of every row."""
    if isinstance(layout, Padded):
        return Padded(layout.positions[: clean_length(len(layout.positions), block_size)])
    groups = tuple((rows, clean_length(length, block_size)) for rows, length in layout.groups)
    ends = [end for _, end in groups]
    tokens = [rows * length for rows, length in layout.groups]
    device = layout.positions.device
    end = torch.tensor(ends, device=device).repeat_interleave(torch.tensor(tokens, device=device))
    there = layout.positions < end
    return Packed(layout.positions[there], layout.row[there], layout.shape, groups)

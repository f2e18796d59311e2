"""Attention of block diffusion: its masks, and a form without its empty parts.

A query sees the clean blocks before its own, and its own block. The structured form works on chunks
of whole blocks. All chunks before a query's chunk are visible, so attention to them needs no mask;
attention within the chunk does. The two parts are joined by their normalisers, as in Dao et al.
2022, arXiv:2205.14135, section 3.1. The gradient of each part needs only what the whole gives.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable


def attended_keys(padding: Bool[Tensor, "B L"]) -> Bool[Tensor, "B 1 1 L"]:
    """Which keys the queries of a row see: those that are real, or all if the row holds nothing.

    Args:
        padding: True at positions that hold nothing.
    """
    return (~padding | padding.all(dim=-1, keepdim=True))[:, None, None]


def causal_keys(padding: Bool[Tensor, "B L"]) -> Bool[Tensor, "B 1 L L"]:
    """Which keys a causal query sees: its own, and the earlier ones that are real.

    Args:
        padding: True at positions that hold nothing.
    """
    place = torch.arange(padding.shape[1], device=padding.device)
    query, key = place[:, None], place[None]
    return (query == key) | ((query > key) & ~padding[:, None, None])


def block_diffusion_mask(
    length: int,
    block_size: int,
    device: torch.device | None = None,
    window: int | None = None,
) -> Bool[Tensor, "M M"]:
    """Which keys of [x_t ; x0] each of its queries sees; M is 2 L.

    Those of its own block in its own half; for a query in x_t also x0 in strictly earlier blocks;
    for a query in x0 also x0 in earlier blocks. Source: Arriola et al. 2025, arXiv:2503.09573,
    section 3.1 and appendix B.6.

    Args:
        length: L, of each half.
        block_size: Tokens of a block; the last may be shorter.
        device: Where the mask goes.
        window: Most clean tokens before its block that a query sees, a multiple of ``block_size``;
            None for all.
    """
    position = torch.arange(2 * length, device=device)
    clean, block = position >= length, position % length // block_size
    query, key = block[:, None], block[None]
    from_clean, to_clean = clean[:, None], clean[None]
    same = (from_clean == to_clean) & (query == key)
    earlier = to_clean & (key < query)
    if window is not None:
        earlier &= query - key <= window // block_size
    return same | earlier


CHUNK = 64
_attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_attend_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def clean_length(length: int, block_size: int) -> int:
    """Count the clean tokens that anybody reads: those of all blocks but the last.

    Args:
        length: Of a row.
        block_size: Tokens of a block.
    """
    return max(0, length - 1) // block_size * block_size


def attend_noisy(
    q: Float[Tensor, "B H L C"],
    k: Float[Tensor, "B H L C"],
    v: Float[Tensor, "B H L C"],
    clean_k: Float[Tensor, "B H l C"],
    clean_v: Float[Tensor, "B H l C"],
    block_size: int,
) -> Float[Tensor, "B H L C"]:
    """Attend to the own block, and to earlier blocks of the clean row.

    Args:
        q: Queries of the noisy row; on the CPU, as all that follows.
        k: Its keys.
        v: Its values.
        clean_k: Keys of the clean row, ``clean_length`` of them.
        clean_v: Its values.
        block_size: Tokens of a block; the last may be shorter.
    """
    return _BlockAttention.apply(q, k, v, clean_k, clean_v, block_size, True)


def attend_clean(
    q: Float[Tensor, "B H l C"],
    k: Float[Tensor, "B H l C"],
    v: Float[Tensor, "B H l C"],
    block_size: int,
) -> Float[Tensor, "B H l C"]:
    """Attend to the own block and earlier ones, all of the clean row.

    Args:
        q: Queries; on the CPU, as all that follows.
        k: Keys.
        v: Values.
        block_size: Tokens of a block; the last may be shorter.
    """
    if not q.shape[2]:
        return v
    nothing = k[:, :, :0]
    return _BlockAttention.apply(q, k, v, nothing, nothing, block_size, False)


class _Near(NamedTuple):
    """Chunks of one shape, each of which attends within itself.

    Attributes:
        start: First position of the first chunk.
        chunks: How many.
        size: Their length.
        clean: Clean keys of each, which come before its own.
        mask: Added to the scores; None where all are visible.
    """

    start: int
    chunks: int
    size: int
    clean: int
    mask: Tensor | None

    def fold(self, x: Tensor, size: int) -> Tensor:
        """Make each chunk a row, cut to a size."""
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
        """The keys or values of each chunk."""
        mine = self.fold(own, self.size)
        return torch.cat((self.fold(clean, self.clean), mine), dim=2) if self.clean else mine


class _Plan(NamedTuple):
    """How a row is cut.

    Attributes:
        near: What attends within itself.
        chunk: Tokens of a chunk.
        length: Of the row.
    """

    near: tuple[_Near, ...]
    chunk: int
    length: int

    @classmethod
    def of(
        cls, length: int, behind: int, block_size: int, noisy: bool, dtype: torch.dtype
    ) -> _Plan:
        """Cut a row, which reads some clean tokens if it is noisy, into whole chunks and a rest."""
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
        """Queries, and the keys of all chunks before theirs."""
        for start in range(self.chunk, self.length, self.chunk):
            yield slice(start, min(start + self.chunk, self.length)), slice(0, start)


def _mask(size: int, clean: int, block_size: int, dtype: torch.dtype) -> Tensor | None:
    """What is added to the scores within a chunk; if it is noisy, clean keys come first.

    A chunk of a noisy row that has no clean keys is one block.
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
    """Attention in parts, whose gradient keeps no part."""

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

"""State-space duality as matrix products over chunks, in plain PyTorch.

Within a chunk, let ``a_l`` be the sum of ``dt A`` up to position l. The output at l is then

    y_l = sum_{s <= l} exp(a_l - a_s) (C_l . B_s) dt_s x_s + exp(a_l) h C_l,

where h is the state before the chunk: a masked matrix product as in attention, and a product with
the state. One product for each chunk gives what it adds to the state, and a short loop over chunks
carries the states. From right to left, sums start at the end of a chunk and the mask is transposed.

The backward pass is written out, so that neither the masked matrices nor their decays need to be
saved. Since y_l is proportional to ``exp(a_l)``, and what position s contributes to ``exp(-a_s)``,
the gradient of ``a_l`` is the difference of two scalar products. On the CPU, both passes handle a
few chunks at a time, whose intermediate results stay in the cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

_CACHED = 1 << 17  # numbers in one of about ten tensors that a pass over some chunks uses


def ssd_chunked(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, reverse: bool, chunk: int
) -> Tensor:
    """Run the scan over chunks of equal length, at most ``chunk``.

    Source: Dao and Gu 2024, arXiv:2405.21060, section 6. The arguments are those of `ssd`, all of
    one dtype.
    """
    length = x.shape[1]
    count = -(-length // chunk)
    size = -(-length // count)
    extra = count * size - length
    if extra:  # positions without a step change neither the states nor the output before them
        x, dt, B, C = (F.pad(t, (*(0, 0) * (t.ndim - 2), 0, extra)) for t in (x, dt, B, C))
    x, dt, B, C = (t.unflatten(1, (count, size)).flatten(0, 1) for t in (x, dt, B, C))
    y = _Chunked.apply(x, dt, A, B, C, D, reverse, count)
    y = y.unflatten(0, (-1, count)).flatten(1, 2)
    return y[:, :length] if extra else y


class _Decays(NamedTuple):
    """Decays within n chunks of q positions, for H heads.

    Attributes:
        into: From the start of the chunk to each position ``(n, q, H, 1)``.
        onward: From each position to the end of the chunk ``(n, q, H, 1)``.
        between: From position s to position l, 0 unless s comes first ``(n, H, l, s)``.
    """

    into: Tensor
    onward: Tensor
    between: Tensor


def _running(values: Tensor, reverse: bool) -> Tensor:
    """Add up the positions of each chunk ``(n, q, H)`` up to and including each one."""
    return values.flip(1).cumsum(1).flip(1) if reverse else values.cumsum(1)


def _end(values: Tensor, reverse: bool) -> Tensor:
    """Return the last position of each chunk, or the first one for the other direction."""
    return values[:, 0] if reverse else values[:, -1]


def _decays(sums: Tensor, reverse: bool) -> _Decays:
    """Compute the decays from the running sums of ``dt A``."""
    rows = sums.mT.contiguous()
    between = (rows[..., None] - rows[..., None, :]).exp_()
    between = between.triu_() if reverse else between.tril_()
    onward = (_end(sums, reverse)[:, None] - sums).exp_()
    return _Decays(sums.exp()[..., None], onward[..., None], between)


def _carry(added: Tensor, sums: Tensor, count: int, reverse: bool, onward: bool) -> Tensor:
    """Carry states over the chunks of each row.

    Args:
        added: What each chunk adds ``(n, N, H, P)``.
        sums: Running sums of ``dt A``.
        count: Number of chunks of a row.
        reverse: Direction of the sums.
        onward: Carry from the first chunk to the last, not from the last to the first.

    Returns:
        The state before each chunk, in the shape of ``added``.
    """
    added = added.unflatten(0, (-1, count))
    factors = _end(sums, reverse).exp()[:, None, :, None].unflatten(0, (-1, count))
    before = torch.empty_like(added)
    order = range(count) if onward else range(count)[::-1]
    before[:, order[0]] = 0
    for chunk, following in pairwise(order):
        torch.addcmul(
            added[:, chunk], before[:, chunk], factors[:, chunk], out=before[:, following]
        )
    return before.flatten(0, 1)


def _pieces(x: Tensor) -> Iterator[slice]:
    """Divide the chunks of ``x`` into pieces, on the CPU into small ones."""
    count = len(x)
    step = max(1, _CACHED // x[0].numel()) if x.device.type == "cpu" else count
    return (slice(start, start + step) for start in range(0, count, step))


def _by_head(values: Tensor) -> Tensor:
    """Make the positions of each head contiguous: ``(n, q, H, P)`` to ``(n H, q, P)``."""
    return values.transpose(1, 2).contiguous().flatten(0, 1)


class _Chunked(torch.autograd.Function):
    """The scan over chunks ``(n, q, ...)``, of which ``count`` follow each other in a row."""

    @staticmethod
    def forward(ctx, x, dt, A, B, C, D, reverse, count):
        size, heads, width = x.shape[1:]
        sums = _running(dt * A, reverse)
        y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        added = x.new_empty(len(x), B.shape[2], heads * width)
        for piece in _pieces(x):
            decays = _decays(sums[piece], reverse)
            driven = x[piece] * dt[piece, ..., None]
            sent = (driven * decays.onward).flatten(2)
            torch.bmm(B[piece].mT, sent, out=added[piece])
            masked = decays.between.mul_((C[piece] @ B[piece].mT)[:, None]).flatten(0, 1)
            within = torch.bmm(masked, _by_head(driven)).unflatten(0, (-1, heads))
            y[piece] = within.transpose(1, 2)
        states = _carry(added.unflatten(2, (heads, width)), sums, count, reverse, not reverse)
        out = torch.empty_like(y)
        for piece in _pieces(x):
            before = (C[piece] @ states[piece].flatten(2)).view(-1, size, heads, width)
            y[piece].addcmul_(before, sums[piece].exp()[..., None])
            torch.addcmul(y[piece], x[piece], D[:, None], out=out[piece])
        ctx.save_for_backward(x, dt, A, B, C, D, sums, states, y)
        ctx.reverse, ctx.count = reverse, count
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, *grads):  # pyright: ignore[reportIncompatibleMethodOverride]
        (d_out,) = grads
        x, dt, A, B, C, D, sums, states, y = ctx.saved_tensors
        reverse, count = ctx.reverse, ctx.count
        size, heads, width = x.shape[1:]

        # The states before the chunks get gradients from the outputs, and pass them against the
        # order of the chunks to what each chunk adds to the state after it.
        d_before = torch.empty_like(states).flatten(2)
        for piece in _pieces(x):
            received = d_out[piece] * sums[piece].exp()[..., None]
            torch.bmm(C[piece].mT, received.flatten(2), out=d_before[piece])
        d_before = d_before.unflatten(2, (heads, width))
        d_after = _carry(d_before, sums, count, reverse, reverse)

        d_x, d_dt = torch.empty_like(y), torch.empty_like(sums)
        d_B, d_C = (x.new_empty(t.shape) for t in (B, C))
        d_sums, d_skip = torch.empty_like(sums), torch.empty_like(sums)
        for piece in _pieces(x):
            inputs, steps, b, c = x[piece], dt[piece, ..., None], B[piece], C[piece]
            dy = d_out[piece]
            decays = _decays(sums[piece], reverse)
            driven = inputs * steps

            # Through the states.
            after = d_after[piece].flatten(2)
            torch.bmm((dy * decays.into).flatten(2), states[piece].flatten(2).mT, out=d_C[piece])
            torch.bmm((driven * decays.onward).flatten(2), after.mT, out=d_B[piece])
            d_driven = (b @ after).view(-1, size, heads, width).mul_(decays.onward)

            # Through the masked products.
            dy_heads = _by_head(dy)
            d_between = torch.bmm(dy_heads, _by_head(driven).mT).unflatten(0, (-1, heads))
            d_products = d_between.mul_(decays.between).sum(1)
            masked = decays.between.mul_((c @ b.mT)[:, None]).flatten(0, 1)
            within = torch.bmm(masked.mT, dy_heads).unflatten(0, (-1, heads))
            d_driven.add_(within.transpose(1, 2))
            d_C[piece].baddbmm_(d_products, b)
            d_B[piece].baddbmm_(d_products.mT, c)

            torch.addcmul(dy * D[:, None], d_driven, steps, out=d_x[piece])
            torch.sum(d_driven.mul_(inputs), -1, out=d_dt[piece])
            torch.sum(dy * inputs, -1, out=d_skip[piece])
            torch.sum(dy * y[piece], -1, out=d_sums[piece])

        # The sum at the end of a chunk also scales the state after it, which is the state before
        # the next chunk; nothing reads the state after the last one.
        d_sums.addcmul_(d_dt, dt, value=-1)
        states, d_after, ends = (t.unflatten(0, (-1, count)) for t in (states, d_after, d_sums))
        if reverse:
            ends[:, 1:, 0] += (states[:, :-1] * d_after[:, 1:]).sum((2, 4))
        else:
            ends[:, :-1, -1] += (states[:, 1:] * d_after[:, :-1]).sum((2, 4))
        d_exponents = _running(d_sums, not reverse)
        d_A = (d_exponents * dt).sum((0, 1))
        return d_x, d_dt.addcmul_(d_exponents, A), d_A, d_B, d_C, d_skip.sum((0, 1)), None, None

"""State-space duality as matrix products over chunks, in plain PyTorch.

Within a chunk, let ``a_l`` be the sum of ``dt A`` up to position l. The output at l is then

    y_l = sum_{s <= l} exp(a_l - a_s) (C_l . B_s) dt_s x_s + exp(a_l) h C_l,

where h is the state before the chunk: a masked matrix product as in attention, and a product with
the state. One product for each chunk gives what it adds to the state, and a short loop over chunks
carries the states. From right to left, sums start at the end of a chunk and the mask is transposed.

The backward pass is written out, as it needs neither the masked matrices nor their decays saved.
Since y_l is proportional to ``exp(a_l)``, and what position s contributes to ``exp(-a_s)``, the
gradient of ``a_l`` is the difference of two scalar products.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


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
    y = _Chunked.apply(x, dt, A, B, C, D, reverse, size)
    return y[:, :length] if extra else y


class _Decays(NamedTuple):
    """Decays of n chunks of q positions and H heads.

    Attributes:
        into: From the start of the chunk to each position ``(Bt, n, q, H)``.
        onward: From each position to the end of the chunk ``(Bt, n, q, H)``.
        whole: Over the whole chunk ``(Bt, n, H)``.
        between: From position s to position l, 0 unless s comes first ``(Bt, n, H, l, s)``.
    """

    into: Tensor
    onward: Tensor
    whole: Tensor
    between: Tensor


def _running(values: Tensor, reverse: bool) -> Tensor:
    """Add up the positions of each chunk ``(Bt, n, q, H)`` up to and including each one."""
    return values.flip(2).cumsum(2).flip(2) if reverse else values.cumsum(2)


def _decays(dt: Tensor, A: Tensor, reverse: bool) -> _Decays:
    sums = _running(dt * A, reverse)
    last = sums[:, :, :1] if reverse else sums[:, :, -1:]
    rows = sums.transpose(2, 3).contiguous()
    between = (rows[..., None] - rows[..., None, :]).exp_()
    between = between.triu_() if reverse else between.tril_()
    return _Decays(sums.exp(), (last - sums).exp_(), last[:, :, 0].exp(), between)


def _carry(added: Tensor, whole: Tensor, reverse: bool) -> Tensor:
    """Carry states over the chunks.

    Args:
        added: What each chunk adds ``(Bt, n, N, H, P)``.
        whole: Decay over each chunk ``(Bt, n, H)``.
        reverse: Go from the last chunk to the first.

    Returns:
        The state before each chunk, in the shape of ``added``.
    """
    before = torch.empty_like(added)
    factors = whole[:, :, None, :, None]
    order = range(added.shape[1])
    order = order[::-1] if reverse else order
    before[:, order[0]] = 0
    for chunk, following in zip(order, order[1:], strict=False):
        torch.addcmul(
            added[:, chunk], before[:, chunk], factors[:, chunk], out=before[:, following]
        )
    return before


def _by_head(values: Tensor) -> Tensor:
    """Make the positions of each head contiguous: ``(Bt, n, q, H, P)`` to ``(Bt n H, q, P)``."""
    return values.transpose(2, 3).contiguous().flatten(0, 2)


class _Chunked(torch.autograd.Function):
    """The scan over whole chunks of ``size`` positions."""

    @staticmethod
    def forward(ctx, x, dt, A, B, C, D, reverse, size):
        batch, length, heads, width = x.shape
        shape = (batch, length // size, size)
        x, dt, B, C = (t.unflatten(1, shape[1:]) for t in (x, dt, B, C))
        decays = _decays(dt, A, reverse)
        b, c = B.flatten(0, 1), C.flatten(0, 1)
        driven = x * dt[..., None]
        masked = decays.between.mul_((c @ b.mT).view(*shape[:2], 1, size, size)).flatten(0, 2)
        added = b.mT @ (driven * decays.onward[..., None]).view(-1, size, heads * width)
        states = _carry(added.view(*shape[:2], -1, heads, width), decays.whole, reverse)
        y = (c @ states.view(len(c), -1, heads * width)).view(*shape, heads, width)
        y.mul_(decays.into[..., None])
        within = torch.bmm(masked, _by_head(driven)).view(*shape[:2], heads, size, width)
        y.add_(within.transpose(2, 3))
        ctx.save_for_backward(x, dt, A, B, C, D, states, y)
        ctx.reverse = reverse
        return torch.addcmul(y, x, D[:, None]).flatten(1, 2)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, d_out):
        x, dt, A, B, C, D, states, y = ctx.saved_tensors
        batch, count, size, heads, width = x.shape
        dy = d_out.contiguous().view(x.shape)
        decays = _decays(dt, A, ctx.reverse)
        b, c = B.flatten(0, 1), C.flatten(0, 1)
        driven = x * dt[..., None]
        flat = (batch * count, -1, heads * width)

        # Through the states before the chunks, and against the order of the chunks to what each
        # chunk adds to the state after it.
        states = states.view(flat)
        received = (dy * decays.into[..., None]).view(flat)
        dc = received @ states.mT
        d_before = (c.mT @ received).view(batch, count, -1, heads, width)
        d_after = _carry(d_before, decays.whole, not ctx.reverse).view(flat)
        sent = (driven * decays.onward[..., None]).view(flat)
        db = sent @ d_after.mT
        d_driven = (b @ d_after).view(x.shape).mul_(decays.onward[..., None])

        # Through the masked products within the chunks.
        between, products = decays.between, c @ b.mT
        dy_heads = _by_head(dy)
        d_between = torch.bmm(dy_heads, _by_head(driven).mT).view(between.shape)
        d_products = d_between.mul_(between).sum(2).flatten(0, 1)
        masked = between.mul_(products.view(batch, count, 1, size, size)).flatten(0, 2)
        within = torch.bmm(masked.mT, dy_heads).view(batch, count, heads, size, width)
        d_driven.add_(within.transpose(2, 3))
        dc.baddbmm_(d_products, b)
        db.baddbmm_(d_products.mT, c)

        # The decays. The sum at the end of a chunk also scales the state after it, which is the
        # state before the next chunk; nothing reads the state after the last one.
        d_step = (d_driven * x).sum(-1)
        d_sums = (dy * y).sum(-1) - d_step * dt
        states, d_after = (t.view(batch, count, -1, heads, width) for t in (states, d_after))
        if ctx.reverse:
            d_sums[:, 1:, 0] += (states[:, :-1] * d_after[:, 1:]).sum((2, 4))
        else:
            d_sums[:, :-1, -1] += (states[:, 1:] * d_after[:, :-1]).sum((2, 4))
        d_exponents = _running(d_sums, not ctx.reverse)
        d_skip = (dy * x).sum(-1)
        d_x = torch.addcmul(dy * D[:, None], d_driven, dt[..., None])
        return (
            d_x.flatten(1, 2),
            torch.addcmul(d_step, d_exponents, A).flatten(1, 2),
            (d_exponents * dt).sum((0, 1, 2)),
            db.view(B.shape).flatten(1, 2),
            dc.view(C.shape).flatten(1, 2),
            d_skip.sum((0, 1, 2)),
            None,
            None,
        )

"""What the Triton kernels share: the pointwise functions and how a position is read."""
# pyright: reportMissingImports=false, reportOperatorIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def sigmoid(x):
    """Logistic function of a float tile."""
    return 1 / (1 + tl.exp(-x))


@triton.jit
def softplus(x):
    """log(1 + exp(x)), exact to the last bits where exp(x) vanishes beside 1."""
    e = tl.exp(tl.minimum(x, 20.0, propagate_nan=tl.PropagateNan.ALL))
    w = 1 + e
    small = w == 1
    return tl.where(x > 20, x, tl.where(small, e, tl.log(w) * (e / tl.where(small, 1, w - 1))))


@triton.jit
def place_of(i, length, REVERSE: tl.constexpr):
    """Where the i-th position read lies, kept inside the row."""
    clipped = tl.minimum(i, length - 1)
    return (length - 1 - clipped if REVERSE else clipped).to(tl.int64)


@triton.jit
def inside(mask, i, length):
    """A mask that is off from the end of the row on."""
    return mask & (tl.zeros(mask.shape, tl.int32) + i < length)

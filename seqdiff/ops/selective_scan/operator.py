"""Registration of a backend of the scan as a PyTorch operator."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from seqdiff.ops.operators import compute_dtype, differentiable_operator


def register_scan(
    name: str,
    forward: Callable[..., tuple[Tensor, Tensor, Tensor]],
    backward: Callable[..., list[Tensor]],
    saved_shape: Callable[[Tensor, Tensor, Tensor, Tensor], tuple],
    *,
    states_adjacent: bool,
) -> None:
    """Register a backend.

    Args:
        name: Name of the operator.
        forward: Takes u, delta, A, B, C, D, z, the bias, the initial state (each of the last four
            may be None), whether delta passes through softplus, ``reverse``, and whether a backward
            pass follows. Returns the output, the last state and a tensor saved for the backward
            pass.
        backward: Takes the tensors of ``forward``, the saved tensor, the softplus and ``reverse``
            options, and the gradients of the output and of the last state. Returns the gradients of
            the tensors of ``forward``, in order.
        saved_shape: Takes u, A, B and C, and returns the shape of the saved tensor.
        states_adjacent: Whether the gradients of B and C have adjacent states in memory.
    """

    def forward_fake(u, delta, A, B, C, D, z, bias, initial, softplus, reverse, keep):
        dtype = compute_dtype(u, delta, A, B, C, D, z, bias, initial)
        shape = saved_shape(u, A, B, C) if keep else (0, 0, 0, 0)
        last = A.new_empty(u.shape[0], *A.shape, dtype=dtype)
        return torch.empty_like(u), last, u.new_empty(shape, dtype=dtype)

    def backward_fake(
        u, delta, A, B, C, D, z, bias, initial, saved, softplus, reverse, d_out, d_last
    ):
        D, bias = (
            u.new_empty(u.shape[1], dtype=saved.dtype if v is None else v.dtype) for v in (D, bias)
        )
        dtype = saved.dtype if initial is None else initial.dtype
        B, C = (
            m.new_empty(m.mT.shape).mT if states_adjacent and m.ndim == 4 else m.new_empty(m.shape)
            for m in (B, C)
        )
        return [
            torch.empty_like(u),
            torch.empty_like(delta),
            A.new_empty(A.shape),
            B,
            C,
            D,
            u.new_empty(0, 0, 0) if z is None else torch.empty_like(z),
            bias,
            A.new_empty(u.shape[0], *A.shape, dtype=dtype),
        ]

    differentiable_operator(
        name,
        forward,
        forward_fake,
        backward,
        backward_fake,
        remember=lambda inputs, output: ((*inputs[:9], output[2]), inputs[9:11]),
        differentiable=9,
    )

"""The RMSNorm operator for the CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from seqdiff.ops.cpu_simd.runtime import copy, run_tasks
from seqdiff.ops.operators import differentiable_operator
from seqdiff.ops.rms_norm.cpu_kernels import ROWS, norm_backward, norm_forward


def rms_norm_cpu(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Run `rms_norm` for one floating dtype on the CPU."""
    return torch.ops.seqdiff.rms_norm(x, weight, eps)[0]


def _flat(tensor: Tensor) -> Tensor:
    return tensor.detach().reshape(-1, tensor.shape[-1]).contiguous()


def _forward(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return the output, and the reciprocal of each vector's root mean square."""
    out, inverse = _forward_fake(x, weight, eps)
    rows = _flat(x)
    arrays = (weight.new_tensor([eps]), _flat(out), inverse)
    arguments = (rows.numpy(), copy(weight, x, 1), *(a.numpy() for a in arrays))
    run_tasks(norm_forward, x, arguments, -(-len(rows) // ROWS))
    return out, inverse


def _forward_fake(x, weight, eps):
    return x.new_empty(x.shape), x.new_empty(x.shape[:-1].numel())


def _backward(x: Tensor, weight: Tensor, inverse: Tensor, d_out: Tensor) -> list[Tensor]:
    dx, rows = x.new_empty(x.shape), _flat(x)
    tasks = -(-len(rows) // ROWS)
    d_weight = x.new_zeros(tasks, len(weight))
    arrays = (inverse, _flat(d_out), _flat(dx), d_weight)
    arguments = (rows.numpy(), copy(weight, x, 1), *(a.numpy() for a in arrays))
    run_tasks(norm_backward, x, arguments, tasks)
    return [dx, d_weight.sum(0)]


def _backward_fake(x, weight, inverse, d_out):
    return [x.new_empty(x.shape), weight.new_empty(weight.shape)]


differentiable_operator(
    "rms_norm",
    _forward,
    _forward_fake,
    _backward,
    _backward_fake,
    remember=lambda inputs, output: ((*inputs[:2], output[1]), ()),
    differentiable=2,
)

"""The CPU's RMSNorm as a PyTorch operator: differentiable, opaque to ``torch.compile``."""

from __future__ import annotations

import torch
from torch import Tensor

from seqdiff.ops.cpu_simd.runtime import norm_kernel, run_tasks
from seqdiff.ops.rms_norm.cpu_kernels import ROWS


def rms_norm_cpu(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``seqdiff.ops.rms_norm.dispatch`` for one floating dtype on the CPU."""
    return torch.ops.seqdiff.rms_norm(x, weight, eps)[0]


def _flat(tensor: Tensor) -> Tensor:
    return tensor.detach().reshape(-1, tensor.shape[-1]).contiguous()


@torch.library.custom_op("seqdiff::rms_norm", mutates_args=())
def _norm(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The output, and one over each vector's root mean square."""
    out, inverse = _norm_fake(x, weight, eps)
    rows = _flat(x)
    arrays = (rows, weight.contiguous(), weight.new_tensor([eps]), _flat(out), inverse)
    tasks = -(-len(rows) // ROWS)
    run_tasks(norm_kernel("norm_forward", x.dtype), tuple(a.numpy() for a in arrays), tasks)
    return out, inverse


@_norm.register_fake
def _norm_fake(x, weight, eps):
    return x.new_empty(x.shape), x.new_empty(x.shape[:-1].numel())


@torch.library.custom_op("seqdiff::rms_norm_backward", mutates_args=())
def _norm_backward(
    x: Tensor, weight: Tensor, inverse: Tensor, d_out: Tensor
) -> tuple[Tensor, Tensor]:
    dx, rows = x.new_empty(x.shape), _flat(x)
    tasks = -(-len(rows) // ROWS)
    d_weight = x.new_zeros(tasks, len(weight))
    arrays = (rows, weight.contiguous(), inverse, _flat(d_out), _flat(dx), d_weight)
    run_tasks(norm_kernel("norm_backward", x.dtype), tuple(a.numpy() for a in arrays), tasks)
    return dx, d_weight.sum(0)


@_norm_backward.register_fake
def _norm_backward_fake(x, weight, inverse, d_out):
    return x.new_empty(x.shape), weight.new_empty(weight.shape)


def _context(ctx, inputs, output):
    x, weight, _ = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, weight, output[1])


def _gradients(ctx, d_out, d_inverse):
    if d_out is None:
        return None, None, None
    return *torch.ops.seqdiff.rms_norm_backward(*ctx.saved_tensors, d_out), None


_norm.register_autograd(_gradients, setup_context=_context)

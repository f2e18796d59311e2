"""The dtypes that operators accept and compute in, and the registration of operators."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)

Outputs = Tensor | tuple[Tensor, ...] | list[Tensor]
Saved = tuple[Sequence[Tensor | list[Tensor] | None], tuple[object, ...]]


def compute_dtype(*tensors: Tensor | None) -> torch.dtype:
    """Return float64 if any tensor is float64, else float32; nothing accumulates in less."""
    wide = any(t is not None and t.dtype == torch.float64 for t in tensors)
    return torch.float64 if wide else torch.float32


def differentiable_operator(
    name: str,
    forward: Callable[..., Outputs],
    forward_fake: Callable[..., Outputs],
    backward: Callable[..., list[Tensor]],
    backward_fake: Callable[..., list[Tensor]],
    *,
    remember: Callable[[tuple, Any], Saved],
    differentiable: int,
) -> None:
    """Register an operator and its backward pass with PyTorch.

    ``torch.compile`` calls both without tracing into them. There is no second derivative.

    Args:
        name: The operators are ``torch.ops.seqdiff.<name>`` and ``<name>_backward``.
        forward: The operator. It should return a tuple rather than a list, which PyTorch handles
            more slowly.
        forward_fake: Returns empty tensors with the shapes, dtypes and strides of the outputs.
        backward: Takes the tensors that ``remember`` returns, then its options, then the
            gradients of as many of the first outputs as it has parameters left. A gradient is
            None if the output was not used. It returns one gradient per differentiable argument;
            an argument that is a list has one gradient per tensor. Gradients of arguments that
            are None are ignored.
        backward_fake: Returns empty tensors with the shapes, dtypes and strides of the gradients.
        remember: Takes the arguments and the outputs of ``forward``. It returns what ``backward``
            needs as a pair: tensors, lists of tensors and None; and options of other types.
        differentiable: Number of leading arguments that have gradients.
    """
    operator = torch.library.custom_op(f"seqdiff::{name}", forward, mutates_args=())
    operator.register_fake(forward_fake)
    gradient = torch.library.custom_op(f"seqdiff::{name}_backward", backward, mutates_args=())
    gradient.register_fake(backward_fake)
    parameters = len(inspect.signature(backward).parameters)

    def setup_context(ctx, inputs, output):
        tensors, ctx.options = remember(inputs, output)
        ctx.set_materialize_grads(False)
        ctx.lengths = [len(t) if isinstance(t, list) else None for t in tensors]
        ctx.inputs = [len(i) if isinstance(i, list) else isinstance(i, Tensor) for i in inputs]
        flat = [part for t in tensors for part in (t if isinstance(t, list) else [t])]
        ctx.save_for_backward(*flat)

    def gradients(ctx, *grads):
        if isinstance(grads[0], list | tuple):  # the operator returns a list
            grads = grads[0]
        known = iter(ctx.saved_tensors)
        arguments = [
            next(known) if n is None else [next(known) for _ in range(n)] for n in ctx.lengths
        ]
        grads = grads[: parameters - len(arguments) - len(ctx.options)]
        if all(grad is None for grad in grads):
            return tuple(None if isinstance(n, bool) else [None] * n for n in ctx.inputs)
        parts = iter(gradient(*arguments, *ctx.options, *grads))
        results = []
        for kind in ctx.inputs[:differentiable]:
            if isinstance(kind, bool):
                part = next(parts)
                results.append(part if kind else None)
            else:
                results.append([next(parts) for _ in range(kind)])
        return *results, *[None] * (len(ctx.inputs) - differentiable)

    operator.register_autograd(gradients, setup_context=setup_context)

"""The depthwise causal convolution, and the choice of its kernel."""

from __future__ import annotations

from typing import Literal

from jaxtyping import Float
from torch import Tensor

from seqdiff.ops.causal_conv.reference import causal_conv1d_reference
from seqdiff.ops.operators import FLOATS
from seqdiff.ops.selective_scan.cuda import has_triton, require_triton

BACKENDS = ("auto", "reference", "cpu", "triton")


def causal_conv1d(
    x: Float[Tensor, "B D L"],
    weight: Float[Tensor, "D W"],
    bias: Float[Tensor, " D"] | None = None,
    activation: Literal["silu"] | None = None,
    *,
    reverse: bool = False,
    backend: str = "auto",
) -> Float[Tensor, "B D L"]:
    """Filter each channel over the current and the ``W - 1`` preceding positions, then activate.

    ``out_l = act(bias + sum_w weight_w x_{l - (W - 1) + w})``, with zeros before the sequence.
    This is the short convolution before Mamba's scan (arXiv:2312.00752, figure 3). x may have any
    strides; on the CPU, the fastest layout has adjacent channels.

    Args:
        x: Input.
        weight: Filter; its last column multiplies the current position.
        bias: Added to each channel.
        activation: ``"silu"`` or None.
        reverse: Filter over the current and the following positions, as if the sequence were
            flipped before and after.
        backend: ``"auto"`` uses the CPU kernel for CPU tensors, the Triton kernel for CUDA tensors
            if Triton is installed, and PyTorch's convolution otherwise. ``"cpu"``, ``"triton"``
            and ``"reference"`` (PyTorch's convolution) select one.

    Returns:
        The filtered input in x's dtype.

    Raises:
        ValueError: A shape, a dtype, the activation or the backend is wrong, or the tensors are on
            a device that the backend does not support.
        ImportError: The backend is ``"triton"`` and Triton is not installed.
    """
    check_conv_inputs(x, weight, bias, activation)
    if backend not in BACKENDS:
        raise ValueError(f"causal_conv1d.backend must be one of {BACKENDS}, got {backend!r}")
    chosen = _automatic(x) if backend == "auto" else backend
    if chosen == "reference":
        return causal_conv1d_reference(x, weight, bias, activation, reverse)
    if chosen == "triton":
        require_triton("causal_conv1d", x)
        from seqdiff.ops.causal_conv.triton import causal_conv1d_triton

        return causal_conv1d_triton(x, weight, bias, activation == "silu", reverse)
    if x.device.type != "cpu":
        raise ValueError(
            f"causal_conv1d.backend 'cpu' needs CPU tensors, got {x.device}; use backend='auto'"
        )
    from seqdiff.ops.causal_conv.cpu import causal_conv1d_cpu

    return causal_conv1d_cpu(x, weight, bias, activation == "silu", reverse)


def _automatic(x: Tensor) -> str:
    """Choose the backend for the device of x."""
    if x.device.type == "cpu":
        return "cpu"
    return "triton" if x.device.type == "cuda" and has_triton() else "reference"


def check_conv_inputs(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None
) -> None:
    """Check the arguments that every backend takes.

    Raises:
        ValueError: A shape, a dtype or the activation is wrong.
    """
    if x.ndim != 3 or x.shape[2] < 1:
        raise ValueError(
            f"causal_conv1d.x must have shape (batch, channels, length >= 1), got {tuple(x.shape)}"
        )
    channels = x.shape[1]
    if weight.ndim != 2 or weight.shape[0] != channels or weight.shape[1] < 1:
        raise ValueError(
            f"causal_conv1d.weight must have shape (channels={channels}, width >= 1), "
            f"got {tuple(weight.shape)}"
        )
    if bias is not None and bias.shape != (channels,):
        raise ValueError(
            f"causal_conv1d.bias must have shape ({channels},), got {tuple(bias.shape)}"
        )
    for name, tensor in (("x", x), ("weight", weight), ("bias", bias)):
        if tensor is not None and tensor.dtype not in FLOATS:
            raise ValueError(
                f"causal_conv1d.{name} must be one of float64, float32, bfloat16, float16, "
                f"got {tensor.dtype}"
            )
    if activation not in (None, "silu"):
        raise ValueError(f"causal_conv1d.activation must be None or 'silu', got {activation!r}")

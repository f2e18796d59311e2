"""The depthwise causal convolution: CPU and Triton kernels behind one call."""

from seqdiff.ops.causal_conv.cpu import run_conv, run_conv_backward
from seqdiff.ops.causal_conv.cpu_kernels import (
    CHUNK,
    conv_backward,
    conv_forward,
    filter_at,
    gather,
    through_silu,
)
from seqdiff.ops.causal_conv.dispatch import BACKENDS, causal_conv1d

__all__ = [
    "BACKENDS",
    "CHUNK",
    "causal_conv1d",
    "conv_backward",
    "conv_forward",
    "filter_at",
    "gather",
    "run_conv",
    "run_conv_backward",
    "through_silu",
]

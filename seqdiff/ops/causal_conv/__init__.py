"""The depthwise causal convolution: CPU and Triton kernels behind one call."""

from seqdiff.ops.causal_conv.dispatch import causal_conv1d

__all__ = ["causal_conv1d"]

"""The depthwise causal convolution: one function that runs CPU or Triton kernels."""

from seqdiff.ops.causal_conv.dispatch import causal_conv1d

__all__ = ["causal_conv1d"]

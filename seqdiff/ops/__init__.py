"""Kernels: each has a plain PyTorch reference and faster twins behind one call."""

from seqdiff.ops.causal_conv import causal_conv1d
from seqdiff.ops.selective_scan import selective_scan

__all__ = ["causal_conv1d", "selective_scan"]

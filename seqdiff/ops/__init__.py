"""Kernels: each has a plain PyTorch reference and faster twins behind one call."""

from .causal_conv1d import causal_conv1d
from .selective_scan import selective_scan

__all__ = ["causal_conv1d", "selective_scan"]

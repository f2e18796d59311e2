"""Kernels: each has a plain PyTorch reference and faster twins behind one call."""

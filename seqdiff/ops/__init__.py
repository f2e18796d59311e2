"""Kernels: each operation has a folder with a plain PyTorch reference and faster twins."""

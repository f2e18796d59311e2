"""The selective scan of Mamba: reference, CPU, Triton and CUDA kernels behind one call."""

from seqdiff.ops.selective_scan.dispatch import BACKENDS, selective_scan

__all__ = ["BACKENDS", "selective_scan"]

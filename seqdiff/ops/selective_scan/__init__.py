"""The selective scan of Mamba: one function that runs reference, CPU, Triton or CUDA kernels."""

from seqdiff.ops.selective_scan.dispatch import BACKENDS, selective_scan

__all__ = ["BACKENDS", "selective_scan"]

"""Kernels: one folder per operation, with the dispatch and the faster implementations.

`selective_scan`, `causal_conv` and `ssd` also have a plain PyTorch reference that they match.
"""

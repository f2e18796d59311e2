"""Kernels: one folder per operation, with the dispatch and the faster implementations.

`selective_scan` and `causal_conv` also have a plain PyTorch reference that their kernels match.
"""

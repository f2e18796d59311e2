"""Compiling kernels on first use and running them on several threads.

Threads are our own, asleep between calls: Numba's pool would spin against PyTorch's for the same
cores. Their number is ``torch.get_num_threads()``.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from numba import njit, types
from torch import Tensor

from seqdiff.ops.cpu_simd.memory import keep_freed_memory

_LOGGER = logging.getLogger("seqdiff.ops")


def view(tensor: Tensor | None, like: Tensor, ndim: int, flip: bool = False) -> np.ndarray:
    """A tensor's memory as an array, its last axis read backwards if asked; size 0 for None."""
    if tensor is None:
        tensor = like.new_empty((0,) * ndim)
    array = tensor.detach().numpy()
    return array[..., ::-1] if flip else array


def _arrays(dtype: torch.dtype, *ranks: int) -> list[types.Array]:
    """Numba's types of strided arrays, so that one kernel takes every layout."""
    scalar = types.float32 if dtype == torch.float32 else types.float64
    return [types.Array(scalar, rank, "A") for rank in ranks]


@functools.cache
def scan_kernel(name: str, dtype: torch.dtype) -> Callable[..., None]:
    """``"scan_forward"`` or ``"scan_backward"`` compiled for a dtype."""
    from seqdiff.ops.selective_scan.cpu_backward import scan_backward
    from seqdiff.ops.selective_scan.cpu_forward import scan_forward

    scalar = types.float32 if dtype == torch.float32 else types.float64
    saved = types.Array(scalar, 4, "C")
    inputs = [*_arrays(dtype, 3, 3, 2, 4, 4, 2, 3, 2), *(types.boolean,) * 3]
    if name == "scan_forward":
        return _compile(
            scan_forward,
            dtype,
            [*inputs, *_arrays(dtype, 3, 3), types.boolean, *_arrays(dtype, 3), saved],
        )
    rows, sums = _arrays(dtype, 3, 3, 3, 3, 3), _arrays(dtype, 5, 5, 3, 3, 3, 3, 3, 3)
    return _compile(scan_backward, dtype, [*inputs, saved, *rows, types.boolean, *sums])


@functools.cache
def conv_kernel(name: str, dtype: torch.dtype) -> Callable[..., None]:
    """``"conv_forward"`` or ``"conv_backward"`` compiled for a dtype."""
    from seqdiff.ops.causal_conv.cpu_kernels import conv_backward, conv_forward

    inputs = [*_arrays(dtype, 3, 2, 2), types.boolean]
    if name == "conv_forward":
        return _compile(conv_forward, dtype, [*inputs, *_arrays(dtype, 3)])
    rows, sums = _arrays(dtype, 3, 3), _arrays(dtype, 3, 3)
    return _compile(conv_backward, dtype, [*inputs, *rows, types.boolean, *sums])


@functools.cache
def block_scan_kernel(name: str, dtype: torch.dtype) -> Callable[..., None]:
    """``"block_scan_forward"`` or ``"block_scan_backward"`` compiled for a dtype."""
    from seqdiff.ops.bimamba.cpu_block_scan import block_scan_backward, block_scan_forward

    scalar = types.float32 if dtype == torch.float32 else types.float64
    saved = types.Array(scalar, 4, "C")
    inputs = [*_arrays(dtype, 3, 3, 2, 4, 4, 2, 3, 2), *(types.boolean,) * 3]
    inputs += [types.int64, types.int64, types.boolean, *_arrays(dtype, 4)]
    if name == "block_scan_forward":
        arguments = [*inputs, *_arrays(dtype, 3), types.boolean, saved]
        return _compile(block_scan_forward, dtype, arguments)
    rows, sums = _arrays(dtype, 3, 4, 3, 3, 3), _arrays(dtype, 5, 5, 3, 3, 3, 3, 3, 3)
    return _compile(block_scan_backward, dtype, [*inputs, saved, *rows, types.boolean, *sums])


@functools.cache
def block_conv_kernel(name: str, dtype: torch.dtype) -> Callable[..., None]:
    """``"block_conv_forward"`` or ``"block_conv_backward"`` compiled for a dtype."""
    from seqdiff.ops.bimamba.cpu_block_conv import block_conv_backward, block_conv_forward

    inputs = [*_arrays(dtype, 3, 2, 2), types.boolean, types.int64, types.int64]
    if name == "block_conv_forward":
        return _compile(block_conv_forward, dtype, [*inputs, *_arrays(dtype, 4, 3)])
    rows, sums = _arrays(dtype, 4, 3, 3), _arrays(dtype, 3, 3, 4)
    return _compile(block_conv_backward, dtype, [*inputs, *rows, types.boolean, *sums])


@functools.cache
def norm_kernel(name: str, dtype: torch.dtype) -> Callable[..., None]:
    """``"norm_forward"`` or ``"norm_backward"`` compiled for a dtype."""
    from seqdiff.ops.rms_norm.cpu_kernels import norm_backward, norm_forward

    scalar = types.float32 if dtype == torch.float32 else types.float64
    matrix, vector = types.Array(scalar, 2, "C"), types.Array(scalar, 1, "C")
    if name == "norm_forward":
        return _compile(norm_forward, dtype, [matrix, vector, vector, matrix, vector])
    return _compile(norm_backward, dtype, [matrix, vector, vector, matrix, matrix, matrix])


@functools.cache
def _digest() -> str:
    """What the kernels' sources add up to: Numba itself would watch only the caller's file."""
    folder = Path(__file__).parent
    text = b"".join(path.read_bytes() for path in sorted(folder.glob("cpu_*.py")))
    return hashlib.sha256(text).hexdigest()[:16]


def _compile(
    function: Callable[..., None], dtype: torch.dtype, arguments: Sequence[types.Type]
) -> Callable[..., None]:
    """Compile a kernel, or load it from Numba's cache on disk; say so when it takes a while."""
    name = f"{function.__name__}_{_digest()}_{str(dtype).removeprefix('torch.')}"
    function.__qualname__ = name
    keep_freed_memory()
    try:
        kernel = njit(nogil=True, cache=True)(function)
        folder = Path(kernel.stats.cache_path or ".")
        if not any(folder.glob(f"*{name}*.nbi")):
            _say_once(f"once on this machine; they are kept in {folder}")
    except RuntimeError:
        kernel = njit(nogil=True)(function)
        _say_once("in every run, since no cache folder is writable; set NUMBA_CACHE_DIR to one")
    kernel.compile((types.Array(types.int64, 1, "C"), *arguments))
    kernel.disable_compile()
    return kernel


@functools.cache
def _say_once(how_often: str) -> None:
    _LOGGER.warning("seqdiff: compiling the CPU kernels, up to a minute, %s", how_often)


_pools: dict[int, ThreadPoolExecutor] = {}
os.register_at_fork(after_in_child=_pools.clear)


def run_tasks(kernel: Callable[..., None], arguments: tuple[object, ...], tasks: int) -> None:
    """Let threads share out a kernel's tasks; each task's result does not depend on its thread."""
    counter = np.zeros(1, np.int64)
    helpers = min(torch.get_num_threads(), tasks) - 1
    if helpers > 0 and helpers not in _pools:
        _pools[helpers] = ThreadPoolExecutor(helpers, thread_name_prefix="seqdiff-ops")
    waiting = [_pools[helpers].submit(kernel, counter, *arguments) for _ in range(helpers)]
    kernel(counter, *arguments)
    for future in waiting:
        future.result()

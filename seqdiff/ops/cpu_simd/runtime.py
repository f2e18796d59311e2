"""Compiling kernels on first use and running them on several threads.

The threads are our own and sleep between calls: Numba's pool would spin against PyTorch's for the
same cores. Their number is ``torch.get_num_threads()``.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock
from numba import from_dtype, njit, types
from torch import Tensor

_LOGGER = logging.getLogger("seqdiff.ops")

SMALL = 1 << 15
"""Elements below which waking a second thread takes longer than the whole work."""

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # glibc's malloc.h


@functools.cache
def keep_freed_memory() -> None:
    """Let glibc hold on to up to 1 GiB of freed blocks below 32 MiB; elsewhere do nothing.

    By default it gives the activations of each training step back to the system, which fills every
    page with zeros when the next step asks for it again: about 11,000 page faults in a step of the
    118x4 network, a tenth of its time.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, 1 << 30)
        mallopt(_TOP_PAD, 1 << 26)
        mallopt(_MMAP_THRESHOLD, 1 << 25)


def view(tensor: Tensor | None, like: Tensor, ndim: int, flip: bool = False) -> np.ndarray:
    """A tensor's memory as an array, its last axis read backwards if asked; size 0 for None."""
    if tensor is None:
        tensor = like.new_empty((0,) * ndim)
    array = tensor.detach().numpy()
    return array[..., ::-1] if flip else array


@functools.cache
def _digest() -> str:
    """A hash of all kernels' sources: Numba itself watches only the file of the outermost one."""
    folder = Path(__file__).parents[1]
    paths = sorted((*folder.glob("cpu_simd/*.py"), *folder.glob("*/cpu_*.py")))
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()[:16]


def _type(argument: object) -> types.Type:
    """Numba's type of an argument: one kernel takes arrays of any strides."""
    if isinstance(argument, np.ndarray):
        return types.Array(from_dtype(argument.dtype), argument.ndim, "A")
    return types.boolean if isinstance(argument, bool) else types.int64


def _compile(
    function: Callable[..., None], dtype: torch.dtype, arguments: tuple[object, ...]
) -> Callable[..., None]:
    """Compile a kernel, or load it from Numba's cache on disk; say so when it takes a while.

    Of several processes that need a kernel, one compiles it and the others wait for the cache.
    """
    name = f"{function.__name__}_{_digest()}_{str(dtype).removeprefix('torch.')}"
    function.__qualname__ = name
    keep_freed_memory()
    with ExitStack() as stack:
        try:
            kernel = njit(nogil=True, cache=True)(function)
            folder = Path(kernel.stats.cache_path or ".")
            if not any(folder.glob(f"*{name}*.nbi")):
                _say_once(f"once on this machine; they are kept in {folder}")
                folder.mkdir(parents=True, exist_ok=True)
                with suppress(NotImplementedError):  # a file system without locks
                    stack.enter_context(FileLock(folder / f"{name}.lock"))
        except RuntimeError:
            kernel = njit(nogil=True)(function)
            _say_once("in every run, since no cache folder is writable; set NUMBA_CACHE_DIR to one")
        kernel.compile(tuple(map(_type, arguments)))
    kernel.disable_compile()
    return kernel


@functools.cache
def _say_once(how_often: str) -> None:
    _LOGGER.warning("seqdiff: compiling the CPU kernels, up to a minute, %s", how_often)


_kernels: dict[tuple[Callable[..., None], torch.dtype], Callable[..., None]] = {}
_pools: dict[int, ThreadPoolExecutor] = {}
os.register_at_fork(after_in_child=_pools.clear)


def run_tasks(
    function: Callable[..., None], like: Tensor, arguments: tuple[object, ...], tasks: int
) -> None:
    """Let threads divide a kernel's tasks among them; no result depends on which thread ran it.

    Args:
        function: The kernel in Python, which Numba compiles once a dtype. Its first argument is a
            counter, from which it takes tasks until all are done.
        like: An input, whose dtype the kernel is compiled for. If it is small, one thread does all.
        arguments: The kernel's other arguments: arrays, booleans and integers.
        tasks: How many tasks there are.
    """
    arguments = (np.zeros(1, np.int64), *arguments)
    kernel = _kernels.get((function, like.dtype))
    if kernel is None:
        kernel = _kernels[function, like.dtype] = _compile(function, like.dtype, arguments)
    helpers = min(torch.get_num_threads(), tasks) - 1 if like.numel() >= SMALL else 0
    if helpers > 0 and helpers not in _pools:
        _pools[helpers] = ThreadPoolExecutor(helpers, thread_name_prefix="seqdiff-ops")
    waiting = [_pools[helpers].submit(kernel, *arguments) for _ in range(helpers)]
    kernel(*arguments)
    for future in waiting:
        future.result()

"""Compile kernels on first use, and run them on several threads.

There are ``torch.get_num_threads()`` threads. They are OpenMP's, on which PyTorch's own operators
run. OpenMP's threads spin for a while after a parallel region before they sleep, so a kernel that
follows an operator starts at once, and no second pool competes for the cores. On systems other
than Linux, and if PyTorch was built without OpenMP, a pool of this module takes their place.
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
"""Number of elements below which one thread finishes before a second one would wake up."""

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # glibc's malloc.h


@functools.cache
def keep_freed_memory() -> None:
    """Let glibc keep up to 1 GiB of freed memory from allocations below 32 MiB.

    By default, glibc returns the memory of each training step's activations to the operating
    system, which has to zero every page again in the next step. In a Caduceus of width 118 with 4
    layers, this causes about 11,000 page faults per step and takes a tenth of the time. With other
    C libraries, this function does nothing.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, 1 << 30)
        mallopt(_TOP_PAD, 1 << 26)
        mallopt(_MMAP_THRESHOLD, 1 << 25)


def view(tensor: Tensor | None, like: Tensor, ndim: int, flip: bool = False) -> np.ndarray:
    """View a tensor's memory as an array.

    Args:
        tensor: The tensor; None gives an array of size 0.
        like: Gives the dtype if there is no tensor.
        ndim: Number of axes if there is no tensor.
        flip: Whether to reverse the last axis.
    """
    if tensor is None:
        tensor = like.new_empty((0,) * ndim)
    array = tensor.detach().numpy()
    return array[..., ::-1] if flip else array


def copy(weight: Tensor | None, like: Tensor, ndim: int) -> np.ndarray:
    """Copy a weight into an array; see `view`.

    PyTorch cannot free memory that an array has viewed, but sharded training (FSDP) must free the
    weights of a layer after their use.
    """
    return view(None if weight is None else weight.detach().clone(), like, ndim)


@functools.cache
def _digest() -> str:
    """Hash the sources of all kernels.

    The hash is part of the name of a compiled kernel, because Numba's cache only notices changes of
    the file that defines the kernel, not of the files of the functions it calls.
    """
    folder = Path(__file__).parents[1]
    paths = sorted((*folder.glob("cpu_simd/*.py"), *folder.glob("*/cpu_*.py")))
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()[:16]


def _type(argument: object) -> types.Type:
    """Return Numba's type of an argument; the type of an array allows any strides."""
    if isinstance(argument, np.ndarray):
        return types.Array(from_dtype(argument.dtype), argument.ndim, "A")
    return types.boolean if isinstance(argument, bool) else types.int64


def _compile(
    function: Callable[..., None], dtype: torch.dtype, arguments: tuple[object, ...]
) -> Callable[..., None]:
    """Compile a kernel, or load it from Numba's cache on disk.

    A warning is logged before compiling. If several processes need the same kernel, one compiles it
    and the others wait until it is in the cache.
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
_Task = ctypes.CFUNCTYPE(None)


@functools.cache
def _parallel_region() -> Callable[..., None] | None:
    """Return GNU OpenMP's function that runs another function on several threads.

    LLVM's and Intel's OpenMP have it on Linux, too. None if the process has no such function.
    """
    if sys.platform != "linux":
        return None
    return getattr(ctypes.CDLL(None), "GOMP_parallel", None)


def _use_one_thread() -> None:
    """Run kernels and PyTorch's operators on one thread in a forked child.

    It has none of its parent's threads, and GNU OpenMP would wait for them.
    """
    torch.set_num_threads(1)
    _pools.clear()


os.register_at_fork(after_in_child=_use_one_thread)


def _run_on_threads(kernel: Callable[..., None], arguments: tuple[object, ...], count: int) -> None:
    """Call a kernel on ``count`` threads, one of which is this one."""
    region = _parallel_region()
    if region is not None:
        # This thread must run no Python code inside the region: a signal handler could run there,
        # and ctypes would drop the exception it raises.
        region(_Task(functools.partial(kernel, *arguments)), None, count, 0)
        kernel(*arguments)  # finds no task left, or raises the error that ctypes has dropped
        return
    if count not in _pools:
        _pools[count] = ThreadPoolExecutor(count - 1, thread_name_prefix="seqdiff-ops")
    waiting = [_pools[count].submit(kernel, *arguments) for _ in range(count - 1)]
    kernel(*arguments)
    for future in waiting:
        future.result()


def run_tasks(
    function: Callable[..., None], like: Tensor, arguments: tuple[object, ...], tasks: int
) -> None:
    """Run a kernel on several threads, which share its tasks.

    The results do not depend on which thread runs which task.

    Args:
        function: The kernel as a Python function; Numba compiles it once per dtype. Its first
            argument is a shared counter, from which every thread takes task numbers until none is
            left. It may raise only before it takes its first task.
        like: An input; the kernel is compiled for its dtype. If it has fewer than `SMALL` elements,
            one thread runs all tasks.
        arguments: The kernel's other arguments: arrays, booleans and integers.
        tasks: Number of tasks.
    """
    arguments = (np.zeros(1, np.int64), *arguments)
    kernel = _kernels.get((function, like.dtype))
    if kernel is None:
        kernel = _kernels[function, like.dtype] = _compile(function, like.dtype, arguments)
    # Always the same number, because OpenMP ends the threads that a smaller region leaves over.
    count = torch.get_num_threads()
    if count > 1 and tasks > 1 and like.numel() >= SMALL:
        _run_on_threads(kernel, arguments, count)
    else:
        kernel(*arguments)

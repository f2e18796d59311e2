"""CPU kernels are compiled once, by one of the processes that need them."""

from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch
from filelock import FileLock
from numba import njit

from seqdiff.ops.cpu_simd import runtime


def test_a_process_waits_for_another_that_compiles_the_same_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("numba.core.config.CACHE_DIR", str(tmp_path))

    def count(counter: np.ndarray) -> None:
        counter[0] += 1

    counter = np.zeros(1, np.int64)
    name = f"count_{runtime._digest()}_float32"
    folder = Path(str(njit(cache=True)(count).stats.cache_path))
    folder.mkdir(parents=True, exist_ok=True)
    found: list[Any] = []
    waiting = Thread(
        target=lambda: found.append(runtime._compile(count, torch.float32, (counter,)))
    )
    with FileLock(folder / f"{name}.lock"):
        waiting.start()
        waiting.join(2)
        assert not found
        other = njit(nogil=True, cache=True)(count)
        other.compile((runtime._type(counter),))
        assert sum(other.stats.cache_misses.values()) == 1
    waiting.join()
    assert sum(found[0].stats.cache_hits.values()) == 1
    found[0](counter)
    assert counter[0] == 1

"""The most memory that one training step holds, measured in a process of its own.

Linux keeps a process's largest resident set; what is resident before the step, with everything
imported, compiled and stepped once on a few bases, is taken off. Run as ``python -m
benchmarks.peak_memory SIDE WIDTH LAYERS BATCH LENGTH``, it prints bytes.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.training_step import TrainingStep, make_network
from benchmarks.two_pass import mambapy_layer, two_pass_twin

STATUS = Path("/proc/self/status")
SIDES = ("ours", "two-pass")
_WARM_LENGTH = 16


def step_memory(side: str, d_model: int, n_layer: int, batch: int, length: int) -> int:
    """Bytes of one step's high water, from a fresh process.

    Raises:
        SystemExit: If that process fails, with what it said.
    """
    return in_fresh_process(__name__, side, *map(str, (d_model, n_layer, batch, length)))


def in_fresh_process(module: str, *arguments: str) -> int:
    """The number that a module prints when it is run.

    Raises:
        SystemExit: If it fails, with what it said.
    """
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise SystemExit(f"peak memory of {' '.join(arguments)}: {said[-1]}")
    return int(done.stdout)


def high_water(work: Callable[[], object]) -> int:
    """Most bytes that some work holds beyond what the process held before it.

    Raises:
        SystemExit: If this system does not tell.
    """
    if not STATUS.exists():
        raise SystemExit("peak_memory reads /proc/self/status, which only Linux has")
    resting = _status("VmRSS")
    work()
    return _status("VmHWM") - resting


def _status(field: str) -> int:
    found = re.search(rf"^{field}:\s+(\d+) kB", STATUS.read_text(), re.MULTILINE)
    assert found is not None
    return 1024 * int(found[1])


def measure(side: str, d_model: int, n_layer: int, batch: int, length: int) -> int:
    """Take a warm step, then the one that is measured; only in a process of its own.

    Raises:
        SystemExit: If this system does not tell, or there is no such side.
    """
    if side not in SIDES:
        raise SystemExit(f"peak_memory: the side must be one of {', '.join(SIDES)}, got {side!r}")
    network = make_network(d_model, n_layer)
    if side == "two-pass":
        network = two_pass_twin(network, mambapy_layer)
    TrainingStep(network, 1, _WARM_LENGTH)()
    return high_water(TrainingStep(network, batch, length))


if __name__ == "__main__":
    print(measure(sys.argv[1], *map(int, sys.argv[2:])))

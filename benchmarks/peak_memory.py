"""Peak memory of one training step, measured in a separate process.

Linux records the largest resident set of a process. The memory that is resident before the step,
after imports, compilation and a step on a few bases, is subtracted. ``python -m
benchmarks.peak_memory SIDE WIDTH LAYERS BATCH LENGTH`` prints the bytes.
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
    """Return the peak memory of a step in bytes, measured in a new process.

    Raises:
        SystemExit: If the process fails, with its message.
    """
    return in_fresh_process(__name__, side, *map(str, (d_model, n_layer, batch, length)))


def in_fresh_process(module: str, *arguments: str) -> int:
    """Run a module in a new process and return the number that it prints.

    Raises:
        SystemExit: If the process fails, with its message.
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
    """Return the peak memory of some work beyond what the process held before it.

    Raises:
        SystemExit: If the system is not Linux.
    """
    if not STATUS.exists():
        raise SystemExit("peak_memory reads /proc/self/status, which only Linux has")
    resting = status("VmRSS")
    work()
    return status("VmHWM") - resting


def status(field: str) -> int:
    """Return a size in bytes from the system's description of this process, such as VmHWM."""
    found = re.search(rf"^{field}:\s+(\d+) kB", STATUS.read_text(), re.MULTILINE)
    assert found is not None
    return 1024 * int(found[1])


def measure(side: str, d_model: int, n_layer: int, batch: int, length: int) -> int:
    """Run a warm-up step, then the step that is measured. Call it in a new process.

    Raises:
        SystemExit: If the system is not Linux or the side is unknown.
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

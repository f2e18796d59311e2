"""Shared parts of the benchmarks: interleaved timing, comparison of results, tables, JSON.

A ratio is computed from a pair of runs that follow each other directly, and its median is taken
over pairs, so that other load on the machine affects both sides. Results of all sides are compared
before anything is timed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NoReturn

import torch
from torch import Tensor

RESULTS = Path(__file__).parent / "results"
_PACKAGES = (
    *("seqdiff", "torch", "numpy", "numba", "pyfaidx", "tokenizers"),
    *("mambapy", "triton", "mamba-ssm", "causal-conv1d", "d3-dna"),
)

Seconds = dict[str, list[float]]


@dataclass(frozen=True)
class Side:
    """One of the things that are compared.

    Attributes:
        name: Its name in the table.
        work: The call that is timed.
        calls: Calls per pair, averaged to one measurement; several for fast calls.
    """

    name: str
    work: Callable[[], object]
    calls: int = 1


def interleave(sides: Sequence[Side], pairs: int, device: str = "cpu") -> Seconds:
    """Return the seconds per call of each side and pair; odd pairs run in reverse order."""
    measured: Seconds = {side.name: [] for side in sides}
    for side in sides:
        side.work()
    for pair in range(pairs):
        for side in reversed(sides) if pair % 2 else sides:
            wait(device)
            start = time.perf_counter()
            for _ in range(side.calls):
                side.work()
            wait(device)
            measured[side.name].append((time.perf_counter() - start) / side.calls)
    return measured


def wait(device: str) -> None:
    """Wait until a CUDA device has finished its work."""
    if device == "cuda":
        torch.cuda.synchronize()


@dataclass(frozen=True)
class Ratio:
    """Ratio of the times of two sides, pair by pair.

    Attributes:
        ours: Seconds per call of the side that is judged, one per pair.
        theirs: Seconds per call of the side that it is compared with.
    """

    ours: list[float]
    theirs: list[float]

    @property
    def pairs(self) -> list[float]:
        """Return the ratio of each pair."""
        return [theirs / ours for ours, theirs in zip(self.ours, self.theirs, strict=True)]

    @property
    def median(self) -> float:
        """Return the median over pairs."""
        return statistics.median(self.pairs)

    @property
    def seconds(self) -> float:
        """Return the median time of our side."""
        return statistics.median(self.ours)

    @property
    def their_seconds(self) -> float:
        """Return the median time of the other side."""
        return statistics.median(self.theirs)

    def __str__(self) -> str:
        """Format the median and the range over pairs."""
        return f"{self.median:.2f}x ({min(self.pairs):.2f} to {max(self.pairs):.2f})"

    def record(self) -> dict[str, object]:
        """Return the record for the JSON file."""
        return {
            "seconds": self.seconds,
            "their_seconds": self.their_seconds,
            "ratio": self.median,
            "ratio_of_each_pair": self.pairs,
        }


def require_same(
    what: str, ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor], tolerance: float
) -> float:
    """Compare tensors by their largest difference, relative to their largest value.

    Returns:
        The largest relative difference.

    Raises:
        SystemExit: If one exceeds the tolerance, or a tensor is missing on one side.
    """
    if ours.keys() != theirs.keys():
        one_sided = ", ".join(sorted(ours.keys() ^ theirs.keys()))
        raise SystemExit(f"{what}: only one side has {one_sided}; nothing was timed")
    worst = 0.0
    for name, tensor in ours.items():
        other = theirs[name].to(tensor.device, tensor.dtype).reshape(tensor.shape)
        scale = other.abs().max().clamp_min(torch.finfo(torch.float32).tiny)
        gap = float((tensor - other).abs().max() / scale)
        if not gap <= tolerance:
            raise SystemExit(
                f"{what}: the two sides differ in {name} by {gap:.1e} of its largest value, "
                f"more than {tolerance:.0e}; nothing was timed"
            )
        worst = max(worst, gap)
    return worst


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print columns, the first aligned left and the others right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in (header, *rows):
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        print("  ".join(cells).rstrip())


def machine(device: str = "cpu") -> dict[str, object]:
    """Describe the hardware and versions that the figures depend on."""
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    described: dict[str, object] = {"device": _cpu_name(), "threads": torch.get_num_threads()}
    if device == "cuda":
        described["device"] = torch.cuda.get_device_name()
        described["cuda"] = torch.version.cuda
    else:
        described["cores"] = os.cpu_count()
        described["vectors"] = torch.backends.cpu.get_cpu_capability()
        described["load_average"] = os.getloadavg()[0]
        described["omp_wait_policy"] = os.environ.get("OMP_WAIT_POLICY", "unset")
    return {**described, "versions": versions}


def _cpu_name() -> str:
    described = Path("/proc/cpuinfo")
    if described.exists():
        found = re.search(r"^model name\s*:\s*(.+)$", described.read_text(), re.MULTILINE)
        if found:
            return found[1].strip()
    return platform.processor() or platform.machine()


def positive(text: str) -> int:
    """Parse an integer of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def refuse(message: str) -> NoReturn:
    """Print one line and exit with code 2, as for a wrong argument."""
    print(message, file=sys.stderr)
    raise SystemExit(2)


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options of every benchmark."""
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("--pairs", type=positive, default=5, help="interleaved repeats")
    parser.add_argument(
        "--json",
        type=Path,
        nargs="?",
        const=RESULTS,
        help="also write the results to this file or folder; without a name, benchmarks/results",
    )
    return parser


def begin(device: str = "cpu") -> dict[str, object]:
    """Describe the machine on the terminal, and return the description for the JSON file."""
    described = machine(device)
    versions = described["versions"]
    assert isinstance(versions, dict)
    shown = {**described, **versions}
    print(", ".join(f"{name} {value}" for name, value in shown.items() if name != "versions"))
    return described


def write_json(
    path: Path | None,
    benchmark: str,
    described: Mapping[str, object],
    settings: Mapping[str, object],
    results: object,
) -> None:
    """Write the measurements with machine and date; do nothing without a path."""
    if path is None:
        return
    if path == RESULTS or path.is_dir():
        device = re.sub(r"[^a-z0-9]+", "-", str(described["device"]).lower()).strip("-")
        path = path / f"{benchmark}-{device}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "benchmark": benchmark,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": described,
        "settings": settings,
        "results": results,
    }
    path.write_text(json.dumps(document, indent=2) + "\n")
    print(f"written to {path}")

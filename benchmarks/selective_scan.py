"""The CPU scan beside mambapy's parallel scan, in one run: ``python -m benchmarks.selective_scan``.

Both sides compute ``y = C h + D u`` from the same u, delta, A, B, C and D, and their outputs and
gradients are compared before anything is timed. Repeats are interleaved, and the ratio is the
median over pairs. The scan is timed on u and delta with channels adjacent in memory, as our layers
hand them over (``channels_last``), and with positions adjacent (``channels_first``).
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import torch
from mambapy.pscan import pscan
from torch import Tensor

from seqdiff.ops.selective_scan import selective_scan

Inputs = tuple[Tensor, ...]


def inputs(batch: int, channels: int, length: int, states: int) -> Inputs:
    """Random u, delta (B, D, L), A (D, N), B, C (B, N, L), D (D,), channels adjacent."""
    torch.manual_seed(0)
    u = torch.randn(batch, length, channels).mT
    delta = (torch.rand(batch, length, channels) * 0.1 + 0.001).mT
    A = -torch.arange(1.0, states + 1).repeat(channels, 1)
    B, C = (torch.randn(batch, length, states).mT for _ in range(2))
    return u, delta, A, B, C, torch.ones(channels)


def parallel_scan(u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor) -> Tensor:
    """The same numbers through mambapy.pscan, whose layout is (B, L, D, N)."""
    step = delta.mT[..., None]
    states = pscan(torch.exp(step * A), step * B.mT[:, :, None] * u.mT[..., None])
    return ((states @ C.mT[..., None])[..., 0] + D * u.mT).mT


def forward(scan: Callable[..., Tensor], values: Inputs) -> list[Tensor]:
    """The output alone."""
    with torch.no_grad():
        return [scan(*values)]


def forward_backward(scan: Callable[..., Tensor], values: Inputs) -> list[Tensor]:
    """Output and the gradient of every input."""
    leaves = [v.detach().requires_grad_() for v in values]
    out = scan(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, torch.ones_like(out))]


def seconds(work: Callable[[], object], repeats: int) -> float:
    """The median time of a few calls."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def compare(values: Inputs, pairs: int) -> dict[str, dict[str, float]]:
    """Milliseconds of both sides and their ratio, by pass and layout."""
    table = {}
    first = tuple(v.contiguous() for v in values)
    for name, work in (("forward", forward), ("forward+backward", forward_backward)):
        for ours, theirs in zip(
            work(selective_scan, values), work(parallel_scan, values), strict=True
        ):
            gap = (ours - theirs).abs().max() / theirs.abs().max()
            if gap > 1e-4:
                raise SystemExit(f"{name}: the two sides differ by {gap:.1e}; nothing was timed")
        rows = []
        for _ in range(pairs):
            row = [seconds(lambda w=work: w(parallel_scan, values), 1)]
            row += [seconds(lambda w=work, v=v: w(selective_scan, v), 10) for v in (values, first)]
            rows.append(row)
        for column, layout in enumerate(("channels_last", "channels_first"), start=1):
            table[f"{name}, {layout}"] = {
                "ours_ms": 1e3 * statistics.median(row[column] for row in rows),
                "mambapy_ms": 1e3 * statistics.median(row[0] for row in rows),
                "ratio": statistics.median(row[0] / row[column] for row in rows),
            }
    return table


def machine() -> dict[str, object]:
    """What the figures depend on."""
    model = platform.processor() or platform.machine()
    described = Path("/proc/cpuinfo")
    if described.exists():
        names = [s for s in described.read_text().splitlines() if s.startswith("model name")]
        model = names[0].split(":")[1].strip() if names else model
    packages = {name: version(name) for name in ("torch", "numba", "mambapy")}
    capability = torch.backends.cpu.get_cpu_capability()
    return {"cpu": model, "vectors": capability, "threads": torch.get_num_threads(), **packages}


def main() -> None:
    """Print the table and, if asked, write it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("batch", 4), ("channels", 256), ("length", 1024), ("states", 16)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--pairs", type=int, default=5, help="interleaved repeats")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    options = parser.parse_args()
    shape = {name: getattr(options, name) for name in ("batch", "channels", "length", "states")}
    described = machine()
    print(", ".join(f"{k} {v}" for k, v in described.items()))
    print("float32,", ", ".join(f"{k} {v}" for k, v in shape.items()))
    table = compare(inputs(**shape), options.pairs)
    print(f"{'':34}{'ours ms':>10}{'mambapy ms':>12}{'ratio':>9}")
    for name, row in table.items():
        print(f"{name:34}{row['ours_ms']:10.2f}{row['mambapy_ms']:12.1f}{row['ratio']:8.1f}x")
    if options.json is not None:
        result = {"machine": described, "shape": shape, "results": table}
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()

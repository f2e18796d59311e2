"""A training step of Caduceus-Ph with our layer, compared with the published two-pass layer.

A step is forward, bound, backward and AdamW on one batch. On the CPU the other side runs mambapy's
Mamba layer on the row and on the reversed row. ``--device cuda`` compares our layer with the Triton
kernels, our layer with mamba_ssm's scan, and two ``mamba_ssm.Mamba`` layers. All sides start from
the same weights, and their losses and gradients are compared before anything is timed. ``--sides``
also takes ``bf16-mixed`` on the CPU, our layer under autocast to bfloat16, and ``ssd``, the network
of the same width with the mixer of Mamba-2, which is another model.
Run ``python -m benchmarks.caduceus_step``.
"""

from __future__ import annotations

import importlib
import math
import re
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable
from dataclasses import dataclass

import torch

from benchmarks.common import (
    Ratio,
    Side,
    begin,
    interleave,
    make_parser,
    positive,
    print_table,
    refuse,
    require_same,
    write_json,
)
from benchmarks.profiling import copy_bandwidth, least_bytes, profile_step
from benchmarks.training_step import TrainingStep, make_network
from benchmarks.two_pass import mamba_ssm_layer, mambapy_layer, two_pass_twin
from seqdiff.backbones import Caduceus
from seqdiff.backbones.mamba import Mixer

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
CUDA_BATCH_TOKENS = 1 << 17


@dataclass(frozen=True)
class Shape:
    """Width and depth of the network and the length of a row."""

    d_model: int
    n_layer: int
    length: int

    def __str__(self) -> str:
        """Return the shape as the command line writes it."""
        return f"{self.d_model}x{self.n_layer}x{self.length}"


def shape(text: str) -> Shape:
    """Read ``WIDTHxLAYERSxLENGTH``."""
    if re.fullmatch(r"[1-9]\d*(x[1-9]\d*){2}", text) is None:
        raise ArgumentTypeError(f"must be WIDTHxLAYERSxLENGTH as in 118x4x1024, got {text!r}")
    return Shape(*map(int, text.split("x")))


SHAPES = {
    "cpu": [Shape(118, 4, 1024)],
    "cuda": [Shape(118, 4, 1024), Shape(256, 4, 1024), Shape(256, 8, 131_072)],
}


def _ours(backend: str, mixer: Mixer = "mamba") -> Callable[[Shape], Caduceus]:
    return lambda s: make_network(s.d_model, s.n_layer, backend=backend, mixer=mixer)


SIDES: dict[str, dict[str, Callable[[Shape], Caduceus]]] = {
    "cpu": {
        "ours": _ours("auto"),
        "two-pass": lambda s: two_pass_twin(_ours("auto")(s), mambapy_layer),
        "bf16-mixed": _ours("auto"),
        "ssd": _ours("auto", "ssd"),
    },
    "cuda": {
        "triton": _ours("triton"),
        "mamba_ssm": _ours("mamba_ssm"),
        "two-pass": lambda s: two_pass_twin(_ours("auto")(s), mamba_ssm_layer),
        "ssd": _ours("auto", "ssd"),
    },
}
OTHER_NETWORK = "ssd"
"""The side that is another network, of the same size; its results are not compared."""
MIXED = "bf16-mixed"
"""The side that computes matrix products in bfloat16."""


@dataclass(frozen=True)
class Row:
    """One side at one shape, with the ratio of its time to the first side's."""

    shape: Shape
    batch: int
    side: str
    ratio: Ratio
    gap: float
    peak_bytes: int | None
    bytes_per_second: float

    @property
    def tokens_per_second(self) -> float:
        """Return the throughput of this side."""
        return self.batch * self.shape.length / self.ratio.their_seconds

    def cells(self, bandwidth: float | None) -> tuple[str, ...]:
        """Return the cells of the printed table."""
        first = (str(self.shape), str(self.batch), self.side)
        speed = (f"{1e3 * self.ratio.their_seconds:.1f}", f"{self.tokens_per_second:,.0f}")
        cells = (*first, *speed, str(self.ratio), f"{self.gap:.0e}")
        if bandwidth is None or self.peak_bytes is None:
            return cells
        reached = f"{self.bytes_per_second / 1e9:.0f} ({self.bytes_per_second / bandwidth:.0%})"
        return (*cells, f"{self.peak_bytes / 2**30:.2f}", reached)

    def record(self) -> dict[str, object]:
        """Return the record for the JSON file."""
        return {
            "shape": str(self.shape),
            "batch": self.batch,
            "side": self.side,
            "seconds": self.ratio.their_seconds,
            "tokens_per_second": self.tokens_per_second,
            "times_the_first_side": self.ratio.median,
            "of_each_pair": self.ratio.pairs,
            "largest_gap": self.gap,
            "peak_bytes": self.peak_bytes,
            "bytes_per_second": self.bytes_per_second,
        }


def require_kernels(sides: list[str]) -> None:
    """Check that the CUDA sides can run here.

    Raises:
        SystemExit: If one cannot, with code 2 and one line.
    """
    if not torch.cuda.is_available():
        refuse("caduceus_step: --device cuda needs a CUDA device, and PyTorch sees none")
    modules = ["triton"] if "triton" in sides else []
    if {"mamba_ssm", "two-pass"} & set(sides):
        modules += ["mamba_ssm", "causal_conv1d"]
    for module in modules:
        try:
            importlib.import_module(module)
        except (ImportError, OSError) as error:
            refuse(
                f"caduceus_step: {module} cannot be imported ({str(error).splitlines()[0]}); run "
                "`pip install -e '.[cuda]'`, or leave out what needs it, as in --sides triton"
            )


def peak_bytes(step: TrainingStep) -> int:
    """Return the peak CUDA memory of a step beyond what is allocated between steps."""
    step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    resting = torch.cuda.memory_allocated()
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - resting


def compare(at: Shape, options: Namespace) -> tuple[list[Row], dict[str, object] | None]:
    """Check and time every side at one shape, and profile the first if asked."""
    device, dtype, makers = options.device, DTYPES[options.dtype], SIDES[options.device]
    tokens = CUDA_BATCH_TOKENS if device == "cuda" else 4 * at.length
    batch = options.batch or max(1, tokens // at.length)
    steps = {}
    for side in options.sides:
        own = torch.bfloat16 if side == MIXED else dtype
        steps[side] = TrainingStep(makers[side](at), batch, at.length, device=device, dtype=own)
    first = options.sides[0]
    gaps = check(steps, at, options)
    seconds = interleave([Side(n, s) for n, s in steps.items()], options.pairs, device)
    moved = least_bytes(steps[first].network.config, batch * at.length, dtype.itemsize)
    rows = []
    for side, step in steps.items():
        ratio = Ratio(seconds[first], seconds[side])
        peak = peak_bytes(step) if device == "cuda" else None
        rows.append(Row(at, batch, side, ratio, gaps[side], peak, moved / ratio.their_seconds))
    profiled = None
    if options.profile:
        print(f"{at}, {first}:")
        profiled = {"shape": str(at), "side": first, **profile_step(steps[first], device)}
    return rows, profiled


def tolerance(dtype: str, length: int) -> float:
    """Return the largest allowed relative difference of gradients.

    Gradients of biases are sums over the row that nearly cancel. With eight layers in float32 ours
    are within 5e-5 of float64 at length 1,024 and within 2e-3 at 16,384.
    """
    return 1e-1 if dtype == "bfloat16" else 1e-3 * max(1.0, length / 4096)


def check(steps: dict[str, TrainingStep], at: Shape, options: Namespace) -> dict[str, float]:
    """Compare losses and gradients with the first side's, and on CUDA with the CPU's."""
    names = list(steps)
    gaps = {names[0]: 0.0}
    if options.device == "cuda":
        small = (2, min(at.length, 512))
        short, by_cpu = (
            TrainingStep(SIDES[d][s](at), *small, device=d, dtype=k).numbers()
            for d, s, k in (
                ("cuda", names[0], DTYPES[options.dtype]),
                ("cpu", "ours", torch.float32),
            )
        )
        gaps[names[0]] = require_same(
            f"{at}, CUDA and CPU", short, by_cpu, tolerance(options.dtype, small[1])
        )
    numbers = steps[names[0]].numbers()
    for name in names[1:]:
        if name == OTHER_NETWORK:
            gaps[name] = math.nan
            continue
        what = f"{at}, {names[0]} and {name}"
        theirs = steps[name].numbers()
        dtype = "bfloat16" if MIXED in (names[0], name) else options.dtype
        gaps[name] = require_same(what, numbers, theirs, tolerance(dtype, at.length))
    return gaps


def read_options(arguments: list[str] | None) -> Namespace:
    """Parse the options and fill in those that depend on the device."""
    parser = make_parser(__doc__)
    parser.add_argument("--device", choices=sorted(SIDES), default="cpu")
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="float32")
    parser.add_argument("--shape", type=shape, nargs="+", help="WIDTHxLAYERSxLENGTH")
    parser.add_argument(
        "--batch", type=positive, help="rows; 4 on the CPU, 131,072 bases in all on CUDA"
    )
    parser.add_argument("--sides", nargs="+", help="the first is the one that is judged")
    parser.add_argument(
        "--profile", action="store_true", help="print the ten ops with most time of their own"
    )
    options = parser.parse_args(arguments)
    known = SIDES[options.device]
    options.sides = options.sides or [side for side in known if side not in (OTHER_NETWORK, MIXED)]
    options.shape = options.shape or SHAPES[options.device]
    unknown = [side for side in options.sides if side not in known]
    if unknown:
        parser.error(f"--sides on {options.device} are {', '.join(known)}; got {unknown[0]!r}")
    return options


def main(arguments: list[str] | None = None) -> None:
    """Print the table and write it as JSON if a path is given."""
    options = read_options(arguments)
    if options.device == "cuda":
        require_kernels(options.sides)
    described = begin(options.device)
    bandwidth = copy_bandwidth("cuda") if options.device == "cuda" else None
    header = ("shape", "batch", "side", "ms", "tokens/s", f"of {options.sides[0]}'s time", "gap")
    if bandwidth is not None:
        print(f"{options.dtype}, copies at {bandwidth / 1e9:.0f} GB/s")
        header = (*header, "peak GiB", "GB/s (of a copy's)")
    compared = [compare(at, options) for at in options.shape]
    rows = [row for found, _ in compared for row in found]
    print_table(header, [row.cells(bandwidth) for row in rows])
    settings = {
        "dtype": options.dtype,
        "pairs": options.pairs,
        "copy_bytes_per_second": bandwidth,
        "profiles": [profiled for _, profiled in compared if profiled is not None],
    }
    name = f"caduceus_step-{options.dtype}" if options.device == "cuda" else "caduceus_step"
    write_json(options.json, name, described, settings, [row.record() for row in rows])


if __name__ == "__main__":
    main()

"""Matrix products of linear layers on the CPU: `seqdiff.ops.linear` against PyTorch's.

A pair is a forward and a backward pass of one layer with gradients of input and weight, as in
training; with ``--forward``, a forward pass without gradients, as in sampling. Outputs and
gradients are compared before anything is timed. Run ``python -m benchmarks.linear``.
"""

from __future__ import annotations

import re
from argparse import ArgumentTypeError, Namespace
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.common import (
    Ratio,
    Side,
    begin,
    interleave,
    make_parser,
    print_table,
    require_same,
    write_json,
)
from seqdiff.ops.linear import linear

SIDES = {"ours": linear, "pytorch": F.linear}
SHAPES = ("4096x118x472", "4096x236x118", "4096x192x768", "4096x768x192", "1024x768x3072")
_TOLERANCE = 1e-5


def shape(text: str) -> tuple[int, ...]:
    """Read ``ROWSxINxOUT``."""
    if re.fullmatch(r"[1-9]\d*(x[1-9]\d*){2}", text) is None:
        raise ArgumentTypeError(f"must be ROWSxINxOUT as in 4096x118x472, got {text!r}")
    return tuple(map(int, text.split("x")))


class Layer:
    """One layer of one side.

    Args:
        side: ``ours`` or ``pytorch``.
        at: Rows, columns of the input and columns of the output.
        backward: Whether to compute gradients.
    """

    def __init__(self, side: str, at: tuple[int, ...], *, backward: bool) -> None:
        rows, columns, outputs = at
        random = torch.Generator().manual_seed(0)
        self.product = SIDES[side]
        self.backward = backward
        self.x = torch.randn(rows, columns, generator=random).requires_grad_(backward)
        self.weight = torch.randn(outputs, columns, generator=random).requires_grad_(backward)
        self.slopes = torch.randn(rows, outputs, generator=random)

    def __call__(self) -> dict[str, Tensor]:
        """Return the output and the gradients."""
        out = self.product(self.x, self.weight)
        if not self.backward:
            return {"out": out}
        dx, dw = torch.autograd.grad(out, (self.x, self.weight), self.slopes)
        return {"out": out.detach(), "dx": dx, "dw": dw}


@dataclass(frozen=True)
class Row:
    """Times of both sides at one shape."""

    shape: tuple[int, ...]
    products: int
    ratio: Ratio
    gap: float

    @property
    def rates(self) -> tuple[float, float]:
        """Return operations per second of our side and of the other."""
        rows, columns, outputs = self.shape
        flops = 2 * self.products * rows * columns * outputs
        return flops / self.ratio.seconds, flops / self.ratio.their_seconds

    def cells(self) -> tuple[str, ...]:
        """Return the cells of the printed table."""
        rates = (f"{rate / 1e9:.0f}" for rate in self.rates)
        return ("x".join(map(str, self.shape)), *rates, str(self.ratio), f"{self.gap:.0e}")

    def record(self) -> dict[str, object]:
        """Return the record for the JSON file."""
        ours, theirs = self.rates
        return {
            "shape": "x".join(map(str, self.shape)),
            **self.ratio.record(),
            "flops_per_second": ours,
            "their_flops_per_second": theirs,
            "largest_gap": self.gap,
        }


def measure(at: tuple[int, ...], options: Namespace) -> Row:
    """Check and time both sides at one shape."""
    layers = {side: Layer(side, at, backward=not options.forward) for side in SIDES}
    ours, theirs = (layer() for layer in layers.values())
    gap = require_same("x".join(map(str, at)), ours, theirs, _TOLERANCE)
    sides = [Side(side, layer, calls=5) for side, layer in layers.items()]
    seconds = interleave(sides, options.pairs)
    return Row(at, len(ours), Ratio(seconds["ours"], seconds["pytorch"]), gap)


def main(arguments: list[str] | None = None) -> None:
    """Print the table and write it as JSON if a path is given."""
    parser = make_parser(__doc__)
    parser.add_argument("--shape", type=shape, nargs="+", default=[*map(shape, SHAPES)])
    parser.add_argument("--forward", action="store_true", help="time the forward pass alone")
    options = parser.parse_args(arguments)
    described = begin()
    rows = [measure(at, options) for at in options.shape]
    header = ("rows x in x out", "ours GFLOP/s", "PyTorch's", "ratio (over pairs)", "gap")
    print_table(header, [row.cells() for row in rows])
    settings = {"forward": options.forward, "pairs": options.pairs}
    name = "linear-forward" if options.forward else "linear"
    write_json(options.json, name, described, settings, [row.record() for row in rows])


if __name__ == "__main__":
    main()

"""A training step with a large vocabulary, with predictions at masked tokens only or everywhere.

Both sides use one transformer, one batch and one draw of masks, and compute the same loss.
``counted`` is what training does: it evaluates the head at masked positions. ``everywhere``
normalises the scores of all positions, copies the visible tokens and takes the terms of the bound
from the result. Losses and gradients are compared before anything is timed. Peak memory is measured
in a separate process. Run ``python -m benchmarks.vocabulary``.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.common import (
    Ratio,
    Side,
    begin,
    interleave,
    make_parser,
    positive,
    print_table,
    require_same,
    write_json,
)
from benchmarks.peak_memory import high_water, in_fresh_process
from benchmarks.transformer_step import GPT2_VOCABULARY, shape
from benchmarks.transformer_training import Shape, TransformerStep, make_network
from seqdiff.denoiser import Denoiser
from seqdiff.process import Absorbing
from seqdiff.types import Batch, Inputs

SMALL = Shape(256, 2, 4, 512)
SIDES = ("counted", "everywhere")
_TOLERANCE = 1e-4


class Everywhere(Denoiser):
    """Computes costs from the distributions of all positions."""

    def nats(self, inputs: Inputs, x0: Tensor, where: Tensor) -> Tensor:
        """See ``Denoiser``; here it is called for masked positions only."""
        at_x0 = self(inputs).gather(-1, x0[..., None]).squeeze(-1)
        return torch.where(where, -at_x0, 0.0)


def make_step(side: str, at: Shape, vocabulary: int, batch: int) -> TransformerStep:
    """Return a step of one side, without dropout."""
    network = make_network(at, vocabulary, 0.0)
    step = TransformerStep(
        network, batch, at.length, device="cpu", dtype=torch.float32, compiled=False
    )
    if side == "everywhere":
        step.denoiser = Everywhere(network, Absorbing(vocabulary))
    return step


def step_memory(side: str, at: Shape, vocabulary: int, batch: int) -> int:
    """Return the peak memory of a step of one side beyond what is kept between steps."""
    step = make_step(side, at, vocabulary, batch)
    rows = step.batch
    step.batch = Batch(rows.tokens[:, :1], rows.loss_mask[:, :1], rows.index)
    step()
    step.batch = rows
    return high_water(step)


@dataclass(frozen=True)
class Row:
    """One side at one shape, with the ratio of its time to the first side's."""

    shape: Shape
    side: str
    scored: int
    ratio: Ratio
    peak_bytes: int
    gap: float

    def cells(self) -> tuple[str, ...]:
        """Return the cells of the printed table."""
        first = (str(self.shape), self.side, str(self.scored))
        speed = (f"{1e3 * self.ratio.their_seconds:.0f}", str(self.ratio))
        return (*first, *speed, f"{self.peak_bytes / 2**20:.0f}", f"{self.gap:.0e}")

    def record(self) -> dict[str, object]:
        """Return the record for the JSON file."""
        return {
            "shape": str(self.shape),
            "side": self.side,
            "scored_positions": self.scored,
            "seconds": self.ratio.their_seconds,
            "times_the_first_side": self.ratio.median,
            "of_each_pair": self.ratio.pairs,
            "peak_bytes": self.peak_bytes,
            "largest_gap": self.gap,
        }


def compare(at: Shape, options: Namespace) -> list[Row]:
    """Check and time both sides at one shape, and measure the memory of each."""
    given = (at, options.vocabulary, options.batch)
    steps = {side: make_step(side, *given) for side in SIDES}
    ours, theirs = (step.numbers() for step in steps.values())
    gap = require_same(f"{at}, {' and '.join(SIDES)}", ours, theirs, _TOLERANCE)
    seconds = interleave([Side(side, step) for side, step in steps.items()], options.pairs)
    return [
        Row(
            shape=at,
            side=side,
            scored=step.scored,
            ratio=Ratio(seconds[SIDES[0]], seconds[side]),
            peak_bytes=in_fresh_process("benchmarks.vocabulary", side, *map(str, given)),
            gap=gap,
        )
        for side, step in steps.items()
    ]


def main(arguments: list[str] | None = None) -> None:
    """Print the table and write it as JSON if a path is given."""
    parser = make_parser(__doc__)
    parser.add_argument("--shape", type=shape, nargs="+", default=[SMALL])
    parser.add_argument("--vocabulary", type=positive, default=GPT2_VOCABULARY)
    parser.add_argument("--batch", type=positive, default=2)
    options = parser.parse_args(arguments)
    described = begin()
    rows = [row for at in options.shape for row in compare(at, options)]
    print(f"vocabulary {options.vocabulary:,}, {options.batch} rows")
    header = ("shape", "side", "scored", "ms", f"of {SIDES[0]}'s time", "peak MiB", "gap")
    print_table(header, [row.cells() for row in rows])
    settings = {name: getattr(options, name) for name in ("vocabulary", "batch", "pairs")}
    records = [row.record() for row in rows]
    write_json(options.json, "vocabulary", described, settings, records)


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in SIDES:  # in the process that compare starts
        print(step_memory(sys.argv[1], shape(sys.argv[2]), *map(int, sys.argv[3:])))
    else:
        main()

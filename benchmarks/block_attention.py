"""Cost of the empty parts of block diffusion's attention mask in a training step, by block size.

A step is forward, cross-entropy at the masked tokens and backward of ``Transformer.block_logits``.
It is measured with one dense mask over [x_t ; x0], with the structured mask, and with
FlexAttention. FlexAttention has no backward on the CPU, so there only its compiled forward pass is
compared. Logits and gradients are compared before anything is timed. Peak memory is measured in a
separate process for each step. Run ``python -m benchmarks.block_attention``.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from dataclasses import dataclass
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor

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
from benchmarks.peak_memory import high_water, in_fresh_process
from benchmarks.transformer_step import shape
from benchmarks.transformer_training import Shape, make_network
from seqdiff.backbones import Transformer
from seqdiff.backbones.transformer import (
    Pass,
    block_diffusion,
    dense_pass,
    flex_pass,
    plain_pass,
    structured_pass,
)
from seqdiff.backbones.transformer import network as transformer
from seqdiff.types import Inputs

TOLERANCE = 1e-4
BASELINE = "dense"
SMALL = Shape(768, 2, 12, 1024)
WAYS: dict[str, Pass] = {"dense": dense_pass, "structured": structured_pass, "flex": flex_pass}
ELSEWHERE = {"cpu": "flex", "cuda": "structured"}
"""The way that cannot be trained on a device."""


class Work:
    """A network and a batch with half of the tokens masked.

    Args:
        network: The network; its gradients are overwritten.
        batch: Rows.
        length: Tokens of a row.
        block_size: Tokens of a block.
        device: ``cpu`` or ``cuda``. Activations are in bfloat16 on CUDA.
    """

    def __init__(
        self, network: Transformer, batch: int, length: int, block_size: int, device: str
    ) -> None:
        self.network, self.block_size = network.to(device), block_size
        source = torch.Generator().manual_seed(0)
        self.x0 = torch.randint(network.config.num_logits, (batch, length), generator=source)
        self.x0 = self.x0.to(device)
        self.where = (torch.rand(batch, length, generator=source) < 0.5).to(device)
        self.x_t = self.x0.masked_fill(self.where, network.config.num_logits)
        self.autocast = torch.autocast(device, torch.bfloat16, enabled=device == "cuda")

    def logits(self, way: str) -> Tensor:
        """Return the logits of the masked tokens."""
        chosen = WAYS[way] if way == BASELINE or self.block_size < self.x0.shape[1] else plain_pass
        with mock.patch.object(transformer, "choose_pass", lambda _pair: chosen), self.autocast:
            inputs = Inputs(self.x_t)
            return self.network.block_logits(inputs, self.x0, self.block_size, self.where).float()

    def forward(self, way: str) -> Tensor:
        """Return the logits without recording a graph."""
        with torch.no_grad():
            return self.logits(way)

    def step(self, way: str) -> Tensor:
        """Run forward and backward."""
        self.network.zero_grad()
        logits = self.logits(way)
        F.cross_entropy(logits, self.x0[self.where]).backward()
        return logits.detach()

    def numbers(self, way: str) -> dict[str, Tensor]:
        """Return the logits and every gradient."""
        found = {"logits": self.step(way)}
        named = self.network.named_parameters()
        return found | {n: p.grad.clone() for n, p in named if p.grad is not None}


@dataclass(frozen=True)
class Row:
    """Measurements of one kind of attention at one block size.

    Attributes:
        block_size: Tokens of a block.
        what: ``step`` or ``forward``.
        way: Kind of attention.
        times: Times of this kind and of the dense mask.
        gap: Largest difference from the results with the dense mask.
        peak_bytes: Peak memory of one step.
    """

    block_size: int
    what: str
    way: str
    times: Ratio
    gap: float
    peak_bytes: int | None

    def cells(self) -> tuple[str, ...]:
        """Return the cells of the printed table."""
        return (
            f"{self.block_size} {self.what}",
            self.way,
            f"{1e3 * self.times.seconds:.0f}",
            str(self.times),
            "-" if self.peak_bytes is None else f"{self.peak_bytes / 2**20:.0f}",
            f"{self.gap:.0e}",
        )

    def record(self) -> dict[str, object]:
        """Return the record for the JSON file."""
        about = {"block_size": self.block_size, "what": self.what, "way": self.way}
        return {
            **about,
            **self.times.record(),
            "largest_gap": self.gap,
            "peak_bytes": self.peak_bytes,
        }


def measure(block_size: int, options: Namespace) -> list[Row]:
    """Check and time every kind of attention at one block size."""
    at, device = options.shape, options.device
    network = make_network(at, options.vocabulary, 0.0)
    work = Work(network, options.batch, at.length, block_size, device)
    limit = 0.1 if device == "cuda" else TOLERANCE
    trained = [way for way in WAYS if way != ELSEWHERE[device]]
    wanted = work.numbers(BASELINE)
    gaps = {
        way: require_same(f"{block_size}, {way} and {BASELINE}", work.numbers(way), wanted, limit)
        for way in trained
    }
    sides = [Side(way, lambda way=way: work.step(way)) for way in trained]
    seconds = interleave(sides, options.pairs, device)
    rows = [
        Row(
            *(block_size, "step", way, Ratio(seconds[way], seconds[BASELINE]), gaps[way]),
            peak_bytes=step_memory(way, block_size, options),
        )
        for way in trained
    ]
    return rows if device == "cuda" else rows + forward_rows(work, wanted["logits"], options)


def forward_rows(work: Work, wanted: Tensor, options: Namespace) -> list[Row]:
    """Check and time the forward pass of every kind of attention on the CPU."""
    rows = []
    with mock.patch.object(
        block_diffusion, "flex_attention", torch.compile(block_diffusion.flex_attention)
    ):
        for way in WAYS:
            what = f"{work.block_size}, forward of {way} and {BASELINE}"
            found = {"logits": work.forward(way)}
            rows.append((way, require_same(what, found, {"logits": wanted}, TOLERANCE)))
        sides = [Side(way, lambda way=way: work.forward(way)) for way in WAYS]
        seconds = interleave(sides, options.pairs)
    return [
        Row(work.block_size, "forward", way, Ratio(seconds[way], seconds[BASELINE]), gap, None)
        for way, gap in rows
    ]


def step_memory(way: str, block_size: int, options: Namespace) -> int:
    """Return the peak memory of a step in bytes; on the CPU it is measured in a new process."""
    if options.device == "cuda":
        network = make_network(options.shape, options.vocabulary, 0.0)
        work = Work(network, options.batch, options.shape.length, block_size, "cuda")
        work.step(way)
        torch.cuda.reset_peak_memory_stats()
        resting = torch.cuda.memory_allocated()
        work.step(way)
        return torch.cuda.max_memory_allocated() - resting
    sizes = map(str, (options.shape, block_size, options.vocabulary, options.batch))
    return in_fresh_process("benchmarks.block_attention", way, *sizes)


def fresh_step(way: str, at: Shape, block_size: int, vocabulary: int, batch: int) -> int:
    """Run a warm-up step on few tokens, then the step whose memory is measured."""
    network = make_network(at, vocabulary, 0.0)
    Work(network, 1, min(16, at.length), 4, "cpu").step(way)
    work = Work(network, batch, at.length, block_size, "cpu")
    return high_water(lambda: work.step(way))


def main(arguments: list[str] | None = None) -> None:
    """Print the table and write it as JSON if a path is given."""
    parser = make_parser(__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--shape", type=shape, default=SMALL, help=f"by default {SMALL}")
    parser.add_argument("--block", type=positive, nargs="+", help="4, 16, 64 and the whole row")
    parser.add_argument("--vocabulary", type=positive, default=512)
    parser.add_argument("--batch", type=positive, default=1)
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        refuse("block_attention: --device cuda needs a CUDA device, and PyTorch sees none")
    described = begin(options.device)
    sizes = options.block or [4, 16, 64, options.shape.length]
    if max(sizes) > options.shape.length:
        refuse(
            f"block_attention: --block must be at most the length {options.shape.length}, got "
            f"{max(sizes)}"
        )
    rows = [row for size in sizes for row in measure(size, options)]
    print(f"{options.shape}, {options.batch} rows, vocabulary {options.vocabulary:,}", end="")
    print("; flex has no backward on the CPU" if options.device == "cpu" else "; bfloat16")
    print_table(
        ("block", "way", "ms", f"{BASELINE} / this, over pairs", "peak MiB", "gap"),
        [row.cells() for row in rows],
    )
    settings = {
        "shape": str(options.shape),
        **{name: getattr(options, name) for name in ("vocabulary", "batch", "pairs", "device")},
    }
    records = [row.record() for row in rows]
    write_json(options.json, "block_attention", described, settings, records)


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in WAYS:  # in the process that step_memory starts
        way, at, *sizes = sys.argv[1:]
        print(fresh_step(way, shape(at), *map(int, sizes)))
    else:
        main()

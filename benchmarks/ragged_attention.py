"""Cost of padding in a transformer's training step on rows of different lengths.

A step is forward, cross-entropy at the real tokens and backward. It is measured with the padding
kept and masked in attention, and with several ways to remove it. If padding is removed, only real
tokens pass through norms, projections, MLPs and the head. The ways to remove it differ in how they
compute attention. Logits and gradients are compared before anything is timed. Run ``python -m
benchmarks.ragged_attention``.
"""

from __future__ import annotations

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
from benchmarks.ragged_layouts import WAYS, Way
from benchmarks.transformer_step import shape
from benchmarks.transformer_training import Shape, make_network
from seqdiff.backbones import Transformer
from seqdiff.backbones.transformer import network as transformer
from seqdiff.types import Inputs

TOLERANCE = 1e-4
BASELINE = "padding kept"
NARROW = Shape(256, 4, 4, 1024)
WIDE = Shape(768, 2, 12, 1024)


def sentences(rows: int, longest: int, source: torch.Generator) -> Tensor:
    """Draw lengths like those of LM1B's sentences in word pieces: log-normal with mean 28."""
    drawn = torch.empty(rows).log_normal_(3.14, 0.62, generator=source)
    return drawn.round().long().clamp(2, min(128, longest))


def documents(rows: int, longest: int, source: torch.Generator) -> Tensor:
    """Draw uniform lengths from 20 to the longest."""
    return torch.randint(min(20, longest), longest + 1, (rows,), generator=source)


def full(rows: int, longest: int, source: torch.Generator) -> Tensor:
    """Return full rows, whose batches are marked as having no padding."""
    del source
    return torch.full((rows,), min(128, longest))


LENGTHS = {"sentences": sentences, "documents": documents, "full": full}


class Work:
    """A network and one batch, padded to its longest row.

    Args:
        network: The network; its gradients are overwritten.
        lengths: Lengths of the rows.
        device: ``cpu`` or ``cuda``.
        dtype: Type of the activations.
    """

    def __init__(
        self, network: Transformer, lengths: Tensor, device: str, dtype: torch.dtype
    ) -> None:
        self.network = network.to(device)
        source = torch.Generator().manual_seed(0)
        size = (len(lengths), int(lengths.max()))
        tokens = torch.randint(network.config.num_logits, size, generator=source)
        padding = torch.arange(size[1]) >= lengths[:, None]
        self.tokens, self.padding = tokens.to(device), padding.to(device)
        self.autocast = torch.autocast(device, dtype, enabled=dtype != torch.float32)
        self.real = float((~padding).double().mean())

    def step(self, way: Way) -> Tensor:
        """Run forward and backward; return the logits of the real tokens."""
        self.network.zero_grad()
        with mock.patch.object(transformer, "lay_out", lambda x, p, **_: way(x, p)), self.autocast:
            logits = self.network(Inputs(self.tokens, padding=self.padding), ~self.padding)
        F.cross_entropy(logits.float(), self.tokens[~self.padding]).backward()
        return logits.detach()

    def numbers(self, way: Way) -> dict[str, Tensor]:
        """Return the logits and every gradient."""
        found = {"logits": self.step(way)}
        named = self.network.named_parameters()
        return found | {n: p.grad.clone() for n, p in named if p.grad is not None}


@dataclass(frozen=True)
class Row:
    """Measurements of one layout in one case.

    Attributes:
        case: Shape, lengths and rows.
        way: The layout.
        real: Fraction of tokens that are not padding.
        times: Times of this layout and of kept padding.
        gap: Largest difference from the results with kept padding.
    """

    case: str
    way: str
    real: float
    times: Ratio
    gap: float

    def cells(self) -> tuple[str, ...]:
        """Return the cells of the printed table."""
        milliseconds = f"{1e3 * self.times.seconds:.0f}"
        return (
            self.case,
            f"{self.real:.0%}",
            self.way,
            milliseconds,
            str(self.times),
            f"{self.gap:.0e}",
        )

    def record(self) -> dict[str, object]:
        """Return the record for the JSON file."""
        about = {"case": self.case, "way": self.way, "real_share": self.real}
        return {**about, **self.times.record(), "largest_gap": self.gap}


def measure(at: Shape, kind: str, rows: int, options: Namespace) -> list[Row]:
    """Check and time all layouts in one case."""
    lengths = LENGTHS[kind](rows, at.length, torch.Generator().manual_seed(0))
    network = make_network(at, options.vocabulary, 0.0)
    dtype = torch.bfloat16 if options.device == "cuda" else torch.float32
    work = Work(network, lengths, options.device, dtype)
    case = f"{at} {kind} {rows}"
    wanted = work.numbers(WAYS[BASELINE])
    limit = TOLERANCE if dtype == torch.float32 else 0.1
    gaps = {
        name: require_same(f"{case}, {name} and {BASELINE}", work.numbers(way), wanted, limit)
        for name, way in WAYS.items()
    }
    sides = [Side(name, lambda way=way: work.step(way)) for name, way in WAYS.items()]
    seconds = interleave(sides, options.pairs, options.device)
    return [
        Row(case, name, work.real, Ratio(seconds[name], seconds[BASELINE]), gaps[name])
        for name in WAYS
    ]


def main(arguments: list[str] | None = None) -> None:
    """Print the table and write it as JSON if a path is given."""
    parser = make_parser(__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--shape", type=shape, nargs="+", default=[NARROW, WIDE])
    parser.add_argument("--vocabulary", type=positive, default=512)
    parser.add_argument("--sentences", type=positive, default=64, help="rows; 64")
    parser.add_argument("--documents", type=positive, default=4, help="rows; 4")
    parser.add_argument("--full", type=positive, default=8, help="rows; 8")
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        refuse("ragged_attention: --device cuda needs a CUDA device, and PyTorch sees none")
    described = begin(options.device)
    rows = [
        row
        for at in options.shape
        for kind in LENGTHS
        for row in measure(at, kind, getattr(options, kind), options)
    ]
    header = ("shape, lengths, rows", "real", "way", "ms", f"{BASELINE} / this, over pairs", "gap")
    print_table(header, [row.cells() for row in rows])
    settings = {"vocabulary": options.vocabulary, "pairs": options.pairs}
    results = [row.record() for row in rows]
    write_json(options.json, "ragged_attention", described, settings, results)


if __name__ == "__main__":
    main()

"""A fine-tuning step of Caduceus-Ph 118x4 on promoters of 251 bases, with our layer and mambapy's.

A step is forward, cross-entropy of two classes on the mean state, backward and AdamW, with the
published batch size. The other side runs mambapy's Mamba layer on the row and on the reversed row.
Both sides start from equal weights, and their losses and gradients are compared before anything is
timed. Run ``python -m benchmarks.fine_tuning``.
"""

from __future__ import annotations

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
    require_same,
    write_json,
)
from benchmarks.training_step import SYMBOLS, loss_and_gradients, make_network
from benchmarks.two_pass import mambapy_layer, two_pass_twin
from genomics.finetune import Recipe, SequenceClassifier
from genomics.sequence import DNATokenizer
from seqdiff.backbones import Caduceus

TOLERANCE = 1e-3


class FineTuningStep:
    """A classifier, its optimiser and one batch.

    Args:
        network: The network; its parameters are trained.
        batch: Sequences.
        length: Bases of each sequence.
    """

    def __init__(self, network: Caduceus, batch: int, length: int) -> None:
        torch.manual_seed(0)
        self.model = SequenceClassifier(network, 2, complement=DNATokenizer().complement)
        self.optimizer, self.rate = Recipe(1e-3, batch, 1).optimiser(self.model, batch * 1000)
        source = torch.Generator().manual_seed(0)
        self.tokens = torch.randint(SYMBOLS, (batch, length), generator=source)
        self.labels = torch.arange(batch) % 2
        self.padding = torch.zeros_like(self.tokens, dtype=torch.bool)

    def loss(self) -> Tensor:
        """Return the mean cross-entropy in nats."""
        return F.cross_entropy(self.model(self.tokens, self.padding), self.labels)

    def numbers(self) -> dict[str, Tensor]:
        """Return the loss and every gradient before any step, by our parameter names."""
        return loss_and_gradients(self.loss(), self.model)

    def __call__(self) -> None:
        """Take one step."""
        self.loss().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.rate.step()


def main(arguments: list[str] | None = None) -> None:
    """Print the table and write it as JSON if a path is given."""
    parser = make_parser(__doc__)
    parser.add_argument("--batch", type=positive, default=128)
    parser.add_argument("--length", type=positive, default=251)
    parser.add_argument("--d_model", type=positive, default=118)
    parser.add_argument("--n_layer", type=positive, default=4)
    options = parser.parse_args(arguments)
    described = begin()
    size = options.d_model, options.n_layer
    networks = {
        "ours": make_network(*size),
        "two-pass": two_pass_twin(make_network(*size), mambapy_layer),
    }
    steps = {
        name: FineTuningStep(network, options.batch, options.length)
        for name, network in networks.items()
    }
    ours, theirs = (step.numbers() for step in steps.values())
    gap = require_same("fine_tuning", ours, theirs, TOLERANCE)
    seconds = interleave([Side(name, step) for name, step in steps.items()], options.pairs)
    ratio = Ratio(seconds["ours"], seconds["two-pass"])
    speeds = options.batch / ratio.seconds, options.batch / ratio.their_seconds
    rows = [
        ("ours", f"{speeds[0]:.1f}", str(ratio), f"{gap:.0e}"),
        ("two-pass", f"{speeds[1]:.1f}", "", ""),
    ]
    print_table(("layer", "sequences/s", "ratio (over pairs)", "largest gap"), rows)
    shape = {"batch": options.batch, "length": options.length, "d_model": size[0]}
    results = {"sequences_per_second": speeds[0], "largest_gap": gap, **ratio.record()}
    write_json(options.json, "fine_tuning", described, {**shape, "n_layer": size[1]}, results)


if __name__ == "__main__":
    main()

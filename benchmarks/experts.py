"""The time of n-gram experts: a trained model with them, and its network alone.

Both predict the masked tokens of the same test rows, whose mask fractions are spread evenly over
(0, 1). Before they are timed, the mixture is compared with the sum of its parts. Run
``python -m benchmarks.experts runs/human``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import seqdiff
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
from seqdiff.types import Inputs


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table and write it as JSON if a path is given."""
    parser = make_parser(__doc__)
    parser.add_argument("run", type=Path, help="run directory of masked diffusion with experts")
    parser.add_argument("--rows", type=positive, default=16, help="rows of a batch")
    options = parser.parse_args(argv)
    try:
        run = seqdiff.load(options.run)
    except (OSError, ValueError) as error:
        refuse(str(error))
    denoiser = run.denoiser.eval()
    experts = denoiser.experts
    if experts is None or not experts.counted or denoiser.context != "row":
        refuse(f"experts.run must be masked diffusion with n-gram experts, got {options.run}")
    described = begin()
    dataset = run.datamodule.dataset("test")
    places = np.linspace(0, len(dataset) - 1, options.rows).astype(np.int64)
    x0 = torch.from_numpy(np.asarray(dataset.rows(places)[0])).long()
    fractions = (torch.arange(options.rows)[:, None] + 0.5) / options.rows
    chance = torch.rand(x0.shape, generator=torch.Generator().manual_seed(0))
    where = (chance < fractions) & (x0 < denoiser.vocab_size)
    inputs = Inputs(x0.masked_fill(where, denoiser.vocab_size), fractions[:, 0].double())

    @torch.no_grad()
    def predict() -> Tensor:
        return denoiser.log_probs(inputs)[where]

    @torch.no_grad()
    def network() -> Tensor:
        with experts.only("network"):
            return denoiser.log_probs(inputs)[where]

    found = experts.terms(inputs.tokens, where)
    gates = experts.gates[0]
    parts = gates[0] * found.base + gates[found.seen, None] * found.chain
    parts = (experts.scale[0] * network() + parts).log_softmax(dim=-1)
    require_same(
        "experts", {"probabilities": predict().exp()}, {"probabilities": parts.exp()}, 1e-4
    )
    seconds = interleave([Side("with", predict), Side("without", network)], options.pairs)
    ratio = Ratio(seconds["without"], seconds["with"])
    rows = [
        ("network", f"{len(x0) / ratio.seconds:.1f}", ""),
        ("network and experts", f"{len(x0) / ratio.their_seconds:.1f}", str(ratio)),
    ]
    print_table(("prediction of rows", "rows/s", "time / network's (over pairs)"), rows)
    settings = {"rows": options.rows, "length": x0.shape[1], "symbols": denoiser.vocab_size}
    write_json(options.json, "experts", described, settings, ratio.record())


if __name__ == "__main__":
    main()

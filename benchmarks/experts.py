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
    scale, gate = experts.scale[0, 0].numpy(), experts.gates[0, 1 + found.seen].numpy()
    functions = experts.scale[0, 1:].numpy(), experts.gates[0, 2 * experts.order + 2 :].numpy()
    for measure, *values in zip(
        found.uncertainty.T.numpy(), *(np.split(x, 2) for x in functions), strict=True
    ):
        knots = np.linspace(0, 1, len(values[0]))
        scale, gate = (
            x + np.interp(measure, knots, y) for x, y in zip((scale, gate), values, strict=True)
        )
    scale, gate = (torch.from_numpy(x).float()[:, None] for x in (scale, gate))
    parts = experts.gates[0, 0] * found.base + gate * found.chain
    parts = (scale * network() + parts).log_softmax(dim=-1)
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

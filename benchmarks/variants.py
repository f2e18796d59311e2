"""Scoring SNVs as ``seqdiff variants`` does, compared with one window per call.

Both sides compute both scores of the three alternatives at some sites of a random genome with a
network of random weights. The other side follows the formulas directly: one network call for every
window, mask and strand, and the reference again for each alternative, with the same masks. Run
``python -m benchmarks.variants``.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
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
from benchmarks.training_step import SYMBOLS, make_network
from genomics.io import Genome, Variant
from genomics.sequence import BASES, STRANDS, both_strands, reverse_complement
from genomics.variants import AlleleWindows, allele_windows, likelihood_ratios, masked_marginals
from seqdiff.denoiser import Denoiser
from seqdiff.likelihood import PassNoise, SmallK
from seqdiff.process import Absorbing
from seqdiff.rng import CounterNoise
from seqdiff.schedules import Linear
from seqdiff.types import Inputs

_PROCESS = Absorbing(SYMBOLS, Linear())
# Relative to the largest score; float32 sums over other batch sizes differ by less.
_TOLERANCE = 1e-3


def random_alleles(sites: int, window: int) -> list[AlleleWindows]:
    """Draw windows of all three SNVs at each of some sites, one window apart."""
    ids = np.random.default_rng(0).integers(0, SYMBOLS, (sites + 1) * window, dtype=np.uint8)
    genome = Genome.from_records({"random": ids})
    found = []
    for start in range(window, (sites + 1) * window, window):
        ref = BASES[ids[start - 1]]
        found += [
            allele_windows(Variant(1, "random", start, ".", ref, alt), genome, window)
            for alt in BASES
            if alt != ref
        ]
    return found


@torch.no_grad()
def marginal_plainly(denoiser: Denoiser, pair: AlleleWindows) -> float:
    """Mask the base that changes, one strand per call."""
    gains = []
    for ref, alt in ((pair.ref, pair.alt), tuple(map(reverse_complement, (pair.ref, pair.alt)))):
        place = int(np.flatnonzero(ref != alt)[0])
        x_t = torch.from_numpy(ref.astype(np.int64))[None]
        x_t[0, place] = SYMBOLS
        t = _PROCESS.schedule.inverse(torch.full((1,), 1 - 1 / len(ref), dtype=torch.float64))
        log_probs = denoiser(Inputs(x_t, t))[0, place].double()
        gains.append(float(log_probs[int(alt[place])] - log_probs[int(ref[place])]))
    return sum(gains) / len(gains)


@torch.no_grad()
def ratio_plainly(denoiser: Denoiser, pair: AlleleWindows, evaluations: int) -> float:
    """Compare both windows under each mask, one window per call."""
    estimator, noise = SmallK(evaluations), PassNoise(CounterNoise(0))
    sides = [both_strands([ids], [pair.ref]) for ids in (pair.alt, pair.ref)]
    total = 0.0
    for sign, batch in zip((-1, 1), sides, strict=True):
        for strand in range(STRANDS):
            row = batch.take(torch.tensor([strand]))
            for number in range(evaluations):
                query = estimator.query(row, torch.tensor([number]), noise=noise, process=_PROCESS)
                log_probs = denoiser(Inputs(query.x_t, query.t)).double()
                at_x0 = log_probs.gather(-1, row.tokens[..., None])[..., 0]
                cost = -at_x0[query.x_t == SYMBOLS].sum()
                total += sign * float(cost * query.weight[0])
    return total / evaluations / STRANDS


def measure(
    name: str, ours: Callable[[], list[float]], plain: Callable[[], list[float]], pairs: int
) -> Ratio:
    """Compare the scores, then the times.

    Raises:
        SystemExit: If the scores differ.
    """
    found, wanted = ({name: torch.tensor(side(), dtype=torch.float64)} for side in (ours, plain))
    require_same("variants", found, wanted, _TOLERANCE)
    seconds = interleave([Side("ours", ours), Side("plain", plain)], pairs)
    return Ratio(seconds["ours"], seconds["plain"])


def main(arguments: list[str] | None = None) -> None:
    """Print the table and write it as JSON if a path is given."""
    parser = make_parser(__doc__)
    for flag, default in (("sites", 2), ("window", 256), ("d_model", 118), ("n_layer", 4)):
        parser.add_argument(f"--{flag}", type=positive, default=default)
    for flag in ("evaluations", "batch_size"):
        parser.add_argument(f"--{flag}", type=positive, default=32)
    options = parser.parse_args(arguments)
    try:
        estimator = SmallK(options.evaluations)
    except ValueError as error:
        refuse(str(error))
    described, size = begin(), options.batch_size
    alleles = random_alleles(options.sites, options.window)
    model = Denoiser(make_network(options.d_model, options.n_layer), _PROCESS).eval()
    shared = (model, alleles)
    sides: dict[str, tuple[Callable[[], list[float]], Callable[[], list[float]]]] = {
        "marginal": (
            lambda: [s for s in masked_marginals(*shared, batch_size=size) if s is not None],
            lambda: [marginal_plainly(model, pair) for pair in alleles],
        ),
        "llr": (
            lambda: [
                ratio.nats
                for ratio in likelihood_ratios(*shared, estimator=estimator, batch_size=size)
            ],
            lambda: [ratio_plainly(model, pair, options.evaluations) for pair in alleles],
        ),
    }
    rows, results = [], {}
    for name, both in sides.items():
        ratio = measure(name, *both, options.pairs)
        ours, theirs = (len(alleles) / each for each in (ratio.seconds, ratio.their_seconds))
        rows.append((name, f"{ours:.2f}", f"{theirs:.2f}", str(ratio)))
        results[name] = {"variants_per_second": ours, **ratio.record()}
    print_table(("score", "variants/s", "one window a call", "ratio (over pairs)"), rows)
    settings = {key: value for key, value in vars(options).items() if key != "json"}
    write_json(options.json, "variants", described, settings, results)


if __name__ == "__main__":
    main()

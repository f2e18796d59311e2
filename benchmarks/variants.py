"""Scoring SNVs as ``seqdiff variants`` does, compared with one window per call.

Both sides compute scores of the three alternatives at some sites of a random genome with a network
of random weights. Sparse sites are one window apart, and dense ones are neighbours, as in the
saturation of a region. The other side follows the formulas directly: one network call for every
window, mask and strand, and the reference again for each alternative, with the same masks. The last
line is the approximation of ``--spacing``, in which dense sites share windows, compared with the
exact marginal of one window per call. Run ``python -m benchmarks.variants``.
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
from genomics.variants import (
    AlleleWindows,
    SharedWindow,
    allele_windows,
    likelihood_ratios,
    masked_marginals,
    share_windows,
    shared_marginals,
)
from seqdiff.denoiser import Denoiser
from seqdiff.likelihood import PassNoise, SmallK
from seqdiff.process import Absorbing
from seqdiff.rng import CounterNoise
from seqdiff.schedules import Linear
from seqdiff.types import Inputs

_PROCESS = Absorbing(SYMBOLS, Linear())
# Relative to the largest score; float32 sums over other batch sizes differ by less.
_TOLERANCE = 1e-3


def random_variants(sites: int, step: int, window: int) -> tuple[Genome, list[Variant]]:
    """Draw a genome, and all three SNVs at each of some sites that are ``step`` apart."""
    size = 2 * window + sites * step
    ids = np.random.default_rng(0).integers(0, SYMBOLS, size, dtype=np.uint8)
    found = []
    for place in range(window, window + sites * step, step):
        ref = BASES[ids[place]]
        found += [Variant(1, "random", place + 1, ".", ref, alt) for alt in BASES if alt != ref]
    return Genome.from_records({"random": ids}), found


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
def shared_plainly(denoiser: Denoiser, windows: list[SharedWindow]) -> list[float]:
    """Mask the sites of each window together, one strand per call."""
    scores: dict[int, float] = {}
    for window in windows:
        log_probs = []
        for opposite in (False, True):
            x0 = torch.from_numpy(window.ref.astype(np.int64))
            x0 = SYMBOLS - 1 - x0.flip(0) if opposite else x0
            where = torch.from_numpy(window.masked)
            where = where.flip(0) if opposite else where
            fraction = where.double().mean()[None]
            x_t, t = x0.masked_fill(where, SYMBOLS)[None], _PROCESS.schedule.inverse(1 - fraction)
            found = denoiser(Inputs(x_t, t))[0].double()
            log_probs.append(found.flip(0, 1) if opposite else found)
        both = (log_probs[0] + log_probs[1]) / len(log_probs)
        places = window.masked.nonzero()[0]
        for number, changed, alt in zip(window.variants, window.changed, window.alts, strict=True):
            place = int(places[changed][0])
            scores[number] = float(both[place, int(alt[0])] - both[place, int(window.ref[place])])
    return [scores[number] for number in range(len(scores))]


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


Scores = Callable[[], list[float]]


def measure(
    name: str, ours: Scores, plain: Scores, pairs: int, same: Scores | None = None
) -> Ratio:
    """Compare the scores, then the times.

    Args:
        name: Name of the score.
        ours: Our scores.
        plain: The scores of the other side.
        pairs: Number of repeats.
        same: What our scores must be equal to; by default those of the other side.

    Raises:
        SystemExit: If the scores differ.
    """
    found, wanted = (
        {name: torch.tensor(side(), dtype=torch.float64)} for side in (ours, same or plain)
    )
    require_same("variants", found, wanted, _TOLERANCE)
    seconds = interleave([Side("ours", ours), Side("plain", plain)], pairs)
    return Ratio(seconds["ours"], seconds["plain"])


def main(arguments: list[str] | None = None) -> None:
    """Print the table and write it as JSON if a path is given."""
    parser = make_parser(__doc__)
    sizes = {"sites": 2, "dense_sites": 128, "spacing": 32, "window": 256}
    sizes |= {"d_model": 118, "n_layer": 4, "evaluations": 32, "batch_size": 32}
    for flag, default in sizes.items():
        parser.add_argument(f"--{flag}", type=positive, default=default)
    options = parser.parse_args(arguments)
    try:
        estimator = SmallK(options.evaluations)
    except ValueError as error:
        refuse(str(error))
    described, size, window = begin(), options.batch_size, options.window
    model = Denoiser(make_network(options.d_model, options.n_layer), _PROCESS).eval()
    sparse, dense = (
        random_variants(sites, step, window)
        for sites, step in ((options.sites, window), (options.dense_sites, 1))
    )

    def marginals(alleles: list[AlleleWindows]) -> list[float]:
        found = masked_marginals(model, alleles, batch_size=size)
        return [score for score in found if score is not None]

    def ratios(alleles: list[AlleleWindows]) -> list[float]:
        found = likelihood_ratios(model, alleles, estimator=estimator, batch_size=size)
        return [ratio.nats for ratio in found]

    def shared() -> list[SharedWindow]:
        return share_windows(dense[1], dense[0], window, options.spacing)

    def plainly(alleles: list[AlleleWindows]) -> list[float]:
        return [marginal_plainly(model, pair) for pair in alleles]

    alone, close = (
        [allele_windows(variant, genome, window) for variant in variants]
        for genome, variants in (sparse, dense)
    )
    sides: dict[str, tuple[Scores, Scores, Scores | None]] = {
        "marginal": (lambda: marginals(alone), lambda: plainly(alone), None),
        "llr": (
            lambda: ratios(alone),
            lambda: [ratio_plainly(model, pair, options.evaluations) for pair in alone],
            None,
        ),
        "marginal, dense": (lambda: marginals(close), lambda: plainly(close), None),
        f"marginal, dense, spacing {options.spacing}": (
            lambda: shared_marginals(model, shared(), batch_size=size),
            lambda: plainly(close),
            lambda: shared_plainly(model, shared()),
        ),
    }
    rows, results = [], {}
    for name, (ours, plain, same) in sides.items():
        ratio = measure(name, ours, plain, options.pairs, same)
        count = len(dense[1] if "dense" in name else sparse[1])
        mine, theirs = (count / each for each in (ratio.seconds, ratio.their_seconds))
        rows.append((name, f"{mine:.2f}", f"{theirs:.2f}", str(ratio)))
        results[name] = {"variants_per_second": mine, **ratio.record()}
    print_table(("score", "variants/s", "one window a call", "ratio (over pairs)"), rows)
    settings = {key: value for key, value in vars(options).items() if key != "json"}
    write_json(options.json, "variants", described, settings, results)


if __name__ == "__main__":
    main()

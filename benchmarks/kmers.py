"""Counting k-mers of 1 to 6 bases, compared with counting each k separately.

Both sides count all six spectra of one strand of a random genome with runs of N. The other side
uses NumPy directly. For each k it computes the code of the k-mer at every position, drops k-mers
with an N, and counts the others. Run ``python -m benchmarks.kmers``.
"""

from __future__ import annotations

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
    require_same,
    write_json,
)
from genomics.sequence import MASK_ID, MAX_K, Spectra, count_kmers

TARGET = 100e6


def random_genome(bases: int) -> np.ndarray:
    """Draw uniform bases, with one in a thousand in a run of N."""
    generator = np.random.default_rng(0)
    ids = generator.integers(0, MASK_ID, bases, dtype=np.uint8)
    for start in generator.integers(0, bases, max(1, bases // 100_000)):
        ids[start : start + 100] = MASK_ID
    return ids


def count_plainly(ids: np.ndarray) -> Spectra:
    """Count the k-mers of each k separately."""
    letters, known = ids.astype(np.int64), ids != MASK_ID
    counts = []
    for k in range(1, MAX_K + 1):
        places = max(0, len(ids) - k + 1)
        codes, whole = np.zeros(places, dtype=np.int64), np.ones(places, dtype=bool)
        for j in range(k):
            codes = codes * 4 + letters[j : j + places]
            whole &= known[j : j + places]
        counts.append(np.bincount(codes[whole], minlength=4**k))
    return tuple(counts)


def as_tensors(spectra: Spectra) -> dict[str, torch.Tensor]:
    """Name the counts of each k, in a dtype that represents them exactly."""
    return {f"{k}-mers": torch.from_numpy(found).double() for k, found in enumerate(spectra, 1)}


def main(arguments: list[str] | None = None) -> None:
    """Print the table and write it as JSON if a path is given."""
    parser = make_parser(__doc__)
    parser.add_argument("--bases", type=positive, default=32_000_000)
    options = parser.parse_args(arguments)
    described = begin()
    ids = random_genome(options.bases)
    require_same("kmers", as_tensors(count_kmers(ids)), as_tensors(count_plainly(ids)), 0.0)
    sides = [Side("ours", lambda: count_kmers(ids)), Side("plain", lambda: count_plainly(ids))]
    seconds = interleave(sides, options.pairs)
    ratio = Ratio(seconds["ours"], seconds["plain"])
    speed, theirs = options.bases / ratio.seconds, options.bases / ratio.their_seconds
    rows = [
        ("ours", f"{speed / 1e6:.0f}", str(ratio)),
        ("plain NumPy", f"{theirs / 1e6:.1f}", ""),
    ]
    print_table(("k = 1..6", "MB/s", "ratio (over pairs)"), rows)
    print(f"target {TARGET / 1e6:.0f} MB/s: {'met' if speed >= TARGET else 'missed'}")
    results = {"bases_per_second": speed, "target": TARGET, **ratio.record()}
    write_json(options.json, "kmers", described, {"bases": options.bases}, results)


if __name__ == "__main__":
    main()

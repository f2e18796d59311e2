"""A diverse set of the best candidates."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float64, Int64

from genomics.design.constraints import edit_distances
from genomics.sequence import count_kmers_of_each, encode
from seqdiff.checks import check_count

_WORD = 4  # of the spectra that the determinantal choice compares
_JITTER = 1e-9  # keeps copies of a sequence from a variance below 0


def pairwise_distances(sequences: Sequence[str]) -> Int64[np.ndarray, "N N"]:
    """Compute the edit distances between sequences, see ``edit_distances``."""
    return edit_distances(sequences, sequences)


def greedy(
    sequences: Sequence[str], quality: Float64[np.ndarray, " N"], num: int, spread: int
) -> Int64[np.ndarray, " n"]:
    """Take the best sequence again and again, among those far enough from all that were taken.

    Args:
        sequences: The candidates.
        quality: Their quality; higher is better, and the first of equal ones comes first.
        num: Number of sequences to take.
        spread: Least edit distance between two taken sequences, on either strand.

    Returns:
        Their numbers, the best first; fewer than ``num`` if no other is far enough.
    """
    chosen: list[int] = []
    left = np.argsort(-quality, kind="stable")
    while len(left) and len(chosen) < num:
        best, left = int(left[0]), left[1:]
        chosen.append(best)
        others = [sequences[i] for i in map(int, left)]
        far = edit_distances([sequences[best]], others)[0] >= spread
        left = left[far]
    return np.array(chosen, dtype=np.int64)


def spectrum_similarity(sequences: Sequence[str]) -> Float64[np.ndarray, "N N"]:
    """Return the cosine similarity of the 4-mer counts of both strands, in [0, 1]."""
    counts = count_kmers_of_each([encode(sequence) for sequence in sequences], _WORD).toarray()
    counts = counts.astype(np.float64)
    place = np.arange(4**_WORD).reshape((4,) * _WORD)
    counts = counts + counts[:, np.flip(place.transpose()).ravel()]
    counts /= np.linalg.norm(counts, axis=1, keepdims=True).clip(min=1e-12)
    return counts @ counts.T


def determinantal(
    sequences: Sequence[str], quality: Float64[np.ndarray, " N"], num: int, spread: int
) -> Int64[np.ndarray, " n"]:
    """Build the most likely set of a determinantal point process, greedily.

    The kernel is ``q_i q_j S_ij`` with the similarity S of 4-mer spectra and ``q = exp(z / 2)``,
    where z is the standardised quality. A sequence is added that multiplies the determinant of the
    set most: good, and unlike those that were taken. Source: Chen, Zhang and Zhou 2018,
    arXiv:1709.05135, algorithm 1; Kulesza and Taskar 2012, arXiv:1207.6083.

    Args:
        sequences: The candidates.
        quality: Their quality; higher is better.
        num: Number of sequences to take.
        spread: Ignored; the kernel has no threshold.

    Returns:
        Their numbers in the order in which they were taken; fewer than ``num`` if the spectra of
        all others are combinations of those that were taken.
    """
    del spread
    centred = quality - quality.mean()
    scale = centred.std()
    strength = np.exp(centred / scale / 2) if scale > 0 else np.ones_like(centred)
    kernel = strength[:, None] * spectrum_similarity(sequences) * strength
    gain = np.diag(kernel).copy()
    factors = np.zeros((len(sequences), 0))
    chosen: list[int] = []
    while len(chosen) < min(num, len(sequences)):
        best = int(gain.argmax())
        if gain[best] <= _JITTER:
            break
        chosen.append(best)
        column = (kernel[:, best] - factors @ factors[best]) / np.sqrt(gain[best])
        factors = np.column_stack([factors, column])
        gain = gain - column**2
        gain[chosen] = -np.inf
    return np.array(chosen, dtype=np.int64)


# Greedy comes first and is the default. Its threshold is a number of bases that holds for every
# pair, and it never passes over a better candidate that is far enough. The determinantal choice has
# no such guarantee, but it needs no threshold and looks at the whole set.
SELECTIONS: dict[str, Callable[..., Int64[np.ndarray, " n"]]] = {
    "greedy": greedy,
    "determinantal": determinantal,
}


def select(
    sequences: Sequence[str],
    quality: Float64[np.ndarray, " N"],
    num: int,
    *,
    how: str = "greedy",
    spread: int = 0,
) -> Int64[np.ndarray, " n"]:
    """Choose a diverse set of good sequences.

    Args:
        sequences: The candidates.
        quality: Their quality; higher is better.
        num: Number of sequences to choose.
        how: ``greedy``, by quality with a least edit distance, or ``determinantal``, see the
            functions of these names.
        spread: Least edit distance between two chosen sequences, for ``greedy``.

    Returns:
        The numbers of the chosen sequences, in the order in which they were taken.

    Raises:
        ValueError: If there is no such way to choose, a quality is not finite, or a number is out
            of range.
    """
    check_count("design.num", num)
    check_count("design.spread", spread, 0)
    if how not in SELECTIONS:
        raise ValueError(
            f"design.select must be one of {', '.join(SELECTIONS)}, got {how!r}; greedy is usual"
        )
    if not np.isfinite(quality).all():
        bad = int((~np.isfinite(quality)).argmax())
        raise ValueError(
            f"design.quality must be finite, got {quality[bad]} for sequence {bad}; check the "
            "oracle"
        )
    if not len(sequences):
        return np.zeros(0, dtype=np.int64)
    return SELECTIONS[how](sequences, quality, num, spread)

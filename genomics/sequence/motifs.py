"""Sequence motifs as position weight matrices."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from genomics.sequence.alphabet import BASES, IUPAC


def consensus_matrix(consensus: str, fidelity: float) -> Float64[np.ndarray, "w 4"]:
    """Turn a consensus into a position weight matrix.

    Args:
        consensus: IUPAC letters, upper case.
        fidelity: Probability that a position holds one of the bases its letter stands for, which
            share it equally; the other bases share the rest.

    Raises:
        ValueError: If the consensus is empty or holds another letter, or the fidelity is not in
            (0, 1].
    """
    unknown = sorted(set(consensus) - set(IUPAC))
    if not consensus or unknown:
        raise ValueError(
            f"consensus_matrix.consensus must be IUPAC letters, got {consensus!r}; "
            f"use {''.join(IUPAC)}"
        )
    if not 0 < fidelity <= 1:
        raise ValueError(
            f"consensus_matrix.fidelity must be in (0, 1], got {fidelity}; use for example 0.95"
        )
    meant = np.array([[base in IUPAC[letter] for base in BASES] for letter in consensus])
    number = meant.sum(axis=1, keepdims=True)
    others = (1 - fidelity) / np.maximum(4 - number, 1)
    return np.where(number == 4, 0.25, np.where(meant, fidelity / number, others))


@dataclass(frozen=True, eq=False)
class PlantedMotif:
    """A motif and how often it is planted.

    Attributes:
        matrix: Base probabilities of each position, on the plus strand.
        rate: Probability that an instance starts where one may start, both strands together.
    """

    matrix: Float64[np.ndarray, "w 4"]
    rate: float

    def __post_init__(self) -> None:
        """Check the matrix and the rate.

        Raises:
            ValueError: If a row is no probability law, or the rate is not in (0, 1).
        """
        sums = self.matrix.sum(axis=1)
        if len(sums) == 0 or (self.matrix < 0).any() or not np.allclose(sums, 1, atol=1e-12):
            raise ValueError(
                "PlantedMotif.matrix must have rows that are probabilities and sum to 1, "
                f"got sums {np.round(sums, 6).tolist()}; divide each row by its sum"
            )
        if not 0 < self.rate < 1:
            raise ValueError(
                f"PlantedMotif.rate must be in (0, 1), got {self.rate}; use for example 0.01"
            )

    @property
    def strands(self) -> tuple[Float64[np.ndarray, "w 4"], Float64[np.ndarray, "w 4"]]:
        """The matrix as read on the plus strand, for either orientation of the instance."""
        return self.matrix, np.ascontiguousarray(self.matrix[::-1, ::-1])

"""A data module for a synthetic genome whose exact likelihood a model's bound is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64, Int64, UInt8

from genomics.baselines import baselines, interpolated_baseline
from genomics.data.sources import (
    Entropy,
    MarkovGenome,
    PlantedMotif,
    consensus_matrix,
    window_entropy,
)
from genomics.sequence import MASK_ID, DNATokenizer
from seqdiff.data import SPLITS, SequenceDataModule, SequenceDataset, Split
from seqdiff.likelihood import RowNats


@dataclass(frozen=True)
class ConsensusMotif:
    """A motif to plant, by its consensus.

    Attributes:
        consensus: IUPAC codes in upper case.
        rate: Probability that an instance starts where one may start.
        fidelity: Probability of the bases that a position's code stands for.
    """

    consensus: str
    rate: float
    fidelity: float = 0.97

    def planted(self) -> PlantedMotif:
        """Build the position weight matrix."""
        return PlantedMotif(consensus_matrix(self.consensus, self.fidelity), self.rate)


DEFAULT_MOTIFS = (
    ConsensusMotif("TTGGCNNNGCCAA", 0.015),
    ConsensusMotif("TGACNNNNGTCA", 0.015),
)


@dataclass(frozen=True)
class SyntheticGenome:
    """Settings of a ``MarkovGenome``; the defaults are the built-in example.

    Attributes:
        order: Bases of context of the background, in ``0..5``.
        concentration: Parameter of the Dirichlet distribution that the background is drawn from.
        seed: Seed of that draw.
        strand_symmetric: Whether the background is symmetric under the reverse complement.
        motifs: The planted motifs.
    """

    order: int = 2
    concentration: float = 10.0
    seed: int = 0
    strand_symmetric: bool = True
    motifs: Sequence[ConsensusMotif] = DEFAULT_MOTIFS

    def source(self) -> MarkovGenome:
        """Build the source."""
        return MarkovGenome.random(
            self.order,
            concentration=self.concentration,
            seed=self.seed,
            strand_symmetric=self.strand_symmetric,
            motifs=[motif.planted() for motif in self.motifs],
        )


class WindowArray(SequenceDataset):
    """Rows of one array of ids ``0..4``; an N does not count."""

    def __init__(self, tokens: UInt8[np.ndarray, "n L"]) -> None:
        self.tokens = tokens

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.tokens)

    def rows(
        self, indices: Int64[np.ndarray, " B"]
    ) -> tuple[UInt8[np.ndarray, "B L"], Bool[np.ndarray, "B L"]]:
        """Read rows."""
        tokens = self.tokens[indices]
        return tokens, tokens != MASK_ID


class SyntheticDataModule(SequenceDataModule):
    """Independent stationary windows of a source with a known likelihood.

    Attributes:
        source: The source.
        length: Bases of a window.
    """

    token_name: str = "base"
    file_suffix: str = "fa"

    def __init__(
        self,
        length: int = 128,
        *,
        genome: SyntheticGenome | None = None,
        num_train: int = 65536,
        num_valid: int = 1024,
        num_test: int = 1024,
        data_seed: int = 0,
        batch_size: int = 32,
        eval_batch_size: int | None = None,
        num_workers: int = 0,
    ) -> None:
        """Build the source; windows are sampled later.

        Args:
            length: Bases of a window.
            genome: The source; ``None`` means the built-in example.
            num_train: Training windows.
            num_valid: Validation windows.
            num_test: Test windows.
            data_seed: Seed of the windows, not negative. It defines the data, so it is independent
                of the run's seed.
            batch_size: Training examples per device and forward pass.
            eval_batch_size: The same for validation and test; ``None`` means ``batch_size``.
            num_workers: Loader processes per device.

        Raises:
            ValueError: If a number is out of range.
        """
        super().__init__(
            DNATokenizer(),
            batch_size=batch_size,
            eval_batch_size=eval_batch_size,
            num_workers=num_workers,
        )
        sizes = {"length": length, "num_train": num_train, "num_valid": num_valid}
        _check_least(1, {**sizes, "num_test": num_test})
        _check_least(0, {"data_seed": data_seed})
        self.source = (genome or SyntheticGenome()).source()
        self.length = self.context_length = length
        self.sizes: dict[Split, int] = {"train": num_train, "valid": num_valid, "test": num_test}
        self.data_seed = data_seed
        self._datasets: dict[Split, WindowArray] = {}

    def dataset(self, split: Split) -> WindowArray:
        """Open a split; the first call samples its windows.

        Raises:
            ValueError: If the split does not exist.
        """
        if split not in SPLITS:
            raise ValueError(
                f"SyntheticDataModule.dataset must be one of {', '.join(SPLITS)}, got {split!r}"
            )
        if split not in self._datasets:
            seed = (self.data_seed, SPLITS.index(split))
            tokens = self.source.sample(self.sizes[split], self.length, seed)
            self._datasets[split] = WindowArray(tokens)
        return self._datasets[split]

    def source_nats(self, split: Split) -> Float64[np.ndarray, " n"]:
        """Return the exact nats of each window of a split under the source.

        The mean difference between these and a model's nats has a small standard error, because
        both are of the same windows.
        """
        return -self.source.log_prob(self.dataset(split).tokens)

    def source_entropy(self, *, num: int = 4096) -> Entropy:
        """Return the entropy of one window, see ``window_entropy``."""
        return window_entropy(self.source, self.length, num=num)

    def baselines(self, split: Split) -> dict[str, RowNats]:
        """Score a split by the source and by Markov chains fitted to the training windows.

        The interpolated chain is chosen on the validation windows.
        """
        train, scored = self.dataset("train").tokens, self.dataset(split).tokens
        nats = self.source_nats(split)
        return {
            "source on these windows": RowNats(nats, np.full(len(nats), self.length)),
            **baselines(train, scored, both_strands=False),
            **interpolated_baseline(
                train, self.dataset("valid").tokens, scored, both_strands=False
            ),
        }


def _check_least(least: int, values: dict[str, int]) -> None:
    for name, value in values.items():
        if value < least:
            raise ValueError(
                f"SyntheticDataModule.{name} must be at least {least}, got {value}; set data.{name}"
            )

"""Map-style datasets read in batches, and the order in which a run reads them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64, Integer
from torch.utils.data import Dataset, Sampler

from seqdiff.rng import AUGMENT_STREAM, CounterNoise
from seqdiff.types import Batch


class SequenceDataset(ABC):
    """Equally long rows of tokens, fetched many at a time."""

    @abstractmethod
    def __len__(self) -> int:
        """Count the rows."""

    @abstractmethod
    def rows(
        self, indices: Int64[np.ndarray, " B"]
    ) -> tuple[Integer[np.ndarray, "B L"], Bool[np.ndarray, "B L"]]:
        """Fetch rows.

        Returns:
            Tokens in ``0..K`` and the loss mask, False where the symbol is unknown or only context.
        """

    def augment(
        self,
        tokens: Integer[np.ndarray, "B L"],
        loss_mask: Bool[np.ndarray, "B L"],
        uniform: Float64[np.ndarray, " B"],
    ) -> tuple[Integer[np.ndarray, "B L"], Bool[np.ndarray, "B L"]]:
        """Change training rows at random.

        Args:
            tokens: What ``rows`` gave.
            loss_mask: What ``rows`` gave.
            uniform: The randomness, one draw a row.
        """
        del uniform
        return tokens, loss_mask


class TrainingStream(Dataset[Batch]):
    """An endless shuffled stream over a dataset, addressed by position.

    Position ``p`` lies in epoch ``p // len(dataset)``; every epoch is its own permutation. What a
    position holds depends on (seed, position) alone, so any part of the stream can be read by any
    worker of any device, and a resumed run reads what the unbroken one would have read.
    """

    def __init__(self, dataset: SequenceDataset, seed: int) -> None:
        """Bind a dataset to a seed.

        Args:
            dataset: What to stream.
            seed: In [0, 2^32).

        Raises:
            ValueError: If the dataset is empty.
        """
        if len(dataset) == 0:
            raise ValueError(
                "TrainingStream.dataset must hold at least one example, got 0; "
                "use a shorter window length or more sequence"
            )
        self.dataset = dataset
        self.seed = seed
        self._orders: dict[int, np.ndarray] = {}

    def _order(self, epoch: int) -> np.ndarray:
        if epoch not in self._orders:
            generator = np.random.default_rng((self.seed, epoch))
            kept = {e: o for e, o in self._orders.items() if e >= epoch - 1}
            self._orders = {**kept, epoch: generator.permutation(len(self.dataset))}
        return self._orders[epoch]

    def __getitem__(self, position: int) -> Batch:
        """Read one position."""
        return self.__getitems__([position])

    def __getitems__(self, positions: Sequence[int]) -> Batch:
        """Read a batch of positions."""
        index = np.asarray(positions, dtype=np.int64)
        epochs, places = np.divmod(index, len(self.dataset))
        indices = np.empty_like(index)
        for epoch in np.unique(epochs):
            chosen = epochs == epoch
            indices[chosen] = self._order(int(epoch))[places[chosen]]
        tokens, loss_mask = self.dataset.rows(indices)
        noise = CounterNoise(self.seed).uniform(torch.from_numpy(index), 1, stream=AUGMENT_STREAM)
        tokens, loss_mask = self.dataset.augment(tokens, loss_mask, noise[:, 0].numpy())
        return _batch(tokens, loss_mask, index)


class EvaluationSet(Dataset[Batch]):
    """A dataset in its own order, without augmentation."""

    def __init__(self, dataset: SequenceDataset) -> None:
        """Wrap a dataset."""
        self.dataset = dataset

    def __len__(self) -> int:
        """Count the examples."""
        return len(self.dataset)

    def __getitem__(self, position: int) -> Batch:
        """Read one example."""
        return self.__getitems__([position])

    def __getitems__(self, positions: Sequence[int]) -> Batch:
        """Read a batch of examples."""
        index = np.asarray(positions, dtype=np.int64)
        return _batch(*self.dataset.rows(index), index)


class StreamBatches(Sampler[list[int]]):
    """The positions of one device's batches, step after step, without end.

    The global batch of step ``s`` is ``[start + s * W * B, start + (s + 1) * W * B)`` for ``W``
    devices with ``B`` examples each; device ``r`` reads the ``r``-th slice of it.
    """

    def __init__(self, batch_size: int, *, rank: int = 0, world_size: int = 1, start: int = 0):
        """Describe the slice.

        Args:
            batch_size: Examples per device and step.
            rank: This device.
            world_size: Number of devices.
            start: First position of the first step.
        """
        self.batch_size, self.rank, self.world_size, self.start = (
            batch_size,
            rank,
            world_size,
            start,
        )

    def __iter__(self) -> Iterator[list[int]]:
        """Yield position lists for ever."""
        first = self.start + self.rank * self.batch_size
        while True:
            yield list(range(first, first + self.batch_size))
            first += self.world_size * self.batch_size


def _batch(tokens: np.ndarray, loss_mask: np.ndarray, index: np.ndarray) -> Batch:
    return Batch(
        torch.from_numpy(tokens.astype(np.int64)),
        torch.from_numpy(np.ascontiguousarray(loss_mask)),
        torch.from_numpy(index),
    )

"""Map-style datasets read in batches, and the order in which a run reads them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64, Integer, Shaped
from torch.utils.data import Dataset, Sampler

from seqdiff.rng import AUGMENT_STREAM, CounterNoise
from seqdiff.types import Batch

Split = Literal["train", "valid", "test"]
SPLITS: tuple[Split, Split, Split] = ("train", "valid", "test")

# Positions whose noise is drawn at once: a pass over 4,096 costs hardly more than one over 8.
_NOISE_PAGE = 4096


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

    def labels(self, indices: Int64[np.ndarray, " B"]) -> Int64[np.ndarray, " B"] | None:
        """Fetch the classes of rows, ``NO_LABEL`` where there is none; ``None`` without classes."""
        del indices
        return None

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
            ValueError: If the dataset is empty or the seed does not fit in 32 bits.
        """
        if len(dataset) == 0:
            raise ValueError(
                "TrainingStream.dataset must hold at least one example, got 0; "
                "use a shorter window length or more sequence"
            )
        self.dataset = dataset
        self.seed = seed
        self._noise = CounterNoise(seed)
        self._indices = _Paged(len(dataset), self._permutation)
        self._uniforms = _Paged(_NOISE_PAGE, self._uniform_page)

    def _permutation(self, epoch: int) -> np.ndarray:
        return np.random.default_rng((self.seed, epoch)).permutation(len(self.dataset))

    def _uniform_page(self, page: int) -> np.ndarray:
        index = torch.arange(page * _NOISE_PAGE, (page + 1) * _NOISE_PAGE)
        return self._noise.uniform(index, 1, stream=AUGMENT_STREAM)[:, 0].numpy()

    def __getitem__(self, position: int) -> Batch:
        """Read one position."""
        return self.__getitems__([position])

    def __getitems__(self, positions: Sequence[int]) -> Batch:
        """Read a batch of positions."""
        index = np.asarray(positions, dtype=np.int64)
        rows = self._indices.at(index)
        tokens, loss_mask = self.dataset.rows(rows)
        tokens, loss_mask = self.dataset.augment(tokens, loss_mask, self._uniforms.at(index))
        return _batch(tokens, loss_mask, index, self.dataset.labels(rows))


class _Paged:
    """A function of position that is cheapest to compute a page of positions at a time."""

    def __init__(self, size: int, compute: Callable[[int], np.ndarray]) -> None:
        self._size, self._compute = size, compute
        self._kept: dict[int, np.ndarray] = {}

    def at(self, positions: Int64[np.ndarray, " B"]) -> Shaped[np.ndarray, " B"]:
        """Look positions up; they mostly lie on the page of the call before, or the next one."""
        numbers, places = np.divmod(positions, self._size)
        pages = {number: self._page(number) for number in sorted(set(numbers.tolist()))}
        if len(pages) == 1:
            return next(iter(pages.values()))[places]
        return np.array([pages[n][i] for n, i in zip(numbers.tolist(), places, strict=True)])

    def _page(self, number: int) -> np.ndarray:
        if number not in self._kept:
            near = {n: page for n, page in self._kept.items() if abs(n - number) == 1}
            self._kept = {**near, number: self._compute(number)}
        return self._kept[number]


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
        return _batch(*self.dataset.rows(index), index, self.dataset.labels(index))


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


def _batch(
    tokens: np.ndarray, loss_mask: np.ndarray, index: np.ndarray, label: np.ndarray | None
) -> Batch:
    return Batch(
        torch.from_numpy(tokens.astype(np.int64)),
        torch.from_numpy(np.ascontiguousarray(loss_mask)),
        torch.from_numpy(index),
        None if label is None else torch.from_numpy(label),
    )

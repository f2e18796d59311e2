"""Map-style datasets read in batches, and the order in which a run reads them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, Literal, NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float32, Float64, Int64, Integer, Shaped
from torch.utils.data import Dataset, Sampler

from seqdiff.rng import AUGMENT_STREAM, CounterNoise
from seqdiff.types import Batch

Split = Literal["train", "valid", "test"]
SPLITS: tuple[Split, Split, Split] = ("train", "valid", "test")

# Positions whose noise is drawn at once: a pass over 4,096 costs hardly more than one over 8.
_NOISE_PAGE = 4096
_STATISTICS_VALUES = 1 << 20  # values of signals that are read at once
_LARGEST_SIGNAL = 1e9  # as of weights, among which the statistics are saved


Signals = Float32[np.ndarray, "B S"] | Float32[np.ndarray, "B L S"]


class Examples(NamedTuple):
    """Some rows of a dataset.

    Attributes:
        tokens: Ids in ``0..K``.
        loss_mask: True at positions that count.
        label: See ``SequenceDataset.labels``.
        padding: See ``SequenceDataset.padding``.
        signal: See ``SequenceDataset.signals``.
    """

    tokens: Integer[np.ndarray, "B L"]
    loss_mask: Bool[np.ndarray, "B L"]
    label: Int64[np.ndarray, " B"] | None = None
    padding: Bool[np.ndarray, "B L"] | None = None
    signal: Signals | None = None

    @classmethod
    def read(cls, dataset: SequenceDataset, rows: Int64[np.ndarray, " B"]) -> Examples:
        """Fetch rows of a dataset."""
        tokens, loss_mask = dataset.rows(rows)
        return cls(
            tokens, loss_mask, dataset.labels(rows), dataset.padding(rows), dataset.signals(rows)
        )

    def batch(self, index: Int64[np.ndarray, " B"]) -> Batch:
        """Make a batch; ``index`` is the position of each row in the stream."""
        return Batch(
            torch.from_numpy(self.tokens.astype(np.int64)),
            torch.from_numpy(np.ascontiguousarray(self.loss_mask)),
            torch.from_numpy(index),
            _tensor(self.label),
            padding=_tensor(self.padding),
            signal=_tensor(self.signal),
        )


def _tensor(values: np.ndarray | None) -> torch.Tensor | None:
    return None if values is None else torch.from_numpy(np.ascontiguousarray(values))


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

    def signals(self, indices: Int64[np.ndarray, " B"]) -> Signals | None:
        """Fetch the measured values of rows, NaN where one is unknown; ``None`` without signals."""
        del indices
        return None

    def padding(self, indices: Int64[np.ndarray, " B"]) -> Bool[np.ndarray, "B L"] | None:
        """Mark the padding of rows; ``None`` if every row is full.

        Such positions have the id K and a False loss mask, and ``augment`` leaves them in place.
        """
        del indices
        return None

    def epoch(self, seed: int, number: int) -> SequenceDataset:
        """Return the rows of one epoch of training; every epoch has the same number of rows.

        A dataset that cuts rows from longer sequences may cut them differently in every epoch.

        Args:
            seed: Seed of the run.
            number: Number of the epoch, from 0.
        """
        del seed, number
        return self

    def augment(self, rows: Examples, uniform: Float64[np.ndarray, " B"]) -> Examples:
        """Change training rows at random.

        Args:
            rows: The rows as the dataset stores them.
            uniform: One uniform draw per row.
        """
        del uniform
        return rows


class SignalStatistics(NamedTuple):
    """Statistics of each signal over the rows, or the positions, that have a value.

    Attributes:
        mean: Means.
        std: Standard deviations.
        low: Smallest values.
        high: Largest values.
    """

    mean: Float64[np.ndarray, " S"]
    std: Float64[np.ndarray, " S"]
    low: Float64[np.ndarray, " S"]
    high: Float64[np.ndarray, " S"]


def signal_statistics(dataset: SequenceDataset, names: Sequence[str]) -> SignalStatistics:
    """Compute the statistics of a dataset's signals, in parts of a few rows.

    Values at padding do not count.

    Args:
        dataset: Rows with signals.
        names: Names of the signals, for messages.

    Raises:
        ValueError: If a signal has no value, the same one everywhere, or one beyond 1e9.
    """
    count = mean = square = np.zeros(len(names))  # ``square`` is about the mean
    low, high = np.full(len(names), np.inf), np.full(len(names), -np.inf)
    for values in _signal_parts(dataset):
        known = ~np.isnan(values)
        more = known.sum(axis=0)
        low = np.minimum(low, np.where(known, values, np.inf).min(axis=0))
        high = np.maximum(high, np.where(known, values, -np.inf).max(axis=0))
        if np.isinf(values).any():
            break  # an error below
        here = np.where(known, values, 0).sum(axis=0) / np.maximum(more, 1)
        step, together = here - mean, np.maximum(count + more, 1)
        spread = (np.where(known, values - here, 0) ** 2).sum(axis=0)
        square = square + spread + step**2 * count * more / together
        count, mean = count + more, mean + step * more / together
    table = list(zip(names, count, low, high, strict=True))
    for name, _, least, most in table:
        if least <= most and np.isinf((least, most)).any():
            raise ValueError(
                f"data.signals must be finite, got values from {least:g} to {most:g} of {name!r}; "
                "leave unknown values empty"
            )
        if least <= most and max(-least, most) > _LARGEST_SIGNAL:
            raise ValueError(
                "data.signals must be between -1e9 and 1e9, got values from "
                f"{least:g} to {most:g} of {name!r}; divide them, or take logarithms"
            )
    for name, number, least, most in table:
        if not number or least == most:
            got = f"the single value {least:g}" if number else "no value"
            raise ValueError(
                f"data.signals must vary over the training rows, got {got} of {name!r}; drop the "
                "signal, or correct its values"
            )
    return SignalStatistics(mean, np.sqrt(square / count), low, high)


def _signal_parts(dataset: SequenceDataset) -> Iterator[Float64[np.ndarray, "n S"]]:
    """Read the signals of a few rows at a time, NaN at padding; positions count as rows."""
    first, rows = 0, 1
    while first < len(dataset):
        indices = np.arange(first, min(first + rows, len(dataset)))
        found, padding = dataset.signals(indices), dataset.padding(indices)
        assert found is not None
        values = found.astype(np.float64)
        if found.ndim == 3 and padding is not None:
            values[padding] = np.nan
        yield values.reshape(-1, found.shape[-1])
        first += len(indices)
        rows = max(1, _STATISTICS_VALUES * len(indices) // found.size)


class TrainingStream(Dataset[Batch]):
    """An endless shuffled stream over a dataset, addressed by position.

    Position ``p`` lies in epoch ``p // len(dataset)``; every epoch is its own permutation of the
    rows of ``dataset.epoch``. The content of a position depends on (seed, position) alone, so any
    worker of any device can read any part of the stream, and a resumed run reads what the
    uninterrupted one would have read.
    """

    def __init__(self, dataset: SequenceDataset, seed: int) -> None:
        """Bind a dataset to a seed.

        Args:
            dataset: The dataset.
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
        self._epochs = _Pages(self._open_epoch)
        self._uniforms = _Paged(_NOISE_PAGE, self._uniform_page)

    def _permutation(self, epoch: int) -> np.ndarray:
        return np.random.default_rng((self.seed, epoch)).permutation(len(self.dataset))

    def _open_epoch(self, number: int) -> tuple[SequenceDataset, np.ndarray]:
        return self.dataset.epoch(self.seed, number), self._permutation(number)

    def _uniform_page(self, page: int) -> np.ndarray:
        index = torch.arange(page * _NOISE_PAGE, (page + 1) * _NOISE_PAGE)
        return self._noise.uniform(index, 1, stream=AUGMENT_STREAM)[:, 0].numpy()

    def __getitem__(self, position: int) -> Batch:
        """Read one position."""
        return self.__getitems__([position])

    def __getitems__(self, positions: Sequence[int]) -> Batch:
        """Read a batch of positions."""
        index = np.asarray(positions, dtype=np.int64)
        numbers, places = np.divmod(index, len(self.dataset))
        parts = [self._read(n, places[numbers == n]) for n in np.unique(numbers).tolist()]
        found = parts[0] if len(parts) == 1 else _join(parts, np.argsort(numbers, kind="stable"))
        return self.dataset.augment(found, self._uniforms.at(index)).batch(index)

    def _read(self, number: int, places: np.ndarray) -> Examples:
        dataset, order = self._epochs[number]
        return Examples.read(dataset, order[places])


_Page = TypeVar("_Page")


class _Pages(Generic[_Page]):
    """A cache of pages that are read in order; it keeps the last page and its neighbours."""

    def __init__(self, compute: Callable[[int], _Page]) -> None:
        self._compute = compute
        self._kept: dict[int, _Page] = {}

    def __getitem__(self, number: int) -> _Page:
        if number not in self._kept:
            near = {n: page for n, page in self._kept.items() if abs(n - number) == 1}
            self._kept = {**near, number: self._compute(number)}
        return self._kept[number]


class _Paged:
    """A function of the position, computed for a page of neighbouring positions at once."""

    def __init__(self, size: int, compute: Callable[[int], np.ndarray]) -> None:
        self._size, self._pages = size, _Pages(compute)

    def at(self, positions: Int64[np.ndarray, " B"]) -> Shaped[np.ndarray, " B"]:
        """Look positions up; most lie on the page of the previous call or on the next page."""
        numbers, places = np.divmod(positions, self._size)
        pages = {number: self._pages[number] for number in sorted(set(numbers.tolist()))}
        if len(pages) == 1:
            return next(iter(pages.values()))[places]
        return np.array([pages[n][i] for n, i in zip(numbers.tolist(), places, strict=True)])


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
        return Examples.read(self.dataset, index).batch(index)


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
        """Yield position lists without end."""
        first = self.start + self.rank * self.batch_size
        while True:
            yield list(range(first, first + self.batch_size))
            first += self.world_size * self.batch_size


def _join(parts: Sequence[Examples], order: np.ndarray) -> Examples:
    """Put rows of several epochs together; ``order`` is the position of each row.

    Some parts may have padding and others none.
    """
    place = np.argsort(order)
    padding = None
    if any(part.padding is not None for part in parts):
        pads = [np.zeros_like(p.loss_mask) if p.padding is None else p.padding for p in parts]
        padding = np.concatenate(pads)[place]
    labels = [part.label for part in parts if part.label is not None]
    signals = [part.signal for part in parts if part.signal is not None]
    return Examples(
        np.concatenate([part.tokens for part in parts])[place],
        np.concatenate([part.loss_mask for part in parts])[place],
        np.concatenate(labels)[place] if labels else None,
        padding,
        np.concatenate(signals)[place] if signals else None,
    )

"""The data module that a domain provides, with a tokenizer and datasets."""

from __future__ import annotations

import signal
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from seqdiff.data.dataset import (
    EvaluationSet,
    SequenceDataset,
    Split,
    StreamBatches,
    TrainingStream,
)
from seqdiff.data.tokenizer import Tokenizer
from seqdiff.likelihood import RowNats
from seqdiff.types import Batch


class SequenceDataModule(ABC):
    """Loads a domain's sequences; a subclass implements ``dataset`` and no loader.

    The constructor is cheap and opens no file, so that a run can be described, checked and loaded
    on a machine without its data. The training loader is an endless stream of examples. A
    checkpoint stores the position in this stream, so a resumed run continues with the next example
    even if the number of devices or the batch size has changed.

    Attributes:
        token_name: Name of a token in reports, for example ``base`` or ``word``.
        file_suffix: Suffix of the file format that samples are printed in.
        tokenizer: Maps the domain's strings to ids and back.
        batch_size: Training examples per device and forward pass.
        eval_batch_size: Validation and test examples per device and forward pass.
        num_workers: Loader processes per device; 0 loads in the training process.
        labels: Names of the classes of its examples, in the order of their numbers; ``None``
            without classes. A subclass whose dataset has labels sets it in its constructor.
        signals: Names of the measured values of its examples, in their order; ``None`` without
            signals. A subclass whose dataset has signals sets it in its constructor.
        signal_tracks: Whether each position of an example has its own values, rather than the
            example as a whole.
        context_length: Tokens of a training row, the longest that the model learns; ``None``
            if unknown. A subclass that knows it sets it in its constructor.
        complement: Complement of each token, for data whose rows are read from either strand;
            ``None`` for other data. A subclass sets it in its constructor.
        seed: The run's seed, which fixes the order of the stream and the augmentation.
    """

    token_name: str = "token"
    file_suffix: str = "txt"

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        batch_size: int,
        eval_batch_size: int | None = None,
        num_workers: int = 0,
    ) -> None:
        """Keep the arguments.

        Args:
            tokenizer: Maps the domain's strings to ids and back.
            batch_size: Training examples per device and forward pass.
            eval_batch_size: The same for validation and test; ``None`` means ``batch_size``.
            num_workers: Loader processes per device.

        Raises:
            ValueError: If a batch size is less than 1 or ``num_workers`` is negative.
        """
        self.tokenizer = tokenizer
        self.batch_size = batch_size
        self.eval_batch_size = batch_size if eval_batch_size is None else eval_batch_size
        self.num_workers = num_workers
        self.labels: list[str] | None = None
        self.signals: list[str] | None = None
        self.signal_tracks = False
        self.context_length: int | None = None
        self.complement: tuple[int, ...] | None = None
        self.seed = 0
        for name, least in (("batch_size", 1), ("eval_batch_size", 1), ("num_workers", 0)):
            if getattr(self, name) < least:
                raise ValueError(
                    f"{type(self).__name__}.{name} must be at least {least}, "
                    f"got {getattr(self, name)}; set data.{name}"
                )

    @property
    def counting(self) -> tuple[str, ...]:
        """Sentences for reports: how rows are cut and which positions count."""
        return ()

    @abstractmethod
    def dataset(self, split: Split) -> SequenceDataset:
        """Open a split. It is called several times, so cache what is slow to build.

        Rows come in the order of their source, such as a genome or a text: standard errors assume
        that neighbours are similar and that distant rows are independent.

        A run opens the training split before it trains. Check every split then, so that an empty
        test split is found before training and not after it.

        Raises:
            ValueError: If there is no such split, or it holds nothing.
        """

    def baselines(self, split: Split) -> dict[str, RowNats]:
        """Score a split by cheap models, by name, for comparison in an evaluation.

        Every row of the split is scored, in its order, over the tokens of its loss mask, so that a
        model can be compared with a baseline row by row.
        """
        del split
        return {}

    def training_loader(
        self, split: Split = "train", *, rank: int = 0, world_size: int = 1, start: int = 0
    ) -> DataLoader[Batch]:
        """Read an endless stream as training does, from a position.

        Args:
            split: Split to read.
            rank: This device.
            world_size: Number of devices.
            start: Position of the first example of the first step.
        """
        stream = TrainingStream(self.dataset(split), self.seed)
        batches = StreamBatches(self.batch_size, rank=rank, world_size=world_size, start=start)
        return self._loader(stream, batches)

    def evaluation_loader(
        self,
        split: Split,
        *,
        limit: int | float | None = None,
        rank: int = 0,
        world_size: int = 1,
    ) -> DataLoader[Batch]:
        """Read this device's part of a split; over all devices, each example once.

        Args:
            split: The split.
            limit: Most batches of ``eval_batch_size`` over all devices, or a fraction of the
                examples, from the first one on; ``None`` takes all. The examples do not depend on
                the number of devices.
            rank: This device.
            world_size: Number of devices.

        Raises:
            ValueError: If the split is empty.
        """
        dataset = self.dataset(split)
        if len(dataset) == 0:
            raise ValueError(
                f"{type(self).__name__}.dataset({split!r}) must hold at least one example, got 0; "
                "use a shorter window length or more sequence"
            )
        most = len(dataset)
        if isinstance(limit, int):
            most = min(most, limit * self.eval_batch_size)
        elif limit is not None:
            most = max(1, int(limit * most))
        return self.rows_loader(dataset, range(most), rank=rank, world_size=world_size)

    def rows_loader(
        self,
        dataset: SequenceDataset,
        rows: Sequence[int],
        *,
        rank: int = 0,
        world_size: int = 1,
    ) -> DataLoader[Batch]:
        """Read this device's part of some rows of a dataset; over all devices, each row once.

        Args:
            dataset: Rows like those of ``dataset``, of this tokenizer.
            rows: Their positions, at least one.
            rank: This device.
            world_size: Number of devices.
        """
        parts = EvaluationBatches(len(rows), self.eval_batch_size, rank=rank, world_size=world_size)
        batches = [[rows[place] for place in part] for part in parts]
        return self._loader(EvaluationSet(dataset), batches)

    def _loader(
        self, dataset: Dataset[Batch], batches: Sampler[list[int]] | Sequence[list[int]]
    ) -> DataLoader[Batch]:
        return DataLoader(
            dataset,
            batch_sampler=batches,
            collate_fn=_as_is,
            num_workers=self.num_workers,
            worker_init_fn=_ignore_signals,
            persistent_workers=self.num_workers > 0,
            pin_memory=torch.cuda.is_available(),
        )

    def found(self) -> dict[str, object]:
        """Return arguments of the constructor that follow from the files.

        A run stores them, so that it can be used without the files.
        """
        return {}

    def prepare(self) -> None:  # noqa: B027  a subclass may have nothing to build
        """Build caches; called by one process per machine before the others open a dataset."""


class NoData(SequenceDataModule):
    """A tokenizer without sequences: the data of a published network.

    Args:
        tokenizer: Tokenizer of the network.
        token_name: What reports call a token.
        file_suffix: Suffix of the file format that samples are printed in.
    """

    def __init__(self, tokenizer: Tokenizer, *, token_name: str, file_suffix: str) -> None:
        super().__init__(tokenizer, batch_size=1)
        self.token_name, self.file_suffix = token_name, file_suffix

    def dataset(self, split: Split) -> SequenceDataset:
        """Raise an error, since there is no data.

        Raises:
            ValueError: Always.
        """
        raise ValueError(
            f"Run.datamodule must have a {split} split, got a published network without data; "
            "make it a run with data: seqdiff train CONFIG --trainer.max_steps 0"
        )


class EvaluationBatches(Sampler[list[int]]):
    """The batches of one device; over all devices, every example is read exactly once.

    The examples are divided into as few rounds as the batch size allows, and each round into one
    batch per device of nearly equal size. All devices run the same number of batches, except that
    a device has no batch in a round with fewer examples than devices.
    """

    def __init__(
        self, num_examples: int, batch_size: int, *, rank: int = 0, world_size: int = 1
    ) -> None:
        """Describe the part."""
        rounds = -(-num_examples // (batch_size * world_size))
        pieces = rounds * world_size
        cuts = [num_examples * piece // max(pieces, 1) for piece in range(pieces + 1)]
        batches = [range(first, last) for first, last in pairwise(cuts)]
        self._batches = [batch for batch in batches[rank::world_size] if len(batch)]

    def __len__(self) -> int:
        """Count this device's batches."""
        return len(self._batches)

    def __iter__(self) -> Iterator[list[int]]:
        """Yield position lists once."""
        return (list(batch) for batch in self._batches)


def _ignore_signals(worker: int) -> None:
    """Leave signals, which come to all processes of a group, to the process that trains.

    It still needs the loader processes until the end of its step, and they end with it.
    """
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)


def _as_is(batch: Batch | list[Batch]) -> Batch | list[Batch]:
    """Return the batch unchanged: datasets return whole batches."""
    return batch

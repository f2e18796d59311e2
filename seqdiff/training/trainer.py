"""The Trainer of a run, with its metrics and checkpoint files."""

from __future__ import annotations

import csv
import io
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback, LambdaCallback, Timer
from lightning.pytorch.loggers import Logger, TensorBoardLogger

from seqdiff.cells import say
from seqdiff.files import append_text, replacing, write_bytes
from seqdiff.training.callbacks import (
    EMA,
    ClippedScheduleSearch,
    RunCheckpoint,
    StepBar,
    Throughput,
)
from seqdiff.training.config import TrainerConfig
from seqdiff.training.sharding import ShardedStrategy
from seqdiff.training.weights import METRICS_HEADER, METRICS_NAME, Progress, rows_before

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

_NOTHING = Progress()


class AtomicCheckpointIO(TorchCheckpointIO):
    """Saves checkpoints atomically, and loads only tensors and plain values."""

    def save_checkpoint(
        self,
        checkpoint: Mapping[str, object],
        path: str | Path,
        storage_options: object | None = None,
    ) -> None:
        """Write under a temporary name, then rename.

        Raises:
            OSError: If the disk is full; an older checkpoint is then still there.
        """
        buffer = io.BytesIO()
        torch.save(checkpoint, buffer)
        write_bytes(Path(path), buffer.getvalue())


class MetricsFile(Logger):
    """Appends ``step,name,value`` rows to a CSV file at every log step.

    Lightning's CSVLogger rewrites the file, has one column per metric, and cannot drop rows.
    """

    def __init__(self, path: Path, *, first_step: int, every: int) -> None:
        """Open or continue a file; a warning names the steps whose rows are missing.

        Args:
            path: The file; it is not opened for writing before the first row.
            first_step: Rows from this step on are dropped; a run that stopped after its last
                checkpoint leaves such rows.
            every: Steps between two rows.

        Raises:
            ValueError: If the file is no metrics file.
        """
        super().__init__()
        self.path = path
        self._kept = rows_before(first_step, path) if first_step > 0 and path.exists() else []
        last = max((int(row[0]) for row in self._kept), default=-1)
        if last + every < first_step and is_first_process():
            say(
                f"seqdiff: warning: {path} has no rows of steps {last + 1} to {first_step - 1}; "
                "they were lost, and the training goes on without them",
                error=True,
            )
        self._ready = False

    @property
    def name(self) -> str:
        """Name of the logger."""
        return "csv"

    @property
    def version(self) -> str:
        """Empty, since there are no versions."""
        return ""

    def _prepare(self) -> None:
        with replacing(self.path) as temporary, temporary.open("w", newline="") as new:
            csv.writer(new).writerows([METRICS_HEADER, *self._kept])
        self._kept, self._ready = [], True

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Append one row per metric.

        Raises:
            OSError: If the disk is full.
        """
        if not self._ready:
            self._prepare()
        rows = io.StringIO(newline="")
        csv.writer(rows).writerows(
            (step, k, repr(float(v))) for k, v in metrics.items() if k != "epoch"
        )
        append_text(self.path, rows.getvalue())

    @rank_zero_only
    def log_hyperparams(self, params: dict[str, object] | Namespace) -> None:
        """Do nothing: the configuration is in run.yaml."""


class Board(TensorBoardLogger):
    """TensorBoard's files, whose errors name their folder."""

    @property
    def experiment(self) -> SummaryWriter:
        """The writer, which is opened when it is first used.

        Raises:
            OSError: If the files cannot be written.
        """
        with self._named():
            return super().experiment

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Pass one point per metric to TensorBoard's thread.

        Raises:
            OSError: If the thread could not write earlier points, for example on a full disk.
        """
        with self._named():
            super().log_metrics(dict(metrics), step)

    @rank_zero_only
    def save(self) -> None:
        """Write what the thread has not written yet.

        Raises:
            OSError: If it cannot be written.
        """
        with self._named():
            super().save()

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Close the files; after an error, which is what the user must see, without another one.

        Raises:
            OSError: If the last points cannot be written.
        """
        with suppress(OSError) if status == "failed" else self._named():
            super().finalize(status)

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OSError(
                error.errno,
                f"{self.log_dir} must be writable, got: {error.strerror or error}; free some space "
                "or use another disk",
            ) from error


def build_trainer(
    config: TrainerConfig,
    directory: Path,
    *,
    ema_decay: float | None,
    checkpoint_every_n_steps: int,
    tokenizer: str,
    search_batches: int | None = None,
    done: Progress = _NOTHING,
    on_start: Callable[[], None] | None = None,
) -> Trainer:
    """Build a Trainer that writes into a run directory.

    Args:
        config: Lightning's arguments.
        directory: The run directory.
        ema_decay: Decay of the exported average; ``None`` exports the parameters.
        checkpoint_every_n_steps: Optimizer steps between two savings.
        tokenizer: Fingerprint of the tokenizer, saved with the weights.
        search_batches: Batches of a ``ClippedScheduleSearch``; ``None`` does not search.
        done: Progress of a run that is resumed.
        on_start: Called by the first process when everything is loaded, also a checkpoint.

    Raises:
        ValueError: If nothing is left to do, there is a search without validation, the metrics file
            is damaged, or Lightning rejects the arguments, for example a missing device.
    """
    ema = None if ema_decay is None else EMA(ema_decay)
    saving = RunCheckpoint(
        directory, every_n_steps=checkpoint_every_n_steps, ema=ema, tokenizer=tokenizer
    )
    callbacks: list[Callback] = [Throughput(config.log_every_n_steps)]
    if config.enable_progress_bar:
        callbacks.append(StepBar(config.log_every_n_steps))
    if on_start is not None:
        start = rank_zero_only(on_start)
        callbacks.append(LambdaCallback(on_train_start=lambda trainer, module: start()))
    callbacks.append(saving)
    if ema is not None:
        callbacks.append(ema)
    if search_batches is not None:
        every_n_batches = config.val_check_interval
        search = ClippedScheduleSearch(search_batches, every_n_batches=every_n_batches, ema=ema)
        callbacks.append(search)
    arguments = asdict(config)
    arguments["max_steps"] = -1 if config.max_steps is None else config.max_steps
    # Lightning counts batches of a device; the data module limits the rows over all devices.
    arguments["limit_val_batches"] = 0 if config.val_check_interval is None else 1.0
    if config.strategy == "fsdp":
        arguments["strategy"] = ShardedStrategy()
    every = config.log_every_n_steps
    metrics = MetricsFile(directory / METRICS_NAME, first_step=done.step, every=every)
    board = Board(directory, name="", version="tensorboard", purge_step=done.step)
    try:
        trainer = Trainer(
            **arguments,
            max_epochs=-1,
            check_val_every_n_epoch=None,
            num_sanity_val_steps=0,
            logger=[metrics, board],
            callbacks=callbacks,
            plugins=[AtomicCheckpointIO()],
            use_distributed_sampler=False,
            enable_model_summary=False,
            default_root_dir=directory,
        )
    except (MisconfigurationException, ValueError) as error:
        raise ValueError(
            f"TrainerConfig must describe what this machine has, got: {error}; "
            "change that key of trainer"
        ) from error
    _check_left(config, done)
    return trainer


def _check_left(config: TrainerConfig, done: Progress) -> None:
    """Raise an error for a run that would stop before its first step."""
    if config.max_steps is not None and done.step >= config.max_steps:
        raise ValueError(
            f"resume.trainer.max_steps must exceed the {done.step} steps done, got "
            f"{config.max_steps}; add --trainer.max_steps {2 * done.step}"
        )
    if is_over(config, done):
        raise ValueError(
            f"TrainerConfig.max_time must exceed the {done.seconds:.0f} s of training done, "
            f"got {config.max_time}; add --trainer.max_time with more (DD:HH:MM:SS)"
        )


def is_over(config: TrainerConfig, done: Progress) -> bool:
    """Whether no time is left to a run."""
    if config.max_time is None:
        return False
    return (Timer(config.max_time).time_remaining() or 0) <= done.seconds


def was_stopped(trainer: Trainer) -> bool:
    """Whether a signal ended the training before its last step, after saving."""
    saving = trainer.checkpoint_callback
    return isinstance(saving, RunCheckpoint) and saving.stopped


def is_first_process() -> bool:
    """Whether this is the only process, or the first one that a strategy launched."""
    return getattr(rank_zero_only, "rank", 0) == 0

"""Which of Lightning's Trainer arguments a run exposes, and the Trainer made from them."""

from __future__ import annotations

import csv
import io
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import Logger, TensorBoardLogger

from seqdiff.files import replacing, write_bytes
from seqdiff.training.callbacks import EMA, RunCheckpoint, Throughput
from seqdiff.training.progress import StepBar

Precision = Literal["32-true", "bf16-mixed", "bf16-true", "16-mixed", "64-true"]
METRICS_NAME = "metrics.csv"


@dataclass(frozen=True)
class TrainerConfig:
    """Arguments of ``lightning.pytorch.Trainer``, passed on unchanged.

    Attributes:
        max_steps: Optimiser steps of the run.
        max_time: Wall-clock limit over the run and its resumptions, ``DD:HH:MM:SS``.
        accelerator: ``cpu``, ``gpu``, ``auto``, ...
        devices: Number of devices, their indices, or ``auto``.
        num_nodes: Number of machines.
        strategy: ``auto``, ``ddp``, ``fsdp``, ...
        precision: Of the backbone; losses are in float32 or better.
        accumulate_grad_batches: Batches per device and optimiser step.
        gradient_clip_val: Largest gradient norm; null does not clip.
        val_check_interval: Training batches between two validations; null never validates.
        limit_val_batches: Most validation batches per device, or a share of them; null takes all.
        log_every_n_steps: Optimiser steps between two log rows.
        deterministic: Refuse operations that are not deterministic.
        enable_progress_bar: Show a bar.
    """

    max_steps: int = 1000
    max_time: str | None = None
    accelerator: str = "auto"
    devices: int | list[int] | str = 1
    num_nodes: int = 1
    strategy: str = "auto"
    precision: Precision = "32-true"
    accumulate_grad_batches: int = 1
    gradient_clip_val: float | None = None
    val_check_interval: int | None = None
    limit_val_batches: int | float | None = None
    log_every_n_steps: int = 10
    deterministic: bool = False
    enable_progress_bar: bool = True

    def __post_init__(self) -> None:
        """Check what Lightning would only report late.

        Raises:
            ValueError: If a count is less than 1.
        """
        counts = ("max_steps", "accumulate_grad_batches", "log_every_n_steps", "num_nodes")
        for name in (*counts, "val_check_interval"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(
                    f"TrainerConfig.{name} must be at least 1, got {value}; set trainer.{name}"
                )


class AtomicCheckpointIO(TorchCheckpointIO):
    """Saves whole checkpoints or none, and loads nothing but tensors and plain values."""

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
    """Appends ``step,name,value`` rows to a CSV file, one flush a log step."""

    def __init__(self, path: Path, *, first_step: int) -> None:
        """Open or continue a file.

        Args:
            path: The file.
            first_step: Rows of this step and later, left by a run that went on after its last
                checkpoint, are dropped.
        """
        super().__init__()
        self.path = path
        self._first_step = first_step
        self._ready = False

    @property
    def name(self) -> str:
        """Lightning's name for it."""
        return "csv"

    @property
    def version(self) -> str:
        """There is one version."""
        return ""

    def _prepare(self) -> None:
        kept: list[list[str]] = []
        if self._first_step > 0 and self.path.exists():
            with self.path.open(newline="") as old:
                kept = [r for r in list(csv.reader(old))[1:] if int(r[0]) < self._first_step]
        with replacing(self.path) as temporary, temporary.open("w", newline="") as new:
            csv.writer(new).writerows([["step", "name", "value"], *kept])
        self._ready = True

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Append one row a metric."""
        if not self._ready:
            self._prepare()
        with self.path.open("a", newline="") as file:
            rows = [(step, k, repr(float(v))) for k, v in metrics.items() if k != "epoch"]
            csv.writer(file).writerows(rows)

    @rank_zero_only
    def log_hyperparams(self, params: dict[str, object] | Namespace) -> None:
        """The run's configuration is in run.yaml."""


def build_trainer(
    config: TrainerConfig,
    directory: Path,
    *,
    ema_decay: float | None,
    checkpoint_every_n_steps: int,
    first_step: int = 0,
) -> Trainer:
    """Make a Trainer that writes into a run directory.

    Args:
        config: Lightning's arguments.
        directory: The run directory.
        ema_decay: Of the exported average; ``None`` exports the parameters.
        checkpoint_every_n_steps: Optimiser steps between two savings.
        first_step: Optimiser steps already done.

    Raises:
        ValueError: If Lightning refuses the arguments, say for a device that is not there.
    """
    ema = None if ema_decay is None else EMA(ema_decay)
    saving = RunCheckpoint(directory, every_n_steps=checkpoint_every_n_steps, ema=ema)
    callbacks = [Throughput(config.log_every_n_steps), saving]
    callbacks += [] if ema is None else [ema]
    callbacks += [StepBar(config.log_every_n_steps)] if config.enable_progress_bar else []
    arguments = asdict(config)
    if config.val_check_interval is None:
        arguments["limit_val_batches"] = 0
    tensorboard = TensorBoardLogger(
        directory, name="", version="tensorboard", purge_step=first_step
    )
    try:
        return Trainer(
            **arguments,
            max_epochs=-1,
            check_val_every_n_epoch=None,
            num_sanity_val_steps=0,
            logger=[MetricsFile(directory / METRICS_NAME, first_step=first_step), tensorboard],
            callbacks=callbacks,
            plugins=[AtomicCheckpointIO()],
            use_distributed_sampler=False,
            enable_model_summary=False,
            default_root_dir=directory,
        )
    except MisconfigurationException as error:
        raise ValueError(
            f"TrainerConfig must describe what this machine has, got: {error}; "
            "change that key of trainer"
        ) from error


def is_first_process() -> bool:
    """Whether this is the only process, or the first of several that a strategy has launched."""
    return getattr(rank_zero_only, "rank", 0) == 0

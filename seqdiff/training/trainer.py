"""The Trainer of a run, with its metrics and checkpoint files."""

from __future__ import annotations

import io
import os
import shlex
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback, LambdaCallback, Timer
from torch import nn

from seqdiff.files import write_bytes
from seqdiff.trace import Samples
from seqdiff.training.callbacks import (
    EMA,
    ClippedScheduleSearch,
    RunCheckpoint,
    StepBar,
    Throughput,
)
from seqdiff.training.config import TrainerConfig
from seqdiff.training.loggers import Services, build_loggers, log_samples
from seqdiff.training.sharding import ShardedStrategy, list_layers
from seqdiff.training.weights import Progress

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
    describe: Callable[[], dict[str, Any]] | None = None,
    draw_samples: Callable[[], Samples | None] | None = None,
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
        describe: Returns the configuration that loggers show.
        draw_samples: Draws samples from what was just saved, for the loggers that show them.

    Raises:
        ValueError: If nothing is left to do, there is a search without validation, the metrics file
            is damaged, or Lightning rejects the arguments, for example a missing device.
    """
    ema = None if ema_decay is None else EMA(ema_decay)

    def show(trainer: Trainer) -> None:
        if config.draws_samples and draw_samples is not None:
            samples = draw_samples()
            if samples is not None:
                log_samples(trainer.loggers, samples, trainer.global_step)

    saving = RunCheckpoint(
        directory,
        every_n_steps=checkpoint_every_n_steps,
        ema=ema,
        tokenizer=tokenizer,
        on_save=show,
    )
    callbacks: list[Callback] = [Throughput(config.log_every_n_steps)]
    if config.enable_progress_bar:
        callbacks.append(StepBar(config.log_every_n_steps))
    if on_start is not None:
        start = rank_zero_only(on_start)
        callbacks.append(LambdaCallback(on_train_start=lambda trainer, module: start()))
    services = Services(config.loggers, directory, resumed=done.step > 0, describe=describe or dict)
    callbacks += [services, saving]
    if ema is not None:
        callbacks.append(ema)
    if search_batches is not None:
        every_n_batches = config.val_check_interval
        search = ClippedScheduleSearch(search_batches, every_n_batches=every_n_batches, ema=ema)
        callbacks.append(search)
    arguments = asdict(config)
    del arguments["logger"], arguments["compile"]  # not Lightning's
    arguments["max_steps"] = -1 if config.max_steps is None else config.max_steps
    # Lightning counts batches of a device; the data module limits the rows over all devices.
    arguments["limit_val_batches"] = 0 if config.val_check_interval is None else 1.0
    if config.strategy == "fsdp":
        arguments["strategy"] = ShardedStrategy()
    every = config.log_every_n_steps
    loggers = build_loggers(config.loggers, directory, first_step=done.step, every=every)
    try:
        trainer = Trainer(
            **arguments,
            max_epochs=-1,
            check_val_every_n_epoch=None,
            num_sanity_val_steps=0,
            logger=loggers,
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


def check_compile(config: TrainerConfig, network: nn.Module) -> None:
    """Check, before slow work, that ``trainer.compile`` can do something here.

    Raises:
        ValueError: If the network has no lists of layers, or a CPU has no C++ compiler.
    """
    if not config.compile:
        return
    if not list_layers(network):
        raise ValueError(
            f"trainer.compile must be false for {type(network).__name__}, which has no list of "
            "layers; drop it"
        )
    compiler = shlex.split(os.environ.get("CXX") or "g++")[0]
    on_cpu = config.accelerator == "cpu" or not torch.cuda.is_available()
    if on_cpu and shutil.which(compiler) is None:
        raise ValueError(
            f"trainer.compile must be false without the C++ compiler {compiler}, which "
            "torch.compile needs on a CPU; install it, or name another one in CXX"
        )


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

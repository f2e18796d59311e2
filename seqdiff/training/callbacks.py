"""Callbacks: weight averaging, saving, the search of intervals, throughput and the progress bar."""

from __future__ import annotations

import os
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import FrameType

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, Checkpoint, ProgressBar
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn
from torch.utils.data import DataLoader

from seqdiff.backbones import first_broken, without_base
from seqdiff.files import write_bytes
from seqdiff.objectives import BlockNELBO
from seqdiff.progress import Bar
from seqdiff.training.clipping import BETA, OMEGA, ClippedEstimates, Interval, Variances
from seqdiff.training.module import DataLoaders, DiffusionModule
from seqdiff.training.sharding import sharded_like, whole
from seqdiff.training.weights import (
    AVERAGE_PREFIX,
    CHECKPOINT_NAME,
    WEIGHTS_NAME,
    encode_weights,
)
from seqdiff.types import Batch

_STOPS = [getattr(signal, n) for n in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, n)]
_VARIANCE, _UNCLIPPED = "train/loss_variance", "train/loss_variance_unclipped"
_SHOWN = {
    "train/bits_per_token": "train {:.3f}",
    "val/bits_per_token": "val {:.3f} bits",
    "train/lr": "lr {:.2g}",
    "train/tokens_per_second": "{:,.0f} tokens/s",
}


def _module(module: LightningModule) -> DiffusionModule:
    assert isinstance(module, DiffusionModule)
    return module


class BatchCallback(Callback, ABC):
    """Base of callbacks that distinguish optimizer steps from accumulated batches."""

    def __init__(self) -> None:
        """Start at step 0."""
        super().__init__()
        self._step = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note the step at which training starts."""
        self._step = trainer.global_step

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: object,
        batch: Batch,
        batch_idx: int,
    ) -> None:
        """Call ``after_batch``."""
        stepped = trainer.global_step > self._step
        self._step = trainer.global_step
        self.after_batch(trainer, pl_module, batch, stepped)

    @abstractmethod
    def after_batch(
        self, trainer: Trainer, module: LightningModule, batch: Batch, stepped: bool
    ) -> None:
        """Handle the end of a batch; ``stepped`` if it completed an optimizer step."""


class EMA(BatchCallback):
    """An exponential moving average of the denoiser's parameters, used to validate and to export.

    After update number n, counted from 1, average <- average + (1 - d) (parameter - average) with
    d = min(decay, (1 + n) / (10 + n)), so that early weights are soon forgotten. The average is
    in float32 or better.

    Attributes:
        decay: Limit of d, in [0, 1).
        num_updates: Optimizer steps averaged so far.
    """

    def __init__(self, decay: float) -> None:
        """Set the decay.

        Raises:
            ValueError: If it is not in [0, 1).
        """
        if not 0 <= decay < 1:
            raise ValueError(f"EMA.decay must be in [0, 1), got {decay}; 0.9999 is common")
        super().__init__()
        self.decay = decay
        self.num_updates = 0
        self._average: dict[str, Tensor] = {}
        self._replaced: dict[str, Tensor] = {}

    def decay_at(self, update: int) -> float:
        """The decay of one update, counted from 1."""
        return min(self.decay, (1 + update) / (10 + update))

    def start(self, network: nn.Module) -> None:
        """Start from a network's parameters, unless a checkpoint gave an average."""
        parameters = dict(network.named_parameters())
        source = self._average or parameters
        self._average = {
            name: sharded_like(source[name].detach(), p).to(
                device=p.device, dtype=torch.promote_types(p.dtype, torch.float32), copy=True
            )
            for name, p in parameters.items()
        }

    def update(self, network: nn.Module) -> None:
        """Add a network's current parameters to the average."""
        self.num_updates += 1
        parameters = dict(network.named_parameters())
        current = [parameters[n].detach().to(a.dtype) for n, a in self._average.items()]
        average = get_ema_multi_avg_fn(self.decay_at(self.num_updates))
        average(list(self._average.values()), current, self.num_updates)

    @torch.no_grad()
    def apply(self, network: nn.Module) -> None:
        """Replace the parameters by the average, until ``restore``."""
        parameters = dict(network.named_parameters())
        self._replaced = {name: p.detach().clone() for name, p in parameters.items()}
        for name, parameter in parameters.items():
            parameter.copy_(self._average[name])

    @torch.no_grad()
    def restore(self, network: nn.Module) -> None:
        """Undo ``apply``."""
        for name, parameter in network.named_parameters():
            parameter.copy_(self._replaced[name])
        self._replaced = {}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the average."""
        super().on_train_start(trainer, pl_module)
        self.start(_module(pl_module).denoiser)

    def after_batch(
        self, trainer: Trainer, module: LightningModule, batch: Batch, stepped: bool
    ) -> None:
        """Update after each optimizer step."""
        if stepped:
            self.update(_module(module).denoiser)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Validate the average."""
        if self._average:
            self.apply(_module(pl_module).denoiser)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Continue training with the parameters."""
        if self._replaced:
            self.restore(_module(pl_module).denoiser)

    def state_dict(self) -> dict[str, Tensor]:
        """Save the average."""
        weights = {AVERAGE_PREFIX + name: whole(value) for name, value in self._average.items()}
        return {"num_updates": torch.tensor(self.num_updates), **weights}

    def load_state_dict(self, state_dict: dict[str, Tensor]) -> None:
        """Restore the average of a checkpoint."""
        self.num_updates = int(state_dict["num_updates"])
        self._average = {
            name.removeprefix(AVERAGE_PREFIX): average
            for name, average in state_dict.items()
            if name.startswith(AVERAGE_PREFIX)
        }


class RunCheckpoint(BatchCallback, Checkpoint):
    """Keeps the run directory's ``last.ckpt`` and ``model.safetensors`` up to date.

    It saves only between optimizer steps, and delays a request to stop until the accumulated
    gradient has been used, so that a resumed run repeats the uninterrupted one bit for bit.

    While it trains, the first SIGINT, SIGTERM or SIGHUP asks all processes to save after the step
    and to stop. A second one raises ``KeyboardInterrupt`` at once.

    Attributes:
        stopped: Whether such a signal has ended the training before its last step.
    """

    def __init__(
        self,
        directory: Path,
        *,
        every_n_steps: int,
        ema: EMA | None,
        tokenizer: str,
        on_save: Callable[[Trainer], None] | None = None,
    ) -> None:
        """Set where and when to save.

        Args:
            directory: The run directory.
            every_n_steps: Optimizer steps between two savings; it also saves at the end.
            ema: Average to export; ``None`` exports the parameters themselves.
            tokenizer: Fingerprint of the tokenizer.
            on_save: Called by the first process after each saving.

        Raises:
            ValueError: If ``every_n_steps`` is less than 1.
        """
        if every_n_steps < 1:
            raise ValueError(
                f"RunCheckpoint.every_n_steps must be at least 1, got {every_n_steps}; "
                "set checkpoint_every_n_steps"
            )
        super().__init__()
        self.directory = directory
        self.every_n_steps = every_n_steps
        self.ema = ema
        self.tokenizer = tokenizer
        self.on_save = on_save
        self.stopped = False
        self._signalled, self._speaks = False, False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Catch signals, and set the batch counters as if all steps had accumulated as now."""
        super().on_train_start(trainer, pl_module)
        self._speaks = trainer.is_global_zero
        if threading.current_thread() is threading.main_thread():
            for number in _STOPS:  # Lightning restores the former handlers when it ends.
                if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP
                    signal.signal(number, self._on_signal)
        progress = trainer.fit_loop.epoch_loop.batch_progress
        for counts in (progress.total, progress.current):
            state = counts.state_dict()
            shift = self._step * trainer.accumulate_grad_batches - state["ready"]
            counts.load_state_dict({name: count + shift for name, count in state.items()})

    def after_batch(
        self, trainer: Trainer, module: LightningModule, batch: Batch, stepped: bool
    ) -> None:
        """Save every ``every_n_steps`` and at the end."""
        if not stepped:
            trainer.should_stop = False
            return
        finished = trainer.global_step >= trainer.max_steps >= 0
        # The processes of a distributed run agree, since the signal comes at different times.
        if trainer.strategy.reduce_boolean_decision(self._signalled, all=False) and not finished:
            self.stopped = trainer.should_stop = True
        done = finished or trainer.should_stop
        if trainer.global_step % self.every_n_steps == 0 or done:
            self.save(trainer, module)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """Ask for a stop, or raise ``KeyboardInterrupt`` at the second signal."""
        if self._signalled:
            raise KeyboardInterrupt
        self._signalled = True
        if not self._speaks:
            return
        said = b"seqdiff: saving after this step; a second signal stops at once\n"
        try:  # not print, which the signal may have interrupted
            os.write(2, b"\n" + said if os.isatty(2) else said)
        except OSError:  # The terminal is gone, and would stop the bar with an error.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)

    def save(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the checkpoint and the exported weights.

        The first save writes the checkpoint first. A folder with weights and no checkpoint is then
        never what a killed process left, and ``start_run`` does not overwrite it. Later saves write
        the checkpoint last, so that the weights of a checkpoint are always exported.

        Raises:
            FloatingPointError: If the last loss or a parameter is not finite, see
                ``first_broken``; the files are kept.
            OSError: If the disk is full; each file is then the old one.
        """
        assert isinstance(pl_module, DiffusionModule)
        pl_module.check_finite()
        broken = first_broken(dict(pl_module.named_parameters()))
        if broken is not None:
            raise FloatingPointError(
                f"RunCheckpoint must save finite weights, got {broken} at step "
                f"{trainer.global_step}; lower optim.lr"
            )
        if self.ema is not None:
            self.ema.apply(pl_module.denoiser)
        state = trainer.strategy.lightning_module_state_dict()
        encoded = None
        if trainer.is_global_zero:
            prefix = "denoiser."
            weights = {n.removeprefix(prefix): v for n, v in state.items() if n.startswith(prefix)}
            weights = without_base(weights)
            encoded = encode_weights(weights, self.tokenizer, pl_module.denoiser.description)
        if self.ema is not None:
            self.ema.restore(pl_module.denoiser)
        checkpoint = self.directory / CHECKPOINT_NAME
        first = not checkpoint.exists()
        if encoded is not None and not first:
            write_bytes(self.directory / WEIGHTS_NAME, encoded)
        trainer.save_checkpoint(checkpoint, weights_only=False)
        if encoded is not None and first:
            write_bytes(self.directory / WEIGHTS_NAME, encoded)
        if self.on_save is not None and trainer.is_global_zero:
            self.on_save(trainer)


class ClippedScheduleSearch(Callback):
    """Switches, after each validation, to the interval under which the loss varies least.

    It compares the 35 clipped intervals and [0, 1] by the variance of the training loss, in nats
    per counted token of a batch over all devices. All searches use the same batches, a training
    stream over the validation split, with the weights of validation and without dropout. A search
    takes one forward pass per batch and interval on every device. Validation and evaluation are not
    clipped.

    It runs before the first step that follows a validation, so that a run that is resumed there
    searches as well, and continues as the uninterrupted one. Each search logs the interval, and the
    checkpoint holds it. Source: Arriola et al. 2025, arXiv:2503.09573, section 5.

    Attributes:
        num_batches: Batches per search.
        every_n_batches: Training batches between two validations.
    """

    def __init__(
        self, num_batches: int, *, every_n_batches: int | None, ema: EMA | None = None
    ) -> None:
        """Set the batches and the interval of searches.

        Args:
            num_batches: Batches per search.
            every_n_batches: Training batches between two validations.
            ema: The average whose weights are validated; ``None`` for the parameters themselves.

        Raises:
            ValueError: If the run never validates.
        """
        if every_n_batches is None:
            raise ValueError(
                "BlockNELBO.search_batches must go with validation, after which it searches, got "
                f"{num_batches} and none; set trainer.val_check_interval, or drop it"
            )
        super().__init__()
        self.num_batches = num_batches
        self.every_n_batches = every_n_batches
        self._ema = ema
        self._interval: Interval | None = None
        self._loader: DataLoader[Batch] | None = None

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Use the interval of a checkpoint."""
        if self._interval is not None:
            self._use(_module(pl_module), self._interval)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Batch, batch_idx: int
    ) -> None:
        """Search after a validation."""
        done = trainer.fit_loop.epoch_loop.total_batch_idx
        if done == 0 or done % self.every_n_batches:
            return
        module = _module(pl_module)
        with _as_validated(module.denoiser, self._ema):
            found = self.search(trainer, module)
        chosen = found.intervals[found.least]
        self._use(module, chosen)
        row = {
            BETA: chosen.beta,
            OMEGA: chosen.omega,
            _VARIANCE: float(found.values[found.least]),
            _UNCLIPPED: float(found.values[found.intervals.index(Interval(0.0, 1.0))]),
        }
        for logger in trainer.loggers:
            logger.log_metrics(row, step=trainer.global_step)

    def search(self, trainer: Trainer, module: DiffusionModule) -> Variances:
        """Measure the variances, which are the same on all devices."""
        objective = module.objective
        assert isinstance(objective, BlockNELBO)
        estimates = ClippedEstimates(objective, module.denoiser, module.noise, module.dropout)
        with trainer.precision_plugin.val_step_context():
            rows = [estimates.totals(b.to(module.device)) for b in self._batches(trainer)]
        totals = trainer.strategy.reduce(torch.stack(rows), reduce_op="sum")
        assert isinstance(totals, torch.Tensor)
        return estimates.variances(totals)

    def _batches(self, trainer: Trainer) -> Iterator[Batch]:
        """Read this device's parts of the same global batches at every search."""
        if self._loader is None:
            loaders = trainer.datamodule  # type: ignore[attr-defined]
            assert isinstance(loaders, DataLoaders)
            self._loader = loaders.data.training_loader(
                "valid", rank=trainer.global_rank, world_size=trainer.world_size
            )
        return islice(self._loader, self.num_batches)

    def _use(self, module: DiffusionModule, interval: Interval) -> None:
        assert isinstance(module.objective, BlockNELBO)
        self._interval = interval
        module.objective = replace(module.objective, beta=interval.beta, omega=interval.omega)

    def state_dict(self) -> dict[str, float]:
        """Save the interval."""
        return {} if self._interval is None else self._interval._asdict()

    def load_state_dict(self, state_dict: dict[str, float]) -> None:
        """Restore the interval of a checkpoint."""
        self._interval = Interval(state_dict["beta"], state_dict["omega"])


@contextmanager
def _as_validated(network: nn.Module, ema: EMA | None) -> Iterator[None]:
    """Use the mode and the weights of validation inside the context."""
    modes = [(part, part.training) for part in network.modules()]
    network.eval()
    if ema is not None:
        ema.apply(network)
    try:
        yield
    finally:
        if ema is not None:
            ema.restore(network)
        for part, training in modes:
            part.training = training


class Throughput(BatchCallback):
    """Logs ``train/tokens_per_second`` over all devices, between two log steps."""

    def __init__(self, every_n_steps: int) -> None:
        """Set the number of optimizer steps between two log rows."""
        super().__init__()
        self._every_n_steps = every_n_steps
        self._tokens = 0
        self._since = time.perf_counter()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clock."""
        super().on_train_start(trainer, pl_module)
        self._tokens, self._since = 0, time.perf_counter()

    def after_batch(
        self, trainer: Trainer, module: LightningModule, batch: Batch, stepped: bool
    ) -> None:
        """Count, and log at log steps."""
        self._tokens += batch.tokens.numel() * trainer.world_size
        if stepped and trainer.global_step % self._every_n_steps == 0:
            now = time.perf_counter()
            rate = self._tokens / max(now - self._since, 1e-9)
            module.log("train/tokens_per_second", rate, rank_zero_only=True)
            self._tokens, self._since = 0, now


class StepBar(BatchCallback, ProgressBar):
    """Shows steps, losses in bits per token, speed and the time left, on standard error.

    If that is no terminal, it writes a line after the first step and then every 30 seconds.
    """

    def __init__(self, every_n_steps: int) -> None:
        """Make a bar that is not yet shown."""
        super().__init__()
        self._every_n_steps = every_n_steps
        self._progress: Bar | None = None
        self._task: TaskID | None = None
        self._enabled = True

    def disable(self) -> None:
        """Hide the bar; Lightning calls this in all processes but the first."""
        self._enabled = False

    def enable(self) -> None:
        """Show the bar."""
        self._enabled = True

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show the bar."""
        super().on_train_start(trainer, pl_module)
        if not self._enabled or not trainer.is_global_zero:
            return
        self._progress = Bar(
            MofNCompleteColumn(),
            BarColumn(bar_width=16),
            TimeRemainingColumn(),
            TextColumn("{task.fields[metrics]}"),
            early=True,
        )
        self._task = self._progress.add_task(
            "training",
            total=trainer.max_steps if trainer.max_steps >= 0 else None,
            completed=trainer.global_step,
            metrics="",
        )
        self._progress.start()

    def after_batch(
        self, trainer: Trainer, module: LightningModule, batch: Batch, stepped: bool
    ) -> None:
        """Advance, and update the metrics at log steps."""
        if self._progress is None or self._task is None or not stepped:
            return
        changes: dict[str, object] = {"completed": trainer.global_step}
        if trainer.global_step % self._every_n_steps == 0:
            known = trainer.callback_metrics
            shown = [text.format(float(known[key])) for key, text in _SHOWN.items() if key in known]
            changes["metrics"] = "  ".join(shown)
        self._progress.update(self._task, **changes)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop the bar and leave it on the terminal."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Remove the bar before an error is shown."""
        if self._progress is not None:
            self._progress.discard()
            self._progress = None

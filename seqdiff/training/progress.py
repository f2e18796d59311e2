"""One bar over the optimiser steps of a run, instead of one an epoch."""

from __future__ import annotations

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn

from seqdiff.progress import Bar
from seqdiff.training.callbacks import BatchCallback
from seqdiff.types import Batch

_SHOWN = {
    "train/bits_per_token": "train {:.3f}",
    "val/bits_per_token": "val {:.3f} bits",
    "train/tokens_per_second": "{:,.0f} tokens/s",
}


class StepBar(BatchCallback, ProgressBar):
    """Shows steps, losses in bits per token, speed and the time left, on standard error."""

    def __init__(self, every_n_steps: int) -> None:
        """Make a bar that is not yet shown.

        Args:
            every_n_steps: Optimiser steps between two readings of the metrics.
        """
        super().__init__()
        self._every_n_steps = every_n_steps
        self._progress: Bar | None = None
        self._task: TaskID | None = None
        self._enabled = True

    def disable(self) -> None:
        """Lightning's hook: only the first process shows it."""
        self._enabled = False

    def enable(self) -> None:
        """Lightning's hook."""
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
        )
        self._task = self._progress.add_task(
            "training", total=trainer.max_steps, completed=trainer.global_step, metrics=""
        )
        self._progress.start()

    def after_batch(
        self, trainer: Trainer, module: LightningModule, batch: Batch, stepped: bool
    ) -> None:
        """Advance, and read the metrics when they are written anyway."""
        if self._progress is None or self._task is None or not stepped:
            return
        self._progress.update(self._task, completed=trainer.global_step)
        if trainer.global_step % self._every_n_steps == 0:
            known = trainer.callback_metrics
            shown = [text.format(float(known[key])) for key, text in _SHOWN.items() if key in known]
            self._progress.update(self._task, metrics="  ".join(shown))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave the bar as it is."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Give the terminal back before an error is shown."""
        if self._progress is not None:
            self._progress.discard()
            self._progress = None

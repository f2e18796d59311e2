"""A callback that searches the interval of mask fractions whose loss varies least."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch import nn
from torch.utils.data import DataLoader

from seqdiff.objectives import BlockNELBO
from seqdiff.training.callbacks import EMA
from seqdiff.training.clipping import BETA, OMEGA, ClippedEstimates, Interval, Variances
from seqdiff.training.data import DataLoaders
from seqdiff.training.module import DiffusionModule
from seqdiff.types import Batch

_VARIANCE, _UNCLIPPED = "train/loss_variance", "train/loss_variance_unclipped"


class ClippedScheduleSearch(Callback):
    """Switches, after each validation, to the interval under which the loss varies least.

    It compares the 35 clipped intervals and the whole one by the variance of the training loss,
    nats per counted token of a batch over all devices. The batches are those of a training stream
    over the validation split, the same at every search. The weights are those that validation uses,
    and dropout is off. A search takes one forward pass per batch and interval, without gradients,
    on every device. Validation and evaluation are not clipped.

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
            ema: Whose weights are validated; ``None`` for the parameters themselves.

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
        """Measure the variances, which are the same on all devices.

        Args:
            trainer: The Trainer.
            module: The module, with the weights to use.
        """
        objective = module.objective
        assert isinstance(objective, BlockNELBO)
        estimates = ClippedEstimates(objective, module.denoiser, module.noise, module.label_dropout)
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


def _module(module: LightningModule) -> DiffusionModule:
    assert isinstance(module, DiffusionModule)
    return module


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

"""Lightning's module, with the loss, and its data module, with the position in the stream."""

from __future__ import annotations

import math

import torch
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.callbacks import Callback, Timer
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from torch.utils.data import DataLoader

from seqdiff.backbones import ScheduledBackbone
from seqdiff.data import SequenceDataModule
from seqdiff.denoiser import Denoiser
from seqdiff.objectives import Objective, validation_objective
from seqdiff.rng import SIZE_STREAM, CounterNoise
from seqdiff.training.conditions import ConditionDropout
from seqdiff.training.config import OptimConfig
from seqdiff.training.optim import (
    build_optimizer,
    decay_groups,
    lr_factor,
    lr_scales,
    muon_matrices,
)
from seqdiff.training.sharding import ShardedStrategy, list_layers
from seqdiff.types import Batch

_VALIDATION_SEED = 0


class DiffusionModule(LightningModule):
    """Trains a denoiser by an objective.

    The loss is the sum of the objective's terms over the number of counted tokens in the batch of
    *all* devices. It is scaled so that averaging gradients over devices gives exactly the gradient
    of one device with the same batch. Accumulated batches have equal weights. Validation always
    estimates the negative log-likelihood, see ``validation_objective``, with the same noise, so
    that its values are comparable over time and between objectives.

    A model of several block sizes trains on one of them in each optimizer step, the same for all
    devices and accumulated batches: on each size once in as many consecutive steps as there are
    sizes, in a random order. So it minimises the mean over the sizes. It is validated with the
    largest size, which is that of the denoiser.
    """

    def __init__(
        self,
        denoiser: Denoiser,
        objective: Objective,
        optim: OptimConfig,
        *,
        seed: int,
        max_steps: int | None,
        log_every_n_steps: int = 1,
        dropout: ConditionDropout | None = None,
        compiled: bool = False,
    ) -> None:
        """Set up training.

        Args:
            denoiser: Model to train.
            objective: Loss to minimise.
            optim: Optimizer and learning rate.
            seed: Seed of all corruption and dropout noise, in [0, 2^32).
            max_steps: Length of the run in optimizer steps; ``None`` if only time limits it.
            log_every_n_steps: Optimizer steps between two log rows.
            dropout: Hides labels and signals of some training examples from the network;
                by default of none.
            compiled: Whether ``torch.compile`` compiles the layers of the network, one by one,
                when they are first called.

        Raises:
            ValueError: If the objective does not fit the denoiser.
        """
        super().__init__()
        objective.check(denoiser)
        self.denoiser = denoiser
        self.objective = objective
        self.optim = optim
        self.max_steps = max_steps
        self.log_every_n_steps = log_every_n_steps
        self.dropout = ConditionDropout() if dropout is None else dropout
        self.noise = CounterNoise(seed)
        self._compiled = compiled
        self._groups = (decay_groups(denoiser), lr_scales(denoiser), muon_matrices(denoiser))
        self._unchecked: Tensor | None = None
        self._validation = (
            validation_objective(objective, denoiser),
            CounterNoise(_VALIDATION_SEED),
        )
        self._sums = torch.zeros(2, dtype=torch.float64)
        self._window = torch.zeros(2, dtype=torch.float64)
        self._window_start = 0
        self._time_fraction = 0.0

    def _totals(self, nats: Tensor, batch: Batch) -> Tensor:
        """Add up the nats and counted tokens of the batch over all devices."""
        local = torch.stack((nats.detach().double(), batch.loss_mask.sum().double()))
        total = self.trainer.strategy.reduce(local, reduce_op="sum")
        assert isinstance(total, Tensor)
        return total

    def configure_model(self) -> None:
        """Compile layers if wanted, and shard the network if the strategy does."""
        for layer in list_layers(self.denoiser.backbone) if self._compiled else ():
            layer.compile()
        strategy = self.trainer.strategy
        if isinstance(strategy, ShardedStrategy):
            strategy.shard(self, self.denoiser.backbone, "training_step", "validation_step")

    def on_train_start(self) -> None:
        """Apply the configured optimizer settings, which override those of a checkpoint."""
        fresh = build_optimizer(self.denoiser, self.optim, *self._groups).param_groups
        factor = self._lr_factor(self.global_step)
        for group, wanted in zip(self.trainer.optimizers[0].param_groups, fresh, strict=True):
            names = [name for name in ("weight_decay", "betas", "eps") if name in wanted]
            group |= {name: wanted[name] for name in names}
            group |= {"initial_lr": wanted["lr"], "lr": wanted["lr"] * factor}
        for entry in self.trainer.lr_scheduler_configs:
            entry.scheduler.base_lrs = [group["lr"] for group in fresh]

    def _lr_factor(self, step: int) -> float:
        return lr_factor(self.optim, step, self.max_steps, self._time_fraction)

    def lr_scheduler_step(self, scheduler: LRScheduler, metric: object | None) -> None:
        """Set the learning rate of the next step, also by the first process's clock.

        A checkpoint holds the fraction of the time that it was set by, so that a resumed run starts
        with the same learning rate.
        """
        callbacks: list[Callback] = getattr(self.trainer, "callbacks", [])
        timer = next((c for c in callbacks if isinstance(c, Timer)), None)
        left = None if timer is None else timer.time_remaining()
        if timer is not None and left is not None:
            spent = timer.time_elapsed()
            fraction = self.trainer.strategy.broadcast(spent / max(spent + left, 1e-9))
            self._time_fraction = min(1.0, fraction)
        scheduler.step()

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Compute the loss, in nats per counted token.

        Raises:
            FloatingPointError: If the previous loss was not finite.
        """
        self.check_finite()
        if isinstance(self.denoiser.backbone, ScheduledBackbone):
            self.denoiser.backbone.set_step(self.global_step)
        self._seed_dropout(batch)
        batch = self.dropout(batch, self.noise)
        terms = self.objective.terms(self._trained(), batch, self.noise)
        nats = terms.sum()
        totals = self._totals(nats, batch)
        total, count = totals
        self._unchecked = total
        self._log_window(totals)
        return nats * (self.trainer.world_size / count.clamp_min(1)).to(nats.dtype)

    def _trained(self) -> Denoiser:
        """Return the model of this step, with one of its block sizes if it has several.

        The order is a function of the seed and the step, so that a resumed run draws the same.
        """
        sizes, step = self.denoiser.block_sizes, self.global_step
        if len(sizes) < 2:
            return self.denoiser
        cycle = torch.tensor([step // len(sizes)])
        order = self.noise.uniform(cycle, len(sizes), stream=SIZE_STREAM)[0].argsort()
        return self.denoiser.in_blocks(sizes[int(order[step % len(sizes)])])

    def _log_window(self, totals: Tensor) -> None:
        """Log the mean loss since the last log step.

        Args:
            totals: Nats and counted tokens of this batch over all devices.
        """
        if self.global_step % self.log_every_n_steps == 0 and self.global_step > self._window_start:
            self._window, self._window_start = torch.zeros_like(totals), self.global_step
        self._window = self._window.to(totals.device) + totals
        if (self.global_step + 1) % self.log_every_n_steps == 0:
            total, count = self._window
            nats_per_token = total / count.clamp_min(1)
            self.log("train/nats_per_token", nats_per_token)
            self.log("train/bits_per_token", nats_per_token / math.log(2))
            self.log("train/lr", self.trainer.optimizers[0].param_groups[0]["lr"])

    def on_save_checkpoint(self, checkpoint: dict[str, object]) -> None:
        """Save the sums for the next log row, and the kind of model."""
        checkpoint["log_window"] = {"totals": self._window, "start": self._window_start}
        checkpoint["model"] = self.denoiser.description
        checkpoint["time_fraction"] = self._time_fraction

    def on_load_checkpoint(self, checkpoint: dict[str, object]) -> None:
        """Restore the sums for the next log row."""
        window = checkpoint["log_window"]
        assert isinstance(window, dict)
        self._window, self._window_start = window["totals"], window["start"]
        fraction = checkpoint.get("time_fraction", 0.0)
        assert isinstance(fraction, float)
        self._time_fraction = fraction

    def _seed_dropout(self, batch: Batch) -> None:
        """Seed dropout by the position in the stream, so that a resumed run draws the same."""
        first = int(batch.index[0])
        seed = (self.noise.seed * 0x9E3779B97F4A7C15 + first) % 2**63
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            torch.cuda.manual_seed(seed)

    def check_finite(self) -> None:
        """Stop after a loss that is not finite.

        It checks the previous step, which the device has finished, so that there is no waiting.

        Raises:
            FloatingPointError: If the last loss was not finite.
        """
        if self._unchecked is not None and not self._unchecked.isfinite():
            raise FloatingPointError(
                f"DiffusionModule.objective must give a finite loss, got {self._unchecked.item()} "
                f"near step {self.global_step}; lower optim.lr, set trainer.gradient_clip_val, or "
                "use trainer.precision=32-true"
            )

    def on_validation_epoch_start(self) -> None:
        """Reset the sums."""
        self._sums = torch.zeros(2, dtype=torch.float64, device=self.device)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Add one batch, with its labels if there are any, to the estimate."""
        objective, noise = self._validation
        terms = objective.terms(self.denoiser, batch, noise)
        self._sums += torch.stack((terms.sum(dtype=torch.float64), batch.loss_mask.sum().double()))

    def on_validation_epoch_end(self) -> None:
        """Log the estimate over all devices."""
        sums = self.trainer.strategy.reduce(self._sums, reduce_op="sum")
        assert isinstance(sums, Tensor)
        total, count = sums.tolist()
        nats_per_token = total / max(count, 1)
        self.log("val/nats_per_token", nats_per_token, rank_zero_only=True)
        self.log("val/bits_per_token", nats_per_token / math.log(2), rank_zero_only=True)

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """Build the optimizer and its learning rate schedule."""
        optimizer = build_optimizer(self.denoiser, self.optim, *self._groups)
        scheduler = LambdaLR(optimizer, lambda step: self._lr_factor(step))
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }


class DataLoaders(LightningDataModule):
    """Lightning's hooks over a data module.

    A checkpoint holds the position in examples, so a resumed run continues exactly there even if
    the number of devices or the batch size has changed. Lightning stores it under the name of the
    class: see ``loaders``.

    Attributes:
        data: The data module.
        limit_val_batches: See ``TrainerConfig``.
    """

    def __init__(
        self, data: SequenceDataModule, limit_val_batches: int | float | None = None
    ) -> None:
        super().__init__()
        self.data, self.limit_val_batches = data, limit_val_batches
        self._start = 0
        self._start_step: int | None = None

    @property
    def position(self) -> int:
        """Examples of the stream that have entered an optimizer step."""
        if self._start_step is None or self.trainer is None:
            return self._start
        steps = self.trainer.global_step - self._start_step
        per_step = self.trainer.world_size * self.trainer.accumulate_grad_batches
        return self._start + steps * self.data.batch_size * per_step

    def prepare_data(self) -> None:
        """Build caches, in one process per machine."""
        self.data.prepare()

    def train_dataloader(self) -> DataLoader[Batch]:
        """Read the training stream from the present position."""
        assert self.trainer is not None
        self._start, self._start_step = self.position, self.trainer.global_step
        rank, world_size = self.trainer.global_rank, self.trainer.world_size
        return self.data.training_loader(rank=rank, world_size=world_size, start=self._start)

    def val_dataloader(self) -> DataLoader[Batch]:
        """Read this device's part of the validation split."""
        assert self.trainer is not None
        rank, world_size = self.trainer.global_rank, self.trainer.world_size
        return self.data.evaluation_loader(
            "valid", limit=self.limit_val_batches, rank=rank, world_size=world_size
        )

    def state_dict(self) -> dict[str, int]:
        """Return the position, for a checkpoint."""
        return {"position": self.position}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Continue from the position of a checkpoint."""
        self._start, self._start_step = state_dict["position"], None


def loaders(data: SequenceDataModule, limit_val_batches: int | float | None = None) -> DataLoaders:
    """Wrap a data module in a class of the same name, the key of its position in checkpoints."""
    name = type(data).__qualname__
    return type(name, (DataLoaders,), {"__qualname__": name})(data, limit_val_batches)

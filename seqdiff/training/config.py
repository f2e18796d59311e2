"""Configuration of the optimizer and of Lightning's Trainer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Precision = Literal["32-true", "bf16-mixed", "bf16-true", "16-mixed", "64-true"]
LoggerName = Literal["csv", "tensorboard", "wandb", "mlflow"]


@dataclass(frozen=True)
class OptimConfig:
    """The optimizer and its learning rate.

    Attributes:
        lr: Learning rate after warm-up.
        weight_decay: Decay of the matrices; see ``decay_groups``.
        betas: AdamW's averaging coefficients.
        eps: AdamW's epsilon.
        warmup_steps: Optimizer steps of linear warm-up; the first step already moves.
        muon_lr: Learning rate of Muon, which then trains the matrices of the layers and leaves the
            other parameters to AdamW; null trains all of them with AdamW. Its schedule is that of
            ``lr``; .02 is usual.
        schedule: After the warm-up, ``constant``; half a ``cosine`` down to ``min_lr``; or ``wsd``,
            constant and then linear down to ``min_lr`` in the last ``decay_fraction`` of the run.
        min_lr: Learning rate at the end of the run, with the schedules that decay.
        decay_fraction: Fraction of the run in which ``wsd`` decays.
    """

    lr: float = 3e-4
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    warmup_steps: int = 0
    muon_lr: float | None = None
    schedule: Literal["constant", "cosine", "wsd"] = "constant"
    min_lr: float = 0.0
    decay_fraction: float = 0.2

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            ValueError: If a value is outside its range.
        """
        for name, common in (("lr", 3e-4), ("eps", 1e-8)):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(
                    f"OptimConfig.{name} must be positive, got {getattr(self, name)}; "
                    f"{common} is common"
                )
        if self.muon_lr is not None and not 0 < self.muon_lr < math.inf:
            raise ValueError(
                f"OptimConfig.muon_lr must be positive, got {self.muon_lr}; 0.02 is common"
            )
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(
                f"OptimConfig.betas must be in [0, 1), got {self.betas}; (0.9, 0.999) is common"
            )
        if not 0 <= self.min_lr <= self.lr:
            raise ValueError(
                f"OptimConfig.min_lr must be in [0, lr = {self.lr}], got {self.min_lr}; lower it"
            )
        for name in ("weight_decay", "warmup_steps"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(
                    f"OptimConfig.{name} must be finite and not negative, "
                    f"got {getattr(self, name)}; 0 switches it off"
                )
        if self.schedule == "constant" and self.min_lr > 0:
            raise ValueError(
                f"OptimConfig.min_lr must be 0 with the constant schedule, got {self.min_lr}; "
                "set optim.schedule=cosine"
            )
        if not 0 < self.decay_fraction <= 1:
            raise ValueError(
                f"OptimConfig.decay_fraction must be in (0, 1], got {self.decay_fraction}; 0.2 is "
                "common"
            )


@dataclass(frozen=True)
class TrainerConfig:
    """Arguments of ``lightning.pytorch.Trainer``.

    Attributes:
        max_steps: Optimizer steps of the run; null trains until ``max_time`` is over; 0 saves the
            network without experts, and without training or opening data, which turns a published
            network into a run.
        max_time: Wall-clock limit, ``DD:HH:MM:SS``, of a run including its resumptions, counted
            since a limit was first set. The learning rate follows the fraction of the steps done or
            that of the time spent, whichever is larger, so that it is ``optim.min_lr`` at the end.
        accelerator: ``cpu``, ``gpu``, ``auto``, ...
        devices: Number of devices, their indices, or ``auto``.
        num_nodes: Number of machines.
        strategy: ``auto``, ``ddp``, ... of Lightning, or ``fsdp``, which shards weights, gradients
            and optimizer states over all devices by PyTorch's FSDP2.
        precision: Precision of the backbone; losses are in float32 or better.
        accumulate_grad_batches: Batches per device and optimizer step.
        gradient_clip_val: Largest gradient norm; null does not clip.
        val_check_interval: Training batches between two validations; null never validates.
        limit_val_batches: Most validation batches over all devices, or a fraction of the examples;
            null takes all.
        log_every_n_steps: Optimizer steps between two log rows.
        deterministic: Raise an error on operations that are not deterministic.
        compile: Compile the layers of the network by ``torch.compile`` in the first steps, which
            takes minutes. PyTorch caches the result on disk for later runs. On a CPU this needs a
            C++ compiler.
        enable_progress_bar: Show a bar.
        logger: Where training logs beside metrics.csv, which it always writes: ``tensorboard``,
            ``wandb``, ``mlflow``, a list of them, or ``csv`` for nowhere. Each also gets samples
            and a picture when the run is saved. null writes the metrics for TensorBoard, and draws
            no samples.
    """

    max_steps: int | None = 1000
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
    compile: bool = False
    enable_progress_bar: bool = True
    logger: LoggerName | list[LoggerName] | None = None

    def __post_init__(self) -> None:
        """Check what Lightning would report later.

        Raises:
            ValueError: If a value is outside its range.
        """
        counts = ("max_steps", "accumulate_grad_batches", "log_every_n_steps", "num_nodes")
        for name in (*counts, "val_check_interval"):
            value, least = getattr(self, name), 0 if name == "max_steps" else 1
            if value is not None and value < least:
                raise ValueError(
                    f"TrainerConfig.{name} must be at least {least}, got {value}; "
                    f"set trainer.{name}"
                )
        if self.max_steps is None and self.max_time is None:
            raise ValueError(
                "TrainerConfig.max_steps must be a number without a max_time, got null; set "
                "trainer.max_time, for example 00:00:20:00"
            )
        if self.strategy != "fsdp" and "fsdp" in self.strategy:
            raise ValueError(
                f"TrainerConfig.strategy must be fsdp for sharded weights, got {self.strategy}; "
                "set trainer.strategy=fsdp"
            )
        clip, limit = self.gradient_clip_val, self.limit_val_batches
        if clip is not None and not clip > 0:
            raise ValueError(
                f"TrainerConfig.gradient_clip_val must be positive, got {clip}; null does not clip"
            )
        if limit is not None and not (limit >= 1 if isinstance(limit, int) else 0 < limit <= 1):
            raise ValueError(
                "TrainerConfig.limit_val_batches must be a count of at least 1 or a fraction in "
                f"(0, 1], got {limit}; null takes all"
            )

    @property
    def loggers(self) -> list[LoggerName]:
        """The loggers by name."""
        if self.logger is None:
            return ["tensorboard"]
        return self.logger if isinstance(self.logger, list) else [self.logger]

    @property
    def draws_samples(self) -> bool:
        """Whether a logger shows samples."""
        return self.logger is not None and self.loggers != ["csv"]

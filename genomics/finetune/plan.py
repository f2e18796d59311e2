"""Plans of fine-tuning: which parameters are trained, and how they are optimised."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from genomics.finetune.protocol import WARMUP, WEIGHT_DECAY, Conjoin, Pooling, Strategy
from seqdiff.training import OptimConfig, build_optimizer, decay_groups, lr_factor


@dataclass(frozen=True)
class Recipe:
    """How a network is fine-tuned: AdamW, a warm-up, then half a cosine down to 0.

    Attributes:
        lr: Peak learning rate.
        batch_size: Sequences of a step.
        epochs: Passes over the training part; the best on the validation part is kept.
        weight_decay: Of matrices.
        warmup: Fraction of the steps over which the rate rises.
    """

    lr: float
    batch_size: int
    epochs: int
    weight_decay: float = WEIGHT_DECAY
    warmup: float = WARMUP

    def optimiser(
        self, model: nn.Module, rows: int
    ) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
        """Build the optimiser, and what follows its rate from step to step.

        Args:
            model: What is trained, as far as it requires gradients.
            rows: Training sequences.
        """
        steps = self.epochs * -(-rows // self.batch_size)
        config = OptimConfig(
            lr=self.lr,
            weight_decay=self.weight_decay,
            warmup_steps=round(self.warmup * steps),
            schedule="cosine",
        )
        adam = build_optimizer(model, config, decay_groups(model))
        rate = torch.optim.lr_scheduler.LambdaLR(adam, lambda step: lr_factor(config, step, steps))
        return adam, rate


@dataclass(frozen=True)
class Plan:
    """What is done with a backbone.

    Attributes:
        recipe: Of the optimisation.
        strategy: Train everything, or the head alone on states that stay (linear probe).
        conjoin: See ``SequenceClassifier``.
        length: Most bases that are read; longer sequences are cut to their middle.
        pooling: See ``SequenceClassifier``; ``padded`` fills all rows up to ``length``.
        seed: Of the split, the head and the order.
    """

    recipe: Recipe
    strategy: Strategy
    conjoin: Conjoin
    length: int
    pooling: Pooling
    seed: int

    @property
    def width(self) -> int | None:
        """Of all batches; ``None`` for as much as their longest rows take."""
        return self.length if self.pooling == "padded" else None

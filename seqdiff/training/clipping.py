"""Clipped intervals of mask fractions, and the variance of the training loss under each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from seqdiff.denoiser import Denoiser
from seqdiff.objectives import BlockNELBO
from seqdiff.rng import CounterNoise
from seqdiff.training.conditions import ConditionDropout
from seqdiff.types import Batch

BETA, OMEGA = "train/beta", "train/omega"  # names of logged metrics
_STEPS = 20  # of 0.05, in which the ends of an interval move
_WIDTHS = (10, 12, 14, 16, 18)


class Interval(NamedTuple):
    """The mask fraction of a block is uniform on [beta, omega]."""

    beta: float
    omega: float

    def __str__(self) -> str:
        return f"U[{self.beta:g}, {self.omega:g}]"


def clipping_grid() -> tuple[Interval, ...]:
    """List the intervals that are searched: 35 clipped ones, then the whole one.

    Widths 0.5, 0.6, 0.7, 0.8 and 0.9, in steps of 0.05. Source: Arriola et al. 2025,
    arXiv:2503.09573, section 5.
    """
    clipped = [
        Interval(low / _STEPS, (low + width) / _STEPS)
        for width in _WIDTHS
        for low in range(_STEPS - width + 1)
    ]
    return (*clipped, Interval(0.0, 1.0))


@dataclass(frozen=True)
class Variances:
    """How much an estimate varies from batch to batch, under each interval.

    Attributes:
        intervals: The intervals.
        values: Sample variances.
        standard_errors: Their standard errors, from fourth moments; ``None`` if not measured.
        num_batches: Number of batches.
    """

    intervals: tuple[Interval, ...]
    values: Float64[np.ndarray, " n"]
    standard_errors: Float64[np.ndarray, " n"] | None
    num_batches: int

    @classmethod
    def of(cls, losses: Float64[np.ndarray, "M n"], intervals: tuple[Interval, ...]) -> Variances:
        """Compute the variances of losses.

        Args:
            losses: One row per batch, at least two, and one column per interval.
            intervals: Intervals of the columns.
        """
        count = len(losses)
        values = losses.var(axis=0, ddof=1)
        fourth = ((losses - losses.mean(axis=0)) ** 4).mean(axis=0)
        squared = (fourth - (count - 3) / (count - 1) * values**2) / count
        return cls(intervals, values, np.sqrt(squared.clip(min=0)), count)

    @property
    def least(self) -> int:
        """Index of the interval with the least variance, the first of several."""
        return int(self.values.argmin())


@dataclass(frozen=True)
class ClippedEstimates:
    """The loss of a training step under any interval, with the same draws for all.

    Noise is a function of a row's position in its stream, so that intervals differ only in the map
    from draws to mask fractions (common random numbers). With beta = 0 the true variance is
    infinite: a masked token has the weight 1 / f for a mask fraction f, and the expected square
    contains the integral of 1 / f. The variance over a finite number of batches is finite, and
    grows with the number.

    Attributes:
        objective: The objective, with any interval.
        denoiser: The model.
        noise: Read at ``Batch.index``.
        dropout: Hides labels and signals of some examples.
        intervals: Intervals to compare.
    """

    objective: BlockNELBO
    denoiser: Denoiser
    noise: CounterNoise
    dropout: ConditionDropout = field(default_factory=ConditionDropout)
    intervals: tuple[Interval, ...] = clipping_grid()

    def _nats(self, batch: Batch, interval: Interval) -> Tensor:
        objective = replace(self.objective, beta=interval.beta, omega=interval.omega)
        batch = self.dropout(batch, self.noise)
        return objective.terms(self.denoiser, batch, self.noise).sum()

    @torch.no_grad()
    def totals(self, batch: Batch) -> Float64[Tensor, " columns"]:
        """Compute a batch's nats under each interval and, last, its counted tokens.

        Totals of the parts of a batch, for instance on several devices, can be added. Takes one
        forward pass per interval.
        """
        nats = [self._nats(batch, interval).double() for interval in self.intervals]
        return torch.stack([*nats, batch.loss_mask.sum().double()])

    def variances(self, totals: Float64[Tensor, "M columns"]) -> Variances:
        """Compute the variances of the loss, in nats per counted token, over batches.

        Args:
            totals: From ``totals``, one row per batch, at least two.
        """
        losses = totals[:, :-1] / totals[:, -1:].clamp_min(1)
        return Variances.of(losses.cpu().numpy(), self.intervals)

    def gradient_variances(self, batches: Iterable[Batch]) -> Iterator[float]:
        """Yield for each interval the variance of the gradient of the loss over batches.

        That is (1 / (M - 1)) sum_m ||g_m - mean||^2 over all parameters; Arriola et al. 2025,
        arXiv:2503.09573, equation 10. Takes a forward and a backward pass per batch and interval.

        Args:
            batches: At least two batches; read once for each interval.
        """
        parameters = [p for p in self.denoiser.parameters() if p.requires_grad]
        for interval in self.intervals:
            count, squares = 0, 0.0
            mean = torch.zeros((), dtype=torch.float64)
            for count, batch in enumerate(batches, start=1):
                loss = self._nats(batch, interval) / batch.loss_mask.sum().clamp_min(1)
                gradient = _flat_gradient(loss, parameters)
                change = gradient - mean.to(gradient.device)
                mean = mean.to(gradient.device) + change / count
                squares += float(change @ (gradient - mean))
            yield squares / (count - 1)


def _flat_gradient(loss: Tensor, parameters: list[torch.nn.Parameter]) -> Tensor:
    """Concatenate the gradient of all parameters; 0 where the loss does not depend on one."""
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    parts = [
        torch.zeros_like(parameter) if gradient is None else gradient
        for parameter, gradient in zip(parameters, gradients, strict=True)
    ]
    return torch.cat([part.double().flatten() for part in parts])

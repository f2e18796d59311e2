"""What a network learns of a task: the classes of sequences, or their measured values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from genomics.finetune.classifier import measure
from genomics.finetune.labelled import Labelled, LabelledTask
from seqdiff.extras import require_extra

Measures = dict[str, Any]


def masked_mse(prediction: Float[Tensor, "B S"], target: Float[Tensor, "B S"]) -> Float[Tensor, ""]:
    """Return the mean squared error over known targets, 0 if none is known.

    Args:
        prediction: Predicted values.
        target: Measured values; NaN where one is missing.
    """
    known = ~target.isnan()
    error = torch.where(known, prediction - target.nan_to_num(), 0.0)
    return (error**2).sum() / known.sum().clamp_min(1)


class Goal(ABC):
    """The loss, the predictions and the metrics of a task.

    Attributes:
        metric: Metric on validation by which epochs and settings are chosen; higher is better.
    """

    metric: ClassVar[str]

    @property
    @abstractmethod
    def num_outputs(self) -> int:
        """Number of outputs of a network."""

    @abstractmethod
    def loss(self, outputs: Float[Tensor, "B C"], labels: Tensor) -> Float[Tensor, ""]:
        """Return the loss of a batch.

        Args:
            outputs: Outputs of the network.
            labels: Class numbers, or values.
        """

    @abstractmethod
    def read(self, outputs: Float[Tensor, "B C"]) -> Float[Tensor, "B C"]:
        """Return the predictions that outputs stand for."""

    @abstractmethod
    def score(self, truth: np.ndarray, predictions: Float[np.ndarray, "n C"]) -> float:
        """Compute ``metric``."""

    @abstractmethod
    def measure(self, truth: np.ndarray, predictions: Float[np.ndarray, "n C"]) -> Measures:
        """Compute the metrics of a set of rows, for JSON; an undefined metric is ``None``."""

    def measure_both(
        self,
        truth: np.ndarray,
        predictions: Float[np.ndarray, "n C"],
        seen: Bool[np.ndarray, " n"],
    ) -> dict[str, Measures]:
        """Compute the metrics on a whole test set, and on its rows that do not occur in training.

        Args:
            truth: Class numbers, or values.
            predictions: The result of ``read``.
            seen: From ``genomics.finetune.labelled.seen_in_task``.
        """
        return {
            "test": self.measure(truth, predictions),
            "unseen": self.measure(truth[~seen], predictions[~seen]),
        }


@dataclass(frozen=True)
class Classes(Goal):
    """Classification by cross-entropy; predictions are probabilities.

    Attributes:
        num_classes: Number of classes.
    """

    num_classes: int
    metric: ClassVar[str] = "accuracy"

    @property
    def num_outputs(self) -> int:
        """Number of classes."""
        return self.num_classes

    def loss(self, outputs: Float[Tensor, "B C"], labels: Tensor) -> Float[Tensor, ""]:
        """Return the cross-entropy in nats."""
        return F.cross_entropy(outputs, labels)

    def read(self, outputs: Float[Tensor, "B C"]) -> Float[Tensor, "B C"]:
        """Return the probabilities of the classes."""
        return outputs.softmax(dim=-1)

    def score(self, truth: Int64[np.ndarray, " n"], predictions: Float[np.ndarray, "n C"]) -> float:
        """Compute the accuracy."""
        return float((predictions.argmax(axis=1) == truth).mean())

    def measure(
        self, truth: Int64[np.ndarray, " n"], predictions: Float[np.ndarray, "n C"]
    ) -> Measures:
        """Compute the metrics of ``genomics.finetune.classifier.Scores``."""
        return measure(truth, predictions).record()


@dataclass(frozen=True)
class Values(Goal):
    """Regression by the squared error of standardised values; missing values are ignored.

    Predictions have the units of the table. Metrics are means over the columns.

    Attributes:
        columns: Names of the values.
        mean: Mean of each value in training, which is 0 in the outputs of a network.
        std: Standard deviation of each value in training, which is 1 in the outputs.
    """

    columns: tuple[str, ...]
    mean: Float64[np.ndarray, " S"]
    std: Float64[np.ndarray, " S"]
    metric: ClassVar[str] = "r2"

    @property
    def num_outputs(self) -> int:
        """Number of values."""
        return len(self.columns)

    def loss(self, outputs: Float[Tensor, "B S"], labels: Tensor) -> Float[Tensor, ""]:
        """Return the mean squared error over known values, in units of the training variance."""
        mean, std = (torch.from_numpy(x).to(labels) for x in (self.mean, self.std))
        return masked_mse(outputs, ((labels - mean) / std).to(outputs))

    def read(self, outputs: Float[Tensor, "B S"]) -> Float[Tensor, "B S"]:
        """Return values in the units of the table."""
        mean, std = (torch.from_numpy(x).to(outputs) for x in (self.mean, self.std))
        return outputs * std + mean

    def score(
        self, truth: Float64[np.ndarray, "n S"], predictions: Float[np.ndarray, "n S"]
    ) -> float:
        """Compute the coefficient of determination, 1 - MSE / variance, averaged over columns."""
        errors = np.nanmean((truth - predictions) ** 2, axis=0)
        return float(np.mean(1 - errors / np.nanvar(truth, axis=0)))

    def measure(
        self, truth: Float64[np.ndarray, "n S"], predictions: Float[np.ndarray, "n S"]
    ) -> Measures:
        """Compute Pearson and Spearman correlations by SciPy, and mean squared errors.

        Returns:
            The number of rows, the metrics ``pearson``, ``spearman`` and ``mse`` averaged over
            columns, and ``columns`` with the metrics of each.
        """
        found = {
            name: _measure_column(truth[:, place], predictions[:, place])
            for place, name in enumerate(self.columns)
        }
        means: dict[str, float | None] = {}
        for metric in ("pearson", "spearman", "mse"):
            each = [measures[metric] for measures in found.values()]
            known = [value for value in each if value is not None]
            means[metric] = float(np.mean(known)) if len(known) == len(each) else None
        return {"num": len(truth), **means, "columns": found}


def _measure_column(
    truth: Float64[np.ndarray, " n"], prediction: Float[np.ndarray, " n"]
) -> dict[str, float | int | None]:
    """Compute the metrics of one value; a correlation with a constant is undefined."""
    stats = require_extra("scipy.stats", "finetune", "genomics")
    known = ~np.isnan(truth)
    truth, prediction = truth[known], prediction[known].astype(np.float64)
    result: dict[str, float | int | None] = {"num": len(truth)}
    constant = len(truth) < 2 or np.ptp(truth) == 0 or np.ptp(prediction) == 0
    for name, rule in (("pearson", stats.pearsonr), ("spearman", stats.spearmanr)):
        result[name] = None if constant else float(rule(truth, prediction).statistic)
    result["mse"] = float(np.mean((truth - prediction) ** 2)) if len(truth) else None
    return result


def build_goal(task: LabelledTask, train: Labelled) -> Goal:
    """Build the goal of a task.

    Args:
        task: The task.
        train: Its training part, whose values are standardised.
    """
    if not task.columns:
        return Classes(len(task.classes))
    labels = train.labels.astype(np.float64)
    return Values(task.columns, np.nanmean(labels, axis=0), np.nanstd(labels, axis=0))

"""How well classes are told apart: accuracy, Matthews' correlation, area under the ROC curve."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
from jaxtyping import Bool, Float, Int64

from seqdiff.extras import require_extra


@dataclass(frozen=True)
class Scores:
    """Metrics of one set of rows; ``None`` where one is not defined.

    Attributes:
        num: Rows.
        accuracy: Share of rows whose likeliest class is theirs.
        matthews: Correlation of classes and predictions, in [-1, 1].
        auroc: Area under the ROC curve; for more than two classes, the mean over one against the
            rest.
    """

    num: int
    accuracy: float | None
    matthews: float | None
    auroc: float | None

    def record(self) -> dict[str, float | int | None]:
        """Give what JSON holds."""
        return asdict(self)


def measure(truth: Int64[np.ndarray, " n"], probs: Float[np.ndarray, "n C"]) -> Scores:
    """Compute the metrics by scikit-learn.

    Args:
        truth: Classes.
        probs: Probability of each class.
    """
    metrics = require_extra("sklearn.metrics", "finetune", "genomics")
    if len(truth) == 0:
        return Scores(0, None, None, None)
    found = probs.argmax(axis=1)
    accuracy = float(metrics.accuracy_score(truth, found))
    classes = np.arange(probs.shape[1])
    if len(np.unique(truth)) < len(classes):
        return Scores(len(truth), accuracy, None, None)
    matthews = float(metrics.matthews_corrcoef(truth, found))
    if len(classes) == 2:
        return Scores(
            len(truth), accuracy, matthews, float(metrics.roc_auc_score(truth, probs[:, 1]))
        )
    area = np.mean([metrics.roc_auc_score(truth == c, probs[:, c]) for c in classes])
    return Scores(len(truth), accuracy, matthews, float(area))


def measure_both(
    truth: Int64[np.ndarray, " n"], probs: Float[np.ndarray, "n C"], seen: Bool[np.ndarray, " n"]
) -> dict[str, dict[str, float | int | None]]:
    """Measure on a whole test set, and on its rows that training has not seen.

    Args:
        truth: Classes.
        probs: Probability of each class.
        seen: From ``genomics.labelled_leaks.seen_in_task``.
    """
    return {
        "test": measure(truth, probs).record(),
        "unseen": measure(truth[~seen], probs[~seen]).record(),
    }

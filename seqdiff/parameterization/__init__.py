"""Meanings of a network's outputs: distributions of the clean token, scores, or rates."""

from seqdiff.parameterization.base import (
    Kind,
    Parameterization,
    distribution_from_scores,
    evidence_added,
    evidence_removed,
    scores_from_distribution,
)
from seqdiff.parameterization.probabilities import (
    Categorical,
    Full,
    LeaveOneOut,
    MaskColumn,
    Subs,
    Velocity,
    log_softmax,
)
from seqdiff.parameterization.score import Score, before_the_end

__all__ = [
    "Categorical",
    "Full",
    "Kind",
    "LeaveOneOut",
    "MaskColumn",
    "Parameterization",
    "Score",
    "Subs",
    "Velocity",
    "before_the_end",
    "distribution_from_scores",
    "evidence_added",
    "evidence_removed",
    "log_softmax",
    "scores_from_distribution",
]

"""Objectives of training: losses, and the draws that estimate them."""

from seqdiff.objectives.base import Objective
from seqdiff.objectives.bounds import (
    Autoregressive,
    BlockNELBO,
    ContinuousNELBO,
    DiscreteNELBO,
    WeightedMLM,
    validation_objective,
)
from seqdiff.objectives.cross_entropy import CrossEntropy, MaskedLM
from seqdiff.objectives.gaussian import GaussianVLB
from seqdiff.objectives.time_sampling import (
    VDM,
    Importance,
    Sobol,
    Stratified,
    TimeSampler,
    Uniform,
)
from seqdiff.objectives.token_schedules import TokenScheduleNELBO

__all__ = [
    "VDM",
    "Autoregressive",
    "BlockNELBO",
    "ContinuousNELBO",
    "CrossEntropy",
    "DiscreteNELBO",
    "GaussianVLB",
    "Importance",
    "MaskedLM",
    "Objective",
    "Sobol",
    "Stratified",
    "TimeSampler",
    "TokenScheduleNELBO",
    "Uniform",
    "WeightedMLM",
    "validation_objective",
]

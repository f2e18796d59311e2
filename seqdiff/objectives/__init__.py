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
from seqdiff.objectives.by_symbol import BySymbolNELBO
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

__all__ = [
    "VDM",
    "Autoregressive",
    "BlockNELBO",
    "BySymbolNELBO",
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
    "Uniform",
    "WeightedMLM",
    "validation_objective",
]

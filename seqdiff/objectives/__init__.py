"""What training minimises: a loss and the draws it is estimated with."""

from seqdiff.objectives.autoregressive import Autoregressive
from seqdiff.objectives.base import Objective
from seqdiff.objectives.block import BlockNELBO
from seqdiff.objectives.continuous import ContinuousNELBO
from seqdiff.objectives.cross_entropy import CrossEntropy
from seqdiff.objectives.discrete import DiscreteNELBO
from seqdiff.objectives.gaussian import GaussianVLB
from seqdiff.objectives.masked_lm import MaskedLM
from seqdiff.objectives.time_sampling import (
    VDM,
    Importance,
    Sobol,
    Stratified,
    TimeSampler,
    Uniform,
)
from seqdiff.objectives.validation import validation_objective
from seqdiff.objectives.weighted_mlm import WeightedMLM

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
    "Uniform",
    "WeightedMLM",
    "validation_objective",
]

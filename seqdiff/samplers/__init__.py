"""Samplers: objects that draw sequences from a denoiser."""

from seqdiff.samplers.adaptive import (
    ConfidenceSampler,
    EntropyBudgetSampler,
    EntropySampler,
    MarginSampler,
    ThresholdSampler,
)
from seqdiff.samplers.block import BlockSampler
from seqdiff.samplers.conjoining import Conjoined
from seqdiff.samplers.first_hitting import FirstHittingSampler
from seqdiff.samplers.gaussian import GaussianSampler
from seqdiff.samplers.grid import (
    AncestralSampler,
    CachedAncestralSampler,
    TauLeapingSampler,
    TweedieSampler,
)
from seqdiff.samplers.guidance import BlockClassifierFree, ClassifierFree, Guidance
from seqdiff.samplers.guidance_classifier import (
    Classifier,
    ExactClassifierBased,
    FirstOrderClassifierBased,
    RelaxedClassifier,
)
from seqdiff.samplers.left_to_right import LeftToRightSampler
from seqdiff.samplers.predictor_corrector import GibbsSampler, PredictorCorrectorSampler
from seqdiff.samplers.protocol import Sampler, find_sampler, named_samplers
from seqdiff.samplers.remask import (
    RemaskCapSampler,
    RemaskConfSampler,
    RemaskLoopSampler,
    RemaskRescaleSampler,
)
from seqdiff.samplers.semi_autoregressive import SemiAutoregressiveSampler
from seqdiff.samplers.smc import Particles, SMCSampler
from seqdiff.samplers.trace import Recorder

__all__ = [
    "AncestralSampler",
    "BlockClassifierFree",
    "BlockSampler",
    "CachedAncestralSampler",
    "Classifier",
    "ClassifierFree",
    "ConfidenceSampler",
    "Conjoined",
    "EntropyBudgetSampler",
    "EntropySampler",
    "ExactClassifierBased",
    "FirstHittingSampler",
    "FirstOrderClassifierBased",
    "GaussianSampler",
    "GibbsSampler",
    "Guidance",
    "LeftToRightSampler",
    "MarginSampler",
    "Particles",
    "PredictorCorrectorSampler",
    "Recorder",
    "RelaxedClassifier",
    "RemaskCapSampler",
    "RemaskConfSampler",
    "RemaskLoopSampler",
    "RemaskRescaleSampler",
    "SMCSampler",
    "Sampler",
    "SemiAutoregressiveSampler",
    "TauLeapingSampler",
    "ThresholdSampler",
    "TweedieSampler",
    "find_sampler",
    "named_samplers",
]

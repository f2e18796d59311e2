"""Samplers: objects that draw sequences from a denoiser."""

from seqdiff.samplers.adaptive import (
    ConfidenceSampler,
    EntropyBudgetSampler,
    EntropySampler,
    MarginSampler,
    ThresholdSampler,
)
from seqdiff.samplers.avoidance import WordAutomaton, find_conflict
from seqdiff.samplers.block import BlockSampler, Growth, real_tokens
from seqdiff.samplers.canvas import Canvas
from seqdiff.samplers.conjoining import Conjoined, read_back
from seqdiff.samplers.draws import SeededDraws, row_seeds
from seqdiff.samplers.first_hitting import FirstHittingSampler
from seqdiff.samplers.gaussian import GaussianSampler
from seqdiff.samplers.grid import (
    AncestralSampler,
    CachedAncestralSampler,
    GibbsSampler,
    PredictorCorrectorSampler,
    RemaskCapSampler,
    RemaskConfSampler,
    RemaskLoopSampler,
    RemaskRescaleSampler,
    TauLeapingSampler,
    TweedieSampler,
)
from seqdiff.samplers.guidance import (
    BlockClassifierBased,
    BlockClassifierFree,
    Classifier,
    ClassifierFree,
    ExactClassifierBased,
    FirstOrderClassifierBased,
    Guidance,
    RelaxedClassifier,
)
from seqdiff.samplers.left_to_right import LeftToRightSampler, SemiAutoregressiveSampler
from seqdiff.samplers.protocol import (
    Sampler,
    find_sampler,
    fitting_samplers,
    named_samplers,
    sampler_name,
)
from seqdiff.samplers.recorder import Recorder, Watch, check_room
from seqdiff.samplers.smc import Particles, SMCSampler

__all__ = [
    "AncestralSampler",
    "BlockClassifierBased",
    "BlockClassifierFree",
    "BlockSampler",
    "CachedAncestralSampler",
    "Canvas",
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
    "Growth",
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
    "SeededDraws",
    "SemiAutoregressiveSampler",
    "TauLeapingSampler",
    "ThresholdSampler",
    "TweedieSampler",
    "Watch",
    "WordAutomaton",
    "check_room",
    "find_conflict",
    "find_sampler",
    "fitting_samplers",
    "named_samplers",
    "read_back",
    "real_tokens",
    "row_seeds",
    "sampler_name",
]

"""Likelihoods of sequences under a model, or bounds on them, with standard errors."""

from seqdiff.likelihood.choice import ESTIMATORS, fit, usual_contrast, usual_estimator
from seqdiff.likelihood.contrast import contrast
from seqdiff.likelihood.estimator import Convention, Estimator, PassNoise
from seqdiff.likelihood.evaluation import check_additive, check_budget, evaluate
from seqdiff.likelihood.masks import BernoulliTime, BlockBound, ExactK, SmallK, StratifiedK
from seqdiff.likelihood.orders import (
    ChainRule,
    ConfidentOrder,
    FixedOrder,
    ImportanceWeightedOrders,
    RandomOrderChain,
)
from seqdiff.likelihood.result import Likelihood, RowNats, ratio_error
from seqdiff.likelihood.time_integral import (
    DiscreteSteps,
    GaussianIntegral,
    TimeEstimator,
    TimeIntegral,
)

__all__ = [
    "ESTIMATORS",
    "BernoulliTime",
    "BlockBound",
    "ChainRule",
    "ConfidentOrder",
    "Convention",
    "DiscreteSteps",
    "Estimator",
    "ExactK",
    "FixedOrder",
    "GaussianIntegral",
    "ImportanceWeightedOrders",
    "Likelihood",
    "PassNoise",
    "RandomOrderChain",
    "RowNats",
    "SmallK",
    "StratifiedK",
    "TimeEstimator",
    "TimeIntegral",
    "check_additive",
    "check_budget",
    "contrast",
    "evaluate",
    "fit",
    "ratio_error",
    "usual_contrast",
    "usual_estimator",
]

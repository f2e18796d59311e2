"""Which estimators are for which models."""

from __future__ import annotations

from seqdiff.block_denoiser import BlockDenoiser
from seqdiff.likelihood.blocks import BlockBound
from seqdiff.likelihood.chain import ChainRule
from seqdiff.likelihood.estimator import Estimator
from seqdiff.likelihood.masks import BernoulliTime, ExactK, StratifiedK
from seqdiff.likelihood.small_k import SmallK
from seqdiff.parameterization import Denoiser

BY_MASKS = (BernoulliTime, ExactK, StratifiedK)


def usual_estimator(denoiser: Denoiser) -> Estimator:
    """Choose the estimator of least variance for a model."""
    return ChainRule() if denoiser.kind == "causal" else fit(StratifiedK(), denoiser)


def usual_contrast(denoiser: Denoiser) -> Estimator:
    """Choose the estimator of differences between rows of least variance for a model."""
    return ChainRule() if denoiser.kind == "causal" else fit(SmallK(), denoiser)


def fit(estimator: Estimator, denoiser: Denoiser) -> Estimator:
    """Let an estimator by masks work block by block where the model does.

    Args:
        estimator: By masks, or any that is of the model's kind already.
        denoiser: The model.

    Raises:
        ValueError: If the estimator is of another kind of model, whose numbers would mean nothing.
    """
    if isinstance(denoiser, BlockDenoiser) and isinstance(estimator, BY_MASKS):
        return BlockBound(denoiser.block_size, estimator)
    if estimator.kind == denoiser.kind:
        return estimator
    if denoiser.kind == "causal":
        raise ValueError(
            "evaluate.estimator must be chain-rule for an autoregressive model, got "
            f"{estimator.name}; leave it out"
        )
    if denoiser.kind == "block":
        raise ValueError(
            f"evaluate.estimator must be {', '.join(kind.name for kind in BY_MASKS)} for a model "
            f"of block diffusion, got {estimator.name}; leave it out"
        )
    raise ValueError(
        f"evaluate.estimator must not be {estimator.name} for a model of masked diffusion, "
        "whose tokens see both sides; fixed-order is its likelihood from left to right"
    )

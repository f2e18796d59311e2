"""Choice of an estimator for a model."""

from __future__ import annotations

from seqdiff.denoiser import Denoiser
from seqdiff.likelihood.estimator import Estimator
from seqdiff.likelihood.masks import BernoulliTime, BlockBound, ExactK, SmallK, StratifiedK
from seqdiff.likelihood.orders import (
    ChainRule,
    ConfidentOrder,
    FixedOrder,
    ImportanceWeightedOrders,
    RandomOrderChain,
)
from seqdiff.likelihood.time_integral import DiscreteSteps, GaussianIntegral, TimeIntegral

BY_MASKS = (BernoulliTime, ExactK, StratifiedK)
ESTIMATORS: tuple[type[Estimator], ...] = (
    *BY_MASKS,
    RandomOrderChain,
    ImportanceWeightedOrders,
    FixedOrder,
    ConfidentOrder,
    ChainRule,
    TimeIntegral,
    DiscreteSteps,
    GaussianIntegral,
)


def usual_estimator(
    denoiser: Denoiser, num_steps: int | None = None, evaluations: int | None = None
) -> Estimator:
    """Choose the estimator of least variance for a model.

    Args:
        denoiser: The model.
        num_steps: T if the model was trained as a chain of T steps; ``None`` for continuous time.
        evaluations: Evaluations per pass, if not the default of the estimator.

    Raises:
        ValueError: If no estimator fits the model, or the number of evaluations.
    """
    number = {} if evaluations is None else {"evaluations": evaluations}
    if denoiser.any_order:
        return fit(StratifiedK(**number), denoiser)
    if ChainRule.needs.met_by(denoiser):
        if evaluations is not None:
            raise ValueError(
                f"evaluate.evaluations must be left out for the {denoiser.description}, got "
                f"{evaluations}; {ChainRule.name} takes one"
            )
        return ChainRule()
    if GaussianIntegral.needs.met_by(denoiser):
        return GaussianIntegral(**number)
    if num_steps is not None and DiscreteSteps.needs.met_by(denoiser):
        return DiscreteSteps(**number, num_steps=num_steps)
    return fit(TimeIntegral(**number), denoiser)


def usual_contrast(denoiser: Denoiser) -> Estimator:
    """Choose the estimator of least variance for differences between rows."""
    return fit(SmallK(), denoiser) if denoiser.any_order else usual_estimator(denoiser)


def fit(estimator: Estimator, denoiser: Denoiser, owner: str = "evaluate") -> Estimator:
    """Check that an estimator fits a model; for block diffusion, apply one by masks to each block.

    Args:
        estimator: Any estimator.
        denoiser: The model.
        owner: Function that was given the estimator, for the message.

    Returns:
        The estimator, or a ``BlockBound`` of it.

    Raises:
        ValueError: If the estimator is for other models (names those that fit), or for blocks of
            another size.
    """
    if denoiser.context == "block" and isinstance(estimator, BY_MASKS):
        return BlockBound(denoiser.block_size, estimator)
    if isinstance(estimator, BlockBound) and denoiser.context == "block":
        size = denoiser.block_size
        if estimator.block_size != size:
            raise ValueError(
                f"{owner}.estimator must have the model's blocks of {size} tokens, got "
                f"{estimator.block_size}; pass {estimator.by_masks.name} itself"
            )
    if estimator.needs.met_by(denoiser):
        return estimator
    fitting = BY_MASKS
    if denoiser.context != "block":
        fitting = tuple(kind for kind in ESTIMATORS if kind.needs.met_by(denoiser))
    if not fitting:
        raise ValueError(
            f"{owner}.denoiser must have a bound, got the {denoiser.description}, whose reverse "
            "step alone is known; evaluate it without guidance"
        )
    raise ValueError(
        f"{owner}.estimator must be {' or '.join(kind.name for kind in fitting)} for the "
        f"{denoiser.description}, got {estimator.name}; leave it out"
    )

"""Options of likelihood estimation. Importing this module imports nothing slow."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

if TYPE_CHECKING:
    from seqdiff.likelihood import Estimator
    from seqdiff.run.directory import Trained

# Written out, so that --help imports nothing slow; a test compares them with the classes.
BY_MASKS = ("bernoulli-time", "exact-k", "stratified-k")
BY_ORDERS = ("random-order-chain", "importance-weighted-orders")
BY_TIMES = ("time-integral", "discrete-steps", "gaussian-integral")
EstimatorName = Literal[
    "bernoulli-time",
    "exact-k",
    "stratified-k",
    "random-order-chain",
    "importance-weighted-orders",
    "fixed-order",
    "confident-order",
    "chain-rule",
    "time-integral",
    "discrete-steps",
    "gaussian-integral",
]


@dataclass(frozen=True, kw_only=True)
class EstimatorOptions:
    """Options of likelihood estimation.

    Attributes:
        estimator: Name of an estimator; by default stratified-k for masked and block diffusion,
            chain-rule for an autoregressive run, discrete-steps for a chain of T steps (D3PM),
            gaussian-integral for Gaussian diffusion, and time-integral for every other process.
        convention: mdlm computes the number as published, by bernoulli-time; it is no bound.
        evaluations: Network passes per sequence of an estimator by masks or times; by default 32,
            and 64 for bernoulli-time and the estimators by times.
        steps: Steps of discrete-steps; by default those of training.
        orders: Orders of an estimator by orders, with one network pass per token each; by default
            8, and 12 times 4 for importance-weighted-orders.
        certainty: Which token confident-order unmasks first: by default confidence, the one with
            the most likely symbol; margin is the largest gap between two symbols, entropy the
            lowest entropy. The likelihood is that of the sampler of the same name.
        tokens_per_step: Tokens that confident-order unmasks at a time; by default 1, which takes a
            network pass per token, one after the other.
        target_se: Standard error to aim at, in nats. A first stage measures the variance, and a
            second one has the length that the target requires.
        max_nfe: Maximum number of network passes per sequence.
    """

    estimator: EstimatorName | None = None
    convention: Literal["exact", "mdlm"] = "exact"
    evaluations: int | None = None
    steps: int | None = None
    orders: int | None = None
    certainty: Literal["confidence", "margin", "entropy"] | None = None
    tokens_per_step: int | None = None
    target_se: float | None = None
    max_nfe: int | None = None

    @property
    def budget(self) -> dict[str, Any]:
        """The keyword arguments of ``evaluate`` that limit or extend the number of passes."""
        return {"target_se": self.target_se, "max_nfe": self.max_nfe}


def choose_estimator(owner: str, args: EstimatorOptions) -> Estimator:
    """Build the estimator of some options.

    Args:
        owner: The subcommand, for messages.
        args: The options.

    Raises:
        ValueError: If the options contradict each other, or a number is out of range.
    """
    published = args.convention == "mdlm"
    usual = "stratified-k" if args.steps is None else "discrete-steps"
    name = args.estimator or ("bernoulli-time" if published else usual)
    if published and name != "bernoulli-time":
        raise ValueError(
            f"{owner}.convention mdlm must go with the estimator bernoulli-time, as published "
            f"numbers do, got {name}; leave out --estimator or --convention"
        )
    for flag, names in (
        ("evaluations", (*BY_MASKS, *BY_TIMES)),
        ("orders", BY_ORDERS),
        ("steps", ("discrete-steps",)),
        ("certainty", ("confident-order",)),
        ("tokens_per_step", ("confident-order",)),
    ):
        if getattr(args, flag) is not None and name not in names:
            raise ValueError(
                f"{owner}.{flag} must go with one of {', '.join(names)}, got it with "
                f"{args.estimator or 'no --estimator'}; name one, or leave out "
                f"--{flag.replace('_', '-')}"
            )
    from seqdiff import likelihood

    kinds = {kind.name: kind for kind in likelihood.ESTIMATORS}
    if name not in kinds:
        raise ValueError(
            f"{owner}.estimator must be one of {', '.join(get_args(EstimatorName))}, got {name!r}"
        )
    if args.estimator is None and name == "stratified-k" and args.evaluations is not None:
        if args.evaluations < 2 or args.evaluations % 2:
            raise ValueError(
                f"{owner}.evaluations must be even and at least 2, got {args.evaluations}; "
                f"give {max(2, args.evaluations + 1)}"
            )
    taken = ("evaluations", "orders", "certainty", "tokens_per_step")
    numbers = {name: value for name in taken if (value := getattr(args, name)) is not None}
    if name == "bernoulli-time":
        return likelihood.BernoulliTime(**numbers, convention=args.convention)
    if args.steps is not None:
        numbers["num_steps"] = args.steps
    return kinds[name](**numbers)


def suit(owner: str, estimator: Estimator, args: EstimatorOptions, run: Trained) -> Estimator:
    """Adapt an estimator to a run: by default the usual one of its model.

    Args:
        owner: The subcommand, for messages.
        estimator: From ``choose_estimator``.
        args: The options of that call.
        run: The run to evaluate.

    Raises:
        ValueError: If the estimator or an option does not fit the run.
    """
    from seqdiff.likelihood import DiscreteSteps, fit, usual_estimator
    from seqdiff.objectives import DiscreteNELBO

    if args.estimator is None:
        _check_takes(owner, args, run)
    objective = run.config.objective
    num_steps = objective.num_steps if isinstance(objective, DiscreteNELBO) else None
    if args.estimator is not None or args.convention != "exact" or args.steps is not None:
        if isinstance(estimator, DiscreteSteps) and args.steps is None and num_steps is not None:
            estimator = replace(estimator, num_steps=num_steps)
        return fit(estimator, run.denoiser, owner)
    return usual_estimator(run.denoiser, num_steps, args.evaluations)


def _check_takes(owner: str, args: EstimatorOptions, run: Trained) -> None:
    """Raise ``ValueError`` if an option does not fit the usual estimator of a run."""
    from seqdiff.likelihood import TimeEstimator, usual_estimator

    usual, by_masks = usual_estimator(run.denoiser), run.denoiser.any_order
    for flag, given, takes in (
        ("convention", None if args.convention == "exact" else args.convention, by_masks),
        ("evaluations", args.evaluations, by_masks or isinstance(usual, TimeEstimator)),
    ):
        if given is not None and not takes:
            raise ValueError(
                f"{owner}.{flag} must be left out for the {run.denoiser.description}, whose "
                f"estimator {usual.name} does not take it, got {given}; leave out --{flag}"
            )

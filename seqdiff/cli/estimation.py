"""The arguments that choose how a likelihood is estimated, for every subcommand that does."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from seqdiff.likelihood import Estimator
    from seqdiff.run import Run

# Spelled out, so that --help imports nothing slow; a test compares them with the classes.
BY_MASKS = ("bernoulli-time", "exact-k", "stratified-k")
BY_ORDERS = ("random-order-chain", "importance-weighted-orders")
BY_TIMES = ("time-integral", "discrete-steps", "gaussian-integral")
ESTIMATORS = (*BY_MASKS, *BY_ORDERS, "fixed-order", "chain-rule", *BY_TIMES)
CONVENTIONS = ("exact", "mdlm")


def add_estimator(parser: argparse.ArgumentParser) -> None:
    """Declare what ``choose_estimator`` reads, ``--target_se`` and ``--max_nfe``."""
    parser.add_argument(
        "--estimator",
        choices=ESTIMATORS,
        metavar="NAME",
        help=f"one of {', '.join(ESTIMATORS)}; default: stratified-k for masked and block "
        "diffusion, chain-rule for an autoregressive run, discrete-steps for a chain of T steps "
        "(D3PM), gaussian-integral for Gaussian diffusion, time-integral for every other process",
    )
    parser.add_argument(
        "--convention",
        choices=CONVENTIONS,
        default="exact",
        help="mdlm: account as published, by bernoulli-time; no bound; default: exact",
    )
    parser.add_argument(
        "--evaluations",
        type=int,
        metavar="N",
        help="network passes a sequence of an estimator by masks or times; default: 32; of "
        "bernoulli-time and the estimators by times 64",
    )
    parser.add_argument(
        "--steps", type=int, metavar="T", help="of discrete-steps; default: those of the training"
    )
    parser.add_argument(
        "--orders",
        type=int,
        metavar="M",
        help="orders of an estimator by orders, one network pass a token each; default: 8; of "
        "importance-weighted-orders 4, twelve times over",
    )
    parser.add_argument(
        "--target_se",
        type=float,
        metavar="NATS",
        help="standard error to aim at: a first estimate of the variance tells how many passes "
        "that takes, and the error of those is reported",
    )
    parser.add_argument(
        "--max_nfe", type=int, metavar="N", help="most network passes a sequence; default: no limit"
    )


def choose_estimator(owner: str, args: argparse.Namespace) -> Estimator:
    """Make the estimator that the arguments ask for.

    Args:
        owner: The subcommand, for messages.
        args: With what ``add_estimator`` declares.

    Raises:
        ValueError: If the arguments do not go together, or a number is out of range.
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
    ):
        if getattr(args, flag) is not None and name not in names:
            raise ValueError(
                f"{owner}.{flag} must go with one of {', '.join(names)}, got it with "
                f"{args.estimator or 'no --estimator'}; name one, or leave out --{flag}"
            )
    from seqdiff import likelihood

    if args.estimator is None and name == "stratified-k" and args.evaluations is not None:
        if args.evaluations < 2 or args.evaluations % 2:
            raise ValueError(
                f"{owner}.evaluations must be even and at least 2, got {args.evaluations}; "
                f"give {max(2, args.evaluations + 1)}"
            )
    numbers = {k: v for k in ("evaluations", "orders") if (v := getattr(args, k)) is not None}
    if name == "bernoulli-time":
        return likelihood.BernoulliTime(**numbers, convention=args.convention)
    if args.steps is not None:
        numbers["num_steps"] = args.steps
    return {kind.name: kind for kind in likelihood.ESTIMATORS}[name](**numbers)


def suit(owner: str, estimator: Estimator, args: argparse.Namespace, run: Run) -> Estimator:
    """Make the estimator one for the run: block by block, or exact where the run allows it.

    Args:
        owner: The subcommand, for messages.
        estimator: From ``choose_estimator``.
        args: What that read.
        run: What is to be estimated.

    Raises:
        ValueError: If the arguments ask for an estimator that cannot be the run's.
    """
    from seqdiff.likelihood import DiscreteSteps, TimeEstimator, fit, usual_estimator
    from seqdiff.objectives import DiscreteNELBO

    if args.estimator is None:
        _check_takes(owner, args, run)
    objective = run.config.objective
    num_steps = objective.num_steps if isinstance(objective, DiscreteNELBO) else None
    if args.estimator is not None or args.convention != "exact" or args.steps is not None:
        if isinstance(estimator, DiscreteSteps) and args.steps is None and num_steps is not None:
            estimator = replace(estimator, num_steps=num_steps)
        return fit(estimator, run.denoiser, owner)
    usual = usual_estimator(run.denoiser, num_steps)
    if args.evaluations is None:
        return usual
    if isinstance(usual, TimeEstimator):
        return replace(usual, evaluations=args.evaluations)
    return fit(estimator, run.denoiser, owner)


def _check_takes(owner: str, args: argparse.Namespace, run: Run) -> None:
    """Check that options without an estimator are for the usual one of such a run.

    Raises:
        ValueError: If one is not, before it is blamed on an estimator that nobody named.
    """
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

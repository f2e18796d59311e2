"""The arguments that choose how a likelihood is estimated, for every subcommand that does."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from seqdiff.likelihood import Estimator
    from seqdiff.run import Run

# Spelled out, so that --help imports nothing slow; a test compares them with the classes.
BY_MASKS = ("bernoulli-time", "exact-k", "stratified-k")
BY_ORDERS = ("random-order-chain", "importance-weighted-orders")
ESTIMATORS = (*BY_MASKS, *BY_ORDERS, "fixed-order", "chain-rule")
CONVENTIONS = ("exact", "mdlm")


def add_estimator(parser: argparse.ArgumentParser) -> None:
    """Declare what ``choose_estimator`` reads, ``--target_se`` and ``--max_nfe``."""
    parser.add_argument(
        "--estimator",
        choices=ESTIMATORS,
        metavar="NAME",
        help=f"one of {', '.join(ESTIMATORS)}; default: stratified-k, and chain-rule, which no "
        "other run can have, for an autoregressive run",
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
        help="network passes a sequence of an estimator by masks; default: 32; of bernoulli-time "
        "64",
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
        help="a first estimate tells how many passes make the standard error that small",
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
    name = args.estimator or ("bernoulli-time" if published else "stratified-k")
    if published and name != "bernoulli-time":
        raise ValueError(
            f"{owner}.convention mdlm must go with the estimator bernoulli-time, as published "
            f"numbers do, got {name}; leave out --estimator or --convention"
        )
    for flag, names in (("evaluations", BY_MASKS), ("orders", BY_ORDERS)):
        if getattr(args, flag) is not None and name not in names:
            raise ValueError(
                f"{owner}.{flag} must go with one of {', '.join(names)}, got it with {name}; "
                f"leave out --{flag}"
            )
    from seqdiff import likelihood

    numbers = {k: v for k in ("evaluations", "orders") if (v := getattr(args, k)) is not None}
    if name == "bernoulli-time":
        return likelihood.BernoulliTime(**numbers, convention=args.convention)
    kinds: tuple[type[Estimator], ...] = (
        likelihood.ExactK,
        likelihood.StratifiedK,
        likelihood.RandomOrderChain,
        likelihood.ImportanceWeightedOrders,
        likelihood.FixedOrder,
        likelihood.ChainRule,
    )
    return {kind.name: kind for kind in kinds}[name](**numbers)


def suit(estimator: Estimator, args: argparse.Namespace, run: Run) -> Estimator:
    """Make the estimator one for the run: block by block, or exact where the run allows it.

    Args:
        estimator: From ``choose_estimator``.
        args: What that read.
        run: What is to be estimated.

    Raises:
        ValueError: If the arguments ask for an estimator that cannot be the run's.
    """
    from seqdiff.likelihood import fit, usual_estimator

    asked = (args.estimator, args.evaluations, args.orders)
    if asked == (None, None, None) and args.convention == "exact":
        return usual_estimator(run.denoiser)
    return fit(estimator, run.denoiser)

"""How many passes to make, so that a target or a budget is kept without a bias."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float64

from seqdiff.likelihood.estimator import Estimator
from seqdiff.likelihood.result import effective_degrees

# A variance from fewer is often small by luck, and would make the second stage too short.
_LEAST_DEGREES = 15
# The degrees of freedom are estimated too; fewer are taken for these, which double the variance.
_TRUSTED_DEGREES = 4


def check_budget(
    estimator: Estimator,
    *,
    num_tokens: int,
    target_se: float | None,
    max_nfe: int | None,
    per_call: int = 1,
    owner: str = "evaluate",
) -> None:
    """Refuse, before slow work, a budget that ``evaluate`` could not keep.

    Args:
        estimator: What would be run.
        num_tokens: Counted tokens of the longest sequence; 1 if that is not known yet.
        target_se: See ``evaluate``.
        max_nfe: See ``evaluate``.
        per_call: See ``Denoiser.evaluations_per_call``.
        owner: Who was given them, for the messages.

    Raises:
        ValueError: If ``target_se`` is not positive and finite, or one pass takes more than
            ``max_nfe``.
    """
    if target_se is not None and not 0 < target_se < math.inf:
        raise ValueError(
            f"{owner}.target_se must be above 0 nats and finite, got {target_se}; leave it out for "
            "a fixed number of passes"
        )
    cost = int(estimator.cost(torch.tensor([num_tokens]))) * per_call
    if max_nfe is not None and max_nfe < cost:
        raise ValueError(
            f"{owner}.max_nfe must be at least {cost}, what one pass of {estimator} takes for "
            f"{num_tokens} {'token' if num_tokens == 1 else 'tokens'}, got {max_nfe}; raise it or "
            "choose a cheaper estimator"
        )


@dataclass
class Passes:
    """What the passes of one stage over a row came to."""

    values: list[float] = field(default_factory=list)
    components: list[Float64[np.ndarray, " components"]] = field(default_factory=list)

    def add(self, value: float, components: Float64[np.ndarray, " components"]) -> None:
        """Take in a pass, as ``Estimator.combine`` gives it."""
        self.values.append(value)
        self.components.append(components)

    @property
    def mean(self) -> float:
        """Mean of the values."""
        return math.fsum(self.values) / len(self.values)

    @property
    def variance(self) -> float:
        """Unbiased estimate of the variance of one pass."""
        return math.fsum(map(math.fsum, self.components)) / len(self.components)

    def __add__(self, other: Passes) -> Passes:
        """These and those of another stage over the same row."""
        return Passes(self.values + other.values, self.components + other.components)

    def degrees(self, estimator: Estimator) -> float:
        """Effective degrees of freedom of ``variance``; infinite if there is no randomness."""
        if estimator.exact:
            return math.inf
        components = np.sum(self.components, axis=0)
        each = len(self.components) * estimator.degrees / len(components)
        return effective_degrees(components, each)


class Outcome(NamedTuple):
    """What both stages say of a row: see the attributes of ``Likelihood``."""

    nats: float
    standard_error: float
    degrees: float


@dataclass(frozen=True)
class Budget:
    """How many passes a row gets, in two stages if there is a target.

    The first stage measures the variance, which fixes the length of the second. The estimate is
    w times the first mean plus 1 - w times the second, where w is the first stage's fraction of all
    passes that ``max_nfe`` allows, 0 without a limit. So w is fixed before anything is seen, and
    whatever the length of the second stage, the expectation of its mean is the truth. Where the
    budget is spent, w makes the plain mean of all passes, and the row has what ``max_nfe`` alone
    would give it. A weight that followed the length of the second stage would follow the first
    variance, and with it, in a skewed distribution, the first mean. So would stopping when the
    error so far looks small: it stops where the values happen to be alike, and in a skewed
    distribution those are the small ones.

    A variance that is too small by luck makes the second stage too short, and one that is too large
    does not make up for it: with d degrees of freedom the mean of 1 / variance is d / (d - 2) times
    the truth's (chi-square). The second stage is planned for a variance larger by this factor, so
    that the errors come to about the target in root mean square, and to up to a third more where a
    few rare masks make most of the variance. The standard error that is reported comes
    from the variance of the second stage, and its square has no bias given the length. It may lie
    above the target or below. The first stage's would always lie below, and be too small, by a
    quarter or more where a few rare masks make most of the variance.

    Source: Stein 1945, "A two-sample test for a linear hypothesis whose power is independent of the
    variance"; there the mean is over both stages, which is free of bias for a normal distribution
    only, and the error is that of the first stage.

    Attributes:
        estimator: What makes the passes.
        target_se: See ``evaluate``.
        max_nfe: See ``evaluate``.
        per_call: See ``Denoiser.evaluations_per_call``.
    """

    estimator: Estimator
    target_se: float | None
    max_nfe: int | None
    per_call: int = 1

    def __post_init__(self) -> None:
        """Check what can be checked without data."""
        self.check(1)

    def check(self, num_tokens: int) -> None:
        """See ``check_budget``."""
        check_budget(
            self.estimator,
            num_tokens=num_tokens,
            target_se=self.target_se,
            max_nfe=self.max_nfe,
            per_call=self.per_call,
        )

    def first(self, cost: int) -> int:
        """Passes of the first stage; the only one unless ``second`` asks for more.

        Args:
            cost: Network evaluations of a pass.
        """
        most = math.inf if self.max_nfe is None else self.max_nfe // cost
        if self.estimator.exact or (self.target_se is None and self.max_nfe is None):
            return 1
        if self.target_se is None:
            return int(most)
        return int(min(most, math.ceil(_LEAST_DEGREES / self.estimator.degrees)))

    def second(self, first: Passes, cost: int) -> int:
        """Passes of the second stage; 0 if there is no target, or nothing left to spend.

        Args:
            first: The first stage.
            cost: Network evaluations of a pass.
        """
        if self.estimator.exact or self.target_se is None:
            return 0
        passes = len(first.values)
        most = math.inf if self.max_nfe is None else self.max_nfe // cost - passes
        degrees = max(first.degrees(self.estimator), _TRUSTED_DEGREES)
        variance = first.variance * degrees / (degrees - 2)
        weight = self._weight(first, cost)
        left = self.target_se**2 - weight**2 * variance / passes
        if left <= 0:
            return int(most)
        # No shorter than the first, for the error to have as many degrees of freedom.
        needed = math.ceil((1 - weight) ** 2 * variance / left)
        return int(min(most, max(passes, needed)))

    def combine(self, first: Passes, second: Passes, cost: int) -> Outcome:
        """Put the stages together.

        Args:
            first: The first stage.
            second: The second, maybe empty.
            cost: Network evaluations of a pass.
        """
        passes = first + second
        spent = self.max_nfe is not None and len(passes.values) == self.max_nfe // cost
        if spent or not second.values:
            error = math.sqrt(passes.variance / len(passes.values))
            return Outcome(passes.mean, error, passes.degrees(self.estimator))
        weight = self._weight(first, cost)
        mean = weight * first.mean + (1 - weight) * second.mean
        per_pass = weight**2 / len(first.values) + (1 - weight) ** 2 / len(second.values)
        error = math.sqrt(second.variance * per_pass)
        return Outcome(mean, error, second.degrees(self.estimator))

    def _weight(self, first: Passes, cost: int) -> float:
        """The first stage's fraction of all passes that are allowed."""
        return 0.0 if self.max_nfe is None else len(first.values) / (self.max_nfe // cost)

"""How many passes to make, so that a target or a budget is kept without a bias."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float64

from seqdiff.likelihood.estimator import Estimator
from seqdiff.likelihood.result import effective_degrees

# A variance from fewer is often small by luck, and would make the second stage too short.
_LEAST_DEGREES = 15


def check_budget(
    estimator: Estimator, *, num_tokens: int, target_se: float | None, max_nfe: int | None
) -> None:
    """Refuse, before slow work, a budget that ``evaluate`` could not keep.

    Args:
        estimator: What would be run.
        num_tokens: Counted tokens of the longest sequence; 1 if that is not known yet.
        target_se: See ``evaluate``.
        max_nfe: See ``evaluate``.

    Raises:
        ValueError: If ``target_se`` is not positive, or one pass takes more than ``max_nfe``.
    """
    if target_se is not None and not target_se > 0:
        raise ValueError(
            f"evaluate.target_se must be above 0 nats, got {target_se}; FixedOrder has no error"
        )
    cost = int(estimator.cost(torch.tensor([num_tokens])))
    if max_nfe is not None and max_nfe < cost:
        raise ValueError(
            f"evaluate.max_nfe must be at least {cost}, what one pass of {estimator} takes for "
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

    def degrees(self, estimator: Estimator) -> float:
        """Effective degrees of freedom of ``variance``; infinite if there is no randomness."""
        if estimator.exact:
            return math.inf
        components = np.sum(self.components, axis=0)
        each = len(self.components) * estimator.degrees / len(components)
        return effective_degrees(components, each)


@dataclass(frozen=True)
class Budget:
    """How many passes a row gets, in two stages if there is a target.

    The first stage measures the variance, which fixes the length of the second; the second alone
    gives the mean, which so is independent of what fixed its length, and unbiased for any law.
    Stopping when the error so far looks small is not: it stops where the values happen to be
    alike, and with a skewed law those are the small ones. Source: Stein 1945, "A two-sample test
    for a linear hypothesis whose power is independent of the variance"; there the mean is over
    both stages, which is free of bias for a normal law only.

    Attributes:
        estimator: What makes the passes.
        target_se: See ``evaluate``.
        max_nfe: See ``evaluate``.
    """

    estimator: Estimator
    target_se: float | None
    max_nfe: int | None

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
        needed = max(1, math.ceil(first.variance / self.target_se**2))
        while math.sqrt(first.variance / needed) > self.target_se:
            needed += 1
        if self.max_nfe is None:
            return needed
        return min(needed, self.max_nfe // cost - len(first.values))

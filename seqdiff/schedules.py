"""Noise schedules: the probability alpha(t) that a token is still visible at time t.

Times and values keep their dtype. A schedule is complete when alpha(0) = 1 and alpha(1) = 0; only
then do the prior and reconstruction terms of the bound vanish (Sahoo et al. 2024, arXiv:2406.07524,
section 3.1), so ``Absorbing`` accepts no other. ``Completed`` makes any schedule complete.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override


class NoiseSchedule(ABC):
    """A decreasing alpha: [0, 1] -> [0, 1]. Subclasses are frozen and stateless."""

    @abstractmethod
    def alpha(self, t: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        """Probability that a token is still visible at time t."""

    @abstractmethod
    def dalpha(self, t: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        """Derivative of alpha, never positive."""

    @abstractmethod
    def inverse(self, alpha: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        """Time t at which alpha(t) has the given value."""

    def nelbo_weight(self, t: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        """Weight -alpha'(t) / (1 - alpha(t)) of the continuous-time bound, per unit time.

        Source: Sahoo et al. 2024, arXiv:2406.07524, equation 10.
        """
        return -self.dalpha(t) / (1 - self.alpha(t))

    def sigma(self, t: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        """Total noise -log alpha(t), which SEDD and time embeddings take."""
        return -torch.log(self.alpha(t))

    def dsigma(self, t: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        """Derivative of sigma."""
        return -self.dalpha(t) / self.alpha(t)


def require(value: bool, owner: str, requirement: str, got: object, fix: str) -> None:
    """Raise a ValueError in one line unless an argument is valid."""
    if not value:
        raise ValueError(f"{owner} must {requirement}, got {got}; {fix}")


_COMPLETE = "0 leaves no token visible at t = 1"


@dataclass(frozen=True)
class LogLinear(NoiseSchedule):
    """alpha = 1 - (1 - eps) t, that is sigma = -log(1 - (1 - eps) t).

    Source: Lou et al. 2024, arXiv:2310.16834, section 5; published runs use eps = 1e-3, which never
    masks everything.

    Attributes:
        eps: Visible probability left at t = 1, in [0, 1).
    """

    eps: float = 0.0

    def __post_init__(self) -> None:
        """Check eps."""
        require(0 <= self.eps < 1, "LogLinear.eps", "be in [0, 1)", self.eps, _COMPLETE)

    @override
    def alpha(self, t: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        return 1 - (1 - self.eps) * t

    @override
    def dalpha(self, t: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        return torch.full_like(t, self.eps - 1)

    @override
    def inverse(self, alpha: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        return (1 - alpha) / (1 - self.eps)

    @override
    def nelbo_weight(self, t: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        return 1 / t


@dataclass(frozen=True)
class Polynomial(NoiseSchedule):
    """alpha = 1 - t^power.

    Source: Shi et al. 2024, arXiv:2406.04329, table 4.

    Attributes:
        power: Greater than 0.
    """

    power: float

    def __post_init__(self) -> None:
        """Check the power."""
        require(self.power > 0, "Polynomial.power", "be positive", self.power, "1 is linear")

    @override
    def alpha(self, t: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        return 1 - t**self.power

    @override
    def dalpha(self, t: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        return -self.power * t ** (self.power - 1)

    @override
    def inverse(self, alpha: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        return (1 - alpha) ** (1 / self.power)

    @override
    def nelbo_weight(self, t: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        return self.power / t


@dataclass(frozen=True)
class Linear(LogLinear):
    """alpha = 1 - t."""

    eps: float = field(default=0.0, init=False, repr=False)


@dataclass(frozen=True)
class Cosine(NoiseSchedule):
    """alpha = eps + (1 - eps) cos(pi t / 2).

    Source: Shi et al. 2024, arXiv:2406.04329, table 4 (written there as 1 - cos(pi (1 - t) / 2)
    for the masked fraction run backwards).

    Attributes:
        eps: Visible probability left at t = 1, in [0, 1).
    """

    eps: float = 0.0

    def __post_init__(self) -> None:
        """Check eps."""
        require(0 <= self.eps < 1, "Cosine.eps", "be in [0, 1)", self.eps, _COMPLETE)

    @override
    def alpha(self, t: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        # The sine of the complement is exactly 0 at t = 1.
        return self.eps + (1 - self.eps) * torch.sin(math.pi / 2 * (1 - t))

    @override
    def dalpha(self, t: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        return (self.eps - 1) * math.pi / 2 * torch.sin(math.pi / 2 * t)

    @override
    def inverse(self, alpha: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        cosine = (alpha - self.eps) / (1 - self.eps)  # the half angle is accurate at both ends
        return 4 / math.pi * torch.atan2(torch.sqrt(1 - cosine), torch.sqrt(1 + cosine))

    @override
    def nelbo_weight(self, t: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        return math.pi / 2 / torch.tan(math.pi / 4 * t)


@dataclass(frozen=True)
class CosineSquared(NoiseSchedule):
    """alpha = cos(pi t / 2)^2.

    Source: Sahoo et al. 2024, arXiv:2406.07524, appendix C.1.
    """

    @override
    def alpha(self, t: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        # The sine of the complement is exactly 0 at t = 1.
        return torch.sin(math.pi / 2 * (1 - t)) ** 2

    @override
    def dalpha(self, t: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        return -math.pi * torch.sin(math.pi / 2 * t) * torch.sin(math.pi / 2 * (1 - t))

    @override
    def inverse(self, alpha: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        return 2 / math.pi * torch.atan2(torch.sqrt(1 - alpha), torch.sqrt(alpha))

    @override
    def nelbo_weight(self, t: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        return math.pi / torch.tan(math.pi / 2 * t)


@dataclass(frozen=True)
class Geometric(NoiseSchedule):
    """sigma = sigma_min^(1 - t) sigma_max^t; not complete, wrap it in ``Completed``.

    Source: Lou et al. 2024, arXiv:2310.16834, section 5.

    Attributes:
        sigma_min: Noise at t = 0, positive.
        sigma_max: Noise at t = 1, greater than sigma_min.
    """

    sigma_min: float = 1e-3
    sigma_max: float = 20.0

    def __post_init__(self) -> None:
        """Check the range."""
        require(
            0 < self.sigma_min < self.sigma_max,
            "Geometric.sigma_min, sigma_max",
            "satisfy 0 < sigma_min < sigma_max",
            (self.sigma_min, self.sigma_max),
            "for example 1e-3 and 20",
        )

    @override
    def sigma(self, t: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        return self.sigma_min * torch.exp(t * math.log(self.sigma_max / self.sigma_min))

    @override
    def dsigma(self, t: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        return self.sigma(t) * math.log(self.sigma_max / self.sigma_min)

    @override
    def alpha(self, t: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        return torch.exp(-self.sigma(t))

    @override
    def dalpha(self, t: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        return -self.dsigma(t) * self.alpha(t)

    @override
    def inverse(self, alpha: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        ratio = torch.log(-torch.log(alpha) / self.sigma_min)
        return ratio / math.log(self.sigma_max / self.sigma_min)

    @override
    def nelbo_weight(self, t: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        return self.dsigma(t) / torch.expm1(self.sigma(t))


@dataclass(frozen=True)
class Completed(NoiseSchedule):
    """Another schedule, scaled and shifted such that alpha(0) = 1 and alpha(1) = 0.

    Differences of alpha are taken in float64.

    Attributes:
        schedule: The other schedule, such as ``Geometric`` or ``LogLinear(eps=1e-3)``.
    """

    schedule: NoiseSchedule

    def _ends(self) -> tuple[float, float]:
        first, last = self.schedule.alpha(torch.tensor([0.0, 1.0], dtype=torch.float64)).tolist()
        return first, last

    @override
    def alpha(self, t: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        first, last = self._ends()
        return ((self.schedule.alpha(t.double()) - last) / (first - last)).to(t.dtype)

    @override
    def dalpha(self, t: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        first, last = self._ends()
        return self.schedule.dalpha(t) / (first - last)

    @override
    def inverse(self, alpha: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        first, last = self._ends()
        return self.schedule.inverse(last + (first - last) * alpha.double()).to(alpha.dtype)

    @override
    def nelbo_weight(self, t: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        first, _ = self._ends()
        time = t.double()
        return (-self.schedule.dalpha(time) / (first - self.schedule.alpha(time))).to(t.dtype)

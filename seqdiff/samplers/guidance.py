"""Denoisers that steer another one, so that every sampler can be guided without knowing of it."""

from __future__ import annotations

import math
from abc import ABC

import torch
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor

from seqdiff.parameterization import Denoiser
from seqdiff.samplers.derived import DerivedDenoiser
from seqdiff.types import NO_LABEL


def check_gamma(owner: str, gamma: float) -> None:
    """Refuse a strength that is out of range.

    Args:
        owner: Who was given it, for the message.
        gamma: The strength.

    Raises:
        ValueError: If it is negative or not finite.
    """
    if not 0 <= gamma < math.inf:
        raise ValueError(
            f"{owner}.gamma must be finite and at least 0, got {gamma}; "
            "0 leaves the model as it is, 1 follows Bayes' rule, more exaggerates"
        )


def check_label(owner: str, label: int, known: int | None) -> None:
    """Refuse a label that a network does not know.

    Args:
        owner: Who was given it, for the message.
        label: The class.
        known: Classes of the network, if it has any.

    Raises:
        ValueError: If it has no such class.
    """
    if known is None or not 0 <= label < known:
        raise ValueError(
            f"{owner}.label must be a class of the network, which has {known or 'none'},"
            f" got {label}; "
            + ("train with data.labels" if known is None else f"choose one of 0..{known - 1}")
        )


def mix(
    with_label: Float[Tensor, "*n K"], without: Float[Tensor, "*n K"], gamma: float
) -> Float[Tensor, "*n K"]:
    """Give ``p(x | label)^gamma p(x)^(1 - gamma)``, normalised; what either rules out stays so.

    Args:
        with_label: Log-probabilities in nats.
        without: The same without the label.
        gamma: Strength.
    """
    possible = with_label.isfinite() & without.isfinite()
    mixed = gamma * with_label + (1 - gamma) * without
    return torch.where(possible, mixed, -torch.inf).log_softmax(dim=-1)


class Guidance(DerivedDenoiser, ABC):
    """A denoiser that steers another: give it to a sampler in the other's place.

    Guidance changes the law of each masked position given the visible ones. A sampler that reveals
    one position at a time draws from these laws in turn; one that reveals several at once draws
    them independently, guided or not.

    Args:
        denoiser: The denoiser to steer, itself guided or not.
        gamma: Strength; finite and not negative.

    Raises:
        ValueError: If the strength is out of range.
    """

    def __init__(self, denoiser: Denoiser, gamma: float) -> None:
        super().__init__(denoiser)
        check_gamma(type(self).__name__, gamma)
        self.gamma = gamma
        self.kind = denoiser.kind


class ClassifierFree(Guidance):
    """Guidance towards a label by the network's own two laws, with the label and without.

    At every masked position the law is ``p(x | label)^gamma p(x)^(1 - gamma)``, normalised: 0 is
    the law without a label, 1 the one with it. A letter that either law rules out stays ruled out.
    Every call takes two evaluations of the network, or one if gamma is 0 or 1. Source: Schiff et
    al. 2024, arXiv:2412.10193, there for the reverse step; here for the prediction of x0, which
    leaves the times of revealing alone.

    Args:
        denoiser: Of a network that knows classes.
        label: The class, for all rows.
        gamma: Strength.

    Raises:
        ValueError: If the network has no such class, or the strength is out of range.
    """

    def __init__(self, denoiser: Denoiser, label: int, gamma: float = 1.0) -> None:
        super().__init__(denoiser, gamma)
        check_label(type(self).__name__, label, denoiser.num_classes)
        self.label = label

    def evaluations(
        self,
        x_t: Int[Tensor, "B L"],
        padding: Bool[Tensor, "B L"] | None = None,
        where: Bool[Tensor, "B L"] | None = None,
    ) -> Int64[Tensor, " B"]:
        """See ``Denoiser``."""
        laws = 1 if self.gamma in (0, 1) else 2
        return self.denoiser.evaluations(x_t, padding, where) * laws

    def log_probs_at(
        self,
        x_t: Int[Tensor, "B L"],
        where: Bool[Tensor, "B L"],
        t: Float[Tensor, " B"] | None = None,
        padding: Bool[Tensor, "B L"] | None = None,
        label: Int[Tensor, " B"] | None = None,
    ) -> Float[Tensor, "N K"]:
        """See ``Denoiser``.

        Raises:
            ValueError: If there is another label.
        """
        if label is not None:
            raise ValueError(
                f"ClassifierFree.forward must be given no label, since it has {self.label}, got "
                f"one of shape {tuple(label.shape)}; guide one denoiser for each label"
            )
        wanted = torch.full((len(x_t),), self.label, device=x_t.device)
        if self.gamma == 0:
            return self.denoiser.log_probs_at(x_t, where, t, padding)
        if self.gamma == 1:
            return self.denoiser.log_probs_at(x_t, where, t, padding, wanted)
        both = self.denoiser.log_probs_at(
            torch.cat((x_t, x_t)),
            torch.cat((where, where)),
            None if t is None else torch.cat((t, t)),
            None if padding is None else torch.cat((padding, padding)),
            torch.cat((wanted, torch.full_like(wanted, NO_LABEL))),
        )
        with_label, without = both.chunk(2)
        return mix(with_label, without, self.gamma)

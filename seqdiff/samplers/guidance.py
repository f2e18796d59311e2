"""Denoisers that steer another one, so that every sampler can be guided without knowing of it.

Guidance changes different things in different processes. With masks, it changes the prediction of
the clean token; when a token is unmasked stays as it is. With uniform and hybrid noise it changes
the reverse step: the distribution of z_s given z_t is combined or tilted and normalised, which in
the limit of many steps also changes how often tokens jump (Schiff et al. 2024, arXiv:2412.10193,
equations 2 and 3; the continuous-time form, which scales rates, is another distribution).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Float64, Int, Int64
from torch import Tensor

from seqdiff.backbones import BlockCache
from seqdiff.denoiser import Adjust, Denoiser, Prefix, check_label
from seqdiff.parameterization import Law, log_softmax
from seqdiff.types import NO_LABEL, Inputs


class DerivedDenoiser(Denoiser, ABC):
    """A denoiser whose predictions are made of those of another; samplers take it in its place.

    A new one implements ``forward`` and, if it costs more than the other, ``evaluations``.

    Args:
        denoiser: The other, itself derived or not.

    Raises:
        ValueError: If it is one of block diffusion, which also remembers the blocks behind it, or
            of Gaussian diffusion, which is given embeddings.
    """

    def __init__(self, denoiser: Denoiser) -> None:
        if denoiser.context == "block":
            raise ValueError(
                f"{type(self).__name__}.denoiser must not be one of block diffusion, which reads "
                f"clean blocks apart from noisy ones, got a {type(denoiser).__name__}; "
                "BlockClassifierFree guides those to a label"
            )
        if denoiser.reads_embeddings:
            raise ValueError(
                f"{type(self).__name__}.denoiser must be given symbols, as those of absorbing, "
                f"uniform and hybrid noise are, got the {denoiser.description}; train one of those"
            )
        torch.nn.Module.__init__(self)
        self.backbone = denoiser.backbone
        self.process = denoiser.process
        self.parameterization = denoiser.parameterization
        self.denoiser = denoiser

    @abstractmethod
    def forward(
        self, inputs: Inputs, where: Bool[Tensor, "B L"] | None = None
    ) -> Float[Tensor, "*positions columns"]:
        """See ``Denoiser``."""

    @property
    def num_classes(self) -> int | None:
        """See ``Denoiser``."""
        return self.denoiser.num_classes


def check_gamma(owner: str, gamma: float) -> None:
    """Check the strength of guidance.

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


def mix(both: Float[Tensor, "*n K"], gamma: float) -> Float[Tensor, "*m K"]:
    """Give ``p(x | label)^gamma p(x)^(1 - gamma)``, normalised; what either rules out stays so.

    Args:
        both: Log-probabilities in nats: with the label, and below as many without.
        gamma: Strength.
    """
    with_label, without = both.chunk(2)
    possible = with_label.isfinite() & without.isfinite()
    mixed = gamma * with_label + (1 - gamma) * without
    return torch.where(possible, mixed, -torch.inf).log_softmax(dim=-1)


class Guidance(DerivedDenoiser, ABC):
    """A denoiser that steers another: give it to a sampler in the other's place.

    A sampler that draws one position at a time draws from the guided conditional distributions in
    turn; one that draws several at once draws them independently, guided or not.

    Args:
        denoiser: The denoiser to steer, itself guided or not.
        gamma: Strength; finite and not negative.

    Raises:
        ValueError: If the strength is out of range, or the model predicts scores, of which guidance
            is not defined here.
    """

    def __init__(self, denoiser: Denoiser, gamma: float) -> None:
        super().__init__(denoiser)
        check_gamma(type(self).__name__, gamma)
        copies = denoiser.any_order or denoiser.context == "prefix"
        if denoiser.law == "score" or (self._masks and not copies):
            raise ValueError(
                f"{type(self).__name__}.denoiser must predict the clean token, as subs, "
                f"leave-one-out and full do, got the {denoiser.description}; train one of those"
            )
        self.gamma = gamma

    @property
    def law(self) -> Law:
        """See ``Denoiser``; ``step`` where nothing but the reverse step is guided."""
        return self.denoiser.law if self._masks or self._plain else "step"

    @property
    def description(self) -> str:
        """See ``Denoiser``."""
        return f"guided {self.denoiser.description}"

    @property
    def _masks(self) -> bool:
        """Whether it steers predictions at masks, not reverse steps."""
        return not self.process.needs_time

    @property
    @abstractmethod
    def _plain(self) -> bool:
        """Whether the strength is one at which the other denoiser is asked and nothing else."""

    def _no_prediction(self) -> ValueError:
        return ValueError(
            f"{type(self).__name__} must be asked for reverse steps with the process "
            f"{self.process.name}, where they are what is guided, got a call for a prediction; "
            "sample by ancestral"
        )


class ClassifierFree(Guidance):
    """Guidance towards a label by the network's own predictions, with the label and without.

    The distribution is ``p(. | label)^gamma p(.)^(1 - gamma)``, normalised: of the clean token at a
    masked position, or of the reverse step with uniform and hybrid noise. 0 is the model without a
    label, 1 the one with it. What either rules out stays ruled out. Every call takes two
    evaluations of the network, or one if gamma is 0 or 1. Source: Schiff et al. 2024,
    arXiv:2412.10193, there for the reverse step of both processes; with masks, the prediction of
    the clean token leaves the unmask times alone.

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
        self, inputs: Inputs, where: Bool[Tensor, "B L"] | None = None
    ) -> Int64[Tensor, " B"]:
        """See ``Denoiser``."""
        passes = 1 if self._plain else 2
        return self.denoiser.evaluations(inputs, where) * passes

    def forward(
        self, inputs: Inputs, where: Bool[Tensor, "B L"] | None = None
    ) -> Float[Tensor, "*positions columns"]:
        """See ``Denoiser``.

        Raises:
            ValueError: If there is another label, or the guided thing is the reverse step.
        """
        if self._plain:
            return self.denoiser(self._one(inputs), where)
        if not self._masks:
            raise self._no_prediction()
        rows, asked = self._both(inputs, where)
        return mix(self.denoiser(rows, asked), self.gamma)

    def log_probs(
        self, inputs: Inputs, where: Bool[Tensor, "B L"] | None = None
    ) -> Float[Tensor, "*positions K"]:
        """See ``Denoiser``; with uniform and hybrid noise it is the step to the clean token."""
        if self._masks:
            return super().log_probs(inputs, where)
        if self._plain:
            return self.denoiser.log_probs(self._one(inputs), where)
        rows, asked = self._both(inputs, where)
        return mix(self.denoiser.log_probs(rows, asked), self.gamma)

    def log_reverse(
        self,
        inputs: Inputs,
        s: Float[Tensor, " B"],
        where: Bool[Tensor, "B L"] | None = None,
        *,
        adjust: Adjust | None = None,
    ) -> Float64[Tensor, "*positions states"]:
        """See ``Denoiser``."""
        if self._masks:
            return super().log_reverse(inputs, s, where, adjust=adjust)
        if self._plain:
            return self.denoiser.log_reverse(self._one(inputs), s, where, adjust=adjust)

        def adjust_both(log_probs: Tensor) -> Tensor:
            assert adjust is not None
            return torch.cat([adjust(part) for part in log_probs.chunk(2)])

        rows, asked = self._both(inputs, where)
        both = None if adjust is None else adjust_both
        steps = self.denoiser.log_reverse(rows, torch.cat((s, s)), asked, adjust=both)
        return mix(steps, self.gamma)

    @property
    def _plain(self) -> bool:
        return self.gamma in (0, 1)

    def _one(self, inputs: Inputs) -> Inputs:
        """The rows with the label, or, if gamma is 0, without one."""
        self._check(inputs)
        wanted = torch.full((len(inputs.tokens),), self.label, device=inputs.tokens.device)
        return replace(inputs, label=None if self.gamma == 0 else wanted)

    def _both(self, inputs: Inputs, where: Tensor | None) -> tuple[Inputs, Tensor | None]:
        """The rows with the label and, below, without."""
        self._check(inputs)
        count = len(inputs.tokens)
        twice = inputs.take(torch.arange(2 * count, device=inputs.tokens.device) % count)
        wanted = torch.full((count,), self.label, device=inputs.tokens.device)
        label = torch.cat((wanted, torch.full_like(wanted, NO_LABEL)))
        return replace(twice, label=label), None if where is None else torch.cat((where, where))

    def _check(self, inputs: Inputs) -> None:
        if inputs.label is not None:
            raise ValueError(
                f"ClassifierFree.inputs must have no label, since it has {self.label}, got "
                f"one of shape {tuple(inputs.label.shape)}; guide one denoiser for each label"
            )


class BlockClassifierFree(Denoiser):
    """``ClassifierFree`` for block diffusion: every block, given the ones before it.

    Both predictions remember the prefix for themselves, so that a block costs twice as much to
    score and to take in as without guidance, unless gamma is 0 or 1.

    Args:
        denoiser: Of a network that knows classes; it is not guided yet.
        label: The class, for all rows.
        gamma: Strength, see ``ClassifierFree``.

    Raises:
        ValueError: If it is no model of block diffusion, the network has no such class, or the
            strength is out of range.
    """

    def __init__(self, denoiser: Denoiser, label: int, gamma: float = 1.0) -> None:
        if denoiser.context != "block":
            raise ValueError(
                "BlockClassifierFree.denoiser must be one of block diffusion, got the "
                f"{denoiser.description}; ClassifierFree guides that"
            )
        super().__init__(denoiser.backbone, denoiser.process, denoiser.parameterization)
        if isinstance(denoiser, BlockClassifierFree):
            raise ValueError(
                "BlockClassifierFree.denoiser must not be guided yet, got one guided to "
                f"{denoiser.label}; guide the model itself"
            )
        check_gamma(type(self).__name__, gamma)
        check_label(type(self).__name__, label, denoiser.num_classes)
        self.label, self.gamma = label, gamma

    @property
    def _labels(self) -> tuple[int, ...]:
        """Which predictions are asked for."""
        if self.gamma in (0, 1):
            return (self.label if self.gamma else NO_LABEL,)
        return self.label, NO_LABEL

    def evaluations(
        self, inputs: Inputs, where: Bool[Tensor, "B L"] | None = None
    ) -> Int64[Tensor, " B"]:
        """See ``Denoiser``."""
        return super().evaluations(inputs, where) * len(self._labels)

    def _outputs(self, inputs: Inputs, where: Tensor | None, x0: Tensor | None = None) -> Tensor:
        self._check(inputs.label)
        parts = [
            super(BlockClassifierFree, self)._outputs(
                replace(inputs, label=torch.full_like(inputs.tokens[:, 0], one)), where, x0
            )
            for one in self._labels
        ]
        return _combine(parts, self.gamma)

    def start(
        self,
        batch_size: int,
        *,
        window: int | None = None,
        label: Int[Tensor, " B"] | None = None,
    ) -> Prefix:
        """See ``Denoiser``.

        Raises:
            ValueError: If there is another label.
        """
        self._check(label)
        device = next(self.parameters(), torch.empty(0)).device
        caches = [
            self.backbone.block_cache(
                batch_size,
                self.block_size,
                window=window,
                label=torch.full((batch_size,), one, device=device),
            )
            for one in self._labels
        ]
        return Prefix(self, GuidedCache(tuple(caches), self.gamma))

    def _check(self, label: Tensor | None) -> None:
        if label is not None:
            raise ValueError(
                f"BlockClassifierFree.label must not be given twice, since it has {self.label}, "
                f"got one of shape {tuple(label.shape)}; guide one denoiser for each label"
            )


@dataclass
class GuidedCache:
    """See ``BlockCache``: that of one prediction, or those of two that are combined.

    Attributes:
        caches: With the label, and without.
        gamma: Strength.
    """

    caches: tuple[BlockCache, ...]
    gamma: float

    @property
    def length(self) -> int:
        """See ``BlockCache``."""
        return self.caches[0].length

    def logits(
        self, x_t: Int[Tensor, "B l"], where: Bool[Tensor, "B l"] | None = None
    ) -> Float[Tensor, "B l K"] | Float[Tensor, "N K"]:
        """See ``BlockCache``."""
        return _combine([cache.logits(x_t, where) for cache in self.caches], self.gamma)

    def append(self, x0: Int[Tensor, "B l"]) -> None:
        """See ``BlockCache``."""
        for cache in self.caches:
            cache.append(x0)

    def take(self, rows: Int[Tensor, " b"]) -> GuidedCache:
        """See ``BlockCache``."""
        return GuidedCache(tuple(cache.take(rows) for cache in self.caches), self.gamma)


def _combine(parts: list[Tensor], gamma: float) -> Tensor:
    """The logits of one prediction, or those of the mixture of two."""
    if len(parts) == 1:
        return parts[0]
    return mix(torch.cat([log_softmax(part) for part in parts]), gamma)

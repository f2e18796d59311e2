"""Guidance by a classifier of corrupted rows: exact, or to first order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Float64, Int, Int64
from torch import Tensor

from seqdiff.denoiser import Adjust, Denoiser
from seqdiff.samplers.guidance import Guidance
from seqdiff.types import Inputs


@runtime_checkable
class Classifier(Protocol):
    """Says how likely a corrupted row makes what is wanted."""

    def __call__(
        self,
        tokens: Int[Tensor, "B L"],
        t: Float[Tensor, " B"] | None = None,
        padding: Bool[Tensor, "B L"] | None = None,
    ) -> Float[Tensor, " B"]:
        """Give log p(wanted | tokens) in nats, up to a constant.

        Args:
            tokens: Ids in ``0..K``, where K is the mask or unknown.
            t: Diffusion time in [0, 1].
            padding: Positions that hold nothing.
        """
        ...


@runtime_checkable
class RelaxedClassifier(Protocol):
    """A classifier of rows of vectors, so that it has a gradient."""

    def __call__(
        self,
        one_hot: Float[Tensor, "B L K+1"],
        t: Float[Tensor, " B"] | None = None,
        padding: Bool[Tensor, "B L"] | None = None,
    ) -> Float[Tensor, " B"]:
        """Give log p(wanted | tokens) in nats, up to a constant.

        Args:
            one_hot: Tokens as unit vectors, the last of which is the mask.
            t: Diffusion time in [0, 1].
            padding: Positions that hold nothing.
        """
        ...


class ClassifierBased(Guidance, ABC):
    """Bayes' rule with a classifier of noisy rows.

    With masks, the prediction of the clean token at position l becomes
    ``p(x_l = k | x_t) p(wanted | x_t with x_l = k)^gamma``, normalised. With the exact conditionals
    of a joint distribution, gamma = 1, and positions drawn one at a time, samples follow
    p(x | wanted) exactly. With uniform and hybrid noise the reverse step is tilted in the same way,
    ``p(z_s = k | z_t) p(wanted | z_t with z_l = k)^gamma``, normalised over all states k; the
    classifier must then have been trained on rows with that noise. Source: Schiff et al. 2024,
    arXiv:2412.10193.

    Args:
        denoiser: The denoiser to steer.
        gamma: Strength.

    Raises:
        ValueError: If the strength is out of range.
    """

    def forward(
        self, inputs: Inputs, where: Bool[Tensor, "B L"] | None = None
    ) -> Float[Tensor, "*positions columns"]:
        """See ``Denoiser``; a label is for the denoiser that is steered.

        Raises:
            ValueError: If the guided thing is the reverse step.
        """
        if self._plain:
            return self.denoiser(inputs, where)
        if not self._masks:
            raise self._no_prediction()
        asked_of = _chosen(inputs, where)
        law = self.denoiser(inputs, asked_of)
        asked = self._asked(inputs, asked_of)
        law = _tilt(law, asked[asked_of], self._log_wanted(inputs, asked, law))
        return law if where is not None else law.view(*inputs.tokens.shape, -1)

    def log_probs(
        self, inputs: Inputs, where: Bool[Tensor, "B L"] | None = None
    ) -> Float[Tensor, "*positions K"]:
        """See ``Denoiser``; with uniform and hybrid noise it is the step to the clean token."""
        if self._masks:
            return super().log_probs(inputs, where)
        law = self.denoiser.log_probs(inputs, _chosen(inputs, where))
        return self._tilted(law, inputs, where)

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
        step = self.denoiser.log_reverse(inputs, s, _chosen(inputs, where), adjust=adjust)
        return self._tilted(step, inputs, where)

    @property
    def _plain(self) -> bool:
        return self.gamma == 0

    def _tilted(self, law: Tensor, inputs: Inputs, where: Tensor | None) -> Tensor:
        """Multiply distributions of all positions that are asked about by what a state is worth."""
        if not self._plain:
            worth = self._log_wanted(inputs, _chosen(inputs, where), law)
            law = _tilt(law, torch.ones_like(law[:, 0], dtype=torch.bool), worth)
        return law if where is not None else law.view(*inputs.tokens.shape, -1)

    def _asked(self, inputs: Inputs, where: Tensor | None) -> Tensor:
        """Positions that the classifier is asked about."""
        asked = _chosen(inputs, where)
        if self._masks:
            asked = asked & (inputs.tokens == self.process.unknown_id)
        return asked if inputs.padding is None else asked & ~inputs.padding

    @abstractmethod
    def _log_wanted(
        self, inputs: Inputs, asked: Bool[Tensor, "B L"], like: Float[Tensor, "M states"]
    ) -> Float[Tensor, "N states"]:
        """Gamma log p(wanted | the row with state k at a position), up to a constant a position.

        Args:
            inputs: The rows.
            asked: The positions.
            like: What is tilted; says how many states there are, and in which precision.
        """


class ExactClassifierBased(ClassifierBased):
    """``ClassifierBased`` with a classifier that is asked about every symbol of every position.

    A call takes one evaluation of the network and, for each position that is asked about, one of
    the classifier for every state: samplers ask where they draw, except those that look at all
    positions first or remember them.

    Args:
        denoiser: The denoiser to steer.
        classifier: Scores noisy rows; put it in eval mode first.
        gamma: Strength.
        batch_size: Rows that the classifier is given at a time.

    Raises:
        ValueError: If the strength or the batch size is out of range.
    """

    def __init__(
        self,
        denoiser: Denoiser,
        classifier: Classifier,
        gamma: float = 1.0,
        *,
        batch_size: int = 1024,
    ) -> None:
        super().__init__(denoiser, gamma)
        if batch_size < 1:
            raise ValueError(
                f"ExactClassifierBased.batch_size must be at least 1, got {batch_size}; raise it"
            )
        self.classifier = classifier
        self.batch_size = batch_size

    def evaluations(
        self, inputs: Inputs, where: Bool[Tensor, "B L"] | None = None
    ) -> Int64[Tensor, " B"]:
        """See ``Denoiser``."""
        spent = self.denoiser.evaluations(inputs, where)
        if self._plain:
            return spent
        states = self.vocab_size if self._masks else self._discrete.states
        return spent + states * self._asked(inputs, where).sum(dim=-1)

    def _log_wanted(
        self, inputs: Inputs, asked: Bool[Tensor, "B L"], like: Float[Tensor, "M states"]
    ) -> Float[Tensor, "N states"]:
        row, position = asked.nonzero(as_tuple=True)
        states = like.shape[-1]
        change = torch.arange(len(row) * states, device=row.device)
        worth = [
            self._ask(inputs, row[place], position[place], symbol)
            for place, symbol in zip(
                (change // states).split(self.batch_size),
                (change % states).split(self.batch_size),
                strict=True,
            )
        ]
        if not worth:
            return torch.empty((0, states), device=row.device)
        return self.gamma * torch.cat(worth).view(-1, states)

    def _ask(self, inputs: Inputs, row: Tensor, position: Tensor, symbol: Tensor) -> Tensor:
        """Score rows with one position changed."""
        rows = inputs.take(row)
        changed = rows.tokens.scatter(1, position[:, None], symbol[:, None].to(rows.tokens.dtype))
        return self.classifier(changed, rows.t, rows.padding)


class FirstOrderClassifierBased(ClassifierBased):
    """``ClassifierBased`` with the classifier replaced by its tangent: one evaluation for all.

    log p(wanted | the row with symbol k) is taken as log p(wanted | the row) plus the derivative
    towards k minus that towards the present token; that is exact where the logarithm of the
    classifier is linear in its input. A call takes one evaluation of the network and one of the
    classifier, with its gradient.

    Args:
        denoiser: The denoiser to steer.
        classifier: Scores rows of vectors; put it in eval mode first.
        gamma: Strength.

    Raises:
        ValueError: If the strength is out of range.
    """

    def __init__(
        self, denoiser: Denoiser, classifier: RelaxedClassifier, gamma: float = 1.0
    ) -> None:
        super().__init__(denoiser, gamma)
        self.classifier = classifier

    def evaluations(
        self, inputs: Inputs, where: Bool[Tensor, "B L"] | None = None
    ) -> Int64[Tensor, " B"]:
        """See ``Denoiser``."""
        return self.denoiser.evaluations(inputs, where) + int(not self._plain)

    def _log_wanted(
        self, inputs: Inputs, asked: Bool[Tensor, "B L"], like: Float[Tensor, "M states"]
    ) -> Float[Tensor, "N states"]:
        with torch.enable_grad():
            one_hot = F.one_hot(inputs.tokens, self.vocab_size + 1).to(like.dtype).requires_grad_()
            log_wanted = self.classifier(one_hot, inputs.t, inputs.padding)
            (slope,) = torch.autograd.grad(log_wanted.sum(), one_hot)
        # The derivative towards the present token is the same for all states.
        return self.gamma * slope[asked][:, : like.shape[-1]]


def _chosen(inputs: Inputs, where: Tensor | None) -> Tensor:
    return torch.ones_like(inputs.tokens, dtype=torch.bool) if where is None else where


def _tilt(law: Tensor, which: Tensor, worth: Tensor) -> Tensor:
    """Add what symbols are worth to some of the distributions, and normalise.

    Args:
        law: Log-probabilities ``[N, k]``.
        which: True for n of them, ``[N]``.
        worth: In nats, ``[n, k]``; what is ruled out stays ruled out.
    """
    old = law[which]
    tilted = torch.where(old.isfinite(), old + worth, -torch.inf).log_softmax(dim=-1)
    return law.index_put((which,), tilted.to(law.dtype))

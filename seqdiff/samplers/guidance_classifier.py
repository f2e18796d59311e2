"""Guidance by a classifier of corrupted rows: exact, or to first order."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor

from seqdiff.parameterization import Denoiser
from seqdiff.samplers.guidance import Guidance


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
            tokens: Ids in ``0..K``, where K is the mask.
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


class ExactClassifierBased(Guidance):
    """Bayes' rule with a classifier that is asked about every letter of every position.

    The law of position l is ``p(x_l = k | x_t) p(wanted | x_t with x_l = k)^gamma``, normalised.
    With the exact conditionals of a joint law, gamma = 1, and positions revealed one at a time, the
    samples follow p(x | wanted) exactly. A call takes one evaluation of the network and, for each
    masked position that is asked about, K of the classifier: samplers ask where they reveal, except
    those that look at all positions first or remember them. Source: Schiff et al. 2024,
    arXiv:2412.10193.

    Args:
        denoiser: The denoiser to steer.
        classifier: Scores corrupted rows; put it in eval mode first.
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
        self,
        x_t: Int[Tensor, "B L"],
        padding: Bool[Tensor, "B L"] | None = None,
        where: Bool[Tensor, "B L"] | None = None,
    ) -> Int64[Tensor, " B"]:
        """See ``Denoiser``."""
        spent = self.denoiser.evaluations(x_t, padding, where)
        if self.gamma == 0:
            return spent
        return spent + self.vocab_size * self._asked(x_t, where, padding).sum(dim=-1)

    def log_probs_at(
        self,
        x_t: Int[Tensor, "B L"],
        where: Bool[Tensor, "B L"],
        t: Float[Tensor, " B"] | None = None,
        padding: Bool[Tensor, "B L"] | None = None,
        label: Int[Tensor, " B"] | None = None,
    ) -> Float[Tensor, "N K"]:
        """See ``Denoiser``; a label is for the denoiser that is steered."""
        law = self.denoiser.log_probs_at(x_t, where, t, padding, label)
        if self.gamma == 0:
            return law
        asked = self._asked(x_t, where, padding)
        row, position = asked.nonzero(as_tuple=True)
        change = torch.arange(len(row) * self.vocab_size, device=x_t.device)
        worth = [
            self._ask(x_t, t, padding, row[place], position[place], letter)
            for place, letter in zip(
                (change // self.vocab_size).split(self.batch_size),
                (change % self.vocab_size).split(self.batch_size),
                strict=True,
            )
        ]
        if not worth:
            return law
        log_wanted = torch.cat(worth).view(-1, self.vocab_size)
        return _tilt(law, asked[where], self.gamma * log_wanted)

    def _ask(
        self,
        x_t: Tensor,
        t: Tensor | None,
        padding: Tensor | None,
        row: Tensor,
        position: Tensor,
        letter: Tensor,
    ) -> Tensor:
        """Score rows that each have one letter more than ``x_t`` has."""
        changed = x_t[row].scatter(1, position[:, None], letter[:, None].to(x_t.dtype))
        return self.classifier(
            changed,
            None if t is None else t[row],
            None if padding is None else padding[row],
        )

    def _asked(self, x_t: Tensor, where: Tensor | None, padding: Tensor | None) -> Tensor:
        asked = x_t == self.vocab_size
        asked = asked if where is None else asked & where
        return asked if padding is None else asked & ~padding


class FirstOrderClassifierBased(Guidance):
    """The same, with the classifier replaced by its tangent at ``x_t``: one evaluation for all.

    log p(wanted | x_t with x_l = k) is taken as log p(wanted | x_t) plus the derivative towards the
    letter minus that towards the mask; that is exact where the logarithm of the classifier is
    linear in its input. A call takes one evaluation of the network and one of the classifier, with
    its gradient. Source: Schiff et al. 2024, arXiv:2412.10193.

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
        self,
        x_t: Int[Tensor, "B L"],
        padding: Bool[Tensor, "B L"] | None = None,
        where: Bool[Tensor, "B L"] | None = None,
    ) -> Int64[Tensor, " B"]:
        """See ``Denoiser``."""
        return self.denoiser.evaluations(x_t, padding, where) + int(self.gamma != 0)

    def log_probs_at(
        self,
        x_t: Int[Tensor, "B L"],
        where: Bool[Tensor, "B L"],
        t: Float[Tensor, " B"] | None = None,
        padding: Bool[Tensor, "B L"] | None = None,
        label: Int[Tensor, " B"] | None = None,
    ) -> Float[Tensor, "N K"]:
        """See ``Denoiser``; a label is for the denoiser that is steered."""
        law = self.denoiser.log_probs_at(x_t, where, t, padding, label)
        if self.gamma == 0:
            return law
        with torch.enable_grad():
            one_hot = F.one_hot(x_t, self.vocab_size + 1).to(law.dtype).requires_grad_()
            log_wanted = self.classifier(one_hot, t, padding)
            (slope,) = torch.autograd.grad(log_wanted.sum(), one_hot)
        asked = where & (x_t == self.vocab_size)
        towards = slope[asked]  # the derivative towards the mask is the same for all K
        return _tilt(law, asked[where], self.gamma * towards[:, : self.vocab_size])


def _tilt(law: Tensor, which: Tensor, worth: Tensor) -> Tensor:
    """Add what letters are worth to some of the laws, and normalise.

    Args:
        law: Log-probabilities ``[N, K]``.
        which: True for n of the laws, ``[N]``.
        worth: In nats, ``[n, K]``; what the law rules out stays ruled out.
    """
    old = law[which]
    tilted = torch.where(old.isfinite(), old + worth, -torch.inf).log_softmax(dim=-1)
    return law.index_put((which,), tilted.to(law.dtype))

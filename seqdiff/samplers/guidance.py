"""Denoisers that guide another one: every sampler takes them in place of the model.

What guidance changes depends on the process. With masks, it changes the prediction of the clean
token and leaves the unmask times as they are. With uniform and hybrid noise it changes the reverse
step: the distribution of z_s given z_t is combined or tilted, and normalised. In the limit of many
steps that also changes how often tokens jump (Schiff et al. 2024, arXiv:2412.10193, equations 2 and
3; the continuous-time form, which scales rates, is another distribution).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Float64, Int, Int64
from torch import Tensor
from typing_extensions import override

from seqdiff.backbones import BlockCache, score_rows
from seqdiff.denoiser import Adjust, Denoiser, Prefix, check_label
from seqdiff.parameterization import Kind, log_softmax
from seqdiff.process import SymbolProcess
from seqdiff.types import NO_LABEL, Inputs, Signal

_Ask = Callable[[Inputs, Tensor | None], Tensor]


class DerivedDenoiser(Denoiser, ABC):
    """A denoiser whose predictions are made from those of another one.

    A subclass implements ``forward``. If a call costs more evaluations than one of the other
    denoiser, it also implements ``evaluations``.

    Args:
        denoiser: The other denoiser, which may be derived from a third one.

    Raises:
        ValueError: If it is one of block diffusion, which keeps a state of earlier blocks, or of
            Gaussian diffusion, which is given embeddings.
    """

    def __init__(self, denoiser: Denoiser) -> None:
        if denoiser.context == "block":
            raise ValueError(
                f"{type(self).__name__}.denoiser must not be one of block diffusion, which reads "
                f"clean blocks apart from noisy ones, got a {type(denoiser).__name__}; guide those "
                "by BlockClassifierFree or BlockClassifierBased"
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
        self._label, self._signal = denoiser._label, denoiser._signal

    @abstractmethod
    def forward(
        self, inputs: Inputs, where: Bool[Tensor, "B L"] | None = None
    ) -> Float[Tensor, "*positions columns"]:
        """Predict, as ``Denoiser.forward`` does."""

    @property
    @override
    def num_classes(self) -> int | None:
        return self.denoiser.num_classes

    @property
    @override
    def caches_prefix(self) -> bool:
        return False


def check_gamma(owner: str, gamma: float) -> None:
    """Raise ``ValueError`` if the strength of guidance is negative or not finite."""
    if not 0 <= gamma < math.inf:
        raise ValueError(
            f"{owner}.gamma must be finite and at least 0, got {gamma}; "
            "0 leaves the model as it is, 1 follows Bayes' rule, more exaggerates"
        )


def mix(both: Float[Tensor, "*n K"], gamma: float) -> Float[Tensor, "*m K"]:
    """Return ``p(x | c)^gamma p(x)^(1 - gamma)``, normalised; 0 where either factor is 0.

    Args:
        both: Log-probabilities in nats: rows with the condition, then the same rows without.
        gamma: Strength.
    """
    with_label, without = both.chunk(2)
    possible = with_label.isfinite() & without.isfinite()
    mixed = gamma * with_label + (1 - gamma) * without
    return torch.where(possible, mixed, -torch.inf).log_softmax(dim=-1)


class Guidance(DerivedDenoiser, ABC):
    """A denoiser that steers another one: pass it to a sampler in place of the other.

    A sampler that draws one position at a time draws from the guided conditional distributions in
    turn; one that draws several at once draws them independently, guided or not.

    Args:
        denoiser: The denoiser to steer, which may already be guided.
        gamma: Strength; finite and not negative.

    Raises:
        ValueError: If the strength is out of range, or the model predicts scores, of which guidance
            is not defined here.
    """

    _plain_strengths: tuple[int, ...] = (0,)

    def __init__(self, denoiser: Denoiser, gamma: float) -> None:
        super().__init__(denoiser)
        check_gamma(type(self).__name__, gamma)
        copies = denoiser.any_order or denoiser.context == "prefix"
        if denoiser.kind == "score" or (self._masks and not copies):
            raise ValueError(
                f"{type(self).__name__}.denoiser must predict the clean token, as subs, "
                f"leave-one-out and full do, got the {denoiser.description}; train one of those"
            )
        self.gamma = gamma

    @property
    def kind(self) -> Kind:
        """The kind of prediction: ``step`` if only the reverse step is guided."""
        return self.denoiser.kind if self._masks or self._plain else "step"

    @property
    @override
    def description(self) -> str:
        return f"guided {self.denoiser.description}"

    @property
    def _masks(self) -> bool:
        """Whether predictions at masks are guided, not reverse steps."""
        return not self.process.needs_time

    @property
    def _plain(self) -> bool:
        """Whether only the other denoiser is called at this strength."""
        return self.gamma in self._plain_strengths

    @override
    def forward(
        self, inputs: Inputs, where: Bool[Tensor, "B L"] | None = None
    ) -> Float[Tensor, "*positions columns"]:
        if not (self._masks or self._plain):
            raise ValueError(
                f"{type(self).__name__} must be asked for reverse steps with the process "
                f"{self.process.name}, where guidance changes those, got a call for a prediction; "
                "sample by ancestral"
            )
        return self._guided(self.denoiser, inputs, where)

    def log_probs(
        self, inputs: Inputs, where: Bool[Tensor, "B L"] | None = None
    ) -> Float[Tensor, "*positions K"]:
        """Predict the clean token; with uniform and hybrid noise, by the guided step to t = 0."""
        if self._masks:
            return super().log_probs(inputs, where)
        return self._guided(self.denoiser.log_probs, inputs, where)

    @override
    def log_reverse(
        self,
        inputs: Inputs,
        s: Float[Tensor, " B"],
        where: Bool[Tensor, "B L"] | None = None,
        *,
        adjust: Adjust | None = None,
    ) -> Float64[Tensor, "*positions states"]:
        if self._masks:
            return super().log_reverse(inputs, s, where, adjust=adjust)

        def ask(rows: Inputs, asked: Tensor | None) -> Tensor:
            copies = 2 if len(rows.tokens) > len(s) else 1

            def adjust_each(log_probs: Tensor) -> Tensor:
                assert adjust is not None
                return torch.cat([adjust(part) for part in log_probs.chunk(copies)])

            each = None if adjust is None else adjust_each
            return self.denoiser.log_reverse(rows, torch.cat((s,) * copies), asked, adjust=each)

        return self._guided(ask, inputs, where)

    @abstractmethod
    def _guided(self, ask: _Ask, inputs: Inputs, where: Tensor | None) -> Tensor:
        """Return the guided distributions.

        Args:
            ask: Returns the distributions of the other denoiser for some rows and positions.
            inputs: The rows.
            where: The positions; ``None`` is all of them.
        """


class ClassifierFree(Guidance):
    """Guidance towards a condition by the network's own predictions, with it and without.

    The condition c is a label, the signals of the inputs (or of ``given_signal``), or both. The
    distribution is ``p(. | c)^gamma p(.)^(1 - gamma)``, normalised: of the clean token at a masked
    position, or of the reverse step with uniform and hybrid noise. 0 is the model without the
    condition, 1 the one with it. Where either gives probability 0, so does the result. Every call
    takes two evaluations of the network, or one if gamma is 0 or 1. Source: Schiff et al. 2024,
    arXiv:2412.10193, there for the reverse step of both processes; with masks, the prediction of
    the clean token leaves the unmask times alone.

    Args:
        denoiser: Denoiser with a network that has classes or signals.
        label: The class, for all rows; ``None`` guides to the signals alone.
        gamma: Strength.

    Raises:
        ValueError: If the network has no such class, or neither classes nor signals, or the
            strength is out of range.
    """

    _plain_strengths = (0, 1)

    def __init__(self, denoiser: Denoiser, label: int | None = None, gamma: float = 1.0) -> None:
        super().__init__(denoiser, gamma)
        _check_condition(self, label, denoiser)
        self.label = label

    @override
    def evaluations(
        self, inputs: Inputs, where: Bool[Tensor, "B L"] | None = None
    ) -> Int64[Tensor, " B"]:
        passes = 1 if self._plain else 2
        return self.denoiser.evaluations(inputs, where) * passes

    @override
    def _guided(self, ask: _Ask, inputs: Inputs, where: Tensor | None) -> Tensor:
        if inputs.label is not None:
            raise ValueError(
                "ClassifierFree.inputs must have no label, got one of shape "
                f"{tuple(inputs.label.shape)}; name it as ClassifierFree.label, one denoiser for "
                "each label"
            )
        inputs = self._conditioned(inputs)
        given = replace(inputs, label=_label_of(self.label, inputs.label, inputs.tokens))
        without = replace(
            inputs,
            label=_label_of(None if self.label is None else NO_LABEL, inputs.label, inputs.tokens),
            signal=_hidden(inputs.signal),
        )
        if self._plain:
            return ask(given if self.gamma == 1 else without, where)
        count = len(inputs.tokens)
        twice = inputs.take(torch.arange(2 * count, device=inputs.tokens.device) % count)
        rows = replace(
            twice,
            label=_pair(given.label, without.label),
            signal=_pair(given.signal, without.signal),
        )
        return mix(ask(rows, None if where is None else torch.cat((where, where))), self.gamma)


@runtime_checkable
class Classifier(Protocol):
    """Scores corrupted rows by how likely they are to have a wanted property."""

    def __call__(
        self,
        tokens: Int[Tensor, "B L"],
        t: Float[Tensor, " B"] | None = None,
        padding: Bool[Tensor, "B L"] | None = None,
    ) -> Float[Tensor, " B"]:
        """Return log p(wanted | tokens) in nats, up to a constant.

        Args:
            tokens: Ids in ``0..K``, where K is the mask or unknown.
            t: Diffusion time in [0, 1].
            padding: True at positions of padding.
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
        """Return log p(wanted | tokens) in nats, up to a constant.

        Args:
            one_hot: Tokens as unit vectors, the last of which is the mask.
            t: Diffusion time in [0, 1].
            padding: True at positions of padding.
        """
        ...


class ClassifierBased(Guidance, ABC):
    """Guidance by Bayes' rule with a classifier of noisy rows.

    With masks, the prediction of the clean token at position l becomes
    ``p(x_l = k | x_t) p(wanted | x_t with x_l = k)^gamma``, normalised. With the exact conditionals
    of a joint distribution, gamma = 1, and positions drawn one at a time, samples follow
    p(x | wanted) exactly. With uniform and hybrid noise the reverse step is tilted the same way,
    ``p(z_s = k | z_t) p(wanted | z_t with z_l = k)^gamma``, normalised over all states k; the
    classifier must then have been trained on rows with that noise. Source: Schiff et al. 2024,
    arXiv:2412.10193.

    Args:
        denoiser: The denoiser to steer.
        gamma: Strength.

    Raises:
        ValueError: If the strength is out of range.
    """

    @override
    def _guided(self, ask: _Ask, inputs: Inputs, where: Tensor | None) -> Tensor:
        inputs = self._conditioned(inputs)
        if self._plain:
            return ask(inputs, where)
        chosen = _chosen(inputs, where)
        log_probs = ask(inputs, chosen)
        asked = self._asked(inputs, chosen) if self._masks else chosen
        which = asked[chosen]
        old = log_probs[which]
        tilted = old + self._log_wanted(inputs, asked, log_probs)
        tilted = torch.where(old.isfinite(), tilted, -torch.inf).log_softmax(dim=-1)
        log_probs = log_probs.index_put((which,), tilted.to(log_probs.dtype))
        return log_probs if where is not None else log_probs.view(*inputs.tokens.shape, -1)

    def _asked(self, inputs: Inputs, where: Tensor | None) -> Tensor:
        """Return the positions at which the classifier scores changes."""
        asked = _chosen(inputs, where)
        if self._masks:
            asked = asked & (inputs.tokens == self.process.unknown_id)
        return asked if inputs.padding is None else asked & ~inputs.padding

    @abstractmethod
    def _log_wanted(
        self, inputs: Inputs, asked: Bool[Tensor, "B L"], like: Float[Tensor, "M states"]
    ) -> Float[Tensor, "N states"]:
        """Return gamma log p(wanted | the row with state k at a position), up to a constant."""


class ExactClassifierBased(ClassifierBased):
    """``ClassifierBased`` with a classifier that scores every symbol at every requested position.

    A call takes one evaluation of the network and one of the classifier for every state at every
    requested position. Most samplers request the positions that they draw. Those that compare all
    positions first, or that use a cache, request all masked ones.

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

    @override
    def evaluations(
        self, inputs: Inputs, where: Bool[Tensor, "B L"] | None = None
    ) -> Int64[Tensor, " B"]:
        spent = self.denoiser.evaluations(inputs, where)
        if self._plain:
            return spent
        process = self.process
        states = self.vocab_size
        if isinstance(process, SymbolProcess) and not self._masks:
            states = process.states
        return spent + states * self._asked(inputs, where).sum(dim=-1)

    def _log_wanted(
        self, inputs: Inputs, asked: Bool[Tensor, "B L"], like: Float[Tensor, "M states"]
    ) -> Float[Tensor, "N states"]:
        row, position = asked.nonzero(as_tuple=True)
        states = like.shape[-1]
        change = torch.arange(len(row) * states, device=row.device)
        scores = [
            self._ask(inputs, row[place], position[place], symbol)
            for place, symbol in zip(
                (change // states).split(self.batch_size),
                (change % states).split(self.batch_size),
                strict=True,
            )
        ]
        if not scores:
            return torch.empty((0, states), device=row.device)
        return self.gamma * torch.cat(scores).view(-1, states)

    def _ask(self, inputs: Inputs, row: Tensor, position: Tensor, symbol: Tensor) -> Tensor:
        """Score rows with one position changed."""
        rows = inputs.take(row)
        changed = rows.tokens.scatter(1, position[:, None], symbol[:, None].to(rows.tokens.dtype))
        return self.classifier(changed, rows.t, rows.padding)


class FirstOrderClassifierBased(ClassifierBased):
    """``ClassifierBased`` with the classifier replaced by its tangent: one evaluation for all.

    log p(wanted | the row with symbol k) is approximated by log p(wanted | the row) plus the
    derivative towards k minus that towards the present token. This is exact where the logarithm of
    the classifier is linear in its input. A call takes one evaluation of the network and one of the
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

    @override
    def evaluations(
        self, inputs: Inputs, where: Bool[Tensor, "B L"] | None = None
    ) -> Int64[Tensor, " B"]:
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


class BlockClassifierFree(Denoiser):
    """``ClassifierFree`` for block diffusion: every block, given the ones before it.

    Each of the two predictions has a cache of the prefix, so a block costs twice as much to score
    and to read as without guidance, unless gamma is 0 or 1.

    Args:
        denoiser: Denoiser with a network that has classes or signals; must not be guided already.
        label: The class, for all rows; ``None`` guides to the signals alone.
        gamma: Strength, see ``ClassifierFree``.

    Raises:
        ValueError: If it is no model of block diffusion, the network has no such class, or neither
            classes nor signals, or the strength is out of range.
    """

    def __init__(self, denoiser: Denoiser, label: int | None = None, gamma: float = 1.0) -> None:
        if denoiser.context != "block":
            raise ValueError(
                "BlockClassifierFree.denoiser must be one of block diffusion, got the "
                f"{denoiser.description}; ClassifierFree guides that"
            )
        super().__init__(
            denoiser.backbone, denoiser.process, denoiser.parameterization, denoiser.experts
        )
        if isinstance(denoiser, BlockClassifierFree):
            raise ValueError(
                "BlockClassifierFree.denoiser must not be guided yet, got one guided to "
                f"{denoiser.label}; guide the model itself"
            )
        check_gamma(type(self).__name__, gamma)
        _check_condition(self, label, denoiser)
        self.label, self.gamma = label, gamma
        self._label, self._signal = denoiser._label, denoiser._signal

    @property
    def _given(self) -> tuple[bool, ...]:
        """Whether each of the predictions is given the condition."""
        return (self.gamma == 1,) if self.gamma in (0, 1) else (True, False)

    def _parts(self, inputs: Inputs) -> list[Inputs]:
        """Return what each of the predictions is given."""
        parts = []
        for given in self._given:
            label = self.label if given or self.label is None else NO_LABEL
            signal = inputs.signal if given else _hidden(inputs.signal)
            label = _label_of(label, inputs.label, inputs.tokens)
            parts.append(replace(inputs, label=label, signal=signal))
        return parts

    @override
    def evaluations(
        self, inputs: Inputs, where: Bool[Tensor, "B L"] | None = None
    ) -> Int64[Tensor, " B"]:
        return super().evaluations(inputs, where) * len(self._given)

    def _outputs(self, inputs: Inputs, where: Tensor | None, x0: Tensor | None = None) -> Tensor:
        self._check(inputs.label)
        parts = self._parts(self._conditioned(inputs))
        found = [super(BlockClassifierFree, self)._outputs(part, where, x0) for part in parts]
        return _combine(found, self.gamma)

    def start(
        self,
        batch_size: int,
        *,
        window: int | None = None,
        label: Int[Tensor, " B"] | None = None,
        signal: Signal | None = None,
    ) -> Prefix:
        """Start rows of blocks, see ``Denoiser.start``.

        Raises:
            ValueError: If there is another label.
        """
        self._check(label)
        caches = [
            self._with_experts(
                self.backbone.block_cache(
                    batch_size, self.block_size, window=window, label=part.label, signal=part.signal
                ),
                batch_size,
            )
            for part in self._parts(self._given_to(batch_size, None, signal))
        ]
        return Prefix(self, GuidedCache(tuple(caches), self.gamma))

    def _check(self, label: Tensor | None) -> None:
        if label is not None:
            raise ValueError(
                "BlockClassifierFree.inputs must have no label, got one of shape "
                f"{tuple(label.shape)}; name it as BlockClassifierFree.label, one denoiser for "
                "each label"
            )


@dataclass
class GuidedCache(BlockCache):
    """The ``BlockCache`` of one prediction, or those of two that are combined.

    Attributes:
        caches: The one with the condition and the one without, or one of the two.
        gamma: Strength.
    """

    caches: tuple[BlockCache, ...]
    gamma: float

    @property
    @override
    def length(self) -> int:
        return self.caches[0].length

    @override
    def logits(
        self, x_t: Int[Tensor, "B l"], where: Bool[Tensor, "B l"] | None = None
    ) -> Float[Tensor, "B l K"] | Float[Tensor, "N K"]:
        return _combine([cache.logits(x_t, where) for cache in self.caches], self.gamma)

    def logits_of(
        self,
        rows: Int[Tensor, " b"],
        x_t: Int[Tensor, "b l"],
        where: Bool[Tensor, "b l"],
        refresh: int = 1,
    ) -> Float[Tensor, "N K"]:
        """See ``PartialCache.logits_of``."""
        parts = [score_rows(cache, rows, x_t, where, refresh) for cache in self.caches]
        return _combine(parts, self.gamma)

    @override
    def append(self, x0: Int[Tensor, "B l"]) -> None:
        for cache in self.caches:
            cache.append(x0)

    @override
    def take(self, rows: Int[Tensor, " b"]) -> GuidedCache:
        return GuidedCache(tuple(cache.take(rows) for cache in self.caches), self.gamma)


class BlockClassifierBased(Denoiser):
    """``ExactClassifierBased`` for block diffusion: every block, given the ones before it.

    The classifier sees the finished blocks, the present block, and unknown tokens after it, also
    where a later token is given. A call takes one evaluation of the network and one of the
    classifier for every symbol at every requested position. Samplers of blocks ask for guided
    predictions; likelihoods are not defined.

    Args:
        denoiser: Denoiser of block diffusion, which may be guided by ``BlockClassifierFree``.
        classifier: Scores unfinished rows; put it in eval mode first.
        length: Tokens of the rows that the classifier is given.
        gamma: Strength, see ``ClassifierBased``.
        batch_size: Rows that the classifier is given at a time.

    Raises:
        ValueError: If it is no model of block diffusion, or the strength, the length or the batch
            size is out of range.
    """

    def __init__(
        self,
        denoiser: Denoiser,
        classifier: Classifier,
        length: int,
        gamma: float = 1.0,
        *,
        batch_size: int = 1024,
    ) -> None:
        if denoiser.context != "block":
            raise ValueError(
                "BlockClassifierBased.denoiser must be one of block diffusion, got the "
                f"{denoiser.description}; ExactClassifierBased guides that"
            )
        super().__init__(
            denoiser.backbone, denoiser.process, denoiser.parameterization, denoiser.experts
        )
        check_gamma(type(self).__name__, gamma)
        for name, value in (("length", length), ("batch_size", batch_size)):
            if value < 1:
                raise ValueError(
                    f"BlockClassifierBased.{name} must be at least 1, got {value}; raise it"
                )
        self.denoiser, self.classifier = denoiser, classifier
        self.length, self.gamma, self.batch_size = length, gamma, batch_size
        self._label, self._signal = denoiser._label, denoiser._signal

    @override
    def in_blocks(self, block_size: int, owner: str = "Denoiser") -> BlockClassifierBased:
        inner = self.denoiser.in_blocks(block_size, owner)
        options = {"length": self.length, "gamma": self.gamma, "batch_size": self.batch_size}
        return BlockClassifierBased(inner, self.classifier, **options).train(self.training)

    @override
    def evaluations(
        self, inputs: Inputs, where: Bool[Tensor, "B L"] | None = None
    ) -> Int64[Tensor, " B"]:
        spent = self.denoiser.evaluations(inputs, where)
        if self.gamma == 0:
            return spent
        asked = _chosen(inputs, where) & (inputs.tokens == self.process.unknown_id)
        return spent + self.vocab_size * asked.sum(dim=-1)

    def _outputs(self, inputs: Inputs, where: Tensor | None, x0: Tensor | None = None) -> Tensor:
        raise ValueError(
            "BlockClassifierBased must be used by a sampler of blocks, which starts rows and "
            "appends blocks, got a call for all blocks at once; use BlockSampler, or the "
            "unguided denoiser"
        )

    def start(
        self,
        batch_size: int,
        *,
        window: int | None = None,
        label: Int[Tensor, " B"] | None = None,
        signal: Signal | None = None,
    ) -> Prefix:
        """Start rows of blocks, see ``Denoiser.start``."""
        begun = self.denoiser.start(batch_size, window=window, label=label, signal=signal)
        return replace(begun, denoiser=self, cache=ClassifiedCache(begun.cache, (), self))


@dataclass
class ClassifiedCache(BlockCache):
    """The ``BlockCache`` of a model, and the tokens of its blocks for a classifier.

    Attributes:
        cache: The cache of the model.
        blocks: The tokens that were appended, in parts.
        guide: The guided model.
    """

    cache: BlockCache
    blocks: tuple[Int[Tensor, "B _"], ...]
    guide: BlockClassifierBased

    @property
    @override
    def length(self) -> int:
        return self.cache.length

    @override
    def logits(
        self, x_t: Int[Tensor, "B l"], where: Bool[Tensor, "B l"] | None = None
    ) -> Float[Tensor, "B l K"] | Float[Tensor, "N K"]:
        chosen = _chosen(Inputs(x_t), where)
        found = self._tilted(self.cache.logits(x_t, chosen), x_t, chosen)
        return found if where is not None else found.view(*x_t.shape, -1)

    def logits_of(
        self,
        rows: Int[Tensor, " b"],
        x_t: Int[Tensor, "b l"],
        where: Bool[Tensor, "b l"],
        refresh: int = 1,
    ) -> Float[Tensor, "N K"]:
        """See ``PartialCache.logits_of``."""
        these = replace(self, blocks=tuple(block[rows] for block in self.blocks))
        return these._tilted(score_rows(self.cache, rows, x_t, where, refresh), x_t, where)

    def _tilted(self, logits: Tensor, x_t: Tensor, where: Tensor) -> Float[Tensor, "N K"]:
        """Guide the predictions at some positions of the block."""
        guide, found = self.guide, log_softmax(logits)
        asked = where & (x_t == guide.process.unknown_id)
        if guide.gamma > 0 and bool(asked.any()):
            which = asked[where]
            tilted = found[which] + guide.gamma * self._log_wanted(x_t, asked).to(found)
            found = found.index_put((which,), log_softmax(tilted))
        return found

    def _log_wanted(self, x_t: Tensor, asked: Bool[Tensor, "B l"]) -> Float[Tensor, "N K"]:
        """Score every symbol at some positions of the block."""
        guide, symbols = self.guide, self.guide.vocab_size
        known = torch.cat((*self.blocks, x_t), dim=1)
        rest = max(0, guide.length - known.shape[1])
        rows = F.pad(known, (0, rest), value=guide.process.unknown_id)
        row, position = (asked.nonzero() + torch.tensor([0, self.length], device=x_t.device)).T
        scores = []
        for part in torch.arange(len(row) * symbols, device=row.device).split(guide.batch_size):
            place, symbol = part // symbols, part % symbols
            changed = rows[row[place]]
            changed[torch.arange(len(part), device=row.device), position[place]] = symbol
            scores.append(guide.classifier(changed))
        return torch.cat(scores).view(-1, symbols)

    @override
    def append(self, x0: Int[Tensor, "B l"]) -> None:
        self.cache.append(x0)
        self.blocks = (*self.blocks, x0)

    @override
    def take(self, rows: Int[Tensor, " b"]) -> ClassifiedCache:
        blocks = tuple(block[rows] for block in self.blocks)
        return ClassifiedCache(self.cache.take(rows), blocks, self.guide)


def _combine(parts: list[Tensor], gamma: float) -> Tensor:
    """Return the logits of one prediction, or those of the mixture of two."""
    if len(parts) == 1:
        return parts[0]
    return mix(torch.cat([log_softmax(part) for part in parts]), gamma)


def _check_condition(guidance: Denoiser, label: int | None, denoiser: Denoiser) -> None:
    """Raise ``ValueError`` if a network has neither the label nor, without one, signals."""
    if label is not None or denoiser.num_signals is None:
        owner = type(guidance).__name__
        if label is None:
            raise ValueError(
                f"{owner}.denoiser must have signals to be guided to them, got a network without; "
                "give a label, or train with data.signals"
            )
        check_label(owner, label, denoiser.num_classes)


def _label_of(label: int | None, other: Tensor | None, like: Tensor) -> Tensor | None:
    """Return one label for all rows, or the other labels if there is none."""
    return other if label is None else like.new_full((len(like),), label)


def _hidden(signal: Tensor | None) -> Tensor | None:
    """Return unknown values in place of a signal, so that no other signal takes its place."""
    return None if signal is None else torch.full_like(signal, torch.nan)


def _pair(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    return None if first is None or second is None else torch.cat((first, second))


def _chosen(inputs: Inputs, where: Tensor | None) -> Tensor:
    return torch.ones_like(inputs.tokens, dtype=torch.bool) if where is None else where

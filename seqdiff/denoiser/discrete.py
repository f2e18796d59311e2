"""The denoiser: a backbone, a process and a parameterization behind one interface.

Objectives, estimators, samplers and guidance call only the denoiser. It computes the noise level
for the network, reads its outputs by the parameterization, and converts them to the kind of
prediction that the caller needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Float64, Int, Int64
from torch import Tensor, nn
from torch.func import functional_call

from seqdiff.backbones import Backbone, BlockCache, score_rows
from seqdiff.experts import NGramExperts, Terms
from seqdiff.parameterization import (
    Categorical,
    Kind,
    LeaveOneOut,
    Parameterization,
    Subs,
    Velocity,
    before_the_end,
    distribution_from_scores,
    evidence_added,
    evidence_removed,
    log_softmax,
    scores_from_distribution,
)
from seqdiff.process import (
    Absorbing,
    AbsorbingBySymbol,
    Blockwise,
    Context,
    DiscreteProcess,
    Gaussian,
    Interpolating,
    Process,
    Uniform,
    spell_sizes,
)
from seqdiff.types import Inputs, Signal

Adjust = Callable[[Tensor], Tensor]
Record = TypeVar("Record", bound=Inputs)

_PROBE_LENGTH = 4
_PROBE_TOLERANCE = 1e-4


@dataclass(frozen=True)
class Needs:
    """The requirements of an objective, an estimator or a sampler on a denoiser.

    Attributes:
        processes: Supported processes.
        kinds: Supported kinds of prediction.
        any_order: Whether visible tokens must be clean and unmask times independent of the network,
            see ``Denoiser.any_order``.
        fixed_process: Whether nothing of the process may be learned.
    """

    processes: tuple[type[Process], ...]
    kinds: tuple[Kind, ...] = ("loo", "full", "score")
    any_order: bool = False
    fixed_process: bool = False

    def met_by(self, denoiser: Denoiser) -> bool:
        """Return whether a denoiser meets the requirements."""
        return (
            self.include(type(denoiser.process), denoiser.kind)
            and (denoiser.any_order or not self.any_order)
            and not (denoiser.learns_process and self.fixed_process)
        )

    def include(self, process: type[Process], kind: Kind) -> bool:
        """Return whether a process and a kind of prediction are supported."""
        return issubclass(process, self.processes) and kind in self.kinds


class Masked(NamedTuple):
    """Masked tokens of some rows.

    Attributes:
        inputs: What the network sees.
        x0: Clean ids.
        where: The masked positions.
        weight: Of each of them in the bound.
        rows: Number of each row, the same in several draws of it.
    """

    inputs: Inputs
    x0: Int[Tensor, "B L"]
    where: Bool[Tensor, "B L"]
    weight: Float[Tensor, " N"]
    rows: Int[Tensor, " B"]


class Denoiser(nn.Module):
    """A network that predicts clean tokens from noisy ones.

    ``where`` arguments choose positions ``[B, L]``; results then have one row for each, in the
    order of ``where.nonzero()``. Without it they have the shape ``[B, L, ...]``.

    Attributes:
        backbone: The network.
        process: The forward process that it denoises.
        parameterization: The meaning of its outputs.
        experts: N-gram tables that are mixed with the outputs of the network, or ``None``.
        reads_embeddings: Whether its inputs are noisy embeddings instead of ids.
        learns_process: Whether parameters of the forward process are learned, so that an objective
            needs the derivative of the noise's distribution.
    """

    reads_embeddings: ClassVar[bool] = False
    learns_process: ClassVar[bool] = False
    _label: int | None = None
    _signal: tuple[float, ...] | None = None

    def __init__(
        self,
        backbone: Backbone,
        process: Process,
        parameterization: Parameterization | None = None,
        experts: NGramExperts | None = None,
    ) -> None:
        """Combine the parts.

        Args:
            backbone: A network that embeds K + 1 ids.
            process: The process, which determines K and the noise level.
            parameterization: ``None`` means the usual one: ``Subs`` for the absorbing process and
                its blocks, ``Categorical`` for the Gaussian one, ``Velocity`` for the absorbing one
                by context, ``LeaveOneOut`` for the others.
            experts: N-gram tables that are mixed with the outputs of the network.

        Raises:
            ValueError: If the parts do not fit together.
        """
        super().__init__()
        if isinstance(process, Gaussian) != self.reads_embeddings:
            other = "Denoiser" if self.reads_embeddings else "GaussianDenoiser"
            raise ValueError(
                f"{type(self).__name__}.process must be "
                f"{'gaussian' if self.reads_embeddings else 'on symbols'}, got {process.name}; "
                f"build a {other}"
            )
        chosen = usual_parameterization(process) if parameterization is None else parameterization
        check_parts(backbone, process, chosen)
        self.backbone = backbone
        self.process = process
        self.parameterization = chosen
        self.experts = experts
        if experts is not None and not self._takes_experts:
            raise ValueError(
                f"{type(self).__name__}.experts must be None for the {self.description}, whose "
                "network does not predict tokens from clean ones; set experts to null, or choose "
                "masked diffusion, its blocks or an autoregressive model"
            )

    @property
    def vocab_size(self) -> int:
        """K, the number of real symbols."""
        return self.process.vocab_size

    @property
    def context(self) -> Context:
        """What the distribution of a token is conditioned on, see ``Process``."""
        return self.process.context

    @property
    def kind(self) -> Kind:
        """What the network predicts, see ``Parameterization``."""
        return self.parameterization.kind

    @property
    def any_order(self) -> bool:
        """Whether the model predicts masked tokens from clean ones, in any order (or by blocks).

        This holds for SUBS models of the absorbing process: the unmask times do not depend on the
        network, and visible tokens never change. Exact-k estimators, estimators by orders and
        first-hitting sampling require it.
        """
        parameterization = self.parameterization
        return isinstance(parameterization, Subs) and parameterization.carry_over

    @property
    def _takes_experts(self) -> bool:
        return self.any_order or self.context == "prefix"

    @property
    def description(self) -> str:
        """The process and the parameterization, for messages."""
        return f"process {self.process.name} with parameterization {self.parameterization.name}"

    @property
    def time_conditioned(self) -> bool:
        """Whether predictions depend on the time."""
        return self.backbone.time_conditioned or self.kind == "score"

    @property
    def num_classes(self) -> int | None:
        """Number of classes of labels; ``None`` for a network without labels."""
        return self.backbone.num_classes

    @property
    def num_signals(self) -> int | None:
        """Number of signals of a row or position; ``None`` for a network without signals."""
        return self.backbone.num_signals

    def given_label(self, label: int) -> Denoiser:
        """Return a copy for rows of one class, which shares the network.

        Args:
            label: Class of every row without a label.

        Raises:
            ValueError: If the network has no such class.
        """
        check_label(type(self).__name__, label, self.num_classes)
        other = copy(self)
        other._label = label
        return other

    def given_signal(self, values: Sequence[float]) -> Denoiser:
        """Return a copy for rows of one signal, which shares the network.

        Args:
            values: Signal of every row without one; NaN where a value is unknown.

        Raises:
            ValueError: If the network takes another number of values.
        """
        if len(values) != (self.num_signals or 0):
            raise ValueError(
                f"{type(self).__name__}.values must be one for each of the network's "
                f"{self.num_signals or 'no'} signals, got {len(values)}; give NaN where a value is "
                "unknown"
            )
        other = copy(self)
        other._signal = tuple(values)
        return other

    @property
    def evaluations_per_call(self) -> int:
        """Number of evaluations of the network itself in one call."""
        return 1

    def evaluations(
        self, inputs: Inputs, where: Bool[Tensor, "B L"] | None = None
    ) -> Int64[Tensor, " B"]:
        """Count the network evaluations of a call for each row."""
        del where
        return torch.full_like(inputs.tokens[:, 0], self.evaluations_per_call, dtype=torch.int64)

    def forward(
        self, inputs: Inputs, where: Bool[Tensor, "B L"] | None = None
    ) -> Float[Tensor, "*positions columns"]:
        """Predict in the kind of the parameterization, see ``Parameterization.read``.

        Args:
            inputs: Noisy ids, their times, padding, labels and signals.
            where: Positions to predict; the head computes no others.

        Raises:
            ValueError: If there are labels and the network has no classes, or a required time is
                missing.
        """
        return self._read(self._outputs(inputs, where), inputs, where)

    def log_probs(
        self, inputs: Inputs, where: Bool[Tensor, "B L"] | None = None
    ) -> Float[Tensor, "*positions K"]:
        """Distribution of the clean token given all noisy tokens, including its own.

        The distribution is over the K symbols; probability of the mask (D3PM) is divided among them
        in proportion. Arguments and
        errors are those of ``forward``.
        """
        found = self(inputs, where)
        if isinstance(self.parameterization, Subs) or self.context == "prefix":
            return found
        if self.kind == "rates":
            return found.log_softmax(dim=-1)
        z, t = at(inputs, where)
        if self.kind != "full":
            found = evidence_added(self._loo(found, z, t), z, t, self._discrete)
        return found

    def log_loo(
        self, inputs: Inputs, where: Bool[Tensor, "B L"] | None = None
    ) -> Float[Tensor, "*positions columns"]:
        """Distribution of the clean token given the other positions; see ``Parameterization``.

        For ``MaskColumn``, it has K + 1 columns. Arguments and errors are those of ``forward``.
        """
        found = self(inputs, where)
        if self.kind == "loo":
            return found
        process, (z, t) = self._discrete, at(inputs, where)
        if self.kind == "full":
            return evidence_removed(found, z, t, process)
        return distribution_from_scores(found, z, before_the_end(t), process)

    def log_scores(
        self, inputs: Inputs, where: Bool[Tensor, "B L"] | None = None
    ) -> Float64[Tensor, "*positions states"]:
        """Log-ratios p_t(z with state y here) / p_t(z) for all states y; 0 for the present state.

        Arguments and errors are those of ``forward``.
        """
        found = self(inputs, where)
        if self.kind == "score":
            return found.double()
        process, (z, t) = self._discrete, at(inputs, where)
        if self.kind == "full":
            found = evidence_removed(found, z, t, process)
        return scores_from_distribution(found, z, before_the_end(t), process)

    def log_rates(
        self, inputs: Inputs, where: Bool[Tensor, "B L"] | None = None
    ) -> Float64[Tensor, "*positions K"]:
        """Log-rates, per unit of -log t, at which masks turn into each symbol.

        For processes with a noise schedule for every token. Arguments and errors are those of
        ``forward``.
        """
        if self.kind == "rates":
            return self(inputs, where).double()
        process = self.process
        if not isinstance(process, AbsorbingBySymbol):
            raise ValueError(
                "Denoiser.process must have a noise schedule for every token to have rates, got "
                f"{process.name}; call log_scores instead"
            )
        return self.log_probs(inputs, where) + process.powers.to(inputs.tokens.device).log()

    def log_reverse(
        self,
        inputs: Inputs,
        s: Float[Tensor, " B"],
        where: Bool[Tensor, "B L"] | None = None,
        *,
        adjust: Adjust | None = None,
    ) -> Float64[Tensor, "*positions states"]:
        """Distribution of z_s given z_t at every position: one step back in time.

        For distributions of x0, it is the posterior with the leave-one-out prediction in place of
        x0; for scores, it is the analytic (Tweedie) step; for rates, masks are removed at the
        present rates until s.

        Args:
            inputs: Noisy ids at the times ``inputs.t``.
            s: Earlier time of each row.
            where: See ``forward``.
            adjust: Function that modifies the prediction of the clean token before the step is
                computed from it; scores are first converted to such a prediction.
        """
        z, t = at(inputs, where)
        earlier = at(replace(inputs, t=s), where)[1]
        if self.kind == "rates":
            return unmasked(self.log_rates(inputs, where), z, earlier, t, adjust)
        process = self._discrete
        if self.kind == "score" and adjust is None:
            return tweedie(self(inputs, where), z, earlier, before_the_end(t), process)
        log_loo = self.log_loo(inputs, where)
        log_loo = log_loo if adjust is None else adjust(log_loo)
        return process.log_posterior(log_loo, z, earlier, t)

    def nats(
        self, inputs: Inputs, x0: Int[Tensor, "B L"], where: Bool[Tensor, "B L"]
    ) -> Float[Tensor, "B L"]:
        """Compute -log p(x0) at some positions by the network's own distribution.

        Visible tokens are not copied. Losses and likelihoods are computed from these values.

        Args:
            inputs: See ``forward``.
            x0: Clean ids; below K at these positions.
            where: Positions to predict.

        Returns:
            Nats in float32 or better; 0 elsewhere.

        Raises:
            ValueError: See ``forward``; also if the network predicts scores.
        """
        log_probs = self._nats_log_probs(inputs, x0, where)
        terms = F.nll_loss(log_probs, x0[where], reduction="none")
        return terms.new_zeros(where.shape).masked_scatter(where, terms)

    def _nats_log_probs(self, inputs: Inputs, x0: Tensor, where: Tensor) -> Tensor:
        """Log-probabilities ``[N, k]``; a model of blocks reads clean blocks from x0."""
        plain = isinstance(self.parameterization, Subs | LeaveOneOut)
        if not plain or type(self).forward is not Denoiser.forward:
            return self.log_loo(inputs, where)
        outputs = self._outputs(inputs, where, x0)
        with torch.autocast(outputs.device.type, enabled=False):
            return log_softmax(outputs)

    def start(
        self,
        batch_size: int,
        *,
        window: int | None = None,
        label: Int[Tensor, " B"] | None = None,
        signal: Signal | None = None,
    ) -> Prefix:
        """Start empty rows that grow block by block, or token by token if it is autoregressive.

        Args:
            batch_size: Number of rows.
            window: See ``Backbone.block_cache``.
            label: Class of each row or ``NO_LABEL``.
            signal: Values of each row, or of each position from the first on.

        Raises:
            ValueError: If it is not a model of blocks and has no cache of a prefix, there are
                labels and the backbone has no classes, a signal does not fit the backbone, or the
                window is invalid.
        """
        given = self._given_to(batch_size, label, signal)
        size = 1 if self.caches_prefix else self.block_size
        cache = self.backbone.block_cache(
            batch_size, size, window=window, label=given.label, signal=given.signal
        )
        return Prefix(self, self._with_experts(cache, batch_size))

    def _with_experts(self, cache: BlockCache, batch_size: int) -> BlockCache:
        """Mix the logits of a cache with those of the experts, if there are any."""
        if self.experts is None:
            return cache
        device = self.experts.gates.device
        nothing = torch.full(
            (batch_size, self.experts.order), self.vocab_size, dtype=torch.int64, device=device
        )
        if self.context == "prefix":
            return MixedCache(cache, self.experts, nothing, 1, self.context)
        return MixedCache(cache, self.experts, nothing, self.block_size)

    @property
    def block_size(self) -> int:
        """Number of tokens of a block.

        Raises:
            ValueError: If it is not a model of blocks.
        """
        if not isinstance(self.process, Blockwise):
            raise ValueError(
                f"Denoiser.process must be blockwise to have a block size, got "
                f"{self.process.name}; set block_size"
            )
        return self.process.block_size

    @property
    def caches_prefix(self) -> bool:
        """Whether ``start`` supports an autoregressive model."""
        return self.context == "prefix" and self.backbone.caches_prefix

    @property
    def block_sizes(self) -> tuple[int, ...]:
        """Sizes of blocks that the network is trained for, rising; none without blocks."""
        process = self.process
        if not isinstance(process, Blockwise):
            return ()
        return tuple(sorted(process.sizes)) or (process.block_size,)

    def in_blocks(self, block_size: int, owner: str = "Denoiser") -> Denoiser:
        """Return a copy for blocks of another size, which shares the network.

        Args:
            block_size: One of ``block_sizes``.
            owner: Function that was given the size, for messages.

        Raises:
            ValueError: If the network is not trained for this size; names those that it is trained
                for.
        """
        if not isinstance(self.process, Blockwise):
            raise ValueError(
                f"{owner}.block_size must be left out for the {self.description}, which has no "
                f"blocks, got {block_size}; train with the key block_size"
            )
        if isinstance(block_size, bool) or block_size not in self.block_sizes:
            raise ValueError(
                f"{owner}.block_size must be {spell_sizes(self.block_sizes)}, which the network "
                f"was trained for, got {block_size}; choose one, or train with others"
            )
        other = copy(self)
        other.process = replace(self.process, block_size=block_size)
        return other

    @property
    def _discrete(self) -> DiscreteProcess:
        process = self.process.process if isinstance(self.process, Blockwise) else self.process
        if not isinstance(process, DiscreteProcess):
            raise ValueError(
                f"Denoiser.process must have discrete noisy symbols, got {process.name}; call "
                "log_probs instead"
            )
        return process

    def _loo(self, found: Tensor, z: Tensor, t: Tensor | None) -> Tensor:
        """Convert a leave-one-out distribution or scores to a distribution over the K symbols."""
        if self.kind == "score":
            assert t is not None
            return distribution_from_scores(found, z, before_the_end(t), self._discrete)
        if found.shape[-1] > self.vocab_size:
            return found[..., : self.vocab_size].log_softmax(dim=-1)
        return found

    def _outputs(self, inputs: Inputs, where: Tensor | None, x0: Tensor | None = None) -> Tensor:
        """Evaluate the network, with the noise level if it is time-conditioned.

        Args:
            inputs: See ``forward``.
            where: See ``forward``.
            x0: Clean ids of the blocks before that of a token; ``None`` takes the noisy ids, in
                which masks are unknown symbols.
        """
        inputs = self._conditioned(inputs)
        if self.experts is not None and self.experts.alone:
            shape = inputs.tokens.shape if where is None else (int(where.sum()),)
            outputs = torch.zeros(*shape, self.vocab_size, device=inputs.tokens.device)
        elif self.context == "block":
            clean = inputs.tokens if x0 is None else x0
            outputs = self.backbone.block_logits(inputs, clean, self.block_size, where)
        else:
            if self.backbone.time_conditioned:
                inputs = replace(inputs, sigma=self.process.sigma(_time(inputs)))
            outputs = self.backbone(inputs, where)
        outputs = self._checked(outputs)
        if self.experts is None:
            return outputs
        with torch.autocast(outputs.device.type, enabled=False):
            return self.experts(outputs, inputs.tokens, where, **self._sight(inputs, x0))

    def _sight(self, inputs: Inputs, x0: Tensor | None) -> dict[str, Any]:
        """What the experts may see, see ``NGramExperts.terms``."""
        if self.context != "block":
            return {"context": self.context}
        clean = inputs.tokens if x0 is None else x0
        return {"context": "block", "clean": clean, "block_size": self.block_size}

    @torch.no_grad()
    def fit_experts(self, draws: Sequence[Masked], num_tokens: int) -> tuple[float, float]:
        """Choose the gates of the experts, for the present block size.

        Args:
            draws: Masked tokens of rows that the network was not trained on.
            num_tokens: Number of different tokens in these rows.

        Returns:
            Weighted mean of -log p of the masked tokens in nats, of the network alone and of the
            mixture.

        Raises:
            ValueError: If there are no experts.
        """
        if self.experts is None:
            raise ValueError(
                "Denoiser.experts must be there to be fitted, got None; build it with experts"
            )
        outputs: list[Tensor] = []
        terms: list[Terms] = []
        with self.experts.only("network"):
            for inputs, x0, where, *_ in draws:
                outputs.append(self._outputs(inputs, where, x0).float())
                terms.append(self.experts.terms(inputs.tokens, where, **self._sight(inputs, x0)))
        rows = torch.cat([draw.rows[draw.where.nonzero()[:, 0]] for draw in draws])
        targets = torch.cat([draw.x0[draw.where] for draw in draws])
        weights = torch.cat([draw.weight for draw in draws]).float()
        size = self.block_size if self.context == "block" else 1
        found = torch.cat(outputs), Terms.join(terms), targets, weights, rows
        return self.experts.fit(*found, num_tokens, size)

    def _conditioned(self, inputs: Record) -> Record:
        """Give the label and the signal of this denoiser to rows without one."""
        if self._label is not None and inputs.label is None:
            label = inputs.tokens.new_full((len(inputs.tokens),), self._label)
            inputs = replace(inputs, label=label)
        if self._signal is not None and inputs.signal is None:
            values = torch.tensor(self._signal, device=inputs.tokens.device)
            inputs = replace(inputs, signal=values.expand(len(inputs.tokens), -1))
        return inputs

    def _given_to(self, batch_size: int, label: Tensor | None, signal: Tensor | None) -> Inputs:
        """Return what empty rows are conditioned on, see ``_conditioned``."""
        device = next((p.device for p in self.parameters()), None)
        length = signal.shape[1] if signal is not None and signal.dim() == 3 else 0
        tokens = torch.empty((batch_size, length), dtype=torch.int64, device=device)
        return self._conditioned(Inputs(tokens, label=label, signal=signal))

    def _checked(self, outputs: Tensor) -> Tensor:
        expected = self.parameterization.num_outputs(self.process)
        if outputs.shape[-1] != expected:
            raise ValueError(
                f"Denoiser.backbone must emit {expected} outputs for {self.parameterization.name}, "
                f"got {outputs.shape[-1]}; build it with num_logits={expected}"
            )
        if not self.training and not bool((outputs < torch.inf).all()):  # -inf is probability 0
            raise FloatingPointError(
                "Denoiser.backbone must give finite outputs, got NaN or inf; the weights are "
                "damaged or too large: load another checkpoint, or train with a lower optim.lr"
            )
        return outputs

    def _read(self, outputs: Tensor, inputs: Inputs, where: Tensor | None) -> Tensor:
        needs = self.kind == "score"
        z, t = at(inputs, where) if needs else (_tokens(inputs, where), None)
        with torch.autocast(outputs.device.type, enabled=False):
            return self.parameterization.read(outputs, z, t, self.process)


def at(
    inputs: Inputs, where: Bool[Tensor, "B L"] | None
) -> tuple[Int64[Tensor, "*positions"], Float64[Tensor, "*positions"]]:
    """Return the ids and times of some positions, or of all.

    Raises:
        ValueError: If the inputs have no time.
    """
    t = _time(inputs).double()
    if where is None:
        return inputs.tokens, t[:, None].expand(inputs.tokens.shape)
    return inputs.tokens[where], t[where.nonzero()[:, 0]]


def _tokens(inputs: Inputs, where: Tensor | None) -> Tensor:
    return inputs.tokens if where is None else inputs.tokens[where]


def _time(inputs: Inputs) -> Tensor:
    if inputs.t is None:
        raise ValueError(
            "Denoiser.inputs.t must be given where a prediction depends on the noise level, got "
            "None; pass the time of each row"
        )
    return inputs.t


@dataclass
class MixedCache:
    """The cache of a network, whose logits are mixed with those of experts.

    Attributes:
        cache: Of the network.
        experts: The experts.
        recent: The last clean tokens of each row, K before its first one.
        block_size: Tokens of a block.
        context: Which of these tokens and of the block a position may see.
    """

    cache: BlockCache
    experts: NGramExperts
    recent: Int[Tensor, "B n"]
    block_size: int
    context: Literal["row", "prefix"] = "row"

    @property
    def length(self) -> int:
        """See ``BlockCache.length``."""
        return self.cache.length

    def logits(
        self, x_t: Int[Tensor, "B l"], where: Bool[Tensor, "B l"] | None = None
    ) -> Float[Tensor, "*positions K"]:
        """See ``BlockCache.logits``."""
        outputs = self.cache.logits(x_t, where)
        chosen = torch.ones_like(x_t, dtype=torch.bool) if where is None else where
        return self._mixed(outputs, self.recent, x_t, chosen)

    def logits_of(
        self,
        rows: Int[Tensor, " b"],
        x_t: Int[Tensor, "b l"],
        where: Bool[Tensor, "b l"],
        refresh: int = 1,
    ) -> Float[Tensor, "N K"]:
        """See ``PartialCache.logits_of``."""
        outputs = score_rows(self.cache, rows, x_t, where, refresh)
        return self._mixed(outputs, self.recent[rows], x_t, where)

    def _mixed(self, outputs: Tensor, recent: Tensor, x_t: Tensor, where: Tensor) -> Tensor:
        tokens = torch.cat((recent, x_t), dim=1)
        chosen = torch.cat((torch.zeros_like(recent, dtype=torch.bool), where), dim=1)
        absent = max(0, recent.shape[1] - self.length)
        sight = {"context": self.context, "block_size": self.block_size, "absent": absent}
        return self.experts(outputs, tokens, chosen, **sight)

    def append(self, x0: Int[Tensor, "B l"]) -> None:
        """See ``BlockCache.append``."""
        self.cache.append(x0)
        tokens = torch.cat((self.recent, x0), dim=1)
        self.recent = tokens[:, tokens.shape[1] - self.recent.shape[1] :]

    def take(self, rows: Int[Tensor, " b"]) -> MixedCache:
        """See ``BlockCache.take``."""
        return replace(self, cache=self.cache.take(rows), recent=self.recent[rows])


@dataclass(frozen=True)
class Prefix:
    """The clean blocks of some rows, in the cache of a network.

    Attributes:
        denoiser: The model.
        cache: The cache of its backbone.
        refresh: Every how many evaluations of a row its whole block is computed; see
            ``PartialCache.logits_of``.
        rows: The rows of the cache; ``None`` for all.
    """

    denoiser: Denoiser
    cache: BlockCache
    refresh: int = 1
    rows: Int64[Tensor, " b"] | None = None

    def log_probs(
        self, x_t: Int[Tensor, "B l"], where: Bool[Tensor, "B l"]
    ) -> Float[Tensor, "N K"]:
        """Distribution of some clean tokens of the next block, see ``Denoiser.log_probs``.

        Args:
            x_t: The next block, which may be incomplete.
            where: Positions to predict.
        """
        if self.rows is None and self.refresh == 1:
            outputs = self.cache.logits(x_t, where)
        else:
            rows = torch.arange(len(x_t), device=x_t.device) if self.rows is None else self.rows
            outputs = score_rows(self.cache, rows, x_t, where, self.refresh)
        outputs = self.denoiser._checked(outputs)
        return self.denoiser._read(outputs, Inputs(x_t), where)

    def append(self, x0: Int[Tensor, "B l"]) -> None:
        """Append one or several whole blocks of clean tokens to all rows of the cache."""
        assert self.rows is None
        self.cache.append(x0)

    def take(self, rows: Int[Tensor, " b"]) -> Prefix:
        """Copy rows, in this order; see ``BlockCache.take``."""
        assert self.rows is None
        return replace(self, cache=self.cache.take(rows))

    def only(self, rows: Int[Tensor, " b"]) -> Prefix:
        """Return different rows of the same cache, to predict them without copying anything."""
        return replace(self, rows=rows if self.rows is None else self.rows[rows])


def usual_parameterization(process: Process) -> Parameterization:
    """Return the default parameterization of a process.

    Raises:
        ValueError: If there is no default.
    """
    for chosen in (Subs(), LeaveOneOut(), Velocity(), Categorical()):
        if isinstance(process, chosen.processes):
            return chosen
    raise ValueError(
        f"Denoiser.parameterization must be given for the process {process.name}, got None; pass "
        "one that supports it"
    )


def check_label(owner: str, label: int, known: int | None) -> None:
    """Check that a network has a class.

    Args:
        owner: The caller, for the message.
        label: The class.
        known: Number of classes of the network, if it has any.

    Raises:
        ValueError: If it has no such class.
    """
    if known is None or not 0 <= label < known:
        raise ValueError(
            f"{owner}.label must be a class of the network, which has {known or 'none'},"
            f" got {label}; "
            + ("train with data.labels" if known is None else f"choose one of 0..{known - 1}")
        )


def check_parts(backbone: Backbone, process: Process, parameterization: Parameterization) -> None:
    """Check that a network, a process and a parameterization fit together.

    Raises:
        ValueError: If they do not; the message names the first conflict and the valid choices.
    """
    network, chosen = type(backbone).__name__, parameterization
    if not isinstance(process, chosen.processes):
        fitting = ", ".join(fit.name for fit in chosen.processes if hasattr(fit, "name"))
        others = [c for c in Parameterization.__subclasses__() if isinstance(process, c.processes)]
        names = " or ".join(sorted(other.__name__ for other in others))
        raise ValueError(
            f"Denoiser.parameterization {chosen.name} must go with the process "
            f"{fitting or 'it was made for'}, got {process.name}; choose "
            f"{f'the parameterization {names}' if names else 'another process'}"
        )
    expected = chosen.num_outputs(process)
    if backbone.num_logits != expected:
        raise ValueError(
            f"Denoiser.backbone must emit {expected} outputs for {chosen.name}, got "
            f"{backbone.num_logits} from {network}; build it with num_logits={expected}"
        )
    if (process.needs_time or chosen.needs_time) and not backbone.time_conditioned:
        cause = (
            f"process {process.name}" if process.needs_time else f"parameterization {chosen.name}"
        )
        raise ValueError(
            f"Denoiser.backbone must be told the noise level for the {cause}, got a time-free "
            f"{network}; build it with time_conditioned=True, which Caduceus and Transformer take"
        )
    if process.context == "block":
        _check_blocks(backbone)
    if process.context == "prefix":
        _check_causal(backbone, process.vocab_size)


def _check_blocks(backbone: Backbone) -> None:
    if not backbone.reads_blocks:
        raise ValueError(
            "Denoiser.backbone must score blocks given the clean ones before them, got "
            f"{type(backbone).__name__}; choose Transformer or BlockMamba"
        )
    if backbone.time_conditioned:
        raise ValueError(
            "Denoiser.backbone must be time-free, since each block has a noise level of its own, "
            f"got a time-conditioned {type(backbone).__name__}; set time_conditioned=False"
        )


def _check_causal(backbone: Backbone, vocab_size: int) -> None:
    seen = first_leak(backbone, vocab_size)
    if seen is not None:
        raise ValueError(
            "Denoiser.backbone must score each position from the tokens before it, got "
            f"{type(backbone).__name__}, whose position {seen[0]} depends on token {seen[1]}; "
            "choose AutoregressiveMamba or AutoregressiveTransformer, or a process of diffusion"
        )


@torch.no_grad()
def first_leak(backbone: Backbone, vocab_size: int) -> tuple[int, int] | None:
    """Find a position whose outputs depend on a token that is not before it.

    The network is tested with random weights, because a head that is initialised to zero would hide
    such a dependence.

    Returns:
        The position, from 0, and the token; ``None`` if there is none.
    """
    length = min(_PROBE_LENGTH, backbone.max_length or _PROBE_LENGTH)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(vocab_size + 1, (length,), generator=generator)
    changed = (tokens + torch.eye(length, dtype=torch.int64)) % (vocab_size + 1)
    rows = torch.cat((tokens[None], changed))
    scores = _with_random_weights(backbone, rows, generator).double().cpu()
    scores = scores.masked_fill(scores.isinf(), 0.0)  # an excluded symbol
    base, others = scores[0], scores[1:]
    change = (others - base).abs().amax(dim=-1)
    moved = ~(change <= _PROBE_TOLERANCE * base.abs().amax())  # a NaN counts as a change
    leaks = (moved & torch.ones_like(moved).tril()).nonzero().tolist()
    return (leaks[0][1], leaks[0][0]) if leaks else None


def _with_random_weights(backbone: Backbone, rows: Tensor, generator: torch.Generator) -> Tensor:
    """Evaluate a network in eval mode with random weights of usual size, none of them zero."""
    weights = {
        name: (
            torch.randn(weight.shape, generator=generator)
            * (weight.shape[-1] ** -0.5 if weight.dim() > 1 else 1.0)
        ).to(weight)
        for name, weight in backbone.named_parameters()
    }
    device = next((weight.device for weight in weights.values()), rows.device)
    was_training = backbone.training
    backbone.eval()
    try:
        outputs = functional_call(backbone, weights, (Inputs(rows.to(device)),))
    finally:
        backbone.train(was_training)
    assert isinstance(outputs, Tensor)
    return outputs


def unmasked(
    log_rates: Float64[Tensor, "*n K"],
    z: Int[Tensor, "*n"],
    s: Float[Tensor, "*n"],
    t: Float[Tensor, "*n"],
    adjust: Adjust | None = None,
) -> Float64[Tensor, "*n states"]:
    """The step from t back to s of masks that are removed at constant rates per unit of -log t.

    A mask stays with probability (s / t)^v, where the velocity v is the sum of its rates.

    Args:
        log_rates: Log-rate of each symbol.
        z: Present states; visible tokens stay.
        s: Earlier times.
        t: Present times.
        adjust: Function that modifies the distribution of the symbols.
    """
    velocity = log_rates.logsumexp(dim=-1, keepdim=True)
    log_probs = log_rates - velocity
    log_probs = log_probs if adjust is None else adjust(log_probs)
    stays = velocity.exp() * (s.double().log() - t.double().log())[..., None]
    step = torch.cat((log_probs + torch.log(-torch.expm1(stays)), stays), dim=-1)
    size = log_rates.shape[-1]
    copied = F.one_hot(z.long(), size + 1).double().log()
    return torch.where((z == size)[..., None], step, copied)


def tweedie(
    log_scores: Float[Tensor, "*n states"],
    z: Int[Tensor, "*n"],
    s: Float[Tensor, "*n"],
    t: Float[Tensor, "*n"],
    process: DiscreteProcess,
) -> Float64[Tensor, "*n states"]:
    """The analytic step of SEDD from t back to s: exact on one position if the scores are.

    p_s(y) / p_t(z) follows from the scores at t by inverting the noise of the step, and q(z | y)
    completes Bayes' rule. Negative probabilities, which inconsistent scores can give, count as 0.
    Source: Lou et al. 2024, arXiv:2310.16834, theorem 4.2.

    Args:
        log_scores: Log-scores at time t; 0 for the present state.
        z: Present states.
        s: Earlier times.
        t: Present times, below 1.
        process: Absorbing or uniform.

    Raises:
        ValueError: If the process does not mix data with noise.
    """
    if not isinstance(process, Interpolating):
        raise ValueError(
            f"tweedie.process must mix data with noise, got {process.name}; use tau_leaping"
        )
    stay = (process.alpha(t) / process.alpha(s))[..., None]
    if isinstance(process, Absorbing):
        return _tweedie_absorbing(log_scores.double().exp(), z, stay, process)
    # q_t = stay q_s + added * (total mass of q_s), and the total is that of q_t.
    if isinstance(process, Uniform):
        # Here added = (1 - stay) noise; for the digits see ``distribution_from_scores``.
        noise = process.log_prior(log_scores.device).exp()
        excess = log_scores.double().expm1()
        mean = (excess * noise).sum(dim=-1, keepdim=True)
        before = torch.where(noise > 0, (excess - mean) / stay + 1 + mean, 0.0)
    else:
        scores = log_scores.double().exp()
        added = process.noise_probs(t) - stay * process.noise_probs(s)
        before = (scores - added * scores.sum(dim=-1, keepdim=True)) / stay
    return (before.clamp_min(0).log() + process.log_step(z, s, t)).log_softmax(dim=-1)


def _tweedie_absorbing(
    scores: Tensor, z: Tensor, stay: Tensor, process: Absorbing
) -> Float64[Tensor, "*n states"]:
    """Unmask y with probability (1 / stay - 1) s_y; visible tokens do not change."""
    size = process.vocab_size
    symbols = (1 / stay - 1) * scores[..., :size]
    rest = (1 - symbols.sum(dim=-1, keepdim=True)).clamp_min(0)
    opened = torch.cat((symbols, rest), dim=-1)
    opened = opened / opened.sum(dim=-1, keepdim=True)
    copied = F.one_hot(z.long(), size + 1).double()
    return torch.where((z == size)[..., None], opened, copied).log()

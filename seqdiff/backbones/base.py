"""The base class of networks, and protocols for caches and published networks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Integer
from torch import Tensor, nn

from seqdiff.backbones.layers import SignalEmbedding, require_layer
from seqdiff.types import Inputs, Signal


class Backbone(nn.Module, ABC):
    """A network that embeds tokens, transforms the embeddings and scores every position.

    ``forward`` is ``head(body(embed(inputs), inputs), inputs, where)``. A caller that has vectors
    instead of tokens, such as noisy embeddings, passes its own ``h`` to ``body``.

    A backbone that a run configuration names takes ``num_embeddings`` (K+1) and ``num_logits``
    (K) in its constructor; both are linked from the tokenizer. If it also takes ``num_classes`` or
    ``num_signals``, these are linked from the data: the number of classes of its labels and of its
    signals, or ``None`` for data without them.

    Attributes:
        width: Channels of the residual stream.
        num_logits: Outputs per position.
        max_length: Longest row; ``None`` without a bound.
        num_classes: Number of classes that a row can be labelled with; ``None`` if the network was
            built without classes.
        num_signals: Number of measured values that a row, or each position of it, can be
            conditioned on; ``None`` if the network was built without signals.
        time_conditioned: Whether the network reads ``Inputs.sigma``.
        causal: Whether the outputs at a position depend only on the tokens before it.
        strands: 2 if the network reads a row and its reverse complement with the same weights and
            ``hidden`` returns the states of both, else 1.
        reads_blocks: Whether the network supports ``block_logits`` and ``block_cache``.
        reuses_keys: Whether its cache can evaluate a part of a block, see ``PartialCache``.
        caches_prefix: Whether an autoregressive network supports ``block_cache`` with blocks of one
            token.
        head: Method or submodule, called as ``head(h, inputs, where=None)``, that scores the
            residual stream ``h`` of the last layer. It returns ``[B, L, num_logits]``. With
            ``where``, it computes only the scores of those positions and returns one row for each,
            in the order of ``where.nonzero()``. (In the transformers it is a submodule, because the
            published weights have a module of this name.)
    """

    width: int
    num_logits: int
    max_length: int | None = None
    num_classes: int | None = None
    num_signals: int | None = None
    time_conditioned: bool = False
    causal: bool = False
    strands: int = 1
    reads_blocks: bool = False
    reuses_keys: bool = False
    caches_prefix: bool = False
    head: nn.Module | Callable[..., Tensor]

    @property
    @abstractmethod
    def num_layers(self) -> int:
        """Number of layers of the body."""

    @abstractmethod
    def embed(self, inputs: Inputs) -> Float[Tensor, "rows L D"]:
        """Embed the tokens, which starts the residual stream.

        Args:
            inputs: Tokens; a causal network also reads the padding.

        Returns:
            ``[B, L, width]``; ``[2 B, L, width]`` for a network that reads both strands.

        Raises:
            ValueError: If rows are longer than ``max_length``.
        """

    @abstractmethod
    def body(
        self, h: Float[Tensor, "rows L D"], inputs: Inputs, layer: int | None = None
    ) -> Float[Tensor, "rows L D"]:
        """Run the layers.

        Args:
            h: Vectors in the shape that ``embed`` returns; they need not come from tokens.
            inputs: Padding, label, signal and noise level. The values of the tokens are not read.
            layer: Number of layers to run; ``None`` for all.

        Returns:
            The residual stream after these layers, in the shape of ``h``.

        Raises:
            ValueError: If a time-conditioned network gets no ``sigma``.
        """

    def forward(
        self, inputs: Inputs, where: Bool[Tensor, "B L"] | None = None
    ) -> Float[Tensor, "*positions K"]:
        """Score every symbol at every position.

        Args:
            inputs: Inputs of the network. All tokens are read, regardless of ``where``.
            where: Positions to score; ``None`` for all.

        Returns:
            ``[B, L, num_logits]``; with ``where``, one row for each position in the order of
            ``where.nonzero()``.

        Raises:
            ValueError: If there are labels and the network has no classes, a signal does not fit
                the network, a time-conditioned network gets no ``sigma``, or rows are longer than
                ``max_length``.
        """
        self.check_condition(inputs)
        return self.head(self.body(self.embed(inputs), inputs), inputs, where)

    def hidden(self, inputs: Inputs, layer: int | None = None) -> Float[Tensor, "B L C"]:
        """Compute hidden states, for embeddings and for other heads.

        With two strands, the first half of a state's channels belongs to the row, and the second
        half to its reverse complement at the same base. The reverse complement of a row therefore
        has the same states in reverse order with their halves swapped.

        Args:
            inputs: Inputs of the network. Without ``sigma``, a time-conditioned network treats the
                rows as free of noise. States at padding have no meaning.
            layer: Number of layers to run; 0 returns the embedded tokens. ``None`` runs all layers
                and the final norm, which gives the states that the head projects to scores.

        Raises:
            ValueError: If there are fewer layers. See also ``forward``.
        """
        require_layer(type(self).__name__, layer, self.num_layers)
        self.check_condition(inputs)
        if self.time_conditioned and inputs.sigma is None:
            like = next(self.parameters())
            inputs = replace(inputs, sigma=like.new_zeros(len(inputs.tokens)))
        return self._states(self.body(self.embed(inputs), inputs, layer), inputs, layer)

    def _states(
        self, h: Float[Tensor, "rows L D"], inputs: Inputs, layer: int | None
    ) -> Float[Tensor, "B L C"]:
        """Convert the residual stream after ``layer`` layers to the states of ``hidden``."""
        return h

    def block_logits(
        self,
        inputs: Inputs,
        x0: Int[Tensor, "B L"],
        block_size: int,
        where: Bool[Tensor, "B L"] | None = None,
    ) -> Float[Tensor, "*positions K"]:
        """Score every position given its block of x_t and the earlier blocks of x0, in one pass.

        Args:
            inputs: The tokens are x_t. Padding comes after the last token of a shorter row.
            x0: Clean ids.
            block_size: Number of tokens in a block; the last one may be shorter.
            where: Positions to score; ``None`` for all.

        Returns:
            See ``forward``.

        Raises:
            ValueError: If the network does not read blocks. See also ``forward``.
        """
        raise self._reads_no_blocks("block_logits")

    def block_cache(
        self,
        batch_size: int,
        block_size: int,
        *,
        window: int | None = None,
        label: Int[Tensor, " B"] | None = None,
        signal: Signal | None = None,
    ) -> BlockCache:
        """Create an empty cache for scoring rows block by block.

        Args:
            batch_size: Number of rows.
            block_size: Number of tokens in a block.
            window: Number of earlier tokens that attention may look back at, a multiple of
                ``block_size``. It has no effect on a network that keeps a recurrent state instead.
            label: Class of each row or ``NO_LABEL``.
            signal: Values of each row, or of each position from the first on.

        Raises:
            ValueError: If the network does not read blocks, a size is invalid, there are labels
                and the network has no classes, or a signal does not fit the network.
        """
        raise self._reads_no_blocks("block_cache")

    def check_condition(self, inputs: Inputs) -> None:
        """Check that labels and signals are only given to a network that takes them.

        Args:
            inputs: Inputs of the network.

        Raises:
            ValueError: If there are labels and the network has no classes, or signals of another
                number than the network has, or of another length than the rows.
        """
        name, label, signal = type(self).__name__, inputs.label, inputs.signal
        if label is not None and self.num_classes is None:
            raise ValueError(
                f"{name}.label must be None for a network without classes, got one "
                f"of shape {tuple(label.shape)}; leave it out, or use one built with num_classes"
            )
        if signal is None:
            return
        if self.num_signals is None:
            raise ValueError(
                f"{name}.signal must be None for a network without signals, got one of shape "
                f"{tuple(signal.shape)}; leave it out, or use one built with num_signals"
            )
        rows, length = inputs.tokens.shape
        if signal.shape not in ((rows, self.num_signals), (rows, length, self.num_signals)):
            raise ValueError(
                f"{name}.signal must have shape {(rows, self.num_signals)}, or "
                f"{(rows, length, self.num_signals)} for a value at each position, got "
                f"{tuple(signal.shape)}; give NaN where a value is unknown"
            )

    def add_signals(self, num_signals: int | None, width: int) -> None:
        """Add the embedding of signals; called last, so that other weights do not depend on it.

        Args:
            num_signals: Number of values of a row or position; ``None`` without signals.
            width: Channels of the vectors that the embedding is added to.
        """
        self.num_signals = num_signals
        if num_signals is not None:
            self.add_module("signal_map", SignalEmbedding(num_signals, width))

    @property
    def signal_embedding(self) -> SignalEmbedding | None:
        """Embedding of the signals; ``None`` without signals."""
        found = self._modules.get("signal_map")
        assert found is None or isinstance(found, SignalEmbedding)
        return found

    def embedded_signal(self, signal: Signal | None, rows: int) -> Float[Tensor, "B l D"] | None:
        """Embed the signal of some rows, see ``SignalEmbedding``; ``None`` without signals."""
        return None if self.signal_embedding is None else self.signal_embedding(signal, rows)

    def _sigma(self, inputs: Inputs) -> Tensor:
        """Return the noise level, which a time-conditioned network requires."""
        if inputs.sigma is None:
            raise ValueError(
                f"{type(self).__name__}.sigma must be given to a time-conditioned network, got "
                "none; pass -log alpha(t) of each row, or build it with time_conditioned=False"
            )
        return inputs.sigma

    def _reads_no_blocks(self, method: str) -> ValueError:
        return ValueError(
            f"{type(self).__name__}.{method} must be called on a network that reads blocks, got "
            "one that does not; choose Transformer or BlockMamba"
        )


def check_cache_condition(
    network: Backbone, batch_size: int, label: Tensor | None, signal: Tensor | None
) -> Inputs:
    """Check the label and the signal of ``Backbone.block_cache``; see ``check_condition``.

    The signal may have any number of positions.

    Returns:
        Rows of unknown tokens, as many as the signal has positions, with this condition.

    Raises:
        ValueError: If they do not fit the network, or there is not one for each row.
    """
    if label is not None and len(label) != batch_size:
        raise ValueError(
            f"{type(network).__name__}.label must be one class for each of batch_size = "
            f"{batch_size} rows, got {len(label)}; repeat it"
        )
    if signal is not None and len(signal) != batch_size:
        raise ValueError(
            f"{type(network).__name__}.signal must be one for each of batch_size = {batch_size} "
            f"rows, got {len(signal)}; repeat it"
        )
    length = signal.shape[1] if signal is not None and signal.dim() == 3 else 0
    tokens = torch.zeros((batch_size, length), dtype=torch.int64)
    inputs = Inputs(tokens, label=label, signal=signal)
    network.check_condition(inputs)
    return inputs


@runtime_checkable
class PublishedBackbone(Protocol):
    """A backbone that is built from published weights, by a folder or a name on the hub.

    Its constructor also takes ``published_shape``. If that is given, the constructor reads no file,
    and the caller loads the weights. A run saves the value, so it can be loaded again without the
    published files.
    """

    @property
    def published_shape(self) -> Mapping[str, object]:
        """The value of ``published_shape`` that builds the same network, for a YAML file."""
        ...


class RunTokens(NamedTuple):
    """The tokens of a run, for comparison with those of a published network.

    Attributes:
        tokenizer: Name of the tokenizer, for messages.
        names: Returns the tokens by id. It is called only if needed, since it reads vocabulary
            files.
        encode: Converts a string to ids.
        reserved: Ids that no string is encoded to, as far as the tokenizer knows them.
    """

    tokenizer: str
    names: Callable[[], Sequence[str]]
    encode: Callable[[str], Integer[np.ndarray, " L"]]
    reserved: Sequence[int] = ()


@runtime_checkable
class TokenizedBackbone(Protocol):
    """A backbone that knows the tokens of its ids, as published networks do."""

    def check_tokens(self, run: RunTokens) -> None:
        """Check that the ids stand for the same tokens as those of a run, before it starts.

        Raises:
            ValueError: If an id stands for another token in the run.
        """
        ...


@runtime_checkable
class ScheduledBackbone(Protocol):
    """A backbone that changes with the steps of its training."""

    def set_step(self, step: int) -> None:
        """Change to what the network is at an optimizer step, from 0; called before each step."""
        ...


@runtime_checkable
class BlockCache(Protocol):
    """What a network remembers of earlier clean blocks in order to score the next one.

    Up to rounding, the logits equal those of ``Backbone.block_logits`` for the whole row.
    """

    @property
    def length(self) -> int:
        """Number of tokens appended so far, which is the position of the next block."""
        ...

    def logits(
        self, x_t: Int[Tensor, "B l"], where: Bool[Tensor, "B l"] | None = None
    ) -> Float[Tensor, "B l K"] | Float[Tensor, "N K"]:
        """Score the next block without appending it.

        Args:
            x_t: Ids in ``0..K`` of the next block, which may be shorter than ``block_size``.
            where: Positions to score; ``None`` for all.

        Returns:
            ``[B, l, K]``; with ``where``, one row for each position in the order of
            ``where.nonzero()``.
        """
        ...

    def append(self, x0: Int[Tensor, "B l"]) -> None:
        """Append clean tokens: one or several whole blocks.

        Args:
            x0: Ids in ``0..K``.
        """
        ...

    def take(self, rows: Int[Tensor, " b"]) -> BlockCache:
        """Create a cache of some rows, in the given order; a row may occur more than once.

        This cache is not changed, and appending to either cache does not affect the other.
        """
        ...


@runtime_checkable
class PartialCache(BlockCache, Protocol):
    """A cache that can evaluate some rows, or some tokens of a block, without copying the rest."""

    def logits_of(
        self,
        rows: Int[Tensor, " b"],
        x_t: Int[Tensor, "b l"],
        where: Bool[Tensor, "b l"],
        refresh: int = 1,
    ) -> Float[Tensor, "N K"]:
        """Score positions of the next block of some rows.

        With ``refresh`` above 1 the result is approximate: most evaluations compute only the keys
        and values of scored tokens and of tokens that have changed since their last evaluation.
        Those of the other tokens are reused, although they were computed from what the block held
        earlier. The first evaluation of a block computes all of them.

        Args:
            rows: Different rows of the cache.
            x_t: The next block of each of them.
            where: Positions to score.
            refresh: Every how many evaluations of a row to compute its whole block.
        """
        ...


def score_rows(
    cache: BlockCache,
    rows: Int[Tensor, " b"],
    x_t: Int[Tensor, "b l"],
    where: Bool[Tensor, "b l"],
    refresh: int = 1,
) -> Float[Tensor, "N K"]:
    """Score the next block of some rows of any cache, see ``PartialCache.logits_of``.

    Raises:
        ValueError: If the cache cannot evaluate a part of a block.
    """
    if isinstance(cache, PartialCache):
        return cache.logits_of(rows, x_t, where, refresh)
    if refresh > 1:
        raise ValueError(
            f"{type(cache).__name__}.refresh must be 1, since the network keeps no keys of single "
            f"tokens, got {refresh}; choose a Transformer"
        )
    return cache.take(rows).logits(x_t, where)

"""What every backbone promises the core."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Int, Integer
from torch import Tensor


@runtime_checkable
class Backbone(Protocol):
    """A network that embeds K+1 ids and emits K logits a position.

    It is called with tokens and times by position: their names are its own.

    A backbone that a run config can name is an ``nn.Module`` whose constructor takes
    ``num_embeddings`` (K+1) and ``num_logits`` (K); both are linked from the tokenizer.
    """

    def __call__(
        self,
        tokens: Int[Tensor, "B L"],
        t: Float[Tensor, " B"] | None = None,
        /,
        padding: Bool[Tensor, "B L"] | None = None,
    ) -> Float[Tensor, "B L K"]:
        """Score every symbol at every position.

        Args:
            tokens: Ids in ``0..K``, where ``K`` is the mask.
            t: Diffusion time in [0, 1]; ignored by time-free networks.
            padding: True at positions that hold nothing and must not be attended to.
        """
        ...


@runtime_checkable
class BoundedBackbone(Backbone, Protocol):
    """A backbone that takes no row longer than it was built for.

    Attributes:
        max_length: Most tokens of a row; ``None`` without a bound.
    """

    max_length: int | None


@runtime_checkable
class LabelledBackbone(Backbone, Protocol):
    """A backbone that can be told the class of each row.

    One that a run config can name also takes ``num_classes``, which follows from the data: their
    number, or ``None`` for data without classes, where the network is an ordinary one.

    Attributes:
        num_classes: How many classes it knows; ``None`` if it was built without any.
    """

    num_classes: int | None

    def __call__(
        self,
        tokens: Int[Tensor, "B L"],
        t: Float[Tensor, " B"] | None = None,
        /,
        padding: Bool[Tensor, "B L"] | None = None,
        label: Int[Tensor, " B"] | None = None,
    ) -> Float[Tensor, "B L K"]:
        """Score every symbol at every position.

        Args:
            tokens: See ``Backbone``.
            t: See ``Backbone``.
            padding: See ``Backbone``.
            label: Class of each row, in ``0..num_classes-1``, or ``NO_LABEL``; ``None`` if no row
                has one.
        """
        ...


@runtime_checkable
class SelectiveBackbone(Backbone, Protocol):
    """A backbone that can score some positions only, and then spends its head on no others."""

    def logits_at(
        self,
        tokens: Int[Tensor, "B L"],
        where: Bool[Tensor, "B L"],
        t: Float[Tensor, " B"] | None = None,
        padding: Bool[Tensor, "B L"] | None = None,
        label: Int[Tensor, " B"] | None = None,
    ) -> Float[Tensor, "N K"]:
        """Score every symbol at the positions that are True, as a call of the backbone would.

        Args:
            tokens: See ``Backbone``; all of them are read, wherever scores are asked for.
            where: Positions to score.
            t: See ``Backbone``.
            padding: See ``Backbone``.
            label: See ``LabelledBackbone``; only for a network with classes.

        Returns:
            One row for each position, in the order of ``where.nonzero()``.
        """
        ...


@runtime_checkable
class HiddenBackbone(Backbone, Protocol):
    """A backbone that gives its hidden states, for embeddings and for other heads."""

    @property
    def num_layers(self) -> int:
        """How many layers there are to pass."""
        ...

    @property
    def strands(self) -> int:
        """How many strands a state holds: 2 if both are read by the same weights, else 1."""
        ...

    def hidden(
        self,
        tokens: Int[Tensor, "B L"],
        padding: Bool[Tensor, "B L"] | None = None,
        layer: int | None = None,
    ) -> Float[Tensor, "B L C"]:
        """Give the states of rows without noise or label.

        With two strands, the first half of a state is the row's and the second that of its reverse
        complement at the same base, so that the reverse complement of a row has the states in
        reverse order with their halves exchanged.

        Args:
            tokens: See ``Backbone``.
            padding: See ``Backbone``; the states there have no meaning.
            layer: How many layers the states have passed, the residual stream as it is there: 0 for
                embedded tokens. ``None`` for what the head would read, which is also normalised.

        Raises:
            ValueError: If there are not that many layers.
        """
        ...


@runtime_checkable
class PublishedBackbone(Protocol):
    """A backbone that is built from a folder or a name on the hub.

    Its constructor also takes ``published_shape``. With it nothing is read and the weights are any:
    whoever gives it has them. A run writes it down, and so does not need the folder again.
    """

    @property
    def published_shape(self) -> Mapping[str, object]:
        """What the constructor takes to build the same network again, as YAML can hold it."""
        ...


class RunTokens(NamedTuple):
    """The tokens of a run, as far as a published network can be compared with them.

    Attributes:
        tokenizer: What messages call it.
        names: Lists the tokens by id; reads the files of a vocabulary, so only if need be.
        encode: Maps a string to ids.
    """

    tokenizer: str
    names: Callable[[], Sequence[str]]
    encode: Callable[[str], Integer[np.ndarray, " L"]]


@runtime_checkable
class TokenizedBackbone(Protocol):
    """A backbone that knows which tokens its ids stand for, as published ones do."""

    def check_tokens(self, run: RunTokens) -> None:
        """Compare the tokens with a run's, before it starts.

        Raises:
            ValueError: If an id means another token there.
        """
        ...


@runtime_checkable
class TimeConditionedBackbone(Backbone, Protocol):
    """A backbone that says whether it is told the noise.

    If it is, the second argument of a call is the total noise sigma = -log alpha(t) of each row, as
    in published networks, and not the time; ``Denoiser`` converts. Sigma is infinite where
    everything is masked.

    Attributes:
        time_conditioned: Whether it reads its second argument.
    """

    time_conditioned: bool


@runtime_checkable
class BlockCache(Protocol):
    """What a network keeps of the clean blocks behind it, to score the block that comes next.

    Its answers are those of ``BlockBackbone.block_logits`` for the whole row, up to rounding.
    """

    @property
    def length(self) -> int:
        """Tokens that lie behind; the next block begins at this position."""
        ...

    def logits(
        self, x_t: Int[Tensor, "B l"], where: Bool[Tensor, "B l"] | None = None
    ) -> Float[Tensor, "B l K"] | Float[Tensor, "N K"]:
        """Score the next block; the cache stays as it is.

        Args:
            x_t: Ids in ``0..K`` of the next block, which may be cut short at its end.
            where: Positions to score; ``None`` for all.

        Returns:
            ``[B, l, K]``; with ``where``, one row for each position in the order of
            ``where.nonzero()``.
        """
        ...

    def append(self, x0: Int[Tensor, "B l"]) -> None:
        """Take in clean tokens after those behind: one or several whole blocks.

        Args:
            x0: Ids in ``0..K``.
        """
        ...

    def take(self, rows: Int[Tensor, " b"]) -> BlockCache:
        """Make a cache of some rows, in this order; a row may occur more than once.

        The cache itself stays as it is, and neither changes when the other is appended to.
        """
        ...


@runtime_checkable
class BlockBackbone(Backbone, Protocol):
    """A backbone that can score a block of noisy tokens given the clean blocks before it."""

    def block_logits(
        self,
        x_t: Int[Tensor, "B L"],
        x0: Int[Tensor, "B L"],
        block_size: int,
        where: Bool[Tensor, "B L"] | None = None,
        padding: Bool[Tensor, "B L"] | None = None,
        label: Int[Tensor, " B"] | None = None,
    ) -> Float[Tensor, "B L K"] | Float[Tensor, "N K"]:
        """Score every position given its own block of x_t and the earlier blocks of x0, at once.

        Args:
            x_t: Corrupted ids.
            x0: Clean ids.
            block_size: Tokens of a block; the last may be shorter.
            where: Positions to score; ``None`` for all.
            padding: Positions that hold nothing, after the last token of a shorter row.
            label: See ``LabelledBackbone``; only for a network with classes.

        Returns:
            ``[B, L, K]``; with ``where``, one row for each position in the order of
            ``where.nonzero()``.
        """
        ...

    def block_cache(
        self,
        batch_size: int,
        block_size: int,
        *,
        window: int | None = None,
        label: Int[Tensor, " B"] | None = None,
    ) -> BlockCache:
        """Open an empty cache, to score a row block by block.

        Args:
            batch_size: Rows.
            block_size: Tokens of a block.
            window: Most tokens behind that a network which keeps them all, as attention does, may
                look back at, a multiple of ``block_size``; of no consequence for one that keeps a
                state.
            label: See ``block_logits``.
        """
        ...

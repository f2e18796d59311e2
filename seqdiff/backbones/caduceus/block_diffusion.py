"""Block diffusion with Caduceus.

A block depends on the clean tokens before it only through the ``Borders`` of each layer: the state
of the scan and the last inputs of the convolution at the boundary before the block, called its
border. The size of the cache therefore does not grow with the number of tokens. The mixers must
have tied projections and add the outputs of their directions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from seqdiff.backbones.base import check_cache_condition
from seqdiff.backbones.caduceus.network import CaduceusBlock, PlainMamba, _Bidirectional
from seqdiff.backbones.layers import positions_of, require_positive
from seqdiff.backbones.mamba import project_in, project_out
from seqdiff.ops.bimamba import Borders, mamba_borders, mamba_from, mamba_through, no_borders
from seqdiff.types import Inputs, Signal


class BlockMambaBlock(CaduceusBlock):
    """A layer that can also read clean and noisy tokens block by block."""

    forward_methods = ("read_clean", "read_borders", "read_noisy")

    def begin(self, batch: int) -> Borders:
        """Return the border before the first token of a row."""
        fwd, _ = self.mixer.weights()
        return no_borders(batch, fwd.conv_weight, fwd.A)

    def read_clean(
        self,
        x: Float[Tensor, "B L D"],
        block_size: int,
        start: Borders | None = None,
        padding: Bool[Tensor, "B L"] | None = None,
    ) -> tuple[Float[Tensor, "B L D"], Borders]:
        """Run the layer on clean tokens; each depends on earlier blocks and on its own block.

        Args:
            x: Residual stream of whole blocks.
            block_size: Number of tokens in a block.
            start: Border before the first of these tokens; ``None`` at the start of a row.
            padding: True at padding, after the last real position.

        Returns:
            The residual stream and all borders, see ``mamba_through``.
        """
        mixer = self.mixer
        start = self.begin(len(x)) if start is None else start
        xz = project_in(mixer.in_proj, self.norm(x), padding, False)
        y, borders = mamba_through(
            xz, *mixer.weights(), block_size, start, padding, backend=mixer.backend
        )
        return x + project_out(mixer.out_proj, y, False, directions=2), borders

    def read_borders(
        self,
        x: Float[Tensor, "B L D"],
        block_size: int,
        start: Borders | None = None,
        padding: Bool[Tensor, "B L"] | None = None,
    ) -> Borders:
        """Compute only the borders that ``read_clean`` returns."""
        mixer = self.mixer
        start = self.begin(len(x)) if start is None else start
        fwd, _ = mixer.weights()
        channels = len(fwd.D)
        proj = mixer.in_proj
        bias = None if proj.bias is None else proj.bias[:channels]
        inner = F.linear(self.norm(x), proj.weight[:channels], bias)
        if padding is not None:
            inner = inner.masked_fill(padding[..., None], 0)
        return mamba_borders(inner, fwd, block_size, start, padding, backend=mixer.backend)

    def read_noisy(
        self,
        x: Float[Tensor, "B L D"],
        block_size: int,
        borders: Borders,
        padding: Bool[Tensor, "B L"] | None = None,
    ) -> Float[Tensor, "B L D"]:
        """Run the layer on noisy tokens; each depends on its block and the border before it.

        Args:
            x: Residual stream of noisy blocks; the last one may be shorter.
            block_size: See ``read_clean``.
            borders: The border before each block, from ``read_clean`` or ``read_borders``.
            padding: See ``read_clean``.
        """
        mixer = self.mixer
        xz = project_in(mixer.in_proj, self.norm(x), padding, False)
        y = mamba_from(xz, *mixer.weights(), block_size, borders, padding, backend=mixer.backend)
        return x + project_out(mixer.out_proj, y, False, directions=2)


PIECE = 1024  # tokens that `append` processes at a time, to bound memory for long prompts


@dataclass
class StateCache:
    """The ``BlockCache`` of a ``BlockMamba``; it computes no gradients.

    Attributes:
        network: The network.
        block_size: Number of tokens in a block.
        label: Class of each row.
        signal: Embedded signal of each row, or of each position.
        borders: For each layer, the border after the last appended block.
        length: Number of tokens appended so far.
    """

    network: BlockMamba
    block_size: int
    label: Int[Tensor, " B"] | None
    signal: Float[Tensor, "B l D"] | None
    borders: list[Borders]
    length: int = 0

    @classmethod
    def empty(
        cls,
        network: BlockMamba,
        batch_size: int,
        block_size: int,
        label: Tensor | None,
        signal: Tensor | None,
    ) -> StateCache:
        """Create a cache without tokens."""
        borders = [layer.begin(batch_size) for layer in network.stack]
        return cls(network, block_size, label, signal, borders)

    @torch.no_grad()
    def logits(
        self, x_t: Int[Tensor, "B l"], where: Bool[Tensor, "B l"] | None = None
    ) -> Float[Tensor, "B l K"] | Float[Tensor, "N K"]:
        """Score the next block without appending it.

        Args:
            x_t: Ids in ``0..K`` of the next block, which may be shorter than ``block_size``.
            where: Positions to score; ``None`` for all.

        Raises:
            ValueError: If there are no tokens or more than a block, or the number of rows is wrong.
        """
        self._check("x_t", x_t, x_t.shape[1] <= self.block_size, "at most")
        inputs, x = Inputs(x_t), self._embed(x_t)
        for layer, borders in zip(self.network.stack, self.borders, strict=True):
            x = layer.read_noisy(x, self.block_size, borders)
        return self.network.head(x, inputs, where)

    @torch.no_grad()
    def append(self, x0: Int[Tensor, "B l"]) -> None:
        """Append clean tokens: one or several whole blocks.

        Args:
            x0: Ids in ``0..K``.

        Raises:
            ValueError: If there are no tokens, the last block is incomplete, or the number of rows
                is wrong.
        """
        self._check("x0", x0, x0.shape[1] % self.block_size == 0, "a multiple of")
        for piece in x0.split(max(1, PIECE // self.block_size) * self.block_size, dim=1):
            self._pass(piece)
            self.length += piece.shape[1]

    def _embed(self, tokens: Tensor) -> Tensor:
        """Embed the next tokens, with the label and the signal of their positions."""
        signal = positions_of(self.signal, self.length, self.length + tokens.shape[1])
        return self.network.conditioned(self.network.embed(Inputs(tokens)), self.label, signal)

    def _pass(self, x0: Tensor) -> None:
        """Run the layers over some clean blocks, and move the borders to their end."""
        x, passed = self._embed(x0), []
        for layer, start in zip(self.network.stack, self.borders, strict=True):
            if layer is self.network.stack[-1]:
                borders = layer.read_borders(x, self.block_size, start)
            else:
                x, borders = layer.read_clean(x, self.block_size, start)
            passed.append(Borders(*(part[:, -1:].clone() for part in borders)))
        self.borders = passed

    def take(self, rows: Int[Tensor, " b"]) -> StateCache:
        """Create a cache of some rows, in the given order; a row may occur more than once."""
        borders = [Borders(*(part[rows] for part in layer)) for layer in self.borders]
        label = None if self.label is None else self.label[rows]
        signal = None if self.signal is None else self.signal[rows]
        return StateCache(self.network, self.block_size, label, signal, borders, self.length)

    def _check(self, name: str, tokens: Tensor, fits: bool, how: str) -> None:
        batch, length = tokens.shape
        if not fits or not length:
            raise ValueError(
                f"StateCache.{name} must hold {how} {self.block_size} tokens per row and at least "
                f"one, got {length}; a cache goes forward block by block"
            )
        if batch != len(self.borders[0].states):
            raise ValueError(
                f"StateCache.{name} must have {len(self.borders[0].states)} rows, got {batch}; "
                "take() makes a cache of other rows"
            )


class BlockMamba(PlainMamba, _Bidirectional):
    """A ``Caduceus`` (``ph``) that can also be used for block diffusion.

    A block of noisy tokens is read in both directions. The direction from left to right starts from
    the state and the last convolution inputs of the clean tokens before the block. The direction
    from right to left starts at the end of the block. The same weights read the clean tokens: the
    direction from left to right runs over the whole row, and the other one restarts in every block,
    so neither depends on a later block. Time and memory grow linearly with the length, and the
    cache has constant size.

    Parameters have the names and shapes of a ``Caduceus`` of variant ``ph`` with the same sizes, so
    a state dict of one loads into the other.

    The arguments are those of ``PlainMamba``.
    """

    reads_blocks = True
    block = BlockMambaBlock

    @property
    def stack(self) -> Sequence[BlockMambaBlock]:
        """The layers, from first to last."""
        return [layer for layer in self.layers if isinstance(layer, BlockMambaBlock)]

    def block_logits(
        self,
        inputs: Inputs,
        x0: Int[Tensor, "B L"],
        block_size: int,
        where: Bool[Tensor, "B L"] | None = None,
    ) -> Float[Tensor, "*positions K"]:
        """Score every position given its block of x_t and the earlier blocks of x0, in one pass.

        Args:
            inputs: See ``Backbone.block_logits``.
            x0: Clean ids; those of the last block are not read.
            block_size: Number of tokens in a block; the last one may be shorter.
            where: Positions to score; ``None`` for all.

        Raises:
            ValueError: If ``block_size`` is below one, there is a label and the network has no
                classes, or a signal does not fit the network.
        """
        require_positive("BlockMamba", "block_size", block_size)
        behind = (x0.shape[1] - 1) // block_size * block_size
        if not behind:
            return self(inputs, where)
        self.check_condition(inputs)
        padding = inputs.padding
        absent = None if padding is None else padding[:, :behind]
        signal = self.embedded_signal(inputs.signal, len(x0))
        before = positions_of(signal, 0, behind)
        clean = self.conditioned(self.embedding(x0[:, :behind]), inputs.label, before)
        noisy = self.conditioned(self.embed(inputs), inputs.label, signal)
        for layer in self.stack:
            if layer is self.stack[-1]:
                borders = layer.read_borders(clean, block_size, padding=absent)
            else:
                clean, borders = layer.read_clean(clean, block_size, padding=absent)
            noisy = layer.read_noisy(noisy, block_size, borders, padding)
        return self.head(noisy, inputs, where)

    def block_cache(
        self,
        batch_size: int,
        block_size: int,
        *,
        window: int | None = None,
        label: Int[Tensor, " B"] | None = None,
        signal: Signal | None = None,
    ) -> StateCache:
        """See ``Backbone.block_cache``; ``window`` has no effect."""
        require_positive("BlockMamba", "batch_size", batch_size)
        require_positive("BlockMamba", "block_size", block_size)
        check_cache_condition(self, batch_size, label, signal)
        embedded = self.embedded_signal(signal, batch_size)
        return StateCache.empty(self, batch_size, block_size, label, embedded)

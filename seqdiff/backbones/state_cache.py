"""What a state-space network keeps of the tokens behind it: no more after a million than one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..ops.mamba_blocks import Borders
from ..types import Inputs
from .block_mixing import begin, read_borders, read_clean, read_noisy

if TYPE_CHECKING:
    from .block_mamba import BlockMamba

PIECE = 1024  # tokens that are read at once, so that a long prompt takes no more memory


@dataclass
class StateCache:
    """See ``BlockCache``; there is no gradient.

    Attributes:
        network: Whose cache it is.
        block_size: Tokens of a block.
        label: Class of each row.
        borders: One a layer, each of one border.
        length: Tokens that lie behind.
    """

    network: BlockMamba
    block_size: int
    label: Int[Tensor, " B"] | None
    borders: list[Borders]
    length: int = 0

    @classmethod
    def empty(
        cls, network: BlockMamba, batch_size: int, block_size: int, label: Tensor | None
    ) -> StateCache:
        """Begin rows.

        Args:
            network: Whose cache it is.
            batch_size: Rows.
            block_size: Tokens of a block.
            label: Class of each row.
        """
        borders = [begin(layer, batch_size) for layer in network.stack]
        return cls(network, block_size, label, borders)

    @torch.no_grad()
    def logits(
        self, x_t: Int[Tensor, "B l"], where: Bool[Tensor, "B l"] | None = None
    ) -> Float[Tensor, "B l K"] | Float[Tensor, "N K"]:
        """Score the next block; the cache stays as it is.

        Args:
            x_t: Ids in ``0..K`` of the next block, which may be cut short at its end.
            where: Positions to score; ``None`` for all.

        Raises:
            ValueError: If it is longer than a block, or there is another number of rows.
        """
        self._check("x_t", x_t, x_t.shape[1] <= self.block_size, "at most")
        inputs = Inputs(x_t)
        x = self.network.labelled(self.network.embed(inputs), self.label)
        for layer, borders in zip(self.network.stack, self.borders, strict=True):
            x = read_noisy(layer, x, self.block_size, borders)
        return self.network.head(x, inputs, where)

    @torch.no_grad()
    def append(self, x0: Int[Tensor, "B l"]) -> None:
        """Take in clean tokens after those behind: one or several whole blocks.

        Args:
            x0: Ids in ``0..K``.

        Raises:
            ValueError: If a block is not whole, or there is another number of rows.
        """
        self._check("x0", x0, x0.shape[1] % self.block_size == 0, "a multiple of")
        for piece in x0.split(max(1, PIECE // self.block_size) * self.block_size, dim=1):
            self._pass(piece)
        self.length += x0.shape[1]

    def _pass(self, x0: Tensor) -> None:
        """Go on from the borders to the end of some tokens."""
        x, passed = self.network.labelled(self.network.embed(Inputs(x0)), self.label), []
        for layer, start in zip(self.network.stack, self.borders, strict=True):
            if layer is self.network.stack[-1]:
                borders = read_borders(layer, x, self.block_size, start)
            else:
                x, borders = read_clean(layer, x, self.block_size, start)
            passed.append(Borders(*(part[:, -1:].clone() for part in borders)))
        self.borders = passed

    def take(self, rows: Int[Tensor, " b"]) -> StateCache:
        """Make a cache of some rows, in this order; a row may occur more than once.

        Args:
            rows: Which.
        """
        borders = [Borders(*(part[rows] for part in layer)) for layer in self.borders]
        label = None if self.label is None else self.label[rows]
        return StateCache(self.network, self.block_size, label, borders, self.length)

    def _check(self, name: str, tokens: Tensor, fits: bool, how: str) -> None:
        batch, length = tokens.shape
        if not fits or not length:
            raise ValueError(
                f"StateCache.{name} must hold {how} {self.block_size} tokens a row and one or "
                f"more, got {length}; a cache goes forward block by block"
            )
        if batch != len(self.borders[0].states):
            raise ValueError(
                f"StateCache.{name} must have {len(self.borders[0].states)} rows, got {batch}; "
                "take() makes a cache of other rows"
            )

"""Layouts of a batch inside a transformer: with padding, or with the padding removed.

In shapes, B and L are the rows and the length of the batch; b and l are those of the layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch._compile import _disable_dynamo


@runtime_checkable
class Mixing(Protocol):
    """The part of a layout that a block of a transformer uses."""

    def spread(self, x: Float[Tensor, "#B C"]) -> Float[Tensor, "#b #l C"]:
        """Assign to each token the vector of its row."""
        ...

    def mix(
        self, q: Float[Tensor, "b H l C"], k: Float[Tensor, "b H l C"], v: Float[Tensor, "b H l C"]
    ) -> Float[Tensor, "b H l C"]:
        """Compute attention; the layout determines which keys a query attends to."""
        ...


class Padded(NamedTuple):
    """A layout that keeps the rows and their padding.

    Attributes:
        positions: The position of each token in its row.
        mask: True where a query attends to a key; broadcast to ``[B, H, L, L]``.
        causal: Whether queries attend to no later key; only used without a mask.
        padding: True at padding.
    """

    positions: Int[Tensor, " L"]
    mask: Bool[Tensor, "*any"] | None = None
    causal: bool = False
    padding: Bool[Tensor, "B L"] | None = None

    def pack(self, x: Shaped[Tensor, "B L *C"]) -> Shaped[Tensor, "b l *C"]:
        """Convert tokens, or vectors of tokens, to this layout."""
        return x

    def unpack(self, x: Float[Tensor, "b l K"]) -> Float[Tensor, "B L K"]:
        """Undo ``pack``; the vectors of padding are zero."""
        return x if self.padding is None else x.masked_fill(self.padding[..., None], 0)

    def spread(self, x: Float[Tensor, "#B C"]) -> Float[Tensor, "#b #l C"]:
        """Assign to each token the vector of its row."""
        return x[:, None]

    def mix(
        self, q: Float[Tensor, "b H l C"], k: Float[Tensor, "b H l C"], v: Float[Tensor, "b H l C"]
    ) -> Float[Tensor, "b H l C"]:
        """Compute attention under the mask."""
        return F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask, is_causal=self.causal)

    def rows(self, x: Float[Tensor, "b H l C"]) -> list[Tensor]:
        """Return the vectors of tokens as batches of rows of equal length: here one batch."""
        return [x]

    def line(self, batches: Sequence[Tensor]) -> Float[Tensor, "b H l C"]:
        """Undo ``rows``."""
        return batches[0]


class Packed(NamedTuple):
    """A layout without padding: all real tokens in one sequence, sorted by the length of their row.

    Attention runs within each row. Rows of the same length form a view that is an ordinary batch,
    so their attention needs neither a mask nor a copy.

    Attributes:
        positions: The position of each token in its row.
        row: The row of each token.
        shape: B and L.
        groups: The number of rows and their length, for each length in ascending order.
        causal: Whether queries attend to no later key.
    """

    positions: Int[Tensor, " T"]
    row: Int[Tensor, " T"]
    shape: tuple[int, int]
    groups: tuple[tuple[int, int], ...]
    causal: bool = False

    @classmethod
    def of(cls, padding: Bool[Tensor, "B L"], *, causal: bool = False) -> Packed:
        """Build the layout of a batch, whose padding may be at any position of a row.

        Args:
            padding: True at padding.
            causal: Whether queries attend to no later key.
        """
        lengths, order = (~padding).sum(dim=-1).sort(stable=True)
        row, positions = (~padding[order]).nonzero(as_tuple=True)
        length, count = lengths.unique_consecutive(return_counts=True)
        groups = zip(count.tolist(), length.tolist(), strict=True)
        batch, longest = padding.shape
        real = tuple(group for group in groups if group[1])
        return cls(positions, order[row], (batch, longest), real, causal)

    @property
    def place(self) -> Int[Tensor, " T"]:
        """Index of each token in the flattened batch."""
        return self.row * self.shape[1] + self.positions

    def pack(self, x: Shaped[Tensor, "B L *C"]) -> Shaped[Tensor, "b l *C"]:
        """Convert tokens, or vectors of tokens, to this layout."""
        return x.flatten(0, 1)[self.place][None]

    def unpack(self, x: Float[Tensor, "b l K"]) -> Float[Tensor, "B L K"]:
        """Undo ``pack``; the vectors of padding are zero."""
        batch, length = self.shape
        rows = x.new_zeros((batch * length, x.shape[-1])).index_copy(0, self.place, x[0])
        return rows.unflatten(0, (batch, length))

    def spread(self, x: Float[Tensor, "#B C"]) -> Float[Tensor, "#b #l C"]:
        """Assign to each token the vector of its row."""
        return x[None] if len(x) == 1 else F.embedding(self.row, x)[None]

    @_disable_dynamo
    def mix(
        self, q: Float[Tensor, "b H l C"], k: Float[Tensor, "b H l C"], v: Float[Tensor, "b H l C"]
    ) -> Float[Tensor, "b H l C"]:
        """Compute attention within each row."""
        mixed = [
            F.scaled_dot_product_attention(*group, is_causal=self.causal)
            for group in zip(*(self.rows(x) for x in (q, k, v)), strict=True)
        ]
        return self.line(mixed) if mixed else v

    def rows(self, x: Float[Tensor, "b H l C"]) -> list[Tensor]:
        """View ``[1, H, T, C]`` as batches ``[rows, H, length, C]``, one for each length."""
        parts = x[0].split([rows * length for rows, length in self.groups], dim=1)
        pairs = zip(parts, self.groups, strict=True)
        return [part.unflatten(1, group).transpose(0, 1) for part, group in pairs]

    def line(self, batches: Sequence[Tensor]) -> Float[Tensor, "b H l C"]:
        """Undo ``rows``."""
        tokens = torch.cat([x.transpose(1, 2).flatten(0, 1) for x in batches])
        return tokens.transpose(0, 1)[None]


Layout = Padded | Packed


def lay_out(
    tokens: Int[Tensor, "B L"], padding: Bool[Tensor, "B L"] | None, *, causal: bool = False
) -> Layout:
    """Choose the layout of a batch, which removes padding if there is any.

    Under ``torch.compile`` the padding is kept, since shapes must not depend on values.

    Args:
        tokens: Ids.
        padding: True at padding.
        causal: Whether queries attend to no later key.
    """
    positions = torch.arange(tokens.shape[1], device=tokens.device)
    if padding is None:
        return Padded(positions, causal=causal)
    if torch.compiler.is_compiling():
        mask = attended_keys(padding)
        if causal:
            query, key = positions[:, None], positions[None]
            mask = (query == key) | ((query > key) & ~padding[:, None, None])
        return Padded(positions, mask, padding=padding)
    if not bool(padding.any()):
        return Padded(positions, causal=causal)
    return Packed.of(padding, causal=causal)


def attended_keys(padding: Bool[Tensor, "B L"]) -> Bool[Tensor, "B 1 1 L"]:
    """Mark the keys that queries attend to: the real ones, or all keys if a row has none.

    Args:
        padding: True at padding.
    """
    return (~padding | padding.all(dim=-1, keepdim=True))[:, None, None]

"""Other ways to leave padding out of attention, or to keep it, behind one interface."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from seqdiff.backbones.attention_masks import attended_keys
from seqdiff.backbones.packing import Layout, Packed, Padded


def keep_padding(tokens: Tensor, padding: Tensor | None) -> Layout:
    """Work on padding as on tokens, and mask it in attention."""
    assert padding is not None
    places = torch.arange(tokens.shape[1], device=tokens.device)
    return Padded(places, attended_keys(padding), padding=padding)


def packed(tokens: Tensor, padding: Tensor | None) -> Layout:
    """Ours: a plain batch for each length."""
    assert padding is not None
    return Packed.of(padding)


class RowByRow(Packed):
    """Attention within each row by itself."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See ``Padded``."""
        sizes = [size for rows, size in self.groups for _ in range(rows)]
        parts = zip(*(x.split(sizes, dim=2) for x in (q, k, v)), strict=True)
        return torch.cat([F.scaled_dot_product_attention(*row) for row in parts], dim=2)


class Scattered(Packed):
    """Attention over rows that get their padding back for it, and lose it afterwards."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See ``Padded``."""
        (batch, length), place = self.shape, self.place
        padding = torch.ones(batch * length, dtype=torch.bool, device=q.device)
        padding[place] = False
        mask = attended_keys(padding.view(batch, length))

        def scattered(x: Tensor) -> Tensor:
            tokens = x[0].transpose(0, 1)
            rows = tokens.new_zeros((batch * length, *tokens.shape[1:]))
            return rows.index_copy(0, place, tokens).unflatten(0, (batch, length)).transpose(1, 2)

        mixed = F.scaled_dot_product_attention(*map(scattered, (q, k, v)), attn_mask=mask)
        return mixed.transpose(1, 2).flatten(0, 1)[place].transpose(0, 1)[None]


class OneMask(Packed):
    """Attention over the whole long row, with a mask between rows."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See ``Padded``."""
        mask = self.row[:, None] == self.row
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


class Nested(Packed):
    """Attention over PyTorch's nested tensors with a jagged layout."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See ``Padded``."""
        sizes = [size for rows, size in self.groups for _ in range(rows)]
        lengths = torch.tensor([0, *sizes], device=q.device)
        offsets, longest, shortest = lengths.cumsum(0), max(sizes), min(sizes)

        def nested(x: Tensor) -> Tensor:
            return torch.nested.nested_tensor_from_jagged(
                x[0].transpose(0, 1).contiguous(), offsets, min_seqlen=shortest, max_seqlen=longest
            ).transpose(1, 2)

        mixed = F.scaled_dot_product_attention(*map(nested, (q, k, v)))
        return mixed.transpose(1, 2).values().transpose(0, 1)[None]


def packed_as(layout: type[Packed]):
    """Give the function that lays out a batch in some packed way."""

    def lay_out(tokens: Tensor, padding: Tensor | None) -> Layout:
        return layout(*packed(tokens, padding))

    return lay_out


WAYS = {
    "padding kept and masked": keep_padding,
    "packed, by length": packed,
    "packed, row by row": packed_as(RowByRow),
    "packed, padded for attention": packed_as(Scattered),
    "packed, one mask": packed_as(OneMask),
    "packed, nested": packed_as(Nested),
}

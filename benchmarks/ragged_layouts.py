"""Ways to handle the padding of a batch in a transformer, with one interface; ours comes first."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from seqdiff.backbones.transformer import Layout, Packed, Padded, attended_keys, lay_out

Way = Callable[[Tensor, Tensor], Layout]


def keep_padding(tokens: Tensor, padding: Tensor) -> Padded:
    """Compute on padding as on tokens, and mask it in attention."""
    places = torch.arange(tokens.shape[1], device=tokens.device)
    return Padded(places, attended_keys(padding), padding=padding)


class RowByRow(Packed):
    """Attention row by row."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See ``Padded``."""
        parts = (x.split(_sizes(self), dim=2) for x in (q, k, v))
        rows = [F.scaled_dot_product_attention(*row) for row in zip(*parts, strict=True)]
        return torch.cat(rows, dim=2)


class PaddedAgain(Packed):
    """Attention over padded rows, with the padding inserted before and removed after."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See ``Padded``."""
        (batch, length), place = self.shape, self.place
        padding = torch.ones(batch * length, dtype=torch.bool, device=q.device)
        padding[place] = False
        rows = []
        for x in (q, k, v):
            tokens = x[0].transpose(0, 1)
            row = tokens.new_zeros((batch * length, *tokens.shape[1:])).index_copy(0, place, tokens)
            rows.append(row.unflatten(0, (batch, length)).transpose(1, 2))
        mask = attended_keys(padding.view(batch, length))
        mixed = F.scaled_dot_product_attention(rows[0], rows[1], rows[2], attn_mask=mask)
        return mixed.transpose(1, 2).flatten(0, 1)[place].transpose(0, 1)[None]


class OneMask(Packed):
    """Attention over all rows concatenated, with a mask between rows."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See ``Padded``."""
        mask = self.row[:, None] == self.row
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


class Nested(Packed):
    """Attention over PyTorch's nested tensors with the jagged layout."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See ``Padded``."""
        sizes = _sizes(self)
        offsets = torch.tensor([0, *sizes], device=q.device).cumsum(0)
        jagged = []
        for x in (q, k, v):
            tokens = x[0].transpose(0, 1).contiguous()
            rows = torch.nested.nested_tensor_from_jagged(
                tokens, offsets, min_seqlen=min(sizes), max_seqlen=max(sizes)
            )
            jagged.append(rows.transpose(1, 2))
        mixed = F.scaled_dot_product_attention(jagged[0], jagged[1], jagged[2])
        return mixed.transpose(1, 2).values().transpose(0, 1)[None]


def _sizes(layout: Packed) -> list[int]:
    """Return the length of each row in layout order."""
    return [length for rows, length in layout.groups for _ in range(rows)]


def _packed(kind: type[Packed]) -> Way:
    return lambda _tokens, padding: kind(*Packed.of(padding))


WAYS: dict[str, Way] = {
    "ours": lay_out,
    "padding kept": keep_padding,
    "row by row": _packed(RowByRow),
    "padded again": _packed(PaddedAgain),
    "one mask": _packed(OneMask),
    "nested": _packed(Nested),
}

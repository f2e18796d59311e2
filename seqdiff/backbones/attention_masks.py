"""Who may attend to whom: True where a query, a row of the mask, may see a key, a column."""

from __future__ import annotations

import torch
from jaxtyping import Bool
from torch import Tensor


def attended_keys(padding: Bool[Tensor, "B L"]) -> Bool[Tensor, "B 1 1 L"]:
    """Which keys the queries of a row see: those that are real, or all if the row holds nothing.

    Args:
        padding: True at positions that hold nothing.
    """
    return (~padding | padding.all(dim=-1, keepdim=True))[:, None, None]


def causal_keys(padding: Bool[Tensor, "B L"]) -> Bool[Tensor, "B 1 L L"]:
    """Which keys a causal query sees: its own, and the earlier ones that are real.

    Args:
        padding: True at positions that hold nothing.
    """
    place = torch.arange(padding.shape[1], device=padding.device)
    query, key = place[:, None], place[None]
    return (query == key) | ((query > key) & ~padding[:, None, None])


def block_diffusion_mask(
    length: int,
    block_size: int,
    device: torch.device | None = None,
    window: int | None = None,
) -> Bool[Tensor, "M M"]:
    """Which keys of [x_t ; x0] each of its queries sees; M is 2 L.

    Those of its own block in its own half; for a query in x_t also x0 in strictly earlier blocks;
    for a query in x0 also x0 in earlier blocks. Source: Arriola et al. 2025, arXiv:2503.09573,
    section 3.1 and appendix B.6.

    Args:
        length: L, of each half.
        block_size: Tokens of a block; the last may be shorter.
        device: Where the mask goes.
        window: Most clean tokens before its block that a query sees, a multiple of ``block_size``;
            None for all.
    """
    position = torch.arange(2 * length, device=device)
    clean, block = position >= length, position % length // block_size
    query, key = block[:, None], block[None]
    from_clean, to_clean = clean[:, None], clean[None]
    same = (from_clean == to_clean) & (query == key)
    earlier = to_clean & (key < query)
    if window is not None:
        earlier &= query - key <= window // block_size
    return same | earlier

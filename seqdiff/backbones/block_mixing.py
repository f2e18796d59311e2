"""Caduceus' blocks on rows that are cut into blocks of tokens: clean ones, and those that follow.

Wherever a mixer's two directions share projections and are added.
"""

from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from ..ops.mamba_blocks import Borders, mamba_borders, mamba_from, mamba_through, no_borders
from .caduceus_block import CaduceusBlock
from .mamba import project_in, project_out


def begin(layer: CaduceusBlock, batch: int) -> Borders:
    """The border before the first token of a row.

    Args:
        layer: Norm and mixer.
        batch: Rows.
    """
    fwd = layer.mixer.fwd
    return no_borders(batch, fwd.conv_weight, fwd.A_log)


def read_clean(
    layer: CaduceusBlock,
    x: Float[Tensor, "B L D"],
    block_size: int,
    start: Borders,
    padding: Bool[Tensor, "B L"] | None = None,
) -> tuple[Float[Tensor, "B L D"], Borders]:
    """Move clean tokens one layer up, each by all before it and its block's others.

    Args:
        layer: Norm and mixer.
        x: Residual stream of whole blocks.
        block_size: Tokens of a block.
        start: What the tokens before these left.
        padding: True at positions after the last real one.

    Returns:
        The residual stream and the borders of all blocks, see ``mamba_through``.
    """
    mixer = layer.mixer
    xz = project_in(mixer.in_proj, layer.norm(x), padding, False)
    ways = mixer.fwd.weights(), mixer.rev.weights()
    y, borders = mamba_through(xz, *ways, block_size, start, padding, backend=mixer.backend)
    return x + project_out(mixer.out_proj, y, False, directions=2), borders


def read_borders(
    layer: CaduceusBlock,
    x: Float[Tensor, "B L D"],
    block_size: int,
    start: Borders,
    padding: Bool[Tensor, "B L"] | None = None,
) -> Borders:
    """Give the borders that ``read_clean`` gives, without moving the tokens.

    Args:
        layer: See ``read_clean``.
        x: See ``read_clean``.
        block_size: See ``read_clean``.
        start: See ``read_clean``.
        padding: See ``read_clean``.
    """
    mixer, channels = layer.mixer, len(layer.mixer.fwd.D)
    proj = mixer.in_proj
    bias = None if proj.bias is None else proj.bias[:channels]
    inner = F.linear(layer.norm(x), proj.weight[:channels], bias)
    if padding is not None:
        inner = inner.masked_fill(padding[..., None], 0)
    return mamba_borders(
        inner, mixer.fwd.weights(), block_size, start, padding, backend=mixer.backend
    )


def read_noisy(
    layer: CaduceusBlock,
    x: Float[Tensor, "B L D"],
    block_size: int,
    borders: Borders,
    padding: Bool[Tensor, "B L"] | None = None,
) -> Float[Tensor, "B L D"]:
    """Move tokens one layer up, each by its block's others and the border before its block.

    Args:
        layer: See ``read_clean``.
        x: Residual stream; the last block may be shorter.
        block_size: See ``read_clean``.
        borders: As many as blocks, from ``read_clean`` or ``read_borders`` of the same layer.
        padding: See ``read_clean``.
    """
    mixer = layer.mixer
    xz = project_in(mixer.in_proj, layer.norm(x), padding, False)
    ways = mixer.fwd.weights(), mixer.rev.weights()
    y = mamba_from(xz, *ways, block_size, borders, padding, backend=mixer.backend)
    return x + project_out(mixer.out_proj, y, False, directions=2)

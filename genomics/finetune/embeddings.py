"""What a network makes of sequences inside, averaged over both strands."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float32, UInt8

from genomics.sequence import reverse_complement
from seqdiff.backbones import Backbone
from seqdiff.types import Inputs


@torch.no_grad()
def embed(
    backbone: Backbone, rows: UInt8[np.ndarray, "B L"], layer: int | None = None
) -> Float32[np.ndarray, "B L D"]:
    """Give one vector a base: the mean of its states on the two strands.

    A network that reads both strands itself, as Caduceus-PS, is run once; any other is run on the
    reverse complement too, whose states are read backwards, so that both belong to one base.

    Args:
        backbone: In eval mode.
        rows: Ids ``0..4``; N is the mask.
        layer: See ``Backbone.hidden``.

    Raises:
        ValueError: If there is no such layer.
    """
    device = next(backbone.parameters()).device
    sides = [rows] if backbone.strands == 2 else [rows, reverse_complement(rows)]
    tokens = [torch.from_numpy(ids.astype(np.int64)).to(device) for ids in sides]
    here, *there = [backbone.hidden(Inputs(ids), layer) for ids in tokens]
    first, second = (here, there[0].flip(1)) if there else here.chunk(2, dim=-1)
    return ((first + second) / 2).float().cpu().numpy()

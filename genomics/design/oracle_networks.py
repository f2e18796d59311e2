"""Networks that predict measured values of a sequence from its one-hot channels."""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from genomics.sequence import BASES, MASK_ID
from seqdiff.backbones import Caduceus
from seqdiff.types import Inputs

NetworkName = Literal["conv", "caduceus"]

_STEM_KERNEL, _KERNEL = 11, 5
_HIDDEN = 128
_LAST_POSITIONS = 16  # the convolutional network pools until fewer positions are left


class ResidualBlock(nn.Module):
    """Pre-norm residual block: a convolution over positions, then one over channels.

    Args:
        width: Number of channels.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.BatchNorm1d(width),
            nn.GELU(),
            nn.Conv1d(width, width, _KERNEL, padding=_KERNEL // 2),
            nn.BatchNorm1d(width),
            nn.GELU(),
            nn.Conv1d(width, width, 1),
            nn.Dropout(0.1),
        )

    def forward(self, x: Float[Tensor, "B C L"]) -> Float[Tensor, "B C L"]:
        """Add the layers' output to the input."""
        return x + self.layers(x)


class ConvNetwork(nn.Module):
    """A small residual convolutional network.

    A convolution of width 11; residual blocks, with max pooling by 2 before each and after the
    last; and two linear layers that read all remaining positions, so that the network knows where
    a motif lies. Padding is read as unknown bases.

    Args:
        num_outputs: Number of values.
        length: Positions of a row.
        width: Number of channels.
        depth: Number of blocks; ``None`` pools until fewer than 16 positions are left.
    """

    def __init__(
        self, num_outputs: int, length: int, *, width: int = 96, depth: int | None = None
    ) -> None:
        super().__init__()
        if depth is None:
            depth = max(1, math.ceil(math.log2((length + 1) / _LAST_POSITIONS)) - 1)
        self.options = {"width": width, "depth": depth}
        self.stem = nn.Conv1d(len(BASES), width, _STEM_KERNEL, padding=_STEM_KERNEL // 2)
        self.blocks = nn.ModuleList(ResidualBlock(width) for _ in range(depth))
        self.norm = nn.BatchNorm1d(width)
        left = length
        for _ in range(depth + 1):
            left = math.ceil(left / 2)
        self.head = nn.Sequential(
            nn.Flatten(),
            nn.Dropout(0.5),
            nn.Linear(width * left, _HIDDEN),
            nn.GELU(),
            nn.Dropout(0.5),
            nn.Linear(_HIDDEN, num_outputs),
        )

    def forward(
        self, one_hot: Float[Tensor, "B 4 L"], padding: Bool[Tensor, "B L"]
    ) -> Float[Tensor, "B S"]:
        """Predict the values, standardised.

        Args:
            one_hot: Bases, with zeros at unknown ones and at padding.
            padding: True at padding.
        """
        del padding
        h = F.max_pool1d(self.stem(one_hot), 2, ceil_mode=True)
        for block in self.blocks:
            h = F.max_pool1d(block(h), 2, ceil_mode=True)
        return self.head(F.gelu(self.norm(h)))


class CaduceusNetwork(nn.Module):
    """A bidirectional Caduceus, the mean of its states over real positions, and a linear layer.

    One-hot channels are multiplied by the embedding instead of looked up in it, so the network has
    a gradient with respect to its input.

    Args:
        num_outputs: Number of values.
        length: Positions of a row; the network works at any.
        width: Model width.
        depth: Number of blocks.
    """

    def __init__(
        self, num_outputs: int, length: int, *, width: int = 64, depth: int | None = None
    ) -> None:
        super().__init__()
        del length
        depth = 4 if depth is None else depth
        self.options = {"width": width, "depth": depth}
        self.backbone = Caduceus(
            width, depth, num_embeddings=MASK_ID + 1, num_logits=MASK_ID, norm="rms"
        )
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(width, num_outputs)

    def forward(
        self, one_hot: Float[Tensor, "B 4 L"], padding: Bool[Tensor, "B L"]
    ) -> Float[Tensor, "B S"]:
        """Predict the values, standardised; see ``ConvNetwork.forward``."""
        weight = self.backbone.embedding.weight
        x = one_hot.mT
        h = x @ weight[:MASK_ID] + (1 - x.sum(dim=-1, keepdim=True)) * weight[MASK_ID]
        tokens = torch.zeros_like(padding, dtype=torch.long)  # embedded above
        inputs = Inputs(tokens, padding=padding if bool(padding.any()) else None)
        states = self.backbone.norm(self.backbone.body(h, inputs))
        real = (~padding)[..., None]
        pooled = states.masked_fill(~real, 0).sum(dim=1) / real.sum(dim=1)
        return self.head(self.dropout(pooled))


def build_network(
    name: NetworkName, num_outputs: int, length: int, **options: int
) -> ConvNetwork | CaduceusNetwork:
    """Build a network with new weights, drawn from torch's generator.

    Args:
        name: ``conv`` or ``caduceus``.
        num_outputs: Number of values.
        length: Positions of a row.
        options: ``width`` and ``depth``, if they are not the defaults.
    """
    kind = ConvNetwork if name == "conv" else CaduceusNetwork
    return kind(num_outputs, length, **options)

"""A network for alignments, in which every column has weights of its own."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from seqdiff.backbones import Backbone
from seqdiff.types import Inputs


class SiteNetwork(Backbone):
    """A residual network that reads all columns of an alignment at once.

    The columns of an alignment are always the same sites, so no layer is shared between them: a row
    is the sum of a vector for each residue at its site, which passes through residual layers, and
    every site reads its scores from the result. A step costs as much as for a transformer of a
    tenth of the width, so the dependence between sites is learned within minutes on a CPU.

    Args:
        num_embeddings: K + 1, set by seqdiff.
        num_logits: K, set by seqdiff.
        length: Columns of the alignment.
        width: Channels.
        layers: Number of residual layers.
        dropout: Probability with which training drops a channel.
    """

    first: Tensor

    def __init__(
        self,
        *,
        num_embeddings: int,
        num_logits: int,
        length: int,
        width: int = 512,
        layers: int = 2,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.width, self.num_logits, self.max_length = width, num_logits, length
        self.embedding = nn.Embedding(length * num_embeddings, width)
        nn.init.normal_(self.embedding.weight, std=length**-0.5)
        self.register_buffer("first", torch.arange(length) * num_embeddings, persistent=False)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(width),
                nn.Linear(width, 2 * width),
                nn.GELU(),
                nn.Dropout(dropout),
                nn.Linear(2 * width, width),
            )
            for _ in range(layers)
        )
        self.output = nn.Sequential(nn.LayerNorm(width), nn.Dropout(dropout))
        self.scores = nn.Linear(width, length * num_logits)
        nn.init.normal_(self.scores.weight, std=0.02)
        nn.init.zeros_(self.scores.bias)

    @property
    def num_layers(self) -> int:
        """Number of residual layers."""
        return len(self.blocks)

    def embed(self, inputs: Inputs) -> Tensor:
        """Embed tokens [B, L], each at its site, as [B, L, width].

        Raises:
            ValueError: If the rows are not as long as the alignment.
        """
        length = inputs.tokens.shape[1]
        if length != self.max_length:
            raise ValueError(
                f"SiteNetwork.tokens must be rows of the alignment, {self.max_length} long, got "
                f"{length}; align the sequences, or set backbone.length"
            )
        return self.embedding(inputs.tokens + self.first)

    def body(self, h: Tensor, inputs: Inputs, layer: int | None = None) -> Tensor:
        """Run the layers on the sum over sites; every site gets the result, [B, L, width]."""
        if layer == 0:
            return h
        row = h.sum(dim=1)
        for block in self.blocks[:layer]:
            row = row + block(row)
        return row[:, None].expand_as(h)

    def head(self, h: Tensor, inputs: Inputs, where: Tensor | None = None) -> Tensor:
        """Score every symbol at every site, or at the sites of ``where``."""
        logits = self.scores(self.output(h[:, 0])).unflatten(1, (-1, self.num_logits))
        return logits if where is None else logits[where]

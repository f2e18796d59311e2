"""Small autoregressive models that are fully known, and broken ones that look ahead."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from seqdiff.backbones import Backbone
from seqdiff.types import Inputs
from tests.oracles import TableBackbone, all_sequences


class CausalLookup(TableBackbone):
    """Arbitrary conditionals: one random table of logits for every prefix of every length."""

    def __init__(self, vocab_size: int, length: int, seed: int) -> None:
        super().__init__(vocab_size)
        generator = torch.Generator().manual_seed(seed)
        self.base = vocab_size + 1
        self.tables = [
            torch.randn(self.base**n, vocab_size, dtype=torch.float64, generator=generator)
            for n in range(length)
        ]
        self.rows_seen: list[int] = []

    def logits(self, inputs: Inputs) -> Tensor:
        tokens = inputs.tokens
        self.rows_seen.append(len(tokens))
        code = torch.zeros(len(tokens), dtype=torch.int64)
        logits = []
        for place in range(tokens.shape[1]):
            table = self.tables[
                min(place, len(self.tables) - 1)
            ]  # later positions may have any distribution
            logits.append(table[code % len(table)])
            code = code * self.base + tokens[:, place]
        return torch.stack(logits, dim=1)

    def distribution(self) -> Tensor:
        """Probability of every sequence over the real symbols, in the order of
        ``all_sequences``.
        """
        rows = all_sequences(self.base - 1, len(self.tables))
        log_distribution = torch.zeros(len(rows), dtype=torch.float64)
        for number, row in enumerate(rows.tolist()):
            code = 0
            for place, token in enumerate(row):
                log_distribution[number] += self.tables[place][code].log_softmax(dim=-1)[token]
                code = code * self.base + token
        return log_distribution.exp()


class LookingLookup(CausalLookup):
    """Broken: without the shift each position sees its own token."""

    def logits(self, inputs: Inputs) -> Tensor:
        tokens = inputs.tokens
        return super().logits(Inputs(torch.cat((tokens[:, 1:], tokens[:, -1:]), dim=1)))


class CausalNet(Backbone):
    """Reads the previous four tokens; trainable, for any length."""

    shift, num_layers, causal = 1, 1, True

    def __init__(self, *, num_embeddings: int, num_logits: int, width: int = 16) -> None:
        super().__init__()
        self.width, self.num_logits = width, num_logits
        self.embedding = nn.Embedding(num_embeddings, width)
        self.mix = nn.Conv1d(width, width, 4)
        self.norm = nn.LayerNorm(width)
        self.scores = nn.Linear(width, num_logits)
        nn.init.zeros_(self.scores.weight)

    def embed(self, inputs: Inputs) -> Tensor:
        return self.embedding(inputs.tokens)

    def body(self, h: Tensor, inputs: Inputs, layer: int | None = None) -> Tensor:
        if layer == 0:
            return h
        before = nn.functional.pad(h.mT, (3 + self.shift, -self.shift))
        return torch.relu(self.mix(before).mT)

    def head(self, h: Tensor, inputs: Inputs, where: Tensor | None = None) -> Tensor:
        return self.scores(self.norm(h if where is None else h[where]))


class LookingNet(CausalNet):
    """Broken: shifted by one, so each position sees its own token."""

    shift = 0

"""Small autoregressive models of which everything is known, and one that looks ahead."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from tests.oracles import all_sequences


class CausalLookup(nn.Module):
    """Arbitrary conditionals: one random table of logits for every prefix of every length."""

    def __init__(self, vocab_size: int, length: int, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.base = vocab_size + 1
        self.tables = [
            torch.randn(self.base**n, vocab_size, dtype=torch.float64, generator=generator)
            for n in range(length)
        ]
        self.rows_seen: list[int] = []

    def forward(
        self, tokens: Tensor, t: Tensor | None = None, padding: Tensor | None = None
    ) -> Tensor:
        self.rows_seen.append(len(tokens))
        code = torch.zeros(len(tokens), dtype=torch.int64)
        logits = []
        for place in range(tokens.shape[1]):
            table = self.tables[min(place, len(self.tables) - 1)]  # further on, any law will do
            logits.append(table[code % len(table)])
            code = code * self.base + tokens[:, place]
        return torch.stack(logits, dim=1)

    def law(self) -> Tensor:
        """Of every sequence over the real symbols, in the order of ``all_sequences``."""
        rows = all_sequences(self.base - 1, len(self.tables))
        log_law = torch.zeros(len(rows), dtype=torch.float64)
        for number, row in enumerate(rows.tolist()):
            code = 0
            for place, token in enumerate(row):
                log_law[number] += self.tables[place][code].log_softmax(dim=-1)[token]
                code = code * self.base + token
        return log_law.exp()


class LookingLookup(CausalLookup):
    """Broken: the shift is forgotten, so each position sees its own token."""

    def forward(
        self, tokens: Tensor, t: Tensor | None = None, padding: Tensor | None = None
    ) -> Tensor:
        return super().forward(torch.cat((tokens[:, 1:], tokens[:, -1:]), dim=1), t, padding)


class CausalNet(nn.Module):
    """Reads the four tokens before; trainable, and of any length."""

    shift = 1

    def __init__(self, *, num_embeddings: int, num_logits: int, width: int = 16) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_embeddings, width)
        self.mix = nn.Conv1d(width, width, 4)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, num_logits)
        nn.init.zeros_(self.head.weight)

    def forward(
        self,
        tokens: Int[Tensor, "B L"],
        t: Float[Tensor, " B"] | None = None,
        padding: Bool[Tensor, "B L"] | None = None,
    ) -> Float[Tensor, "B L K"]:
        hidden = self.embedding(tokens).mT
        before = nn.functional.pad(hidden, (3 + self.shift, -self.shift))
        return self.head(self.norm(torch.relu(self.mix(before).mT)))


class LookingNet(CausalNet):
    """Broken: off by one, so each position sees its own token."""

    shift = 0

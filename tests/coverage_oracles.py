"""Tables of arbitrary conditionals, the truth of every estimator on them, and its intervals."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch

from seqdiff.denoiser.discrete import Denoiser
from seqdiff.likelihood import Estimator, ImportanceWeightedOrders, Likelihood, evaluate
from seqdiff.schedules import Cosine
from seqdiff.types import Batch, Inputs
from tests.oracles import LookupBackbone, all_sequences, masked_model

# Rows evaluated together.
_CHUNK = 20_000


@dataclass(frozen=True)
class Table:
    """A denoiser from a table of logits.

    Attributes:
        vocab_size: K.
        length: L.
        seed: Seed of the logits.
        scale: Standard deviation of the logits; 3 gives distributions with long tails.
    """

    vocab_size: int
    length: int
    seed: int
    scale: float = 1.0

    @property
    def denoiser(self) -> Denoiser:
        backbone = LookupBackbone(self.vocab_size, self.length, seed=self.seed)
        backbone.table *= self.scale
        return masked_model(backbone, Cosine())

    def run(
        self, estimator: Estimator, rows: int, *, seed: int = 0, **budget: float | None
    ) -> tuple[Likelihood, np.ndarray]:
        """Evaluate the sequences repeatedly; return the result and the truth of each row."""
        x0 = all_sequences(self.vocab_size, self.length)
        batches = []
        for index in torch.arange(rows).split(_CHUNK):
            tokens = x0[index % len(x0)]
            batches.append(Batch(tokens, torch.ones_like(tokens, dtype=torch.bool), index))
        result = evaluate(
            self.denoiser,
            batches,
            estimator=estimator,
            rows_per_call=1 << 16,
            seed=seed,
            **budget,
        )
        return result, truth(self, estimator)[np.arange(rows) % len(x0)]


@cache
def order_nats(table: Table) -> np.ndarray:
    """-log p_o of every order (rows) and every sequence (columns)."""
    denoiser, x0 = table.denoiser, all_sequences(table.vocab_size, table.length)
    orders = list(itertools.permutations(range(table.length)))
    nats = np.zeros((len(orders), len(x0)))
    for row, order in enumerate(orders):
        x_t = torch.full_like(x0, table.vocab_size)
        for place in order:
            at_x0 = denoiser(Inputs(x_t))[:, place].gather(-1, x0[:, place, None])[:, 0]
            nats[row] -= at_x0.numpy()
            x_t[:, place] = x0[:, place]
    return nats


@cache
def truth(table: Table, estimator: Estimator) -> np.ndarray:
    """The expected estimate for each sequence, by enumeration of the orders."""
    nats = order_nats(table)
    if not isinstance(estimator, ImportanceWeightedOrders):
        return nats.mean(axis=0)
    # Every multiset of orders, repeated by its number of arrangements.
    total = np.zeros(nats.shape[1])
    for chosen in itertools.combinations_with_replacement(range(len(nats)), estimator.orders):
        repeats = np.unique(chosen, return_counts=True)[1]
        ways = math.factorial(estimator.orders) // math.prod(map(math.factorial, repeats))
        total -= ways * np.logaddexp.reduce(-nats[list(chosen)], axis=0)
    return total / len(nats) ** estimator.orders + math.log(estimator.orders)

"""Expected distributions of the block diffusion sampler, written independently of it."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from seqdiff.denoiser.discrete import Denoiser
from seqdiff.samplers import ConfidenceSampler, FirstHittingSampler, Sampler
from tests import distributions
from tests.enumeration import Distribution, Tokens


def fill(inner: Sampler, x: Tokens, table: distributions.Table, k: int) -> Distribution:
    """Distribution of a filled block, from the predictions for every state of the block."""
    if isinstance(inner, FirstHittingSampler):
        return distributions.random_order(x, table, k)
    if isinstance(inner, ConfidenceSampler):
        best = lambda hidden, distribution: [max(hidden, key=lambda i: max(distribution[i]))]  # noqa: E731
        return distributions.chosen_order(x, table, k, best)
    distribution: Distribution = {x: 1.0}
    for step in range(inner.num_steps):
        distribution = distributions.push(
            distribution, distributions.step(table, k, 1 / (inner.num_steps - step))
        )
    return distribution


def by_blocks(
    denoiser: Denoiser,
    inner: Sampler,
    x_init: Tokens,
    seen: Callable[[Tokens], Tokens] = lambda behind: behind,
) -> Distribution:
    """Fill block after block, with the predictions for each block given ``seen``."""
    k = denoiser.vocab_size
    table = distributions.table(denoiser, k, len(x_init))
    distribution: Distribution = {x_init: 1.0}
    for start in range(0, len(x_init), denoiser.block_size):
        block = range(start, min(start + denoiser.block_size, len(x_init)))

        def kernel(x: Tokens, block: range = block) -> Distribution:
            behind, ahead = x[: block.start], x[block.stop :]
            states = itertools.product(range(k + 1), repeat=len(block))
            own = {
                state: [table[seen(behind) + state + ahead][i] for i in block] for state in states
            }
            found = fill(inner, x[block.start : block.stop], own, k)
            return {behind + state + ahead: chance for state, chance in found.items()}

        distribution = distributions.push(distribution, kernel)
    return distribution

"""What the sampler of block diffusion ought to draw, written down independently of it."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from seqdiff.denoiser.discrete import Denoiser
from seqdiff.samplers import ConfidenceSampler, FirstHittingSampler, Sampler
from tests import laws
from tests.enumeration import Law, Tokens


def fill(inner: Sampler, x: Tokens, table: laws.Table, k: int) -> Law:
    """What a sampler makes of a block, from the distributions of every state of the block."""
    if isinstance(inner, FirstHittingSampler):
        return laws.random_order(x, table, k)
    if isinstance(inner, ConfidenceSampler):
        best = lambda hidden, law: [max(hidden, key=lambda i: max(law[i]))]  # noqa: E731
        return laws.chosen_order(x, table, k, best)
    law: Law = {x: 1.0}
    for step in range(inner.num_steps):
        law = laws.push(law, laws.step(table, k, 1 / (inner.num_steps - step)))
    return law


def by_blocks(
    denoiser: Denoiser,
    inner: Sampler,
    x_init: Tokens,
    seen: Callable[[Tokens], Tokens] = lambda behind: behind,
) -> Law:
    """Fill block after block; look up the distributions of a block beside what is ``seen``."""
    k = denoiser.vocab_size
    table = laws.table(denoiser, k, len(x_init))
    law: Law = {x_init: 1.0}
    for start in range(0, len(x_init), denoiser.block_size):
        block = range(start, min(start + denoiser.block_size, len(x_init)))

        def kernel(x: Tokens, block: range = block) -> Law:
            behind, ahead = x[: block.start], x[block.stop :]
            states = itertools.product(range(k + 1), repeat=len(block))
            own = {
                state: [table[seen(behind) + state + ahead][i] for i in block] for state in states
            }
            found = fill(inner, x[block.start : block.stop], own, k)
            return {behind + state + ahead: chance for state, chance in found.items()}

        law = laws.push(law, kernel)
    return law

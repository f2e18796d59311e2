"""Expected distributions of samplers, written independently of them, as dictionaries of rows."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable
from math import comb

from torch import Tensor

from seqdiff.denoiser.discrete import Denoiser
from seqdiff.types import Inputs
from tests.enumeration import Distribution, Tokens
from tests.oracles import all_sequences

Table = dict[Tokens, list[list[float]]]
Kernel = Callable[[Tokens], Distribution]
Reshape = Callable[[int, list[float]], list[float]]


def table(
    denoiser: Denoiser, vocab_size: int, length: int, reshape: Reshape | None = None
) -> Table:
    """Return the model's reshaped distribution at every position of every corrupted row."""
    states = all_sequences(vocab_size + 1, length)
    distributions = denoiser(Inputs(states)).double().exp().tolist()
    if reshape is not None:
        distributions = [
            [reshape(i, distribution) for i, distribution in enumerate(row)]
            for row in distributions
        ]
    return dict(zip(map(tuple, states.tolist()), distributions, strict=True))


def masked(x: Tokens, mask: int) -> list[int]:
    return [i for i, token in enumerate(x) if token == mask]


def product(parts: list[dict[int, float]]) -> Distribution:
    """Combine independent positions."""
    distribution: Distribution = {}
    for row in itertools.product(*(part.items() for part in parts)):
        chance = 1.0
        for _, share in row:
            chance *= share
        distribution[tuple(token for token, _ in row)] = chance
    return distribution


def push(distribution: Distribution, kernel: Kernel) -> Distribution:
    pushed: defaultdict[Tokens, float] = defaultdict(float)
    for x, chance in distribution.items():
        for y, share in kernel(x).items():
            pushed[y] += chance * share
    return dict(pushed)


def step(
    distributions: Table, mask: int, reveal: float, *, hide: float = 0.0, given: Iterable[int] = ()
) -> Kernel:
    """Reveal each mask and hide each visible token that is not given, independently."""
    fixed = set(given)

    def kernel(x: Tokens) -> Distribution:
        parts = []
        for i, token in enumerate(x):
            if token == mask:
                letters = {k: reveal * p for k, p in enumerate(distributions[x][i])}
                parts.append({**letters, mask: 1 - reveal})
            elif i in fixed:
                parts.append({token: 1.0})
            else:
                parts.append({token: 1 - hide, mask: hide} if hide else {token: 1.0})
        return product(parts)

    return kernel


def reveal(x: Tokens, positions: Iterable[int], distributions: list[list[float]]) -> Distribution:
    chosen = set(positions)
    parts = [
        {k: p for k, p in enumerate(distributions[i]) if p > 0} if i in chosen else {token: 1.0}
        for i, token in enumerate(x)
    ]
    return product(parts)


def random_order(
    x: Tokens, distributions: Table, mask: int, sizes: list[int] | None = None
) -> Distribution:
    """Reveal uniformly chosen positions, ``sizes`` at a time or one by one, and repeat."""
    hidden = masked(x, mask)
    if not hidden:
        return {x: 1.0}
    size, rest = (1, None) if sizes is None else (sizes[0], sizes[1:])
    total: defaultdict[Tokens, float] = defaultdict(float)
    for chosen in itertools.combinations(hidden, size):
        for y, share in reveal(x, chosen, distributions[x]).items():
            for z, last in random_order(y, distributions, mask, rest).items():
                total[z] += share * last / comb(len(hidden), size)
    return dict(total)


def chosen_order(
    x: Tokens,
    distributions: Table,
    mask: int,
    rule: Callable[[list[int], list[list[float]]], list[int]],
) -> Distribution:
    """Reveal the positions that a rule chooses, given their distributions, and repeat."""
    hidden = masked(x, mask)
    if not hidden:
        return {x: 1.0}
    chosen = rule(hidden, distributions[x])
    total: defaultdict[Tokens, float] = defaultdict(float)
    for y, share in reveal(x, chosen, distributions[x]).items():
        for z, last in chosen_order(y, distributions, mask, rule).items():
            total[z] += share * last
    return dict(total)


def mask_rate(distribution: Distribution, mask: int) -> float:
    return sum(chance * len(masked(x, mask)) / len(x) for x, chance in distribution.items())


def as_tokens(x: Tensor) -> Tokens:
    return tuple(x.tolist())

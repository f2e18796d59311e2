"""The exact distribution of a sampler: runs its code for every outcome of its random choices."""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass, field
from typing import NoReturn

import torch
from torch import Tensor

from seqdiff.denoiser.discrete import Denoiser
from seqdiff.rng import categorical
from seqdiff.samplers import Sampler, WordAutomaton
from seqdiff.samplers.avoidance import Completions
from seqdiff.samplers.canvas import Canvas
from seqdiff.samplers.draws import Draws

Tokens = tuple[int, ...]
Distribution = dict[Tokens, float]


@dataclass
class Path:
    """The choices of one row: those that it must make first, and all that it made, with
    probabilities.
    """

    prefix: tuple[int, ...]
    made: list[int] = field(default_factory=list)
    chances: list[list[float]] = field(default_factory=list)

    def choose(self, chances: list[float]) -> int:
        if len(self.made) < len(self.prefix):
            choice = self.prefix[len(self.made)]
        else:
            choice = next(i for i, chance in enumerate(chances) if chance > 0)
        self.made.append(choice)
        self.chances.append(chances)
        return choice

    @property
    def probability(self) -> float:
        total = 1.0
        for choice, chances in zip(self.made, self.chances, strict=True):
            total *= chances[choice]
        return total

    def branches(self) -> list[tuple[int, ...]]:
        return [
            (*self.made[:depth], other)
            for depth in range(len(self.prefix), len(self.made))
            for other, chance in enumerate(self.chances[depth])
            if chance > 0 and other != self.made[depth]
        ]


class GivenLetters(Draws):
    """All rows use the same given noise: symbols at one quantile of every distribution."""

    def __init__(self, quantile: float) -> None:
        self.quantile = quantile

    def tokens(self, log_probs: Tensor, where: Tensor, step: int) -> Tensor:
        noise = torch.full((len(log_probs),), self.quantile, dtype=torch.float64)
        return categorical(log_probs, (noise + step * 0.618) % 1)

    def _none(self, *_: object) -> NoReturn:
        raise AssertionError("only tokens are drawn from shared noise")

    unmask_times = unmask_steps = coins = window = take = copies = repeated = _none


class ReplayedDraws(Draws):
    """Makes each row follow a path, and records the alternatives."""

    quantile = 0.5

    def __init__(self, prefixes: list[tuple[int, ...]]) -> None:
        self.paths = [Path(prefix) for prefix in prefixes]

    def unmask_times(self, where: Tensor) -> Tensor:
        levels = torch.zeros(where.shape, dtype=torch.float64)
        for row, path in enumerate(self.paths):
            left = where[row].nonzero().squeeze(-1).tolist()
            count = len(left)
            while left:
                position = left.pop(path.choose([1 / len(left)] * len(left)))
                levels[row, position] = (len(left) + 1) / (count + 1)
        return levels

    def unmask_steps(self, edges: Tensor, where: Tensor) -> Tensor:
        chances = (edges[:-1] - edges[1:]).tolist()
        cells = torch.zeros(where.shape, dtype=torch.int64)
        for row, position in where.nonzero().tolist():
            cells[row, position] = 1 + self.paths[row].choose(chances)
        return cells

    def tokens(self, log_probs: Tensor, where: Tensor, step: int) -> Tensor:
        rows = where.nonzero()[:, 0].tolist()
        distributions = log_probs.exp()
        assert torch.allclose(
            distributions.sum(dim=-1), torch.ones(len(distributions)).to(distributions), atol=1e-9
        )
        chosen = [
            self.paths[row].choose(distribution)
            for row, distribution in zip(rows, distributions.tolist(), strict=True)
        ]
        return torch.tensor(chosen, dtype=torch.int64)

    def coins(self, probability: Tensor, where: Tensor, step: int) -> Tensor:
        heads = torch.zeros_like(where)
        for row, position in where.nonzero().tolist():
            chance = float(probability[row, position])
            assert -1e-12 <= chance <= 1 + 1e-12, "a probability"
            chance = min(max(chance, 0.0), 1.0)
            heads[row, position] = self.paths[row].choose([chance, 1 - chance]) == 0
        return heads

    def window(self, start: int) -> Draws:
        return self

    def take(self, rows: Tensor) -> Draws:
        some = ReplayedDraws([])
        some.paths = [self.paths[row] for row in rows.tolist()]
        return some

    def repeated(self, count: int) -> Draws:
        return GivenLetters(self.quantile)

    def copies(self, count: int) -> Draws:
        shared = ReplayedDraws([])
        shared.paths = [path for path in self.paths for _ in range(count)]
        return shared


@dataclass(frozen=True)
class Outcomes:
    """Every path of a sampler.

    Attributes:
        probability: Probability of each path; they sum to 1.
        tokens: Final tokens of each path.
        nfe: Evaluations of each path.
        history: Tokens of each path after every step.
    """

    probability: Tensor
    tokens: Tensor
    nfe: Tensor
    history: list[list[Tensor]]

    @property
    def distribution(self) -> Distribution:
        total: defaultdict[Tokens, float] = defaultdict(float)
        for row, chance in zip(self.tokens.tolist(), self.probability.tolist(), strict=True):
            total[tuple(row)] += chance
        return dict(total)

    def mean_after(self, step: int, measure) -> float:
        """The expectation of a function of x_t after a step, counted from 1."""
        values = torch.tensor([float(measure(steps[step - 1])) for steps in self.history])
        return float(self.probability @ values.double())


def outcomes(
    sampler: Sampler,
    denoiser: Denoiser,
    x_init: Tensor,
    *,
    allowed: Tensor | None = None,
    padding: Tensor | None = None,
    avoid: WordAutomaton | None = None,
    signal: Tensor | None = None,
) -> Outcomes:
    """Run a sampler on one row ``[L]`` for every outcome, all known paths in one batch.

    The signal is that of the row, ``[S]``, or of its positions, ``[L, S]``.
    """
    waiting: list[tuple[int, ...]] = [()]
    chances, tokens, nfe, history = [], [], [], []
    while waiting:
        draws, count = ReplayedDraws(waiting), len(waiting)
        x_t = x_init.expand(count, -1).clone()
        hidden = None if padding is None else padding.expand(count, -1)
        free = x_t == denoiser.process.unknown_id
        steps: list[Tensor] = []
        within = None if allowed is None else allowed.expand(count, -1, -1)
        canvas = Canvas(
            denoiser,
            draws,
            x_t,
            free if hidden is None else free & ~hidden,
            torch.zeros(count, dtype=torch.int64),
            hidden,
            within,
            lambda step, x, steps=steps: steps.append(x.clone()),
            None if signal is None else signal.expand(count, *signal.shape),
            avoid=None if avoid is None else Completions.begin(avoid, x_t, within, hidden),
        )
        sampler.fill(canvas)
        chances += [path.probability for path in draws.paths]
        tokens.append(canvas.x_t)
        nfe.append(canvas.nfe)
        history += [[x[row] for x in steps] for row in range(count)]
        waiting = [branch for path in draws.paths for branch in path.branches()]
    result = Outcomes(
        torch.tensor(chances, dtype=torch.float64), torch.cat(tokens), torch.cat(nfe), history
    )
    assert abs(float(result.probability.sum()) - 1) < 1e-9, "every outcome, and each once"
    return result


def distance(first: Distribution, second: Distribution) -> float:
    """Total variation distance."""
    keys = set(first) | set(second)
    return sum(abs(first.get(key, 0.0) - second.get(key, 0.0)) for key in keys) / 2


def joint_distribution(probs: Tensor, vocab_size: int, length: int) -> Distribution:
    sequences = itertools.product(range(vocab_size), repeat=length)
    return dict(zip(sequences, probs.tolist(), strict=True))

"""Small models with any kind of noise, and the exact distribution of a sampler's code."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NoReturn

import torch
from torch import Tensor

from seqdiff.backbones.base import Backbone
from seqdiff.denoiser.discrete import Denoiser
from seqdiff.parameterization import (
    Full,
    LeaveOneOut,
    MaskColumn,
    Parameterization,
    Score,
    Subs,
    scores_from_distribution,
)
from seqdiff.process import Absorbing, DiscreteProcess
from seqdiff.samplers import Sampler
from seqdiff.samplers.canvas import Canvas
from seqdiff.samplers.draws import Draws
from seqdiff.samplers.grid import GridSampler
from seqdiff.types import NO_LABEL, Inputs
from tests.enumeration import Distribution, Outcomes, ReplayedDraws, Tokens, outcomes

Answer = Callable[[Tensor, Tensor, Tensor, DiscreteProcess], Tensor]
TINY = torch.finfo(torch.float64).tiny


@dataclass(frozen=True)
class Joint:
    """A distribution over all rows of K symbols.

    Attributes:
        probs: Probabilities of the rows in the order of their base-K codes, ``[K^L]``.
        size: K.
        length: L.
    """

    probs: Tensor
    size: int
    length: int

    @classmethod
    def random(cls, size: int, length: int, seed: int = 0) -> Joint:
        generator = torch.Generator().manual_seed(seed)
        weights = torch.rand(size**length, dtype=torch.float64, generator=generator) ** 2 + 0.02
        return cls(weights / weights.sum(), size, length)

    @property
    def rows(self) -> Tensor:
        return torch.tensor(list(itertools.product(range(self.size), repeat=self.length)))

    @property
    def distribution(self) -> Distribution:
        return {
            tuple(row): p for row, p in zip(self.rows.tolist(), self.probs.tolist(), strict=True)
        }

    def log_loo(self, z: Tensor, t: Tensor, process: DiscreteProcess) -> Tensor:
        """log p(x^l = v | the other noisy tokens), up to a constant per position: ``[B, L, K]``."""
        return self._summed(self._evidence(z, t, process), leave_out=True)

    def log_full(self, z: Tensor, t: Tensor, process: DiscreteProcess) -> Tensor:
        """log p(x^l = v | all noisy tokens), up to a constant per position."""
        return self._summed(self._evidence(z, t, process), leave_out=False)

    def log_noisy(self, z: Tensor, t: Tensor, process: DiscreteProcess) -> Tensor:
        """log p_t(z) of rows, ``[B]``."""
        return (self._agreement(self._evidence(z, t, process)).prod(dim=-1) @ self.probs).log()

    def noisy(self, t: float, process: DiscreteProcess) -> Distribution:
        """p_t(z) of every row of states."""
        z = every_row(process.states, self.length)
        times = torch.full((len(z),), t, dtype=torch.float64)
        found = self.log_noisy(z, times, process).exp()
        return {tuple(row): p for row, p in zip(z.tolist(), found.tolist(), strict=True) if p > 0}

    def _evidence(self, z: Tensor, t: Tensor, process: DiscreteProcess) -> Tensor:
        """q_t(z^l | v), and 1 where nothing is known, ``[B, L, K]``."""
        unknown = z >= process.states
        times = t.double()[:, None].expand(z.shape)
        evidence = process.log_likelihood(z.masked_fill(unknown, 0), times).exp()
        return torch.where(unknown[..., None], 1.0, evidence)

    def _agreement(self, evidence: Tensor) -> Tensor:
        """q_t(z^l | x^l) for every clean row x: ``[B, rows, L]``."""
        place = torch.arange(self.length)
        return evidence[:, place, self.rows]

    def _summed(self, evidence: Tensor, *, leave_out: bool) -> Tensor:
        agreement = self._agreement(evidence)
        columns = []
        for position in range(self.length):
            others = [p for p in range(self.length) if p != position or not leave_out]
            weight = agreement[..., others].prod(dim=-1) * self.probs
            symbols = torch.nn.functional.one_hot(self.rows[:, position], self.size).double()
            columns.append(weight @ symbols)
        return torch.stack(columns, dim=1).clamp_min(TINY).log()


def every_row(states: int, length: int) -> Tensor:
    return torch.tensor(list(itertools.product(range(states), repeat=length)))


class World(Backbone):
    """A network whose outputs are a function of rows and times.

    It counts its calls and keeps the last time.

    Args:
        answer: Returns the outputs ``[B, L, num_logits]`` for rows, times, labels and the process.
        process: The process.
        num_logits: Outputs per position.
        num_classes: Classes, if any.
    """

    time_conditioned = True
    width = 1

    def __init__(
        self,
        answer: Answer,
        process: DiscreteProcess,
        num_logits: int,
        num_classes: int | None = None,
    ) -> None:
        super().__init__()
        self.answer, self.process = answer, process
        self.num_logits, self.num_classes = num_logits, num_classes
        self.calls, self.latest = 0, 0.0

    @property
    def num_layers(self) -> int:
        return 0

    def embed(self, inputs: Inputs) -> NoReturn:
        raise AssertionError("a table has no stream")

    body = embed

    def forward(self, inputs: Inputs, where: Tensor | None = None) -> Tensor:
        self.calls += 1
        self.check_condition(inputs)
        assert inputs.t is not None
        assert inputs.sigma is not None
        self.latest = max(self.latest, float(inputs.t.max()))
        z, label = inputs.tokens, inputs.label
        if inputs.padding is not None:
            z = z.masked_fill(inputs.padding, self.process.states)
        label = torch.full((len(z),), NO_LABEL) if label is None else label
        outputs = self.answer(z, inputs.t.double(), label, self.process)
        return outputs if where is None else outputs[where]


def exact(
    joint: Joint,
    process: DiscreteProcess,
    parameterization: Parameterization | None = None,
    *,
    labelled: Sequence[Joint] = (),
) -> Denoiser:
    """The exact denoiser of a joint distribution, with the outputs of a parameterization.

    Args:
        joint: The distribution, without a label.
        process: The process.
        parameterization: ``None`` is ``Subs`` or ``LeaveOneOut``.
        labelled: p(x | y) for every class.
    """
    kind = parameterization or (Subs() if isinstance(process, Absorbing) else LeaveOneOut())
    tables = [*labelled, joint]

    def answer(z: Tensor, t: Tensor, label: Tensor, process: DiscreteProcess) -> Tensor:
        found = [outputs_of(table, z, t, process, kind) for table in tables]
        return torch.stack(found)[label, torch.arange(len(z))]

    num = len(labelled) or None
    return Denoiser(World(answer, process, kind.num_outputs(process), num), process, kind).eval()


def outputs_of(
    joint: Joint, z: Tensor, t: Tensor, process: DiscreteProcess, kind: Parameterization
) -> Tensor:
    """The network outputs whose meaning is the exact prediction."""
    if isinstance(kind, Full):
        return joint.log_full(z, t, process)
    log_loo = joint.log_loo(z, t, process).log_softmax(dim=-1)
    if isinstance(kind, MaskColumn):
        return torch.nn.functional.pad(log_loo, (0, 1), value=-torch.inf)
    if not isinstance(kind, Score):
        return log_loo
    times = t[:, None].expand(z.shape)
    hidden = z >= process.states
    scores = scores_from_distribution(
        log_loo, z.masked_fill(hidden, 0), times.clamp_max(1 - 1e-9), process
    )
    scores = scores.nan_to_num(neginf=-1e300, posinf=1e300)
    nothing = Score().read(torch.zeros_like(scores), z.masked_fill(hidden, 0), times, process)
    return scores - nothing


def mislabelled(joint: Joint, process: DiscreteProcess) -> Denoiser:
    """Broken twin of every test: FULL predictions instead of leave-one-out ones."""

    def answer(z: Tensor, t: Tensor, label: Tensor, process: DiscreteProcess) -> Tensor:
        return joint.log_full(z, t, process)

    return Denoiser(World(answer, process, joint.size), process, LeaveOneOut()).eval()


# Every outcome of a sampler's random choices


class OneDraw(ReplayedDraws):
    """Records the distributions of a move that draws once, at independent positions."""

    def __init__(self) -> None:
        super().__init__([])
        self.drawn: list[tuple[Tensor, Tensor]] = []

    def tokens(self, log_probs: Tensor, where: Tensor, step: int) -> Tensor:
        self.drawn.append((log_probs.exp(), where.clone()))
        return log_probs.argmax(dim=-1)

    def coins(self, probability: Tensor, where: Tensor, step: int) -> NoReturn:
        raise NotOneDraw

    def _none(self, *_: object) -> NoReturn:
        raise AssertionError("a move of one draw does not ask for it")

    unmask_steps = coins
    unmask_times = window = take = repeated = copies = _none

    def product(self, rows: list[Tokens], chances: list[float]) -> Distribution:
        """The rows after the draw."""
        if len(self.drawn) != 1:
            raise NotOneDraw
        (distributions, where), total = self.drawn[0], defaultdict(float)
        assert torch.allclose(
            distributions.sum(dim=-1), torch.ones(len(distributions)).double(), atol=1e-9
        )
        each: list[dict[int, list[float]]] = [{} for _ in rows]
        for (row, position), distribution in zip(
            where.nonzero().tolist(), distributions.tolist(), strict=True
        ):
            each[row][position] = distribution
        for row, chance, drawn in zip(rows, chances, each, strict=True):
            for symbols in itertools.product(
                *(range(len(distribution)) for distribution in drawn.values())
            ):
                end, probability = list(row), chance
                for (position, distribution), symbol in zip(drawn.items(), symbols, strict=True):
                    end[position], probability = symbol, probability * distribution[symbol]
                if probability > 0:
                    total[tuple(end)] += probability
        return dict(total)


class NotOneDraw(Exception):
    pass


@dataclass(frozen=True)
class Request:
    """What is requested for a row, in addition to the model.

    Attributes:
        given: Ids, with the unknown id where a token is to be drawn.
        allowed: ``[L, K]``.
        padding: ``[L]``.
    """

    given: Tensor
    allowed: Tensor | None = None
    padding: Tensor | None = None

    @classmethod
    def nothing(cls, denoiser: Denoiser, length: int) -> Request:
        return cls(torch.full((length,), denoiser.process.unknown_id))

    def canvas(self, denoiser: Denoiser, draws: Draws, count: int, callback=None) -> Canvas:
        many = [
            None if x is None else x.expand(count, *x.shape) for x in (self.padding, self.allowed)
        ]
        return Canvas.open(denoiser, draws, self.given.expand(count, -1), *many, callback)


def push(
    distribution: Distribution, denoiser: Denoiser, request: Request, move: Callable[[Canvas], None]
) -> Distribution:
    """Distribution of rows after a move of one draw per position, or over every outcome."""
    rows, chances = list(distribution), list(distribution.values())
    once = OneDraw()
    canvas = request.canvas(denoiser, once, len(rows))
    canvas.x_t[:] = torch.tensor(rows)
    try:
        move(canvas)
        return once.product(rows, chances)
    except NotOneDraw:
        pass
    waiting: list[tuple[int, Tokens]] = [(number, ()) for number in range(len(rows))]
    total: defaultdict[Tokens, float] = defaultdict(float)
    while waiting:
        draws = ReplayedDraws([prefix for _, prefix in waiting])
        canvas = request.canvas(denoiser, draws, len(waiting))
        canvas.x_t[:] = torch.tensor([rows[number] for number, _ in waiting])
        move(canvas)
        for (number, _), path, end in zip(waiting, draws.paths, canvas.x_t.tolist(), strict=True):
            total[tuple(end)] += chances[number] * path.probability
        waiting = [
            (number, branch)
            for (number, _), path in zip(waiting, draws.paths, strict=True)
            for branch in path.branches()
        ]
    assert abs(sum(total.values()) - sum(chances)) < 1e-9, "every outcome, and each once"
    return dict(total)


def run(sampler: Sampler, denoiser: Denoiser, request: Request) -> Outcomes:
    """Run a whole sampler for every outcome."""
    return outcomes(
        sampler, denoiser, request.given, allowed=request.allowed, padding=request.padding
    )


def ends(sampler: Sampler, denoiser: Denoiser, request: Request) -> Distribution:
    """The exact distribution of a sampler's samples."""
    return run(sampler, denoiser, request).distribution


def chain(
    sampler: GridSampler, denoiser: Denoiser, length: int, distribution: Distribution | None = None
) -> list[Distribution]:
    """Distributions of z after the start, after every step, and after the end of a sampler.

    It is ``GridSampler.fill`` with equal states merged after every step, to limit the paths.
    """
    request = Request.nothing(denoiser, length)
    if distribution is None:
        distribution = push({tuple(request.given.tolist()): 1.0}, denoiser, request, sampler.start)
    found = [distribution]
    for step, (t, s) in enumerate(pairwise(sampler.times(torch.device("cpu"))), start=1):
        distribution = push(
            distribution, denoiser, request, lambda c, s=s, t=t, n=step: sampler.advance(c, s, t, n)
        )
        found.append(distribution)
    found.append(push(distribution, denoiser, request, lambda canvas: sampler.finish(canvas, 999)))
    return found


def kernel(
    sampler: GridSampler, denoiser: Denoiser, z: Tensor, s: float, t: float, **request: Tensor
) -> Tensor:
    """The distribution of z_s at every position of some rows, by a sampler: ``[B, L, states]``."""
    blank = Request.nothing(denoiser, z.shape[1])
    canvas = replace(blank, **request).canvas(denoiser, ReplayedDraws([()] * len(z)), len(z))
    canvas.x_t[:] = z
    where = torch.ones_like(canvas.free)
    times = (torch.tensor(x, dtype=torch.float64) for x in (s, t))
    return sampler.kernel(canvas, where, *times).view(*z.shape, -1)


def single_site(joint: Joint, z: Tensor, s: float, t: float, process: DiscreteProcess) -> Tensor:
    """p(z_s^l | z_t) at every position, by Bayes' rule over whole rows: ``[B, L, states]``."""
    before = every_row(process.states, joint.length)
    then = torch.full((len(before),), s, dtype=torch.float64)
    prior = joint.log_noisy(before, then, process)
    found = torch.zeros(*z.shape, process.states, dtype=torch.float64)
    for number, row in enumerate(z):
        now = row.expand(before.shape)
        ends = [torch.full(before.shape, x, dtype=torch.float64) for x in (s, t)]
        step = process.log_step(now, *ends).gather(-1, before[..., None]).squeeze(-1)
        weight = (prior + step.sum(dim=-1)).softmax(dim=0)
        for position in range(joint.length):
            found[number, position].index_add_(0, before[:, position], weight)
    return found.log()

"""Run an estimator over sequences until their errors are small enough or a budget is spent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from seqdiff.denoiser import Denoiser
from seqdiff.likelihood.choice import fit, usual_estimator
from seqdiff.likelihood.estimator import Estimator, PassNoise, require_at_least
from seqdiff.likelihood.masks import StratifiedK
from seqdiff.likelihood.result import Likelihood
from seqdiff.likelihood.stages import Budget, Passes
from seqdiff.likelihood.time_integral import TimeEstimator
from seqdiff.rng import CounterNoise
from seqdiff.types import Batch


@torch.no_grad()
def evaluate(
    denoiser: Denoiser,
    batches: Iterable[Batch],
    *,
    estimator: Estimator | None = None,
    evaluations: int | None = None,
    target_se: float | None = None,
    max_nfe: int | None = None,
    rows_per_call: int | None = None,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
) -> Likelihood:
    """Estimate the negative log-likelihood of every sequence, or a bound on it.

    The estimator makes passes over a sequence, see ``Estimator``: one; or as many as fit into
    ``max_nfe``; or, if there is a ``target_se``, some that tell how many more it takes, and those,
    see ``Budget``. Positions outside ``loss_mask`` are given, not counted; sequences without any
    counted position are left out; what has a label is scored given that label. A sequence's result
    is a function of its tokens, its label, its ``index``, whether it is ``mirrored``, and the seed:
    batches do not matter, nor do the others in them. Two that share an ``index`` share their noise.

    Args:
        denoiser: In eval mode, on the device of the batches.
        batches: What to evaluate.
        estimator: ``None`` is the usual one of such a model, see ``usual_estimator``; a chain of T
            steps has the bound of continuous time then, so give ``DiscreteSteps(num_steps=T)`` for
            its own. One by masks works block by block, see ``BlockBound``, for a model of block
            diffusion.
        evaluations: Of a pass, if there is no ``estimator`` to say so; its own default by default.
        target_se: Standard error to aim at, in nats a sequence: about what the errors come to in
            root mean square. The one that is reported may lie above or below, see ``Budget``.
        max_nfe: Most network evaluations of a sequence; comes before ``target_se``.
        rows_per_call: Rows of a network call, which evaluations of one sequence may share; ``None``
            takes as many as the batch has sequences.
        seed: Of the draws, in [0, 2^32).
        progress: Called after each network call with the number of sequences done so far, and the
            share that is done of those under way.

    Raises:
        ValueError: If an argument is out of range, the estimator is for other models,
            ``max_nfe`` does not suffice for one pass, an unknown symbol counts, or no position
            counts at all. What ``max_nfe`` has to suffice for is known before the first network
            call if ``batches`` is a sequence.
    """
    estimator = _choose(denoiser, estimator, evaluations)
    budget = Budget(estimator, target_se, max_nfe, denoiser.evaluations_per_call)
    if rows_per_call is not None:
        require_at_least("evaluate.rows_per_call", rows_per_call, 1, "None is the batch's rows")
    if isinstance(batches, Sequence):  # else only known as they come
        budget.check(max([1, *(n for b in batches for n in b.loss_mask.sum(dim=-1).tolist())]))
    noise, done, parts = CounterNoise(seed), 0, []
    for batch in batches:
        rows, size = _counted_rows(batch, denoiser), len(batch.tokens)
        if len(rows.tokens):
            calls = size if rows_per_call is None else rows_per_call
            work = _Work(denoiser, budget, noise, calls, _teller(progress, done, size))
            parts.append(_evaluate_rows(work, rows))
        done += size
        if progress is not None:
            progress(done)
    if not parts:
        raise ValueError(
            "evaluate.batches must hold at least one position with loss_mask True, got none; "
            "check the split and that the sequences are not all unknown symbols"
        )
    return Likelihood(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _choose(denoiser: Denoiser, estimator: Estimator | None, evaluations: int | None) -> Estimator:
    """Take the estimator that is given, or the usual one of such a model."""
    if estimator is None:
        usual = usual_estimator(denoiser)
        if evaluations is None:
            return usual
        estimator = StratifiedK(evaluations)
        if isinstance(usual, TimeEstimator):
            estimator = replace(usual, evaluations=evaluations)
    elif evaluations is not None:
        raise ValueError(
            f"evaluate.evaluations must be left to the estimator if there is one, got {evaluations}"
            f" beside {estimator}; set it there"
        )
    return fit(estimator, denoiser)


def _counted_rows(batch: Batch, denoiser: Denoiser) -> Batch:
    """The rows of a batch that hold something to count."""
    unknown = denoiser.process.unknown_id
    if bool((batch.loss_mask & (batch.tokens >= unknown)).any()):
        raise ValueError(
            f"evaluate.batches must hold ids below {unknown} where loss_mask is True, "
            "got an unknown one, which would cost nothing; set loss_mask False there"
        )
    return batch.take(batch.loss_mask.any(dim=-1).nonzero().squeeze(-1))


def _teller(
    progress: Callable[[float], None] | None, done: int, size: int
) -> Callable[[float], None]:
    """Turn the share of a batch that is done into a number of sequences."""
    if progress is None:
        return lambda share: None
    return lambda share: progress(done + size * share)


@dataclass
class _Work:
    """What every network call needs, and who is told of it."""

    denoiser: Denoiser
    budget: Budget
    noise: CounterNoise
    rows_per_call: int
    tell: Callable[[float], None]


def _evaluate_rows(work: _Work, rows: Batch) -> tuple[np.ndarray, ...]:
    """The columns of ``Likelihood`` for some rows; tells the share of them that is done."""
    budget, num_tokens = work.budget, rows.num_tokens
    budget.check(int(num_tokens.max()))
    cost = budget.estimator.cost(num_tokens).cpu()
    costs = (cost * budget.per_call).tolist()
    plan = [budget.first(c) for c in costs]
    half = 0.5 if budget.target_se is not None and not budget.estimator.exact else 1.0
    first = _stage(work, rows, cost, plan, begins=0, told=(0.0, half))
    more = [budget.second(passes, c) for passes, c in zip(first, costs, strict=True)]
    # Rows with a second stage all had the longest first one, so neighbours do not shift its noise.
    second = _stage(work, rows, cost, more, begins=max(plan), told=(half, 1.0))
    found = [budget.combine(*stages) for stages in zip(first, second, costs, strict=True)]
    nats, error, degrees = np.array(found).T
    nfe = (np.array(plan) + np.array(more)) * np.array(costs)
    return nats, num_tokens.cpu().numpy(), error, nfe, degrees


def _stage(
    work: _Work,
    rows: Batch,
    cost: Int64[Tensor, " B"],
    plan: list[int],
    *,
    begins: int,
    told: tuple[float, float],
) -> list[Passes]:
    """Make as many passes over each row as planned.

    Args:
        work: With what.
        rows: The rows.
        cost: Network evaluations of one pass over each row.
        plan: Passes over each row.
        begins: Number of the first pass.
        told: The shares of all work that are done before the stage and after it.
    """
    estimator, result = work.budget.estimator, [Passes() for _ in plan]
    total, spent = int((cost * torch.tensor(plan)).sum()), 0
    for number in range(max(plan)):
        active = [row for row, passes in enumerate(plan) if passes > number]
        found: list[np.ndarray] = []
        for part in _one_pass(work, rows, torch.tensor(active), cost, begins + number):
            found.append(part)
            spent += len(part)
            work.tell(told[0] + (told[1] - told[0]) * spent / total)
        ends = cost[active].cumsum(dim=0)[:-1].numpy()
        for row, values in zip(active, np.split(np.concatenate(found), ends), strict=True):
            result[row].add(*estimator.combine(values))
    return result


def _one_pass(
    work: _Work, rows: Batch, chosen: Int64[Tensor, " A"], cost: Int64[Tensor, " B"], number: int
) -> Iterator[np.ndarray]:
    """The values of one pass over the chosen rows, one network call at a time."""
    device, noise = rows.tokens.device, PassNoise(replace(work.noise, branch=number))
    spent = cost[chosen]
    ends = spent.cumsum(dim=0)
    owner = chosen.repeat_interleave(spent).to(device)
    first = (ends - spent).repeat_interleave(spent)
    evaluation = (torch.arange(len(first)) - first).to(device)
    for items, numbers in zip(
        owner.split(work.rows_per_call), evaluation.split(work.rows_per_call), strict=True
    ):
        found = work.budget.estimator.value(work.denoiser, rows.take(items), numbers, noise=noise)
        yield found.cpu().numpy()

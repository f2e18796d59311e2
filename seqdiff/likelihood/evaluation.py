"""Run an estimator over sequences until its errors are small enough or its budget is spent."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from seqdiff.likelihood.chain import ChainRule, check_kind
from seqdiff.likelihood.estimator import Estimator, PassNoise, Rows, require_at_least
from seqdiff.likelihood.masks import StratifiedK
from seqdiff.likelihood.result import Likelihood
from seqdiff.losses import weighted_mlm
from seqdiff.parameterization import Denoiser
from seqdiff.process import MaskedDiffusion
from seqdiff.rng import CounterNoise
from seqdiff.types import Batch

# A standard error from less is often small by luck, and would stop a row too early.
_LEAST_DEGREES = 15


@torch.no_grad()
def evaluate(
    denoiser: Denoiser,
    batches: Iterable[Batch],
    *,
    process: MaskedDiffusion,
    estimator: Estimator | None = None,
    evaluations: int | None = None,
    target_se: float | None = None,
    max_nfe: int | None = None,
    rows_per_call: int | None = None,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> Likelihood:
    """Estimate the negative log-likelihood of every sequence, or a bound on it.

    The estimator makes passes over a sequence, see ``Estimator``: one; or, if there is a
    ``target_se`` or a ``max_nfe``, as many as it takes to reach the first and as fit into the
    second. Positions outside ``loss_mask`` are given, not counted; sequences without any counted
    position are left out; what has a label is scored given that label. A sequence's result is a
    function of its tokens, its label, its ``index`` and the seed: batches do not matter, nor do the
    others in them.

    Args:
        denoiser: In eval mode, on the device of the batches.
        batches: What to evaluate; ``index`` must not repeat.
        process: Supplies the mask and the schedule.
        estimator: ``None`` is ``StratifiedK``, or ``ChainRule`` for an autoregressive model.
        evaluations: Of a pass, 16 by default, if there is no ``estimator`` to say so.
        target_se: Standard error, in nats a sequence, at which a sequence is done.
        max_nfe: Most network evaluations of a sequence.
        rows_per_call: Rows of a network call, which evaluations of one sequence may share; ``None``
            takes as many as the batch has sequences.
        seed: Of the draws, in [0, 2^32).
        progress: Called with the number of sequences after each batch.

    Raises:
        ValueError: If an argument is out of range, the estimator is for the other kind of model,
            ``max_nfe`` does not suffice for one pass, an unknown symbol counts, or no position
            counts at all.
    """
    if estimator is None:
        by_chain_rule = denoiser.causal and evaluations is None
        masks = StratifiedK(16 if evaluations is None else evaluations)
        estimator = ChainRule() if by_chain_rule else masks
    elif evaluations is not None:
        raise ValueError(
            f"evaluate.evaluations must be left to the estimator if there is one, got {evaluations}"
            f" beside {estimator}; set it there"
        )
    check_kind(denoiser, estimator)
    budget = _Budget(estimator, target_se, max_nfe)
    if rows_per_call is not None:
        require_at_least("evaluate.rows_per_call", rows_per_call, 1, "None is the batch's rows")
    noise = CounterNoise(seed)
    parts = []
    for batch in batches:
        if bool((batch.loss_mask & (batch.tokens >= process.mask_id)).any()):
            raise ValueError(
                f"evaluate.batches must hold ids below {process.mask_id} where loss_mask is True, "
                "got an unknown one, which would cost nothing; set loss_mask False there"
            )
        kept = batch.loss_mask.any(dim=-1)
        if kept.any():
            rows = Rows(batch.tokens, batch.loss_mask, batch.index, batch.label)
            rows = rows.take(kept.nonzero().squeeze(-1))
            size = len(batch.tokens) if rows_per_call is None else rows_per_call
            parts.append(_evaluate_rows(denoiser, process, rows, budget, noise, size))
        if progress is not None:
            progress(len(batch.tokens))
    if not parts:
        raise ValueError(
            "evaluate.batches must hold at least one position with loss_mask True, got none; "
            "check the split and that the sequences are not all unknown symbols"
        )
    nats, errors, tokens, nfe = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Likelihood(nats, errors, tokens, nfe)


def check_budget(
    estimator: Estimator, *, num_tokens: int, target_se: float | None, max_nfe: int | None
) -> None:
    """Refuse, before slow work, a budget that ``evaluate`` could not keep.

    Args:
        estimator: What would be run.
        num_tokens: Counted tokens of the longest sequence; 1 if that is not known yet.
        target_se: See ``evaluate``.
        max_nfe: See ``evaluate``.

    Raises:
        ValueError: If ``target_se`` is not positive, or one pass takes more than ``max_nfe``.
    """
    if target_se is not None and not target_se > 0:
        raise ValueError(
            f"evaluate.target_se must be above 0 nats, got {target_se}; FixedOrder has no error"
        )
    cost = int(estimator.cost(torch.tensor([num_tokens])))
    if max_nfe is not None and max_nfe < cost:
        raise ValueError(
            f"evaluate.max_nfe must be at least {cost}, what one pass of {estimator} takes for "
            f"{num_tokens} {'token' if num_tokens == 1 else 'tokens'}, got {max_nfe}; raise it or "
            "choose a cheaper estimator"
        )


@dataclass(frozen=True)
class _Budget:
    """When a row is done."""

    estimator: Estimator
    target_se: float | None
    max_nfe: int | None

    def __post_init__(self) -> None:
        self.check(1)

    def check(self, num_tokens: int) -> None:
        check_budget(
            self.estimator,
            num_tokens=num_tokens,
            target_se=self.target_se,
            max_nfe=self.max_nfe,
        )

    def is_done(self, row: _Sum, cost: int) -> bool:
        if self.estimator.exact or (self.target_se is None and self.max_nfe is None):
            return True
        sure = row.passes * self.estimator.degrees >= _LEAST_DEGREES
        if self.target_se is not None and sure and row.standard_error <= self.target_se:
            return True
        return self.max_nfe is not None and (row.passes + 1) * cost > self.max_nfe


@dataclass
class _Sum:
    """A row's passes so far."""

    values: list[float] = field(default_factory=list)
    variances: list[float] = field(default_factory=list)

    def add(self, value: float, variance: float) -> None:
        self.values.append(value)
        self.variances.append(variance)

    @property
    def passes(self) -> int:
        return len(self.values)

    @property
    def mean(self) -> float:
        return math.fsum(self.values) / self.passes

    @property
    def standard_error(self) -> float:
        return math.sqrt(math.fsum(self.variances)) / self.passes


def _evaluate_rows(
    denoiser: Denoiser,
    process: MaskedDiffusion,
    rows: Rows,
    budget: _Budget,
    noise: CounterNoise,
    rows_per_call: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Estimate, standard error, counted tokens and evaluations of each row."""
    estimator, num_tokens = budget.estimator, rows.num_tokens
    budget.check(int(num_tokens.max()))
    cost = estimator.cost(num_tokens).cpu()
    sums = [_Sum() for _ in range(len(cost))]
    active = list(range(len(cost)))
    for number in count():
        chosen, draws = torch.tensor(active), PassNoise(noise, number)
        values = _one_pass(denoiser, process, rows, chosen, cost, estimator, draws, rows_per_call)
        for row, worths in zip(active, values, strict=True):
            sums[row].add(*estimator.combine(worths))
        active = [row for row in active if not budget.is_done(sums[row], int(cost[row]))]
        if not active:
            break
    passes = np.array([row.passes for row in sums])
    return (
        np.array([row.mean for row in sums]),
        np.array([row.standard_error for row in sums]),
        num_tokens.cpu().numpy(),
        passes * cost.numpy(),
    )


def _one_pass(
    denoiser: Denoiser,
    process: MaskedDiffusion,
    rows: Rows,
    chosen: Int64[Tensor, " A"],
    cost: Int64[Tensor, " B"],
    estimator: Estimator,
    noise: PassNoise,
    rows_per_call: int,
) -> list[np.ndarray]:
    """What the evaluations of one pass are worth, for each chosen row."""
    device = rows.x0.device
    spent = cost[chosen]
    ends = spent.cumsum(dim=0)
    owner = chosen.repeat_interleave(spent).to(device)
    first = (ends - spent).repeat_interleave(spent)
    evaluation = (torch.arange(len(first)) - first).to(device)
    values = []
    for items, numbers in zip(
        owner.split(rows_per_call), evaluation.split(rows_per_call), strict=True
    ):
        asked = rows.take(items)
        query = estimator.query(asked, numbers, noise=noise, process=process)
        log_probs = denoiser(query.x_t, query.t, label=asked.label)
        targets = asked.x0.masked_fill(~query.scored, process.mask_id)
        unseen = query.x_t.masked_fill(query.scored, process.mask_id)  # by the law, if it is causal
        terms = weighted_mlm(log_probs, targets, unseen, query.weight)
        values.append(terms.sum(dim=-1, dtype=torch.float64))
    return np.split(torch.cat(values).cpu().numpy(), ends[:-1].numpy())

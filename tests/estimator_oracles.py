"""The expectations of likelihood estimators, from noise that enumerates instead of being drawn."""

import itertools
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from seqdiff.likelihood import BernoulliTime, Estimator
from seqdiff.likelihood.estimator import PassNoise, Query, Rows
from seqdiff.losses import weighted_mlm
from seqdiff.parameterization import Denoiser
from seqdiff.process import MaskedDiffusion
from seqdiff.rng import CounterNoise
from seqdiff.schedules import Linear
from tests.oracles import LookupBackbone, all_masks, mask_law, unit_quadrature

K, L = 3, 4
X0 = torch.tensor([2, 0, 1, 1])
ORDERS = torch.tensor(list(itertools.permutations(range(L))))
PROCESS = MaskedDiffusion(K, Linear())


def table() -> Denoiser:
    return Denoiser(LookupBackbone(K, L, seed=7), K)


def order_nats(denoiser: Denoiser, x0: Tensor = X0) -> Tensor:
    """-log p_o(x0) of every order, by the chain rule spelled out."""
    totals = []
    for order in ORDERS.tolist():
        total = 0.0
        for step, place in enumerate(order):
            x_t = torch.full_like(x0, K)
            x_t[order[:step]] = x0[order[:step]]
            total -= float(denoiser(x_t[None])[0, place, x0[place]])
        totals.append(total)
    return torch.tensor(totals, dtype=torch.float64)


@dataclass(frozen=True)
class Scripted(PassNoise):
    """Noise that was written down: one scalar, and one row of positions, for each item asked."""

    scalars: Tensor
    places: Tensor

    def scalar(self, rows: Rows, draw: Tensor) -> Tensor:
        return self.scalars

    def positions(self, rows: Rows, draw: Tensor) -> Tensor:
        return self.places


def worths(
    estimator: Estimator,
    denoiser: Denoiser,
    *,
    evaluation: Tensor,
    scalars: Tensor,
    places: Tensor,
    process: MaskedDiffusion = PROCESS,
) -> np.ndarray:
    """What the estimator's queries are worth when its noise is scripted."""
    size = len(evaluation)
    rows = Rows(
        X0.expand(size, -1), torch.ones(size, L, dtype=torch.bool), torch.zeros(size).long()
    )
    noise = Scripted(CounterNoise(0), scalars.double(), places.double())
    query: Query = estimator.query(rows, evaluation, noise=noise, process=process)
    target = X0.masked_fill(~query.scored, K)
    terms = weighted_mlm(denoiser(query.x_t, query.t), target, query.x_t, query.weight)
    return terms.sum(dim=-1).numpy()


def expectation_by_k(estimator: Estimator, process: MaskedDiffusion = PROCESS) -> float:
    """Over every order of masking and every piece of (0, 1) on which k is constant."""
    cost = int(estimator.cost(torch.tensor([L])))
    grid = (torch.arange(60, dtype=torch.float64) + 0.5) / 60
    cells = list(itertools.product(range(cost), range(60), range(len(ORDERS))))
    evaluation, scalar, order = (torch.tensor(column) for column in zip(*cells, strict=True))
    values = worths(
        estimator,
        table(),
        evaluation=evaluation,
        scalars=grid[scalar],
        places=ORDERS[order],
        process=process,
    )
    by_evaluation = values.reshape(cost, -1).mean(axis=1)
    return estimator.combine(by_evaluation)[0]


def expectation_by_time(
    estimator: BernoulliTime,
    process: MaskedDiffusion = PROCESS,
    denoiser: Denoiser | None = None,
) -> float:
    """Over mask patterns exactly, over the uniform that becomes a time by quadrature."""
    patterns, total = all_masks(L), 0.0
    size = len(patterns)
    for u, weight in zip(*unit_quadrature(), strict=True):
        arguments = {"evaluation": torch.zeros(size).long(), "scalars": u.expand(size)}
        # The time is a function of u that a query's weight and t tell.
        rows = Rows(X0[None], torch.ones(1, L, dtype=torch.bool), torch.zeros(1).long())
        noise = Scripted(CounterNoise(0), u[None], torch.full((1, L), 2.0).double())
        t = estimator.query(rows, torch.zeros(1).long(), noise=noise, process=process).t
        law = mask_law(patterns, float(process.schedule.alpha(t)))
        places = torch.where(patterns, -1.0, 2.0)
        values = worths(estimator, denoiser or table(), places=places, process=process, **arguments)
        total += float(weight * (law @ torch.from_numpy(values)))
    return total


def expectation_over_orders(estimator: Estimator, num_orders: int) -> float:
    """Over every tuple of orders that a repeat can draw; the repeats are made alike."""
    size = len(ORDERS) * L
    values = worths(
        replace(estimator, orders=max(2, num_orders)),
        table(),
        evaluation=torch.arange(L).repeat(len(ORDERS)),
        scalars=torch.zeros(size),
        places=ORDERS.argsort(dim=-1).repeat_interleave(L, dim=0),
    ).reshape(len(ORDERS), L)
    repeats = getattr(estimator, "repeats", 1)
    passes = [
        estimator.combine(np.tile(values[list(chosen)].ravel(), repeats))[0]
        for chosen in itertools.product(range(len(ORDERS)), repeat=num_orders)
    ]
    return float(np.mean(passes))

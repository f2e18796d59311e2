"""The expectations of likelihood estimators, by enumerating their noise."""

import itertools
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from seqdiff.denoiser.discrete import Denoiser
from seqdiff.likelihood import BernoulliTime
from seqdiff.likelihood.estimator import PassNoise, QueryEstimator
from seqdiff.process import Absorbing
from seqdiff.rng import CounterNoise
from seqdiff.schedules import NoiseSchedule
from seqdiff.types import Batch, Inputs
from tests.oracles import (
    LookupBackbone,
    all_masks,
    copies,
    mask_distribution,
    masked_model,
    unit_quadrature,
)

K, L = 3, 4
X0 = torch.tensor([2, 0, 1, 1])
ORDERS = torch.tensor(list(itertools.permutations(range(L))))


def table(schedule: NoiseSchedule | None = None) -> Denoiser:
    return masked_model(LookupBackbone(K, L, seed=7), schedule)


def order_nats(denoiser: Denoiser, x0: Tensor = X0) -> Tensor:
    """-log p_o(x0) of every order, by the chain rule."""
    totals = []
    for order in ORDERS.tolist():
        total = 0.0
        for step, place in enumerate(order):
            x_t = torch.full_like(x0, K)
            x_t[order[:step]] = x0[order[:step]]
            total -= float(denoiser(Inputs(x_t[None]))[0, place, x0[place]])
        totals.append(total)
    return torch.tensor(totals, dtype=torch.float64)


@dataclass(frozen=True)
class Scripted(PassNoise):
    """Prepared noise: one scalar and one row of positions for each request."""

    scalars: Tensor
    places: Tensor

    def scalar(self, batch: Batch, draw: Tensor) -> Tensor:
        return self.scalars

    def positions(self, batch: Batch, draw: Tensor) -> Tensor:
        return self.places


def scripted_values(
    estimator: QueryEstimator,
    denoiser: Denoiser,
    *,
    evaluation: Tensor,
    scalars: Tensor,
    places: Tensor,
) -> np.ndarray:
    """The values of an estimator's evaluations with prepared noise.

    The cross-entropies are computed here, and ``value`` must agree.
    """
    batch = copies(X0, len(evaluation))
    noise = Scripted(CounterNoise(0), scalars.double(), places.double())
    query = estimator.query(batch, evaluation, noise=noise, process=denoiser.process)
    nats = -denoiser(Inputs(query.x_t)).gather(-1, batch.tokens[..., None])[..., 0]
    nats = torch.where(query.scored & (query.x_t == K), nats, 0.0)
    values = (query.weight.view(len(nats), -1) * nats).sum(dim=-1)
    found = estimator.value(denoiser, batch, evaluation, noise=noise)
    torch.testing.assert_close(found, values)
    return values.numpy()


def expectation_by_k(estimator: QueryEstimator, denoiser: Denoiser | None = None) -> float:
    """Average over every order of masking and every interval of (0, 1) on which k is constant."""
    cost = int(estimator.cost(torch.tensor([L])))
    grid = (torch.arange(60, dtype=torch.float64) + 0.5) / 60
    cells = list(itertools.product(range(cost), range(60), range(len(ORDERS))))
    evaluation, scalar, order = (torch.tensor(column) for column in zip(*cells, strict=True))
    values = scripted_values(
        estimator,
        denoiser or table(),
        evaluation=evaluation,
        scalars=grid[scalar],
        places=ORDERS[order],
    )
    by_evaluation = values.reshape(cost, -1).mean(axis=1)
    return estimator.combine(by_evaluation)[0]


def expectation_by_time(estimator: BernoulliTime, denoiser: Denoiser | None = None) -> float:
    """Average over mask patterns exactly, and over the uniform that gives the time by
    quadrature.
    """
    denoiser = denoiser or table()
    process = denoiser.process
    assert isinstance(process, Absorbing)
    patterns, total = all_masks(L), 0.0
    size = len(patterns)
    for u, weight in zip(*unit_quadrature(), strict=True):
        arguments = {"evaluation": torch.zeros(size).long(), "scalars": u.expand(size)}
        # The time is a function of u, which the weight and t of a query give.
        noise = Scripted(CounterNoise(0), u[None], torch.full((1, L), 2.0).double())
        query = estimator.query(copies(X0, 1), torch.zeros(1).long(), noise=noise, process=process)
        distribution = mask_distribution(patterns, float(process.schedule.alpha(query.t)))
        places = torch.where(patterns, -1.0, 2.0)
        values = scripted_values(estimator, denoiser, places=places, **arguments)
        total += float(weight * (distribution @ torch.from_numpy(values)))
    return total


def expectation_over_orders(estimator: QueryEstimator, num_orders: int) -> float:
    """Average over every tuple of orders that a repeat can draw; all repeats are equal."""
    size = len(ORDERS) * L
    values = scripted_values(
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

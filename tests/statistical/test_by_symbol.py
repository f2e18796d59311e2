"""The gradient of learned powers, with the noise of a run, against the enumerated bound.

A false alarm of the three means has a probability below 1e-5 (5 standard errors, of 200 groups).
The broken twin, without REINFORCE, is off by more than 10 standard errors, so it is caught with a
probability above 0.999.
"""

import math

import torch
from torch import Tensor

from seqdiff.objectives import Objective, TokenScheduleNELBO
from seqdiff.objectives.time_sampling import Sobol
from seqdiff.parameterization import LeaveOneOut
from seqdiff.process import AbsorbingBySymbol
from seqdiff.rng import CounterNoise
from seqdiff.types import Batch
from tests.exact.test_by_symbol import differentiable_bound, learned

GROUPS, ROWS, SIGMAS = 200, 256, 5.0
X0 = torch.tensor([0, 2])


def gradients(objective: Objective) -> Tensor:
    """The gradient by the powers of the mean loss of each group of rows."""
    model, found = learned(LeaveOneOut()), []
    for group in range(GROUPS):
        rows = X0.expand(ROWS, -1)
        index = torch.arange(group * ROWS, (group + 1) * ROWS)
        batch = Batch(rows, torch.ones_like(rows, dtype=torch.bool), index)
        loss = objective.terms(model, batch, CounterNoise(3)).sum() / ROWS
        found += torch.autograd.grad(loss, [model.log_powers])
    return torch.stack(found)


def deviation(found: Tensor, exact: Tensor) -> Tensor:
    return (found.mean(dim=0) - exact).abs() / (found.std(dim=0) / math.sqrt(GROUPS))


def test_gradients_of_the_powers_have_the_mean_of_the_bound(monkeypatch) -> None:
    model = learned(LeaveOneOut())
    (exact,) = torch.autograd.grad(
        differentiable_bound(model, model.process, X0), [model.log_powers]
    )
    for objective in (TokenScheduleNELBO(), TokenScheduleNELBO(Sobol())):
        assert deviation(gradients(objective), exact).max() < SIGMAS
    noise = AbsorbingBySymbol.log_noise
    monkeypatch.setattr(AbsorbingBySymbol, "log_noise", lambda *args: noise(*args).detach())
    assert deviation(gradients(TokenScheduleNELBO()), exact).max() > 2 * SIGMAS

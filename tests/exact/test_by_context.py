"""Masked diffusion whose schedules depend on the whole clean row, against brute force.

The twin writes the chain out without the library: position i of row x is masked with probability
t^w_i(x), and in the model a mask stays from t to s with probability (s / t)^v.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from seqdiff.denoiser import ByContextDenoiser, Denoiser
from seqdiff.denoiser.token_schedules import TokenScores
from seqdiff.likelihood import TimeIntegral
from seqdiff.likelihood.time_integral import noise_fraction
from seqdiff.objectives import (
    ContinuousNELBO,
    TokenScheduleNELBO,
    WeightedMLM,
    validation_objective,
)
from seqdiff.objectives.time_sampling import Sobol
from seqdiff.parameterization import Subs
from seqdiff.process import Absorbing, AbsorbingByContext, TokenScheduled
from seqdiff.samplers import AncestralSampler, TauLeapingSampler
from seqdiff.types import Inputs
from tests.enumeration import distance
from tests.exact.test_by_symbol import (
    ROWS,
    bent_steps,
    continuous_bound,
    differentiable_bound,
    ends_quadrature,
    enumerated,
    equal_steps,
    ones,
)
from tests.noise_worlds import TableBackbone, random_probs
from tests.noisy_worlds import chain
from tests.oracles import LookupBackbone, all_sequences, enumerated_nelbo

K, L, LEAST, SPREAD = 3, 2, 0.7, 0.9
Row = tuple[int, ...]


class Table(nn.Module):
    """An arbitrary score of each position of each row."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(4)
        logits = 2 * torch.randn(len(ROWS), L, dtype=torch.float64, generator=generator)
        self.logits = nn.Parameter(logits)

    def forward(self, x0: Tensor) -> Tensor:
        powers = K ** torch.arange(L - 1, -1, -1)
        return self.logits.sigmoid()[(x0 * powers).sum(dim=-1)]


class Drifting(LookupBackbone):
    """Arbitrary outputs of every noisy row that change with the time; the table is a parameter."""

    time_conditioned = True

    def __init__(self) -> None:
        super().__init__(K + 1, L, 3)
        other = LookupBackbone(K + 1, L, 4).table
        self.table = nn.Parameter(torch.stack((self.table, other)))

    def logits(self, inputs: Inputs) -> Tensor:
        powers = self.base ** torch.arange(L - 1, -1, -1)
        first, second = self.table[:, (inputs.tokens * powers).sum(dim=-1)]
        assert inputs.t is not None
        return first + inputs.t.double()[:, None, None] * second


def learned(spread: float = SPREAD) -> ByContextDenoiser:
    model = ByContextDenoiser(Drifting(), AbsorbingByContext(K, LEAST, spread)).eval()
    model.scores = Table()
    return model


def powers(model: Denoiser) -> dict[Row, list[float]]:
    scores = model.get_submodule("scores")(ROWS)
    table = (LEAST + SPREAD * scores).tolist()
    return {tuple(row): w for row, w in zip(ROWS.tolist(), table, strict=True)}


@dataclass
class Brute:
    """A chain over decreasing times 1 = t_T, ..., t_0 = 0, from the predictions of a model."""

    times: list[float]
    powers: dict[Row, list[float]]
    symbols: dict[float, dict[Row, list[list[float]]]]
    velocities: dict[float, dict[Row, list[float]]]

    @classmethod
    def of(cls, model: Denoiser, times: list[float]) -> Brute:
        z = all_sequences(K + 1, L)
        keys = [tuple(row) for row in z.tolist()]
        symbols, velocities = {}, {}
        for t in times[:-1]:
            inputs = Inputs(z, torch.full((len(z),), t, dtype=torch.float64))
            outputs = model.backbone(inputs).detach()
            each = outputs[..., :K].softmax(dim=-1).tolist()
            speed = (LEAST + SPREAD * outputs[..., K].sigmoid()).tolist()
            symbols[t] = dict(zip(keys, each, strict=True))
            velocities[t] = dict(zip(keys, speed, strict=True))
        return cls(times, powers(model), symbols, velocities)

    def noisy(self, x: Row, t: float) -> dict[Row, float]:
        """q_t(z | x)."""
        found = {}
        for hidden in itertools.product((False, True), repeat=L):
            chance = math.prod(
                t**w if h else 1 - t**w for w, h in zip(self.powers[x], hidden, strict=True)
            )
            if chance > 0:
                found[tuple(K if h else v for v, h in zip(x, hidden, strict=True))] = chance
        return found

    def true_step(self, z: Row, place: int, s: float, t: float, x: Row) -> dict[int, float]:
        if z[place] != K:
            return {z[place]: 1.0}
        stays = (s / t) ** self.powers[x][place]
        return {x[place]: 1 - stays, K: stays}

    def model_step(self, z: Row, place: int, s: float, t: float) -> dict[int, float]:
        if z[place] != K:
            return {z[place]: 1.0}
        stays = (s / t) ** self.velocities[t][z][place]
        opened = {v: (1 - stays) * p for v, p in enumerate(self.symbols[t][z][place])}
        return opened | {K: stays}

    def bound(self, x: Row) -> float:
        """The sum over steps of the expected KL of true to model step."""
        total = 0.0
        for t, s in itertools.pairwise(self.times):
            for z, chance in self.noisy(x, t).items():
                for place in range(L):
                    model = self.model_step(z, place, s, t)
                    for state, q in self.true_step(z, place, s, t, x).items():
                        if q > 0:
                            total += chance * q * math.log(q / model[state])
        return total

    def samples(self) -> dict[Row, float]:
        """The distribution of what the model's chain generates."""
        now = {(K,) * L: 1.0}
        for t, s in itertools.pairwise(self.times):
            then: dict[Row, float] = {}
            for z, chance in now.items():
                steps = [self.model_step(z, place, s, t).items() for place in range(L)]
                for ends in itertools.product(*steps):
                    row = tuple(state for state, _ in ends)
                    p = chance * math.prod(q for _, q in ends)
                    if p > 0:
                        then[row] = then.get(row, 0.0) + p
            now = then
        return now


def by_cross_entropy(model: Denoiser) -> Denoiser:
    """Broken twin: the model knows the true velocity, so its loss is left out."""

    class Knows(ByContextDenoiser):
        def log_rates(self, inputs: Inputs, where: Tensor | None = None) -> Tensor:
            log_probs = model.log_probs(inputs, where)
            return log_probs + self.power_of_rows[where].log()[:, None]

    twin = Knows(model.backbone, AbsorbingByContext(K, LEAST, SPREAD)).eval()
    twin.scores = model.get_submodule("scores")
    return twin


def test_the_bound_is_the_limit_of_chains_and_no_less_than_their_samples() -> None:
    model, largest = learned(), 0.0
    chains = {count: Brute.of(model, bent_steps(count)) for count in (64, 128, 256)}
    twin = by_cross_entropy(model)
    for row in ROWS:
        x = tuple(row.tolist())
        limit = continuous_bound(model, row)
        gaps = [brute.bound(x) - limit for brute in chains.values()]
        first = [2 * b - a for a, b in itertools.pairwise(gaps)]
        assert abs((4 * first[1] - first[0]) / 3) < 1e-4
        largest = max(largest, abs(gaps[2]))
        for brute in chains.values():
            assert brute.bound(x) >= -math.log(brute.samples()[x])
        twin.power_of_rows = torch.tensor(chains[64].powers[x], dtype=torch.float64).expand(
            10_000, -1
        )[: 64 * 4]
        assert continuous_bound(twin, row) < limit - 0.01, "ignores what the mask's rate costs"
    assert largest > 5e-3, "the longest chain alone would not show the limit"


def test_the_sampler_draws_from_the_chain() -> None:
    model = learned()
    for count in (1, 4):
        wanted = Brute.of(model, equal_steps(count)).samples()
        drawn = chain(AncestralSampler(num_steps=count), model, L)[-1]
        assert distance(drawn, wanted) < 1e-12
    slow = Brute.of(model, equal_steps(4))
    slow.velocities = {t: {z: [1.0] * L for z in rows} for t, rows in slow.velocities.items()}
    assert distance(drawn, slow.samples()) > 1e-3, "a twin that unmasks at an equal rate"


def exact(probs: Tensor) -> ByContextDenoiser:
    """Exact rates E[w 1(x = y) | z] of a distribution over rows."""
    table = powers(learned())
    w = torch.tensor([table[tuple(row)] for row in ROWS.tolist()], dtype=torch.float64)

    def outputs(z: Tensor, t: Tensor) -> Tensor:
        hidden = (z == K)[:, None]  # [B, 1, L]
        log_masked = w * t.double().log()[:, None, None]
        evidence = torch.where(hidden, log_masked, torch.log(-torch.expm1(log_masked)))
        possible = hidden | (z[:, None] == ROWS)
        weight = probs.log() + torch.where(possible, evidence, -torch.inf).sum(dim=-1)
        chance = weight.softmax(dim=-1)  # p(x | z)
        rates = torch.einsum("bx,xl,xlk->blk", chance, w, nn.functional.one_hot(ROWS, K).double())
        total = rates.sum(dim=-1, keepdim=True)
        score = (total - LEAST) / SPREAD
        return torch.cat((rates.log(), score.logit()), dim=-1).nan_to_num()

    model = ByContextDenoiser(
        TableBackbone(outputs, K + 1), AbsorbingByContext(K, LEAST, SPREAD)
    ).eval()
    model.scores = Table()
    return model


def test_exact_rates_sample_the_data_and_their_bound_is_above_the_entropy() -> None:
    """It is not tight: the times of earlier steps tell something about the row too."""
    probs = random_probs(len(ROWS), seed=2)
    model = exact(probs)
    data = {tuple(row): p for row, p in zip(ROWS.tolist(), probs.tolist(), strict=True)}
    errors = [distance(chain(AncestralSampler(num_steps=n), model, L)[-1], data) for n in (8, 32)]
    assert errors[1] < errors[0] / 3
    bounds = torch.tensor([continuous_bound(model, row) for row in ROWS], dtype=torch.float64)
    entropy = -float(probs @ probs.log())
    assert entropy < float(probs @ bounds) < entropy + 0.05
    worse = learned()
    wrong = torch.tensor([continuous_bound(worse, row) for row in ROWS], dtype=torch.float64)
    assert float(probs @ wrong) > float(probs @ bounds) + 0.1


def test_without_a_spread_it_is_masked_diffusion() -> None:
    class Timeless(LookupBackbone):
        time_conditioned = True

        def logits(self, inputs: Inputs) -> Tensor:
            symbols = super().logits(inputs)
            return nn.functional.pad(symbols, (0, 1), value=0.7)

    plain = Denoiser(LookupBackbone(K, L, 5), Absorbing(K), Subs()).eval()
    backbone = Timeless(K, L, 5)
    backbone.num_logits = K + 1
    model = ByContextDenoiser(backbone, AbsorbingByContext(K, LEAST, 0.0)).eval()
    for row in ROWS:
        wanted = enumerated_nelbo(plain, row)
        assert continuous_bound(model, row) == pytest.approx(wanted, abs=1e-7)


def gradients(value: Tensor, model: ByContextDenoiser) -> list[Tensor]:
    parameters = [model.get_submodule("scores").logits, model.backbone.table]
    return list(torch.autograd.grad(value, parameters))


def test_value_and_gradient_of_the_objective_are_those_of_the_bound(monkeypatch) -> None:
    """By the scores and by the weights of the network; without REINFORCE they are not."""
    model = learned()
    for row in ROWS[1::3]:
        wanted = differentiable_bound(model, model.process, row)
        found = enumerated(TokenScheduleNELBO(), model, row)
        assert found.item() == pytest.approx(wanted.item(), abs=1e-9)
        for one, other in zip(gradients(wanted, model), gradients(found, model), strict=True):
            assert one.abs().max() > 0.01
            assert (one - other).abs().max() < 1e-8
    noise = TokenScheduled.log_noise
    monkeypatch.setattr(TokenScheduled, "log_noise", lambda *args: noise(*args).detach())
    row = ROWS[1]
    wanted = differentiable_bound(model, model.process, row)
    found = enumerated(TokenScheduleNELBO(), model, row)
    by_scores, by_weights = (
        (one - other).abs().max()
        for one, other in zip(gradients(wanted, model), gradients(found, model), strict=True)
    )
    assert by_scores > 0.01
    assert by_weights < 1e-8


def test_the_estimator_and_validation_have_the_mean_of_the_bound() -> None:
    model, row = learned(), torch.tensor([2, 0])
    wanted = continuous_bound(model, row)
    validated = validation_objective(TokenScheduleNELBO(), model)
    assert validated == ContinuousNELBO(Sobol())
    with torch.no_grad():
        assert enumerated(ContinuousNELBO(), model, row).item() == pytest.approx(wanted, abs=1e-9)
    u, weight = ends_quadrature()
    place, slope = noise_fraction(u)
    t, _ = model.process.time_at(place)
    total = 0.0
    for mask in all_sequences(2, L).bool():
        masked = t[:, None] ** model.process.power_of(row[None]).detach()
        chance = torch.where(mask, masked, 1 - masked).prod(dim=-1)
        draws = torch.where(mask, 0.0, 1 - 1e-16).double().expand(len(t), -1)
        rows = ones(row.expand(len(t), -1))
        with torch.no_grad():
            terms = TimeIntegral(2).terms_at(model, rows, place, slope, draws)
        total += float((weight * chance * terms.sum(dim=-1)).sum())
    assert total == pytest.approx(wanted, abs=1e-6)


def test_scores_are_learned_and_parts_that_do_not_fit_are_errors() -> None:
    process = AbsorbingByContext(K)
    scores = TokenScores(K)(torch.tensor([[0, 1, K, 2]]))
    assert scores.tolist() == [[0.5] * 4]
    with pytest.raises(ValueError, match="scores must be given before rows are masked, got None"):
        process.power_of(ROWS)
    for name, value in (("least", 0.0), ("spread", -1.0)):
        with pytest.raises(ValueError, match=f"AbsorbingByContext.{name} must be"):
            AbsorbingByContext(K, **{name: value})
    model = learned()
    for objective in (ContinuousNELBO(), WeightedMLM()):
        with pytest.raises(ValueError, match=r"absorbing-by-context .* choose TokenScheduleNELBO"):
            objective.check(model)
    with pytest.raises(ValueError, match="got tau_leaping; choose from ancestral"):
        TauLeapingSampler().check_fit(model)
    with pytest.raises(ValueError, match="must have a noise schedule for every token"):
        Denoiser(LookupBackbone(K, L, 5), Absorbing(K)).log_rates(Inputs(ROWS))

"""Masked diffusion with a schedule for every symbol, against brute force over whole chains.

The twin writes the chain out without the library: a symbol k is masked with probability t^w_k, and
the model's step is the mean of q(z_s | z_t, v) over its prediction of v given all noisy tokens.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from seqdiff.denoiser import BySymbolDenoiser, Denoiser
from seqdiff.likelihood import TimeIntegral
from seqdiff.likelihood.time_integral import noise_fraction
from seqdiff.losses import (
    continuous_terms,
    ctmc_nelbo,
    discrete_kl,
    step_terms,
    unmasking_nelbo,
)
from seqdiff.objectives import (
    ContinuousNELBO,
    CrossEntropy,
    DiscreteNELBO,
    TokenScheduleNELBO,
    validation_objective,
)
from seqdiff.objectives.time_sampling import Sobol
from seqdiff.parameterization import Full, LeaveOneOut, Subs, evidence_added
from seqdiff.process import Absorbing, AbsorbingBySymbol, TokenScheduled
from seqdiff.process.base import DiscreteProcess
from seqdiff.rng import MASK_STREAM, SECOND_MASK_STREAM, TIME_STREAM, CounterNoise
from seqdiff.samplers import AncestralSampler, TauLeapingSampler, TweedieSampler
from seqdiff.types import Batch, Inputs
from tests.enumeration import distance
from tests.noise_worlds import TableBackbone, World, bound_integral, ends_quadrature, random_probs
from tests.noisy_worlds import chain
from tests.oracles import LookupBackbone, all_sequences, enumerated_nelbo

K, L = 3, 2
LOG_POWERS = torch.tensor([0.6, 1.0, 2.2], dtype=torch.float64).log()
PROCESS = AbsorbingBySymbol(K).given_log_powers(LOG_POWERS)
ROWS = all_sequences(K, L)
KINDS = [LeaveOneOut(), Full()]
by_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


class Drifting(LookupBackbone):
    """Arbitrary logits of every noisy row that change with the time; the table is a parameter."""

    time_conditioned = True

    def __init__(self, seed: int) -> None:
        super().__init__(K, L, seed)
        other = LookupBackbone(K, L, seed + 1).table
        self.table = torch.nn.Parameter(torch.stack((self.table, other)))

    def logits(self, inputs: Inputs) -> Tensor:
        powers = self.base ** torch.arange(L - 1, -1, -1)
        first, second = self.table[:, (inputs.tokens * powers).sum(dim=-1)]
        assert inputs.t is not None
        return first + inputs.t.double()[:, None, None] * second


def arbitrary(kind: LeaveOneOut | Full, process: DiscreteProcess = PROCESS) -> Denoiser:
    return Denoiser(Drifting(3), process, kind).eval()


def learned(kind: LeaveOneOut | Full) -> BySymbolDenoiser:
    model = BySymbolDenoiser(Drifting(3), AbsorbingBySymbol(K), kind).eval()
    model.log_powers = torch.nn.Parameter(LOG_POWERS.clone())
    return model


# The twin


@dataclass
class Brute:
    """A chain over decreasing times 1 = t_T, ..., t_0 = 0, from the predictions of a model."""

    times: list[float]
    powers: list[float]
    predictions: dict[float, dict[tuple[int, ...], Tensor]]

    @classmethod
    def of(cls, model: Denoiser, times: list[float]) -> Brute:
        z = all_sequences(K + 1, L)
        found = {}
        for t in times[:-1]:
            inputs = Inputs(z, torch.full((len(z),), t, dtype=torch.float64))
            log_probs = own_predictions(model, inputs)
            found[t] = {tuple(row): p for row, p in zip(z.tolist(), log_probs.exp(), strict=True)}
        process = model.process
        assert isinstance(process, AbsorbingBySymbol)
        return cls(times, process.powers.tolist(), found)

    def true_step(self, state: int, s: float, t: float, x: int) -> dict[int, float]:
        """q(z_s | z_t, x) at one position."""
        if state != K:
            return {state: 1.0}
        stays = s ** self.powers[x] / t ** self.powers[x]
        return {x: 1 - stays, K: stays}

    def model_step(self, z: tuple[int, ...], place: int, s: float, t: float) -> dict[int, float]:
        if z[place] != K:
            return {z[place]: 1.0}
        found = dict.fromkeys(range(K + 1), 0.0)
        for v, chance in enumerate(self.predictions[t][z][place].tolist()):
            for state, probability in self.true_step(K, s, t, v).items():
                found[state] += chance * probability
        return found

    def noisy(self, x: tuple[int, ...], t: float) -> dict[tuple[int, ...], float]:
        """q_t(z | x)."""
        found = {}
        for hidden in itertools.product((False, True), repeat=L):
            chance = math.prod(
                t ** self.powers[v] if h else 1 - t ** self.powers[v]
                for v, h in zip(x, hidden, strict=True)
            )
            if chance > 0:
                found[tuple(K if h else v for v, h in zip(x, hidden, strict=True))] = chance
        return found

    def bound(self, x: tuple[int, ...]) -> float:
        """The sum over steps of the expected KL of true to model step."""
        total = 0.0
        for t, s in itertools.pairwise(self.times):
            for z, chance in self.noisy(x, t).items():
                for place, v in enumerate(x):
                    model = self.model_step(z, place, s, t)
                    for state, q in self.true_step(z[place], s, t, v).items():
                        if q > 0:
                            total += chance * q * math.log(q / model[state])
        return total

    def samples(self) -> dict[tuple[int, ...], float]:
        """The distribution of what the model's chain generates."""
        now = {(K,) * L: 1.0}
        for t, s in itertools.pairwise(self.times):
            then: dict[tuple[int, ...], float] = {}
            for z, chance in now.items():
                steps = [self.model_step(z, place, s, t).items() for place in range(L)]
                for ends in itertools.product(*steps):
                    row = tuple(state for state, _ in ends)
                    p = chance * math.prod(q for _, q in ends)
                    if p > 0:
                        then[row] = then.get(row, 0.0) + p
            now = then
        return now


def own_predictions(model: Denoiser, inputs: Inputs) -> Tensor:
    """p(x^l | all noisy tokens) by hand: the softmax, times t^w at masks if leave-one-out."""
    outputs = model.backbone(Inputs(inputs.tokens, inputs.t)).detach()
    if isinstance(model.parameterization, LeaveOneOut):
        process = model.process
        assert isinstance(process, AbsorbingBySymbol)
        assert inputs.t is not None
        evidence = process.powers.detach() * inputs.t.log()[:, None, None]
        outputs = torch.where((inputs.tokens == K)[..., None], outputs + evidence, outputs)
    return outputs.log_softmax(dim=-1)


def equal_steps(count: int) -> list[float]:
    return torch.linspace(1, 0, count + 1, dtype=torch.float64).tolist()


def bent_steps(count: int) -> list[float]:
    """Steps that are short near t = 0, where symbols of small power are still masked."""
    return (torch.linspace(1, 0, count + 1, dtype=torch.float64) ** 6).tolist()


def ones(rows: Tensor) -> Batch:
    return Batch(rows, torch.ones_like(rows, dtype=torch.bool), torch.arange(len(rows)))


def continuous_bound(model: Denoiser, x: Tensor) -> float:
    """The integral of ``continuous_terms`` over t and every mask pattern."""
    process = model.process
    assert isinstance(process, TokenScheduled)
    with torch.no_grad():
        return float(differentiable_bound(model, process, x))


def differentiable_bound(model: Denoiser, process: TokenScheduled, x: Tensor) -> Tensor:
    place, weight = ends_quadrature()
    t, slope = process.time_at(place)
    masks = all_sequences(2, L).bool()
    z = x.masked_fill(masks, K).repeat(len(t), 1)
    times = t.repeat_interleave(len(masks))
    rows = x.expand(z.shape)
    masked = times[:, None] ** process.power_of(x[None])[0]
    chances = torch.where(z == K, masked, 1 - masked).prod(dim=-1)
    terms = continuous_terms(model, ones(rows), z, times, torch.ones_like(times)).sum(dim=-1)
    return ((weight * slope).repeat_interleave(len(masks)) * chances * terms).sum()


# The process


def test_its_methods_are_those_of_a_chain_of_single_tokens() -> None:
    """Composition, Bayes' rule and the rates, by the general forms."""
    r, s, t = (torch.full((K + 1,), x, dtype=torch.float64) for x in (0.2, 0.5, 0.8))
    z, x = torch.arange(K + 1), torch.arange(K)
    q_s, q_t = (PROCESS.log_marginal(PROCESS.one_hot(x), time[:K]).exp() for time in (s, t))
    step = PROCESS.log_step(z, s, t).exp()  # [to, from]
    assert (q_s @ step.T - q_t).abs().max() < 1e-12
    assert (
        PROCESS.log_step(z, r, s).exp().T @ step.T - PROCESS.log_step(z, r, t).exp().T
    ).abs().max() < 1e-12
    wanted = torch.stack([0.8**PROCESS.powers, 1 - 0.8**PROCESS.powers])
    assert (q_t[:, K] - wanted[0]).abs().max() < 1e-12
    assert (q_t.diagonal() - wanted[1]).abs().max() < 1e-12
    log_probs = torch.randn(
        K + 1, K, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    ).log_softmax(-1)
    general = DiscreteProcess.log_posterior(PROCESS, log_probs, z, s, t)
    assert (PROCESS.log_posterior(log_probs, z, s, t).exp() - general.exp()).abs().max() < 1e-12
    likelihood = DiscreteProcess.log_likelihood(PROCESS, z, t)
    assert (PROCESS.log_likelihood(z, t).exp() - likelihood.exp()).abs().max() < 1e-12
    small = 1e-6
    rate = (PROCESS.log_step(z, t, t + small).exp() / small)[K, :K]
    assert (PROCESS.rate_into(z, t)[K, :K] / rate - 1).abs().max() < 1e-4
    assert not PROCESS.rate_into(z, t)[:K].any()
    noisy = torch.tensor([0, K, K, 2])
    clean = torch.tensor([0, 1, 2, 2])
    direct = PROCESS.log_marginal(PROCESS.one_hot(clean), t).gather(-1, noisy[:, None])[:, 0]
    assert (PROCESS.log_noise(clean[None], noisy[None], t[:1])[0] - direct).abs().max() < 1e-12


def test_its_ends_are_all_masks_and_no_masks() -> None:
    z, one, zero = (
        torch.tensor([[0, K, 2, K]]),
        torch.ones(1, 4).double(),
        torch.zeros(1, 4).double(),
    )
    assert PROCESS.forgets and PROCESS.starts_clean
    assert not DiscreteProcess.prior_kl(PROCESS, torch.arange(K)).any()
    assert not PROCESS.prior_kl(torch.arange(K)).any()
    log_probs = torch.full((1, 4, K), -math.log(K), dtype=torch.float64)
    step = PROCESS.log_posterior(log_probs, z, zero, one).exp()
    assert step[0, [1, 3], :K].allclose(torch.full((2, K), 1 / K, dtype=torch.float64))
    assert step[0, 0, 0] == step[0, 2, 2] == 1
    assert evidence_added(log_probs, z, one, PROCESS)[0, 0].exp().tolist() == [1.0, 0.0, 0.0]


def test_tokens_are_masked_with_the_probability_of_their_symbol() -> None:
    x, t = torch.tensor([[0, 1, 2, K, 0]]), torch.tensor([0.5]).double()
    edge = t[:, None] ** torch.tensor([[0.6, 1.0, 2.2, 1.0, 0.6]], dtype=torch.float64)
    keep = torch.tensor([[False, False, False, False, True]])
    below = PROCESS.corrupt(x, t, keep=keep, noise=edge * (1 - 1e-9))
    above = PROCESS.corrupt(x, t, keep=keep, noise=edge * (1 + 1e-9))
    assert below.tolist() == [[K, K, K, K, 0]]
    assert above.tolist() == [[0, 1, 2, K, 0]]


def test_powers_of_another_number_are_an_error() -> None:
    with pytest.raises(
        ValueError, match=r"log_powers must have shape \(3,\), got \(2,\); give one"
    ):
        AbsorbingBySymbol(3).given_log_powers(torch.zeros(2))
    with pytest.raises(ValueError, match=r"AbsorbingBySymbol.vocab_size must be at least 1"):
        AbsorbingBySymbol(0)


# The bound


@by_kind
def test_the_bound_is_the_limit_of_chains_and_no_less_than_their_samples(kind) -> None:
    model = arbitrary(kind)
    chains = {count: Brute.of(model, bent_steps(count)) for count in (64, 128, 256)}
    largest = 0.0
    for row in ROWS.tolist():
        limit = continuous_bound(model, torch.tensor(row))
        gaps = [chains[n].bound(tuple(row)) - limit for n in chains]
        # The error falls like 1 / T: without its first and second order nothing is left.
        first = [2 * b - a for a, b in itertools.pairwise(gaps)]
        assert abs((4 * first[1] - first[0]) / 3) < 1e-4
        largest = max(largest, abs(gaps[2]))
        for brute in chains.values():
            assert brute.bound(tuple(row)) >= -math.log(brute.samples()[tuple(row)])
        assert limit >= -math.log(chains[256].samples()[tuple(row)]) - abs(gaps[2])
    assert largest > 1e-2, "the longest chain alone would not show the limit"


@by_kind
def test_steps_are_those_of_the_chain(kind) -> None:
    """``step_terms`` and the ancestral sampler, for every row and outcome."""
    model, count = arbitrary(kind), 4
    brute = Brute.of(model, equal_steps(count))
    drawn = chain(AncestralSampler(num_steps=count), model, L)[-1]
    assert distance(drawn, brute.samples()) < 1e-12
    for row in ROWS.tolist():
        total = 0.0
        for t, s in itertools.pairwise(brute.times):
            for z, chance in brute.noisy(tuple(row), t).items():
                one = torch.ones(1, dtype=torch.float64)
                found = step_terms(
                    model, ones(torch.tensor([row])), torch.tensor([z]), s * one, t * one, one
                )
                total += chance * float(found.detach().sum())
        assert total == pytest.approx(brute.bound(tuple(row)), abs=1e-10)


def test_other_models_do_not_sample_this_distribution() -> None:
    """Broken twins: leave-one-out predictions instead of full ones, and equal powers."""
    model = arbitrary(LeaveOneOut())
    brute = Brute.of(model, equal_steps(4))
    for twin in (arbitrary(Full()), arbitrary(LeaveOneOut(), AbsorbingBySymbol(K))):
        drawn = chain(AncestralSampler(num_steps=4), twin, L)[-1]
        assert distance(drawn, brute.samples()) > 0.01


@by_kind
def test_exact_predictions_attain_the_likelihood(kind) -> None:
    world = World(PROCESS, random_probs(K**L, seed=2), L)
    table = world.log_full if isinstance(kind, Full) else world.log_loo
    model = Denoiser(TableBackbone(table, K), PROCESS, kind).eval()
    for row, chance in zip(world.clean, world.probs, strict=True):
        assert continuous_bound(model, row) == pytest.approx(-math.log(chance), abs=1e-8)


def test_bounds_that_ignore_the_token_or_its_mask_are_wrong() -> None:
    """Broken twins, with exact predictions: three that look plausible."""
    world = World(PROCESS, random_probs(K**L, seed=2), L)

    def error(term) -> float:
        found = [bound_integral(world, term, row) for row in world.clean]
        return float((torch.tensor(found).double() + world.probs.log()).abs().max())

    def rated(log_probs: Tensor, x0: Tensor, z: Tensor, t: Tensor, process=PROCESS) -> Tensor:
        found = unmasking_nelbo(log_probs + process.powers.log(), x0, process.power_of(x0), t)
        return torch.where(z == K, found, 0.0)

    def right(x0: Tensor, z: Tensor, t: Tensor) -> Tensor:
        return rated(world.log_full(z, t[:, 0]), x0, z, t)

    def by_cross_entropy(x0: Tensor, z: Tensor, t: Tensor) -> Tensor:
        """The weight -alpha' / (1 - alpha) of each token times its cross-entropy, as in MDLM."""
        at_x0 = world.log_full(z, t[:, 0]).gather(-1, x0[..., None])[..., 0]
        return torch.where(z == K, -PROCESS.power_of(x0) * at_x0 / t, 0.0)

    def leave_one_out(x0: Tensor, z: Tensor, t: Tensor) -> Tensor:
        return rated(world.log_loo(z, t[:, 0]), x0, z, t)

    def same_for_all(x0: Tensor, z: Tensor, t: Tensor) -> Tensor:
        return rated(world.log_full(z, t[:, 0]), x0, z, t, AbsorbingBySymbol(K))

    def general(x0: Tensor, z: Tensor, t: Tensor) -> Tensor:
        return ctmc_nelbo(world.log_loo(z, t[:, 0]), x0, z, t, PROCESS)

    assert error(right) < 1e-6
    assert error(general) < 1e-6
    for twin in (by_cross_entropy, leave_one_out, same_for_all):
        assert error(twin) > 0.05, twin


@pytest.mark.parametrize("power", [0.5, 1.0, 3.0])
def test_equal_powers_are_masked_diffusion(power: float) -> None:
    """The clock does not matter for a network that ignores the time."""

    class Timeless(LookupBackbone):
        time_conditioned = True

    plain = Denoiser(Timeless(K, L, 5), Absorbing(K), Subs()).eval()
    log_powers = torch.full((K,), math.log(power), dtype=torch.float64)
    process = AbsorbingBySymbol(K).given_log_powers(log_powers)
    for kind in KINDS:
        model = Denoiser(Timeless(K, L, 5), process, kind).eval()
        for row in ROWS:
            wanted = enumerated_nelbo(plain, row)
            assert continuous_bound(model, row) == pytest.approx(wanted, abs=1e-8)


# Objectives and estimators


@dataclass(frozen=True, kw_only=True)
class Given(CounterNoise):
    """The time of each row and both of its mask patterns, instead of noise."""

    seed: int = 0
    time: Tensor
    first: Tensor
    second: Tensor

    def uniform(self, index: Tensor, length: int, *, stream: int | Tensor) -> Tensor:
        kind = int(torch.as_tensor(stream).flatten()[0]) % 16
        if kind == TIME_STREAM:
            return self.time[index, None].expand(-1, length)
        masks = {MASK_STREAM: self.first, SECOND_MASK_STREAM: self.second}[kind]
        return torch.where(masks[index], 0.0, 1 - 1e-16).double()


def enumerated(objective, model: Denoiser, x: Tensor) -> Tensor:
    """The expectation of an objective over times and both mask patterns, differentiable."""
    process = model.process
    assert isinstance(process, TokenScheduled)
    u, weight = ends_quadrature()
    t, _ = process.time_at(u)
    masks = all_sequences(2, L).bool()
    pairs = torch.tensor(list(itertools.product(range(len(masks)), repeat=2)))
    first, second = (masks[pairs[:, i]].repeat(len(u), 1) for i in (0, 1))
    times = t.repeat_interleave(len(pairs))
    masked = (times[:, None] ** process.power_of(x[None])[0]).detach()
    chance = weight.repeat_interleave(len(pairs))
    for part in (first, second):
        chance = chance * torch.where(part, masked, 1 - masked).prod(dim=-1)
    noise = Given(time=u.repeat_interleave(len(pairs)), first=first, second=second)
    terms = objective.terms(model, ones(x.expand(len(times), -1)), noise)
    return (chance * terms.sum(dim=-1)).sum()


@by_kind
def test_value_and_gradient_of_the_objective_are_those_of_the_bound(kind) -> None:
    """By the powers and by the weights of the network."""
    model = learned(kind)
    for row in ROWS[1::3]:
        wanted = differentiable_bound(model, model.process, row)
        found = enumerated(TokenScheduleNELBO(), model, row)
        assert found.item() == pytest.approx(wanted.item(), abs=1e-9)
        parameters = [model.log_powers, model.backbone.table]
        exact, mine = (torch.autograd.grad(value, parameters) for value in (wanted, found))
        for one, other in zip(exact, mine, strict=True):
            assert one.abs().max() > 0.1
            assert (one - other).abs().max() < 1e-8


def test_the_derivative_by_the_powers_is_that_of_the_function() -> None:
    model, row, small = learned(LeaveOneOut()), torch.tensor([0, 2]), 1e-4
    (slope,) = torch.autograd.grad(
        differentiable_bound(model, model.process, row), model.log_powers
    )
    for k in range(K):
        ends = []
        for sign in (-1, 1):
            moved = LOG_POWERS.clone()
            moved[k] += sign * small
            process = AbsorbingBySymbol(K).given_log_powers(moved)
            ends.append(continuous_bound(arbitrary(LeaveOneOut(), process), row))
        assert float(slope[k]) == pytest.approx((ends[1] - ends[0]) / (2 * small), abs=1e-5)


@pytest.mark.parametrize("twin", ["no score", "one pattern"])
def test_gradients_without_the_distribution_of_the_noise_are_wrong(twin, monkeypatch) -> None:
    """Broken twins: without REINFORCE, and with one pattern as both draws."""
    model, row = learned(LeaveOneOut()), torch.tensor([0, 2])
    if twin == "no score":
        noise = AbsorbingBySymbol.log_noise
        monkeypatch.setattr(AbsorbingBySymbol, "log_noise", lambda *args: noise(*args).detach())
    else:
        monkeypatch.setattr("seqdiff.objectives.token_schedules.SECOND_MASK_STREAM", MASK_STREAM)
    wanted = differentiable_bound(model, model.process, row)
    found = enumerated(TokenScheduleNELBO(), model, row)
    if twin == "no score":
        assert found.item() == pytest.approx(wanted.item(), abs=1e-9)
    exact, mine = (torch.autograd.grad(value, model.log_powers)[0] for value in (wanted, found))
    assert (exact - mine).abs().max() > 0.1


def test_objectives_with_fixed_powers_and_the_estimator_have_the_mean_of_the_bound() -> None:
    model, row = arbitrary(LeaveOneOut()), torch.tensor([2, 0])
    wanted = continuous_bound(model, row)
    with torch.no_grad():
        assert float(enumerated(ContinuousNELBO(), model, row)) == pytest.approx(wanted, abs=1e-9)
    u, weight = ends_quadrature()
    place, slope = noise_fraction(u)
    t, _ = PROCESS.time_at(place)
    masks = all_sequences(2, L).bool()
    total = 0.0
    for mask in masks:
        masked = t[:, None] ** PROCESS.powers[row]
        chance = torch.where(mask, masked, 1 - masked).prod(dim=-1)
        draws = torch.where(mask, 0.0, 1 - 1e-16).double().expand(len(t), -1)
        rows = ones(row.expand(len(t), -1))
        with torch.no_grad():
            terms = TimeIntegral(2).terms_at(model, rows, place, slope, draws)
        total += float((weight * chance * terms.sum(dim=-1)).sum())
    assert total == pytest.approx(wanted, abs=1e-6)


def test_terms_outside_the_loss_mask_are_zero_and_context_is_given() -> None:
    model = learned(LeaveOneOut())
    rows = ROWS.clone()
    counted = torch.tensor([[True, False]]).expand(len(rows), -1)
    rows[0, 1] = K
    terms = TokenScheduleNELBO().terms(
        model, Batch(rows, counted, torch.arange(len(rows))), CounterNoise(1)
    )
    assert not terms[:, 1].any()
    assert terms.isfinite().all()


# Learned powers


def test_what_learns_the_powers_gives_them_to_every_part() -> None:
    model, fixed = learned(LeaveOneOut()), arbitrary(LeaveOneOut())
    for sampler in (AncestralSampler(num_steps=3), TauLeapingSampler(num_steps=3)):
        ours, theirs = (chain(sampler, one, L)[-1] for one in (model, fixed))
        assert distance(ours, theirs) < 1e-12
    row = torch.tensor([2, 0])
    assert continuous_bound(model, row) == pytest.approx(continuous_bound(fixed, row), abs=1e-12)
    again = BySymbolDenoiser(Drifting(3), AbsorbingBySymbol(K)).eval()
    assert torch.equal(again.process.powers, torch.ones(K).double())
    again.load_state_dict({n: w.float() for n, w in model.state_dict().items()})
    assert torch.allclose(again.process.powers, PROCESS.powers)
    assert again.process == PROCESS, "the powers are weights of the model"


def test_objectives_that_would_not_train_the_powers_are_errors() -> None:
    model, fixed = learned(LeaveOneOut()), arbitrary(LeaveOneOut())
    for objective in (ContinuousNELBO(), DiscreteNELBO(4), CrossEntropy()):
        with pytest.raises(ValueError, match=r"absorbing-by-symbol .* choose TokenScheduleNELBO"):
            objective.check(model)
    TokenScheduleNELBO().check(model)
    ContinuousNELBO().check(fixed)
    assert validation_objective(TokenScheduleNELBO(), model) == ContinuousNELBO(Sobol())
    with pytest.raises(ValueError, match=r"got tweedie; choose from ancestral, .*tau_leaping"):
        TweedieSampler().check_fit(model)


def test_discrete_kl_of_one_token_is_its_likelihood_on_any_grid() -> None:
    """A single token has no gap, since its exact step is known."""
    probs = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
    for count in (1, 3):
        for x in range(K):
            total = 0.0
            for t, s in itertools.pairwise(equal_steps(count)):
                clean, hidden = torch.tensor([x]), torch.tensor([K])
                ends = [torch.tensor([time], dtype=torch.float64) for time in (s, t)]
                kl = discrete_kl(probs.log()[None], clean, hidden, *ends, PROCESS)
                total += t ** float(PROCESS.powers[x]) * float(kl)
            assert total == pytest.approx(-math.log(probs[x]), abs=1e-10)

"""The bound of Gaussian diffusion by quadrature, with the exact posterior as the network."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from seqdiff import losses
from seqdiff.denoiser.discrete import Denoiser
from seqdiff.denoiser.gaussian import GaussianDenoiser, LearnedSchedule, Level
from seqdiff.likelihood import (
    GaussianIntegral,
    StratifiedK,
    evaluate,
    fit,
    usual_contrast,
    usual_estimator,
)
from seqdiff.objectives import ContinuousNELBO, CrossEntropy, GaussianVLB, validation_objective
from seqdiff.objectives.gaussian import _CONDITIONED
from seqdiff.objectives.time_sampling import Sobol
from seqdiff.process import Gaussian, Uniform
from seqdiff.process.gaussian import posterior, scales
from seqdiff.rng import CONDITIONING_STREAM, CounterNoise
from seqdiff.samplers import AncestralSampler, ClassifierFree, Conjoined
from seqdiff.types import Batch, Inputs
from tests.gaussian_worlds import (
    ExactNetwork,
    bound,
    coin_world,
    decoder_gap,
    exact_world,
    final_kls,
    noisy_row,
    planar_world,
    rows_of,
)

COIN = torch.tensor([0.8, 0.2], dtype=torch.float64)
PLANE = (0.6, 0.3, 0.1)
ACCURACY = 1e-8


def _plane_gap() -> float:
    """Excess of the bound over its closed form, for the third of three symbols in the plane."""
    world = planar_world(PLANE, ends=(-2.0, 3.0))
    differences, _ = final_kls(world, torch.tensor(PLANE, dtype=torch.float64), 101)
    expected = -math.log(PLANE[2]) + float(differences[2])
    return abs(sum(bound(world, (2,), points=61, times=24)) - expected)


def test_value_of_the_coin():
    world = coin_world()
    differences, _ = final_kls(world, COIN, 401)
    for x in (0, 1):
        total = sum(bound(world, (x,), points=241, times=48))
        assert total == pytest.approx(-math.log(COIN[x]) + float(differences[x]), abs=ACCURACY)
        if x == 0:
            assert total == pytest.approx(0.224183, abs=5e-7)


def test_symbols_in_the_plane():
    """Two coordinates, so that their sum differs from their mean."""
    assert _plane_gap() < ACCURACY


def _no_half(found: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda *args: 2 * found(*args)


def _mean_of_coordinates(found: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda predicted, clean, level: found(predicted, clean, level) / clean.shape[-1]


@pytest.mark.parametrize("twin", [_no_half, _mean_of_coordinates])
def test_broken_integrands_miss_the_bound(twin: Callable, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(losses, "gaussian_nelbo", twin(losses.gaussian_nelbo))
    assert _plane_gap() > 0.1


def test_decoder_without_the_evidence_misses_the_bound(monkeypatch: pytest.MonkeyPatch):
    def blind(denoiser: GaussianDenoiser, batch: Batch, inputs: object, weight: Tensor) -> Tensor:
        with monkeypatch.context() as patch:
            patch.setattr(GaussianDenoiser, "_evidence", lambda *args: 0.0)
            return losses.gaussian_reconstruction(denoiser, batch, inputs, weight)

    monkeypatch.setattr("tests.gaussian_worlds.gaussian_reconstruction", blind)
    assert _plane_gap() > 0.1


def test_slope_of_another_curve_misses_the_bound(monkeypatch: pytest.MonkeyPatch):
    """g' = h', which ignores the distance of the ends."""

    def wrong(schedule: LearnedSchedule, shape: Tensor, slope: Tensor) -> Level:
        first, last = schedule.ends
        return Level(first + (last - first) * shape, slope)

    monkeypatch.setattr(LearnedSchedule, "between_ends", wrong)
    assert _plane_gap() > 0.1


def test_expectation_over_two_dependent_positions():
    """H + KL(p_1 || N), plus the cost of decoding positions separately: .003 here."""
    joint = torch.tensor([[0.5, 0.1], [0.15, 0.25]], dtype=torch.float64)
    vectors = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)

    def expected_bound(known: torch.Tensor) -> float:
        world = exact_world(known, vectors, (-1.0, 4.0))
        rows = [(0, 0), (0, 1), (1, 0), (1, 1)]
        return sum(float(joint[x]) * sum(bound(world, x, points=53, times=24)) for x in rows)

    world = exact_world(joint, vectors, (-1.0, 4.0))
    _, last = final_kls(world, joint, 81)
    gap = decoder_gap(world, joint, 81)
    entropy = -float((joint * joint.log()).sum())
    found = expected_bound(joint)
    assert found == pytest.approx(entropy + last + gap, abs=ACCURACY)
    assert gap > 1e-3
    ignorant = expected_bound(joint.sum(1)[:, None] * joint.sum(0))
    assert ignorant > found + 0.05, "a network that ignores the other position costs more"


def _bend(schedule: LearnedSchedule, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        schedule.log_weights += 1.5 * torch.randn(64, generator=generator)
        schedule.centres += 0.2 * torch.randn(64, generator=generator)


def test_integral_does_not_depend_on_the_schedules_shape():
    straight, bent = coin_world(), coin_world()
    _bend(bent.schedule, 1)
    half = torch.tensor(0.5, dtype=torch.float64)
    middles = [float(world.schedule(half).gamma.detach()) for world in (straight, bent)]
    assert abs(middles[0] - middles[1]) > 0.2
    parts = [bound(world, (1,), points=241, times=96) for world in (straight, bent)]
    assert parts[0] == pytest.approx(parts[1], abs=ACCURACY)


def test_schedule_is_monotone_between_its_ends():
    schedule = LearnedSchedule(-3.0, 6.0).double()
    start = schedule(torch.linspace(0, 1, 50, dtype=torch.float64)).gamma
    assert (start - torch.linspace(-3, 6, 50)).abs().max() < 0.1, "almost straight at first"
    _bend(schedule, 0)
    t = torch.linspace(0, 1, 500, dtype=torch.float64, requires_grad=True)
    gamma, slope = schedule(t)
    ends = gamma[[0, -1]].tolist()
    assert ends == pytest.approx([-3.0, 6.0], abs=1e-12)
    assert (gamma.diff() > 0).all() and (slope > 0).all()
    (numeric,) = torch.autograd.grad(gamma.sum(), t)
    assert torch.allclose(slope, numeric, rtol=1e-10)


def test_single_precision_weights_give_a_double_precision_schedule():
    schedule = LearnedSchedule(-3.0, 6.0)
    t = torch.tensor([0.5, 0.5 + 1e-10], dtype=torch.float64)
    gamma, slope = schedule(t)
    assert float(gamma.detach().diff()) == pytest.approx(float(slope[0].detach()) * 1e-10, rel=1e-4)


def test_network_of_zero_is_the_posterior_of_one_token_under_a_flat_prior():
    size, gamma = 5, 0.7
    flat = torch.full((size,), 1 / size, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(size, 3, generator=generator, dtype=torch.float64)
    world = exact_world(flat, vectors)
    units = vectors / vectors.norm(dim=-1, keepdim=True)
    assert torch.allclose(world.vectors, units), "rows have norm 1"
    z = torch.randn(1, 3, generator=generator, dtype=torch.float64)
    signal, spread = math.sqrt(1 / (1 + math.exp(gamma))), math.sqrt(1 / (1 + math.exp(-gamma)))
    normal = torch.distributions.Normal(signal * units, spread)
    expected = normal.log_prob(z).sum(dim=-1).log_softmax(dim=-1)
    inputs = noisy_row(world, z, gamma)
    assert torch.allclose(world.log_probs(inputs)[0, 0], expected)
    mean = world.mean(world.log_probs(inputs))[0, 0]
    assert torch.allclose(mean, expected.exp() @ units)


def test_posterior_is_bayes_rule():
    """q(z_t | z_s) q(z_s | e), normalised on a grid."""
    early, late = (torch.tensor(g, dtype=torch.float64) for g in (-1.0, 1.5))
    (signal_s, noise_s), (signal_t, noise_t) = scales(early), scales(late)
    clean, z = 0.8, -0.4
    grid = torch.linspace(-8, 8, 8001, dtype=torch.float64)
    ratio = signal_t / signal_s
    step = (noise_t**2 - (ratio * noise_s) ** 2).sqrt()
    density = (
        -(((z - ratio * grid) / step) ** 2) / 2 - ((grid - signal_s * clean) / noise_s) ** 2 / 2
    ).softmax(dim=0)
    mean = density @ grid
    spread = (density @ (grid - mean) ** 2).sqrt()
    found = posterior(torch.tensor([z]).double(), torch.tensor([clean]).double(), early, late)
    assert torch.allclose(found[0][0], mean) and torch.allclose(found[1][0], spread)


def _gradients(world: GaussianDenoiser, batch: Batch, noise: CounterNoise) -> dict[str, Tensor]:
    world.zero_grad()
    GaussianVLB().terms(world, batch, noise).sum().backward()
    return {name: p.grad.clone() for name, p in world.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("x", [(1,), (1, 0)], ids=["one token", "two tokens"])
def test_shape_of_the_schedule_is_trained_on_the_squared_loss(x: tuple[int, ...]):
    """The shape has the gradients of half the squared nats over tokens; the rest, of the bound.

    The twin does not divide by the tokens of a row.
    """
    world, noise, length = planar_world(PLANE), CounterNoise(3), len(x)
    if length == 2:
        joint = torch.tensor(PLANE, dtype=torch.float64)[:, None] * (1 + torch.eye(3))
        world = exact_world(joint / joint.sum(), world.vectors.detach())
    _bend(world.schedule, 2)
    for parameter in world.parameters():
        parameter.requires_grad_(True)
    batch = rows_of(x, 64)
    found = _gradients(world, batch, noise)
    t, one = GaussianVLB().time_sampler.sample(batch.index, noise=noise)
    level = world.schedule(t)
    # the objective's noise, derived from its inputs
    normals = torch.special.ndtri(noise.uniform(batch.index, 2 * length, stream=1))
    normals = normals.unflatten(-1, (length, 2))
    inputs = world.corrupt(batch, level.gamma, normals)
    nats = losses.gaussian_terms(world, batch, inputs, level, one).sum(dim=-1)
    shape = [p for n, p in world.schedule.named_parameters() if n != "ends"]
    wanted = torch.autograd.grad((nats**2).sum() / (2 * length), shape, retain_graph=True)
    plain = torch.autograd.grad(nats.sum(), [*shape, world.schedule.ends])
    names = [n for n, _ in world.schedule.named_parameters() if n != "ends"]
    for name, gradient, other in zip(names, wanted, plain, strict=False):
        assert torch.allclose(found[f"schedule.{name}"], gradient), name
        assert not torch.allclose(gradient, other, rtol=0.1), "or the test shows nothing"
    assert found["schedule.ends"].abs().min() > 0


def test_ends_are_trained_on_the_bound():
    """The mean gradient of the ends is the derivative of the bound, by quadrature."""
    world, step = coin_world(ends=(-1.0, 3.0)), 1e-4
    rows = rows_of((0,), 40_000)
    gradient = _gradients(world, rows, CounterNoise(0))["schedule.ends"] / len(rows.tokens)
    for end in (0, 1):
        values = []
        for sign in (1, -1):
            ends = [-1.0, 3.0]
            ends[end] += sign * step
            values.append(sum(bound(coin_world(ends=tuple(ends)), (0,), points=121, times=32)))
        derivative = (values[0] - values[1]) / (2 * step)
        # the estimate has a standard error of about .002
        assert float(gradient[end]) == pytest.approx(derivative, abs=0.015)


def test_given_and_unknown_tokens_carry_no_noise_and_cost_nothing():
    vectors = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    joint = torch.full((2, 2, 2), 1 / 8, dtype=torch.float64)
    world = exact_world(joint, vectors)
    tokens = torch.tensor([[0, 1, 2]])
    batch = Batch(tokens, torch.tensor([[True, False, True]]), torch.tensor([5]))
    gamma = torch.zeros(1, dtype=torch.float64)
    inputs = world.corrupt(batch, gamma, torch.ones(1, 3, 1, dtype=torch.float64))
    assert inputs.tokens.tolist() == [[2, 1, 2]], "the counted one is hidden, the others as given"
    assert inputs.noisy.tolist() == [[True, False, False]]
    assert (inputs.z[0, :, 0] != 0).tolist() == [True, False, False]
    entered = world._read_in(inputs)
    with torch.no_grad():
        world.given += 7
    marked = world._read_in(inputs)
    assert float(entered[0, 1]) == -1.0, "as a noisy embedding without noise"
    assert (marked - entered).flatten().tolist() == [0.0, 7.0, 0.0]
    assert float(entered[0, 2]) == 0.0
    terms = GaussianVLB().terms(world, batch, CounterNoise(0))
    assert (terms != 0).tolist() == [[True, False, False]]


def test_embeddings_enter_with_coordinates_of_mean_square_one():
    """In two dimensions; the twins ignore that a row of norm 1 has mean square 1/2."""
    world, z = planar_world(PLANE), torch.tensor([[0.3, -0.8]], dtype=torch.float64)
    clean = world.vectors[1:2]
    given = noisy_row(world, torch.zeros_like(z), 0.0, torch.tensor([[1]]))
    assert torch.allclose(world._read_in(given)[0], clean * math.sqrt(2))
    assert torch.allclose(world._read_in(noisy_row(world, clean, -40.0))[0], clean * math.sqrt(2))
    assert torch.allclose(world._read_in(noisy_row(world, z, 40.0))[0], z), "noise alone"
    assert torch.allclose(world._read_in(noisy_row(world, z, 0.0))[0], z / math.sqrt(3 / 4))


@pytest.mark.parametrize("dim", [1, 2])
def test_self_conditioning_takes_a_first_pass_of_the_chosen_rows(dim: int):
    make, p = (coin_world, (0.8, 0.2)) if dim == 1 else (planar_world, PLANE)
    world = make(p, self_conditioning=True)
    seen: list[Tensor] = []
    network = world.backbone
    assert isinstance(network, ExactNetwork)
    network.forward_hooked = None
    original = ExactNetwork.body

    def body(self: ExactNetwork, h: Tensor, inputs: Inputs, layer: int | None = None) -> Tensor:
        seen.append(h)
        return original(self, h, inputs, layer)

    network.body = body.__get__(network)
    with torch.no_grad():
        world.recall.weight.copy_(torch.eye(dim))
    z = torch.tensor([[0.3, -0.8][:dim]], dtype=torch.float64)
    inputs = noisy_row(world, z, 1.0)
    plain = noisy_row(world, z, 1.0)
    plain.conditioned = torch.tensor([False])
    once = world(plain)
    assert len(seen) == 1
    seen.clear()
    twice = world(inputs)
    assert len(seen) == 2 and not seen[0].requires_grad
    shown = seen[1] - seen[0]
    predicted = world.mean(once)[0, 0] * math.sqrt(dim)
    assert torch.allclose(shown[0, 0], predicted), "the first prediction, scaled"
    assert torch.equal(once, twice), "one position: the network ignores what it is shown"
    assert world.evaluations(inputs).tolist() == [2] and world.evaluations_per_call == 2


def test_self_conditioning_shows_a_quarter_of_the_rows_in_training_and_all_in_evaluation():
    world = coin_world(self_conditioning=True)
    counts: list[int] = []
    original = GaussianDenoiser._recalled

    def counted(self: GaussianDenoiser, inputs: object, h: Tensor) -> Tensor:
        chosen = inputs.conditioned
        counts.append(len(h) if chosen is None else int(chosen.sum()))
        return original(self, inputs, h)

    world._recalled = counted.__get__(world)
    batch, noise = rows_of((0,), 4096), CounterNoise(1)
    GaussianVLB().terms(world, batch, noise)
    chosen = noise.uniform(batch.index, 1, stream=CONDITIONING_STREAM)[:, 0] < _CONDITIONED
    assert counts[0] == 4096
    counts.clear()
    GaussianVLB().terms(world.train(), batch, noise)
    assert counts[0] == int(chosen.sum())
    assert abs(counts[0] - 1024) < 140, "five standard errors"
    result = evaluate(world.eval(), [rows_of((0,), 2)], estimator=GaussianIntegral(evaluations=4))
    assert result.nfe.tolist() == [12, 12], "four draws and two at t = 0, twice"


def test_first_pass_has_no_gradient():
    """In the network; the loss depends on it only through the second pass."""
    vectors = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    joint = torch.full((2, 2), 0.25, dtype=torch.float64)
    world = exact_world(joint, vectors, self_conditioning=True)
    with torch.no_grad():
        world.recall.weight.fill_(0.5)
    batch, noise = rows_of((0, 1), 4), CounterNoise(0)
    found = _gradients(world, batch, noise)["enter.weight"]
    shown: list[Tensor] = []
    original = GaussianDenoiser._recalled

    def constant(self: GaussianDenoiser, inputs: object, h: Tensor) -> Tensor:
        shown.append(original(self, inputs, h).detach())
        return shown[-1]

    world._recalled = constant.__get__(world)
    assert torch.allclose(_gradients(world, batch, noise)["enter.weight"], found)
    assert shown[0].abs().max() > 0.1


def test_noise_of_a_row_does_not_depend_on_padding_or_batch():
    vectors = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    world = exact_world(torch.full((2, 2), 0.25, dtype=torch.float64), vectors)
    longer = exact_world(torch.full((2, 2, 2), 0.125, dtype=torch.float64), vectors)
    short = rows_of((0, 1), 3)
    tokens = torch.tensor([[0, 1, 2]]).expand(3, -1)
    padding = tokens == 2
    padded = Batch(tokens, ~padding, torch.arange(3), padding=padding)
    noise = CounterNoise(4)
    terms = GaussianVLB(Sobol()).terms(world, short, noise)
    assert torch.allclose(GaussianVLB(Sobol()).terms(longer, padded, noise)[:, :2], terms)
    alone = GaussianVLB().terms(world, short.take(torch.tensor([2])), noise)
    assert torch.allclose(GaussianVLB().terms(world, short, noise)[2:], alone)


def test_only_what_is_for_gaussian_diffusion_takes_it():
    world, batch = coin_world(), rows_of((0,), 1)
    for wrong in (ContinuousNELBO(), CrossEntropy()):
        with pytest.raises(ValueError, match=r"RunConfig.objective must fit .* choose GaussianVLB"):
            wrong.check(world)
    GaussianVLB().check(world)
    assert validation_objective(GaussianVLB(Sobol()), world) == GaussianVLB(Sobol())
    assert isinstance(usual_estimator(world), GaussianIntegral)
    assert isinstance(usual_contrast(world), GaussianIntegral)
    with pytest.raises(ValueError, match=r"must be gaussian-integral for .*, got stratified-k"):
        evaluate(world, [batch], estimator=StratifiedK(8))
    blank = world.process.blank((1, 1))
    with pytest.raises(ValueError, match=r"must work with .*, got ancestral; choose from gaussian"):
        AncestralSampler().sample(world, blank, generator=torch.Generator())
    with pytest.raises(ValueError, match=r"Conjoined.denoiser must be given symbols"):
        Conjoined(world, [1, 0])
    with pytest.raises(ValueError, match=r"ClassifierFree.denoiser must be given symbols"):
        ClassifierFree(world, 0)
    with pytest.raises(ValueError, match=r"GaussianDenoiser.inputs must be NoisyEmbeddings"):
        world.log_probs(Inputs(blank, torch.ones(1)))
    with pytest.raises(ValueError, match="must have discrete noisy symbols, got gaussian"):
        world.log_loo(noisy_row(world, torch.zeros(1, 1, dtype=torch.float64), 0.0))


def test_parts_that_do_not_fit():
    vectors = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    process = Gaussian(2, 1)
    network = ExactNetwork(COIN, vectors, process)
    with pytest.raises(ValueError, match="build a GaussianDenoiser"):
        Denoiser(network, process)
    network.strands = 2
    with pytest.raises(ValueError, match=r"must read one strand.*set variant=ph"):
        GaussianDenoiser(network, process)
    network.strands, network.time_conditioned = 1, False
    with pytest.raises(ValueError, match="must be told the noise level"):
        GaussianDenoiser(network, process)
    with pytest.raises(ValueError, match=r"Gaussian.dim must be at least 1"):
        Gaussian(2, 0)
    uniform = Uniform(2)
    network.time_conditioned = True
    with pytest.raises(ValueError, match="must be time-integral or discrete-steps"):
        fit(GaussianIntegral(), Denoiser(network, uniform))

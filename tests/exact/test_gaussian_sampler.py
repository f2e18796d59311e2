"""The sampler of Gaussian diffusion: constraints, distribution, cost."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from seqdiff.backbones import Transformer
from seqdiff.denoiser.gaussian import GaussianDenoiser, NoisyEmbeddings
from seqdiff.process import Gaussian
from seqdiff.samplers import GaussianSampler
from tests.gaussian_worlds import coin_world, planar_world


@pytest.fixture(scope="module")
def random_model() -> GaussianDenoiser:
    """A small transformer with random weights, none of them zero."""
    generator = torch.Generator().manual_seed(0)
    network = Transformer(
        16, 1, 2, num_embeddings=5, num_logits=4, dropout=0.0, cond_dim=8, time_conditioned=True
    )
    model = GaussianDenoiser(network, Gaussian(4, 3)).double().eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if not name.startswith("schedule"):
                size = 1.0 if name.startswith("table") else 0.1
                weight.copy_(size * torch.randn(weight.shape, generator=generator).double())
    return model


def _sample(model: GaussianDenoiser, x_init: Tensor, seeds: list[int], **options: object) -> Tensor:
    sampler = GaussianSampler(num_steps=6)
    return sampler.sample(model, x_init, seeds=torch.tensor(seeds), **options).tokens


def test_given_tokens_stay_and_are_shown_without_noise(random_model: GaussianDenoiser):
    seen: list[NoisyEmbeddings] = []
    x_init = torch.tensor([[4, 2, 4, 0, 4]])

    def watch(module: object, args: tuple) -> None:
        seen.append(args[0])

    handle = random_model.register_forward_pre_hook(watch)
    drawn = _sample(random_model, x_init, [3])
    handle.remove()
    assert drawn[0, [1, 3]].tolist() == [2, 0]
    assert int(drawn.max()) < 4
    assert len(seen) == 7
    for inputs in seen:
        assert inputs.tokens.tolist() == x_init.tolist()
        assert inputs.noisy.tolist() == (x_init == 4).tolist()
        assert (inputs.z[0, [1, 3]] == 0).all()
    gammas = [float(inputs.gamma[0]) for inputs in seen]
    assert gammas == sorted(gammas, reverse=True)
    assert (gammas[0], gammas[-1]) == pytest.approx((6.0, -3.0))


def test_samples_do_not_depend_on_the_batch_or_on_padding(random_model: GaussianDenoiser):
    x_init = torch.tensor([[4, 2, 4, 4], [4, 4, 4, 1], [4, 4, 4, 4]])
    together = _sample(random_model, x_init, [5, 6, 7])
    assert torch.equal(_sample(random_model, x_init[1:2], [6]), together[1:2])
    assert torch.equal(_sample(random_model, x_init.flip(0), [7, 6, 5]), together.flip(0))
    padded = torch.nn.functional.pad(x_init, (0, 2), value=4)
    padding = torch.zeros_like(padded, dtype=torch.bool)
    padding[:, 4:] = True
    drawn = _sample(random_model, padded, [5, 6, 7], padding=padding)
    assert torch.equal(drawn[:, :4], together) and (drawn[:, 4:] == 4).all()
    assert not torch.equal(_sample(random_model, x_init, [8, 9, 10]), together)


def test_only_allowed_symbols_are_drawn(random_model: GaussianDenoiser):
    x_init = torch.full((64, 2), 4)
    allowed = torch.ones(64, 2, 4, dtype=torch.bool)
    allowed[:, 0, :3] = False
    allowed[:, 1, 0] = False
    drawn = _sample(random_model, x_init, list(range(64)), allowed=allowed)
    assert (drawn[:, 0] == 3).all()
    assert set(drawn[:, 1].tolist()) == {1, 2, 3}


def test_cost_and_callback(random_model: GaussianDenoiser):
    steps: list[int] = []
    x_init = torch.tensor([[4, 1], [3, 2]])
    found = GaussianSampler(num_steps=3).sample(
        random_model,
        x_init,
        seeds=torch.tensor([1, 2]),
        callback=lambda step, x_t: steps.append(step) or None,
    )
    assert steps == [1, 2, 3, 4]
    assert found.nfe.tolist() == [4, 0], "a row with nothing to fill is not evaluated"
    twice = coin_world(self_conditioning=True)
    blank = twice.process.blank((1, 1))
    drawn = GaussianSampler(num_steps=3).sample(twice, blank, seeds=torch.tensor([0]))
    assert drawn.nfe.tolist() == [8]
    full = GaussianSampler(num_steps=3).sample(random_model, x_init[1:], seeds=torch.tensor([0]))
    assert full.tokens.tolist() == [[3, 2]]


def exact_distribution(p: tuple[float, ...], gammas: Tensor) -> Tensor:
    """Distribution of ancestral steps through these levels with the coin's exact model, on a grid.

    Computed from the reverse process: z_s is normal around its posterior mean.
    """
    grid = torch.linspace(-6, 6, 601, dtype=torch.float64)
    prior = torch.tensor(p, dtype=torch.float64).log()
    vectors = torch.tensor([1.0, -1.0], dtype=torch.float64)

    def posterior(gamma: Tensor) -> Tensor:
        signal2, noise2 = torch.sigmoid(-gamma), torch.sigmoid(gamma)
        squared = (grid[:, None] - signal2.sqrt() * vectors) ** 2
        return (prior - squared / (2 * noise2)).softmax(dim=-1)

    density = (-(grid**2) / 2).softmax(dim=0)
    for now, then in pairwise(gammas):
        a_t, a_s = torch.sigmoid(-now).sqrt(), torch.sigmoid(-then).sqrt()
        mean = posterior(now) @ vectors
        ratio = (then - now).exp()
        center = a_s / a_t * ratio * grid + a_s * (1 - ratio) * mean
        spread = (torch.sigmoid(then) * (1 - ratio)).sqrt()
        kernel = (-((grid[None] - center[:, None]) ** 2) / (2 * spread**2)).softmax(dim=-1)
        density = density @ kernel
    return density @ posterior(gammas[-1])


def test_exact_distribution_tends_to_the_models_like_one_over_the_number_of_steps():
    """For the computed distribution, with which the next test compares the code."""
    p = (0.8, 0.2)
    ends = (torch.linspace(10, -3, n + 1, dtype=torch.float64) for n in (8, 16, 32, 64))
    gaps = [abs(float(exact_distribution(p, gammas)[0]) - p[0]) for gammas in ends]
    assert gaps[-1] < 0.01
    assert all(1.7 < a / b < 2.3 for a, b in pairwise(gaps))


@pytest.mark.parametrize("temperature", [1.0, 0.8])
def test_one_step_of_the_code_is_the_written_kernel(
    temperature: float, monkeypatch: pytest.MonkeyPatch
):
    """Without randomness: normals of 0 give the kernel's mean, of 1 its mean plus spread."""
    world = coin_world(ends=(-3.0, 10.0))
    drawn: list[Tensor] = []
    given = iter([0.7, 0.0, 0.7, 1.0])

    def normals(self: object, where: Tensor, dim: int, step: int) -> Tensor:
        return torch.full((int(where.sum()), dim), next(given), dtype=torch.float64)

    monkeypatch.setattr("seqdiff.samplers.SeededDraws.normals", normals)
    original = GaussianDenoiser.forward

    def watch(self: GaussianDenoiser, inputs: NoisyEmbeddings, where: Tensor) -> Tensor:
        drawn.append(inputs.z.flatten())
        return original(self, inputs, where)

    monkeypatch.setattr(GaussianDenoiser, "forward", watch)
    sampler = GaussianSampler(num_steps=1, score_temperature=temperature)
    for _ in range(2):
        sampler.sample(world, world.process.blank((1, 1)), seeds=torch.tensor([0]))
    start, middle, _, last = drawn
    assert float(start) == 0.7
    gamma_t, gamma_s = torch.tensor(10.0).double(), torch.tensor(-3.0).double()
    a_t, a_s = torch.sigmoid(-gamma_t).sqrt(), torch.sigmoid(-gamma_s).sqrt()
    log_odds = torch.tensor(4.0).double().log() + 2 * a_t * 0.7 / torch.sigmoid(gamma_t)
    mean = torch.tanh(log_odds / 2)
    noise = (0.7 - a_t * mean) / torch.sigmoid(gamma_t).sqrt() / temperature
    clean = (0.7 - torch.sigmoid(gamma_t).sqrt() * noise) / a_t
    ratio = (gamma_s - gamma_t).exp()
    center = a_s / a_t * ratio * 0.7 + a_s * (1 - ratio) * clean
    spread = (torch.sigmoid(gamma_s) * (1 - ratio)).sqrt()
    assert float(middle) == pytest.approx(float(center), rel=1e-6)
    assert float(last) == pytest.approx(float(center + spread), rel=1e-6)


def test_temperature_reshapes_predictions():
    world = planar_world((0.5, 0.3, 0.2))
    blank = world.process.blank((200, 1))
    cold = GaussianSampler(num_steps=8, temperature=0.2).sample(
        world, blank, seeds=torch.arange(200)
    )
    warm = GaussianSampler(num_steps=8).sample(world, blank, seeds=torch.arange(200))
    assert (cold.tokens == 0).float().mean() > (warm.tokens == 0).float().mean() + 0.1


def test_options_out_of_range():
    with pytest.raises(ValueError, match=r"GaussianSampler.score_temperature must be above 0"):
        GaussianSampler(score_temperature=0.0)
    with pytest.raises(ValueError, match=r"GaussianSampler.num_steps must be at least 1"):
        GaussianSampler(num_steps=0)

"""Learning rates, decay groups and averages, value by value."""

import math
from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.optim import AdamW

from seqdiff.backbones import Caduceus, Transformer
from seqdiff.training import OptimConfig, build_optimizer, decay_groups, lr_factor
from seqdiff.training.callbacks import EMA
from seqdiff.training.optim import Muon, muon_matrices


def test_warm_up_then_constant() -> None:
    config = OptimConfig(lr=2.0, warmup_steps=4)
    factors = [lr_factor(config, step, max_steps=10) for step in range(6)]
    assert factors == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_warm_up_then_cosine_to_the_floor() -> None:
    config = OptimConfig(lr=2.0, warmup_steps=2, schedule="cosine", min_lr=0.5)
    factors = [lr_factor(config, step, max_steps=10) for step in range(12)]
    root = math.sqrt(0.5)
    expected = {2: 1.0, 4: 0.25 + 0.75 * (1 + root) / 2, 6: 0.625, 8: 0.25 + 0.75 * (1 - root) / 2}
    assert factors[:2] == [0.5, 1.0]
    for step, factor in expected.items():
        assert factors[step] == pytest.approx(factor, abs=1e-12)
    assert factors[10] == factors[11] == pytest.approx(0.25)


def test_no_warm_up_starts_at_the_top() -> None:
    assert lr_factor(OptimConfig(schedule="cosine"), 0, max_steps=5) == 1.0
    assert lr_factor(OptimConfig(), 0, max_steps=5) == 1.0


def test_stable_then_linear_to_the_floor() -> None:
    config = OptimConfig(lr=2.0, warmup_steps=2, schedule="wsd", min_lr=0.5, decay_fraction=0.5)
    factors = [lr_factor(config, step, max_steps=10) for step in range(12)]
    assert factors[:7] == [0.5, *[1.0] * 6]
    assert factors[7:] == pytest.approx([0.8125, 0.625, 0.4375, 0.25, 0.25])


@pytest.mark.parametrize("schedule", ["cosine", "wsd"])
def test_the_larger_of_two_fractions_counts(schedule) -> None:
    """A run ends at min_lr whether its steps or its time end it."""
    config = OptimConfig(lr=2.0, schedule=schedule, min_lr=0.5, decay_fraction=1.0)
    by_steps = [lr_factor(config, step, 10) for step in range(11)]
    assert [lr_factor(config, 0, None, step / 10) for step in range(11)] == by_steps
    both = [lr_factor(config, step, 10, 0.3) for step in range(11)]
    assert both == [by_steps[3]] * 3 + by_steps[3:]
    assert lr_factor(config, 0, 10, 1.5) == lr_factor(config, 99, None, 1.0) == 0.25


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"decay_fraction": 0.0}, r"OptimConfig.decay_fraction must be in \(0, 1\], got 0.0"),
        ({"decay_fraction": math.nan}, r"decay_fraction must be in \(0, 1\], got nan"),
        ({"muon_lr": 0.0}, r"OptimConfig.muon_lr must be positive, got 0.0"),
        ({"lr": 0.0}, r"OptimConfig.lr must be positive, got 0.0"),
        ({"lr": math.inf}, r"OptimConfig.lr must be positive, got inf"),
        ({"eps": 0.0}, r"OptimConfig.eps must be positive, got 0.0"),
        ({"betas": (0.9, 1.0)}, r"OptimConfig.betas must be in \[0, 1\), got \(0.9, 1.0\)"),
        ({"betas": (-0.1, 0.9)}, r"OptimConfig.betas must be in \[0, 1\), got \(-0.1, 0.9\)"),
        ({"min_lr": 1.0}, r"OptimConfig.min_lr must be in \[0, lr = 0.0003\], got 1.0"),
        ({"weight_decay": -0.1}, r"weight_decay must be finite and not negative, got -0.1"),
        ({"weight_decay": math.nan}, r"weight_decay must be finite and not negative, got nan"),
        ({"weight_decay": math.inf}, r"weight_decay must be finite and not negative, got inf"),
        ({"warmup_steps": -1}, r"warmup_steps must be finite and not negative, got -1"),
        ({"lr": math.nan}, r"OptimConfig.lr must be positive, got nan"),
        ({"eps": math.nan}, r"OptimConfig.eps must be positive, got nan"),
        ({"betas": (0.9, math.nan)}, r"OptimConfig.betas must be in \[0, 1\), got \(0.9, nan\)"),
        ({"min_lr": math.nan}, r"OptimConfig.min_lr must be in \[0, lr = 0.0003\], got nan"),
        ({"min_lr": 1e-5}, r"must be 0 with the constant schedule, got 1e-05"),
    ],
)
def test_bad_optim(wrong: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        OptimConfig(**wrong)


def test_muon_trains_the_matrices_of_the_layers() -> None:
    """Not those that choose the step sizes, the filters, the embedding or the head."""
    network = Caduceus(8, 2, num_embeddings=5, num_logits=4)
    found = {name.split(".", 2)[2] for name in muon_matrices(network)}
    assert found == {"mixer.in_proj.weight", "mixer.out_proj.weight"}
    other = Transformer(8, 1, 2, num_embeddings=5, num_logits=4, num_signals=1)
    found = {name.removeprefix("blocks.0.") for name in muon_matrices(other)}
    assert found == {"attn_qkv.weight", "attn_out.weight", "mlp.0.weight", "mlp.2.weight"}


def test_one_step_of_muon_and_adamw_is_a_step_of_each() -> None:
    torch.manual_seed(0)
    network = nn.ModuleDict({"layer": nn.Linear(4, 3), "head": nn.Linear(3, 2)}).double()
    twin = deepcopy(network)
    config = OptimConfig(lr=0.1, muon_lr=0.02, weight_decay=0.1, betas=(0.9, 0.95))
    both = build_optimizer(network, config, decay_groups(network), matrices=["layer.weight"])
    muon = Muon([{"params": [twin["layer"].weight], "lr": 0.02}], weight_decay=0.1)
    groups = [
        {"params": [twin["head"].weight], "weight_decay": 0.1},
        {"params": [twin["layer"].bias, twin["head"].bias], "weight_decay": 0.0},
    ]
    adamw = AdamW(groups, lr=0.1, betas=(0.9, 0.95))
    x = torch.randn(5, 4, dtype=torch.float64)
    for _ in range(3):
        for net, optimizers in ((network, [both]), (twin, [muon, adamw])):
            net.zero_grad()
            net["head"](net["layer"](x).tanh()).square().sum().backward()
            for optimizer in optimizers:
                optimizer.step()
    for ours, theirs in zip(network.parameters(), twin.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("shape", [(3, 7), (7, 3), (4, 4)])
def test_muon_maps_the_singular_values_of_the_momentum(shape) -> None:
    """Two steps in float64 by the singular value decomposition, with Nesterov momentum."""
    rng = torch.Generator().manual_seed(0)
    weights, *gradients = torch.randn(3, *shape, generator=rng, dtype=torch.float64)
    matrix = nn.Parameter(weights.clone())
    muon = Muon([{"params": [matrix], "lr": 0.02}], weight_decay=0.1)
    mean = torch.zeros(shape, dtype=torch.float64)
    for gradient in gradients:
        matrix.grad = gradient
        muon.step()
        mean = 0.95 * mean + 0.05 * gradient
        left, values, right = torch.linalg.svd(0.05 * gradient + 0.95 * mean, full_matrices=False)
        values = values / values.square().sum().sqrt()
        for _ in range(5):
            values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
        step = max(1, shape[0] / shape[1]) ** 0.5 * (left * values) @ right
        weights = (1 - 0.02 * 0.1) * weights - 0.02 * step
    torch.testing.assert_close(matrix.detach(), weights, rtol=1e-10, atol=1e-12)


def test_muon_agrees_with_that_of_pytorch() -> None:
    """Which rounds to bfloat16."""
    torch.manual_seed(0)
    ours, theirs = (nn.Linear(6, 4, bias=False) for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    muon = Muon([{"params": [ours.weight], "lr": 0.1}], weight_decay=0.1)
    reference = torch.optim.Muon([theirs.weight], lr=0.1, weight_decay=0.1)
    for _ in range(3):
        ours.weight.grad = torch.randn(4, 6)
        theirs.weight.grad = ours.weight.grad.clone()
        muon.step()
        reference.step()
    torch.testing.assert_close(ours.weight, theirs.weight, rtol=0, atol=0.01)
    assert not torch.equal(ours.weight, theirs.weight)


def test_decay_groups_of_caduceus_by_name() -> None:
    network = Caduceus(8, 2, num_embeddings=5, num_logits=4)
    decayed, plain = decay_groups(network)
    names = [name for name, _ in network.named_parameters()]
    assert sorted(decayed + plain) == sorted(names)
    assert not set(decayed) & set(plain)
    endings = {name.split(".")[-1] for name in plain}
    assert {"A_log", "D", "bias"} <= endings
    assert "embedding.weight" in plain
    assert all(("proj" in name and name.endswith("weight")) or "conv" in name for name in decayed)


def test_a_shared_parameter_is_in_one_group_once() -> None:
    network = nn.ModuleDict({"embedding": nn.Embedding(5, 3), "head": nn.Linear(3, 5)})
    network["head"].weight = network["embedding"].weight
    decayed, plain = decay_groups(network)
    assert decayed == [] and plain == ["embedding.weight", "head.bias"]
    optimizer = build_optimizer(network, OptimConfig(weight_decay=0.1), (decayed, plain))
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.0]


def test_every_rate_reaches_the_optimiser() -> None:
    network = nn.Linear(2, 2)
    config = OptimConfig(lr=0.5, weight_decay=0.25, betas=(0.5, 0.75), eps=0.125)
    groups = build_optimizer(network, config, decay_groups(network)).param_groups
    rates = [{k: g[k] for k in ("lr", "betas", "eps", "weight_decay")} for g in groups]
    shared = {"lr": 0.5, "betas": (0.5, 0.75), "eps": 0.125}
    assert rates == [shared | {"weight_decay": 0.25}, shared | {"weight_decay": 0.0}]


def test_nothing_to_train() -> None:
    frozen = nn.Linear(2, 2).requires_grad_(False)
    with pytest.raises(ValueError, match=r"must have a parameter that requires a gradient"):
        build_optimizer(frozen, OptimConfig(), decay_groups(frozen))


def test_average_follows_the_warm_up_by_hand() -> None:
    """Three updates of a weight with the values 0, 1, 2, 3, and explicit decays."""
    ema = EMA(decay=0.3)
    assert [ema.decay_at(n) for n in (1, 2, 3, 99)] == [2 / 11, 3 / 12, 0.3, 0.3]
    averages, average = [], 0.0
    for update, weight in enumerate((1.0, 2.0, 3.0), start=1):
        d = min(0.3, (1 + update) / (10 + update))
        average = d * average + (1 - d) * weight
        averages.append(average)
    assert follow(ema, [1.0, 2.0, 3.0]) == pytest.approx(averages, abs=1e-6)

    class WithoutWarmUp(EMA):
        def decay_at(self, update: int) -> float:
            return self.decay

    constant = follow(WithoutWarmUp(decay=0.3), [1.0, 2.0, 3.0])
    assert constant != pytest.approx(averages, abs=1e-2), "the broken twin would pass"


def follow(ema: EMA, weights: list[float]) -> list[float]:
    network = nn.Linear(1, 1, bias=False)
    seen = []
    with torch.no_grad():
        network.weight.fill_(0.0)
        ema.start(network)
        for value in weights:
            network.weight.fill_(value)
            ema.update(network)
            seen.append(float(ema.state_dict()["average.weight"]))
    return seen


def test_average_is_kept_in_float32_and_lent_without_loss() -> None:
    network = nn.Linear(1, 1, bias=False, dtype=torch.bfloat16)
    ema = EMA(decay=0.999)
    ema.start(network)
    with torch.no_grad():
        network.weight.fill_(1.0)
    for _ in range(5):
        ema.update(network)
    average = ema.state_dict()["average.weight"].clone()
    assert average.dtype == torch.float32
    ema.apply(network)
    assert torch.equal(network.weight, average.bfloat16())
    ema.restore(network)
    assert torch.equal(network.weight, torch.ones(1, 1, dtype=torch.bfloat16))
    assert torch.equal(ema.state_dict()["average.weight"], average)


@pytest.mark.parametrize("decay", [-0.1, 1.0])
def test_bad_decay(decay: float) -> None:
    with pytest.raises(ValueError, match=r"EMA.decay must be in \[0, 1\)"):
        EMA(decay)

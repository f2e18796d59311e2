"""Costs and gradients of single positions equal those from predictions at all positions.

The slow computation, with predictions at all positions and every weight, is written here; the
results agree up to rounding.
"""

import itertools
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from seqdiff.backbones import AutoregressiveTransformer, Backbone
from seqdiff.denoiser.discrete import Denoiser
from seqdiff.likelihood import BernoulliTime, ChainRule, FixedOrder, StratifiedK, evaluate
from seqdiff.objectives import (
    Autoregressive,
    ContinuousNELBO,
    DiscreteNELBO,
    MaskedLM,
    Objective,
    WeightedMLM,
)
from seqdiff.objectives.time_sampling import TimeSampler, Uniform
from seqdiff.process import Absorbing, LeftToRight
from seqdiff.rng import CounterNoise
from seqdiff.schedules import Cosine
from seqdiff.types import Batch, Inputs
from tests import small_transformers
from tests.exact.test_selective import CLASSES, Whole, caduceus

K, B, L = 4, 6, 9
PROCESS, NOISE, STEPS = Absorbing(K, Cosine()), CounterNoise(5), 3
OBJECTIVES = [
    ContinuousNELBO(),
    DiscreteNELBO(STEPS),
    WeightedMLM(),
    MaskedLM(fraction=0.6, mask_probability=0.5, random_probability=0.2),
    Autoregressive(),
]
every_objective = pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda o: type(o).__name__)


def each_with_its_networks(objectives: list[Objective]) -> pytest.MarkDecorator:
    pairs = [
        pytest.param(name, objective, id=f"{name}-{type(objective).__name__}")
        for name, objective in itertools.product(NETWORKS, objectives)
        if name.startswith("causal") == isinstance(objective, Autoregressive)
    ]
    return pytest.mark.parametrize(("name", "objective"), pairs)


def twin() -> nn.Module:
    torch.manual_seed(0)
    model = AutoregressiveTransformer(12, 2, 2, num_embeddings=K + 1, num_logits=K, max_length=L)
    for parameter in model.parameters():
        parameter.data.add_(0.3 * torch.randn_like(parameter))
    return model.double().eval()


NETWORKS = {
    "transformer": small_transformers.build,
    "transformer, timed": lambda: small_transformers.build(time_conditioned=True),
    "transformer, labels": lambda: small_transformers.build(num_classes=CLASSES),
    "caduceus": lambda: caduceus("ph"),
    "caduceus, both strands, labels": lambda: caduceus("ps, labels"),
    "scores all": lambda: Whole(caduceus("ph")).eval(),
    "causal": twin,
    "causal, scores all": lambda: Whole(twin()).eval(),
}


def batch(labelled: bool = False) -> Batch:
    """With context, unknown symbols that are marked or not, and padding."""
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(K, (B, L), generator=generator)
    tokens[1, 2], tokens[4, :3] = K, K
    loss_mask = tokens < K
    loss_mask[0, :4] = False
    loss_mask[1, 2] = True  # unknown although marked as counted
    padding = torch.arange(L) >= torch.tensor([L, L, 5, 7, L, 1])[:, None]
    loss_mask &= ~padding
    label = torch.arange(B) % CLASSES if labelled else None
    return Batch(tokens, loss_mask, torch.arange(B), label, padding=padding)


class Spy(Denoiser):
    """Records its inputs."""

    def nats(self, inputs, x0, where):
        self.asked = (inputs, where)
        return super().nats(inputs, x0, where)


def spy_on(objective: Objective, backbone: Backbone) -> Spy:
    return Spy(backbone, LeftToRight(K) if isinstance(objective, Autoregressive) else PROCESS)


def slow_terms(objective: Objective, spy: Spy, rows: Batch) -> Tensor:
    """The terms from predictions at all positions, for the network inputs of the objective."""
    inputs, where = spy.asked
    x_t = inputs.tokens
    if spy.backbone.time_conditioned:
        inputs = replace(inputs, sigma=-PROCESS.alpha(inputs.t).log())
    own = spy.backbone(inputs).log_softmax(dim=-1)
    cost = -own.gather(-1, rows.tokens.clamp_max(K - 1)[..., None]).squeeze(-1)
    total = rows.loss_mask.sum(dim=-1, keepdim=True)
    if isinstance(objective, MaskedLM | Autoregressive):
        chosen = (0.6 * total.double()).round().clamp_min(1)
        weight = total / chosen if isinstance(objective, MaskedLM) else 1
        return torch.where(where & (rows.tokens < K), cost * weight, 0.0)
    u, inverse_density = Uniform().sample(rows.index, noise=NOISE)
    if isinstance(objective, ContinuousNELBO):
        weight = -PROCESS.schedule.dalpha(u) / (1 - PROCESS.alpha(u)) * inverse_density
    elif isinstance(objective, DiscreteNELBO):
        step = (u * STEPS).floor()
        alpha_s, alpha_t = PROCESS.alpha(step / STEPS), PROCESS.alpha((step + 1) / STEPS)
        weight = STEPS * (alpha_s - alpha_t) / (1 - alpha_t)
    else:
        weight = total[:, 0] / ((x_t == K) & rows.loss_mask).sum(dim=-1)
    counted = rows.loss_mask & (x_t == K) & (rows.tokens < K)
    return torch.where(counted, cost * weight[:, None], 0.0)


def slopes(terms: Tensor, network: nn.Module) -> list[Tensor]:
    network.zero_grad()
    terms.sum().backward()
    return [p.grad.clone() for p in network.parameters() if p.grad is not None]


def gap(network: nn.Module, objective: Objective, rows: Batch) -> float:
    """Largest relative difference of the two ways, in a term or in a parameter's gradient."""
    spy = spy_on(objective, network)
    terms = objective.terms(spy, rows, NOISE)
    old = slow_terms(objective, spy, rows)
    assert bool((terms == 0).eq(old == 0).all()) and int((terms > 0).sum()) > B
    pairs = [(terms[old > 0], old[old > 0])]
    new_slopes, old_slopes = slopes(terms, network), slopes(old, network)
    pairs += zip(new_slopes, old_slopes, strict=True)
    largest = max(float(slope.abs().max()) for slope in old_slopes)
    assert largest > 1e-2
    off = (((a - b).abs() / b.abs().clamp_min(1e-3 * largest)).max() for a, b in pairs)
    return max(float(ratio.detach()) for ratio in off)


@each_with_its_networks(OBJECTIVES)
def test_objectives_and_gradients_are_those_of_whole_rows(name: str, objective: Objective) -> None:
    network, rows = NETWORKS[name](), batch("labels" in name)
    assert gap(network, objective, rows) < 1e-9
    mix_up(network)
    assert gap(network, objective, rows) > 1e-2, "the twin that mixes up positions"


def mix_up(network: Backbone) -> None:
    """Broken twin: permutes single positions."""
    real = network.forward

    def forward(inputs, where=None):
        return real(inputs) if where is None else real(inputs, where).roll(1, dims=0)

    network.forward = forward


def heads_of(network: nn.Module) -> list[int]:
    """Count the positions that a transformer's head scores at each call."""
    scored: list[int] = []
    network.head.linear.register_forward_hook(
        lambda _layer, inputs, _logits: scored.append(inputs[0].shape[:-1].numel())
    )
    return scored


@every_objective
@pytest.mark.parametrize("whole", [False, True])
def test_nothing_is_scored_that_does_not_count(objective: Objective, whole: bool) -> None:
    causal = isinstance(objective, Autoregressive)
    network = twin() if causal else small_transformers.build()
    spy = spy_on(objective, Whole(network) if whole else network)
    scored = heads_of(network)
    terms = objective.terms(spy, batch(), NOISE)
    assert scored == [int((~batch().padding).sum()) if whole else int((terms > 0).sum())]


class AtTheEnd(TimeSampler):
    """Times so small that nothing is masked."""

    def sample(self, batch, *, noise):
        return torch.full((len(batch),), 1e-12, dtype=torch.float64), torch.ones(len(batch))


NOTHING_HIDDEN = [ContinuousNELBO(AtTheEnd()), DiscreteNELBO(STEPS), *OBJECTIVES[2:]]


@each_with_its_networks(NOTHING_HIDDEN)
def test_nothing_to_score_still_reaches_every_parameter(name: str, objective: Objective) -> None:
    """Processes that train together wait for each other's gradients, even without masks."""
    network, rows = NETWORKS[name](), batch("labels" in name)
    if not isinstance(objective, ContinuousNELBO):
        rows = replace(rows, loss_mask=torch.zeros_like(rows.loss_mask))

    def reached() -> list[str]:
        network.zero_grad()
        terms = objective.terms(spy_on(objective, network), rows, NOISE)
        assert bool((terms == 0).all())
        (terms.sum() if terms.requires_grad else terms.sum().requires_grad_()).backward()
        found = {n: p.grad for n, p in network.named_parameters() if p.grad is not None}
        assert all(bool((grad == 0).all()) for grad in found.values())
        return list(found)

    assert reached() == [name for name, _ in network.named_parameters()]

    def constant(inputs, where=None):
        logits = torch.zeros(*inputs.tokens.shape, K, dtype=torch.float64)
        return logits if where is None else logits[where]

    network.forward = constant
    assert not reached(), "the twin that leaves the network out"


@pytest.mark.parametrize("estimator", [StratifiedK(4), BernoulliTime(8), FixedOrder()])
@pytest.mark.parametrize("name", ["transformer, timed", "caduceus, both strands, labels"])
def test_likelihoods_are_those_of_whole_rows(name: str, estimator) -> None:
    class WholeRows(Denoiser):
        def forward(self, inputs, where=None):
            found = super().forward(inputs)
            return found if where is None else found[where]

    network, rows = NETWORKS[name](), batch("labels" in name)
    rows = replace(rows, loss_mask=rows.loss_mask & (rows.tokens < K))

    def nats(kind: type[Denoiser]) -> Tensor:
        denoiser = kind(network, PROCESS)
        return torch.from_numpy(evaluate(denoiser, [rows], estimator=estimator).nats)

    expected = nats(WholeRows)
    torch.testing.assert_close(nats(Denoiser), expected, rtol=1e-10, atol=1e-10)
    mix_up(network)
    assert (nats(Denoiser) - expected).abs().max() > 1e-2


def test_likelihoods_score_what_is_hidden_and_chains_what_counts() -> None:
    rows = batch()
    rows = replace(rows, loss_mask=rows.loss_mask & (rows.tokens < K))
    kept = rows.loss_mask.any(dim=-1)
    network, causal = small_transformers.build(), twin()
    scored, all_scored = heads_of(network), heads_of(causal)
    evaluate(Denoiser(network, PROCESS), [rows], estimator=StratifiedK(2))
    assert 0 < sum(scored) < 2 * int(kept.sum()) * L
    model = Denoiser(causal, LeftToRight(K))
    all_scored.clear()
    evaluate(model, [rows], estimator=ChainRule())
    assert sum(all_scored) == int(rows.loss_mask.sum())


@pytest.mark.parametrize("whole", [False, True])
def test_logits_in_bfloat16_are_normalised_in_float32(whole: bool) -> None:
    network = small_transformers.build().float()
    denoiser = Denoiser(Whole(network) if whole else network, PROCESS)
    rows = batch()
    where = rows.loss_mask & (rows.tokens < K)
    with torch.autocast("cpu", torch.bfloat16):
        nats = denoiser.nats(Inputs(rows.tokens), rows.tokens, where)
        logits = denoiser.backbone(Inputs(rows.tokens), where)
    assert logits.dtype == torch.bfloat16 and nats.dtype == torch.float32
    x0 = rows.tokens[where][:, None]
    exact = -logits.double().log_softmax(dim=-1).gather(-1, x0).squeeze(-1)
    coarse = -logits.log_softmax(dim=-1).gather(-1, x0).squeeze(-1)
    assert (nats[where] - exact).abs().max() < 1e-6 < 1e-3 < (coarse - exact).abs().max()


def test_errors_are_those_of_forward() -> None:
    rows = batch()
    x0, where = rows.tokens, rows.tokens < K
    labelled = Inputs(x0, label=rows.index)
    for network in (caduceus("ph"), Whole(caduceus("ph")), twin()):
        causal = isinstance(network, AutoregressiveTransformer)
        model = Denoiser(network, LeftToRight(K) if causal else PROCESS)
        expected = rf"^{type(network).__name__}\.label must be None for a network without classes"
        with pytest.raises(ValueError, match=expected):
            model.nats(labelled, x0, where)
        with pytest.raises(ValueError, match=expected):
            model(labelled, where)
    timed = Denoiser(small_transformers.build(time_conditioned=True), PROCESS)
    with pytest.raises(ValueError, match=r"^Denoiser\.inputs\.t must be given where a prediction"):
        timed.nats(Inputs(x0), x0, where)

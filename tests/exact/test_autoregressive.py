"""Autoregressive runs by enumeration: objective, likelihood and sampler share one distribution."""

import itertools
from dataclasses import dataclass

import pytest
import torch

from seqdiff.backbones import AutoregressiveTransformer, Caduceus, Transformer
from seqdiff.denoiser import discrete
from seqdiff.denoiser.discrete import Denoiser, first_leak
from seqdiff.likelihood import ChainRule, FixedOrder, StratifiedK, evaluate
from seqdiff.objectives import Autoregressive, MaskedLM, validation_objective
from seqdiff.process import LeftToRight
from seqdiff.rng import CounterNoise
from seqdiff.samplers import (
    ClassifierFree,
    FirstHittingSampler,
    LeftToRightSampler,
    sampler_name,
)
from seqdiff.samplers import SemiAutoregressiveSampler as Windows
from seqdiff.samplers.decoding import reshape
from seqdiff.types import Batch, Inputs
from tests.causal_worlds import CausalLookup, CausalNet, LookingLookup, LookingNet
from tests.enumeration import Distribution, distance, joint_distribution, outcomes
from tests.oracles import LookupBackbone, TableBackbone, all_sequences, masked_model

K, L = 3, 4
PROCESS = LeftToRight(K)
EXACT = 1e-10
WORLD = CausalLookup(K, L, seed=2)
MODEL = Denoiser(WORLD, PROCESS)
ROWS = all_sequences(K, L)


def batch(tokens: torch.Tensor, loss_mask: torch.Tensor | None = None) -> Batch:
    known = tokens < K if loss_mask is None else loss_mask.expand_as(tokens)
    return Batch(tokens, known, torch.arange(len(tokens)))


def nats(model: Denoiser, rows: Batch) -> torch.Tensor:
    return Autoregressive().terms(model, rows, CounterNoise(0)).sum(dim=-1)


def test_the_objective_is_minus_log_p_of_a_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    found = (-nats(MODEL, batch(ROWS))).exp()
    assert float(found.sum()) == pytest.approx(1, abs=EXACT)
    torch.testing.assert_close(found, WORLD.distribution(), atol=EXACT, rtol=0)
    monkeypatch.setattr(discrete, "first_leak", lambda *_: None)
    broken = Denoiser(LookingLookup(K, L, seed=2), PROCESS)
    wrong = float((-nats(broken, batch(ROWS))).exp().sum())
    assert abs(wrong - 1) > 1e-3, "the twin whose shift is off by one is no distribution"


def test_context_and_unknown_symbols_are_given_and_never_count() -> None:
    """Position 1 is context, position 2 unknown; p(the others given those) sums to 1."""
    loss_mask = torch.tensor([True, False, False, True])
    rows = torch.tensor([[a, 1, K, b] for a, b in itertools.product(range(K), repeat=2)])
    terms = Autoregressive().terms(MODEL, batch(rows, loss_mask), CounterNoise(0))
    assert bool((terms[:, 1:3] == 0).all())
    assert float((-terms.sum(dim=-1)).exp().sum()) == pytest.approx(1, abs=EXACT)
    code = (rows[:, 0] * 4 + 1) * 4 + K
    last = WORLD.tables[3].log_softmax(dim=-1)[code, rows[:, 3]]
    torch.testing.assert_close(terms[:, 3], -last)
    counted = torch.ones(L, dtype=torch.bool)
    unknown = Autoregressive().terms(MODEL, batch(rows, counted), CounterNoise(0))
    assert bool((unknown[:, 2] == 0).all()), "an unknown symbol never counts, whatever the mask"


def test_terms_do_not_depend_on_the_batch_nor_on_noise() -> None:
    whole = Autoregressive().terms(MODEL, batch(ROWS), CounterNoise(0))
    parts = [Autoregressive().terms(MODEL, batch(part), CounterNoise(9)) for part in ROWS.split(7)]
    assert torch.equal(torch.cat(parts), whole)


def test_evaluation_takes_one_pass_and_is_exact() -> None:
    mixed = torch.cat((ROWS, torch.tensor([[0, K, K, 2], [K, K, K, K]])))
    WORLD.rows_seen.clear()
    found = evaluate(MODEL, [batch(mixed)])
    expected = nats(MODEL, batch(mixed))[:-1]
    torch.testing.assert_close(torch.from_numpy(found.nats), expected, atol=EXACT, rtol=0)
    assert WORLD.rows_seen[0] == len(ROWS) + 1 and (found.nfe == 1).all()
    assert (found.standard_error == 0).all() and found.num_tokens.tolist()[-1] == 2
    assert found.nats_per_token == pytest.approx(float(expected.sum() / (L * len(ROWS) + 2)))
    again = evaluate(MODEL, [batch(mixed)], estimator=ChainRule(), target_se=1e-9, max_nfe=9)
    assert (again.nfe == 1).all(), "there is nothing to repeat"
    chain = evaluate(
        masked_model(WORLD), [batch(ROWS)], estimator=FixedOrder()
    )  # SUBS masks nothing to the left, so token by token the results are equal
    assert chain.nats == pytest.approx(found.nats[: len(ROWS)], abs=EXACT)
    assert (chain.nfe == L).all()


@pytest.mark.parametrize("prompt", [(), (2,), (1, K), (0, 2, 1)])
def test_the_sampler_draws_the_distribution(prompt: tuple[int, ...]) -> None:
    x_init = torch.tensor([*prompt, *[K] * (L - len(prompt))])
    found = outcomes(LeftToRightSampler(), MODEL, x_init)
    given = len(prompt) - (K in prompt)
    table = joint_distribution(WORLD.distribution(), K, L)
    agrees = {x: p for x, p in table.items() if x[:given] == prompt[:given]}
    total = sum(agrees.values())
    assert distance(found.distribution, {x: p / total for x, p in agrees.items()}) < EXACT
    assert (found.nfe == L - given).all()


@dataclass(frozen=True)
class FromTheRight(LeftToRightSampler):
    """Broken: draws the last token first."""

    def fill(self, canvas):
        for place in reversed(range(canvas.x_t.shape[1])):
            where = canvas.masked & (torch.arange(canvas.x_t.shape[1]) == place)
            self._draw(canvas, where, canvas.log_probs(where, torch.zeros(len(where)).double()))
            canvas.end_step()


@dataclass(frozen=True)
class OneTooFar(LeftToRightSampler):
    """Broken: draws each token from the distribution of the next one."""

    def fill(self, canvas):
        for place in range(canvas.x_t.shape[1]):
            here = canvas.masked & (torch.arange(canvas.x_t.shape[1]) == place)
            asked = torch.zeros_like(here)
            asked[:, min(place + 1, L - 1)] = True
            self._draw(canvas, here, canvas.log_probs(asked, torch.zeros(len(here)).double()))
            canvas.end_step()


@pytest.mark.parametrize("broken", [FromTheRight(), OneTooFar()])
def test_broken_samplers_are_caught(broken: LeftToRightSampler) -> None:
    found = outcomes(broken, MODEL, PROCESS.blank((1, L))[0])
    assert distance(found.distribution, joint_distribution(WORLD.distribution(), K, L)) > 0.05


def test_a_sharpened_distribution_is_that_of_each_token() -> None:
    options = {"temperature": 0.6, "top_k": 2, "top_p": 0.8}
    right: Distribution = {(): 1.0}
    for place in range(L):
        grown: Distribution = {}
        for x, chance in right.items():
            code = sum(token * 4 ** (place - 1 - i) for i, token in enumerate(x))
            distribution = reshape(
                WORLD.tables[place][code][None].log_softmax(-1), **options
            ).exp()[0]
            grown |= {(*x, k): chance * p for k, p in enumerate(distribution.tolist()) if p > 0}
        right = grown
    found = outcomes(LeftToRightSampler(**options), MODEL, PROCESS.blank((1, L))[0])
    assert distance(found.distribution, right) < EXACT
    assert distance(right, joint_distribution(WORLD.distribution(), K, L)) > 0.1


def test_rows_depend_on_their_own_seeds_and_see_their_prompts() -> None:
    network = CausalNet(num_embeddings=K + 1, num_logits=K).double().eval()
    torch.nn.init.normal_(network.scores.weight, generator=torch.Generator().manual_seed(0))
    model, seeds = Denoiser(network, PROCESS), torch.tensor([5, 2**62, 3, 5])
    x_init = PROCESS.blank((4, 7))
    x_init[1, :3] = torch.tensor([2, 0, 1])
    padding = torch.arange(7) >= torch.tensor([7, 7, 4, 5])[:, None]
    steps: list[int] = []
    whole = LeftToRightSampler().sample(
        model, x_init, seeds=seeds, padding=padding, callback=lambda n, _: steps.append(n)
    )
    assert whole.nfe.tolist() == [7, 4, 4, 5] and steps == list(range(1, 8))
    assert whole.tokens[1, :3].tolist() == [2, 0, 1] and bool((whole.tokens[padding] == K).all())
    assert bool((whole.tokens[~padding] < K).all())
    assert torch.equal(whole.tokens[3, :5], whole.tokens[0, :5]), "the same seed"
    for row, length in enumerate([7, 7, 4, 5]):
        alone = LeftToRightSampler().sample(
            model, x_init[row : row + 1, :length], seeds=seeds[row : row + 1]
        )
        assert torch.equal(alone.tokens[0], whole.tokens[row, :length])
    allowed = torch.zeros(4, 7, K, dtype=torch.bool)
    allowed[:, :, 1] = True
    ones = LeftToRightSampler().sample(model, PROCESS.blank((4, 7)), seeds=seeds, allowed=allowed)
    assert bool((ones.tokens == 1).all())


def sample(sampler, model: Denoiser, x_init: torch.Tensor | None = None):
    rows = PROCESS.blank((2, L)) if x_init is None else x_init
    return sampler.sample(model, rows, generator=torch.Generator().manual_seed(0))


def test_what_does_not_go_together_raises_before_any_call() -> None:
    WORLD.rows_seen.clear()
    subs = masked_model(LookupBackbone(K, L, seed=0))
    for sampler in (FirstHittingSampler(), Windows(2, 1)):
        name = sampler_name(type(sampler))
        expected = (
            rf"must work with the .* left-to-right .*, got {name}; choose from .*left_to_right"
        )
        with pytest.raises(ValueError, match=expected):
            sample(sampler, MODEL)
    with pytest.raises(ValueError, match=r"must work with the .* absorbing .*, got left_to_right;"):
        sample(LeftToRightSampler(), subs)
    ahead = torch.tensor([[0, K, K, K], [0, K, 2, K]])
    with pytest.raises(ValueError, match="got token 2 after a mask at row 1, position 2"):
        sample(LeftToRightSampler(), MODEL, ahead)
    with pytest.raises(ValueError, match=r"must be chain-rule for the process left-to-r"):
        evaluate(MODEL, [batch(ROWS)], estimator=StratifiedK())
    with pytest.raises(ValueError, match=r"evaluations must be left out for the process left-to-r"):
        evaluate(MODEL, [batch(ROWS)], evaluations=4)
    with pytest.raises(ValueError, match=r"must be .* for the process absorbing .* got chain-rule"):
        evaluate(subs, [batch(ROWS)], estimator=ChainRule())
    for objective, model, others in (
        (Autoregressive(), subs, "ContinuousNELBO or .* or MaskedLM"),
        (MaskedLM(), MODEL, "Autoregressive"),
    ):
        expected = rf"must fit the {model.description}, got {type(objective).__name__}; .* {others}"
        with pytest.raises(ValueError, match=expected):
            objective.check(model)
    assert not WORLD.rows_seen


def test_guidance_of_an_autoregressive_model_is_one_too() -> None:
    class Labelled(CausalLookup):
        num_classes = 2

        def logits(self, inputs):
            logits, label = super().logits(inputs), inputs.label
            return logits if label is None else logits + (label == 1)[:, None, None] * logits

    guided = ClassifierFree(Denoiser(Labelled(K, L, seed=2), PROCESS), label=1, gamma=2.0)
    found = outcomes(LeftToRightSampler(), guided, PROCESS.blank((1, L))[0])
    sharper = CausalLookup(K, L, seed=2)  # twice the logits with the label: p^4 / p, normalised
    sharper.tables = [3 * table for table in sharper.tables]
    assert distance(found.distribution, joint_distribution(sharper.distribution(), K, L)) < EXACT
    assert (found.nfe == 2 * L).all()


def test_a_backbone_that_looks_ahead_raises() -> None:
    sizes = {"num_embeddings": K + 1, "num_logits": K}
    network = CausalNet(**sizes).train()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    assert first_leak(network, K) is None and network.training
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    looking = LookingNet(**sizes)
    assert bool((looking.scores.weight == 0).all()), "a head of zeros hides nothing from the probe"
    with pytest.raises(ValueError, match="got LookingNet, whose position 0 depends on token 0"):
        Denoiser(looking, PROCESS)
    bases = {"num_embeddings": 5, "num_logits": 4, "complement": (3, 2, 1, 0, 4)}
    both_ways = Caduceus(8, 1, variant="ps", d_state=4, **bases)
    with pytest.raises(
        ValueError, match="AutoregressiveMamba or AutoregressiveTransformer, or a process"
    ):
        Denoiser(both_ways, LeftToRight(4))
    ruled_out = CausalNet(**sizes)
    ruled_out.scores.register_forward_hook(
        lambda *a: a[2].index_fill(-1, torch.tensor(1), -torch.inf)
    )
    assert first_leak(ruled_out, K) is None
    unsure = CausalNet(**sizes)
    unsure.scores.register_forward_hook(lambda *a: a[2] * torch.nan)
    assert first_leak(unsure, K) is not None, "what cannot be told is not let through"
    far = CausalNet(**sizes)  # reads only distant tokens to the right
    far.forward = lambda inputs: CausalNet.forward(far, Inputs(inputs.tokens.flip(1)))
    assert first_leak(far, K) is not None

    class Faint(TableBackbone):
        """Scores of size 1, with a thousandth from the position's own token."""

        size = 1e-3

        def logits(self, inputs):
            return torch.ones(*inputs.tokens.shape, K) + self.size * inputs.tokens[..., None] / K

    faint = Faint(K)
    assert first_leak(faint, K) == (0, 0)
    faint.size = 0
    assert first_leak(faint, K) is None


@pytest.mark.parametrize("length", [1, 2, 3, 4, None])
def test_a_backbone_is_probed_with_rows_that_fit(length: int | None) -> None:
    """A network with a short context is causal, or leaks, like any other."""
    sizes = {"num_embeddings": K + 1, "num_logits": K}

    class Short(TableBackbone):
        looks = False

        def logits(self, inputs):
            tokens = inputs.tokens
            assert length is None or tokens.shape[1] <= length, "longer than its context"
            before = tokens if self.looks else torch.nn.functional.pad(tokens, (1, 0))[:, :-1]
            return before.cumsum(dim=1)[..., None].double().expand(-1, -1, K)

    short = Short(K)
    short.max_length = length
    assert first_leak(short, K) is None
    short.looks = True
    assert first_leak(short, K) == (0, 0)
    if length is not None:
        network = AutoregressiveTransformer(8, 1, 2, **sizes, max_length=length)
        assert Denoiser(network, LeftToRight(K)).context == "prefix"
        both_ways = Transformer(8, 1, 2, **sizes, max_length=length)
        with pytest.raises(ValueError, match="got Transformer, whose position 0 depends on token"):
            Denoiser(both_ways, LeftToRight(K))


def test_it_is_validated_by_the_likelihood() -> None:
    assert validation_objective(Autoregressive(), MODEL) == Autoregressive()
    assert (MODEL.context, MODEL.any_order) == ("prefix", False)

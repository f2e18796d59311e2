"""The autoregressive twin: causal, normalised over whole rows, the same blocks, padding."""

import pytest
import torch
from torch import Tensor

from seqdiff.backbones import AutoregressiveTransformer, Backbone, Transformer
from seqdiff.backbones.transformer.cache import CausalCache, TransformerCache
from seqdiff.denoiser.discrete import Denoiser
from seqdiff.experts import ExpertsConfig, NGramExperts
from seqdiff.likelihood import FixedOrder, evaluate
from seqdiff.process import Absorbing, LeftToRight
from seqdiff.samplers import LeftToRightSampler
from seqdiff.types import Batch, Inputs
from tests.oracles import all_sequences

K, L = 3, 4
EXACT = {"atol": 1e-10, "rtol": 1e-10}


def perturbed(model: torch.nn.Module) -> torch.nn.Module:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.4 * torch.randn_like(parameter))
    return model.double().eval()


def build(**options: object) -> AutoregressiveTransformer:
    torch.manual_seed(0)
    sizes = {"num_embeddings": K + 1, "num_logits": K, "max_length": 16}
    return perturbed(AutoregressiveTransformer(12, 2, 2, **{**sizes, **options}))


class Unshifted(AutoregressiveTransformer):
    """Broken twin: the input is not shifted, so that a token sees itself."""

    def embed(self, inputs):
        tokens = inputs.tokens
        return super().embed(Inputs(torch.cat((tokens[:, 1:], tokens[:, :1]), dim=1)))


def unshifted() -> torch.nn.Module:
    model = build()
    model.__class__ = Unshifted
    return model


def bidirectional() -> torch.nn.Module:
    torch.manual_seed(0)
    return perturbed(Transformer(12, 2, 2, num_embeddings=K + 1, num_logits=K, cond_dim=4))


def log_probs(model: torch.nn.Module, rows: torch.Tensor) -> torch.Tensor:
    """The sum over positions of log p(token | input of the network)."""
    return model(Inputs(rows)).log_softmax(-1).gather(-1, rows[..., None]).sum(dim=(1, 2))


def reads(model: torch.nn.Module, length: int = 6) -> torch.Tensor:
    """Which tokens (columns) change the logits of which positions (rows)."""
    tokens = torch.arange(length)[None] % K
    before = model(Inputs(tokens))
    columns = []
    for place in range(length):
        changed = tokens.clone()
        changed[0, place] = (changed[0, place] + 1) % K
        columns.append((model(Inputs(changed)) - before).abs().amax(dim=(0, 2)) > 1e-12)
    return torch.stack(columns, dim=1)


def test_logits_read_exactly_the_tokens_before() -> None:
    before = torch.ones(6, 6).tril(-1) > 0
    assert torch.equal(reads(build()), before)
    assert not torch.equal(reads(bidirectional()), before)
    assert not torch.equal(reads(unshifted()), before)


def test_all_rows_together_have_probability_one() -> None:
    rows = all_sequences(K, L)
    assert len(rows) == K**L
    assert log_probs(build(), rows).exp().sum().item() == pytest.approx(1, abs=1e-12)
    for broken in (bidirectional(), unshifted()):
        assert abs(log_probs(broken, rows).exp().sum().item() - 1) > 1e-2


def test_as_a_denoiser_it_has_the_same_likelihood_from_left_to_right() -> None:
    rows = all_sequences(K, L)[::7]
    batch = Batch(rows, torch.ones_like(rows) > 0, torch.arange(len(rows)))
    found = evaluate(Denoiser(build(), Absorbing(K)), [batch], estimator=FixedOrder())
    wanted = -log_probs(build(), rows)
    torch.testing.assert_close(torch.as_tensor(found.nats).double(), wanted.detach(), **EXACT)


def test_it_is_the_transformer_with_open_gates_and_a_causal_mask() -> None:
    """Modulation 0 except for gates of 1, and a shifted input, give the same last logits.

    The last position of a bidirectional network with one layer reads the same as a causal one.
    """
    torch.manual_seed(0)
    twin = perturbed(AutoregressiveTransformer(12, 1, 2, num_embeddings=K + 1, num_logits=K))
    model = Transformer(12, 1, 2, num_embeddings=K + 1, num_logits=K).double().eval()
    missing, unexpected = model.load_state_dict(twin.state_dict(), strict=False)
    assert not unexpected and all("modulation" in n or "sigma_map" in n for n in missing)
    with torch.no_grad():
        gates = torch.tensor([0, 0, 1, 0, 0, 1]).repeat_interleave(12)
        model.blocks[0].modulation.bias.copy_(gates)
    tokens = torch.tensor([[0, 2, 1, 1, 0]])
    shifted = torch.tensor([[K, 0, 2, 1, 1]])
    torch.testing.assert_close(twin(Inputs(tokens))[:, -1], model(Inputs(shifted))[:, -1], **EXACT)


def test_it_ignores_time_and_is_a_backbone() -> None:
    model, rows = build(), all_sequences(K, L)[:2]
    assert isinstance(model, Backbone)
    assert torch.equal(model(Inputs(rows, t=torch.rand(2))), model(Inputs(rows)))
    assert not AutoregressiveTransformer(8, 1, 2, num_embeddings=4, num_logits=3)(
        Inputs(rows)
    ).any()


@pytest.mark.parametrize(("left", "right"), [(0, 0), (0, 3), (2, 0), (3, 2)])
def test_padding_does_not_reach_real_positions(left: int, right: int) -> None:
    model, row = build(), torch.tensor([[2, 0, 1, 1, 2]])
    tokens = torch.tensor([0, 1, 2]).repeat(2, 6)[:, : left + 5 + right]
    tokens[0, left : left + 5] = row
    padding = torch.ones_like(tokens) > 0
    padding[0, left : left + 5] = False
    logits = model(Inputs(tokens, padding=padding))
    torch.testing.assert_close(logits[:1, left : left + 5], model(Inputs(row)), **EXACT)
    assert logits.isfinite().all(), "a row of nothing but padding too"
    if left:
        assert (model(Inputs(tokens))[:1, left : left + 5] - model(Inputs(row))).abs().max() > 1e-3


def test_the_arguments_are_left_alone() -> None:
    rows = all_sequences(K, L)
    before = rows.clone()
    build()(Inputs(rows, padding=rows > 9))
    assert torch.equal(rows, before)


def test_refusals() -> None:
    with pytest.raises(ValueError, match=r"^AutoregressiveTransformer\.n_layer must be an integer"):
        AutoregressiveTransformer(8, 0, 2, num_embeddings=4, num_logits=3)
    with pytest.raises(ValueError, match=r"^AutoregressiveTransformer\.tokens must be at most max"):
        build(max_length=3)(Inputs(all_sequences(K, L)))


# The cache


def long_rows(count: int, length: int) -> Tensor:
    return torch.randint(K, (count, length), generator=torch.Generator().manual_seed(4))


@torch.no_grad()
def test_token_by_token_the_cache_gives_the_logits_of_the_whole_row() -> None:
    """After a prompt, of all rows or of some, and with a signal at each position."""
    model, x0 = build(num_signals=2), long_rows(3, 16)
    signal = torch.randn(3, 16, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for given in (None, signal, signal[:, 0]):
        wanted, cache = model(Inputs(x0, signal=given)), model.block_cache(3, signal=given)
        cache.append(x0[:, :5])
        for place in range(5, 16):
            here, rows = x0[:, place : place + 1], torch.tensor([2, 0])
            where = torch.ones_like(here[rows], dtype=torch.bool)
            found = cache.logits_of(rows, here[rows], where)
            torch.testing.assert_close(found, wanted[rows, place], **EXACT)
            if place % 3:
                torch.testing.assert_close(cache.logits(here)[:, 0], wanted[:, place], **EXACT)
            assert cache.length == place
            cache.append(here)
        taken = cache.take(torch.tensor([1, 1]))
        assert taken.length == 16


def rows_to_fill() -> tuple[Tensor, Tensor]:
    """Prompts of several lengths, a full row, and rows that are shorter."""
    x_init, lengths = torch.full((5, 12), K), torch.tensor([12, 12, 7, 12, 4])
    given = long_rows(5, 12)
    for row, length in enumerate([0, 5, 2, 12, 0]):
        x_init[row, :length] = given[row, :length]
    return x_init, torch.arange(12) >= lengths[:, None]


def generate(model: Denoiser) -> tuple[Tensor, Tensor]:
    x_init, padding = rows_to_fill()
    found = LeftToRightSampler().sample(model, x_init, seeds=torch.arange(5), padding=padding)
    return found.tokens, found.nfe


def counted() -> NGramExperts:
    experts, rows = NGramExperts(K, ExpertsConfig(2)), long_rows(40, 12).numpy()
    experts.count(len(rows), lambda part: (rows[part], rows[part] < K))
    for gates in experts.buffers():
        gates.uniform_(0.2, 0.8, generator=torch.Generator().manual_seed(3))
    return experts


def test_generation_runs_each_position_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It draws the tokens of a network that reads the row again, with experts too."""
    for experts in (None, counted()):
        model = Denoiser(build(), LeftToRight(K), experts=experts).eval()
        with monkeypatch.context() as patch:
            patch.setattr(AutoregressiveTransformer, "caches_prefix", False)
            again, spent = generate(model)
        kept, nfe = generate(model)
        assert torch.equal(kept, again) and torch.equal(nfe, spent)
    ran: list[int] = []
    near = TransformerCache._near

    def count(self, tokens, *, scored):
        ran.append(tokens.numel())
        return near(self, tokens, scored=scored)

    monkeypatch.setattr(TransformerCache, "_near", count)
    blank = torch.full((2, 9), K)
    LeftToRightSampler().sample(model, blank, seeds=torch.arange(2))
    assert ran == [2] * 9

    def shifted_too_little(self, x0):
        self._cache.append(x0)
        self._last = x0[:, -1:]

    monkeypatch.setattr(CausalCache, "append", shifted_too_little)
    assert not torch.equal(generate(model)[0], again), "the twin that reads a token twice"


def test_bad_caches_and_rows_that_are_too_long() -> None:
    for options, message in (
        ({"batch_size": 0}, "batch_size must be an integer of at least 1, got 0"),
        ({"block_size": 4}, "block_size must be 1, since the network predicts one token at a time"),
        ({"window": -1}, "window must be an integer of at least 0, got -1"),
        ({"signal": torch.zeros(1, 2)}, "signal must be None for a network without signals"),
    ):
        with pytest.raises(ValueError, match=rf"^AutoregressiveTransformer\.{message}"):
            build().block_cache(**{"batch_size": 1, **options})
    model, long = Denoiser(build(), LeftToRight(K)).eval(), torch.full((1, 17), K)
    with pytest.raises(ValueError, match=r"x_init must be at most max_length = 16 long, got 17"):
        LeftToRightSampler().sample(model, long, seeds=torch.arange(1))

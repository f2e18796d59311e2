"""The autoregressive twin: causal, normalised over whole rows, the same blocks, padding."""

import pytest
import torch

from seqdiff.backbones import AutoregressiveTransformer, Backbone, Transformer
from seqdiff.denoiser.discrete import Denoiser
from seqdiff.likelihood import FixedOrder, evaluate
from seqdiff.process import Absorbing
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

"""Distributions of selected positions, from a denoiser and with guidance."""

import pytest
import torch

from seqdiff.denoiser.discrete import Denoiser
from seqdiff.process import Absorbing
from seqdiff.samplers import ClassifierFree, FirstHittingSampler, FirstOrderClassifierBased
from seqdiff.types import Inputs
from tests.exact.test_selective import PROCESS, K, L, Whole, caduceus, request
from tests.guided_worlds import LinearClassifier, lookup_world
from tests.oracles import TableBackbone, masked_model

# The denoiser


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_denoiser_normalises_what_is_asked_for(dtype: torch.dtype) -> None:
    """Equal to the bit to ``forward(...)[where]`` for a network that scores all; visible tokens
    stay.
    """

    class Fixed(TableBackbone):
        def __init__(self) -> None:
            super().__init__(K)
            self.table = torch.randn(3, L, K).to(dtype)

        def logits(self, inputs):
            return self.table

    denoiser, x_t = masked_model(Fixed()), torch.randint(0, K + 1, (3, L))
    where = torch.rand(3, L) < 0.5
    found = denoiser.log_probs(Inputs(x_t), where)
    assert torch.equal(found, denoiser.log_probs(Inputs(x_t))[where])
    assert torch.equal(found, denoiser(Inputs(x_t))[where])
    assert found.dtype == torch.promote_types(dtype, torch.float32)
    visible = x_t[where] < K
    assert (found.exp().sum(dim=-1) - 1).abs().max() < 1e-5
    assert (found[visible].gather(-1, x_t[where][visible][:, None]) == 0).all()


def test_a_denoiser_with_predictions_of_its_own_is_asked_through_them() -> None:
    class Own(Denoiser):
        def forward(self, inputs, where=None):
            found = torch.full((*inputs.tokens.shape, K), 1 / K).log()
            return found if where is None else found[where]

    x_t, where = torch.full((2, L), K), torch.ones(2, L, dtype=torch.bool)
    own = Own(caduceus("ph"), Absorbing(K))
    assert (own.log_probs(Inputs(x_t), where).exp() == 1 / K).all()
    assert (own.nats(Inputs(x_t), torch.zeros_like(x_t), where).neg().exp() == 1 / K).all()


@pytest.mark.parametrize("name", ["ph", "ps, labels"])
def test_errors_are_those_of_forward(name: str) -> None:
    network, where = caduceus(name), torch.ones(2, L, dtype=torch.bool)
    given = Inputs(torch.full((2, L), K), label=torch.tensor([0, 1]))
    with pytest.raises(
        ValueError, match=r"^Denoiser\.backbone must emit 3 outputs for subs, got 4"
    ):
        Denoiser(network, Absorbing(3))
    if name == "ph":
        for call in (network, Whole(network)):
            expected = rf"^{type(call).__name__}\.label must be None for a network without classes"
            with pytest.raises(ValueError, match=expected):
                masked_model(call).log_probs(given, where)
    else:
        with_label = masked_model(network).log_probs(given, where)
        whole = masked_model(network).log_probs(given)
        torch.testing.assert_close(with_label, whole[where], rtol=1e-12, atol=1e-12)
        unlabelled = masked_model(network).log_probs(Inputs(given.tokens), where)
        assert not torch.allclose(with_label, unlabelled)


# Guidance


@pytest.mark.parametrize("gamma", [0.0, 1.0, 2.5])
def test_guidance_asks_where_it_is_asked(gamma: float) -> None:
    network = caduceus("ps, labels")
    x_t = request(False).tokens
    where = (x_t == K) & (torch.rand(x_t.shape, generator=torch.Generator().manual_seed(3)) < 0.7)
    asked: list[int] = []
    real = network.forward

    def counted(inputs, where=None):
        asked.append(inputs.tokens.numel() if where is None else int(where.sum()))
        return real(inputs, where)

    network.forward = counted
    guided = ClassifierFree(masked_model(network), 1, gamma)
    part, calls = guided.log_probs(Inputs(x_t), where), list(asked)
    assert calls == [int(where.sum()) * (1 if gamma in (0, 1) else 2)]
    torch.testing.assert_close(part, guided.log_probs(Inputs(x_t))[where], rtol=1e-10, atol=1e-10)


def test_first_order_guidance_asks_where_it_is_asked() -> None:
    guided = FirstOrderClassifierBased(lookup_world(3, 3), LinearClassifier(3, 3), 1.5)
    x_t = torch.tensor([[3, 1, 3], [3, 3, 3], [0, 1, 2]])
    where = torch.tensor([[True, True, False], [False, True, True], [False, False, True]])
    distribution = guided.log_probs(Inputs(x_t))
    torch.testing.assert_close(guided.log_probs(Inputs(x_t), where), distribution[where])
    assert torch.equal(distribution[2], guided.denoiser(Inputs(x_t))[2]), "visible tokens stay"


def test_guided_first_hitting_asks_once_for_every_position() -> None:
    network = caduceus("ph, labels")
    denoiser = masked_model(network)
    asked: list[int] = []
    real = network.forward

    def counted(inputs, where=None):
        asked.append(inputs.tokens.numel() if where is None else int(where.sum()))
        return real(inputs, where)

    network.forward = counted
    x_init = PROCESS.blank((3, L))
    found = FirstHittingSampler().sample(
        ClassifierFree(denoiser, 0, 2.0), x_init, seeds=torch.arange(3)
    )
    assert sum(asked) == 2 * 3 * L and found.nfe.tolist() == [2 * L] * 3

"""Caduceus: sizes, initial values, weight decay groups, invalid input."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from seqdiff.backbones import Caduceus
from seqdiff.training.optim import decay_groups
from tests.property.test_caduceus import build


@pytest.mark.parametrize(
    ("d_model", "n_layer", "parameters"),
    [(64, 4, 164_160), (118, 4, 470_702), (128, 4, 541_312), (256, 4, 1_934_592),
     (256, 16, 7_725_312)],
)  # fmt: skip
@pytest.mark.parametrize("variant", ["ph", "ps"])
def test_published_sizes(d_model: int, n_layer: int, parameters: int, variant: str) -> None:
    with torch.device("meta"):
        model = Caduceus(
            d_model,
            n_layer,
            num_embeddings=16,
            num_logits=16,
            complement=range(16),
            variant=variant,
        )
    assert sum(p.numel() for p in model.parameters()) == parameters


@pytest.mark.parametrize(
    ("d_model", "n_layer", "millions"), [(768, 24, 88), (1024, 48, 311), (1536, 48, 694)]
)
def test_published_sizes_with_the_mixer_of_mamba2(
    d_model: int, n_layer: int, millions: int
) -> None:
    """The sizes of PlantCAD2 (Zhai et al. 2025)."""
    sizes = {"num_embeddings": 8, "num_logits": 8, "complement": (0, 1, 2, 6, 5, 4, 3, 7)}
    with torch.device("meta"):
        model = Caduceus(d_model, n_layer, **sizes, variant="ps", mixer="ssd")
    assert model.config.mamba.headdim == 64
    assert round(sum(p.numel() for p in model.parameters()) / 1e6) == millions


@pytest.mark.parametrize(("d_model", "head"), [(118, 59), (8, 16), (10, 20), (127, 127), (96, 64)])
def test_heads_divide_the_inner_width(d_model: int, head: int) -> None:
    model = Caduceus(d_model, 1, num_embeddings=5, num_logits=4, mixer="ssd")
    assert model.config.mamba.headdim == head
    assert len(model.layers[0].mixer.fwd.A_log) == 2 * d_model // head


def test_initial_values_of_mamba2_are_the_published_ones() -> None:
    torch.manual_seed(0)
    model = Caduceus(64, 4, num_embeddings=5, num_logits=4, mixer="ssd", headdim=1, bias=True)
    mixer = model.layers[1].mixer
    steps = F.softplus(mixer.fwd.dt_bias)
    assert 0.99e-3 < steps.min() and steps.max() < 1.01e-1
    assert steps.log10().mean().item() == pytest.approx(-2, abs=0.2)
    rates = mixer.rev.A_log.exp()
    assert 1 <= rates.min() < 2 and 15 < rates.max() <= 16
    assert (mixer.fwd.D == 1).all() and (mixer.fwd.norm.weight == 1).all()
    assert mixer.in_proj.weight.shape == (2 * 128 + 2 * 64 + 128, 64)
    assert mixer.out_proj.weight.abs().max().item() == pytest.approx(128**-0.5 / 2, rel=0.01)
    assert not mixer.in_proj.bias.any()


def test_the_default_mixer_draws_the_same_weights_as_ever() -> None:
    torch.manual_seed(0)
    mixer = Caduceus(8, 1, num_embeddings=5, num_logits=4).layers[0].mixer
    torch.manual_seed(0)
    nn.Embedding(5, 8)
    drawn = [nn.Linear(8, 32, bias=False).weight, nn.Linear(16, 8, bias=False).weight]
    assert torch.equal(mixer.in_proj.weight, drawn[0])
    assert torch.equal(mixer.out_proj.weight, drawn[1])
    assert torch.equal(mixer.fwd.conv_weight, torch.empty(16, 4).uniform_(-0.5, 0.5))


def test_initial_values_are_the_published_ones() -> None:
    torch.manual_seed(0)
    model = Caduceus(64, 4, num_embeddings=500, num_logits=499, bias=True)
    mixer = model.layers[1].mixer
    assert model.embedding.weight.std().item() == pytest.approx(0.02, rel=0.03)
    steps = F.softplus(mixer.fwd.dt_proj.bias)
    assert steps.min() > 0.99e-3
    assert steps.max() < 1.01e-1
    assert steps.log10().mean().item() == pytest.approx(-2, abs=0.25)
    torch.testing.assert_close(
        mixer.rev.A_log.exp(), torch.arange(1.0, 17.0).expand(128, 16), atol=1e-5, rtol=1e-6
    )
    assert (mixer.fwd.D == 1).all()
    assert mixer.fwd.dt_proj.weight.abs().max().item() == pytest.approx(4**-0.5, rel=0.03)
    # kaiming_uniform(a=sqrt 5) is uniform up to 1/sqrt(fan in), and four blocks halve it.
    assert mixer.in_proj.weight.abs().max().item() == pytest.approx(64**-0.5, rel=0.01)
    assert mixer.out_proj.weight.abs().max().item() == pytest.approx(128**-0.5 / 2, rel=0.01)
    assert not mixer.in_proj.bias.any()
    assert not mixer.out_proj.bias.any()


def test_parameters_that_weight_decay_reaches() -> None:
    model = build(norm="layer", bias=True)
    decayed, _ = decay_groups(model)
    ending = ("in_proj.weight", "out_proj.weight", "x_proj.weight", "dt_proj.weight", "conv_weight")
    assert set(decayed) == {n for n, _ in model.named_parameters() if n.endswith(ending)}
    assert len(decayed) == 3 * (2 + 2 * 3)
    decayed, _ = decay_groups(build(norm="layer", bias=True, mixer="ssd"))
    assert {name.rpartition("mixer.")[2] for name in decayed} == {
        "in_proj.weight", "out_proj.weight", "fwd.conv_weight", "rev.conv_weight"
    }  # fmt: skip


# Invalid arguments


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"variant": "ps"}, "complement is needed"),
        ({"complement": (3, 2, 1, 0)}, "hold each of the 5 embedded ids once"),
        ({"complement": (1, 2, 3, 0, 4)}, r"its own inverse; it is not at ids \[0, 1, 2, 3\]"),
        ({"complement": (4, 1, 2, 3, 0)}, r"ids \[0\] leave them"),
        ({"num_logits": 6}, "num_logits must not exceed num_embeddings"),
        ({"num_embeddings": 0}, "num_embeddings must be an integer of at least 1, got 0"),
        ({"variant": "both"}, "variant must be one of ph, ps; got 'both'"),
        ({"combine": "mean"}, "combine must be one of add, ew_multiply"),
        ({"norm": "batch"}, "norm must be one of rms, layer"),
        ({"norm_eps": 0.0}, "norm_eps must be above 0"),
        ({"swap_strands": True}, 'swap_strands needs variant="ps"'),
        ({"d_model": "118"}, "d_model must be an integer of at least 1, got '118'"),
        ({"dt_rank": "full"}, "dt_rank must be an integer of at least 1, got 'full'"),
        ({"d_state": 0}, "d_state must be an integer of at least 1"),
        ({"dt_rank": 0}, "dt_rank must be an integer of at least 1"),
        ({"dt_min": 0.2}, "0 < dt_min <= dt_max"),
        ({"mixer": "lstm"}, r"^Caduceus\.mixer must be one of mamba, ssd; got 'lstm'"),
        ({"headdim": 8}, 'headdim must be auto with mixer="mamba", which has no headdim, got 8'),
        ({"mixer": "ssd", "dt_rank": 2}, 'dt_rank must be auto with mixer="ssd", which has no dt_'),
        ({"mixer": "ssd", "headdim": 0}, "headdim must be an integer of at least 1, got 0"),
        ({"mixer": "ssd", "headdim": 5}, r"expand \* d_model = 16, got 5; 16 does"),
        ({"mixer": "ssd", "d_state": 0}, "d_state must be an integer of at least 1, got 0"),
        ({"mixer": "ssd", "backend": "cpu"}, r'backend with mixer="ssd" must be one of auto, ref'),
        ({"backend": "tpu"}, "backend must be one of auto, reference, cpu, triton, mamba_ssm"),
    ],
)
def test_bad_arguments(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Caduceus(**{"d_model": 8, "n_layer": 1, "num_embeddings": 5, "num_logits": 4, **options})

"""Labels: equivariance, the row without a label, label dropout, errors."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from seqdiff.backbones import Backbone, Caduceus
from seqdiff.backbones.layers import LabelEmbedding
from seqdiff.denoiser.discrete import Denoiser
from seqdiff.process import Absorbing
from seqdiff.rng import AUGMENT_STREAM, LABEL_STREAM, MASK_STREAM, TIME_STREAM, CounterNoise
from seqdiff.training.conditions import ConditionDropout
from seqdiff.types import NO_LABEL, Batch, Inputs
from tests.oracles import UniformBackbone

DNA = (3, 2, 1, 0, 4)
CLASSES = 3
TOKENS = torch.randint(5, (4, 9), generator=torch.Generator().manual_seed(1))
LABELS = torch.tensor([0, 2, NO_LABEL, 1])


def build(num_classes: int | None = CLASSES, **options: object) -> Caduceus:
    torch.manual_seed(0)
    sizes = {"num_embeddings": 5, "num_logits": 4, "d_state": 3, "backend": "reference"}
    model = Caduceus(10, 3, **{**sizes, **options}, num_classes=num_classes).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


class PerStrand(LabelEmbedding):
    """Broken twin: the second strand receives the label through another vector."""

    def forward(self, label: torch.Tensor | None, tokens: torch.Tensor) -> torch.Tensor:
        vectors = super().forward(label, tokens)
        first, second = vectors.chunk(2)
        return torch.cat((first, second.roll(1, dims=-1)))


def asymmetry(model: Caduceus, label: torch.Tensor | None) -> float:
    complement = torch.tensor(DNA)
    logits = model(Inputs(TOKENS, label=label))
    turned = model(Inputs(complement[TOKENS.flip(1)], label=label))
    gap = (turned - logits.flip(1)[..., complement[:4]]).abs().max()
    return (gap / logits.abs().max()).item()


@settings(max_examples=12)
@given(swap=st.booleans(), depth=st.integers(1, 3), labelled=st.booleans())
def test_ps_with_labels_is_equivariant(swap: bool, depth: int, labelled: bool) -> None:
    model = build(variant="ps", complement=DNA, swap_strands=swap)
    del model.layers[depth:]
    assert asymmetry(model, LABELS if labelled else None) < 1e-10
    twin = PerStrand(CLASSES, 10).double()
    twin.load_state_dict(model.label_embedding.state_dict())
    model.label_embedding = twin
    assert asymmetry(model, LABELS if labelled else None) > 1e-2


@pytest.mark.parametrize("variant", ["ph", "ps"])
def test_a_label_acts_on_its_own_row_alone(variant: str) -> None:
    model = build(variant=variant, complement=DNA)
    together = model(Inputs(TOKENS, label=LABELS))
    for row, label in enumerate(LABELS):
        alone = model(Inputs(TOKENS[row : row + 1], label=label[None]))
        torch.testing.assert_close(together[row : row + 1], alone, atol=1e-10, rtol=1e-10)
    other = model(Inputs(TOKENS, label=LABELS.roll(1)))
    assert (other - together).abs().amax(dim=(1, 2)).min() > 1e-2


@pytest.mark.parametrize("variant", ["ph", "ps"])
def test_no_label_has_a_row_of_its_own(variant: str) -> None:
    model = build(variant=variant, complement=DNA)
    none = model(Inputs(TOKENS, label=torch.full((4,), NO_LABEL)))
    assert torch.equal(none, model(Inputs(TOKENS)))
    for label in range(CLASSES):
        assert (none - model(Inputs(TOKENS, label=torch.full((4,), label)))).abs().max() > 1e-2


@pytest.mark.parametrize("variant", ["ph", "ps"])
def test_labelled_rows_do_not_see_padding(variant: str) -> None:
    model = build(variant=variant, complement=DNA)
    padding = torch.zeros(TOKENS.shape, dtype=torch.bool)
    padding[:, :2] = padding[:, 7:] = True
    padded = model(Inputs(TOKENS, padding=padding, label=LABELS))[:, 2:7]
    bare = model(Inputs(TOKENS[:, 2:7], label=LABELS))
    torch.testing.assert_close(padded, bare, atol=1e-10, rtol=1e-10)


def test_other_weights_do_not_depend_on_the_number_of_classes() -> None:
    torch.manual_seed(3)
    plain = Caduceus(8, 2, num_embeddings=5, num_logits=4).state_dict()
    torch.manual_seed(3)
    labelled = Caduceus(8, 2, num_embeddings=5, num_logits=4, num_classes=2).state_dict()
    assert labelled.keys() - plain.keys() == {"label_embedding.table.weight"}
    assert all(torch.equal(labelled[name], weight) for name, weight in plain.items())
    assert labelled["label_embedding.table.weight"].shape == (3, 8)


def test_gradients_reach_the_labels_of_the_batch_alone() -> None:
    model = build()
    model(Inputs(TOKENS[:2], label=torch.tensor([2, NO_LABEL]))).sum().backward()
    touched = model.label_embedding.table.weight.grad.abs().sum(dim=1) > 0
    assert touched.tolist() == [True, False, False, True]


def test_who_is_a_labelled_backbone() -> None:
    assert build().num_classes == CLASSES
    assert build(None).num_classes is UniformBackbone(4).num_classes is None
    assert Denoiser(build(), Absorbing(4)).num_classes == CLASSES
    assert Denoiser(build(None), Absorbing(4)).num_classes is None
    assert Denoiser(UniformBackbone(4), Absorbing(4)).num_classes is None
    assert Denoiser(build(), Absorbing(4))(Inputs(TOKENS, label=LABELS)).shape == (4, 9, 4)


@pytest.mark.parametrize("backbone", [build(None), UniformBackbone(4)], ids=["Caduceus", "plain"])
def test_a_label_for_a_network_without_classes_is_refused(backbone: Backbone) -> None:
    message = r"^(Caduceus|UniformBackbone)\.label must be None for a network without classes"
    with pytest.raises(ValueError, match=message):
        Denoiser(backbone, Absorbing(4))(Inputs(TOKENS, label=LABELS))


def test_caduceus_refusals(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^Caduceus\.label must be None .*num_classes$"):
        build(None)(Inputs(TOKENS, label=LABELS))
    with pytest.raises(ValueError, match=r"^Caduceus\.num_classes must be an integer of at least"):
        build(0)
    with pytest.raises(ValueError, match=r"^Caduceus\.to_hub must be given a network without"):
        build().to_hub(tmp_path)
    with pytest.raises(IndexError):
        build()(Inputs(TOKENS, label=torch.full((4,), CLASSES)))


def labelled_batch(index: torch.Tensor) -> Batch:
    tokens = torch.zeros((len(index), 2), dtype=torch.int64)
    return Batch(tokens, tokens == 0, index, index % CLASSES)


def test_label_dropout_is_a_function_of_seed_and_index() -> None:
    """It has the requested rate: with 20,000 coins, |z| <= 4.9 has a false-alarm rate of 1e-6.

    A twin with p = 0.34 instead of 0.3 is 12 standard deviations off: power > 0.999.
    """
    noise, index = CounterNoise(7), torch.arange(20_000)
    whole = ConditionDropout(label=0.3)(labelled_batch(index), noise).label
    batches = [labelled_batch(part) for part in index.split(321)]
    parts = [ConditionDropout(label=0.3)(batch, noise).label for batch in batches]
    assert torch.equal(whole, torch.cat(parts))
    turned = ConditionDropout(label=0.3)(labelled_batch(index.flip(0)), noise).label
    assert torch.equal(whole, turned.flip(0))
    hidden = whole == NO_LABEL
    assert torch.equal(whole[~hidden], (index % CLASSES)[~hidden])
    deviation = (0.3 * 0.7 * len(index)) ** 0.5
    assert abs(int(hidden.sum()) - 0.3 * len(index)) < 4.9 * deviation
    assert abs(0.34 * len(index) - 0.3 * len(index)) > (4.9 + 4) * deviation, "the twin's power"
    other = ConditionDropout(label=0.3)(labelled_batch(index), CounterNoise(8)).label
    assert not torch.equal(whole, other), "the twin that ignores the seed"


def test_label_dropout_is_independent_of_the_other_noise() -> None:
    noise, index = CounterNoise(7), torch.arange(50)
    draws = [
        noise.uniform(index, 1, stream=stream)
        for stream in (TIME_STREAM, MASK_STREAM, AUGMENT_STREAM, LABEL_STREAM)
    ]
    assert not any(torch.equal(draws[-1], other) for other in draws[:-1])


def test_label_dropout_extremes_and_batches_without_labels() -> None:
    batch = labelled_batch(torch.arange(6))
    assert torch.equal(ConditionDropout(label=0.0)(batch, CounterNoise(0)).label, batch.label)
    assert (ConditionDropout(label=1.0)(batch, CounterNoise(0)).label == NO_LABEL).all()
    bare = replace(batch, label=None)
    assert ConditionDropout(label=0.5)(bare, CounterNoise(0)) is bare
    assert batch.to("meta").label.device.type == "meta"
    assert bare.to("meta").label is None

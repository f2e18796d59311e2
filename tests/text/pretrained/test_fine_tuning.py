"""Details of fine-tuning that scores do not show: decay, clipping, segments."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import BertTokenizerFast

from seqdiff.backbones import HubBackbone
from tests.text.pretrained.test_glue import sentences
from tests.text.pretrained.tiny_bert import save_bert
from text.evaluation.glue import Classifier, Recipe, encode, fine_tune


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_bert(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def backbone(checkpoint: Path) -> HubBackbone:
    return HubBackbone.from_hub(checkpoint)


def test_weights_decay_and_the_rate_rises_then_falls() -> None:
    """Without a gradient AdamW multiplies a weight by 1 - rate x decay
    (arXiv:1711.05101, alg. 2).
    """
    layer = torch.nn.Linear(2, 2, bias=False)
    layer.weight.grad = torch.zeros(2, 2)
    before = layer.weight.detach().clone()
    adam, rate = Recipe(0.1, epochs=2, batch_size=2, weight_decay=0.5).optimiser(layer, 100)
    rates = []
    for _ in range(100):
        rates.append(adam.param_groups[0]["lr"])
        adam.step()
        rate.step()
    wanted = [0.1 * min((k + 1) / 6, (100 - k) / 94) for k in range(100)]
    assert rates == pytest.approx(wanted)
    left = float(np.prod([1 - 0.5 * r for r in wanted]))
    torch.testing.assert_close(layer.weight.detach(), before * left)


def test_the_second_sentence_is_told_from_the_first(backbone: HubBackbone) -> None:
    model = Classifier(backbone.encoder, backbone.width).eval()
    tokens, segments = torch.tensor([[2, 5, 3, 7, 3]]), torch.tensor([[0, 0, 0, 1, 1]])
    real = torch.ones_like(tokens)
    with torch.no_grad():
        states = backbone.encoder(tokens, attention_mask=real, token_type_ids=segments)
        pooled = model.pooler(states.last_hidden_state[:, 0]).tanh()
        torch.testing.assert_close(model(tokens, segments, real), model.head(pooled))
        moved = model(tokens, segments, real) - model(tokens, 0 * segments, real)
    assert moved.abs().max() > 1e-6


def test_gradients_are_clipped(checkpoint: Path, backbone: HubBackbone) -> None:
    """Clipping below AdamW's epsilon keeps the weights; without clipping a rate of 3e-3 learns."""
    tokenizer = BertTokenizerFast.from_pretrained(checkpoint)
    train, dev = (encode(tokenizer, sentences(n, s), 24) for n, s in ((200, 2), (60, 3)))
    for clip, still in ((1e-30, True), (1.0, False)):
        recipe = Recipe(3e-3, epochs=3, batch_size=16, weight_decay=0.0, clip=clip)
        found = fine_tune(backbone.encoder, backbone.width, train, dev, recipe=recipe)
        assert (found[0] == found[1] == found[2]) == still

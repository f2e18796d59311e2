"""Embeddings: one vector per base for either strand, from the requested layer."""

import numpy as np
import pytest
import torch
from torch import nn

from genomics.sequence.alphabet import encode, reverse_complement
from seqdiff.backbones import AutoregressiveTransformer, Backbone, BlockMamba, Caduceus, Transformer
from seqdiff.run.prediction import states

SIZES = {"num_embeddings": 5, "num_logits": 4}
DNA = torch.tensor((3, 2, 1, 0, 4))


def embed(model: Backbone, rows: np.ndarray, layer: int | None = None) -> np.ndarray:
    return states(model, rows, DNA[:4].tolist(), layer)


def networks() -> dict[str, Backbone]:
    torch.manual_seed(0)
    ps = {"variant": "ps", "complement": DNA.tolist()}
    context = {**SIZES, "max_length": 16}
    built = {
        "ph": Caduceus(8, 2, **SIZES),
        "ps": Caduceus(8, 2, **SIZES, **ps),
        "swapped": Caduceus(8, 3, **SIZES, **ps, swap_strands=True),
        "transformer": Transformer(16, 2, 2, **context, cond_dim=8),
        "timed": Transformer(16, 2, 2, **context, cond_dim=8, time_conditioned=True),
        "causal": AutoregressiveTransformer(16, 2, 2, **context),
        "mamba": BlockMamba(8, 2, **SIZES),
    }
    for model in built.values():
        for parameter in model.eval().parameters():
            nn.init.normal_(parameter, std=0.3)
    return built


@pytest.mark.parametrize("name", list(networks()))
@pytest.mark.parametrize("layer", [0, 1, None])
def test_embeddings_belong_to_bases_on_either_strand(name: str, layer: int | None) -> None:
    """Those of the reverse complement are equal in reverse order; rows do not mix."""
    model = networks()[name]
    rows = np.stack([encode("ACGTTGNAACG"), encode("TTTGACCCATG")])
    found = embed(model, rows, layer)
    there = embed(model, reverse_complement(rows), layer)
    assert found.shape[:2] == rows.shape and found.std() > 0
    np.testing.assert_allclose(found, there[:, ::-1], rtol=1e-4, atol=1e-5)
    assert np.abs(found - there).max() > 1e-2, "the twin that does not read backwards"
    np.testing.assert_allclose(found[1:], embed(model, rows[1:], layer), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["ph", "ps"])
@pytest.mark.parametrize("layer", [0, 1, 2])
def test_embeddings_by_hand(name: str, layer: int) -> None:
    """The mean of the residual streams of a row and of its reverse complement."""
    model = networks()[name]
    assert isinstance(model, Caduceus)
    ids = torch.from_numpy(encode("ACGTTGNAACG").astype(np.int64))[None]

    def stream(row: torch.Tensor) -> torch.Tensor:
        x = model.embedding(row)
        for block in model.layers[:layer]:
            x = block(x)
        return x

    with torch.no_grad():
        here, there = stream(ids), stream(DNA[ids.flip(1)]).flip(1)
    found = embed(model, ids.numpy().astype(np.uint8), layer)
    np.testing.assert_allclose(found, ((here + there) / 2).numpy(), rtol=1e-5, atol=1e-6)
    assert np.abs(found - here.numpy()).max() > 1e-2, "the twin of one strand"


def test_a_network_of_both_strands_is_run_once() -> None:
    model = networks()["ps"]
    assert isinstance(model, Caduceus)
    seen: list[torch.Size] = []
    model.embedding.register_forward_hook(lambda module, inputs, output: seen.append(output.shape))
    assert embed(model, encode("ACGTTGNAACG")[None]).shape == (1, 11, 8)
    assert seen == [(2, 11, 8)]

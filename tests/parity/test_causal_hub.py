"""GPT-2 checkpoints as backbones: causal at first, then open, with shifted logits."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from seqdiff.backbones import HubCausalBackbone
from seqdiff.data import HubTokenizer
from seqdiff.types import Inputs
from tests.text.pretrained.tiny_gpt2 import CONTEXT, log_probs, save_gpt2, weights


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_gpt2(tmp_path_factory.mktemp("gpt2"))


def load(folder: Path, steps: int) -> HubCausalBackbone:
    size = HubTokenizer(str(folder)).vocab_size
    sizes = {"num_embeddings": size + 1, "num_logits": size}
    return HubCausalBackbone(str(folder), annealing_steps=steps, **sizes).eval()


@torch.no_grad()
def test_a_closed_network_is_the_checkpoint(folder: Path) -> None:
    backbone, tokenizer = load(folder, 4), HubTokenizer(str(folder))
    ids = torch.tensor(tokenizer.encode("the cat sat on")).long()[None]
    network = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    wanted = network(torch.cat((torch.zeros_like(ids[:, :1]), ids), dim=1)).logits[:, :-1]
    found = backbone(Inputs(ids))
    torch.testing.assert_close(found[..., 1:], wanted[..., 1:], rtol=0, atol=2e-5)
    assert bool((found[..., 0] == -torch.inf).all()), "the start token is never predicted"
    where = torch.zeros_like(ids, dtype=torch.bool)
    where[0, 2] = True
    torch.testing.assert_close(backbone(Inputs(ids), where), found[where])


@torch.no_grad()
def test_an_open_network_reads_both_sides_and_the_mask_is_a_mean(folder: Path) -> None:
    backbone, tokenizer = load(folder, 0), HubTokenizer(str(folder))
    size = tokenizer.vocab_size
    ids = np.array([*tokenizer.encode("the dog")], dtype=np.int64)
    tokens = torch.from_numpy(ids)[None].clone()
    tokens[0, 1] = size
    w = weights(transformers.AutoModelForCausalLM.from_pretrained(folder))
    w["wte.weight"] = np.concatenate((w["wte.weight"], w["wte.weight"].mean(0, keepdims=True)))
    row, n = np.array([0, *tokens[0].tolist()]), len(ids) + 1
    for seen in (np.ones((n, n), bool), np.tril(np.ones((n, n), bool))):
        logits = log_probs(w, row, seen)[:-1, 1:size]
        wanted = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
        found = backbone(Inputs(tokens))[0, :, 1:].double().log_softmax(dim=-1).numpy()
        near = np.abs(found - wanted).max() < 1e-4
        assert near == seen[0, -1], "and it is not causal"


@torch.no_grad()
def test_half_of_the_later_positions_are_open_half_way(folder: Path) -> None:
    backbone = load(folder, 4)
    backbone.set_step(1)
    assert float(backbone.openness) == 0.5
    tokens = torch.arange(1, CONTEXT).repeat(2, 1)
    padding = torch.zeros_like(tokens, dtype=torch.bool)
    padding[1, -4:] = True
    inputs = Inputs(tokens, padding=padding)
    found = backbone(inputs)
    assert torch.equal(found, backbone(inputs)), "always the same pairs outside of training"
    alone = backbone(Inputs(tokens[1:, :-4]))
    torch.testing.assert_close(found[1, :-4], alone[0], rtol=0, atol=1e-5)
    assert (found[0, :-4] - alone[0]).abs()[:, 1:].max() > 1e-3, "padding that is read"
    like = torch.zeros(1, CONTEXT, 1)
    # 66 pairs: a fraction within 4 standard errors of 1/2, one in 16,000 draws is outside.
    upper = torch.ones(CONTEXT, CONTEXT).triu(1).bool()
    opened = backbone.train()._seen(CONTEXT, None, like)[0, 0] == 0
    assert abs(float(opened[upper].float().mean()) - 0.5) < 4 * 0.5 / 66**0.5
    assert bool(opened[~upper].all())
    assert not torch.equal(opened, backbone._seen(CONTEXT, None, like)[0, 0] == 0)
    backbone.set_step(9)
    assert bool((backbone._seen(CONTEXT, None, like) == 0).all())


def test_gradients_and_bad_arguments(folder: Path, tmp_path: Path) -> None:
    backbone = load(folder, 0)
    tokens = torch.tensor([[5, backbone.vocab_size, 7]])
    backbone(Inputs(tokens))[0, 1, 5].backward()
    slopes = {name: weight.grad for name, weight in backbone.named_parameters()}
    assert all(slope is not None and bool(slope.isfinite().all()) for slope in slopes.values())
    assert slopes["mask_embedding"].abs().max() > 0
    with pytest.raises(ValueError, match=rf"at most max_length = {CONTEXT - 1} per row, got"):
        backbone(replace(Inputs(tokens), tokens=torch.ones(1, CONTEXT, dtype=torch.int64)))
    with pytest.raises(ValueError, match=r"annealing_steps must be at least 0, got -1"):
        load(folder, -1)
    other = transformers.GPTNeoXConfig(
        vocab_size=backbone.vocab_size,
        **{"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1},
        intermediate_size=8,
    )
    mixed = save_gpt2(tmp_path / "mixed")
    transformers.AutoModelForCausalLM.from_config(other).save_pretrained(mixed)
    with pytest.raises(ValueError, match=r"must be a GPT-2 with a bos_token_id .* type gpt_neox"):
        load(mixed, 0)

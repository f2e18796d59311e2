"""Masked language models of transformers as backbones: the same logits, through the core's ids."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from jaxtyping import Bool, Float
from torch import Tensor

from seqdiff.backbones import HubBackbone
from seqdiff.data import HubTokenizer
from seqdiff.denoiser.discrete import Denoiser
from seqdiff.process import Absorbing
from seqdiff.types import Inputs
from tests.hub_models import FAMILIES, save_family
from tests.text.pretrained.tiny_bert import save_bert

TOLERANCE = 2e-6


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("hub")
    return {name: save_family(name, root / name, spare=5) for name in FAMILIES}


def example(family: str, folder: Path) -> tuple[Tensor, Bool[Tensor, "2 L"]]:
    """Two rows with masks; the second ends with padding."""
    tokenizer = HubTokenizer(str(folder))
    ids = torch.tensor(tokenizer.encode(FAMILIES[family][-1])).long()
    tokens, padding = torch.stack((ids, ids)), torch.zeros(2, len(ids), dtype=torch.bool)
    tokens[0, 2] = tokens[1, 1] = tokenizer.vocab_size
    padding[1, -2:] = True
    tokens[padding] = tokenizer.vocab_size
    return tokens, padding


def by_transformers(folder: Path, row: Tensor) -> tuple[Float[Tensor, "L V"], list[Tensor]]:
    """Logits and hidden states of one row as the model's own tokenizer frames it."""
    network = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    size = len(tokenizer)
    ids = [tokenizer.mask_token_id if i == size else i for i in row.tolist()]
    framed = tokenizer("A").input_ids
    first = [i for i in framed[:1] if i == tokenizer.cls_token_id]
    last = [i for i in framed[-1:] if i in (tokenizer.sep_token_id, tokenizer.eos_token_id)]
    whole = torch.tensor([[*first, *ids, *last]])
    found = network(
        input_ids=whole, attention_mask=torch.ones_like(whole), output_hidden_states=True
    )
    inside = slice(len(first), len(first) + len(ids))
    return found.logits[0, inside], [states[0, inside] for states in found.hidden_states]


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_logits_and_states_are_those_of_transformers(family: str, folders: dict[str, Path]) -> None:
    folder = folders[family]
    backbone, facts = HubBackbone.from_hub(folder).eval(), HubTokenizer(str(folder)).facts
    tokens, padding = example(family, folder)
    ours = backbone(Inputs(tokens, padding=padding))
    size, never = len(facts.names), list(facts.reserved)
    ordinary = [place for place in range(size) if place not in never]
    assert ours.shape == (2, tokens.shape[1], size) and facts.mask_id in never
    for row, hidden, ends in zip(ours, tokens, padding, strict=True):
        wanted, states = by_transformers(folder, hidden[~ends])
        found = row[~ends]
        torch.testing.assert_close(found[:, ordinary], wanted[:, ordinary], rtol=0, atol=TOLERANCE)
        assert bool((found[:, never] == -torch.inf).all()), "special tokens are never predicted"
        assert len(states) == backbone.num_layers + 1
        for layer, state in enumerate(states):
            mine = backbone.hidden(Inputs(tokens, padding=padding), layer)
            mine = mine[tokens.eq(hidden).all(dim=1)][0][~ends]
            torch.testing.assert_close(mine, state, rtol=0, atol=TOLERANCE)
    where = (tokens == size) & ~padding
    some = backbone(Inputs(tokens, padding=padding), where)
    torch.testing.assert_close(some, ours[where], rtol=0, atol=TOLERANCE)
    unframed = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    shown = tokens[:1].masked_fill(tokens[:1] == size, facts.mask_id or 0)
    twin = unframed(input_ids=shown, attention_mask=torch.ones_like(shown)).logits[0]
    assert (twin[:, ordinary] - ours[0][:, ordinary]).abs().max() > 1e-3, "without a frame"


def test_vectors_take_the_same_way_where_ids_are_only_embedded(folders: dict[str, Path]) -> None:
    backbone = HubBackbone.from_hub(folders["roberta"]).eval()
    tokens, padding = example("roberta", folders["roberta"])
    inputs = Inputs(tokens, padding=padding)
    found = backbone.head(backbone.body(backbone.embed(inputs), inputs), inputs)
    torch.testing.assert_close(found[~padding], backbone(inputs)[~padding])


@pytest.mark.parametrize(
    ("family", "positions"),
    [("bert", 38), ("roberta", 36), ("modernbert", 38), ("nucleotide-transformer", 37)],
)
def test_the_longest_row_fills_the_positions(
    family: str, positions: int, folders: dict[str, Path]
) -> None:
    """RoBERTa's and ESM's learned positions start after the id of padding, 1."""
    backbone = HubBackbone.from_hub(folders[family]).eval()
    assert backbone.max_length == positions
    backbone(Inputs(torch.full((1, positions), backbone.vocab_size)))
    with pytest.raises(ValueError, match=rf"at most max_length = {positions} per row, got"):
        backbone(Inputs(torch.full((1, positions + 1), backbone.vocab_size)))


def test_gradients_dropout_and_the_denoiser(folders: dict[str, Path]) -> None:
    backbone = HubBackbone.from_hub(folders["bert"])
    size = backbone.vocab_size
    tokens = torch.tensor([[6, size, 8]])
    assert not torch.equal(backbone(Inputs(tokens))[..., 6:], backbone(Inputs(tokens))[..., 6:])
    denoiser = Denoiser(backbone, Absorbing(size)).eval()
    log_probs = denoiser(Inputs(tokens))
    torch.testing.assert_close(log_probs.exp().sum(dim=-1), torch.ones(1, 3))
    assert bool((log_probs[0, 1, :6] == -torch.inf).all())
    (-log_probs[0, 1, 6]).backward()
    slopes = [weight.grad for weight in backbone.parameters() if weight.grad is not None]
    assert len(slopes) > 20 and all(bool(slope.isfinite().all()) for slope in slopes)
    with pytest.raises(ValueError, match=r"HubBackbone.label must be None for a network"):
        backbone(Inputs(tokens, label=torch.tensor([0])))


@pytest.mark.parametrize(
    ("family", "text", "tokens", "unit", "number"),
    [
        ("bert", "The dog is? [SEP]", ["the", "dog", "is"], "byte", 10),
        ("roberta", "dög ", ["d", "Ã", "¶", "g", "Ġ"], "byte", 5),
        ("esm-2", "mkTL?", [*"MKTL"], "residue", 4),
        ("nucleotide-transformer", "GATTACAGG", ["GAT", "TAC", "AGG"], "base", 9),
        ("nucleotide-transformer", "GATTACANG", ["GAT", "TAC", "A", "N", "G"], "base", 9),
        ("gena-lm", "gattacAacg", ["G", "A", "T", "T", "AC", "A", "ACG"], "base", 10),
    ],
)
def test_tokens_and_their_units(
    family: str, text: str, tokens: list[str], unit: str, number: int, folders: dict[str, Path]
) -> None:
    tokenizer = HubTokenizer(str(folders[family]))
    ids = tokenizer.encode(text)
    known = ids[ids < tokenizer.vocab_size]
    assert [tokenizer.facts.names[i] for i in known] == tokens
    assert not set(known.tolist()) & set(tokenizer.reserved_ids), "unknown text has the id K"
    assert (tokenizer.unit, tokenizer.num_units(ids)) == (unit, number)
    if unit != "byte":
        assert tokenizer.decode(known) == "".join(tokens)
    elif family == "roberta":
        assert tokenizer.decode(ids) == text
    if "[SEP]" in text or "?" in text:
        assert (ids == tokenizer.vocab_size).any()


def test_templates_and_fingerprints(folders: dict[str, Path], tmp_path: Path) -> None:
    tokenizer = HubTokenizer(str(folders["nucleotide-transformer"]))
    allowed = tokenizer.allowed("GAT[MASK:2]ACG")
    assert allowed.shape == (4, tokenizer.vocab_size)
    assert allowed.sum(axis=1).tolist() == [1, tokenizer.vocab_size, tokenizer.vocab_size, 1]
    copied = save_family("nucleotide-transformer", tmp_path / "copy", seed=1)
    assert HubTokenizer(str(copied)).fingerprint == tokenizer.fingerprint
    prints = {HubTokenizer(str(folder)).fingerprint for folder in folders.values()}
    assert len(prints) == 5, "BERT, DistilBERT, DeBERTa and ELECTRA share a tokenizer here"


def edit(path: Path, **fields: object) -> None:
    content = json.loads(path.read_text())
    path.write_text(json.dumps({k: v for k, v in {**content, **fields}.items() if v is not None}))


def test_folders_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    folder = save_family("bert", tmp_path / "a")

    def said(folder: Path = folder) -> str:
        with pytest.raises((OSError, ValueError)) as caught:
            HubBackbone.from_hub(folder)
        assert "\n" not in str(caught.value) and str(caught.value).startswith("HubBackbone.")
        return str(caught.value)

    config, settings = folder / "config.json", folder / "tokenizer_config.json"
    written, weights = config.read_text(), folder / "model.safetensors"
    edit(config, auto_map={"AutoModelForMaskedLM": "modeling_bert.BertForMaskedLM"})
    assert "must do without code of its own, which is never run, got auto_map in" in said()
    edit(config, auto_map=None, model_type="hyena")
    assert "of an architecture that AutoModelForMaskedLM of transformers has, got 'hy" in said()
    edit(config, model_type="gpt2")
    assert "of transformers has, got 'gpt2'" in said()
    config.write_text(written)
    edit(settings, auto_map={"AutoTokenizer": ["tokenization.Own", None]})
    assert "got auto_map in" in said() and "tokenizer_config.json" in said()
    edit(settings, auto_map=None)
    edit(config, vocab_size=200)
    assert "must hold the weights of its config.json, got" in said()
    config.write_text(written)
    edit(config, num_hidden_layers=1)
    assert "must hold the weights of its config.json, got 16 unexpected weights" in said()
    config.write_text(written)
    weights.rename(folder / "pytorch_model.bin")
    assert "pickled weights are not loaded: convert the model" in said()
    other = save_family("esm-2", tmp_path / "c")
    for file in ("tokenizer_config.json", "vocab.txt"):
        (other / file).rename(tmp_path / file)
    assert "must hold a tokenizer, got none of tokenizer.json, tokenizer_config" in said(other)
    other = save_family("gena-lm", tmp_path / "b")
    edit(other / "tokenizer_config.json", mask_token=None)
    assert "must have a tokenizer with a mask token, got none in" in said(other)


def test_tokens_that_are_not_those_of_the_network_are_refused(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    """Single bases for a network of k-mers, and k-mers for a network of residues."""
    for of, tokens in (("gena-lm", "roberta"), ("roberta", "gena-lm")):
        mixed = tmp_path / of
        mixed.mkdir()
        for path in folders[of].iterdir():
            (mixed / path.name).write_bytes(path.read_bytes())
        for path in folders[tokens].glob("*token*"):
            (mixed / path.name).write_bytes(path.read_bytes())
        with pytest.raises(ValueError, match=r"must have an embedding for each token of its tok"):
            HubBackbone.from_hub(mixed)
    with pytest.raises(ValueError, match=r"as many tokens as data.tokenizer, 18, got 17 in .*; us"):
        HubBackbone(str(folders["bert"]), num_embeddings=19, num_logits=18)


def test_published_heads_may_be_there(tmp_path: Path) -> None:
    assert HubBackbone.from_hub(save_bert(tmp_path, pretraining=True)).vocab_size == 16

"""A BERT checkpoint as a backbone: the same logits, through the core's ids."""

from pathlib import Path

import pytest
import torch
import yaml
from transformers import BertForMaskedLM

from seqdiff.cli.app import main
from seqdiff.denoiser.discrete import Denoiser
from seqdiff.process import Absorbing
from seqdiff.run import load as load_run
from seqdiff.types import Inputs
from tests.integration.conftest import BASE
from tests.text.pretrained.tiny_bert import MASK, SIZE, VOCAB, save_bert
from tests.text.pretrained.tiny_gpt2 import save_gpt2
from text.pretrained.bert import BertBackbone

HERE = "tests.text.pretrained.tiny_bert"
TOKENS = torch.tensor([[2, 5, SIZE, 7, 3], [2, SIZE, SIZE, 3, 0]])


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_bert(tmp_path_factory.mktemp("bert"))


def load(folder: Path, size: int = SIZE) -> BertBackbone:
    return BertBackbone(str(folder), num_embeddings=size + 1, num_logits=size).eval()


def test_logits_are_those_of_transformers(checkpoint: Path) -> None:
    backbone = load(checkpoint)
    assert backbone.mask_token_id == MASK
    shown = torch.where(TOKENS == SIZE, MASK, TOKENS)
    padding = torch.zeros_like(TOKENS, dtype=torch.bool)
    padding[1, 4] = True
    with torch.no_grad():
        reference = BertForMaskedLM.from_pretrained(checkpoint).eval()
        expected = reference(input_ids=shown, attention_mask=(~padding).long()).logits
        ours = backbone(Inputs(TOKENS, padding=padding))
        unpadded = backbone(Inputs(TOKENS))
        alone = backbone(Inputs(TOKENS[1:, :4]))
    real = torch.arange(SIZE) != MASK
    torch.testing.assert_close(ours[..., real], expected[..., real])
    assert bool((ours[..., MASK] == -torch.inf).all()), "no clean token is the mask"
    torch.testing.assert_close(ours[1, :4], alone[0])
    some = ~padding & (TOKENS == SIZE)
    torch.testing.assert_close(backbone(Inputs(TOKENS, padding=padding), some), ours[some])
    with pytest.raises(ValueError, match=r"BertBackbone.label must be None for a network"):
        backbone(Inputs(TOKENS, label=torch.tensor([0, 1])), some)
    assert not torch.allclose(unpadded[1, :4][:, real], alone[0][:, real], atol=1e-3), "the twin"
    twin = reference(input_ids=torch.where(TOKENS == SIZE, 1, TOKENS)).logits
    assert not torch.allclose(unpadded[..., real], twin[..., real], atol=1e-3), "[UNK] for [MASK]"


def test_hidden_states_are_those_of_transformers(checkpoint: Path) -> None:
    backbone = load(checkpoint)
    padding = torch.arange(5) >= torch.tensor([[5], [4]])
    shown = torch.where(TOKENS == SIZE, MASK, TOKENS)
    with torch.no_grad():
        reference = BertForMaskedLM.from_pretrained(checkpoint).eval()
        wanted = reference(
            input_ids=shown, attention_mask=(~padding).long(), output_hidden_states=True
        ).hidden_states
        assert len(wanted) == backbone.num_layers + 1
        inputs = Inputs(TOKENS, padding=padding)
        for layer, states in enumerate(wanted):
            assert torch.equal(backbone.hidden(inputs, layer), states)
        assert torch.equal(backbone.hidden(inputs), wanted[-1])
        assert states.shape[-1] == backbone.width


def test_its_dropout_is_that_of_training_until_eval(checkpoint: Path) -> None:
    backbone = BertBackbone(str(checkpoint), num_embeddings=SIZE + 1, num_logits=SIZE)
    assert (
        backbone.max_length
        == BertForMaskedLM.from_pretrained(checkpoint).config.max_position_embeddings
    )
    real = torch.arange(SIZE) != MASK
    assert not torch.equal(backbone(Inputs(TOKENS))[..., real], backbone(Inputs(TOKENS))[..., real])
    backbone.eval()
    assert torch.equal(backbone(Inputs(TOKENS)), backbone(Inputs(TOKENS)))


def test_the_denoiser_gives_the_mask_no_chance(checkpoint: Path) -> None:
    backbone = load(checkpoint)
    log_probs = Denoiser(backbone, Absorbing(SIZE))(Inputs(TOKENS))
    torch.testing.assert_close(log_probs.exp().sum(dim=-1), torch.ones(2, 5))
    assert bool((log_probs[TOKENS == SIZE][:, MASK] == -torch.inf).all())
    (-log_probs[0, 2, 6]).backward()
    slopes = [weight.grad for weight in backbone.parameters() if weight.grad is not None]
    assert len(slopes) > 20 and all(bool(slope.isfinite().all()) for slope in slopes)


def test_published_heads_may_be_there_but_nothing_may_be_missing(tmp_path: Path) -> None:
    full = save_bert(tmp_path / "full", pretraining=True)
    assert load(full).vocab_size == SIZE
    config = (full / "config.json").read_text()
    (full / "config.json").write_text(
        config.replace('"num_hidden_layers": 2', '"num_hidden_layers": 1')
    )
    with pytest.raises(ValueError, match=r"must hold the weights of its config.json, got .* unexp"):
        load(full)


def test_another_vocabulary_and_another_network_are_refused(
    checkpoint: Path, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=rf"tokenizer, {SIZE + 1}, got {SIZE} in .*; use the tok"):
        load(checkpoint, SIZE + 1)
    with pytest.raises(ValueError, match=r"BertBackbone.checkpoint must be a valid model, got"):
        load(save_gpt2(tmp_path))
    with pytest.raises(OSError, match=r"must be the folder of a model or a name on the hub"):
        BertBackbone("./no", num_embeddings=3, num_logits=2)


def train_on_text(tmp_path: Path, checkpoint: Path, vocabulary: Path, lowercase: bool) -> list[str]:
    (tmp_path / "a.txt").write_text("the dog is good .\n" * 9 + "a film was bad .\n" * 9)
    options = {"vocabulary": str(vocabulary), "lowercase": lowercase}
    tokenizer = {"class_path": "text.tokenizers.BertTokenizer", "init_args": options}
    data = {"tokenizer": tokenizer, "length": 8, "train": str(tmp_path / "a.txt"), "batch_size": 2}
    backbone = {"checkpoint": str(checkpoint)}
    content = {
        **BASE,
        "output": str(tmp_path / "run"),
        "data": {"class_path": "text.corpora.TextDataModule", "init_args": data},
        "backbone": {"class_path": "text.pretrained.BertBackbone", "init_args": backbone},
        "trainer": {**BASE["trainer"], "max_steps": 1, "val_check_interval": None},
    }
    data["split"] = [1.0, 0.0, 0.0]
    config = tmp_path / "bert.yaml"
    config.write_text(yaml.safe_dump(content))
    return ["train", str(config)]


def test_a_tokenizer_of_the_same_size_with_other_ids_is_refused(
    checkpoint: Path, tmp_path: Path, fails
) -> None:
    swapped = [*VOCAB[:5], *reversed(VOCAB[5:])]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "vocab.txt").write_text("\n".join(swapped) + "\n")
    said = fails(train_on_text(tmp_path, checkpoint, tmp_path / "other", True))
    assert "BertBackbone.checkpoint must have the same token ids as data.tokenizer (BertTok" in said
    assert f"id 5 is 'good' in {checkpoint}, but '.' in the tokenizer; use the tokenizer" in said
    said = fails(train_on_text(tmp_path, checkpoint, checkpoint, False))
    assert "must encode text as data.tokenizer does" in said and "data.tokenizer.lowercase" in said
    assert not (tmp_path / "run").exists()
    assert main(train_on_text(tmp_path, checkpoint, checkpoint, True)) == 0


@pytest.mark.parametrize("objective", ["ContinuousNELBO", "MaskedLM"])
def test_masked_diffusion_goes_on_from_the_checkpoint_which_may_then_go(
    checkpoint: Path, tmp_path: Path, objective: str, capsys
) -> None:
    folder = save_bert(tmp_path / "bert")
    content = {
        **BASE,
        "output": str(tmp_path / "run"),
        "data": {"class_path": f"{HERE}.WordData"},
        "backbone": {
            "class_path": "text.pretrained.BertBackbone",
            "init_args": {"checkpoint": str(folder)},
        },
        "objective": {"class_path": f"seqdiff.objectives.{objective}"},
        "trainer": {**BASE["trainer"], "max_steps": 3},
        "optim": {"lr": 1e-3},
    }
    config = tmp_path / "bert.yaml"
    config.write_text(yaml.safe_dump(content))
    assert main(["train", str(config)]) == 0
    trained = load_run(tmp_path / "run").denoiser.backbone
    before = dict(load(checkpoint).named_parameters())
    moved = {name: (w - before[name]).abs().max() for name, w in trained.named_parameters()}
    assert 0 < max(moved.values()) < 0.05, "a few steps from the published weights"
    table = ["evaluate", str(tmp_path / "run"), "--evaluations", "2"]
    capsys.readouterr()
    assert main(table) == 0
    with_folder = capsys.readouterr().out
    (tmp_path / "bert").rename(tmp_path / "gone")
    assert main(table) == 0 and capsys.readouterr().out == with_folder
    (tmp_path / "run").rename(tmp_path / "moved")
    alone = load_run(tmp_path / "moved").denoiser.backbone
    assert isinstance(alone, BertBackbone) and alone.mask_token_id == MASK
    assert torch.equal(alone(Inputs(TOKENS)), trained(Inputs(TOKENS)))
    (tmp_path / "moved").rename(tmp_path / "run")
    assert main(["train", "--resume", str(tmp_path / "run"), "--trainer.max_steps=4"]) == 0

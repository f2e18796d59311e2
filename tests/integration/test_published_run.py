"""A published MDLM folder as a run: evaluated, sampled, trained, and published again."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from torch import Tensor

from seqdiff.backbones import PublishedTransformer, Transformer
from seqdiff.backbones.transformer.hub import BlockDiffusionFields
from seqdiff.cli.app import main
from seqdiff.denoiser.discrete import Denoiser
from seqdiff.likelihood import StratifiedK, evaluate
from seqdiff.process import Absorbing
from seqdiff.run import load
from seqdiff.schedules import Cosine
from seqdiff.training.weights import encode_weights
from seqdiff.types import Inputs
from tests.oracles import TableBackbone
from tests.small_transformers import build

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "configs" / "experiment" / "text" / "bytes.yaml"
V = 257
LINES = "".join(f"line {i} of a text, {i * i} in all\n" for i in range(60))


def published(timed: bool = False) -> Transformer:
    return build(num_embeddings=V, num_logits=V, time_conditioned=timed).float()


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SEQDIFF_CACHE", str(tmp_path / "cache"))
    published().to_hub(tmp_path / "hub")
    return tmp_path / "hub"


def make(hub: Path, output: Path, *flags: str) -> list[str]:
    command = ["train", str(CONFIG), "--backbone=seqdiff.backbones.PublishedTransformer"]
    command += [f"--backbone.checkpoint={hub}", "--data.length=32", f"--output={output}"]
    corpus = output.parent / "corpus.txt"
    return [*command, f"--data.train={corpus}", "--trainer.enable_progress_bar=false", *flags]


class Reference(TableBackbone):
    """The published logits at the real symbols, or, as a broken twin, shifted by one."""

    def __init__(self, hub: Path, first: int = 0) -> None:
        super().__init__(V - 1)
        self.network, self.first = Transformer.from_hub(hub), first

    def logits(self, inputs: Inputs) -> Tensor:
        return self.network(inputs)[..., self.first : self.first + V - 1]


def test_a_run_without_training_bounds_as_the_published_logits_do(
    hub: Path, tmp_path: Path, capsys
) -> None:
    run, out = tmp_path / "run", tmp_path / "e.json"
    assert main(make(hub, run, "--trainer.max_steps=0")) == 0, "there is no corpus yet"
    assert f"{run}: written, not trained; next: " in capsys.readouterr().out
    assert {path.name for path in run.iterdir()} == {".lock", "run.yaml", "model.safetensors"}
    (tmp_path / "corpus.txt").write_text(LINES)
    assert main(["evaluate", str(run), "--json", str(out), "--evaluations=4"]) == 0
    found = json.loads(out.read_text())["rows"][0]["nats_per_token"]
    trained = load(run)

    def bound(first: int) -> float:
        batches = trained.datamodule.evaluation_loader("test")
        denoiser = Denoiser(Reference(hub, first).eval(), Absorbing(V - 1))
        return evaluate(denoiser, batches, estimator=StratifiedK(4)).nats_per_token

    assert found == pytest.approx(bound(0), rel=1e-5)
    assert abs(found - bound(1)) > 1e-2, "a shifted vocabulary would be seen"
    draw = ["sample", str(run), "--num=2", "--length=24", "--seed=1"]
    assert main([*draw, "--out", str(tmp_path / "s.jsonl")]) == 0
    records = [json.loads(line) for line in (tmp_path / "s.jsonl").read_text().splitlines()]
    assert len(records) == 2


def test_training_goes_on_from_it_and_is_published_again(hub: Path, tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text(LINES)
    run = tmp_path / "run"
    flags = ["--trainer.max_steps=3", "--trainer.val_check_interval=null", "--ema_decay=null"]
    tiny = ["--optim.lr=1e-12", "--optim.min_lr=0", "--optim.weight_decay=0"]
    assert main(make(hub, run, *flags, *tiny)) == 0
    before, after = published().state_dict(), load(run).denoiser.backbone
    assert isinstance(after, PublishedTransformer)
    torch.testing.assert_close(after.embedding.weight, before["embedding.weight"])
    assert main(make(hub, tmp_path / "more", *flags)) == 0
    moved = load(tmp_path / "more").denoiser.backbone
    assert isinstance(moved, PublishedTransformer)
    assert (moved.embedding.weight - before["embedding.weight"]).abs().max() > 1e-6
    moved.to_hub(tmp_path / "again")
    again = PublishedTransformer(str(tmp_path / "again"), num_embeddings=V, num_logits=V - 1)
    tokens = torch.randint(V, (2, 9), generator=torch.Generator().manual_seed(0))
    assert all(module.training for module in again.modules()), "or else without dropout"
    assert torch.equal(again.eval()(Inputs(tokens)), moved(Inputs(tokens)))


def test_a_run_stands_on_its_own_when_the_folder_and_the_run_have_moved(
    hub: Path, tmp_path: Path, fails: Callable[[list[str]], str]
) -> None:
    (tmp_path / "corpus.txt").write_text(LINES)
    flags = ["--trainer.val_check_interval=null", "--optim.warmup_steps=1"]
    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    assert main(make(hub, straight, "--trainer.max_steps=4", *flags)) == 0
    assert main(make(hub, stopped, "--trainer.max_steps=2", *flags)) == 0
    written = yaml.safe_load((stopped / "run.yaml").read_text())["backbone"]
    hub.rename(tmp_path / "gone")
    assert main(["train", "--resume", str(stopped), "--trainer.max_steps=4"]) == 0
    straight.rename(tmp_path / "moved")
    alone, gone_on = load(tmp_path / "moved"), load(stopped)
    assert isinstance(alone.denoiser.backbone, PublishedTransformer)
    wanted, found = alone.denoiser.state_dict(), gone_on.denoiser.state_dict()
    assert wanted.keys() == found.keys()
    assert all(torch.equal(wanted[name], found[name]) for name in wanted), "bit-identical"
    again = yaml.safe_load((stopped / "run.yaml").read_text())["backbone"]
    assert again == written and written["init_args"]["checkpoint"] == str(hub)

    content = yaml.safe_load((stopped / "run.yaml").read_text())
    del content["backbone"]["init_args"]["published_shape"]
    (stopped / "run.yaml").write_text(yaml.safe_dump(content))
    said = fails(["evaluate", str(stopped)])
    assert f"{hub / 'config.json'} does not exist" in said, "the twin that keeps no shape"


LISTS = {
    "vocab.txt": lambda names: "\n".join(names) + "\n",
    "vocab.json": lambda names: json.dumps({name: i for i, name in enumerate(names)}),
    "encoder.json": lambda names: json.dumps({name: i for i, name in enumerate(names)}),
    "tokenizer.json": lambda names: json.dumps(
        {
            "model": {"vocab": {name: i for i, name in enumerate(names[:-1])}},
            "added_tokens": [{"id": len(names) - 1, "content": names[-1]}],
        }
    ),
}
LETTERS = "abcdefghij"


@pytest.mark.parametrize("name", LISTS)
def test_a_tokenizer_beside_it_must_be_the_runs(
    tmp_path: Path, fails: Callable[[list[str]], str], name: str
) -> None:
    hub = tmp_path / "hub"
    build(num_embeddings=11, num_logits=11, time_conditioned=False).float().to_hub(hub)
    command = make(hub, tmp_path / "run", "--trainer.max_steps=0")
    command += ["--data.tokenizer=text.tokenizers.CharacterTokenizer"]
    command += [f"--data.tokenizer.characters={LETTERS}"]
    (hub / name).write_text(LISTS[name]([*LETTERS[:8], "j", "i", "[MASK]"]))
    said = fails(command)
    assert (
        "checkpoint must have the same token ids as data.tokenizer (CharacterTokenizer of" in said
    )
    assert f"id 8 is 'j' in {hub / name}, but 'i' in the tokenizer; use the tokenizer of" in said
    assert not (tmp_path / "run").exists()
    (hub / name).write_text(LISTS[name]([*LETTERS, "[MASK]"]))
    assert main(command) == 0


def test_a_damaged_tokenizer_beside_it_is_named(
    hub: Path, tmp_path: Path, fails: Callable[[list[str]], str]
) -> None:
    (hub / "tokenizer.json").write_text('{"model": 3}')
    said = fails(make(hub, tmp_path / "run", "--trainer.max_steps=0"))
    assert f"{hub / 'tokenizer.json'} must hold a vocabulary of the tokenizers library" in said


def test_weights_for_another_tokenizer_are_refused(
    hub: Path, tmp_path: Path, fails: Callable[[list[str]], str]
) -> None:
    run, corpus = tmp_path / "run", tmp_path / "corpus.txt"
    corpus.write_text(LINES)
    assert main(make(hub, run, "--trainer.max_steps=0")) == 0
    weights = run / "model.safetensors"
    tensors = load_file(weights)
    save_file(tensors, weights)
    found = load(run)  # as written before weights named their kind
    tokenizer, model = found.tokenizer.fingerprint, found.denoiser.description
    save_file(tensors, weights, metadata={"tokenizer": "another"})
    old = fails(["evaluate", str(run)])
    for written in (tensors, dict(reversed(tensors.items()))):
        weights.write_bytes(encode_weights(written, "another", model))
        said = fails(["evaluate", str(run)])
        assert said == old, "the first files had a key of their own for it"
        assert f"{weights} must be for the tokenizer of run.yaml (" in said
        assert "got weights for another; use the run.yaml that was written with it" in said
    weights.write_bytes(encode_weights(tensors, tokenizer, "process ring with its own scores"))
    assert f"{weights} must be of the process absorbing with" in fails(["evaluate", str(run)])
    for unsound in ("another", "7", "[1]"):
        save_file(tensors, weights, metadata={"seqdiff": unsound})
        said = fails(["evaluate", str(run)])
        assert f"{weights} must hold JSON under seqdiff in its metadata, got" in said


def test_a_time_conditioned_one_is_told_sigma(hub: Path) -> None:
    published(timed=True).to_hub(hub)
    net = PublishedTransformer(str(hub), num_embeddings=V, num_logits=V - 1).eval()
    tokens, sigma = torch.full((2, 5), V - 1), torch.tensor([0.1, 2.0])
    wanted = Transformer.from_hub(hub)(Inputs(tokens, sigma=sigma))[..., : V - 1]
    assert torch.equal(net(Inputs(tokens, sigma=sigma)), wanted)
    assert not torch.equal(net(Inputs(tokens, sigma=sigma.flip(0))), wanted)
    told = Denoiser(net, Absorbing(V - 1, Cosine())).eval()
    t = torch.tensor([0.1, 0.9])
    sigma = -torch.cos(torch.pi / 2 * t).log()
    wanted, shifted = (net(Inputs(tokens, sigma=s)).log_softmax(-1) for s in (sigma, sigma.flip(0)))
    torch.testing.assert_close(told(Inputs(tokens, t)), wanted)
    assert (wanted - shifted).abs().max() > 1e-2, "the twin that is told another noise"
    with pytest.raises(ValueError, match=r"Denoiser.inputs.t must be given"):
        told(Inputs(tokens))


@pytest.mark.usefixtures("unchecked")
def test_what_does_not_fit_is_one_line_and_leaves_nothing(
    hub: Path, tmp_path: Path, fails: Callable[[list[str]], str]
) -> None:
    command = make(hub, tmp_path / "run", "--trainer.max_steps=0")
    tokenizer = "--data.tokenizer=text.tokenizers.Text8Tokenizer"
    said = fails([*command, tokenizer])
    assert f"embed the tokens of data.tokenizer and the mask, 28, got 257 in {hub}" in said
    said = fails([*command, "--trainer.max_steps=-1"])
    assert "TrainerConfig.max_steps must be at least 0, got -1" in said
    model = published()
    model.block_fields = BlockDiffusionFields(4)
    model.to_hub(hub)
    assert "must be an MDLM, got a BD3-LM" in fails(command)
    (hub / "model.safetensors").rename(hub / "pytorch_model.bin")
    published().to_hub(tmp_path / "other")
    (hub / "config.json").write_bytes((tmp_path / "other" / "config.json").read_bytes())
    assert "only pytorch_model.bin, which is not read since unpickling" in fails(command)
    (hub / "pytorch_model.bin").rename(hub / "model.safetensors")
    config = json.loads((hub / "config.json").read_text())
    (hub / "config.json").write_text(json.dumps({**config, "n_blocks": 2}))
    assert "does not fit its config.json: missing none; unexpected" in fails(command)
    assert "config.json does not exist" in fails(make(tmp_path, tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_a_run_that_was_not_trained_is_kept_and_not_resumed(
    hub: Path, tmp_path: Path, fails: Callable[[list[str]], str]
) -> None:
    command = make(hub, tmp_path / "run", "--trainer.max_steps=0")
    assert main(command) == 0
    written = (tmp_path / "run" / "model.safetensors").read_bytes()
    assert "must not hold weights already" in fails(command)
    assert "must exist to resume" in fails(["train", "--resume", str(tmp_path / "run")])
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == written
    signed = yaml.safe_load((tmp_path / "run" / "run.yaml").read_text())["provenance"]
    assert signed["tokenizer"] == load(tmp_path / "run").tokenizer.fingerprint


def test_a_shape_without_weights_starts_no_run(
    hub: Path, tmp_path: Path, fails: Callable[[list[str]], str]
) -> None:
    """Otherwise run.yaml, used as a configuration, would train random weights."""
    assert main(make(hub, tmp_path / "run", "--trainer.max_steps=0")) == 0
    said = fails(["train", str(tmp_path / "run" / "run.yaml"), f"--output={tmp_path / 'again'}"])
    assert "published_shape must be left out of what starts a run" in said
    assert not (tmp_path / "again").exists()

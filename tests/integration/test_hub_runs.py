"""Published masked language models in every command: without training, and further trained."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
import yaml
from safetensors.torch import load_file

import seqdiff
from seqdiff.cli.app import main
from seqdiff.data import HubTokenizer
from seqdiff.run import Run
from seqdiff.types import Inputs
from tests.hub_models import DNA, FAMILIES, PROTEIN, TEXT, save_family
from tests.text.pretrained.tiny_gpt2 import save_gpt2

KINDS = ("roberta", "esm-2", "nucleotide-transformer", "gena-lm")
PROTEINS = ["MKTLAGVX", "MKKTLLAGV", "MMKTLA", "MKTTLAA", "MKTLLAGVA", "LLMKTAAGG"]


@pytest.fixture(scope="session")
def hubs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("hubs")
    return {name: save_family(name, root / name) for name in KINDS}


@pytest.fixture(scope="module")
def fasta(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fasta") / "proteins.fasta"
    lines = [f">p{number} x\n{text[:4]}\n{text[4:]}\n" for number, text in enumerate(PROTEINS)]
    path.write_text("".join(lines))
    return path


def nats(folder: Path, text: str, masked: list[int]) -> np.ndarray:
    """-log p of the masked tokens of a sequence by transformers, special tokens left out."""
    network = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    facts = HubTokenizer(str(folder)).facts
    ids = HubTokenizer(str(folder)).encode(text).tolist()
    shown = [facts.mask_id if i in masked else token for i, token in enumerate(ids)]
    whole = torch.tensor([[*facts.before, *shown, *facts.after]])
    with torch.no_grad():
        found = network(input_ids=whole, attention_mask=torch.ones_like(whole)).logits[0].double()
    found[:, list(facts.reserved)] = -torch.inf
    log_probs = found.log_softmax(dim=-1)[len(facts.before) :]
    return np.array([-float(log_probs[i, ids[i]]) for i in masked])


@pytest.mark.parametrize(
    ("family", "text", "units"),
    [("esm-2", "MK", 2), ("nucleotide-transformer", "GATTAC", 6), ("gena-lm", "ACGT", 4)],
)
def test_a_zero_shot_bound_is_the_mean_over_orders(
    family: str, text: str, units: int, hubs: dict[str, Path]
) -> None:
    """Two tokens have two orders (Uria et al. 2014, arXiv:1310.1757, equation 5)."""
    run = seqdiff.load(hubs[family])
    together, first, second = (nats(hubs[family], text, m) for m in ([0, 1], [0], [1]))
    wanted = (together.sum() + first[0] + second[0]) / 2
    (score,) = run.score([text], evaluations=64)
    assert score.counted == 2 and score.units == units and score.standard_error is not None
    assert score.nats == pytest.approx(wanted, abs=4 * score.standard_error + 1e-4)
    assert score.nats != pytest.approx(together.sum(), abs=1e-3), "a twin: all masked"
    assert score.bits_per_unit == pytest.approx(score.nats / units / np.log(2))


@pytest.mark.parametrize("family", KINDS)
def test_samples_infilling_and_embeddings(family: str, hubs: dict[str, Path]) -> None:
    run, text = seqdiff.load(hubs[family]), FAMILIES[family][-1]
    special = [run.tokenizer.facts.names[i] for i in run.tokenizer.reserved_ids]
    for drawn in run.sample(4, length=12, seed=0):
        assert not any(name in drawn for name in special)
    (filled,) = run.infill(f"{text[:6]}[MASK:3]{text[6:]}", seed=1)
    assert filled.startswith(text[:6]) and filled.endswith(text[6:]) and len(filled) > len(text)
    (embedded,) = run.embed([text])
    ids = run.tokenizer.encode(text)
    facts = run.tokenizer.facts
    whole = torch.tensor([[*facts.before, *ids.tolist(), *facts.after]])
    network = transformers.AutoModelForMaskedLM.from_pretrained(hubs[family]).eval()
    with torch.no_grad():
        states = network.base_model(whole, attention_mask=torch.ones_like(whole))[0][0]
    states = states[len(facts.before) : len(facts.before) + len(ids)]
    np.testing.assert_allclose(embedded, states.mean(dim=0), atol=2e-6)


def test_substitutions_are_masked_marginals(hubs: dict[str, Path]) -> None:
    run = seqdiff.load(hubs["esm-2"])
    found = run.substitutions(PROTEIN, ["T3A", "T3T", "K2R:A5V"])
    one = nats(hubs["esm-2"], PROTEIN, [2])[0] - nats(hubs["esm-2"], "MKALAGVX", [2])[0]
    more = [nats(hubs["esm-2"], text, [1, 2, 3, 4]) for text in (PROTEIN, "MRTLVGVX")]
    assert found == pytest.approx([one, 0, (more[0] - more[1]).sum()], abs=1e-5)
    kmers = seqdiff.load(hubs["nucleotide-transformer"])
    (score,) = kmers.substitutions("GATTACAGG", ["A5C"])
    both = [nats(hubs["nucleotide-transformer"], s, [1])[0] for s in ("GATTACAGG", "GATTCCAGG")]
    assert score == pytest.approx(both[0] - both[1], abs=1e-5)
    # With BPE the strings have other numbers of tokens: AC GT, A A GT.
    pieces = seqdiff.load(hubs["gena-lm"])
    (score,) = pieces.substitutions("ACGT", ["C2A"])
    sides = [nats(hubs["gena-lm"], s, m).sum() for s, m in (("ACGT", [0]), ("AAGT", [0, 1]))]
    assert score == pytest.approx(sides[0] - sides[1], abs=1e-5)
    # J is no residue of the model.
    assert run.substitutions("MKJLA", ["K2R"]) == run.substitutions("MKJLA", ["K2R:J3J"])
    for text, change in ((PROTEIN, "T3J"), ("MKJLA", "J3T")):
        with pytest.raises(ValueError, match="substitutions must replace known symbols by known"):
            run.substitutions(text, [change])
    for change, said in (("T4A", "T4A where it has L"), ("T99A", "has none"), ("3A", "got '3A'")):
        with pytest.raises(ValueError, match=rf"substitutions.changes must .*{said}"):
            run.substitutions(PROTEIN, [change])


def test_commands_take_hub_folders(
    hubs: dict[str, Path], fasta: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["score", str(hubs["esm-2"]), str(fasta)]) == 0
    said = capsys.readouterr().out
    assert "bits/residue" in said and " p5 " in said
    out = tmp_path / "states.npz"
    assert main(["embed", str(hubs["esm-2"]), "--fasta", str(fasta), "--out", str(out)]) == 0
    with np.load(out) as found:
        assert found["names"].tolist() == [f"p{i}" for i in range(6)]
        wanted = seqdiff.load(hubs["esm-2"]).embed(PROTEINS)
        np.testing.assert_allclose(found["embeddings"], wanted, atol=2e-6)
    genome, vcf = tmp_path / "g.fa", tmp_path / "v.vcf"
    genome.write_text(f">c\n{DNA}\n")
    head = "##fileformat=VCFv4.2\n#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO\n"
    vcf.write_text(head + "c\t5\t.\tA\tC\t.\t.\t.\n")
    table = tmp_path / "v.tsv"
    command = ["variants", str(hubs["nucleotide-transformer"]), "--vcf", str(vcf), "--fasta"]
    command += [str(genome), "--out", str(table), "--window", "18"]
    assert main(command) == 0
    names, row = (line.split("\t") for line in table.read_text().splitlines())
    score = float(row[names.index("marginal")])
    run = seqdiff.load(hubs["nucleotide-transformer"])
    opposite = DNA[::-1].translate(str.maketrans("ACGT", "TGCA"))
    both = run.substitutions(DNA, ["A5C"]) + run.substitutions(opposite, ["T14G"])
    assert score == pytest.approx(np.mean(both), abs=1e-5)
    # The limit of the network is in tokens, here of 3 bases.
    capsys.readouterr()
    most = run.max_length
    assert most is not None
    genome.write_text(f">c\n{DNA * most}\n")
    for bases, code in ((3 * most, 0), (3 * most + 30, 2)):
        table.unlink(missing_ok=True)
        assert main([*command[:-1], str(bases)]) == code
    said = capsys.readouterr().err
    assert f"at most {most:,}" in said and "extrapolates" not in said
    assert main(["ism", str(hubs["esm-2"]), "--fasta", str(genome), "--out", "a.npz"]) == 2
    assert "must be a run on DNA, got" in capsys.readouterr().err
    assert main(["ism", str(hubs["gena-lm"]), "--fasta", str(genome), "--out", "a.npz"]) == 2
    assert "must be a run whose tokens are single bases, got" in capsys.readouterr().err
    assert main([*command, "--score", "both"]) == 2
    assert "variants.score must be marginal for a model whose tokens" in capsys.readouterr().err
    assert main(["score", str(hubs["gena-lm"]), "--fasta", str(genome), "--rc", "mean"]) == 2
    assert "score.rc must be none for a model whose tokens are" in capsys.readouterr().err


def configuration(tmp_path: Path, hub: Path, train: Path, **more: object) -> Path:
    content = {
        "output": str(tmp_path / "run"),
        "data": {
            "class_path": "text.corpora.TextDataModule",
            "init_args": {
                "tokenizer": {
                    "class_path": "seqdiff.data.HubTokenizer",
                    "init_args": {"vocabulary": str(hub)},
                },
                **{"length": 12, "train": str(train), "batch_size": 2, "wrap": False},
                "split": [0.6, 0.2, 0.2],
            },
        },
        "backbone": {
            "class_path": "seqdiff.backbones.HubBackbone",
            "init_args": {"checkpoint": str(hub)},
        },
        "trainer": {
            **{"max_steps": 2, "val_check_interval": None, "log_every_n_steps": 1},
            **{"accelerator": "cpu", "devices": 1},
        },
        "optim": {"lr": 1e-3, "warmup_steps": 1},
        **more,
    }
    path = tmp_path / "hub.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.fixture(scope="module")
def tuned(
    tmp_path_factory: pytest.TempPathFactory, hubs: dict[str, Path], fasta: Path
) -> tuple[Run, Path]:
    folder = tmp_path_factory.mktemp("tuned")
    config = configuration(folder, hubs["esm-2"], fasta)
    return seqdiff.train(config), config


def test_fine_tuning_starts_from_the_published_weights(
    tuned: tuple[Run, Path], hubs: dict[str, Path], tmp_path: Path
) -> None:
    run, config = tuned
    before = dict(seqdiff.load(hubs["esm-2"]).denoiser.named_parameters())
    moved = {n: (w - before[n]).abs().max().item() for n, w in run.denoiser.named_parameters()}
    assert 0 < max(moved.values()) < 0.05
    evaluated = run.evaluate(evaluations=2)
    assert evaluated.units == ("residue", 1.0) and "bits/residue" in repr(evaluated)
    # The same weights from the hub folder, under another backbone that was drawn at random.
    other = save_family("esm-2", tmp_path / "other", seed=7)
    flags = ["--backbone.checkpoint", str(other), "--start_from", str(hubs["esm-2"])]
    flags += ["--trainer.max_steps", "0", "--output", str(tmp_path / "start")]
    started = seqdiff.train(config, *flags)
    for name, weight in started.denoiser.named_parameters():
        assert torch.equal(weight, before[name])


def test_a_tokenizer_that_writes_special_tokens_is_refused(
    tuned: tuple[Run, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "a.txt"
    text.write_text(f"{TEXT}\n" * 9)
    hub = save_family("bert", tmp_path / "bert")
    flags = ["--backbone.checkpoint", str(hub), "--data.train", str(text)]
    flags += ["--data.tokenizer", "text.tokenizers.BertTokenizer"]
    flags += [f"--data.tokenizer.vocabulary={hub}", "--output", str(tmp_path / "out")]
    assert main(["train", str(tuned[1]), *flags]) == 2
    said = capsys.readouterr().err
    assert "must go with a tokenizer that never writes [UNK]" in said
    assert "use seqdiff.data.HubTokenizer" in said and not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def adapted(
    tmp_path_factory: pytest.TempPathFactory, hubs: dict[str, Path], tuned: tuple[Run, Path]
) -> Path:
    """A run with adapters on a copy of the published folder."""
    folder = tmp_path_factory.mktemp("adapted")
    hub = save_family("esm-2", folder / "hub")
    flags = ["--backbone.checkpoint", str(hub), "--output", str(folder / "run")]
    flags += ["--adapter", "lora", "--adapter.rank=2", "--optim.lr", "0.1", "--ema_decay", "0.5"]
    seqdiff.train(tuned[1], *flags)
    return folder / "run"


def test_adapters_are_trained_and_saved_alone(adapted: Path, hubs: dict[str, Path]) -> None:
    saved = load_file(adapted / "model.safetensors")
    assert len(saved) == 24 and all(".lora_" in name for name in saved)
    published = dict(seqdiff.load(hubs["esm-2"]).denoiser.named_parameters())
    run = seqdiff.load(adapted)
    for name, weight in run.denoiser.named_parameters():
        if ".lora_" in name:
            assert torch.equal(weight, saved[name])
            assert "lora_A" in name or bool(weight.abs().max() > 1e-3), "B begins with zeros"
        else:
            assert torch.equal(weight, published[name.replace(".base_layer.", ".")])
    assert not any("contact_head" in name for name in saved)
    # A run that goes on has the weights below its adapters in its checkpoint.
    longer = seqdiff.resume(adapted, "--trainer.max_steps", "3")
    assert longer.digest != run.digest
    assert load_file(adapted / "model.safetensors").keys() == saved.keys()


def test_the_weights_below_adapters_must_be_those_of_training(
    adapted: Path, tuned: tuple[Run, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub = adapted.parent / "hub"
    hub.rename(tmp_path / "kept")
    try:
        for change, said in (
            ({"seed": 3}, r"must have the weights below its adapter that it"),
            ({"spare": 3}, r"must be the model that the run was trained from, got .* with another"),
        ):
            save_family("esm-2", hub, **change)
            with pytest.raises(ValueError, match=said):
                seqdiff.load(adapted)
            shutil.rmtree(hub)
    finally:
        (tmp_path / "kept").rename(hub)
    flags = ["--output", str(tmp_path / "out"), "--adapter", "lora"]
    for more, said in (
        (["--adapter.rank", "0"], "RunConfig.adapter.rank must be at least 1, got 0"),
        (["--adapter.targets", "[qkv]"], "must be ends of names of linear layers, got ['qkv']"),
        (["--backbone", "configs/backbone/transformer_tiny.yaml"], "null for a Transformer, whose"),
    ):
        assert main(["train", str(tuned[1]), *flags, *more]) == 2
        assert said in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_an_export_is_read_by_transformers_and_by_seqdiff(
    adapted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "folder"
    assert main(["export", str(adapted), "--to", "hub", str(out), "--license", "mit"]) == 0
    assert "unknown" not in capsys.readouterr().out
    names = {"README.md", "config.json", "model.safetensors", "tokenizer_config.json", "vocab.txt"}
    assert {path.name for path in out.iterdir()} == names
    run, again = seqdiff.load(adapted), seqdiff.load(out)
    ids = torch.tensor([[20, 33, 11, 4]])
    wanted = run.denoiser.backbone(Inputs(ids))
    torch.testing.assert_close(again.denoiser.backbone(Inputs(ids)), wanted, rtol=0, atol=1e-5)
    network = transformers.AutoModelForMaskedLM.from_pretrained(out).eval()
    found = network(input_ids=torch.tensor([[0, 20, 32, 11, 4, 2]])).logits[0, 1:5]
    torch.testing.assert_close(found[:, 4:31], wanted[0, :, 4:31], rtol=0, atol=1e-5)
    assert again.tokenizer.fingerprint == run.tokenizer.fingerprint
    assert len({path.stat().st_mode for path in out.iterdir()}) == 1, "all readable by the same"
    card = (out / "README.md").read_text()
    head = yaml.safe_load(card.split("---")[1])
    assert head["license"] == "mit" and head["pipeline_tag"] == "fill-mask"
    bits = run.evaluate("test").model.bits_per_token
    assert f"| model, upper bound | {bits:.4f} |" in card and "proteins.fasta" in card
    assert "bits/residue" in card and "seqdiff sample folder" in card
    assert str(tmp_path.parent) not in card, "no folder of this machine"
    assert main(["export", str(adapted), str(out)]) == 2
    assert "export.directory must be a new folder" in capsys.readouterr().err
    assert main(["export", str(adapted), str(tmp_path / "b"), "--license", "My own"]) == 2
    assert "export.license must be an identifier such as mit" in capsys.readouterr().err


def test_any_other_run_is_exported_as_a_run(
    tuned: tuple[Run, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub = save_family("esm-2", tmp_path / "hub")
    flags = ["--backbone", "configs/backbone/transformer_tiny.yaml", "--trainer.max_steps", "0"]
    flags += ["--data.tokenizer.vocabulary", str(hub), "--output", str(tmp_path / "own")]
    run, out = seqdiff.train(tuned[1], *flags), tmp_path / "folder"
    assert main(["export", str(run.directory), "--to", "hub", str(out), "--split", "none"]) == 0
    assert "the license in README.md is unknown" in capsys.readouterr().out
    names = {"README.md", "run.yaml", "model.safetensors", "tokenizer"}
    assert {path.name for path in out.iterdir()} == names
    hub.rename(tmp_path / "gone")
    again = seqdiff.load(out)
    assert again.digest == run.digest and again.sample(2, seed=0) == run.sample(2, seed=0)
    text = (out / "run.yaml").read_text()
    assert "train: proteins.fasta" in text and str(tmp_path.parent / "fasta") not in text
    assert "Not evaluated." in (out / "README.md").read_text()


def test_gpt2_opens_while_it_is_trained(
    tuned: tuple[Run, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub, text = save_gpt2(tmp_path / "gpt2"), tmp_path / "a.txt"
    text.write_text("".join(f"the {word}\n" for word in ("cat", "dog", "mat", "sat", "on")))
    flags = ["--backbone", "seqdiff.backbones.HubCausalBackbone", "--data.length", "9"]
    flags += ["--backbone.checkpoint", str(hub), "--backbone.annealing_steps", "2"]
    flags += ["--data.tokenizer.vocabulary", str(hub), "--data.train", str(text)]
    flags += ["--data.split", "[1.0,0.0,0.0]", "--output"]
    short = seqdiff.train(tuned[1], *flags, str(tmp_path / "a"), "--trainer.max_steps", "1")
    assert float(short.denoiser.backbone.openness) == 0.5
    longer = seqdiff.resume(tmp_path / "a", "--trainer.max_steps", "3", "--optim.lr", "1e-3")
    at_once = seqdiff.train(tuned[1], *flags, str(tmp_path / "b"), "--trainer.max_steps", "3")
    assert float(longer.denoiser.backbone.openness) == 1.0
    assert at_once.digest == longer.digest, "resuming draws the same attention"
    (score,) = longer.score(["the cat"])
    assert score.bits_per_unit is not None and score.units == 7
    lora = [str(tmp_path / "c"), "--adapter", "lora", "--optim.lr", "0.1", "--ema_decay", "null"]
    adapted = seqdiff.train(tuned[1], *flags, *lora)
    saved = load_file(tmp_path / "c" / "model.safetensors")
    own = {"backbone.mask_embedding", "backbone.openness"}
    assert {name for name in saved if ".lora_" not in name} == own
    out = tmp_path / "folder"
    assert main(["export", str(tmp_path / "c"), str(out), "--split", "none"]) == 0
    hub.rename(tmp_path / "gone")
    merged = seqdiff.load(out).denoiser.backbone
    tokens = Inputs(torch.tensor([[5, merged.vocab_size, 7]]))
    wanted = adapted.denoiser.backbone(tokens)
    torch.testing.assert_close(merged(tokens), wanted, rtol=0, atol=1e-4)
    assert (merged(tokens) - longer.denoiser.backbone(tokens))[..., 1:].abs().max() > 1e-3

"""Runs trained before runs had a process: loaded, evaluated, sampled, resumed.

``old_runs`` holds two run directories of 6 steps written by that version, and its results for each:
nats of every row of the test split, samples, and losses of resuming to step 12.
"""

import csv
import json
import shutil
from importlib import import_module
from pathlib import Path

import pytest
import torch
import yaml

from seqdiff.cli.app import main
from seqdiff.likelihood import evaluate
from seqdiff.objectives import (
    Autoregressive,
    BlockNELBO,
    ContinuousNELBO,
    MaskedLM,
    Objective,
    WeightedMLM,
)
from seqdiff.process import Absorbing, Blockwise, LeftToRight, Process
from seqdiff.run import load
from seqdiff.run.config import parse_run
from seqdiff.run.config_files import read_config
from seqdiff.samplers import AncestralSampler, BlockSampler
from seqdiff.schedules import LogLinear

OLD = Path(__file__).parent / "old_runs"
EXPECTED = json.loads((OLD / "expected.json").read_text())
PROCESSES = {
    "mdlm": Absorbing(4, LogLinear()),
    "block": Blockwise(Absorbing(4, LogLinear()), 4),
}
SAMPLERS = {"mdlm": AncestralSampler(num_steps=8), "block": BlockSampler()}
SEEDS = torch.tensor([3, 1, 4, 1592])


@pytest.fixture(params=PROCESSES)
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return shutil.copytree(OLD / request.param, tmp_path / request.param)


def losses(run: Path) -> dict[str, float]:
    with (run / "metrics.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["name"] == "train/nats_per_token"]
    return {row["step"]: float(row["value"]) for row in rows}


def test_it_is_the_same_model(old: Path) -> None:
    run = load(old)
    assert run.process == PROCESSES[old.name]
    found = evaluate(run.denoiser, run.datamodule.evaluation_loader("test"), seed=0)
    assert found.nats == pytest.approx(EXPECTED[old.name]["nats"], rel=1e-5)
    other = evaluate(run.denoiser, run.datamodule.evaluation_loader("test"), seed=1)
    assert other.nats != pytest.approx(EXPECTED[old.name]["nats"], rel=1e-5), "the twin's draws"
    drawn = SAMPLERS[old.name].sample(run.denoiser, run.process.blank((4, 16)), seeds=SEEDS)
    assert drawn.tokens.tolist() == EXPECTED[old.name]["tokens"]


def test_it_goes_on_as_it_would_have(old: Path) -> None:
    assert list(losses(old)) == [str(step) for step in range(6)]
    assert main(["train", "--resume", str(old), "--trainer.max_steps", "12"]) == 0
    assert losses(old) == pytest.approx(EXPECTED[old.name]["losses"], rel=1e-5)
    assert load(old).process == PROCESSES[old.name], "in the keys of today"
    assert "schedule" not in yaml.safe_load((old / "run.yaml").read_text())


def test_from_the_weights_alone_it_would_go_on_otherwise(tmp_path: Path) -> None:
    """Broken twin: loses the optimiser's state of the first steps."""
    old = shutil.copytree(OLD / "mdlm", tmp_path / "mdlm")
    checkpoint = torch.load(old / "last.ckpt", weights_only=True)
    for state in checkpoint["optimizer_states"][0]["state"].values():
        state["exp_avg"].zero_()
    torch.save(checkpoint, old / "last.ckpt")
    assert main(["train", "--resume", str(old), "--trainer.max_steps", "12"]) == 0
    gaps = [abs(loss - EXPECTED["mdlm"]["losses"][step]) for step, loss in losses(old).items()]
    assert max(gaps[:7]) < 1e-5 and max(gaps[7:]) > 1e-3


BASE = """
schedule: {class_path: seqdiff.schedules.LogLinear}
objective: {class_path: seqdiff.training.objectives.ContinuousNELBO}
data: {class_path: genomics.data.SyntheticDataModule, init_args: {length: 8}}
backbone: {class_path: seqdiff.backbones.Transformer,
           init_args: {d_model: 8, n_layer: 1, n_heads: 1}}
"""
CAUSAL = """
backbone: {class_path: seqdiff.backbones.AutoregressiveTransformer,
           init_args: {d_model: 8, n_layer: 1, n_heads: 1}}
objective: Autoregressive
"""


@pytest.mark.parametrize(
    ("file", "process", "objective"),
    [
        ("", Absorbing(4, LogLinear()), ContinuousNELBO()),
        (CAUSAL, LeftToRight(4), Autoregressive()),
        (
            "objective: {class_path: BlockNELBO, init_args: {block_size: 4}}",
            Blockwise(Absorbing(4, LogLinear()), 4),
            BlockNELBO(),
        ),
        (
            "objective: {class_path: BlockWeightedMLM, init_args: {block_size: 2}}",
            Blockwise(Absorbing(4, LogLinear()), 2),
            WeightedMLM(),
        ),
        (
            "objective: {class_path: MaskedLM, init_args: {share: .2}}",
            Absorbing(4, LogLinear()),
            MaskedLM(0.2),
        ),
    ],
)
def test_files_with_the_names_of_before_mean_what_they_meant(
    file: str, process: Process, objective: Objective, tmp_path: Path
) -> None:
    """The base is what every such file inherited; the file itself gives only its objective."""
    (tmp_path / "base.yaml").write_text(BASE)
    (tmp_path / "old.yaml").write_text(f"base: base.yaml\noutput: {tmp_path / 'run'}\n{file}\n")
    assert main(["train", str(tmp_path / "old.yaml"), "--trainer.max_steps", "0"]) == 0
    run = load(tmp_path / "run")
    assert run.process == process and run.config.objective == objective


MOVED = {
    "genomics.alphabet.DNATokenizer": "genomics.sequence.DNATokenizer",
    "genomics.datamodules.FastaDataModule": "genomics.data.FastaDataModule",
    "genomics.datamodules.HG38DataModule": "genomics.data.HG38DataModule",
    "genomics.motifs.PlantedMotif": "genomics.data.PlantedMotif",
    "genomics.published.PublishedCaduceus": "genomics.pretrained.PublishedCaduceus",
    "genomics.sources.MarkovGenome": "genomics.data.MarkovGenome",
    "genomics.synthetic.ConsensusMotif": "genomics.data.ConsensusMotif",
    "genomics.synthetic.SyntheticDataModule": "genomics.data.SyntheticDataModule",
    "genomics.synthetic.SyntheticGenome": "genomics.data.SyntheticGenome",
    "seqdiff.objectives.continuous.ContinuousNELBO": "seqdiff.objectives.ContinuousNELBO",
    "seqdiff.parameterization.subs.Subs": "seqdiff.parameterization.Subs",
    "seqdiff.process.absorbing.Absorbing": "seqdiff.process.Absorbing",
    "seqdiff.time_sampling.Importance": "seqdiff.objectives.Importance",
    "seqdiff.time_sampling.Sobol": "seqdiff.objectives.Sobol",
    "seqdiff.time_sampling.Stratified": "seqdiff.objectives.Stratified",
    "seqdiff.time_sampling.Uniform": "seqdiff.objectives.Uniform",
    "seqdiff.time_sampling.VDM": "seqdiff.objectives.VDM",
    "text.bert.BertBackbone": "seqdiff.backbones.HubBackbone",
    "text.pretrained.BertBackbone": "seqdiff.backbones.HubBackbone",
    "text.datamodule.TextDataModule": "text.corpora.TextDataModule",
    "text.subwords.BertTokenizer": "text.tokenizers.BertTokenizer",
    "text.subwords.GPT2Tokenizer": "text.tokenizers.GPT2Tokenizer",
    "text.subwords.JSONTokenizer": "text.tokenizers.JSONTokenizer",
    # These modules are packages now, with the same classes.
    "text.tokenizers.ByteTokenizer": "text.tokenizers.ByteTokenizer",
    "text.tokenizers.CharacterTokenizer": "text.tokenizers.CharacterTokenizer",
    "text.tokenizers.Text8Tokenizer": "text.tokenizers.Text8Tokenizer",
}


@pytest.mark.parametrize("old", MOVED)
def test_classes_that_moved_are_found_by_their_old_paths(old: str, tmp_path: Path) -> None:
    file = tmp_path / "old.yaml"
    file.write_text(yaml.safe_dump({"data": {"init_args": {"source": [{"class_path": old}]}}}))
    argument = read_config(file).argument
    read = yaml.safe_load(file.read_text() if argument == str(file) else argument)
    path = read["data"]["init_args"]["source"][0]["class_path"]
    assert path == MOVED[old]
    module, _, name = path.rpartition(".")
    assert isinstance(getattr(import_module(module), name), type)


@pytest.mark.parametrize(
    "named", ["base.yaml", "data.yaml in the file", "data.yaml in a flag", "flags", "JSON"]
)
def test_old_class_paths_are_found_wherever_they_are_written(
    named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = {"class_path": "genomics.datamodules.SyntheticDataModule", "init_args": {"length": 8}}
    network = {"d_model": 8, "n_layer": 1, "n_heads": 1}
    content = {
        "output": str(tmp_path / "run"),
        "backbone": {"class_path": "seqdiff.backbones.Transformer", "init_args": network},
    }
    flags: list[str] = []
    folder = tmp_path / "configs"
    folder.mkdir()
    (folder / "data.yaml").write_text(yaml.safe_dump(data))
    if named == "base.yaml":
        (folder / "base.yaml").write_text(yaml.safe_dump({"data": data}))
        content["base"] = "base.yaml"
    elif named == "data.yaml in the file":
        content["data"] = "data.yaml"
    elif named == "data.yaml in a flag":
        monkeypatch.chdir(folder)
        flags = ["--data", "data.yaml", "--process=seqdiff.process.absorbing.Absorbing"]
    elif named == "flags":
        flags = ["--data", data["class_path"], "--data.length=8"]
    else:
        flags = [f"--data={json.dumps(data)}"]
    (folder / "old.yaml").write_text(yaml.safe_dump(content))
    written = parse_run(folder / "old.yaml", flags)
    assert written["data"]["class_path"] == "genomics.data.SyntheticDataModule"
    assert written["process"]["class_path"] == "seqdiff.process.Absorbing"

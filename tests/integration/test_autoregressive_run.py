"""An autoregressive run and a BERT run from the command line, compared with masked diffusion."""

import csv
import itertools
import json
from pathlib import Path

import pytest
import torch
import yaml

from seqdiff.cli.app import main
from seqdiff.objectives import WeightedMLM
from seqdiff.rng import CounterNoise
from seqdiff.run import load
from seqdiff.types import Inputs
from tests.integration.conftest import TOY, write_config
from tests.integration.toy_domain import ALPHABET

NETS = "tests.causal_worlds"


def train(folder: Path, preset: str, net: str, *flags: str) -> int:
    config = write_config(folder)
    content = yaml.safe_load(config.read_text())
    content["backbone"] = {"class_path": net, "init_args": {"width": 16}}
    content["preset"] = preset
    content["trainer"] = {"max_steps": 120, "val_check_interval": 60}
    config.write_text(yaml.safe_dump(content))
    return main(["train", str(config), *flags])


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("left")
    assert train(folder, "ar", f"{NETS}.CausalNet") == 0
    return folder / "run"


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bert")
    assert train(folder, "mlm", f"{TOY}.ToyNet") == 0
    return folder / "run"


def evaluated(run: Path, out: Path, *flags: str) -> dict:
    assert main(["evaluate", str(run), "--json", str(out), *flags]) == 0
    return json.loads(out.read_text())


def last_validation(run: Path) -> float:
    with (run / "metrics.csv").open() as stream:
        rows = [row for row in csv.DictReader(stream) if row["name"] == "val/nats_per_token"]
    return float(rows[-1]["value"])


def test_evaluation_is_the_chain_rule_written_out(left: Path, tmp_path: Path, capsys) -> None:
    content = evaluated(left, tmp_path / "a.json")
    assert content["estimator"] == "chain-rule"
    row = content["rows"][0]
    assert row["name"] == "model, exact, left to right" and row["evaluations"] == 1
    assert "estimator chain-rule, 1 evaluations per sequence" in capsys.readouterr().out
    trained = load(left)
    assert trained.denoiser.context == "prefix"
    total, count = 0.0, 0
    for batch in trained.datamodule.evaluation_loader("test"):
        for tokens, counted in zip(batch.tokens, batch.loss_mask, strict=True):
            for place in counted.nonzero().flatten().tolist():
                hidden = tokens[None].clone()
                hidden[:, place:] = 3  # what follows must not matter
                logits = trained.denoiser.backbone(Inputs(hidden))[0, place].double()
                total -= float(logits.log_softmax(-1)[tokens[place]])
                count += 1
    assert row["num_tokens"] == count
    assert row["nats_per_token"] == pytest.approx(total / count, rel=1e-5)
    assert row["nats_per_token"] < 1.2, "it has learned more than a uniform guess, 1.79 nats"


def test_validation_is_the_likelihood_and_not_a_bound(left: Path, tmp_path: Path) -> None:
    row = evaluated(left, tmp_path / "a.json", "--split", "valid")["rows"][0]
    assert last_validation(left) == pytest.approx(row["nats_per_token"], rel=1e-5)


def test_a_bert_run_is_validated_and_evaluated_by_the_bound(bert: Path, tmp_path: Path) -> None:
    trained = load(bert)
    assert trained.denoiser.any_order and trained.denoiser.context == "row"
    content = evaluated(bert, tmp_path / "a.json", "--split", "valid")
    assert content["estimator"] == "stratified-k"
    assert content["rows"][0]["name"] == "model, upper bound"
    total, count = 0.0, 0
    for batch in trained.datamodule.evaluation_loader("valid"):
        with torch.no_grad():
            bound = WeightedMLM().terms(trained.denoiser, batch, CounterNoise(0))
        total, count = total + float(bound.double().sum()), count + int(batch.loss_mask.sum())
    assert last_validation(bert) == pytest.approx(total / count, rel=1e-5)


def draw(run: Path, out: Path, *flags: str) -> list[str]:
    command = ["sample", str(run), "--num", "40", "--length", "9", "--seed", "3", "--out", str(out)]
    assert main([*command, *flags]) == 0
    return out.read_text().split()[1::2]


def likely_steps(sequences: list[str]) -> float:
    """Fraction of neighbours that are one or two apart on the ring, as in the data."""
    steps = [
        (ALPHABET.index(b) - ALPHABET.index(a)) % 6
        for s in sequences
        for a, b in itertools.pairwise(s)
    ]
    return sum(step in (1, 2, 4, 5) for step in steps) / len(steps)


@pytest.mark.usefixtures("toy_writer")
def test_sampling_is_from_left_to_right_by_default(left: Path, tmp_path: Path, fails) -> None:
    out = tmp_path / "a.ring"
    drawn = draw(left, out)
    assert len(drawn) == 40 and all(len(s) == 9 for s in drawn)
    assert likely_steps(drawn) > 0.9, "two thirds by chance"
    assert draw(left, out, "--batch_size", "7", "--sampler", "left_to_right") == drawn
    assert draw(left, out, "--temperature", "0.1", "--top-k", "2", "--top-p", "0.9") != drawn
    before = out.read_bytes()
    command = ["sample", str(left), "--num", "1", "--length", "9", "--seed", "3", "--out", str(out)]
    said = (
        "sampler must work with the process left-to-right with parameterization leave-one-out, got "
        "first_hitting; choose from left_to_right"
    )
    assert said in fails([*command, "--sampler", "first_hitting"])
    assert "its options are --temperature, --top-k, --top-p" in fails(
        [*command, "--num-steps", "3"]
    )
    assert out.read_bytes() == before


@pytest.mark.usefixtures("toy_writer")
def test_the_wrong_command_for_a_run_is_one_line(
    left: Path, bert: Path, trained: Path, tmp_path: Path, fails
) -> None:
    out = tmp_path / "a.ring"
    for run in (bert, trained):
        command = ["sample", str(run), "--num", "1", "--length", "9", "--seed", "3"]
        said = fails([*command, "--out", str(out), "--sampler", "left_to_right"])
        assert "sampler must work with the process absorbing with" in said
        said = fails(["evaluate", str(run), "--estimator", "chain-rule"])
        assert "for the process absorbing with parameterization subs, got chain-rule; lea" in said
    for name in ("stratified-k", "fixed-order"):
        said = fails(["evaluate", str(left), "--estimator", name])
        assert "evaluate.estimator must be chain-rule for the process left-to-right with" in said
    for flag, value in (("evaluations", "8"), ("convention", "mdlm")):
        said = fails(["evaluate", str(left), f"--{flag}", value])
        assert f"evaluate.{flag} must be left out for the process left-to-right with param" in said
        assert f"whose estimator chain-rule does not take it, got {value}; leave out" in said
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("toy_writer")
def test_scores_are_exact(left: Path, tmp_path: Path, capsys) -> None:
    rings, table = tmp_path / "a.ring", tmp_path / "a.tsv"
    rings.write_text("one uvwxyzuv\ntwo uxuxuxuw\nunknown u-w-\n")
    assert main(["score", str(left), "--ring", str(rings), "--out", str(table)]) == 0
    assert "nats: exact, left to right, by chain-rule" in capsys.readouterr().out
    with table.open() as stream:
        rows = list(csv.DictReader(stream, delimiter="\t"))
    assert [row["nfe"] for row in rows] == ["1"] * 3
    assert [row["counted"] for row in rows] == ["8", "8", "2"]
    assert {float(row["standard_error"]) for row in rows} == {0.0}
    assert float(rows[0]["nats"]) < float(rows[1]["nats"])


def test_a_network_that_looks_ahead_is_refused_before_training(tmp_path: Path, capsys) -> None:
    assert train(tmp_path, "ar", f"{TOY}.ToyNet") == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert "Denoiser.backbone must score each position from the tokens before" in lines[-1]
    assert not (tmp_path / "run").exists()


def test_objectives_are_offered(config: Path, fails) -> None:
    message = fails(["train", str(config), "--objective", "Auto"])
    for name in ("Autoregressive", "MaskedLM"):
        assert f"seqdiff.objectives.{name}" in message


def test_resuming_an_autoregressive_run(tmp_path: Path) -> None:
    flags = ("--trainer.max_steps", "60", "--checkpoint_every_n_steps", "30")
    assert train(tmp_path, "ar", f"{NETS}.CausalNet", *flags) == 0
    assert main(["train", "--resume", str(tmp_path / "run"), "--trainer.max_steps", "70"]) == 0
    assert torch.isfinite(next(load(tmp_path / "run").denoiser.parameters())).all()

"""A third domain from a configuration file to samples, through the command line."""

import csv
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

from seqdiff.cli.app import main
from seqdiff.likelihood import evaluate
from seqdiff.run import load
from seqdiff.run.config import instantiate, parse_run
from tests.integration.conftest import TOY
from tests.integration.toy_domain import ALPHABET


def test_train_leaves_a_whole_run_directory(trained: Path) -> None:
    names = {path.name for path in trained.iterdir()}
    logs = {"metrics.csv", "tensorboard", ".lock"}
    assert names == {"run.yaml", "model.safetensors", "last.ckpt"} | logs
    provenance = yaml.safe_load((trained / "run.yaml").read_text())["provenance"]
    assert provenance["tokenizer"] == f"ring-{ALPHABET}"
    assert {"seqdiff", "torch", "lightning", "tokenizer"} <= set(provenance)
    assert any((trained / "tensorboard").iterdir())
    with (trained / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    nats = [float(r["value"]) for r in rows if r["name"] == "train/nats_per_token"]
    bits = [float(r["value"]) for r in rows if r["name"] == "train/bits_per_token"]
    assert len(nats) == 60
    assert bits == pytest.approx([n / math.log(2) for n in nats], rel=1e-6)
    assert {"train/lr", "train/tokens_per_second"} <= {row["name"] for row in rows}


def test_evaluate_beside_baselines(trained: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "scores.json"
    assert main(["evaluate", str(trained), "--evaluations", "32", "--json", str(out)]) == 0
    assert "bits/token" in capsys.readouterr().out
    content = json.loads(out.read_text())
    model, uniform = content["rows"]
    assert content["error_degrees"] == 5, "11 rows in 6 stretches"
    assert uniform["bits_per_token_error"] == pytest.approx(0, abs=1e-12)
    gap = model["bits_per_token"] - uniform["bits_per_token"]
    assert content["difference"] == {
        "baseline": "uniform",
        "bits_per_token": pytest.approx(gap),
        "bits_per_token_error": pytest.approx(model["bits_per_token_error"]),
    }
    assert uniform["perplexity"] == pytest.approx(len(ALPHABET))
    assert model["num_sequences"] == 11 and model["num_tokens"] == 11 * 12 - 2
    assert model["bits_per_token"] + 5 * model["bits_per_token_error"] < uniform["bits_per_token"]


def test_loaded_weights_are_the_average_and_score_the_same_in_any_batches(trained: Path) -> None:
    run = load(str(trained))
    assert not run.denoiser.training
    checkpoint = torch.load(trained / "last.ckpt", weights_only=True)
    average = checkpoint["callbacks"]["EMA"]["average.backbone.scores.weight"]
    last = checkpoint["state_dict"]["denoiser.backbone.scores.weight"]
    loaded = run.denoiser.state_dict()["backbone.scores.weight"]
    assert torch.equal(loaded, average) and not torch.equal(loaded, last)

    whole = evaluate(run.denoiser, run.datamodule.evaluation_loader("test"), evaluations=4)
    run.datamodule.eval_batch_size = 3
    cut = evaluate(run.denoiser, run.datamodule.evaluation_loader("test"), evaluations=4)
    torch.testing.assert_close(torch.tensor(whole.nats), torch.tensor(cut.nats), rtol=1e-5, atol=0)


@pytest.mark.usefixtures("toy_writer")
def test_sample_is_a_function_of_the_seed(trained: Path, tmp_path: Path) -> None:
    def draw(name: str, seed: int) -> str:
        path = tmp_path / f"{name}.ring"
        command = ["sample", str(trained), "--num", "5", "--length", "9", "--out", str(path)]
        assert main([*command, "--seed", str(seed), "--batch_size", "2"]) == 0
        return path.read_text()

    first = draw("a", 1)
    assert first == draw("b", 1) != draw("c", 2)
    lines = [line.split() for line in first.splitlines()]
    assert [name for name, _ in lines] == [f"sample_{i}" for i in range(5)]
    assert all(len(s) == 9 and set(s) <= set(ALPHABET) for _, s in lines)
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_shared_weights_are_exported_averaged_under_every_name(
    config: Path, tmp_path: Path
) -> None:
    """An average by parameter name would export the last weights under the second name."""
    assert main(["train", str(config), "--backbone", f"{TOY}.TiedNet"]) == 0
    exported = load_file(tmp_path / "run" / "model.safetensors")
    checkpoint = torch.load(tmp_path / "run" / "last.ckpt", weights_only=True)
    average = checkpoint["callbacks"]["EMA"]["average.backbone.embedding.weight"]
    assert torch.equal(exported["backbone.embedding.weight"], average)
    assert torch.equal(exported["backbone.scores.weight"], average)
    network = load(tmp_path / "run").config.backbone
    assert network.scores.weight is network.embedding.weight
    assert torch.equal(network.scores.weight, average)


def test_one_batch_is_learnt_by_heart(tmp_path: Path, config: Path) -> None:
    """Six distinct rows, each determined by one of its tokens and the row's stride."""
    flags = ["--data.init_args.batch_size", "48", "--trainer.max_steps", "150"]
    flags += ["--data.init_args.length", "6", "--backbone.init_args.width", "64"]
    flags += ["--trainer.log_every_n_steps", "50"]
    assert main(["train", str(config), *flags, "--ema_decay", "null"]) == 0
    run = load(tmp_path / "run")
    loader = run.datamodule.evaluation_loader("train")
    learnt = evaluate(run.denoiser, loader, evaluations=8)
    assert learnt.nats_per_token < 0.55 * math.log(len(ALPHABET))


def test_validation_uses_the_same_masks(config: Path, tmp_path: Path) -> None:
    """With a learning rate of 0, every validation gives the same number."""
    flags = ["--trainer.val_check_interval", "2", "--optim.lr", "1e-30"]
    assert main(["train", str(config), *flags]) == 0
    with (tmp_path / "run" / "metrics.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["name"] == "val/nats_per_token"]
    assert len(rows) == 3
    assert len({row["value"] for row in rows}) == 1


def test_weights_follow_from_the_seed(config: Path) -> None:
    def weights(*flags: str) -> torch.Tensor:
        return instantiate(parse_run(config, flags)).backbone.scores.weight

    assert torch.equal(weights(), weights())
    assert not torch.equal(weights(), weights("--seed", "8"))


def test_run_config_is_frozen(config: Path) -> None:
    built = instantiate(parse_run(config))
    assert built.data.seed == 7
    assert built.backbone.embedding.num_embeddings == 7
    assert built.backbone.scores.out_features == 6
    assert replace(built, seed=1).seed == 1


def test_a_log_row_is_the_mean_since_the_last_one(config: Path, tmp_path: Path) -> None:
    """Single steps would alias with periodic time samplers; accumulation counts whole steps."""
    values = {}
    for every in (1, 3):
        run = tmp_path / f"every{every}"
        flags = [f"--trainer.log_every_n_steps={every}", f"--output={run}"]
        assert main(["train", str(config), "--trainer.accumulate_grad_batches=2", *flags]) == 0
        with (run / "metrics.csv").open(newline="") as file:
            rows = [r for r in csv.DictReader(file) if r["name"] == "train/nats_per_token"]
        values[every] = [float(row["value"]) for row in rows]
    means = [sum(values[1][i : i + 3]) / 3 for i in (0, 3)]
    # The steps count slightly different numbers of tokens, so the mean of means is not exact.
    assert values[3] == pytest.approx(means, rel=5e-3)
    assert values[3] != pytest.approx(values[1][2::3], rel=2e-2)

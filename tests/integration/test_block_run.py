"""Runs of block diffusion from the command line: trained, resumed, bounded, sampled."""

import csv
import itertools
import json
import math
from pathlib import Path

import pytest
import torch
import yaml

from seqdiff.cli.app import main
from seqdiff.denoiser.discrete import Denoiser
from seqdiff.objectives import WeightedMLM
from seqdiff.process import Blockwise
from seqdiff.rng import CounterNoise
from seqdiff.run import load
from seqdiff.types import Inputs
from tests.integration.conftest import write_config
from tests.integration.toy_domain import ALPHABET

SIZE = 4
NETS = {
    "transformer": ("seqdiff.backbones.Transformer", {"n_heads": 2, "dropout": 0.0}),
    "mamba": ("seqdiff.backbones.BlockMamba", {"d_state": 4}),
}


def write(folder: Path, net: str) -> Path:
    config = write_config(folder)
    content = yaml.safe_load(config.read_text())
    class_path, sizes = NETS[net]
    content["backbone"] = {
        "class_path": class_path,
        "init_args": {"d_model": 16, "n_layer": 2, **sizes},
    }
    content["objective"] = {
        "class_path": "seqdiff.objectives.BlockNELBO",
        "init_args": {"beta": 0.3},
    }
    content["block_size"] = SIZE
    content["optim"] = {"lr": 5e-3, "warmup_steps": 5}
    content["trainer"] = {"max_steps": 120, "val_check_interval": 60}
    config.write_text(yaml.safe_dump(content))
    return config


@pytest.fixture(scope="module", params=NETS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    assert main(["train", str(write(folder, request.param))]) == 0
    return folder / "run"


def rows(run: Path, name: str) -> list[float]:
    with (run / "metrics.csv").open() as stream:
        return [float(row["value"]) for row in csv.DictReader(stream) if row["name"] == name]


def evaluated(run: Path, out: Path, *flags: str) -> dict:
    assert main(["evaluate", str(run), "--json", str(out), *flags]) == 0
    return json.loads(out.read_text())


def test_a_run_is_of_its_blocks(run: Path) -> None:
    trained = load(run)
    assert trained.denoiser.context == "block" and trained.denoiser.block_size == SIZE
    assert isinstance(trained.process, Blockwise) and trained.process.block_size == SIZE
    assert len(rows(run, "val/nats_per_token")) == 2
    assert rows(run, "train/nats_per_token")[-1] < 1.4, "more than a uniform guess, 1.79 nats"


def test_evaluation_bounds_block_by_block(run: Path, tmp_path: Path, capsys) -> None:
    """Against every mask of a block; all masks with the same number of tokens are
    equally likely.
    """
    content = evaluated(run, tmp_path / "a.json", "--evaluations", "64")
    row = content["rows"][0]
    assert row["name"] == f"model, upper bound, blocks of {SIZE}"
    assert "estimator block-bound, 64 evaluations per sequence" in capsys.readouterr().out
    trained = load(run)
    total, count = 0.0, 0
    masks = torch.tensor(list(itertools.product([False, True], repeat=SIZE)))
    for batch in trained.datamodule.evaluation_loader("test"):
        for tokens, counted in zip(batch.tokens, batch.loss_mask, strict=True):
            total += sum(block_cost(trained.denoiser, tokens, counted, masks, b) for b in range(3))
            count += int(counted.sum())
    assert row["num_tokens"] == count
    error = max(4.9 * row["bits_per_token_estimator_error"] * math.log(2), 1e-6)
    assert abs(row["nats_per_token"] - total / count) < error


def block_cost(
    denoiser: Denoiser,
    tokens: torch.Tensor,
    counted: torch.Tensor,
    masks: torch.Tensor,
    b: int,
) -> float:
    """The bound of one block: n / k times the cost, averaged over k and the masks of k tokens."""
    inside = slice(b * SIZE, (b + 1) * SIZE)
    eligible = counted[inside]
    chosen = masks[(masks & ~eligible).sum(dim=-1) == 0]
    chosen, n = chosen[chosen.any(dim=-1)], int(eligible.sum())
    if n == 0:
        return 0.0
    clean = tokens.expand(len(chosen), -1)
    hidden = torch.zeros_like(clean, dtype=torch.bool)
    hidden[:, inside] = chosen
    x_t = clean.masked_fill(hidden, len(ALPHABET))
    with torch.no_grad():
        nats = denoiser.nats(Inputs(x_t), clean, hidden).double().sum(dim=-1)
    k = chosen.sum(dim=-1)
    of_this_k = torch.bincount(k, minlength=n + 1)[k]
    return float((nats * n / k / of_this_k / n).sum())


def test_samples_follow_the_ring(run: Path, tmp_path: Path, toy_writer: None) -> None:
    out = tmp_path / "a.ring"
    flags = ["--num", "20", "--length", "31", "--seed", "1", "--out", str(out)]
    assert main(["sample", str(run), *flags]) == 0
    strings = [line.split()[1] for line in out.read_text().splitlines()]
    assert [len(string) for string in strings] == [31] * 20
    if "mamba" not in str(run):
        return  # this network has memorised these rows
    pairs = [pair for string in strings for pair in itertools.pairwise(string)]
    steps = [(ALPHABET.index(b) - ALPHABET.index(a)) % 6 for a, b in pairs]
    assert sum(step in (1, 2, 4, 5) for step in steps) > 0.8 * len(steps), "of 6, two never occur"


@pytest.mark.parametrize("net", NETS)
def test_a_resumed_run_is_the_same(net: str, tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for folder in (whole, cut):
        folder.mkdir()
    flags = ["--trainer.max_steps", "20", "--checkpoint_every_n_steps", "10"]
    assert main(["train", str(write(whole, net)), *flags, "--optim.schedule", "constant"]) == 0
    short = ["--trainer.max_steps", "10", "--optim.schedule", "constant"]
    assert main(["train", str(write(cut, net)), *short]) == 0
    assert main(["train", "--resume", str(cut / "run"), "--trainer.max_steps", "20"]) == 0
    weights = [load(folder / "run").denoiser.state_dict() for folder in (whole, cut)]
    for name, weight in weights[0].items():
        assert torch.equal(weight, weights[1][name]), name


def test_what_does_not_go_together_is_refused(
    run: Path, tmp_path: Path, toy_writer: None, capsys
) -> None:
    def complaint(*arguments: str) -> str:
        assert main(list(arguments)) == 2
        return capsys.readouterr().err

    out = str(tmp_path / "a.ring")
    sample = ["sample", str(run), "--num", "1", "--length", "8", "--seed", "1", "--out", out]
    assert "must work with the process blockwise with parameterization" in (
        complaint(*sample, "--sampler", "ancestral")
    )
    assert "must be bernoulli-time or exact-k or stratified-k for the process blockwise" in (
        complaint("evaluate", str(run), "--estimator", "fixed-order")
    )
    config = write(tmp_path, "mamba")
    assert "block_size must be an integer of at least 1, got 0" in (
        complaint("train", str(config), "--block_size", "0")
    )
    assert "beta and omega must satisfy 0 <= beta < omega <= 1, got 0.9 and 0.5" in (
        complaint(
            *("train", str(config), "--objective.init_args.beta", "0.9"),
            *("--objective.init_args.omega", "0.5"),
        )
    )
    flag = "seqdiff.backbones.Caduceus"
    assert "must score blocks given the clean ones before them, got Caduceus" in (
        complaint("train", str(config), "--backbone", flag, "--backbone.d_model", "8")
    )
    assert not Path(out).exists() and not (tmp_path / "run").exists()


@pytest.mark.parametrize("net", NETS)
def test_one_run_has_several_sizes(net: str, tmp_path: Path, toy_writer: None, capsys) -> None:
    """It resumes bit for bit; every command takes a size, by default the largest, a whole row."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    flags = ["--block_size", "[12, 1, 4]", "--optim.schedule", "constant"]
    flags += ["--objective", "seqdiff.objectives.WeightedMLM", "--trainer.val_check_interval", "8"]
    for folder, steps in ((whole, 16), (cut, 7)):
        folder.mkdir()
        config = write(folder, net)
        assert main(["train", str(config), *flags, "--trainer.max_steps", str(steps)]) == 0
    assert main(["train", "--resume", str(cut / "run"), "--trainer.max_steps", "16"]) == 0
    runs = [load(folder / "run") for folder in (whole, cut)]
    for name, weight in runs[0].denoiser.state_dict().items():
        assert torch.equal(weight, runs[1].denoiser.state_dict()[name]), name
    run = runs[0]
    assert run.denoiser.block_sizes == (1, 4, 12) and run.denoiser.block_size == 12
    assert yaml.safe_load((whole / "run" / "run.yaml").read_text())["block_size"] == [12, 1, 4]

    capsys.readouterr()
    for size, name in (
        (None, "upper bound, blocks of 12"),
        (4, "upper bound, blocks of 4"),
        (1, "exact"),
    ):
        options = {} if size is None else {"block_size": size}
        given = [] if size is None else ["--block-size", str(size)]
        content = evaluated(whole / "run", tmp_path / "a.json", *given)
        row = content["rows"][0]
        assert row["name"].startswith(f"model, {name}")
        assert run.evaluate(**options).model.nats_per_token == row["nats_per_token"]
        strings = run.sample(2, length=10, seed=3, **options)
        out = tmp_path / f"{size}.ring"
        assert (
            main(
                [
                    "sample",
                    str(whole / "run"),
                    "--num=2",
                    "--length=10",
                    "--seed=3",
                    f"--out={out}",
                    *given,
                ]
            )
            == 0
        )
        assert all(string in out.read_text() for string in strings)
        scored = run.score(strings, **options)
        assert scored.estimator.quantity.startswith(name)
        assert run.infill(strings, **options) == strings
    last = rows(whole / "run", "val/nats_per_token")[-1]
    for size in (1, 4, 12):
        model, total, count = run.denoiser.in_blocks(size), 0.0, 0
        for batch in run.datamodule.evaluation_loader("valid"):
            with torch.no_grad():
                total += float(WeightedMLM().terms(model, batch, CounterNoise(0)).sum())
            count += int(batch.loss_mask.sum())
        assert (abs(total / count - last) < 1e-5) == (size == 12), "validated with the largest"

    for command in (
        ["evaluate"],
        ["sample", "--num=1", "--length=4", "--seed=1"],
        ["score", str(out)],
    ):
        assert main([command[0], str(whole / "run"), *command[1:], "--block-size", "3"]) == 2
        said = capsys.readouterr().err
        assert f"{command[0]}.block_size must be 1, 4 or 12, which the network was trained" in said
    with pytest.raises(ValueError, match=r"infill.block_size must be 1, 4 or 12, .* got 3; choose"):
        run.infill("a", block_size=3)


def test_several_sizes_that_cannot_be_trained_are_refused(tmp_path: Path, capsys) -> None:
    config = write(tmp_path, "transformer")
    for value, said in (
        ("[]", "RunConfig.block_size must hold different integers of at least 1, got []"),
        ("[2, 2]", "RunConfig.block_size must hold different integers of at least 1, got [2, 2]"),
        ("[0, 4]", "RunConfig.block_size must hold different integers of at least 1, got [0, 4]"),
        ("[a]", "block_size must be an integer or a list of integers in brackets, got"),
    ):
        assert main(["train", str(config), "--block_size", value]) == 2
        assert said in capsys.readouterr().err
    search = ["--objective.init_args.search_batches", "4"]
    assert main(["train", str(config), "--block_size", "[1, 4]", *search]) == 2
    assert "search_batches must be null with several block sizes" in capsys.readouterr().err
    uniform = ["--process", "seqdiff.process.Uniform", "--block_size", "[1, 4]"]
    assert main(["train", str(config), *uniform]) == 2
    assert "RunConfig.block_size must be null with the process uniform" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_list_of_one_size_is_that_size(tmp_path: Path) -> None:
    """The weights are equal to the last bit."""
    found = []
    for value in ("4", "[4]"):
        folder = tmp_path / value
        folder.mkdir()
        config = write(folder, "transformer")
        assert main(["train", str(config), "--block_size", value, "--trainer.max_steps", "3"]) == 0
        found.append(load(folder / "run").denoiser)
    assert found[0].process == found[1].process
    for name, weight in found[0].state_dict().items():
        assert torch.equal(weight, found[1].state_dict()[name]), name

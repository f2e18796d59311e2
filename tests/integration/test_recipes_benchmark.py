"""The race of recipes: its objectives, its differences, and a race of small networks."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from benchmarks import recipes
from benchmarks.raced import (
    Antithetic,
    ComplementaryMasks,
    OnlineImportance,
    SeveralMasks,
)
from genomics.sequence import decode
from seqdiff.rng import CounterNoise
from seqdiff.run.config import dump, parse_run
from seqdiff.types import Inputs
from tests.oracles import LookupBackbone, copies, enumerated_nelbo, masked_model

LENGTH, DRAWS = 4, 32768


@pytest.mark.parametrize(
    "objective", [Antithetic(), ComplementaryMasks(), OnlineImportance(), SeveralMasks(3)], ids=repr
)
def test_the_draws_are_of_the_bound(objective) -> None:
    """The mean of many draws is within five standard errors of the enumerated bound."""
    denoiser = masked_model(LookupBackbone(3, LENGTH, seed=0))
    row = torch.tensor([2, 0, 1, 1])
    bound = enumerated_nelbo(denoiser, row)
    if isinstance(objective, ComplementaryMasks):  # nothing is left when all tokens are masked
        blank = torch.full((1, LENGTH), 3)
        where = torch.ones_like(blank, dtype=torch.bool)
        nats = denoiser.nats(Inputs(blank, torch.ones(1).double()), row[None], where)
        bound -= float(nats.sum()) / (2 * LENGTH)
    batches = copies(row, DRAWS).take(torch.arange(DRAWS)), CounterNoise(1)
    parts = [
        objective.terms(denoiser, batches[0].take(rows), batches[1]).sum(dim=-1)
        for rows in torch.arange(DRAWS).split(1024)
    ]
    found = torch.cat(parts)
    assert abs(float(found.mean()) - bound) < 5 * float(found.std()) / math.sqrt(DRAWS)
    assert float(found.std()) / math.sqrt(DRAWS) < 0.02 * bound


def test_differences_are_of_rows_and_seeds() -> None:
    """By hand: three rows of unequal length, two seeds."""
    tokens = np.array([2, 4, 2])
    theirs = [{"nats": np.array([4.0, 8.0, 6.0]), "tokens": tokens}] * 2
    ours = [
        {"nats": np.array([3.0, 8.0, 6.0]), "tokens": tokens},
        {"nats": np.array([3.0, 6.0, 5.0]), "tokens": tokens},
    ]
    mean, error = recipes.compare(ours, theirs)
    assert mean == pytest.approx(-(1 + 1 + 2 + 1) / 16)
    residual = np.array([-1.0, -1.0, -0.5]) - mean * tokens
    over_rows = math.sqrt(3 * residual.var(ddof=1)) / 8
    over_seeds = np.std([-1 / 8, -4 / 8], ddof=1) / math.sqrt(2)
    assert error == pytest.approx(math.hypot(over_rows, over_seeds))
    assert recipes.compare(theirs, theirs) == (0.0, 0.0)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a table of promoters and two recipes."""
    folder = tmp_path_factory.mktemp("race")
    generator = np.random.default_rng(0)
    lines = ["sequence\tsplit"]
    for number, row in enumerate(generator.integers(0, 4, (60, 20)).astype(np.uint8)):
        lines.append(f"{decode(row)}\t{('train', 'valid', 'test')[max(0, number // 3 - 17)]}")
    (folder / "rows.tsv").write_text("\n".join(lines) + "\n")
    small = {
        "experts": None,
        "backbone.d_model": 8,
        "backbone.n_layer": 1,
        "data.length": 20,
        "data.batch_size": 4,
    }
    files = {
        f"data.{name}": f"{{work}}/{split}.fa"
        for name, split in (("fasta", "train"), ("valid_fasta", "valid"), ("test_fasta", "test"))
    }
    task = {
        "config": "experiment/genomics/fasta.yaml",
        "unit": "bits",
        "experts": 2,
        "table": {"file": "rows.tsv", "sequence": "sequence", "split": "split"},
        "set": {**small, **files},
    }
    stages = [{"fraction": 0.5, "scale": {"data.length": 0.5}}, {"fraction": 0.5}]
    content = {
        "tasks": {"toy": task},
        "recipes": {
            "before": {},
            "short / first": {"stages": stages},
            "counts": {"experts": True, "scale": {"optim.lr": 0.5}},
        },
    }
    (folder / "recipes.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    return folder


@pytest.mark.slow
def test_a_race(world: Path, tmp_path: Path, capsys) -> None:
    files = ["--data", str(world), "--work", str(tmp_path / "work")]
    asked = [*files, "--recipes", str(world / "recipes.yaml"), "--tokens", "800"]
    asked += ["--rows", "3", "--evaluations", "2", "--plot", str(tmp_path / "plots")]
    recipes.main([*asked, "--json", str(tmp_path / "out.json")])
    shown = capsys.readouterr().out
    assert shown.count(": done") == 3 and shown.count("±") == 2
    found = json.loads((tmp_path / "out.json").read_text())["results"]["toy"]
    assert found["before"]["difference"] == 0
    for name in ("short / first", "counts"):
        gap = found[name]["bounds"][0] - found["before"]["bounds"][0]
        assert found[name]["difference"] == pytest.approx(gap)
    for part in ("network_alone", "experts_alone"):
        gap = found["counts"][part][0] - found["before"]["bounds"][0]
        assert found["counts"][f"{part}_difference"] == pytest.approx(gap)
        assert found["counts"][f"{part}_standard_error"] > 0
    runs = tmp_path / "work" / "toy" / "800-tokens"
    configs = [
        yaml.safe_load((runs / part / "run.yaml").read_text())
        for part in ("before-0/stage0", "short-over-first-0/stage0", "short-over-first-0/stage1")
    ]
    counted = yaml.safe_load((runs / "counts-0/stage0/run.yaml").read_text())
    assert [c["experts"] for c in configs] == [None] * 3 and counted["experts"]["order"] == 2
    assert [c["trainer"]["max_steps"] for c in configs] == [10, 10, 5]
    assert [c["data"]["init_args"]["length"] for c in configs] == [20, 10, 20]
    assert (tmp_path / "plots" / "recipes_toy.svg").exists()
    recipes.main(asked)
    assert capsys.readouterr().out.count(": kept") == 3


@pytest.mark.slow
def test_every_recipe_is_a_configuration() -> None:
    content = yaml.safe_load(recipes.RECIPES.read_text())
    budget = recipes.Budget(1e6, None)
    parsed: dict[str, str] = {}
    for name, settings in content["recipes"].items():
        for task in settings.get("tasks", content["tasks"]):
            of_task = (task, content["tasks"][task])
            entry = recipes.Entry(of_task, (name, settings), 0, budget, 8, 2, Path("unused"))
            stages = settings.get("stages", [{"fraction": 1.0}])
            assert sum(stage["fraction"] for stage in stages) == pytest.approx(1)
            config = recipes.CONFIGS / content["tasks"][task]["config"]
            flags = [recipes.flags_of(entry, stage, budget) for stage in stages]
            runs = [dump(parse_run(config, of_stage, output="unused")) for of_stage in flags]
            other = parsed.setdefault(task + "".join(runs), name)
            assert other == name, f"{name} is {other} on {task}"
            if name == "before":
                assert "Sobol" in runs[0] and "muon_lr: null" in runs[0]
                assert "experts: null" in runs[0]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--task", "dog", "--tokens", "1"], "recipes.task must be one of toy, got 'dog'"),
        (["--recipe", "x", "--tokens", "1"], "recipes.recipe must be one of before, short / first"),
        ([], "recipes must have one budget, got none or two"),
    ],
)
def test_what_does_not_exist_is_refused(world: Path, flags, said: str, capsys) -> None:
    files = ["--data", str(world), "--work", "w", "--recipes", str(world / "recipes.yaml")]
    with pytest.raises(SystemExit) as stopped:
        recipes.main([*files, *flags])
    assert stopped.value.code == 2 and said in capsys.readouterr().err

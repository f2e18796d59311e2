"""``seqdiff finetune``: what can be learned is, the grid goes on where it stopped, bad input."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from torch import Tensor

from genomics import benchmark_grid
from genomics.alphabet import decode
from genomics.benchmark_fitting import hold_out
from genomics.benchmark_ledger import Ledger
from genomics.benchmark_models import Pretrained, load_models
from genomics.benchmark_plan import Plan, Recipe
from genomics.benchmark_protocol import BASELINES, Strategy
from genomics.benchmark_published import COLUMNS, published, published_length
from genomics.benchmark_runs import run_backbone
from genomics.labelled import Labelled, LabelledTask
from seqdiff.backbones import Caduceus
from seqdiff.cli import main

GC_RICH = np.array([0.15, 0.35, 0.35, 0.15])


def draw(num: int, seed: int, *, shuffle: bool = False) -> Labelled:
    """Class 1 has 70% of G and C, class 0 has 30%; lengths 20..40, or any labels at all."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, num)
    ids = tuple(
        rng.choice(4, int(rng.integers(20, 41)), p=GC_RICH if label else 0.5 - GC_RICH).astype(
            np.uint8
        )
        for label in labels
    )
    return Labelled(ids, rng.permutation(labels) if shuffle else labels)


def toy(*, shuffle: bool = False) -> LabelledTask:
    train, test = draw(500, 1, shuffle=shuffle), draw(300, 2, shuffle=shuffle)
    return LabelledTask("toy", ("at", "gc"), train, None, test)


def network(variant: str) -> Caduceus:
    torch.manual_seed(0)
    return Caduceus(
        8,
        1,
        num_embeddings=5,
        num_logits=4,
        complement=(3, 2, 1, 0, 4),
        variant=variant,  # pyright: ignore[reportArgumentType]
        d_state=2,
    )


def auroc(task: LabelledTask, variant: str, strategy: str, conjoin: str, lr: float) -> float:
    plan = Plan(Recipe(lr, 32, 4), strategy, conjoin, 64, "real", 0)  # pyright: ignore[reportArgumentType]
    found = run_backbone(network(variant), task, np.zeros(len(task.test), dtype=bool), plan)
    return found["test"]["auroc"]  # pyright: ignore[reportIndexIssue]


@pytest.mark.parametrize(
    ("variant", "strategy", "conjoin", "lr"),
    [
        ("ph", "full", "none", 0.01),
        ("ph", "full", "test", 0.01),
        ("ph", "full", "train", 0.01),
        ("ps", "full", "none", 0.01),
        ("ph", "probe", "test", 0.1),
    ],
)
def test_what_can_be_learned_is(variant: str, strategy: str, conjoin: str, lr: float) -> None:
    """Shuffled labels: 300 rows at chance give .5 +- .034, so .68 is five standard errors off."""
    assert auroc(toy(), variant, strategy, conjoin, lr) > 0.95
    assert 0.32 < auroc(toy(shuffle=True), variant, strategy, conjoin, lr) < 0.68


@pytest.mark.parametrize("strategy", ["full", "probe"])
def test_pooled_padding_fills_rows_up_to_the_length(strategy: Strategy) -> None:
    """Every batch that reaches the network is 64 wide and has no padding left to leave out."""
    backbone, seen = network("ph"), set()
    backbone.embedding.register_forward_hook(
        lambda module, inputs, output: seen.add(output.shape[1])
    )
    inner = backbone.hidden

    def hidden(tokens: Tensor, padding: Tensor | None = None, layer: int | None = None) -> Tensor:
        assert padding is None
        return inner(tokens, padding, layer)

    backbone.hidden = hidden
    plan = Plan(Recipe(0.01, 32, 1), strategy, "test", 64, "padded", 0)
    run_backbone(backbone, toy(), np.zeros(300, dtype=bool), plan)
    assert seen == {1, 64}, "one token to ask for the width of states, then whole rows"


def test_a_probe_leaves_the_network_alone() -> None:
    backbone = network("ph")
    before = {name: p.clone() for name, p in backbone.state_dict().items()}
    plan = Plan(Recipe(0.1, 32, 1), "probe", "none", 64, "real", 0)
    run_backbone(backbone, toy(), np.zeros(300, dtype=bool), plan)
    for name, p in backbone.state_dict().items():
        torch.testing.assert_close(p, before[name], atol=0, rtol=0)


def test_the_splits_are_nine_to_one_and_of_their_own() -> None:
    task = toy()
    parts = [hold_out(task, seed) for seed in range(3)]
    assert [(len(train), len(valid)) for train, valid in parts] == [(450, 50)] * 3
    for train, valid in parts:
        together = sorted(ids.tobytes() for ids in (*train.ids, *valid.ids))
        assert together == sorted(ids.tobytes() for ids in task.train.ids)
    assert len({b"".join(ids.tobytes() for ids in valid.ids) for _, valid in parts}) == 3


def test_the_rate_warms_up_for_a_hundredth_and_ends_at_nothing() -> None:
    model = torch.nn.Linear(2, 2)
    adam, rate = Recipe(1.0, 10, 10).optimiser(model, 1000)
    rates = []
    for _ in range(1000):
        rates.append(adam.param_groups[0]["lr"])
        adam.step()
        rate.step()
    assert np.argmax(rates) in (9, 10) and rates[0] == pytest.approx(0.1)
    assert rates[-1] < 1e-4 and rates[505] == pytest.approx(0.5, abs=0.01)
    assert [group["weight_decay"] for group in adam.param_groups] == [0.1, 0.0]


def test_published_numbers() -> None:
    row = published("test_human_nontata_promoters")
    assert tuple(row) == COLUMNS and row["MDLM"] == 0.940 and row["CNN"] == 0.861
    assert published_length("human_nontata_promoters") == 251
    assert published("prom_core_all") == {} and published_length("prom_core_all") is None


# The ledger


def test_the_ledger_keeps_what_others_write(tmp_path: Path) -> None:
    one, two = Ledger(tmp_path / "r.jsonl"), Ledger(tmp_path / "r.jsonl")
    one.add({"b": 1, "a": 2}, {"x": 1})
    two.add({"a": 3}, {"x": 2})
    again = Ledger(tmp_path / "r.jsonl")
    assert again.find({"a": 2, "b": 1}) == {"x": 1} and again.find({"a": 3}) == {"x": 2}
    assert again.find({"a": 2}) is None


def test_a_damaged_ledger_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    Ledger(path).add({"a": 1}, {"x": 1})
    path.write_text(path.read_text() + "{\n")
    with pytest.raises(ValueError, match=r"r\.jsonl:2: must be a finished cell"):
        Ledger(path)


# The command


def write_table(path: Path, data: Labelled) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = zip(data.ids, data.labels, strict=True)
    path.write_text("sequence,label\n" + "".join(f"{decode(ids)},{y}\n" for ids, y in rows))


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network as it is built."""
    folder = tmp_path_factory.mktemp("tiny")
    rng = np.random.default_rng(0)
    (folder / "g.fa").write_text(f">c\n{decode(rng.integers(0, 4, 4000, dtype=np.uint8))}\n")
    config = {
        "data": {
            "class_path": "genomics.datamodules.FastaDataModule",
            "init_args": {"fasta": str(folder / "g.fa"), "length": 64, "batch_size": 2},
        },
        "backbone": {
            "class_path": "seqdiff.backbones.Caduceus",
            "init_args": {"d_model": 8, "n_layer": 1, "d_state": 2},
        },
        "trainer": {"max_steps": 0, "accelerator": "cpu", "enable_progress_bar": False},
        "output": str(folder / "tiny"),
    }
    (folder / "c.yaml").write_text(yaml.safe_dump(config))
    assert main(["train", str(folder / "c.yaml")]) == 0
    return folder / "tiny"


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """Two tasks; the test set of the first holds a copy of a training row."""
    task = toy()
    test = Labelled((*task.test.ids, task.train.ids[0]), np.append(task.test.labels, 0))
    for name in ("one", "two"):
        write_table(tmp_path / f"suite/{name}/train.csv", task.train)
        write_table(tmp_path / f"suite/{name}/test.csv", test if name == "one" else task.test)
    return tmp_path / "suite"


SMALL = ["--epochs", "1", "--seeds", "2", "--batch_size", "64", "--lr", "0.01"]


def test_a_suite_is_run_once_and_goes_on(
    run_folder: Path,
    suite: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "out"
    command = ["finetune", str(run_folder), "--data", str(suite), "--out", str(out), *SMALL]
    assert main([*command, "--scratch", "--device", "cpu"]) == 0
    shown = capsys.readouterr().out
    results = (out / "results.jsonl").read_text()
    assert len(results.splitlines()) == 2 * 2 * (len(BASELINES) + 2)
    rows = json.loads((out / "table.json").read_text())["rows"]
    assert [(row["task"], row["method"]) for row in rows] == [
        (task, method)
        for task in ("one", "two")
        for method in (
            "majority",
            "length only",
            "k-mer logistic",
            "CNN",
            "tiny, full, RC at test",
            "Caduceus (920 parameters) from scratch, full, RC at test",
        )
    ]
    assert [row["num_unseen"] for row in rows[:1] + rows[-1:]] == [300, 300]
    assert rows[0]["num_test"] == 301 and "one: 301 test rows, 300 unseen" in shown
    assert "| CNN |" in (out / "table.md").read_text()

    def never(*args: object, **options: object) -> None:
        raise AssertionError("a finished cell was run again")

    monkeypatch.setattr(benchmark_grid, "run_baseline", never)
    monkeypatch.setattr(benchmark_grid, "run_backbone", never)
    assert main([*command, "--scratch", "--device", "cpu"]) == 0
    assert (out / "results.jsonl").read_text() == results
    assert capsys.readouterr().out == shown


def test_baselines_alone(suite: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    command = ["finetune", "--data", str(suite / "one"), "--out", str(out), *SMALL]
    assert main([*command, "--baselines", "majority", "kmer"]) == 0
    rows = json.loads((out / "table.json").read_text())["rows"]
    assert [row["method"] for row in rows] == ["majority", "k-mer logistic"]
    for flags in (["--scratch"], ["--baselines"]):
        assert main([*command[: -len(SMALL) - 1], str(tmp_path / "no"), *SMALL, *flags]) == 2
        assert "finetune.models must be given" in capsys.readouterr().err
        assert not (tmp_path / "no").exists()


def test_networks_of_one_shape_have_one_untrained_twin(run_folder: Path, tmp_path: Path) -> None:
    """Seeds draw its weights; another shape, though as large, has a twin of its own."""
    config, other = run_folder.parent / "c.yaml", tmp_path / "other"
    assert main(["train", str(config), "--seed", "1", "--output", str(tmp_path / "again")]) == 0
    flags = ["--backbone.dt_max", "0.2", "--output", str(other)]
    assert main(["train", str(config), *flags]) == 0
    runs, device = [run_folder, tmp_path / "again", other], torch.device("cpu")
    *trained, twin, last = load_models(runs, device, scratch=True)
    assert [model.name for model in trained] == ["tiny", "again", "other"]
    assert twin.weights.startswith("new ") and last.weights not in (twin.weights, "")

    def weights(model: Pretrained, seed: int) -> Tensor:
        built = model.build(seed)
        assert isinstance(built, Caduceus)
        return built.embedding.weight

    first = weights(twin, 0)
    assert torch.equal(first, weights(twin, 0)) and not torch.equal(first, weights(twin, 1))
    assert torch.equal(weights(trained[0], 0), weights(trained[0], 1)), "weights that are kept"
    assert not torch.equal(weights(trained[0], 0), weights(trained[1], 0))
    assert len(load_models(runs, device, scratch=False)) == 3


def test_an_interrupted_grid_keeps_what_is_finished(
    run_folder: Path, suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    command = ["finetune", str(run_folder), "--data", str(suite / "one"), "--out", str(out)]
    command += [*SMALL, "--baselines", "majority", "--strategy", "probe", "--device", "cpu"]
    real, ran = benchmark_grid.run_backbone, []

    def breaks(*args: object) -> dict[str, object]:
        ran.append(args)
        if len(ran) == 2:
            raise ValueError("the power went")
        return real(*args)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(benchmark_grid, "run_backbone", breaks)
    assert main(command) == 2
    kept = (out / "results.jsonl").read_text()
    assert len(kept.splitlines()) == 3 and not (out / "table.md").exists()
    assert main(command) == 0
    assert len(ran) == 3, "one failed and was run again; the finished one was not"
    assert (out / "results.jsonl").read_text().startswith(kept)


def test_results_follow_from_the_seed() -> None:
    task, nothing = toy(shuffle=True), np.zeros(300, dtype=bool)

    def result(seed: int) -> dict[str, object]:
        plan = Plan(Recipe(0.01, 64, 1), "full", "none", 64, "real", seed)
        return run_backbone(network("ph"), task, nothing, plan) | {"seconds": 0}

    first = result(0)
    assert result(0) == first
    assert result(1)["test"] != first["test"], "seeds that make no difference"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--data", "none.csv"], "finetune.data must exist"),
        (["--data", "bad.csv"], "bad.csv:3: 'X' at offset 0"),
        (["--data", "one.csv"], "at least two classes"),
        (["--data", "suite/one", "--label_column", "y"], "--label_column"),
        (["--data", "suite/one", "--lr", "0"], "finetune.lr must be above 0"),
        (["--data", "suite/one", "--seeds", "0"], "finetune.seeds must be at least 1"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(
    options: list[str],
    message: str,
    run_folder: Path,
    suite: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fails: Callable[[list[str]], str],
) -> None:
    (tmp_path / "bad.csv").write_text("sequence,label\nAC,0\nXC,1\n")
    (tmp_path / "one.csv").write_text("sequence,label\nAC,1\nCC,1\n")
    monkeypatch.chdir(suite.parent)
    assert message in fails(["finetune", str(run_folder), "--out", "out", *options])
    assert not (tmp_path / "out").exists()


def test_what_is_no_network_is_refused(
    suite: Path, tmp_path: Path, fails: Callable[[list[str]], str]
) -> None:
    said = fails(["finetune", str(tmp_path), "--data", str(suite), "--out", str(tmp_path / "o")])
    assert "run.yaml" in said


@pytest.fixture
def fails(capsys: pytest.CaptureFixture[str]) -> Callable[[list[str]], str]:
    """Run a command that must fail politely; give its one line."""

    def run(arguments: list[str]) -> str:
        capsys.readouterr()
        assert main(arguments) == 2
        lines = capsys.readouterr().err.strip().splitlines()
        assert len(lines) == 1 and lines[0].startswith("seqdiff: error: ")
        return lines[0]

    return run

"""``seqdiff finetune``: the grid resumes, everything is reported, invalid input is rejected."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml

from genomics.finetune import grid as benchmark_grid
from genomics.finetune.labelled import Labelled
from genomics.finetune.protocol import BASELINES
from seqdiff.cli.app import main, parse
from tests.genomics.toy_tasks import run_config, toy, write_table


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network with initial weights."""
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "c.yaml").write_text(yaml.safe_dump(run_config(folder)))
    assert main(["train", str(folder / "c.yaml")]) == 0
    return folder / "tiny"


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """Two tasks; the test set of the first contains a copy of a training row."""
    task = toy()
    test = Labelled((*task.test.ids, task.train.ids[0]), np.append(task.test.labels, 0))
    for name in ("one", "two"):
        write_table(tmp_path / f"suite/{name}/train.csv", task.train)
        write_table(tmp_path / f"suite/{name}/test.csv", test if name == "one" else task.test)
    return tmp_path / "suite"


SMALL = ["--epochs", "1", "--seeds", "2", "--batch_size", "64", "--lr", "0.01"]


@pytest.mark.slow
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
            "Caduceus from scratch, full, RC at test",
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


def test_an_interrupted_grid_keeps_what_is_finished(
    run_folder: Path, suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    command = ["finetune", str(run_folder), "--data", str(suite / "one"), "--out", str(out)]
    command += [*SMALL, "--baselines", "majority", "--strategy", "probe", "--device", "cpu"]
    real, ran = benchmark_grid.run_backbone, []

    def breaks(*args: object, **options: object) -> dict[str, object]:
        ran.append(args)
        if len(ran) == 2:
            raise ValueError("the power went")
        return real(*args, **options)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(benchmark_grid, "run_backbone", breaks)
    assert main(command) == 2
    kept = (out / "results.jsonl").read_text()
    assert len(kept.splitlines()) == 3 and not (out / "table.md").exists()
    assert main(command) == 0
    assert len(ran) == 3, "one failed and was run again; the finished one was not"
    assert (out / "results.jsonl").read_text().startswith(kept)


def test_the_published_protocol_is_the_default() -> None:
    _, bound = parse(["finetune", "--data", "d", "--out", "o"])
    bound.apply_defaults()
    args = bound.arguments
    several = ("lr", "batch_size", "strategy", "conjoin", "baselines")
    assert {name: list(args[name]) for name in several} == {
        "lr": [1e-3, 2e-3],
        "batch_size": [128, 256],
        "strategy": ["full"],
        "conjoin": ["test"],
        "baselines": ["majority", "length", "kmer", "cnn"],
    }
    assert (args["epochs"], args["seeds"], args["pooling"]) == (10, 5, "real")
    assert args["max_length"] is None and not args["scratch"]


def test_the_command_line_is_read_without_heavy_libraries() -> None:
    code = (
        "import sys; from seqdiff.cli.app import parse; "
        "parse(['finetune', '--data=d', '--out=o']); "
        "sys.exit(any(name in sys.modules for name in ('torch', 'numpy', 'sklearn')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_several_ways_to_conjoin_stand_in_one_table(
    run_folder: Path, suite: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    command = ["finetune", str(run_folder), "--data", str(suite / "one"), "--out", str(out)]
    flags = ["--conjoin", "none", "test", "train", "none", "--strategy", "probe", "--baselines"]
    assert main([*command, *SMALL, *flags, "--device", "cpu"]) == 0
    rows = json.loads((out / "table.json").read_text())["rows"]
    assert [row["method"] for row in rows] == [
        "tiny, probe",
        "tiny, probe, RC at test",
        "tiny, probe, RC at train",
    ]
    assert len((out / "results.jsonl").read_text().splitlines()) == 6


def test_cut_sequences_are_counted(suite: Path, tmp_path: Path) -> None:
    """Counted by hand; a data set without truncated sequences prints nothing."""
    out, task = tmp_path / "out", toy()
    lengths = np.concatenate((task.train.lengths, task.test.lengths))
    command = ["finetune", "--data", str(suite / "two"), "--out", str(out), *SMALL]
    command += ["--baselines", "majority", "--max_length"]
    assert main([*command, "33"]) == 0
    note = f"two: networks read only the middle 33 bases of {(lengths > 33).sum()} of 800 sequences"
    assert note in (out / "table.md").read_text()
    assert note in json.loads((out / "table.json").read_text())["notes"][-1]
    assert main([*command, str(lengths.max())]) == 0
    assert "are cut" not in (out / "table.md").read_text()


def test_two_folders_of_one_name_are_refused(
    run_folder: Path, suite: Path, tmp_path: Path, fails: Callable[[list[str]], str]
) -> None:
    shutil.copytree(run_folder, tmp_path / "again" / "tiny")
    both = [str(run_folder), str(tmp_path / "again" / "tiny")]
    said = fails(["finetune", *both, "--data", str(suite), "--out", str(tmp_path / "out")])
    assert "finetune.models must have folders of different names, got tiny twice" in said
    assert not (tmp_path / "out").exists()


# Divergence


def test_a_rate_that_diverges_is_named_and_not_chosen(
    run_folder: Path, suite: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    command = ["finetune", str(run_folder), "--data", str(suite / "one"), "--out", str(out)]
    flags = ["--lr", "1e30", "0.01", "--baselines", "--device", "cpu"]
    assert main([*command, *SMALL, *flags]) == 0
    found = json.loads((out / "table.json").read_text())
    assert [row["chosen"] for row in found["rows"]] == ["0.01/64"]
    named = (
        "one: tiny, full, RC at test diverged at lr/batch 1e+30/64: seed 0 (finite for 0 epochs)"
    )
    assert found["notes"][-1].startswith(named) and "seed 1" in found["notes"][-1]
    assert named in capsys.readouterr().out and named in (out / "table.md").read_text()


def test_if_all_runs_diverge_there_is_a_table_and_an_error(
    run_folder: Path,
    suite: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "out"
    command = ["finetune", str(run_folder), "--data", str(suite / "one"), "--out", str(out)]
    command += [*SMALL[:-2], "--lr", "1e30", "--baselines", "majority", "--device", "cpu"]
    assert main(command) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert "finetune.lr must keep a network finite, got 2 runs that all diverged" in said
    rows = json.loads((out / "table.json").read_text())["rows"]
    assert [row["chosen"] for row in rows] == ["", "diverged"]
    monkeypatch.setattr(benchmark_grid, "run_backbone", lambda *args, **options: 1 / 0)
    assert main(command) == 2, "they are not run again"
    assert capsys.readouterr().err.splitlines()[-1] == said


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
    """Run a command that must fail with one line; return the line."""

    def run(arguments: list[str]) -> str:
        capsys.readouterr()
        assert main(arguments) == 2
        lines = capsys.readouterr().err.strip().splitlines()
        assert len(lines) == 1 and lines[0].startswith("seqdiff: error: ")
        return lines[0]

    return run

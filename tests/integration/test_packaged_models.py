"""Models that come with the package: opened by name, from any folder, without their data."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml
from safetensors.torch import load_file

import seqdiff
from genomics.models import ECOLI_PROMOTERS, train_ecoli_promoters
from genomics.models.train_ecoli_promoters import CONFIG, NAME, train_model, write_card
from seqdiff.cli.app import main
from seqdiff.run import default_path, packaged
from tests.integration.conftest import Entry

ROOT = Path(__file__).parents[2]
FOLDER = ECOLI_PROMOTERS.folder
CARD = (FOLDER / "README.md").read_text(encoding="utf-8")
FACTS = yaml.safe_load(CARD.split("---\n")[1])
OPTIONS = {"length": 20, "signal": {"log2_expr": 2.5}}


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder, on a machine with this one packaged model."""
    found = {"seqdiff.models": [Entry(NAME, ECOLI_PROMOTERS)]}
    original = packaged.entry_points
    monkeypatch.setattr(
        packaged, "entry_points", lambda group: found.get(group) or original(group=group)
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_table(path: Path, rows: int, length: int) -> Path:
    """Random sequences with random values, of which the last third is for validation and tests."""
    rng, lines = np.random.default_rng(0), ["sequence\tlog2_expr\tsplit"]
    for row in range(rows):
        split = "train" if row < rows * 2 // 3 else ("valid", "test")[row % 2]
        sequence = "".join(rng.choice(list("ACGT"), length))
        lines.append(f"{sequence}\t{rng.normal():.3f}\t{split}")
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return path


def snapshot(folder: Path) -> dict[str, tuple[int, str]]:
    return {
        path.name: (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in folder.iterdir()
    }


@pytest.mark.slow
def test_an_installed_model_opens_in_another_folder(tmp_path: Path) -> None:
    """In a new process, by the entry point of the installed package."""
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    code = (
        f"import seqdiff; run = seqdiff.load({NAME!r})\n"
        f"print(*run.sample(2, seed=3, **{OPTIONS}), sep='\\n')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    run, drawn = seqdiff.load(FOLDER), done.stdout.split()
    assert drawn == run.sample(2, seed=3, **OPTIONS)
    assert drawn != run.sample(2, seed=4, **OPTIONS)
    assert all(re.fullmatch("[ACGT]{20}", row) for row in drawn)
    assert run.usual_length("x") == 165, "known without the table"
    assert not list(tmp_path.iterdir())


def test_commands_write_into_the_current_folder(elsewhere: Path, capsys) -> None:
    before = snapshot(FOLDER)
    wanted = ["--length=20", "--signal", "log2_expr=2.5"]
    assert main(["sample", NAME, *wanted, "--seed=3", "--num=2"]) == 0
    shown = capsys.readouterr().out
    drawn = seqdiff.load(NAME).sample(2, seed=3, **OPTIONS)
    assert "".join(line for line in shown.splitlines() if line[0] != ">") == "".join(drawn)
    assert main(["design", NAME, *wanted, "--num=2", "--candidates=4"]) == 0
    folder = elsewhere / f"{NAME}-designs"
    assert capsys.readouterr().out.startswith(f"{folder.name}: 2 designs")
    assert sorted(path.name for path in folder.iterdir()) == [
        "design.html",
        "designs.fa",
        "designs.tsv",
    ]
    assert list(elsewhere.iterdir()) == [folder] and snapshot(FOLDER) == before
    for packaged_run in (Path(NAME), FOLDER):
        assert default_path(packaged_run, "report.html") == Path(f"{NAME}-report.html")
    assert default_path(folder, "report.html") == folder / "report.html"


def test_what_needs_the_table_asks_for_it(elsewhere: Path, fails, capsys) -> None:
    for command in (
        ["evaluate", NAME],
        ["variance", NAME],
        ["sample", NAME, "--signal-from=test"],
        ["report", NAME],
    ):
        assert fails(command) == (
            f"seqdiff: error: {NAME} is packaged without its data, which this needs in the current "
            "folder: data.table must be an existing file, got ecoli_165bp.tsv.gz; check the path"
        )
        assert not list(elsewhere.iterdir())
    write_table(elsewhere / "t.tsv", 12, 165)
    table = subprocess.run(["gzip", "-c", "t.tsv"], capture_output=True, check=True).stdout
    (elsewhere / "ecoli_165bp.tsv.gz").write_bytes(table)
    assert main(["evaluate", NAME, "--evaluations=2"]) == 0
    said = " ".join(capsys.readouterr().out.split())  # the title is wrapped after a long path
    assert "2 sequences, 330 bases" in said


def test_a_folder_of_the_same_name_wins(elsewhere: Path, fails: Callable[[list[str]], str]) -> None:
    (elsewhere / NAME).mkdir()
    message = fails(["sample", NAME])
    assert f"must hold run.yaml, got none in {NAME}; check the path (a published" in message
    shutil.copytree(FOLDER, elsewhere / NAME, dirs_exist_ok=True)
    assert seqdiff.load(NAME).directory == Path(NAME)
    assert default_path(Path(NAME), "designs") == Path(NAME) / "designs"
    (elsewhere / NAME).rename(elsewhere / "moved")
    assert seqdiff.load(NAME).directory == FOLDER


def test_an_unknown_name_lists_the_packaged_models(elsewhere: Path, fails) -> None:
    for command in (["sample"], ["evaluate"], ["design"], ["report"], ["train", "--resume"]):
        assert fails([*command, "ecoli-enhancers"]).endswith(
            "must hold run.yaml, got none in ecoli-enhancers; check the path, or name a packaged "
            f"model: {NAME}"
        )
    assert "got the packaged model ecoli-promoters; start" in fails(["train", "--resume", NAME])


def test_the_command_lists_models(elsewhere: Path, capsys) -> None:
    assert main(["models"]) == 0
    low, high = FACTS["signals"]["log2_expr"]
    line = capsys.readouterr().out
    assert line.startswith(f"{NAME}: promoters of E. coli, 165 bases; log2_expr from {low}")
    assert line.endswith(f" to {high}; {FACTS['weights']['bytes'] / 1e6:.1f} MB\n")


def test_other_runs_start_from_its_weights(elsewhere: Path) -> None:
    table = write_table(elsewhere / "own.tsv", 12, 30)
    flags = [f"--data.table={table}", "--data.signals=[log2_expr]", "--trainer.max_steps=0"]
    run = seqdiff.train(CONFIG, *flags, f"--start_from={NAME}", "--output=tuned")
    found, first = (load_file(f / "model.safetensors") for f in (run.directory, FOLDER))
    same = {name for name in first if found[name].equal(first[name])}
    assert set(first) - same == {"backbone.signal_map.range"}


def test_the_packaged_files_are_small_and_name_no_folder() -> None:
    files = {path.name: path.stat().st_size for path in FOLDER.iterdir()}
    assert set(files) == {"README.md", "model.safetensors", "run.yaml"}
    assert sum(files.values()) < 3_000_000
    config = (FOLDER / "run.yaml").read_text()
    assert not re.search(r"[ '\"](/|~|[A-Z]:\\)", config)
    assert yaml.safe_load(config)["data"]["init_args"]["table"] == FACTS["data"]["file"]


def test_the_card_is_what_the_script_writes() -> None:
    assert write_card(FACTS) == CARD, "run the script instead of editing the card"
    value = FACTS["bits_per_base"]["given"][0]
    assert f"upper bound | {value:.4f} |" in CARD
    assert write_card(FACTS) != CARD.replace(f"bound | {value:.4f}", f"bound | {value - 1:.4f}")
    weights = (FOLDER / "model.safetensors").read_bytes()
    assert FACTS["weights"]["sha256"] == hashlib.sha256(weights).hexdigest()
    assert FACTS["weights"]["bytes"] == len(weights)
    provenance = yaml.safe_load((FOLDER / "run.yaml").read_text())["provenance"]
    assert FACTS["versions"].items() >= (provenance.items() - {"tokenizer": 0}.items()) - {
        ("tokenizer", provenance["tokenizer"])
    }


@pytest.mark.slow
def test_the_script_measures_what_it_trains(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same seed gives the same files, another one other weights; the metrics are the run's."""
    table = write_table(elsewhere / "t.tsv", 90, 20)
    first, again, other = (elsewhere / name for name in ("first", "again", "other"))
    train_model(table, first, 2)
    train_model(table, again, 2)
    assert {name: digest for name, (_, digest) in snapshot(first).items()} == {
        name: digest for name, (_, digest) in snapshot(again).items()
    }
    monkeypatch.setattr(train_ecoli_promoters, "SEED", 1)
    train_model(table, other, 2)
    assert (other / "model.safetensors").read_bytes() != (first / "model.safetensors").read_bytes()
    facts = yaml.safe_load((first / "README.md").read_text().split("---\n")[1])
    assert facts["training"]["command"].endswith("--steps 2")
    for name, told in (("given", True), ("without", False)):
        row = seqdiff.load(first).evaluate("test", given_signals=told, evaluations=4).model
        found = [round(row.bits_per_token, 4), round(row.bits_per_token_error or 0, 4)]
        assert facts["bits_per_base"][name] == found


@pytest.mark.slow
def test_the_card_holds_on_the_real_test_split(elsewhere: Path, real_data: Path) -> None:
    table = real_data / "design" / FACTS["data"]["file"]
    assert hashlib.sha256(table.read_bytes()).hexdigest() == FACTS["data"]["sha256"]
    (elsewhere / table.name).symlink_to(table)
    row = seqdiff.load(NAME).evaluate("test", given_signals=True, evaluations=4).model
    value, error = FACTS["bits_per_base"]["given"]
    assert row.bits_per_token == pytest.approx(value, abs=2e-4)
    assert row.bits_per_token_error == pytest.approx(error, abs=2e-4)


def test_the_script_needs_its_data(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SEQDIFF_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match=r"train_ecoli_promoters\.SEQDIFF_DATA must lead"):
        train_ecoli_promoters.main(["--steps=1", "--out=new"])
    assert not list(elsewhere.iterdir())

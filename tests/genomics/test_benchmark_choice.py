"""The results table computed by hand: choices, averages, divergence."""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from genomics.finetune.table import HEADINGS, NOTE, Line, build_tables, list_diverged, summarise
from seqdiff.training import Advance, Cell, DivergedError, Ledger, run_cells, write_tables

CHOICES = ((1e-3, 128), (1e-3, 256), (2e-3, 128))
# By choice and seed: accuracies after two epochs on validation, on test, on unseen rows.
RESULTS = {
    CHOICES[0]: [([0.5, 0.8], 0.9, 0.99), ([0.7, 0.6], 0.9, 0.97)],
    CHOICES[1]: [([0.9, 0.2], 0.60, 0.30), ([0.7, 0.8], 0.70, 0.55)],
    CHOICES[2]: [([0.84, 0.84], 0.8, 0.80), ([0.84, 0.84], 0.8, 0.90)],
}


def result(valid: list[float], test: float, unseen: float) -> dict[str, object]:
    return {
        "epoch": 1 + int(np.argmax(valid)),
        "valid_accuracy": valid,
        "test": {"num": 40, "accuracy": test, "matthews": test - 0.1, "auroc": test - 0.2},
        "unseen": {"num": 30, "accuracy": unseen, "matthews": unseen - 0.1, "auroc": unseen - 0.2},
        "num_train": 100,
        "seconds": 50.0,
        "train_seconds": 2.0,
    }


def cell(
    choice: tuple[float, int],
    seed: int,
    found: dict[str, object] | int,
    *,
    method: str = "net",
    strategy: str = "full",
) -> Cell:
    """A run with a known result, or one that diverges after some epochs."""
    recipe = {"lr": choice[0], "batch_size": choice[1], "epochs": 2}
    key: dict[str, object] = {"task": "demo_human_or_worm", "method": method, "recipe": recipe}
    key |= {"strategy": strategy, "conjoin": "none", "pooling": "real", "seed": seed}

    def run(progress: Advance) -> dict[str, object]:
        if isinstance(found, int):
            raise DivergedError(found)
        return found

    return Cell(key, 0, run)


def grid(**options: str) -> list[Cell]:
    return [
        cell(choice, seed, result(*numbers), **options)
        for seed in range(2)
        for choice in CHOICES
        for numbers in [RESULTS[choice][seed]]
    ]


def run(path: Path, todo: list[Cell]) -> Ledger:
    ledger = Ledger(path / "r.jsonl")
    run_cells(todo, ledger)
    return ledger


def to_markdown(lines: list[Line]) -> str:
    (table,) = build_tables(lines)
    return table.to_markdown()


def test_rate_and_batch_are_chosen_by_the_best_epochs_on_validation(tmp_path: Path) -> None:
    """The means are .75, .85 and .84; test and the last epoch have the opposite order."""
    line, *_ = summarise(grid(), run(tmp_path, grid()))
    assert (line.chosen, line.seeds) == ("0.001/256", 2)
    assert line.test == pytest.approx({"accuracy": 0.65, "matthews": 0.55, "auroc": 0.45})
    assert line.unseen == pytest.approx({"accuracy": 0.425, "matthews": 0.325, "auroc": 0.225})
    assert line.spread == pytest.approx(0.10) and line.unseen_spread == pytest.approx(0.25)
    assert (line.num_test, line.num_unseen) == (40, 30)
    assert line.per_second == pytest.approx(2 * 2 * 100 / 4), "of learning, not of 100 s in all"


def test_what_was_not_timed_has_no_speed(tmp_path: Path) -> None:
    todo = [cell(CHOICES[0], 0, result([0.5], 0.5, 0.5) | {"train_seconds": 2.0})]
    untimed = {k: v for k, v in result([0.5], 0.5, 0.5).items() if k != "train_seconds"}
    todo.append(cell(CHOICES[0], 0, untimed, strategy="probe"))
    full, probe, *_ = summarise(todo, run(tmp_path, todo))
    assert full.per_second is not None and probe.per_second is None
    assert full.spread is None and full.unseen_spread is None, "one seed has no spread"


def test_the_columns_stand_under_their_names(tmp_path: Path) -> None:
    ledger = run(tmp_path, grid())
    lines = summarise(grid(), ledger)
    title, header, _, row, published, *_ = (
        part for part in to_markdown(lines).splitlines() if part
    )
    assert title == "**demo_human_or_worm: 40 test rows, 30 unseen**"
    names, cells = ([part.strip() for part in text.split("|")[1:-1]] for text in (header, row))
    assert names == list(HEADINGS)
    assert dict(zip(names, cells, strict=True)) == {
        "method": "net, full",
        "acc": ".650",
        "range": ".100",
        "MCC": ".550",
        "AUROC": ".450",
        "acc*": ".425",
        "range*": ".250",
        "MCC*": ".325",
        "AUROC*": ".225",
        "lr/batch": "0.001/256",
        "seeds": "2",
        "seq/s": "100",
    }
    assert published.startswith("| published CNN | .942 |  |")
    assert [column.header for column in build_tables(lines)[0].to_rich().columns] == names
    assert not any("±" in text for text in (*names, NOTE)), "which is a standard error elsewhere"
    assert "range is max - min over seeds" in NOTE
    write_tables(tmp_path, build_tables(lines), [asdict(line) for line in lines], [NOTE, "a note"])
    assert (tmp_path / "table.md").read_text() == f"{to_markdown(lines)}\n\n{NOTE}\n\na note\n"
    found = json.loads((tmp_path / "table.json").read_text())
    assert found["rows"][0]["unseen_spread"] == pytest.approx(0.25)
    assert found["notes"] == [NOTE, "a note"]


# Divergence


def diverging() -> list[Cell]:
    """The choice that is best on validation diverges for one seed; another method always does."""
    todo = [c for c in grid() if c.key["seed"] == 0 or "256" not in json.dumps(c.key)]
    todo.append(cell(CHOICES[1], 1, 1))
    return todo + [cell(CHOICES[2], seed, seed, method="other") for seed in range(2)]


def test_a_choice_of_which_a_seed_diverged_is_not_made(tmp_path: Path) -> None:
    lines = summarise(diverging(), run(tmp_path, diverging()))
    assert lines[0].chosen == "0.002/128" and lines[0].test["accuracy"] == pytest.approx(0.8)
    other = lines[1]
    assert (other.method, other.chosen) == ("other, full", "diverged")
    assert set(other.test.values()) | set(other.unseen.values()) == {None}
    assert "| other, full |  |  |  |  |  |  |  |  | diverged |  |  |" in to_markdown(lines)


def test_what_diverged_is_named(tmp_path: Path) -> None:
    assert list_diverged(diverging(), run(tmp_path, diverging())) == [
        "demo_human_or_worm: net, full diverged at lr/batch 0.001/256: "
        "seed 1 (finite for 1 epochs)",
        "demo_human_or_worm: other, full diverged at lr/batch 0.002/128: "
        "seed 0 (finite for 0 epochs), seed 1 (finite for 1 epochs)",
    ]
    (tmp_path / "none").mkdir()
    assert list_diverged(grid(), run(tmp_path / "none", grid())) == []


def test_the_grid_goes_on_after_a_divergence_and_does_not_come_back(tmp_path: Path) -> None:
    todo = [cell(CHOICES[0], 0, 3), cell(CHOICES[0], 1, result([0.5], 0.5, 0.5))]
    ledger = run(tmp_path, todo)
    assert ledger.find(todo[0].key) == {"diverged": 3}
    assert ledger.find(todo[1].key) == result([0.5], 0.5, 0.5)

    def never(progress: Advance) -> dict[str, object]:
        raise AssertionError("a finished cell was run again")

    run_cells([c._replace(run=never) for c in todo], ledger)


def test_a_task_on_which_all_diverged_has_a_table(tmp_path: Path) -> None:
    todo = [cell(CHOICES[0], 0, 0)]
    lines = summarise(todo, run(tmp_path, todo))
    assert to_markdown(lines).startswith("**demo_human_or_worm**\n")
    assert len(build_tables(lines)) == 1

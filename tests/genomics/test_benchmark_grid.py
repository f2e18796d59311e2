"""The cells of a grid: their number, their identities, and what they share."""

from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
import torch

from genomics.finetune import grid as benchmark_grid
from genomics.finetune import runs as benchmark_runs
from genomics.finetune.classifier import SequenceClassifier
from genomics.finetune.grid import Grid, cells, reading_length
from genomics.finetune.labelled import Labelled, LabelledTask
from genomics.finetune.models import Pretrained
from genomics.finetune.protocol import BASELINES, Conjoin
from genomics.finetune.runs import Plan, Pooled, Recipe, run_backbone
from seqdiff.training import Cell
from tests.genomics.toy_tasks import draw, pretrained, small, unseen

GRID = Grid((0.1, 0.2), (32, 64), 2, 3, ("full",), ("test",), "real", None, ())
CPU = torch.device("cpu")


def listed(
    grid: Grid = GRID, models: Sequence[Pretrained] = (), task: LabelledTask | None = None
) -> list[Cell]:
    return list(cells([small() if task is None else task], models, grid, CPU))


def distinct(todo: Sequence[Cell]) -> set[str]:
    return {repr(sorted(cell.key.items())) for cell in todo}


def test_every_choice_is_a_cell_of_its_own() -> None:
    grid = replace(GRID, strategies=("full", "probe"), conjoins=("none", "test", "train"))
    todo = listed(grid, [pretrained("a"), pretrained("b")])
    assert len(todo) == len(distinct(todo)) == 2 * 2 * 3 * (2 * 2 * 3)
    assert {cell.cost for cell in todo} == {2 * 54}


def test_a_network_of_two_strands_is_never_conjoined() -> None:
    grid = replace(GRID, conjoins=("none", "test", "train"))
    todo = listed(grid, [pretrained(variant="ps")])
    assert len(todo) == 2 * 2 * 3 and {cell.key["conjoin"] for cell in todo} == {"none"}
    one = listed(replace(GRID, conjoins=("train",)), [pretrained(variant="ps")])
    assert {cell.key["conjoin"] for cell in one} == {"none"}


@pytest.mark.parametrize("names", [("cnn",), BASELINES])
def test_baselines_with_nothing_to_draw_are_run_once(names: tuple[str, ...]) -> None:
    """With a validation set; without one, each seed has its own split."""
    grid = replace(GRID, baselines=names)
    assert len(listed(grid)) == 3 * len(names)
    todo = listed(grid, task=small(valid=True))
    runs = {
        name: [cell.key["seed"] for cell in todo if cell.key["method"] == name] for name in names
    }
    assert runs == {name: [0, 1, 2] if name == "cnn" else [0] for name in names}


# What determines a result


def changed(grid: Grid, models: Sequence[Pretrained], task: LabelledTask) -> bool:
    """Whether every cell differs from those of the plain grid."""
    first = listed(replace(GRID, baselines=BASELINES), [pretrained()])
    return not distinct(first) & distinct(listed(grid, models, task))


def test_other_data_are_other_cells() -> None:
    grid, task = replace(GRID, baselines=BASELINES), small()
    assert not changed(grid, [pretrained()], task)
    letters = replace(task, train=draw(60, 9))
    labels = replace(task, test=Labelled(task.test.ids, 1 - task.test.labels))
    assert changed(grid, [pretrained()], letters) and changed(grid, [pretrained()], labels)


def test_other_rows_that_training_has_seen_are_other_cells(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same letters with coordinates, or with another rule."""
    before = listed(replace(GRID, baselines=BASELINES), [pretrained()])
    monkeypatch.setattr(benchmark_grid, "seen_in_task", lambda task: np.arange(len(task.test)) == 0)
    after = listed(replace(GRID, baselines=BASELINES), [pretrained()])
    assert not distinct(before) & distinct(after)


def test_other_weights_epochs_or_lengths_are_other_cells() -> None:
    task = small()
    for grid, models in (
        (GRID, [pretrained(weights="other")]),
        (replace(GRID, epochs=3), [pretrained()]),
        (replace(GRID, max_length=17), [pretrained()]),
        (replace(GRID, pooling="padded"), [pretrained()]),
        (replace(GRID, epochs=3, baselines=("cnn",)), []),
        (replace(GRID, max_length=17, baselines=("cnn",)), []),
    ):
        assert changed(grid, models, task)


# Lengths and errors


def test_as_many_bases_are_read_as_asked_published_or_there_are() -> None:
    long = Labelled((np.zeros(3000, dtype=np.uint8), *draw(5, 0).ids), np.arange(6) % 2)
    task = LabelledTask("mine", ("a", "b"), draw(20, 1), None, draw(20, 2))
    longest = max(task.train.lengths.max(), task.test.lengths.max())
    assert reading_length(task, GRID) == longest
    assert reading_length(replace(task, test=long), GRID) == 1024
    assert reading_length(replace(task, name="human_enhancers_cohn", test=long), GRID) == 500
    asked = replace(GRID, max_length=77)
    assert reading_length(replace(task, name="human_enhancers_cohn"), asked) == 77


def test_rows_beyond_the_context_are_refused_before_anything_is_run() -> None:
    with pytest.raises(ValueError, match=r"at most the context of net, 30, got \d+ for small"):
        listed(GRID, [pretrained(max_length=30)])
    assert listed(replace(GRID, max_length=30), [pretrained(max_length=30)])


def test_a_split_without_a_class_is_refused_before_anything_is_run() -> None:
    train = Labelled(draw(20, 0).ids, np.eye(20, dtype=np.int64)[7])
    task = LabelledTask("rare", ("a", "b"), train, None, draw(20, 1))
    with pytest.raises(ValueError, match=r"rare: the 90% of train .* must hold every class"):
        listed(replace(GRID, seeds=40), task=task)


# What probes share


@pytest.mark.parametrize(("seeded", "pools"), [(False, 1), (True, 3)])
def test_states_are_pooled_once_for_each_network(
    seeded: bool, pools: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tasks and two ways to conjoin; each from-scratch seed is a different network."""
    real, calls = benchmark_runs.pool_task, []

    def pool(model: SequenceClassifier, task: LabelledTask, plan: Plan) -> Pooled:
        calls.append((task.name, plan.conjoin))
        return real(model, task, plan)

    monkeypatch.setattr(benchmark_runs, "pool_task", pool)
    tasks = [small("one"), small("two", 9)]
    grid = replace(GRID, strategies=("probe",), conjoins=("none", "test"))
    for cell in cells(tasks, [pretrained(seeded=seeded)], grid, CPU):
        cell.run(lambda count: None)
    ways = [(task, conjoin) for task in ("one", "two") for conjoin in ("none", "test")]
    assert calls == [way for way in ways for _ in range(pools)]


NETWORKS = {
    "one": [pretrained("a", "a")],
    "two": [pretrained("a", "a"), pretrained("b", "b", start=5)],
    "seeded": [pretrained("a", "a", seeded=True), pretrained("b", "b", variant="ps")],
}


@pytest.mark.parametrize("models", NETWORKS.values(), ids=NETWORKS)
@pytest.mark.parametrize("conjoins", [("test",), ("test", "train")])
def test_shared_states_give_what_each_run_alone_gives(
    models: list[Pretrained], conjoins: tuple[Conjoin, ...]
) -> None:
    """Other tasks, networks and ways to conjoin follow each other directly."""
    grid = replace(GRID, lrs=(0.1,), batch_sizes=(16,), seeds=2, max_length=30)
    grid = replace(grid, strategies=("probe",), conjoins=conjoins)
    tasks = {task.name: task for task in (small("one"), small("two", 9))}
    built, found = {model.name: model for model in models}, []
    for cell in cells(list(tasks.values()), models, grid, CPU):
        key, shared = cell.key, cell.run(lambda count: None)
        task, recipe, seed = tasks[str(key["task"])], key["recipe"], key["seed"]
        assert isinstance(recipe, dict) and isinstance(seed, int)
        conjoin = next(name for name in get_args(Conjoin) if name == key["conjoin"])
        plan = Plan(Recipe(**recipe), "probe", conjoin, 30, "real", seed)
        backbone = built[str(key["method"])].build(seed)
        alone = run_backbone(backbone, task, unseen(task), plan)
        for name in ("valid_accuracy", "test"):
            assert shared[name] == alone[name]
        found.append(str(shared["test"]))
    assert len(set(found)) > 2, "cells that are all alike would show nothing"

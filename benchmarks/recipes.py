"""A race of training recipes: the same budget, held-out rows and noise for all of them.

A recipe overrides keys of a task's configuration; both are in ``benchmarks/recipes.yaml``. Each
recipe is trained with ``--seeds`` seeds, for ``--tokens`` tokens that the network reads or for
``--seconds`` of training. The bound is then estimated on the same test rows with the same masks, so
that the difference between two recipes is taken row by row. Runs that are finished are kept in
``--work`` and not repeated. Run
``python -m benchmarks.recipes --data DATA --work runs/recipes --task dna --tokens 1.2e6``.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import yaml

import seqdiff
from benchmarks.common import begin, make_parser, positive, print_table, refuse, write_json
from seqdiff.cli import app
from seqdiff.run import parse_run
from seqdiff.run.estimators import EstimatorOptions, choose_estimator, suit
from seqdiff.run.evaluation import estimate_batches

CONFIGS = Path(__file__).parents[1] / "configs"
RECIPES = Path(__file__).with_suffix(".yaml")


@dataclass(frozen=True)
class Budget:
    """What a run may spend.

    Attributes:
        tokens: Tokens that the network reads, or ``None``.
        seconds: Seconds of training, or ``None``.
    """

    tokens: float | None
    seconds: int | None

    def part(self, fraction: float) -> Budget:
        """Return a part of the budget."""
        return Budget(
            None if self.tokens is None else fraction * self.tokens,
            None if self.seconds is None else round(fraction * self.seconds),
        )


@dataclass(frozen=True)
class Entry:
    """One run of the race.

    Attributes:
        task: Name and settings of the task.
        recipe: Name and settings of the recipe.
        seed: Seed of the run.
        budget: Its budget.
        rows: Test rows of the evaluation.
        evaluations: Network evaluations of each.
        folder: Folder of the run.
    """

    task: tuple[str, Mapping[str, Any]]
    recipe: tuple[str, Mapping[str, Any]]
    seed: int
    budget: Budget
    rows: int
    evaluations: int
    folder: Path


def prepare(name: str, task: Mapping[str, Any], data: Path, work: Path) -> dict[str, Any]:
    """Write the files that a task needs, and fill the names of folders in."""
    work.mkdir(parents=True, exist_ok=True)
    for target, sources in task.get("files", {}).items():
        if not (work / target).exists():
            with gzip.open(work / f"{target}.part", "wb", compresslevel=1) as joined:
                for source in sources:
                    with gzip.open(data / source) as part:
                        shutil.copyfileobj(part, joined)
            (work / f"{target}.part").rename(work / target)
    if "table" in task and not (work / "train.fa").exists():
        table = pd.read_csv(data / task["table"]["file"], sep="\t")
        for split, rows in table.groupby(task["table"]["split"]):
            sequences = rows[task["table"]["sequence"]]
            lines = [f">{number}\n{sequence}\n" for number, sequence in sequences.items()]
            (work / f"{split}.fa").write_text("".join(lines))
    filled = {
        key: value.format(data=data, work=work) if isinstance(value, str) else value
        for key, value in task["set"].items()
    }
    return {**task, "name": name, "set": filled}


def flags_of(entry: Entry, stage: Mapping[str, Any], budget: Budget) -> list[str]:
    """Return the flags of one stage of a run."""
    task = entry.task[1]
    chosen = {**task["set"], **entry.recipe[1].get("set", {}), **stage.get("set", {})}
    if stage.get("experts", entry.recipe[1].get("experts")):
        chosen["experts.order"] = task["experts"]
    config = CONFIGS / task["config"]
    base = parse_run(config, _flags({**chosen, "trainer.max_steps": 1}), output="unused")
    for key, factor in {**entry.recipe[1].get("scale", {}), **stage.get("scale", {})}.items():
        value = _value(base, key)
        chosen[key] = round(value * factor) if isinstance(value, int) else value * factor
    found = parse_run(config, _flags({**chosen, "trainer.max_steps": 1}), output="unused")
    per_step = _value(found, "data.batch_size") * _value(found, "data.length")
    steps = None if budget.tokens is None else max(1, round(budget.tokens / per_step))
    expected = 600 if steps is None else steps
    fixed = {
        "trainer.max_steps": steps,
        "trainer.val_check_interval": max(1, expected // 4),
        "trainer.limit_val_batches": 2,
        "trainer.log_every_n_steps": max(1, expected // 60),
        "checkpoint_every_n_steps": expected,
        "seed": entry.seed,
    }
    if budget.seconds is not None:
        hours, rest = divmod(budget.seconds, 3600)
        fixed["trainer.max_time"] = f"00:{hours:02}:{rest // 60:02}:{rest % 60:02}"
    defaults = {
        "optim.warmup_steps": max(1, expected // 20),
        "ema_decay": round(1 - min(1, 30 / expected), 5) if expected > 60 else 0.5,
    }
    return _flags({**defaults, **chosen, **fixed})


def _flags(keys: Mapping[str, Any]) -> list[str]:
    """Write keys as flags, those of a class after the class."""
    return [
        f"--{key}={value if isinstance(value, str) else json.dumps(value)}"
        for key, value in sorted(keys.items(), key=lambda item: item[0].count("."))
    ]


def _value(parsed: Any, key: str) -> Any:
    for part in key.split("."):
        parsed = parsed.get("init_args", parsed) if part not in parsed else parsed
        parsed = parsed[part]
    return parsed


def run(entry: Entry) -> str:
    """Train and evaluate one entry, unless that is done; return a line about it."""
    torch.set_num_threads(1)
    folder, line = entry.folder, f"{entry.task[0]}, {entry.recipe[0]}, seed {entry.seed}"
    if (folder / "rows.npz").exists():
        return f"{line}: kept"
    folder.mkdir(parents=True, exist_ok=True)
    stages = entry.recipe[1].get("stages", [{"fraction": 1.0}])
    start = None
    with (folder / "log.txt").open("a") as log, redirect_stdout(log), redirect_stderr(log):
        for number, stage in enumerate(stages):
            out = folder / f"stage{number}"
            flags = flags_of(entry, stage, entry.budget.part(stage["fraction"]))
            flags += [] if start is None else [f"--start_from={start}"]
            config = str(CONFIGS / entry.task[1]["config"])
            if app.main(["train", config, *flags, f"--output={out}"]):
                return f"{line}: failed, see {folder / 'log.txt'}"
            start = out
        assert start is not None
        _evaluate(entry, start)
    return f"{line}: done"


def _evaluate(entry: Entry, out: Path) -> None:
    """Save the nats of evenly spaced test rows, by the whole model and by its parts."""
    trained = seqdiff.load(out)
    dataset = trained.datamodule.dataset("test")
    rows = np.unique(np.linspace(0, len(dataset) - 1, entry.rows).astype(int)).tolist()
    options = EstimatorOptions(evaluations=entry.evaluations)
    estimator = suit("evaluate", choose_estimator("evaluate", options), options, trained)

    def nats() -> tuple[np.ndarray, np.ndarray]:
        loader = trained.datamodule.rows_loader(dataset, rows)
        found = estimate_batches(
            trained, loader, len(rows), "evaluating", estimator=estimator, seed=0
        )
        return np.asarray(found.nats), np.asarray(found.num_tokens)

    found, tokens = nats()
    arrays: dict[str, np.ndarray] = {"nats": found, "tokens": tokens}
    experts = trained.denoiser.experts
    if experts is not None:
        for part in ("network", "experts"):
            with experts.only(part):
                arrays[part] = nats()[0]
    content = io.BytesIO()
    np.savez(content, allow_pickle=False, **arrays)
    (entry.folder / "rows.npz").write_bytes(content.getvalue())


def curve(folder: Path) -> list[tuple[float, float, float]]:
    """Read (tokens, seconds, nats per token) at each validation of a run's last stage."""
    stage = max(folder.glob("stage*"), key=lambda path: path.name)
    parsed = parse_run(stage / "run.yaml")
    per_step = _value(parsed, "data.batch_size") * _value(parsed, "data.length")
    points, seconds, last = [], 0.0, -1
    with (stage / "metrics.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            step, value = int(row["step"]), float(row["value"])
            if row["name"] == "train/tokens_per_second":
                seconds += (step - last) * per_step / value
                last = step
            elif row["name"] == "val/nats_per_token":
                points.append(((step + 1) * per_step, seconds, value))
    return points


def compare(
    ours: Sequence[Mapping[str, np.ndarray]], theirs: Sequence[Mapping[str, np.ndarray]]
) -> tuple[float, float]:
    """Return the mean difference in nats per token, and its standard error.

    The error adds that over rows, which all seeds share, and that over seeds.
    """
    tokens = ours[0]["tokens"]
    gaps = np.stack([a["nats"] - b["nats"] for a, b in zip(ours, theirs, strict=True)])
    mean = gaps.sum() / (len(gaps) * tokens.sum())
    residual = gaps.mean(axis=0) - mean * tokens
    n = len(tokens)
    over_rows = residual.std(ddof=1) * math.sqrt(n) / tokens.sum()
    by_seed = gaps.sum(axis=1) / tokens.sum()
    over_seeds = by_seed.std(ddof=1) / math.sqrt(len(by_seed)) if len(by_seed) > 1 else 0.0
    return float(mean), float(math.hypot(over_rows, over_seeds))


def plot(path: Path, curves: Mapping[str, list[tuple[float, float, float]]], unit: str) -> None:
    """Draw the bound against tokens and against seconds."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    scale = 1 / math.log(2) if unit == "bits" else 1.0
    first, second = figure.subplots(1, 2)
    for axes, place, label in ((first, 0, "tokens"), (second, 1, "seconds")):
        for name, points in curves.items():
            axes.plot([p[place] for p in points], [p[2] * scale for p in points], label=name)
        axes.set(xlabel=label, ylabel=f"validation bound, {unit} per token")
    first.legend(fontsize=6)
    figure.savefig(path)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the race."""
    parser = make_parser(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of the real data")
    parser.add_argument("--work", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--recipes", type=Path, default=RECIPES, help="tasks and recipes")
    parser.add_argument("--task", action="append", help="name of a task; by default all")
    parser.add_argument("--recipe", action="append", help="name of a recipe; by default all")
    parser.add_argument("--tokens", type=float, help="budget of a run, in tokens")
    parser.add_argument("--seconds", type=positive, help="budget of a run, in seconds")
    parser.add_argument("--seeds", type=positive, default=1, help="runs of each recipe")
    parser.add_argument("--rows", type=positive, default=96, help="test rows of the evaluation")
    parser.add_argument("--evaluations", type=positive, default=8, help="evaluations of each row")
    parser.add_argument("--jobs", type=positive, default=2, help="runs at a time, a core each")
    parser.add_argument("--plot", type=Path, help="folder of the figures, one for each task")
    options = parser.parse_args(argv)
    if (options.tokens is None) == (options.seconds is None):
        refuse("recipes must have one budget, got none or two; give --tokens or --seconds")
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    content = yaml.safe_load(options.recipes.read_text())
    tasks = _chosen("task", content["tasks"], options.task)
    recipes = _chosen("recipe", content["recipes"], options.recipe)
    recipes = {next(iter(content["recipes"])): next(iter(content["recipes"].values())), **recipes}
    described = begin()
    budget = Budget(options.tokens, options.seconds)
    size = f"{options.tokens:.0f}-tokens" if options.tokens else f"{options.seconds}-seconds"
    entries = [
        Entry(
            (name, prepare(name, task, options.data.absolute(), options.work.absolute() / name)),
            (recipe, settings),
            *(seed, budget, options.rows, options.evaluations),
            options.work / name / size / f"{_slug(recipe)}-{seed}",
        )
        for name, task in tasks.items()
        for seed in range(options.seeds)
        for recipe, settings in recipes.items()
        if name in settings.get("tasks", tasks)
    ]
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        for line in pool.map(run, entries):
            print(line, flush=True)
    results = {}
    for name, task in tasks.items():
        results[name] = report(name, task["unit"], entries)
        if options.plot is not None:
            ran = [e for e in entries if e.task[0] == name and (e.folder / "rows.npz").exists()]
            curves = {e.recipe[0]: curve(e.folder) for e in ran if e.seed == 0}
            options.plot.mkdir(parents=True, exist_ok=True)
            plot(options.plot / f"recipes_{name}.svg", curves, task["unit"])
    settings = {name: getattr(options, name) for name in ("tokens", "seconds", "seeds", "rows")}
    settings["evaluations"] = options.evaluations
    write_json(options.json, "recipes", described, settings, results)


def report(name: str, unit: str, entries: Sequence[Entry]) -> dict[str, Any]:
    """Print the table of a task; return its content."""
    ran: dict[str, list[dict[str, np.ndarray]]] = {}
    for entry in entries:
        path = entry.folder / "rows.npz"
        if entry.task[0] == name and path.exists():
            with np.load(path, allow_pickle=False) as file:
                ran.setdefault(entry.recipe[0], []).append(dict(file))
    reference, scale = next(iter(ran.values()), []), 1 / math.log(2) if unit == "bits" else 1.0
    rows, found = [], {}
    for recipe, results in ran.items():
        if len(results) != len(reference):
            continue
        tokens = results[0]["tokens"].sum()
        bounds = [scale * float(one["nats"].sum() / tokens) for one in results]
        gap, error = (scale * value for value in compare(results, reference))
        found[recipe] = {"bounds": bounds, "difference": gap, "standard_error": error}
        for part in ("network", "experts"):
            if part in results[0]:
                alone = [{"nats": one[part], "tokens": one["tokens"]} for one in results]
                parts = [scale * float(one["nats"].sum() / tokens) for one in alone]
                found[recipe][f"{part}_alone"] = parts
                part_gap, part_error = (scale * value for value in compare(alone, reference))
                found[recipe][f"{part}_alone_difference"] = part_gap
                found[recipe][f"{part}_alone_standard_error"] = part_error
        shown = "" if results is reference else f"{gap:+.4f} ± {error:.4f}"
        parts = [
            f"{np.mean(found[recipe][key]):.4f}" if key in found[recipe] else ""
            for key in ("network_alone", "experts_alone")
        ]
        rows.append([recipe, f"{np.mean(bounds):.4f}", shown, *parts])
    order = sorted(rows, key=lambda row: float(row[1]))
    print(f"\n{name}, {unit} per token")
    print_table(["recipe", "bound", "difference", "network alone", "experts alone"], order)
    return found


def _chosen(what: str, known: Mapping[str, Any], names: list[str] | None) -> dict[str, Any]:
    for name in names or []:
        if name not in known:
            refuse(f"recipes.{what} must be one of {', '.join(known)}, got {name!r}; check it")
    return {name: value for name, value in known.items() if names is None or name in names}


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", name.lower().replace("/", "over")).strip("-")


if __name__ == "__main__":
    main()

"""Trains the systems of the papers on the same data and compares their bounds and samples.

Each cell is one run. Short runs of the same system choose its learning rate by the validation
result, from a few rates that are the same for all systems. The cell then trains and is evaluated on
the test split. For DNA, samples at several numbers of evaluations are compared with real windows.
Cells that have a result are skipped, so you can stop and repeat the command. Results are JSON
files, one per cell. The runs are kept for benchmarks.time_variance.

    python -m benchmarks.objectives dna --data DIR
    python -m benchmarks.objectives text --data DIR
    python -m benchmarks.objectives paired
    python -m benchmarks.objectives tables

DIR contains chr2_1-2333275.fa.gz and hg38_chr20_1-1000000.fa.gz, or wap.train.txt.gz,
wap.valid.txt.gz and wap.test.txt.gz. The script prints the commands that it runs.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Queue

import numpy as np
import torch
from scipy.stats import binom

from benchmarks.common import RESULTS, machine
from seqdiff.denoiser import Denoiser
from seqdiff.likelihood import (
    Likelihood,
    StratifiedK,
    TimeEstimator,
    evaluate,
    usual_estimator,
)
from seqdiff.objectives import DiscreteNELBO
from seqdiff.run import load
from seqdiff.types import Batch, Inputs

FOLDER = RESULTS / "objectives"
RATES = (1e-3, 3e-3, 8e-3)
_PROGRAM = (sys.executable, "-m", "seqdiff.cli.app")


@dataclass(frozen=True)
class Domain:
    """Settings that all cells of a domain share.

    Attributes:
        name: Name in paths.
        config: Configuration that all runs start from.
        data: Configuration keys of the files, and their names.
        steps: Training steps.
        screening_steps: Training steps of a run that tries a learning rate.
        seeds: Seeds of the systems listed here; other systems have one seed.
        evaluations: Options of ``evaluate``.
    """

    name: str
    config: str
    data: dict[str, str]
    steps: int
    screening_steps: int
    seeds: dict[str, int]
    evaluations: tuple[str, ...] = ("--evaluations", "4")


DNA = Domain(
    "dna",
    "configs/experiment/genomics/objectives.yaml",
    {
        "--data.fasta": "chr2_1-2333275.fa.gz",
        "--data.test_fasta": "hg38_chr20_1-1000000.fa.gz",
    },
    2000,
    400,
    {"ar": 3, "mdlm": 3, "sedd": 3, "d3pm": 3},
)
TEXT = Domain(
    "text",
    "configs/experiment/text/objectives.yaml",
    {
        "--data.train": "wap.train.txt.gz",
        "--data.valid": "wap.valid.txt.gz",
        "--data.test": "wap.test.txt.gz",
    },
    1400,
    280,
    {},
)

_CAUSAL = {
    "dna": (
        *("--backbone", "seqdiff.backbones.AutoregressiveMamba"),
        *("--backbone.d_model", "128", "--backbone.n_layer", "4"),
    ),
    "text": (
        *("--backbone", "seqdiff.backbones.AutoregressiveTransformer"),
        *("--backbone.d_model", "128", "--backbone.n_layer", "4", "--backbone.n_heads", "4"),
        *("--backbone.dropout", "0.0"),
    ),
}
_STEPS_1000 = (*("--objective", "DiscreteNELBO", "--objective.num_steps", "1000"),)
_SOBOL = ("--objective.time_sampler", "Sobol")
# Flags of each system after its preset. A system that names another uses its learning rate.
SYSTEMS: dict[str, tuple[str, ...]] = {
    name: ("--preset", name)
    for name in ("ar", "mdlm", "sedd", "d3pm", "udlm", "gidd", "plaid", "mlm", "sedd_uniform")
}
ABLATIONS: dict[str, tuple[str, ...]] = {
    "mdlm-time": ("--preset", "mdlm", "--backbone.time_conditioned", "true"),
    "mdlm-iid": ("--preset", "mdlm", "--objective.time_sampler", "Uniform"),
    "mdlm-unweighted": ("--preset", "mdlm", "--objective", "CrossEntropy", *_SOBOL),
    "mdlm-T10": (
        *("--preset", "mdlm", "--objective", "DiscreteNELBO"),
        *("--objective.num_steps", "10", *_SOBOL),
    ),
    "mdlm-T100": (
        *("--preset", "mdlm", "--objective", "DiscreteNELBO"),
        *("--objective.num_steps", "100", *_SOBOL),
    ),
    "mdlm-T1000": ("--preset", "mdlm", *_STEPS_1000, *_SOBOL),
    "no-carry-over": (
        *("--preset", "mdlm", *_STEPS_1000, *_SOBOL),
        *("--parameterization.carry_over", "false"),
    ),
    "no-zero-masking": (
        *("--preset", "d3pm", "--objective.auxiliary", "0"),
        *("--parameterization.carry_over", "false"),
    ),
}
SAMPLERS = {"mdlm": "ancestral", "mlm": "ancestral", "sedd": "tweedie", "sedd_uniform": "tweedie"}
EVALUATIONS = (32, 128, 1024)
STEPS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
# Perplexities of Sahoo et al. 2024, arXiv:2406.07524: HG38, table 6; LM1B, table 8; time
# conditioning on OpenWebText, table 12; OpenWebText by number of evaluation steps, table 11.
HG38 = {"ar": 3.067, "mdlm": 3.199, "sedd": 3.216, "plaid": 3.240}
CUMULATIVE = {
    "mdlm-T1000": 27.19 / 27.04,
    "no-carry-over": 28.56 / 27.04,
    "no-zero-masking": 28.51 / 27.04,
    "mdlm-time": 23.21 / 23.05,
}
BY_STEPS = {10: 42.18, 20: 30.70, 50: 25.77, 100: 24.35, 200: 23.66, 500: 23.26, 1000: 23.15}
CONTINUOUS = 23.05


ROWS_BY_COUNT = 256


@torch.no_grad()
def nats_by_count(denoiser: Denoiser, rows: Iterable[Batch], num_rows: int) -> list[np.ndarray]:
    """Return the nats of the masked tokens of rows, for every number of masks.

    Args:
        denoiser: A masked diffusion model.
        rows: Batches; evenly spaced rows are used.
        num_rows: Rows to use.

    Returns:
        For each row, the sum of -log p over k random masked tokens, for k = 1, ..., n.
    """
    batches = list(rows)
    every = max(1, sum(len(batch.tokens) for batch in batches) // num_rows)
    generator = torch.Generator().manual_seed(0)
    found, number = [], 0
    for batch in batches:
        for x0, counted in zip(batch.tokens, batch.loss_mask, strict=True):
            number += 1
            if (number - 1) % every or not counted.any():
                continue
            n = int(counted.sum())
            keys = torch.rand(n, len(x0), generator=generator).masked_fill(~counted, 2.0)
            masked = keys.argsort(dim=-1).argsort(dim=-1) < torch.arange(1, n + 1)[:, None]
            x_t = x0.expand(n, -1).masked_fill(masked, denoiser.process.unknown_id)
            nats = [
                denoiser.nats(Inputs(part), x0.expand_as(part), where).sum(dim=-1)
                for part, where in zip(x_t.split(64), masked.split(64), strict=True)
            ]
            found.append(torch.cat(nats).double().numpy())
    return found


def excess_of_steps(nats: Sequence[np.ndarray], num_steps: int) -> tuple[float, float]:
    """Return the excess of T steps over the continuous bound in bits per token, with its error.

    Both bounds are weighted sums over the same masks, so the error of their difference is small.

    Args:
        nats: See ``nats_by_count``.
        num_steps: T.
    """
    lengths = np.array([len(row) for row in nats])
    excess = np.empty(len(nats))
    for number, row in enumerate(nats):
        k = np.arange(1, len(row) + 1)
        excess[number] = (
            (step_weight(k, np.full_like(k, len(row)), num_steps) - 1 / k) * row
        ).sum()
    mean = excess.sum() / lengths.sum()
    error = np.std(excess - mean * lengths, ddof=1) / np.sqrt(len(nats)) / lengths.mean()
    return float(mean / np.log(2)), float(error / np.log(2))


def step_weight(k: np.ndarray, n: np.ndarray, num_steps: int) -> np.ndarray:
    """Return the weight of the cross-entropy at k of n masked tokens; its limit is 1/k.

    Step i of T reveals a token with probability 1/i, and at its noisier end every token is masked
    with probability i/T. The weight is the sum over i of Binomial(k; n, i/T) / i.
    """
    i = np.arange(1, num_steps + 1)
    return (binom.pmf(k[:, None], n[:, None], i / num_steps) / i).sum(axis=1)


@dataclass(frozen=True)
class Cell:
    """A run of one system with one seed.

    Attributes:
        domain: Data and sizes.
        system: Name in ``SYSTEMS`` or ``ABLATIONS``.
        seed: Random seed of the run.
    """

    domain: Domain
    system: str
    seed: int

    @property
    def result(self) -> Path:
        """Return the path of the result."""
        return FOLDER / f"{self.domain.name}-{self.system}-{self.seed}.json"

    @property
    def flags(self) -> tuple[str, ...]:
        """Return the flags of ``train`` that select the system."""
        every = {**SYSTEMS, **ABLATIONS}
        return (*every[self.system], *(_CAUSAL[self.domain.name] if self.system == "ar" else ()))

    @property
    def screened_as(self) -> str:
        """Return the system whose learning rate is used; ablations use that of MDLM."""
        return "mdlm" if self.system in ABLATIONS else self.system


class Workers:
    """Runs commands in parallel, one per core."""

    def __init__(self, cores: Sequence[int], data: Path, runs: Path) -> None:
        """Keep the cores; at most one command runs on each."""
        self.data, self.runs = data, runs
        self._cores: Queue[int] = Queue()
        for core in cores:
            self._cores.put(core)

    def cell(self, cell: Cell) -> None:
        """Run a cell and write its result."""
        if cell.result.exists():
            return
        core = self._cores.get()
        try:
            rate, screened = self._screen(cell, core)
            started = time.time()
            run = self.runs / f"{cell.domain.name}-{cell.system}-{cell.seed}"
            self._train(cell, run, rate, cell.domain.steps, core)
            seconds = time.time() - started
            found = {
                "system": cell.system,
                "seed": cell.seed,
                "lr": rate,
                "screened": screened,
                "flags": list(cell.flags),
                "train_seconds": seconds,
                "steps": cell.domain.steps,
                "test": self._evaluate(cell, run, core),
                "samples": self._samples(cell, run, core) if self._is_sampled(cell) else {},
                "environment": machine(),
            }
            cell.result.parent.mkdir(parents=True, exist_ok=True)
            cell.result.write_text(json.dumps(found, indent=1) + "\n")
        finally:
            self._cores.put(core)

    def _is_sampled(self, cell: Cell) -> bool:
        return cell.domain is DNA and cell.seed == 0 and cell.system not in ABLATIONS

    def _screen(self, cell: Cell, core: int) -> tuple[float, dict[str, float]]:
        """Choose a learning rate by short runs, or read the rate that was chosen before."""
        file = FOLDER / f"{cell.domain.name}-{cell.screened_as}-screen.json"
        if not file.exists():
            model = Cell(cell.domain, cell.screened_as, 0)
            found: dict[str, float] = {}
            for rate in RATES:
                run = self.runs / f"{cell.domain.name}-{cell.screened_as}-lr{rate:g}"
                self._train(model, run, rate, cell.domain.screening_steps, core)
                found[f"{rate:g}"] = _last_validation(run)
                shutil.rmtree(run)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(found, indent=1) + "\n")
        found = json.loads(file.read_text())
        return float(min(found, key=found.__getitem__)), found

    def _train(self, cell: Cell, run: Path, rate: float, steps: int, core: int) -> None:
        shutil.rmtree(run, ignore_errors=True)
        files = [
            part
            for key, name in cell.domain.data.items()
            for part in (key, str(next(self.data.rglob(name))))
        ]
        options = [
            *("--seed", str(cell.seed), "--optim.lr", f"{rate:g}"),
            *("--optim.min_lr", f"{rate / 100:g}", "--trainer.max_steps", str(steps)),
            *("--trainer.val_check_interval", str(min(steps, 500))),
            *("--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false"),
        ]
        command = ["train", cell.domain.config, *cell.flags, *files, *options]
        self._call([*command, "--output", str(run)], core)

    def _evaluate(self, cell: Cell, run: Path, core: int) -> object:
        file = run / "test.json"
        options = () if cell.system == "ar" else cell.domain.evaluations
        self._call(["evaluate", str(run), *options, "--json", str(file)], core)
        found = json.loads(file.read_text())
        if cell.system == "mdlm" and cell.seed == 0:
            found["steps"] = {}
            for steps in STEPS:
                chain = ("--estimator", "discrete-steps", "--steps", str(steps))
                self._call(["evaluate", str(run), *chain, *options, "--json", str(file)], core)
                found["steps"][str(steps)] = json.loads(file.read_text())["rows"][0]
        return found

    def _samples(self, cell: Cell, run: Path, core: int) -> dict[str, object]:
        """Compare samples with real windows, by number of evaluations."""
        found: dict[str, object] = {}
        reference = next(self.data.rglob(cell.domain.data["--data.test_fasta"]))
        for count in ("256",) if cell.system == "ar" else map(str, EVALUATIONS):
            file, report = run / f"samples{count}.fa", run / f"report{count}"
            sampler = SAMPLERS.get(cell.system)
            options = [] if sampler is None else ["--sampler", sampler]
            options += [] if cell.system == "ar" else ["--num-steps", count]
            draw = ["sample", str(run), "--num", "100", "--length", "256", "--seed", "1"]
            self._call([*draw, *options, "--out", str(file)], core)
            page = ["--reference", str(reference), "--samples", str(file)]
            self._call(["report", str(run), *page, "--out", f"{report}.html"], core)
            found[count] = json.loads(report.with_suffix(".json").read_text())["measures"]
        return found

    def _call(self, arguments: Sequence[str], core: int) -> None:
        print(shlex.join(["seqdiff", *arguments]), flush=True)
        done = subprocess.run(
            [*_PROGRAM, *arguments],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            preexec_fn=lambda: os.sched_setaffinity(0, {core}),
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"{shlex.join(arguments)}: {done.stderr.strip()}")


def _last_validation(run: Path) -> float:
    rows = [line.split(",") for line in (run / "metrics.csv").read_text().splitlines()]
    return float([value for _, name, value in rows if name == "val/nats_per_token"][-1])


def cells(domain: Domain, systems: Sequence[str]) -> Iterator[Cell]:
    """Yield the cells of some systems, first seeds first."""
    for seed in range(max([1, *domain.seeds.values()])):
        for system in systems:
            if seed < domain.seeds.get(system, 1):
                yield Cell(domain, system, seed)


def main() -> None:
    """Run the cells without a result, or print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("dna", "text", "paired", "tables"))
    parser.add_argument("--data", type=Path, help="folder of the files")
    parser.add_argument("--runs", type=Path, default=Path("runs/objectives"))
    parser.add_argument("--systems", nargs="*", help="only these; default: all")
    parser.add_argument("--cores", type=int, nargs="*", default=[0, 1])
    options = parser.parse_args()
    if options.what == "tables":
        print("\n\n".join(tables()))
        return
    if options.what == "paired":
        for domain in (DNA, TEXT):
            write_paired(domain, options.runs)
        return
    domain = DNA if options.what == "dna" else TEXT
    usual = [*SYSTEMS, *(ABLATIONS if domain is TEXT else ())]
    workers = Workers(options.cores, options.data, options.runs)
    waiting = list(cells(domain, options.systems or usual))
    with ThreadPoolExecutor(len(options.cores)) as pool:
        for done in [pool.submit(workers.cell, cell) for cell in waiting]:
            done.result()


def write_paired(domain: Domain, runs: Path) -> None:
    """Compare every system with MDLM, and MDLM's steps with their limit, row by row.

    The paired differences have smaller errors than the two bounds.
    """
    found: dict[str, Likelihood] = {}
    steps: dict[str, tuple[float, float]] = {}
    for system in SYSTEMS:
        run = runs / f"{domain.name}-{system}-0"
        if (run / "run.yaml").exists():
            trained = load(run)
            print(run, flush=True)
            rows = trained.datamodule.evaluation_loader("test")
            objective, draws = trained.config.objective, int(domain.evaluations[-1])
            num_steps = objective.num_steps if isinstance(objective, DiscreteNELBO) else None
            estimator = usual_estimator(trained.denoiser, num_steps)
            if isinstance(estimator, StratifiedK | TimeEstimator):
                estimator = replace(estimator, evaluations=draws)
            found[system] = evaluate(trained.denoiser, rows, estimator=estimator)
            if system == "mdlm":
                nats = nats_by_count(trained.denoiser, rows, ROWS_BY_COUNT)
                steps = {str(number): excess_of_steps(nats, number) for number in STEPS}
    if "mdlm" not in found:
        return
    differences = {}
    for key, result in found.items():
        if result is not found["mdlm"]:
            difference = result.minus(found["mdlm"])
            differences[key] = (difference.bits_per_token, difference.bits_per_token_error)
    for name, rows in (("paired", differences), ("steps", steps)):
        file = FOLDER / f"{domain.name}-{name}.json"
        file.write_text(json.dumps(rows, indent=1) + "\n")


def tables() -> Iterator[str]:
    """Return Markdown tables of all results."""
    units = ((DNA, "base"), (TEXT, "character"))
    for domain, unit in units:
        yield _bounds(domain, unit)
    yield _ablations(TEXT)
    for domain, unit in units:
        yield _steps(domain, unit)
    yield _sample_table()


def _results(domain: Domain) -> dict[str, list[dict]]:
    found: dict[str, list[dict]] = {}
    for system in (*SYSTEMS, *ABLATIONS):
        files = sorted(FOLDER.glob(f"{domain.name}-{system}-[0-9].json"))
        if files:
            found[system] = [json.loads(file.read_text()) for file in files]
    return found


def _row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


def _number(row: dict) -> str:
    error = row["bits_per_token_error"]
    return f"{row['bits_per_token']:.4f}" + ("" if error is None else f" ± {error:.4f}")


def _bounds(domain: Domain, unit: str) -> str:
    """Format systems and baselines of a domain, for DNA with the published perplexities."""
    found = {name: runs for name, runs in _results(domain).items() if name in SYSTEMS}
    published = domain is DNA
    file = FOLDER / f"{domain.name}-paired.json"
    paired = json.loads(file.read_text()) if file.exists() else {}
    titles = [
        "system",
        "estimate",
        f"bits/{unit} ± SE over rows",
        "other seeds",
        "difference from MDLM",
        "perplexity",
    ]
    titles += ["published perplexity", "learning rate"] if published else ["learning rate"]
    lines = [_row(*titles), "|---" * len(titles) + "|"]
    for system, runs in found.items():
        row = runs[0]["test"]["rows"][0]
        cells = [system, row["name"].removeprefix("model, "), _number(row)]
        others = [f"{run['test']['rows'][0]['bits_per_token']:.4f}" for run in runs[1:]]
        cells.append(", ".join(others))
        cells.append("{:+.4f} ± {:.4f}".format(*paired[system]) if system in paired else "")
        cells.append(f"{row['perplexity']:.4f}")
        cells += [str(HG38.get(system, ""))] if published else []
        lines.append(_row(*cells, f"{runs[0]['lr']:g}"))
    baselines = next(iter(found.values()))[0]["test"]["rows"][1:] if found else []
    for row in baselines:
        blank = [""] * (2 if published else 1)
        lines.append(
            _row(row["name"], "", _number(row), "", "", f"{row['perplexity']:.4f}", *blank)
        )
    return "\n".join(lines)


def _ablations(domain: Domain) -> str:
    """Format ablations of MDLM as ratios of perplexity per token, with the published ratios."""
    found = _results(domain)
    lines = [_row("system", "bits/character", "perplexity / MDLM's", "published")]
    lines.append("|---" * 4 + "|")
    for system in ABLATIONS if "mdlm" in found else ():
        if system in found:
            row, plain = (found[name][0]["test"]["rows"][0] for name in (system, "mdlm"))
            cells = [f"{row['perplexity'] / plain['perplexity']:.4f}"]
            cells.append(f"{CUMULATIVE[system]:.4f}" if system in CUMULATIVE else "")
            lines.append(_row(system, _number(row), *cells))
    return "\n".join(lines)


def _steps(domain: Domain, unit: str) -> str:
    """Format MDLM's bound by the number of steps as ratios of perplexity per token."""
    file = FOLDER / f"{domain.name}-steps.json"
    paired = json.loads(file.read_text()) if file.exists() else {}
    titles = ("steps", f"bits/{unit}", "difference from the limit", "perplexity / limit's")
    lines = [_row(*titles, "published"), "|---" * 5 + "|"]
    for runs in [_results(domain)["mdlm"]] if "mdlm" in _results(domain) else []:
        limit = runs[0]["test"]["rows"][0]
        for steps, row in runs[0]["test"]["steps"].items():
            published = BY_STEPS.get(int(steps))
            cells = ["{:+.5f} ± {:.5f}".format(*paired[steps]) if steps in paired else ""]
            cells.append(f"{row['perplexity'] / limit['perplexity']:.4f}")
            cells.append("" if published is None else f"{published / CONTINUOUS:.4f}")
            lines.append(_row(steps, _number(row), *cells))
        lines.append(_row("limit", _number(limit), "", "1", "1"))
    return "\n".join(lines)


def _sample_table() -> str:
    lines = [
        "| system | network evaluations | 6-mer divergence | discriminator AUROC |",
        "|---|---|---|---|",
    ]
    for system, runs in _results(DNA).items():
        for count, measures in runs[0]["samples"].items():
            words = _measure(measures, "name", "6-mers, Jensen-Shannon divergence")
            judged = _measure(measures, "section", "Discriminator")
            lines.append(
                f"| {system} | {count} | {words['samples']:.4f} | {judged['samples']:.3f} |"
            )
    return "\n".join(lines)


def _measure(measures: list[dict], key: str, value: str) -> dict[str, float]:
    return next(measure["values"] for measure in measures if measure[key] == value)


if __name__ == "__main__":
    main()

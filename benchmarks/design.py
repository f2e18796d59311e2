"""Sequences for measured values, by seqdiff and by d3-dna, from the same rows and the same time.

Half of the training rows trains generators and the other half trains the judge, an ensemble of
convolutional networks. Each generator draws one sequence for each of some test values. The first
table compares what the judge predicts with what was wanted, and the sequences with test rows that
no generator was asked for. Floors are judged in the same way: the test rows with these values,
training rows of the nearest value, dinucleotide shuffles, and a Markov chain for each interval of
values. The second table asks for the value that 1% of the training rows exceed.

Every model trains for ``--minutes`` of CPU time on one thread. Results are kept in ``--work``, and
a second run continues there. ``--models`` trains some only, so that two can train at once. The
models of d3-dna need ``pip install d3-dna==0.1.3``. Run
``python -m benchmarks.design ecoli.tsv.gz --signal log2_expr --group cluster --work runs/d3``.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.stats import ks_2samp
from torch.utils.data import TensorDataset

import seqdiff
from benchmarks.common import begin, make_parser, positive, print_table, refuse, write_json
from genomics.baselines import MarkovModel, discriminator_auroc, kmer_frequencies
from genomics.design import (
    Oracle,
    OracleTraining,
    measure_predictions,
    nearest,
    pairwise_distances,
    rows_of_part,
    train_oracle,
)
from genomics.io import read_table, split_rows, write_fasta
from genomics.sequence import (
    count_kmers_of_each,
    decode,
    dinucleotide_shuffle,
    encode,
    js_divergence,
)
from seqdiff.data import Split

CONFIG = Path(__file__).parents[1] / "configs" / "experiment" / "genomics" / "design.yaml"
KMER = 6
BINS = 10  # intervals of values, each with a Markov chain of its own
MARKOV_ORDER = 4
PROBE_STEPS = 40
FIXED = ("signal", "group", "split", "clip", "minutes", "num", "ours", "peer_rate")
OURS = re.compile(r"seqdiff-(\d+)")


@dataclass(frozen=True)
class Data:
    """Rows of the benchmark.

    Attributes:
        table: Table of the generators: their half of train and valid, and all test rows.
        training: Sequences that a generator trains on, and their values.
        valid: The same of its validation.
        wanted: Test rows whose values generators are asked for.
        others: The other test rows.
    """

    table: Path
    training: tuple[list[str], np.ndarray]
    valid: tuple[list[str], np.ndarray]
    wanted: tuple[list[str], np.ndarray]
    others: tuple[list[str], np.ndarray]


def check_same(options: argparse.Namespace) -> None:
    """Refuse a folder of results that were made with other options."""
    made_with = {name: vars(options)[name] for name in FIXED} | {"table": options.table.name}
    path = options.work / "options.json"
    if not path.exists():
        options.work.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(made_with, indent=2) + "\n")
    for name, before in json.loads(path.read_text()).items():
        if before != made_with[name]:
            refuse(
                f"design.{name} must be {before}, which {options.work} was made with, got "
                f"{made_with[name]}; choose another --work"
            )


def prepare(options: argparse.Namespace) -> Data:
    """Divide the table, and train the judge on the half that generators do not see."""
    work: Path = options.work
    column = options.signal
    table = read_table(options.table, signals=(column,), split=options.split, group=options.group)
    if options.clip is not None:
        table.values.clip(*options.clip, out=table.values)
    rows = split_rows(table, (0.8, 0.1, 0.1), 0)
    learned: tuple[Split, ...] = ("train", "valid")
    half = {name: rows_of_part(table, rows[name], "a") for name in learned}
    kept = np.concatenate([half["train"], half["valid"], rows["test"]])
    path = work / "generator.tsv"
    if not path.exists():
        frame = pd.read_csv(options.table, sep=None, engine="python").iloc[table.rows[kept] - 2]
        frame = frame.drop(columns=options.split or [], errors="ignore")
        names = np.repeat(
            [*half, "test"], [len(half["train"]), len(half["valid"]), len(rows["test"])]
        )
        frame.assign(split=names).to_csv(path, sep="\t", index=False)
    if not (work / "judge" / "oracle.json").exists():
        own: dict[Split, np.ndarray] = {n: rows_of_part(table, rows[n], "b") for n in learned}
        source = {"table": str(options.table), "part": "b"}
        train_oracle(table, own, OracleTraining(), source=source).save(work / "judge")
    chosen = np.random.default_rng(0).permutation(rows["test"])

    def part(where: np.ndarray) -> tuple[list[str], np.ndarray]:
        return [table.sequences[i] for i in where], table.values[where, 0].astype(np.float64)

    first, rest = chosen[: options.num], chosen[options.num :]
    if len(rest) < options.num // 2:
        refuse(
            f"design.num must leave half as many test rows to compare with, got {options.num} of "
            f"{len(chosen)}; ask for fewer"
        )
    return Data(path, part(half["train"]), part(half["valid"]), part(first), part(rest))


def cpu_seconds(who: int = resource.RUSAGE_CHILDREN) -> float:
    """Return the CPU time so far, of finished child processes or of this one."""
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def train_ours(options: argparse.Namespace, data: Data, name: str, seed: int) -> dict[str, Any]:
    """Train with the command that the guide gives, for as many steps as fit into the time."""
    run = options.work / name

    def call(output: Path, steps: int) -> tuple[float, float]:
        arguments = [
            *("train", CONFIG, f"--data.table={data.table}", f"--data.signals=[{options.signal}]"),
            *(f"--output={output}", f"--seed={seed}", f"--trainer.max_steps={steps}"),
            *(f"--trainer.val_check_interval={steps}", f"--checkpoint_every_n_steps={steps}"),
            *(() if options.clip is None else (f"--data.clip={list(options.clip)}",)),
            *options.ours,
        ]
        before, start = cpu_seconds(), time.perf_counter()
        command = [sys.executable, "-m", "seqdiff.cli", *map(str, arguments)]
        subprocess.run(command, check=True, capture_output=True)
        return cpu_seconds() - before, time.perf_counter() - start

    short = [  # the first one may compile kernels
        call(options.work / f"{name}-probe-{number}", steps)[0]
        for number, steps in enumerate((2, 2, PROBE_STEPS))
    ][1:]
    each = (short[1] - short[0]) / (PROBE_STEPS - 2)
    steps = max(1, int((60 * options.minutes - short[0]) / each))
    seconds, wall = call(run, steps)
    loaded = seqdiff.load(run)
    shown = steps * loaded.datamodule.batch_size
    weights = sum(parameter.numel() for parameter in loaded.denoiser.parameters())
    bounds = {
        key: loaded.evaluate(given_signals=given, seed=0, evaluations=4).model
        for key, given in (("bound", False), ("bound_given_values", True))
    }
    return {
        "parameters": weights,
        "steps": steps,
        "sequences": shown,
        "cpu_seconds": seconds,
        "wall_seconds": wall,
        "sequences_per_cpu_second": shown / seconds,
        **{
            key: {
                "bits_per_base": bound.bits_per_token,
                "standard_error": bound.bits_per_token_error,
            }
            for key, bound in bounds.items()
        },
    }


def draw_ours(
    options: argparse.Namespace, data: Data, name: str, seed: int, guidance: float
) -> tuple[list[str], float]:
    """Draw for the wanted values; return the sequences and the CPU seconds."""
    run = seqdiff.load(options.work / name)
    values = data.wanted[1].astype(np.float32)[:, None]
    start = time.process_time()
    found = run.sample(len(values), signal=values, guidance=guidance, seed=seed)
    return found, time.process_time() - start


def extrapolate(
    options: argparse.Namespace, data: Data, judge: Oracle, name: str, seed: int, guidance: float
) -> dict[str, Any]:
    """Ask for the value that 1% of the training rows exceed, and judge what is drawn."""
    asked = float(np.quantile(data.training[1], 0.99))
    run = seqdiff.load(options.work / name)
    signal = np.full((options.num // 5, 1), asked, dtype=np.float32)
    texts = run.sample(len(signal), signal=signal, guidance=guidance, seed=seed)
    return {"asked": asked, **extremes(data, judge, texts)}


def best_rows(data: Data, judge: Oracle) -> dict[str, Any]:
    """Judge the training rows of the generators above the value that ``extrapolate`` asks for."""
    texts, values = data.training
    best = np.flatnonzero(values > np.quantile(values, 0.99))
    found = extremes(data, judge, [texts[i] for i in best])
    return {
        "asked": float(np.quantile(values, 0.99)),
        **found,
        "measured": float(values[best].mean()),
    }


def extremes(data: Data, judge: Oracle, texts: list[str]) -> dict[str, Any]:
    """Return mean and spread of the predictions, and the distance to training rows."""
    predicted = judge.predict(texts)[:, 0]
    near = nearest(texts, data.training[0]).distance
    return {
        "sequences": len(texts),
        "predicted": float(predicted.mean()),
        "standard_deviation": float(predicted.std()),
        "best_predicted": float(predicted.max()),
        "novelty": float(np.median(near)),
    }


def peer_config(options: argparse.Namespace, length: int, network: str) -> Any:
    """Return the configuration of d3-dna's K562 example, with widths and warm-up cut to fit.

    Source: github.com/anirbansarkar-cs/d3-dna, examples/k562 (version 0.1.3). Widths are 128 in
    place of 768 and 256, blocks 4 in place of 12, rows of a batch 32 in place of 256, warm-up 100
    steps in place of 2,500, and precision is that of the CPU.
    """
    kinds = {
        "transformer": {"hidden_size": 128, "n_blocks": 4, "n_heads": 4, "dropout": 0.1},
        "conv": {"conv_channels": 128},
    }
    return import_module("omegaconf").OmegaConf.create(
        {
            "dataset": {
                "name": "design",
                "sequence_length": length,
                "num_classes": 4,
                "signal_dim": 1,
            },
            "ngpus": 1,
            "tokens": 4,
            "model": {
                "architecture": "transformer" if network == "transformer" else "convolutional",
                "cond_dim": 128,
                "length": length,
                "scale_by_sigma": False,
                "class_dropout_prob": 0.1,
                **kinds[network],
            },
            "training": {
                "batch_size": 32,
                "accum": 1,
                "max_epochs": 10_000,
                "val_every_n_epochs": 10_000,
                "checkpoint_every_n_epochs": 10_000,
                "ema": 0.9999,
                "num_workers": 0,
                "precision": "32-true",
            },
            "optim": {
                "optimizer": "AdamW",
                "lr": options.peer_rate,
                "beta1": 0.9,
                "beta2": 0.999,
                "eps": 1e-8,
                "weight_decay": 0,
                "warmup": 100,
                "grad_clip": 1.0,
            },
            "graph": {"type": "uniform", "file": "data", "report_all": False},
            "noise": {"type": "geometric", "sigma_min": 1e-4, "sigma_max": 20},
            "sampling": {
                "steps": 20,
                "batch_size": 50,
                "predictor": "euler",
                "noise_removal": True,
            },
            "eval": {"batch_size": 32},
        }
    )


def peer_network(config: Any) -> torch.nn.Module:
    """Build one of d3-dna's networks."""
    models = import_module("d3_dna.models")
    transformer = config.model.architecture == "transformer"
    return (models.TransformerModel if transformer else models.ConvolutionalModel)(config)


def standard(values: np.ndarray, training: np.ndarray) -> torch.Tensor:
    """Standardise values by those of training, ``[n, 1]``."""
    return torch.tensor((values - training.mean()) / training.std(), dtype=torch.float32)[:, None]


def train_peer(options: argparse.Namespace, data: Data, name: str, network: str) -> dict[str, Any]:
    """Train a network of d3-dna by its own trainer until the time is over."""
    lightning = import_module("pytorch_lightning")  # the package that d3-dna builds on
    run = options.work / name
    lightning.seed_everything(0)
    texts, values = data.training
    config = peer_config(options, len(texts[0]), network)
    steps = 0
    start, began = time.process_time(), time.perf_counter()

    def count(trainer: Any, *_: object) -> None:
        nonlocal steps
        steps += 1
        trainer.should_stop = time.process_time() - start > 60 * options.minutes

    def dataset(part: tuple[list[str], np.ndarray]) -> TensorDataset:
        ids = torch.from_numpy(np.stack([encode(text) for text in part[0]]).astype(np.int64))
        return TensorDataset(ids, standard(part[1], values))

    budget = type("Budget", (lightning.Callback,), {"on_train_batch_end": staticmethod(count)})
    trainer, module = (
        import_module("d3_dna")
        .D3Trainer(config, work_dir=str(run), callbacks=[budget()])
        .fit(dataset(data.training), dataset(data.valid))
    )
    seconds, wall = time.process_time() - start, time.perf_counter() - began
    trainer.save_checkpoint(run / "model.ckpt")
    shown = steps * config.training.batch_size
    return {
        "parameters": sum(parameter.numel() for parameter in module.score_model.parameters()),
        "steps": steps,
        "sequences": shown,
        "cpu_seconds": seconds,
        "wall_seconds": wall,
        "sequences_per_cpu_second": shown / seconds,
        "learning_rate": options.peer_rate,
    }


def draw_peer(
    options: argparse.Namespace, data: Data, name: str, network: str
) -> tuple[list[str], float]:
    """Draw for the wanted values with d3-dna's sampler, 20 Euler steps as published."""
    config = peer_config(options, len(data.training[0][0]), network)
    sampler = import_module("d3_dna").D3Sampler(config)
    torch.manual_seed(0)
    checkpoint = str(options.work / name / "model.ckpt")
    sampler.load(checkpoint=checkpoint, model=peer_network(config), device="cpu")
    wanted = data.wanted[1]
    start = time.process_time()
    ids = sampler.generate_batched(
        num_samples=len(wanted), labels=standard(wanted, data.training[1]), batch_size=50
    )
    seconds = time.process_time() - start
    return [decode(row) for row in ids.numpy().astype(np.uint8)], seconds


def floors(data: Data) -> dict[str, list[str]]:
    """Return sequences that no network generated, one for each wanted value."""
    generator = np.random.default_rng(1)
    texts, values = data.training
    real, wanted = data.wanted
    order = np.argsort(values, kind="stable")
    place = np.searchsorted(values[order], wanted).clip(1, len(order) - 1)
    below = wanted - values[order][place - 1] <= values[order][place] - wanted
    closest = order[np.where(below, place - 1, place)]
    edges = np.quantile(values, np.linspace(0, 1, BINS + 1)[1:-1])
    rows = np.stack([encode(text) for text in texts])
    drawn = np.empty((len(wanted), rows.shape[1]), dtype=np.uint8)
    for number in range(BINS):
        own, asked = np.digitize(values, edges) == number, np.digitize(wanted, edges) == number
        chain = MarkovModel.fit(rows[own], MARKOV_ORDER)
        drawn[asked] = chain.sample(int(asked.sum()), rows.shape[1], generator)
    shuffled = dinucleotide_shuffle(np.stack([encode(text) for text in real]), generator)
    return {
        "real test rows": real,
        "nearest training row": [texts[i] for i in closest],
        "dinucleotide shuffle": [decode(row) for row in shuffled],
        f"Markov chain by {BINS} intervals": [decode(row) for row in drawn],
    }


def spectrum(texts: list[str]) -> np.ndarray:
    """Count the 6-mers of all sequences together."""
    counts = count_kmers_of_each([encode(text) for text in texts], KMER)
    return np.asarray(counts.sum(axis=0)).ravel().astype(np.int64)


def measure(data: Data, judge: Oracle, texts: list[str]) -> dict[str, Any]:
    """Compare sequences with the wanted values and with real rows.

    Novelty is the median edit distance to the nearest training row, and diversity the median edit
    distance between two sequences of the set.
    """
    real, wanted = data.wanted
    predicted = judge.predict(texts)[:, 0]
    others = data.others[0]
    spectra = [spectrum(part) for part in (texts, others)]
    frequencies = [kmer_frequencies([encode(text) for text in part]) for part in (others, texts)]
    between = pairwise_distances(texts)[np.triu_indices(len(texts), 1)]
    near = nearest(texts, data.training[0]).distance
    compared: Any = ks_2samp(predicted, judge.predict(real)[:, 0])
    return {
        **measure_predictions(wanted, {"judge": predicted})["judge"],
        "ks": float(compared.statistic),
        f"js_distance_{KMER}": float(np.sqrt(js_divergence(spectra[0], spectra[1]))),
        "auroc_4mers": discriminator_auroc(frequencies[0], frequencies[1], 0),
        "novelty": float(np.median(near)),
        "copies": int((near == 0).sum()),
        "diversity": float(np.median(between)),
        "mean_predicted": float(predicted.mean()),
    }


Sets = dict[str, dict[str, Any]]


def results(options: argparse.Namespace, data: Data, judge: Oracle) -> tuple[Sets, Sets]:
    """Train what is missing, draw, and measure every set of sequences.

    Returns:
        The sets for the wanted values, and those for the greatest values.
    """
    found: Sets = {}
    path = options.work / "best-training-rows.json"
    top: Sets = {"best training rows": keep(path, partial(best_rows, data, judge))}
    extremes_of: dict[str, Callable[[], dict[str, Any]]] = {}
    for name, texts in floors(data).items():
        path = options.work / f"{slug(name)}.json"
        found[name] = keep(path, partial(measure, data, judge, texts))
    for name in options.models:
        ours = OURS.fullmatch(name)
        if ours is None:
            peer = (options, data, name, name.removeprefix("d3-"))
            train, draws = partial(train_peer, *peer), {name: partial(draw_peer, *peer)}
        else:
            seed, draws = int(ours[1]), {}
            train = partial(train_ours, options, data, name, seed)
            for strength in options.guidance:
                own = (name, seed, strength)
                shown = f"{name}, guidance {strength:g}"
                draws[shown] = partial(draw_ours, options, data, *own)
                extremes_of[shown] = partial(extrapolate, options, data, judge, *own)
        trained = keep(options.work / f"{name}-training.json", train)
        for shown, draw in draws.items():
            path = options.work / f"{slug(shown)}.json"
            found[shown] = keep(path, partial(record, path, data, judge, trained, draw))
    for shown, work in extremes_of.items():
        top[shown] = keep(options.work / f"top-{slug(shown)}.json", work)
    return found, top


def record(
    path: Path,
    data: Data,
    judge: Oracle,
    trained: dict[str, Any],
    draw: Callable[[], tuple[list[str], float]],
) -> dict[str, Any]:
    """Draw and measure one set, and keep its sequences as FASTA beside the path."""
    texts, seconds = draw()
    names = [f"{number} wanted={value:g}" for number, value in enumerate(data.wanted[1])]
    write_fasta(path.with_suffix(".fa"), names, texts)
    return {
        **measure(data, judge, texts),
        "sequences_drawn_per_cpu_second": len(texts) / seconds,
        "training": trained,
    }


def slug(name: str) -> str:
    """Return a name of a file."""
    return re.sub(r"[^a-z0-9.]+", "-", name.lower())


def keep(path: Path, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Do some work, or read its result from an earlier run."""
    if path.exists():
        return json.loads(path.read_text())
    print(f"{path.stem} ...", flush=True)
    result = work()
    path.write_text(json.dumps(result, indent=2) + "\n")
    return json.loads(path.read_text())


COLUMNS = {
    "Pearson": lambda row: f"{row['pearson'][0]:.3f}",
    "MSE": lambda row: f"{row['mse'][0]:.2f}",
    "KS": lambda row: f"{row['ks']:.3f}",
    "6-mer JS": lambda row: f"{row[f'js_distance_{KMER}']:.4f}",
    "4-mer AUROC": lambda row: f"{row['auroc_4mers']:.3f}",
    "novelty": lambda row: f"{row['novelty']:.0f}",
    "diversity": lambda row: f"{row['diversity']:.0f}",
    "drawn/s": lambda row: f"{row.get('sequences_drawn_per_cpu_second', float('nan')):.1f}",
    "trained/s": lambda row: f"{row['training']['sequences_per_cpu_second']:.0f}",
    "bits/base": lambda row: "{bits_per_base:.4f} ± {standard_error:.4f}".format(
        **row["training"]["bound_given_values"]
    ),
}

TOP_COLUMNS = {
    "asked": lambda row: f"{row['asked']:.2f}",
    "measured": lambda row: f"{row['measured']:.2f}",
    "predicted": lambda row: f"{row['predicted']:.2f} ± {row['standard_deviation']:.2f}",
    "greatest": lambda row: f"{row['best_predicted']:.2f}",
    "novelty": lambda row: f"{row['novelty']:.0f}",
}


def cell(show: Callable[[dict[str, Any]], str], row: dict[str, Any]) -> str:
    """Return a cell; a dash for what a set does not have."""
    try:
        return show(row).replace("nan", "-")
    except KeyError:
        return "-"


def model_name(text: str) -> str:
    """Check the name of a model."""
    if not OURS.fullmatch(text) and text not in ("d3-conv", "d3-transformer"):
        raise argparse.ArgumentTypeError(
            f"must be seqdiff-SEED, d3-conv or d3-transformer, got {text}"
        )
    return text


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = make_parser(__doc__)
    parser.add_argument("table", type=Path, help="table with a sequence and a value in each row")
    parser.add_argument("--signal", required=True, help="column of the values")
    parser.add_argument("--group", help="column of groups, which halves never divide")
    parser.add_argument("--split", help="column with train, valid and test; default: by hash")
    parser.add_argument("--clip", type=float, nargs=2, help="least and greatest value")
    parser.add_argument("--work", type=Path, required=True, help="folder of models and sequences")
    parser.add_argument("--minutes", type=float, default=15.0, help="CPU time of each model")
    parser.add_argument("--num", type=positive, default=500, help="test values to draw for")
    parser.add_argument(
        "--models",
        type=model_name,
        nargs="*",
        help="seqdiff-SEED, d3-conv, d3-transformer",
        default=["seqdiff-0", "seqdiff-1", "seqdiff-2", "d3-conv", "d3-transformer"],
    )
    parser.add_argument("--guidance", type=float, nargs="+", default=[1.0, 1.5])
    parser.add_argument("--peer-rate", type=float, default=3e-4, help="learning rate of d3-dna")
    parser.add_argument(
        "--ours", nargs="*", default=[], help="more options of seqdiff train, without the dashes"
    )
    options = parser.parse_args(argv)
    options.ours = [f"--{text}" for text in options.ours]
    if find_spec("d3_dna") is None and any(name.startswith("d3-") for name in options.models):
        refuse("design.models: d3-dna is not installed; pip install d3-dna==0.1.3, or leave it out")
    torch.set_num_threads(1)
    described = begin()
    check_same(options)
    data = prepare(options)
    judge = Oracle.load(options.work / "judge")
    found, top = results(options, data, judge)
    for columns, sets in ((COLUMNS, found), (TOP_COLUMNS, top)):
        rows = [
            [name, *(cell(show, row) for show in columns.values())] for name, row in sets.items()
        ]
        print_table(["set", *columns], rows)
        print()
    settings = {
        key: value.name if isinstance(value, Path) else value
        for key, value in vars(options).items()
        if key not in ("json", "pairs", "work")
    }
    write_json(
        options.json,
        f"design-{options.table.name.split('.')[0]}",
        described,
        settings,
        {"sets": found, "top": top},
    )


if __name__ == "__main__":
    main()

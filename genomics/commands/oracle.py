"""``seqdiff oracle train`` and ``seqdiff oracle evaluate``."""

from __future__ import annotations

import json as json_format
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from genomics.commands.options import parse_names
from seqdiff.cells import say
from seqdiff.checks import check_fractions, check_seed
from seqdiff.cli.options import Several
from seqdiff.files import check_folder, check_parent, write_bytes

if TYPE_CHECKING:
    from genomics.design import Interval, OracleEvaluation
    from genomics.io import SequenceTable

# The files of an oracle and of a run, which both keep weights in model.safetensors.
_TAKEN = ("oracle.json", "run.yaml", "model.safetensors")
_HEADINGS = ("model", "Pearson", "Spearman", "MSE")


def train(
    table: Path,
    /,
    *,
    signals: Annotated[tuple[str, ...], Several],
    out: Path,
    network: Literal["conv", "caduceus"] = "conv",
    members: int = 3,
    strands: Literal["one", "both"] = "one",
    mask_inputs: bool = False,
    part: Literal["a", "b"] | None = None,
    sequence: str = "sequence",
    split_column: str | None = None,
    group: str | None = None,
    split: tuple[float, float, float] = (0.8, 0.1, 0.1),
    split_seed: int = 0,
    clip: tuple[float, float] | None = None,
    epochs: int = 12,
    patience: int = 4,
    seed: int = 0,
    device: str | None = None,
) -> None:
    """Train an ensemble of networks that predicts measured values of sequences.

    Beside it, a ridge regression on k-mers is fitted to the same rows, for seqdiff oracle evaluate.

    Args:
        table: File with a sequence and its values in each row: .csv, .tsv or .parquet.
        signals: Columns of the values; empty cells and NA are missing values.
        out: Folder of the oracle.
        network: A small residual convolutional network, or a Caduceus.
        members: Number of networks, whose predictions are averaged.
        strands: one reads sequences as given; both trains on a random strand and averages the
            predictions for both strands.
        mask_inputs: Mask a random fraction of each row in training, for guidance by a classifier.
        part: Train on this half of the training and validation rows. Two oracles trained on a and b
            share no row, so one may judge what the other guided.
        sequence: Column of the sequences.
        split_column: Column that holds train, valid or test; default: a column split if it does.
        group: Column of groups, which are never divided between splits or parts.
        split: Fractions of train, valid and test where the table has no splits.
        split_seed: Seed of the hash that splits the rows.
        clip: Smallest and largest value; values outside are replaced by these.
        epochs: Largest number of passes of each network.
        patience: Passes without a better validation loss after which a network stops.
        seed: Seed of the weights and of the order of rows.
        device: cpu, cuda, ...; default: cuda if there is one, else cpu.

    Raises:
        ValueError: If the table or an option cannot be used.
    """
    columns = parse_names("oracle", signals)
    check_seed("oracle.split_seed", split_seed)
    check_fractions(split)
    if clip is not None and not clip[0] < clip[1]:
        raise ValueError(
            f"oracle.clip must be a lower and a higher value, got {list(clip)}; for "
            "example --clip -6 12"
        )
    if not table.is_file():
        raise FileNotFoundError(
            f"oracle.table must be an existing file, got {table}; check the path"
        )
    check_folder("oracle.out", out)
    if any((out / name).exists() for name in _TAKEN):
        raise FileExistsError(
            f"oracle.out must be a folder without an oracle or a run, got {out}; choose another "
            "folder"
        )
    from genomics.design import OracleTraining, rows_of_part, train_oracle
    from genomics.io import split_rows
    from seqdiff.progress import progress
    from seqdiff.run import choose_device

    training = OracleTraining(
        network=network,
        members=members,
        strands=strands,
        mask_inputs=mask_inputs,
        epochs=epochs,
        patience=patience,
        seed=seed,
    )
    place = choose_device(device)
    source = {
        "table": table.name,
        "sequence": sequence,
        "split_column": split_column,
        "group": group,
        "split": list(split),
        "split_seed": split_seed,
        "part": part,
        "clip": None if clip is None else list(clip),
    }
    found = _read(table, columns, source)
    rows = split_rows(found, split, split_seed)
    rows.pop("test", None)
    if part is not None:
        for name, some in list(rows.items()):
            rows[name] = rows_of_part(found, some, part)
    with progress() as bar:
        row = bar.add_task("training", total=members * epochs * len(rows["train"]))
        oracle = train_oracle(
            found,
            rows,
            training,
            source=source,
            device=place,
            progress=lambda count: bar.advance(row, count),
        )
    oracle.save(out)
    fits: Any = oracle.config.fit["members"]
    losses = ", ".join(f"{fit['loss']:.3f} (epoch {fit['epoch']})" for fit in fits)
    trained = f"{members} {network} {'network' if members == 1 else 'networks'}"
    say(
        f"{out}: {trained} trained on {len(rows['train']):,} rows; squared "
        f"error on {len(rows.get('valid', ())):,} validation rows, in units of the training "
        f"variance: {losses}"
    )


def evaluate(
    oracle: Path,
    table: Path,
    /,
    *,
    split: Literal["train", "valid", "test", "all"] = "test",
    json: Path | None = None,
    seed: int = 0,
    device: str | None = None,
) -> None:
    """Measure the predictions of an oracle, beside a ridge regression on k-mers and the mean.

    Columns, splits and limits of the values are those that the oracle was trained with.

    Args:
        oracle: Folder of the oracle.
        table: File with a sequence and its values in each row.
        split: Rows to evaluate.
        json: Also write the numbers to this file.
        seed: Seed of the bootstrap that gives the 95% intervals.
        device: cpu, cuda, ...; default: cuda if there is one, else cpu.

    Raises:
        ValueError: If the oracle or the table cannot be used.
    """
    check_seed("oracle.seed", seed)
    if json is not None:
        check_parent("oracle.json", json)
    if not table.is_file():
        raise FileNotFoundError(
            f"oracle.table must be an existing file, got {table}; check the path"
        )
    from rich.console import Console

    from genomics.design import Oracle, evaluate_oracle
    from genomics.io import split_rows
    from seqdiff.run import choose_device
    from seqdiff.training import Sheet

    trained = Oracle.load(oracle, choose_device(device))
    source = dict(trained.config.source)
    if split == "all":
        source |= {"split_column": None, "group": None}
    found = _read(table, trained.columns, source)
    if split != "all":
        fractions: Any = source["split"]
        seed_of_split: Any = source["split_seed"]
        rows = split_rows(found, tuple(fractions), seed_of_split)
        if split not in rows:
            raise ValueError(
                f"oracle.split must be a split with rows, got {split!r}, of which {table} has "
                "none; choose another, such as all"
            )
        found = found.select(rows[split])
    evaluation = evaluate_oracle(trained, found.sequences, found.values, seed)
    for signal, models in evaluation.metrics.items():
        cells = [[name, *map(_spell, metrics.values())] for name, metrics in models.items()]
        title = f"{signal}: {evaluation.known[signal]:,} values of {table}, split {split}"
        Console().print(Sheet(title, _HEADINGS, cells).to_rich())
    print("In brackets: 95% intervals of 1,000 bootstrap resamples of the rows.")
    if evaluation.num_seen:
        print(
            f"{evaluation.num_seen:,} of these {evaluation.num_rows:,} sequences were used in "
            "training, so the oracle looks better than it is",
            file=sys.stderr,
        )
    if json is not None:
        content = _content(evaluation, oracle, table, split)
        write_bytes(json, (json_format.dumps(content, indent=2) + "\n").encode())


def _read(table: Path, columns: tuple[str, ...], source: dict[str, Any]) -> SequenceTable:
    """Read a table as the oracle's own was.

    Raises:
        ValueError: If it cannot be read, or has values of positions.
    """
    from genomics.io import read_table

    found = read_table(
        table,
        sequence=source["sequence"],
        signals=columns,
        split=source["split_column"],
        group=source["group"],
    )
    if found.values.ndim == 3:
        raise ValueError(
            f"{table}: must hold one value of each signal for a sequence, got a value for each "
            "position; an oracle does not predict tracks, so average them over the positions"
        )
    if source["clip"] is not None:
        found.values[:] = found.values.clip(*source["clip"])
    return found


def _spell(interval: Interval) -> str:
    if interval.value is None:
        return "undefined"
    return f"{interval.value:.3f} [{interval.low:.3f}, {interval.high:.3f}]"


def _content(
    evaluation: OracleEvaluation, oracle: Path, table: Path, split: str
) -> dict[str, object]:
    return {
        "oracle": str(oracle),
        "table": str(table),
        "split": split,
        "num_rows": evaluation.num_rows,
        "num_seen": evaluation.num_seen,
        "signals": {
            signal: {
                "num_values": evaluation.known[signal],
                **{
                    model: {name: interval._asdict() for name, interval in metrics.items()}
                    for model, metrics in models.items()
                },
            }
            for signal, models in evaluation.metrics.items()
        },
    }

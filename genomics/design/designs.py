"""Candidates of designs: their filters, predictions and choice, and the tables of the result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Float64, Int64

from genomics.design.constraints import (
    Constraints,
    Nearest,
    count_word,
    describe_failures,
    gc_fraction,
    longest_run,
    nearest,
)
from genomics.design.selection import pairwise_distances, select
from genomics.sequence import BASES
from seqdiff.cells import write_cell
from seqdiff.data import Motif


@runtime_checkable
class Predictor(Protocol):
    """Predicts measured values of sequences, as an oracle does."""

    @property
    def columns(self) -> Sequence[str]:
        """Names of the values."""
        ...

    def predict(self, sequences: list[str]) -> Float[np.ndarray, "N S"]:
        """Predict a row of values for each sequence, in their units."""
        ...


@dataclass(frozen=True, eq=False)
class Candidates:
    """Sequences that were drawn, and what was wanted of them.

    Attributes:
        names: Names of the sequences.
        sequences: The sequences, in upper case.
        target: Number of the target of each: of the row of wanted values, or of the template.
        targets: Names of the targets.
        signals: Names of the wanted values.
        wanted: The wanted values of each target; NaN where none is given.
        scale: Standard deviation of each signal in the training data.
    """

    names: list[str]
    sequences: list[str]
    target: Int64[np.ndarray, " N"]
    targets: list[str]
    signals: list[str]
    wanted: Float64[np.ndarray, "T S"]
    scale: Float64[np.ndarray, " S"]

    def goals(self) -> Float64[np.ndarray, "N S"]:
        """Return the wanted values of each sequence."""
        return self.wanted[self.target]


@dataclass(frozen=True, eq=False)
class Designs:
    """The chosen candidates.

    Attributes:
        candidates: All that were drawn.
        passed: The candidates that passed every filter.
        failures: How many failed each filter, in words.
        chosen: Numbers of the chosen candidates, target by target, in the order of choice.
        quality: Quality of every candidate that passed, in the order of ``passed``; higher is
            better.
        predicted: Predictions for the candidates that passed, by ``columns``.
        judged: Predictions for the chosen ones by ``judge_columns``, of an oracle that took no part
            in the choice.
        columns: Names of the oracle's values; none without an oracle.
        judge_columns: Names of the judge's values; none without a judge.
        nearest: Nearest training sequences of the chosen ones, if there are training sequences.
    """

    candidates: Candidates
    passed: Int64[np.ndarray, " P"]
    failures: str
    chosen: Int64[np.ndarray, " n"]
    quality: Float64[np.ndarray, " P"]
    predicted: Float64[np.ndarray, "P C"]
    judged: Float64[np.ndarray, "n J"]
    columns: list[str]
    judge_columns: list[str]
    nearest: Nearest | None

    @property
    def sequences(self) -> list[str]:
        """The chosen sequences."""
        return [self.candidates.sequences[i] for i in self.chosen.tolist()]

    @property
    def place(self) -> Int64[np.ndarray, " n"]:
        """Place of each chosen candidate in ``passed``."""
        return np.searchsorted(self.passed, self.chosen)

    @property
    def best(self) -> int:
        """Place of the design of the highest quality in ``chosen``; the first of equal ones."""
        return int(self.quality[self.place].argmax())


@dataclass(frozen=True, kw_only=True)
class Choice:
    """How designs are chosen.

    Attributes:
        constraints: What every design must satisfy.
        num: Designs for each target.
        how: See ``select``.
        spread: Least edit distance between two designs; ``None`` is a tenth of the length.
        maximise: Name of the oracle's value to maximise; ``None`` to come close to what is wanted.
    """

    constraints: Constraints
    num: int = 20
    how: str = "greedy"
    spread: int | None = None
    maximise: str | None = None


def check_goal(choice: Choice, oracle: Predictor | None) -> None:
    """Check that the oracle predicts what is to be maximised.

    Raises:
        ValueError: If it does not, or there is no oracle.
    """
    if choice.maximise is None:
        return
    if oracle is None:
        raise ValueError(
            f"design.maximise must come with an oracle, got {choice.maximise!r} without; add "
            "--oracle DIR"
        )
    if choice.maximise not in oracle.columns:
        raise ValueError(
            f"design.maximise must be one of the oracle's values, {', '.join(oracle.columns)}, "
            f"got {choice.maximise!r}; correct the name"
        )


def check_training(constraints: Constraints, training: Sequence[str]) -> None:
    """Check that there are training sequences if constraints are on the distance to them.

    Raises:
        ValueError: If there are none.
    """
    if constraints.needs_training and not training:
        raise ValueError(
            "design.min_distance and max_distance must come with training sequences, got none; add "
            "--training FILE"
        )


def predict(oracle: Predictor, sequences: Sequence[str]) -> Float64[np.ndarray, "N S"]:
    """Ask an oracle for predictions.

    Raises:
        ValueError: If it does not give one row of finite numbers for each sequence.
    """
    wanted = (len(sequences), len(oracle.columns))
    found = np.zeros(wanted)
    if sequences:  # at once, since an external command may take long to start
        found = np.asarray(oracle.predict(list(sequences)), dtype=np.float64)
    if found.shape != wanted or not np.isfinite(found).all():
        got = f"shape {found.shape}" if found.shape != wanted else "NaN or infinity"
        raise ValueError(
            f"design.oracle must give {wanted[1]} finite numbers for each of {wanted[0]:,} "
            f"sequences, got {got}; train it again"
        )
    return found


def rate(
    choice: Choice,
    goals: Float64[np.ndarray, "N S"],
    scale: Float64[np.ndarray, " S"],
    signals: Sequence[str],
    predicted: Float64[np.ndarray, "N C"],
    columns: Sequence[str],
) -> Float64[np.ndarray, " N"]:
    """Return the quality of sequences; higher is better.

    It is the prediction to maximise; or minus the root mean square difference between prediction
    and wanted value, in standard deviations of the training data, over the wanted values that the
    oracle predicts; or 0 if there is neither.
    """
    if choice.maximise is not None:
        return predicted[:, list(columns).index(choice.maximise)]
    shared = [(signals.index(name), place) for place, name in enumerate(columns) if name in signals]
    gaps = [(predicted[:, j] - goals[:, i]) / scale[i] for i, j in shared]
    if not gaps:
        return np.zeros(len(predicted))
    table = np.square(np.stack(gaps, axis=1))
    known = ~np.isnan(table)
    mean = np.where(known, table, 0).sum(axis=1) / known.sum(axis=1).clip(min=1)
    return -np.sqrt(mean)


def choose(
    candidates: Candidates,
    choice: Choice,
    oracle: Predictor | None = None,
    judge: Predictor | None = None,
    training: Sequence[str] = (),
    on_progress: Callable[[int, int], object] = lambda done, total: None,
) -> Designs:
    """Filter candidates and choose a diverse set of good ones for each target.

    Copies of a sequence count once. Distances to training sequences are computed for the candidates
    that pass all other filters, or for the designs alone if there is no limit on them.

    Args:
        candidates: The candidates.
        choice: How to choose.
        oracle: Ranks the candidates; without one they are taken in the order of drawing.
        judge: Predicts the designs, and takes no part in the choice.
        training: Training sequences.
        on_progress: Called with the number of training sequences compared, and their total.

    Raises:
        ValueError: If no candidate passes, constraints are on the distance to training sequences
            and there are none, or an oracle gives no numbers.
    """
    check_goal(choice, oracle)
    constraints = choice.constraints
    check_training(constraints, training)

    def near(sequences: list[str]) -> Nearest:
        done = 0

        def count(more: int) -> None:
            nonlocal done
            done += more
            on_progress(done, len(training))

        return nearest(sequences, training, count)

    passed, failures = _filter(candidates, constraints, near)
    sequences = [candidates.sequences[i] for i in passed.tolist()]
    if not sequences:
        raise ValueError(
            "design.candidates must hold a sequence that passes every filter, got none of "
            f"{len(candidates.sequences):,}; failed: {failures}; loosen one of these, or raise "
            "--candidates"
        )
    columns = [] if oracle is None else list(oracle.columns)
    predicted = np.zeros((len(sequences), 0)) if oracle is None else predict(oracle, sequences)
    goals = candidates.goals()[passed]
    quality = rate(choice, goals, candidates.scale, candidates.signals, predicted, columns)
    chosen: list[int] = []
    for number in range(len(candidates.targets)):
        own = np.flatnonzero(candidates.target[passed] == number)
        rows = [sequences[i] for i in own.tolist()]
        spread = choice.spread
        if spread is None:
            spread = max(map(len, rows), default=0) // 10
        found = select(rows, quality[own], choice.num, how=choice.how, spread=spread)
        chosen += passed[own[found]].tolist()
    designs = [candidates.sequences[i] for i in chosen]
    judged = np.zeros((len(designs), 0)) if judge is None else predict(judge, designs)
    return Designs(
        candidates,
        passed,
        failures,
        np.array(chosen, dtype=np.int64),
        quality,
        predicted,
        judged,
        columns,
        [] if judge is None else list(judge.columns),
        near(designs) if training else None,
    )


def _filter(
    candidates: Candidates, constraints: Constraints, near: Callable[[list[str]], Nearest]
) -> tuple[Int64[np.ndarray, " P"], str]:
    """Return the candidates that pass, and how many failed each filter, in words."""
    sequences = candidates.sequences
    seen: set[tuple[int, str]] = set()
    new = np.zeros(len(sequences), dtype=bool)
    for number, key in enumerate(zip(candidates.target.tolist(), sequences, strict=True)):
        new[number] = key not in seen
        seen.add(key)
    passes: dict[str, Bool[np.ndarray, " N"]] = {"copies": new, **constraints.passes(sequences)}
    passed = np.flatnonzero(np.logical_and.reduce(list(passes.values())))
    failures = describe_failures(passes)
    if constraints.needs_training and len(passed):
        rows = [sequences[i] for i in passed.tolist()]
        limits = {k: v for k, v in constraints.passes(rows, near(rows)).items() if k not in passes}
        failures += f"; of the other {len(passed):,}: {describe_failures(limits)}"
        passed = passed[np.logical_and.reduce(list(limits.values()))]
    return passed, failures


def saturate(
    oracle: Predictor, sequence: str, column: str
) -> tuple[float, Float64[np.ndarray, "L 4"]]:
    """Predict every single substitution of a sequence.

    Args:
        oracle: The oracle.
        sequence: The sequence.
        column: Name of the value.

    Returns:
        The prediction for the sequence, and the change by each base at each position; 0 for the
        base that is there.
    """
    mutants = [
        sequence[:i] + base + sequence[i + 1 :] for i in range(len(sequence)) for base in BASES
    ]
    place = list(oracle.columns).index(column)
    values = predict(oracle, [sequence, *mutants])[:, place]
    effects = (values[1:] - values[0]).reshape(len(sequence), len(BASES))
    for i, base in enumerate(sequence):
        if base in BASES:
            effects[i, BASES.index(base)] = 0.0  # not the rounding of another batch
    return float(values[0]), effects


def tabulate(
    designs: Designs, motifs: Sequence[str], training_names: Sequence[str]
) -> list[dict[str, object]]:
    """Return a row for each design: its values by column.

    Args:
        designs: The designs.
        motifs: Motifs that were required, whose occurrences are counted.
        training_names: Names of the training sequences.
    """
    candidates, rows = designs.candidates, []
    several = len(candidates.targets) > 1
    for number, (index, place) in enumerate(
        zip(designs.chosen.tolist(), designs.place.tolist(), strict=True)
    ):
        sequence = candidates.sequences[index]
        row: dict[str, object] = {"name": candidates.names[index]}
        if several:
            row["target"] = candidates.targets[int(candidates.target[index])]
        row["sequence"] = sequence
        goals = candidates.wanted[candidates.target[index]]
        parts: list[tuple[str, Sequence[str], Float64[np.ndarray, " _"]]] = [
            ("wanted", candidates.signals, goals),
            ("predicted", designs.columns, designs.predicted[place]),
            ("judged", designs.judge_columns, designs.judged[number]),
        ]
        for kind, names, values in parts:
            row |= {f"{kind}_{name}": float(v) for name, v in zip(names, values, strict=True)}
        row |= {"gc": gc_fraction(sequence), "longest_run": longest_run(sequence)}
        for motif in motifs:
            pattern = Motif.parse(motif).pattern
            row[f"motif_{pattern.upper()}"] = count_word(pattern, sequence)
        if designs.nearest is not None:
            row["distance"] = int(designs.nearest.distance[number])
            row["nearest"] = training_names[int(designs.nearest.number[number])]
        rows.append(row)
    return rows


def write_tsv(rows: Sequence[Mapping[str, object]]) -> str:
    """Write rows of ``tabulate``: tab-separated, numbers with six digits, NaN left empty."""

    def cell(value: object) -> str:
        if isinstance(value, float):
            return "" if np.isnan(value) else f"{value:.6g}"
        return write_cell(value) if isinstance(value, str) else str(value)

    lines = [
        "\t".join(map(write_cell, rows[0])),
        *("\t".join(map(cell, row.values())) for row in rows),
    ]
    return "\n".join(lines) + "\n"


def distances_between(sequences: Sequence[str]) -> Int64[np.ndarray, " pairs"]:
    """Return the edit distance of every pair of sequences."""
    return pairwise_distances(sequences)[np.triu_indices(len(sequences), 1)]

"""Runs compared with each other on the same sequences."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from scipy.special import stdtrit

from seqdiff.data import Split
from seqdiff.likelihood import Estimator, Likelihood, check_budget
from seqdiff.run.directory import Trained
from seqdiff.run.estimators import EstimatorOptions, choose_estimator, suit
from seqdiff.run.evaluation import Conditions, estimate_batches

_ROUNDED = 5e-5  # a smaller difference is printed as zero


@dataclass(frozen=True)
class ComparedRun:
    """One run of a comparison.

    Attributes:
        name: The run directory.
        bits_per_token: Its negative log-likelihood, or a bound on it.
        bits_per_token_error: Standard error over sequences.
        difference: ``bits_per_token`` minus that of the first run; 0 for the first.
        difference_error: Standard error of ``difference`` over the same sequences; 0 for the first.
        estimator: What was estimated, and how.
    """

    name: str
    bits_per_token: float
    bits_per_token_error: float
    difference: float
    difference_error: float
    estimator: str


@dataclass(frozen=True)
class Comparison:
    """Runs compared on the same sequences; prints as a table.

    Attributes:
        split: Split of the first run, whose sequences all runs were given.
        unit: Name of a token, such as ``base``.
        num_sequences: Number of sequences.
        num_tokens: Number of tokens that were counted.
        degrees: Degrees of freedom of the errors.
        runs: The runs, in the order in which they were given.
    """

    split: Split
    unit: str
    num_sequences: int
    num_tokens: int
    degrees: int
    runs: tuple[ComparedRun, ...]

    @property
    def width(self) -> float:
        """Half the width of a 95% interval, in standard errors (Student's t)."""
        return float(stdtrit(self.degrees, 0.975))

    @property
    def table(self) -> Table:
        """The table for a terminal."""
        first = self.runs[0]
        title = (
            f"{self.split} split of {first.name}: {self.num_sequences:,} sequences, "
            f"{self.num_tokens:,} {self.unit}s"
        )
        notes = [
            "lower is better; ± SE is the standard error over sequences, and of a difference over "
            "the same sequences with the same noise",
            f"95% interval of a difference: ± {self.width:.2f} SE",
            *dict.fromkeys(f"estimator: {run.estimator}" for run in self.runs),
        ]
        table = Table(title=title, caption="\n".join(notes))
        table.add_column("", overflow="fold")
        for heading in (f"bits/{self.unit}", "± SE", f"minus {first.name}", "± SE"):
            table.add_column(heading, justify="right")
        for run in self.runs:
            own = (f"{run.bits_per_token:.4f}", f"{run.bits_per_token_error:.4f}")
            gap = (f"{run.difference:+.4f}", f"{run.difference_error:.4f}")
            table.add_row(run.name, *own, *(("", "") if run is first else gap))
        return table

    @property
    def verdicts(self) -> list[str]:
        """How each run compares with the first, in a sentence."""
        first = self.runs[0]
        found = []
        for run in self.runs[1:]:
            gap, error = run.difference, run.difference_error
            by = f"{abs(gap):.4f} ± {error:.4f} bits/{self.unit}"
            if abs(gap) <= max(self.width * error, _ROUNDED):
                found.append(
                    f"These sequences do not tell {run.name} from {first.name}: the difference is "
                    f"{gap:+.4f} ± {error:.4f} bits/{self.unit}."
                )
            else:
                word = "better" if gap < 0 else "worse"
                found.append(f"{run.name} is {word} than {first.name} by {by}.")
        return found

    def content(self) -> dict[str, object]:
        """Return the content of a JSON file."""
        return {**vars(self), "runs": [vars(run) for run in self.runs], "verdicts": self.verdicts}

    def __repr__(self) -> str:
        """The table and the verdicts, as on a terminal."""
        console = Console(width=100, file=io.StringIO(), force_jupyter=False, force_terminal=False)
        with console.capture() as capture:
            console.print(self.table)
        return "\n".join([capture.get().rstrip(), *self.verdicts])


def compare_runs(
    runs: Sequence[Trained],
    split: Split = "test",
    *,
    options: EstimatorOptions,
    seed: int = 0,
) -> Comparison:
    """Estimate the likelihood of the same sequences under several runs, with the same noise.

    Labels and signals are not given.

    Args:
        runs: At least two runs of the same tokenizer.
        split: Split of the first run's data.
        options: How the likelihood is estimated; by default each run has the usual estimator of its
            model.
        seed: Seed of the draws.

    Raises:
        ValueError: If there are fewer than two runs, their tokenizers differ, a network is too
            short for the sequences, or there are fewer than two sequences.
    """
    if len(runs) < 2:
        raise ValueError(f"compare.runs must be at least two, got {len(runs)}; name another run")
    first = runs[0]
    for run in runs[1:]:
        if run.tokenizer.fingerprint != first.tokenizer.fingerprint:
            raise ValueError(
                f"compare.runs must have the same tokenizer, got that of {first.directory} and "
                f"another in {run.directory}; compare runs that have the same tokenizer"
            )
    estimator = choose_estimator("compare", options)
    check_budget(estimator, num_tokens=1, **options.budget)
    estimators = [suit("compare", estimator, options, run) for run in runs]
    total = len(first.dataset(split))
    lengths = (batch.tokens.shape[1] for batch in first.datamodule.evaluation_loader(split))
    longest = max(lengths)
    for run in runs:
        if run.max_length is not None and longest > run.max_length:
            raise ValueError(
                f"compare.runs must take rows of {longest:,} {first.datamodule.token_name}s, as "
                f"those of {first.directory}, got {run.directory}, whose network takes "
                f"{run.max_length:,}; name the run with the shorter rows first"
            )
    found = []
    for run, own in zip(runs, estimators, strict=True):
        rows = map(Conditions(), first.datamodule.evaluation_loader(split))
        title = f"evaluating {run.directory}"
        budget = options.budget
        found.append(estimate_batches(run, rows, total, title, estimator=own, seed=seed, **budget))
    reference = found[0]
    if len(reference.nats) < 2:
        raise ValueError(
            f"compare.split must have at least two sequences with known tokens, got one in the "
            f"{split} split of {first.directory}; name another split"
        )
    return Comparison(
        split,
        first.datamodule.token_name,
        len(reference.nats),
        int(reference.num_tokens.sum()),
        reference.nats_per_token_degrees,
        tuple(map(_line, runs, found, [reference] * len(runs), estimators)),
    )


def _line(
    run: Trained, result: Likelihood, reference: Likelihood, estimator: Estimator
) -> ComparedRun:
    gap = result.minus(reference)
    return ComparedRun(
        str(run.directory),
        result.bits_per_token,
        result.bits_per_token_error,
        gap.bits_per_token,
        gap.bits_per_token_error,
        f"{estimator.quantity}, by {estimator.name}",
    )

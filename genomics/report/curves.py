"""What training logged, beside the floors that a model has to come below."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

from seqdiff.data.datamodule import SequenceDataModule
from seqdiff.data.dataset import Split


@dataclass(frozen=True)
class Curves:
    """Training curves in bits per base.

    Attributes:
        split: What the floors were scored on.
        bits: Steps and values of ``train`` and ``val``, as far as they were logged.
        floors: Markov chains fitted to the training windows, and the source itself where it is
            known, by name.
    """

    split: Split
    bits: dict[str, tuple[list[int], list[float]]]
    floors: dict[str, float]


def read_curves(metrics: Path, data: SequenceDataModule, split: Split) -> Curves:
    """Read a run's metrics and fit the Markov chains.

    Args:
        metrics: The run's metrics file; a run that was only built has none.
        data: The run's data.
        split: What to score the chains on.

    Raises:
        ValueError: If a line of the file is not sound, with its number.
    """
    bits: dict[str, tuple[list[int], list[float]]] = {}
    if metrics.is_file():
        with metrics.open(newline="") as file:
            for number, row in enumerate(csv.reader(file), start=1):
                if len(row) != 3 or not row[1].endswith("/bits_per_token"):
                    continue
                try:
                    step, value = int(row[0]), float(row[2])
                except ValueError as error:
                    raise ValueError(
                        f"{metrics}:{number}: must be step,name,value, got {','.join(row)!r}; "
                        "restore the run's file"
                    ) from error
                steps, values = bits.setdefault(row[1].partition("/")[0], ([], []))
                steps.append(step)
                values.append(value)
    floors = {name: rows.bits_per_token for name, rows in data.baselines(split).items()}
    return Curves(split, bits, floors)

"""Score records one by one, and lay the scores out as a table, for ``score``."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch

from seqdiff.data.reader import Record
from seqdiff.likelihood import Estimator, check_budget, evaluate
from seqdiff.run import Run
from seqdiff.subcommands.terminal import progress
from seqdiff.types import Batch


@dataclass(frozen=True)
class Score:
    """One line of the table.

    Attributes:
        record: Its name.
        length: Its tokens.
        nats: The estimate, the mean over its readings.
        standard_error: Of ``nats``, from the estimator's draws.
        counted: Tokens that ``nats`` is over: the known ones.
        nfe: Network evaluations spent, over all readings.
    """

    record: str
    length: int
    nats: float
    standard_error: float
    counted: int
    nfe: int

    @property
    def bits_per_token(self) -> float:
        """Bits over counted tokens; not a number if there are none."""
        return self.nats / self.counted / math.log(2) if self.counted else math.nan


@dataclass(frozen=True)
class _Reading:
    """One way to read a record; ``index`` fixes its noise."""

    index: int
    tokens: np.ndarray
    known: np.ndarray


def score_records(
    run: Run,
    records: Sequence[Record],
    *,
    estimator: Estimator,
    seed: int,
    batch_size: int,
    target_se: float | None = None,
    max_nfe: int | None = None,
) -> list[Score]:
    """Score every record under a progress bar.

    Only sequences of one length share a network call, so none is padded. The readings of a record
    have noise of their own, and so independent errors. A record without a known token has nothing
    to score: 0 nats.

    Args:
        run: The run.
        records: What to score.
        estimator: How.
        seed: Of the draws; a record's score is a function of it and of the record's place.
        batch_size: Most rows of a network call.
        target_se: Standard error, in nats, at which a reading is done.
        max_nfe: Most network evaluations of a reading.

    Raises:
        ValueError: If no token is known at all, or one pass over the longest record takes more
            than ``max_nfe``.
    """
    readings = [
        _Reading(place * len(records) + number, tokens, tokens != run.process.mask_id)
        for number, record in enumerate(records)
        for place, tokens in enumerate(record.readings)
    ]
    scored = sorted((r for r in readings if r.known.any()), key=lambda r: len(r.tokens))
    if not scored:
        raise ValueError(
            f"score.records must hold a known symbol, got {len(records)} without any; "
            "check the file"
        )
    most = max(int(r.known.sum()) for r in scored)
    check_budget(estimator, num_tokens=most, target_se=target_se, max_nfe=max_nfe)
    device = next(run.denoiser.parameters()).device
    with progress() as bar:
        task = bar.add_task("scoring", total=len(scored))
        result = evaluate(
            run.denoiser,
            (batch.to(device) for batch in _batches(scored, batch_size)),
            process=run.process,
            estimator=estimator,
            target_se=target_se,
            max_nfe=max_nfe,
            rows_per_call=batch_size,
            seed=seed,
            progress=lambda count: bar.advance(task, count),
        )
    columns = zip(result.nats, result.standard_error, result.num_tokens, result.nfe, strict=True)
    found = {r.index: column for r, column in zip(scored, columns, strict=True)}
    return [_score(record, number, len(records), found) for number, record in enumerate(records)]


def _batches(readings: list[_Reading], batch_size: int) -> Iterator[Batch]:
    """Cut readings that are sorted by length into batches of one length."""
    for _, group in groupby(readings, key=lambda r: len(r.tokens)):
        alike = list(group)
        for first in range(0, len(alike), batch_size):
            part = alike[first : first + batch_size]
            yield Batch(
                torch.from_numpy(np.stack([r.tokens for r in part]).astype(np.int64)),
                torch.from_numpy(np.stack([r.known for r in part])),
                torch.tensor([r.index for r in part]),
            )


def _score(record: Record, number: int, num_records: int, found: dict[int, tuple]) -> Score:
    """Average over the readings of a record."""
    places = range(len(record.readings))
    columns = [found.get(place * num_records + number, (0.0, 0.0, 0, 0)) for place in places]
    nats, errors, counted, nfe = (np.array(column) for column in zip(*columns, strict=True))
    error = float(np.sqrt((errors**2).sum()) / len(errors))
    length = len(record.readings[0])
    return Score(record.name, length, float(nats.mean()), error, int(counted[0]), int(nfe.sum()))


def format_scores(scores: Sequence[Score], unit: str) -> str:
    """Spell the table, tab-separated, with a line of headings.

    Args:
        scores: The lines, in order.
        unit: What a token is called, e.g. ``base``.
    """
    text = io.StringIO()
    table = csv.writer(text, delimiter="\t", lineterminator="\n")
    table.writerow(("record", "length", "nats", f"bits/{unit}", "standard_error", "counted", "nfe"))
    for s in scores:
        numbers = (f"{s.nats:.6f}", f"{s.bits_per_token:.6f}", f"{s.standard_error:.6f}")
        table.writerow((s.record, s.length, *numbers, s.counted, s.nfe))
    return text.getvalue()

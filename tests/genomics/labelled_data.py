"""Hand-written files of labelled sequences."""

import gzip
from pathlib import Path

import numpy as np

from genomics.finetune.labelled import Labelled, LabelledTask, Row
from genomics.finetune.tasks import Reading, find_tasks, load_tasks
from genomics.sequence.alphabet import decode, encode
from genomics.sequence.intervals import Interval

HEADER = "id,region,start,end,strand\n"
#         0123456789
GENOME = "AACCGGTTAC"


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


def letters(rows: list[Row]) -> list[tuple[str, str]]:
    return [(decode(row.ids), row.label) for row in rows]


def spelt(data: Labelled) -> list[tuple[str, int]]:
    return [(decode(ids), int(label)) for ids, label in zip(data.ids, data.labels, strict=True)]


def data(*sequences: str, at: list[Interval] | None = None) -> Labelled:
    labels = np.zeros(len(sequences), dtype=np.int64)
    return Labelled(tuple(map(encode, sequences)), labels, None if at is None else tuple(at))


def load(path: Path, fasta: Path | None = None) -> LabelledTask:
    (task,) = load_tasks(find_tasks(path), Reading(fasta))
    return task


def interval_task(folder: Path, train: str = "", test: str = "") -> Path:
    write(folder / "train/neg.csv.gz", HEADER + (train or "a,chr1,0,3,+\n"))
    write(folder / "train/pos.csv.gz", HEADER + "b,chr1,4,7,-\n")
    write(folder / "test/neg.csv.gz", HEADER + (test or "c,chr1,7,9,\n"))
    write(folder / "test/pos.csv.gz", HEADER + "d,chr2,0,2,-\n")
    return folder

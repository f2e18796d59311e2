"""Tokenising a corpus with one process and with several.

Each side does what a run does at its first start, beginning with Python: it reads the files,
distributes blocks, encodes them and writes the shards. The shards of all sides are compared byte by
byte before anything is timed. The corpus is a text repeated to ``--characters``, with a number at
the start of each line so that no two lines are equal. Run ``python -m benchmarks.tokenising``.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from benchmarks.common import (
    Ratio,
    Side,
    begin,
    interleave,
    make_parser,
    positive,
    print_table,
    refuse,
    write_json,
)
from benchmarks.prepare_corpus import BYTES
from text.corpora import Reading, read_documents

_DATA = Path(os.environ.get("SEQDIFF_DATA", "."))


def repeat_text(source: Path, target: Path, characters: int) -> int:
    """Write the lines of a text repeatedly, numbered, and return the bytes written."""
    lines = list(read_documents(source, Reading("line")))
    written = 0
    with target.open("w", encoding="utf-8", newline="") as stream:
        for number in count():
            written += stream.write(f"{number} {lines[number % len(lines)]}\n")
            if written >= characters:
                break
    return target.stat().st_size


@dataclass(frozen=True)
class Preparation:
    """One side: prepares a corpus in a cache of its own."""

    corpus: Path
    vocabulary: str
    processes: int
    cache: Path

    def __call__(self) -> None:
        """Prepare the corpus from scratch.

        Raises:
            SystemExit: If the process fails, with its message.
        """
        shutil.rmtree(self.cache / "text", ignore_errors=True)
        given = (str(self.corpus), self.vocabulary, str(self.processes))
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.prepare_corpus", *given],
            cwd=Path(__file__).parents[1],
            env={**os.environ, "SEQDIFF_CACHE": str(self.cache)},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
            raise SystemExit(f"tokenising: {said[-1]}")

    def digests(self) -> dict[str, str]:
        """Return a digest of each shard."""
        return {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted((self.cache / "text").rglob("*.shard"))
        }


def require_same_shards(sides: Sequence[Preparation]) -> int:
    """Prepare once on every side, compare, and return the number of shards.

    Raises:
        SystemExit: If the shards of a side differ from those of the first.
    """
    for side in sides:
        side()
    first, *others = sides
    for side in others:
        if side.digests() != first.digests():
            raise SystemExit(
                f"{side.processes} processes made other shards than {first.processes}; "
                "nothing was timed"
            )
    return len(first.digests())


def main(arguments: list[str] | None = None) -> None:
    """Print a line per number of processes and write them as JSON if a path is given."""
    parser = make_parser(__doc__)
    parser.add_argument("--text", type=Path, default=_DATA / "text" / "wap.train.txt.gz")
    gpt2 = _DATA / "tokenizers" / "gpt2"
    parser.add_argument(
        "--vocabulary", default=str(gpt2), help=f"folder of GPT-2's files, or {BYTES} for bytes"
    )
    parser.add_argument("--characters", type=positive, default=64_000_000)
    parser.add_argument("--processes", type=positive, nargs="+", default=[1, 2, 4])
    options = parser.parse_args(arguments)
    if not options.text.is_file():
        refuse(f"tokenising: --text must be a file, got {options.text}; set SEQDIFF_DATA")
    described = begin()
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder) / "corpus.txt"
        size = repeat_text(options.text, corpus, options.characters)
        sides = [
            Preparation(corpus, options.vocabulary, number, Path(folder) / str(number))
            for number in options.processes
        ]
        shards = require_same_shards(sides)
        seconds = interleave([Side(str(side.processes), side) for side in sides], options.pairs)
    one = str(options.processes[0])
    rows, results = [], []
    for number in map(str, options.processes):
        ratio = Ratio(seconds[number], seconds[one])
        speed = size / ratio.seconds
        rows.append((number, f"{ratio.seconds:.1f}", f"{speed / 1e6:.1f}", str(ratio)))
        results.append({"processes": int(number), "bytes_per_second": speed, **ratio.record()})
    print(f"{size / 1e6:.0f} MB, {shards} shards")
    print_table(("processes", "s", "MB/s", f"speed-up over {one} (over pairs)"), rows)
    settings = {"text": options.text.name, "bytes": size, "shards": shards}
    settings |= {"vocabulary": Path(options.vocabulary).name, "pairs": options.pairs}
    write_json(options.json, "tokenising", described, settings, results)


if __name__ == "__main__":
    main()

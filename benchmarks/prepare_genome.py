"""Peak memory and speed of preparing a genome, at several sizes.

For each size the benchmark writes a genome of random bases in twelve records, with stretches of N
and lines of 60. Each stage runs in a new process and uses what the stages before it have cached:
``encode`` encodes the FASTA file, ``windows`` chooses the windows and splits, and ``train`` takes
two steps of ``configs/experiment/genomics/fasta.yaml``. The memory is the largest resident set of
the process (VmHWM), which includes about 240 MB of Python and libraries, and the pages of the
genome that are mapped. Run ``python -m benchmarks.prepare_genome``. It needs two bytes of disk
space per base.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.common import begin, make_parser, positive, print_table, refuse, write_json
from benchmarks.peak_memory import STATUS, status

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "configs" / "experiment" / "genomics" / "fasta.yaml"
RECORDS, LINE, LENGTH, STRIDE = 12, 60, 1024, 256
TARGET = 1_000_000_000
_CHUNK_LINES = 100_000


def write_genome(path: Path, bases: int) -> int:
    """Write random bases in both cases, a tenth of the chunks with N; return their number.

    Records have whole lines of equal number, so the number may differ from ``bases``.
    """
    generator = np.random.default_rng(0)
    letters = np.frombuffer(b"ACGTacgt", np.uint8)
    lines = max(1, bases // RECORDS // LINE)
    with path.open("wb") as stream:
        for record in range(RECORDS):
            stream.write(f">chr{record + 1}\n".encode())
            for first in range(0, lines, _CHUNK_LINES):
                count = min(_CHUNK_LINES, lines - first)
                text = np.full((count, LINE + 1), ord("\n"), dtype=np.uint8)
                text[:, :LINE] = letters[generator.integers(0, 8, (count, LINE), dtype=np.uint8)]
                if generator.random() < 0.1:
                    text[: count // 2, :LINE] = ord("N")
                stream.write(text.tobytes())
    return RECORDS * lines * LINE


def encode(fasta: Path) -> None:
    """Encode the file into the cache."""
    from genomics.io import load_genome

    load_genome(fasta)


def windows(fasta: Path) -> None:
    """Choose the windows and splits of the shipped configuration."""
    from genomics.data import FastaDataModule

    FastaDataModule(fasta, LENGTH, stride=STRIDE).prepare()


def train(fasta: Path) -> None:
    """Take two training steps."""
    from seqdiff.cli.app import main as seqdiff

    with tempfile.TemporaryDirectory() as folder:
        given = [f"--data.fasta={fasta}", f"--output={folder}/run", "--trainer.max_steps=2"]
        code = seqdiff(["train", str(CONFIG), *given, "--trainer.accelerator=cpu"])
    if code:
        raise SystemExit(code)


STAGES: dict[str, Callable[[Path], None]] = {"encode": encode, "windows": windows, "train": train}


def measure(stage: str, fasta: Path) -> dict[str, float]:
    """Run a stage in a new process.

    Returns:
        Its seconds without the start of Python, and its peak memory in bytes.

    Raises:
        SystemExit: If the process fails, with its message.
    """
    done = subprocess.run(
        [sys.executable, "-m", __spec__.name, "--run", stage, str(fasta)],
        cwd=ROOT,
        env={**os.environ, "SEQDIFF_CACHE": str(fasta.parent / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise SystemExit(f"prepare_genome: {stage}: {said[-1]}")
    return json.loads(done.stdout.splitlines()[-1])


def main(arguments: list[str] | None = None) -> None:
    """Print a line per size and stage and write them as JSON if a path is given."""
    parser = make_parser(__doc__)
    parser.add_argument("--bases", type=positive, nargs="+", default=[300_000_000, 1_200_000_000])
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=list(STAGES))
    parser.add_argument("--folder", type=Path, help="where to write the genomes and their cache")
    options = parser.parse_args(arguments)
    if not STATUS.exists():
        refuse("prepare_genome reads /proc/self/status, which only Linux has")
    described = begin()
    rows, results = [], []
    for wanted in options.bases:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            fasta = Path(folder) / "genome.fa"
            bases = write_genome(fasta, wanted)
            for stage in options.stages:
                found = measure(stage, fasta)
                speed = bases / found["seconds"]
                peak = f"{found['peak_bytes'] / 1e6:.0f}"
                rows.append((f"{bases:,}", stage, f"{found['seconds']:.1f}", peak))
                rows[-1] += (f"{speed / 1e6:.0f}" if stage == "encode" else "",)
                results.append({"bases": bases, "stage": stage, **found})
                if stage == "encode":
                    results[-1]["bases_per_second"] = speed
    print_table(("bases", "stage", "s", "peak MB", "M bases/s"), rows)
    worst = max(result["peak_bytes"] for result in results)
    print(f"largest peak {worst / 1e6:.0f} MB, target {TARGET / 1e6:.0f} MB")
    settings = {"records": RECORDS, "length": LENGTH, "stride": STRIDE}
    write_json(options.json, "prepare_genome", described, settings, results)


def _run(stage: str, fasta: str) -> None:
    """Run a stage in this process and print its measurements as the last line."""
    began = time.perf_counter()
    STAGES[stage](Path(fasta))
    seconds = time.perf_counter() - began
    print(json.dumps({"seconds": seconds, "peak_bytes": status("VmHWM")}))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        _run(*sys.argv[2:])
    else:
        main()

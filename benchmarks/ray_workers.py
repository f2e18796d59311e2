"""``seqdiff variants`` on two workers of Ray, compared with one.

Both sides run the same command on random SNVs of a random genome with a network of random weights,
alternating, each worker with one thread. The whole command is timed, with its start and that of
Ray. The table must be that of the command without Ray, byte for byte. Run
``python -m benchmarks.ray_workers`` on an idle machine with at least two cores.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.common import (
    Ratio,
    Side,
    begin,
    interleave,
    make_parser,
    positive,
    print_table,
    write_json,
)
from genomics.io import write_fasta
from genomics.sequence import BASES, decode

_ROOT = Path(__file__).parents[1]
_CONFIG = _ROOT / "configs" / "experiment" / "genomics" / "demo.yaml"
_HEAD = "##fileformat=VCFv4.2\n#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO\n"


def call(*words: str) -> None:
    """Run a command of seqdiff in a process with one thread.

    Raises:
        SystemExit: If it fails.
    """
    command = [sys.executable, "-m", "seqdiff.cli", *words]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=_ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"seqdiff {words[0]} failed: {done.stderr}")


def build(folder: Path, rows: int, window: int, d_model: int, n_layer: int) -> list[str]:
    """Make an untrained run, a genome and its variants, and return the command that scores them."""
    sizes = [f"--data.length={window}", "--data.num_train=32", "--trainer.max_steps=0"]
    sizes += [f"--backbone.d_model={d_model}", f"--backbone.n_layer={n_layer}"]
    call("train", str(_CONFIG), f"--output={folder / 'run'}", *sizes)
    genome = decode(np.random.default_rng(0).integers(0, len(BASES), rows, dtype=np.uint8))
    write_fasta(folder / "genome.fa", ["random"], [genome])
    other = dict(zip(BASES, BASES[1:] + BASES[:1], strict=True))
    lines = (
        f"random\t{place}\t.\t{base}\t{other[base]}\t.\t.\t.\n"
        for place, base in enumerate(genome, start=1)
    )
    (folder / "all.vcf").write_text(_HEAD + "".join(lines))
    files = [f"--vcf={folder / 'all.vcf'}", f"--fasta={folder / 'genome.fa'}"]
    return ["variants", str(folder / "run"), *files, "--score=marginal"]


def score(command: list[str], out: Path, wanted: Path, workers: int) -> None:
    """Run the command on workers, and compare its table.

    Raises:
        SystemExit: If it differs from that of one process.
    """
    call(*command, f"--out={out}", "--engine=ray", f"--num-workers={workers}")
    if out.read_bytes() != wanted.read_bytes():
        raise SystemExit(f"{workers} workers and one process differ; nothing is reported")


def main(arguments: list[str] | None = None) -> None:
    """Print the table and write it as JSON if a path is given."""
    parser = make_parser(__doc__)
    sizes = (("rows", 10_000), ("window", 1024), ("d_model", 118), ("n_layer", 4))
    for flag, default in sizes:
        parser.add_argument(f"--{flag}", type=positive, default=default)
    options = parser.parse_args(arguments)
    described = begin()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = build(folder, *(getattr(options, flag) for flag, _ in sizes))
        wanted = folder / "wanted.tsv"
        call(*command, f"--out={wanted}")
        works: list[Callable[[], None]] = [
            partial(score, command, folder / f"{workers}.tsv", wanted, workers)
            for workers in (2, 1)
        ]
        sides = [Side("two", works[0]), Side("one", works[1])]
        seconds = interleave(sides, options.pairs)
    ratio = Ratio(seconds["two"], seconds["one"])
    two, one = (options.rows / each for each in (ratio.seconds, ratio.their_seconds))
    print_table(
        ("command", "rows/s, two workers", "one worker", "ratio (over pairs)"),
        [("variants", f"{two:.1f}", f"{one:.1f}", str(ratio))],
    )
    load = os.getloadavg()[0]
    print(f"load average {described['load_average']} before, {load} after")
    settings = {key: value for key, value in vars(options).items() if key != "json"}
    results = {
        "rows_per_second": two,
        "their_rows_per_second": one,
        "load_average_after": load,
        **ratio.record(),
    }
    write_json(options.json, "ray_workers", described, settings, results)


if __name__ == "__main__":
    main()

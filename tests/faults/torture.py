"""Commands with damaged files, and commands that are killed: ``python -m tests.faults.torture``.

Each case runs the command line in a forked process. A damaged file must give a result, or an error
of one line and exit code 2 with nothing written. A command that was killed must give, when it is
called again, the result of an undisturbed one, bit for bit. The seed of a case determines it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from genomics.io import write_fasta
from seqdiff.backbones import Caduceus
from seqdiff.cli.app import main as seqdiff_main

EXPERIMENTS = Path(__file__).parents[2] / "configs" / "experiment"
_MEMORY = 6 * 2**30  # more than any sound case needs, in bytes of address space
_SECONDS = 120.0
_TINY = (
    "--trainer.enable_progress_bar=false --backbone.d_model=8 --backbone.n_layer=1 "
    "--backbone.d_state=4"
)
_ALONE = "--experts=null"
_TABLE = f"train {EXPERIMENTS}/genomics/design.yaml --data.signals=[value] {_TINY}"
_FASTA = f"train {EXPERIMENTS}/genomics/fasta.yaml --data.length=16 {_TINY} {_ALONE}"
_TEXT = f"train {EXPERIMENTS}/text/bytes.yaml --data.length=16 {_TINY} {_ALONE}"
_NOTHING = "--trainer.max_steps=0 --output=out"  # for data that is read to describe the run
_STEP = (
    "--trainer.max_steps=1 --trainer.val_check_interval=null --data.batch_size=2 "
    "--checkpoint_every_n_steps=1 --output=out"
)


@dataclass(frozen=True)
class Reader:
    """A file that a command reads.

    Attributes:
        file: The file to damage.
        command: The command; it writes to paths whose names begin with ``out``.
    """

    file: str
    command: str


READERS = {
    "FASTA": Reader("a.fa", "score RUN a.fa --evaluations 2 --out out.tsv"),
    "FASTA, gzip": Reader("a.fa.gz", "score RUN a.fa.gz --evaluations 2 --out out.tsv"),
    "FASTA, genome": Reader("g.fa", f"{_FASTA} --data.fasta=g.fa {_STEP}"),
    "FASTA, templates": Reader("t.fa", "sample RUN --infill t.fa --seed 0 --out out.fa"),
    "BED": Reader("a.bed", f"{_FASTA} --data.fasta=g.fa --data.bed=a.bed {_STEP}"),
    "VCF": Reader("a.vcf", "variants RUN --vcf a.vcf --fasta a.fa --score marginal --out out.tsv"),
    "CSV": Reader("a.csv", f"{_TABLE} --data.table=a.csv {_NOTHING}"),
    "TSV of values": Reader("w.tsv", "sample SIGNALS --signal-file w.tsv --seed 0 --out out.fa"),
    "Parquet": Reader("a.parquet", f"{_TABLE} --data.table=a.parquet {_NOTHING}"),
    "npz": Reader("a.npz", f"{_TABLE} --data.table=a.npz {_NOTHING}"),
    "npz, trace": Reader("steps.npz", "plot trace steps.npz --out out.png"),
    "motifs": Reader(
        "m.jaspar",
        "report RUN --reference g.fa --samples s.fa --trace steps.npz --motifs m.jaspar "
        "--out out.html",
    ),
    "JSON Lines": Reader("a.jsonl", "score TEXT --jsonl a.jsonl --evaluations 2 --out out.tsv"),
    "text": Reader("a.txt", "score TEXT --text a.txt --evaluations 2 --out out.tsv"),
    "tokenizer": Reader(
        "words/tokenizer.json",
        f"{_TEXT} --data.train=a.txt --data.tokenizer=text.tokenizers.JSONTokenizer "
        f"--data.tokenizer.vocabulary=words {_NOTHING}",
    ),
    "YAML": Reader("a.yaml", f"train a.yaml {_NOTHING}"),
    "YAML, run": Reader("RUN/run.yaml", "sample RUN --num 1 --length 12 --seed 0 --out out.fa"),
    "safetensors": Reader(
        "RUN/model.safetensors", "sample RUN --num 1 --length 12 --seed 0 --out out.fa"
    ),
    "checkpoint": Reader("RUN/last.ckpt", "train --resume RUN --trainer.max_steps=3"),
    "metrics": Reader("RUN/metrics.csv", "train --resume RUN --trainer.max_steps=3"),
    "hub, config": Reader(
        "HUB/config.json", "sample HUB --num 1 --length 12 --seed 0 --out out.fa"
    ),
    "hub, weights": Reader(
        "HUB/model.safetensors", "sample HUB --num 1 --length 12 --seed 0 --out out.fa"
    ),
}


def build_world(folder: Path) -> None:
    """Write small runs and one sound file for each reader.

    Args:
        folder: An empty folder.
    """
    with chdir(folder):
        _write_world()


def _write_world() -> None:
    draw = random.Random(0)

    def bases(length: int) -> str:
        return "".join(draw.choices("ACGT", k=length))

    rows = [bases(16) for _ in range(60)]
    write_fasta(Path("a.fa"), ["a", "b"], [bases(24), bases(17)])
    Path("a.fa.gz").write_bytes(_gzip(Path("a.fa").read_bytes()))
    write_fasta(Path("g.fa"), ["chr1", "chr2"], [bases(1500), bases(900)])
    write_fasta(Path("t.fa"), ["one", "two"], ["ACGTNNNNACGT", "NNNNRYACNNNN"])
    write_fasta(Path("s.fa"), [f"s{i}" for i in range(10)], [bases(40) for _ in range(10)])
    Path("a.bed").write_text("chr1\t0\t700\ttrain\nchr1\t700\t1100\tvalid\nchr2\t0\t600\ttest\n")
    header = "##fileformat=VCFv4.2\n#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO\n"
    first = Path("a.fa").read_text().splitlines()[1]
    Path("a.vcf").write_text(header + f"a\t5\trs1\t{first[4]}\tA,C\t.\t.\t.\n")
    frame = pd.DataFrame({"sequence": rows, "value": [draw.gauss(0, 1) for _ in rows]})
    frame.to_csv("a.csv", index=False)
    frame.to_parquet("a.parquet")
    Path("w.tsv").write_text("name\tvalue\none\t0.5\ntwo\tNA\n")
    one_hot = np.eye(4, dtype=np.float32)[np.array([["ACGT".index(b) for b in r] for r in rows])]
    np.savez("a.npz", X_train=one_hot[:40], y_train=frame.value.to_numpy()[:40, None])
    lines = ["A [ 4 0 0 9 ]", "C [ 0 9 0 0 ]", "G [ 0 0 9 0 ]", "T [ 5 0 0 0 ]"]
    Path("m.jaspar").write_text(">MA1 box\n" + "\n".join(lines) + "\n")
    words = [" ".join(draw.choices("the a dog cat sees runs".split(), k=8)) for _ in range(80)]
    Path("a.txt").write_text("\n".join(words) + "\n")
    Path("a.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in words[:3]))
    _write_words(Path("words"))
    Path("a.yaml").write_text(
        f"base: {EXPERIMENTS}/genomics/demo.yaml\noutput: out\ndata:\n  class_path: "
        "genomics.data.SyntheticDataModule\n  init_args: {length: 16, num_train: 32}\n"
        "backbone:\n  class_path: seqdiff.backbones.Caduceus\n  init_args: &sizes\n"
        "    d_model: 8\n    n_layer: 1\n"
    )
    synthetic = f"train {EXPERIMENTS}/genomics/demo.yaml --data.length=16 --data.num_train=64"
    steps = "--trainer.max_steps=2 --trainer.log_every_n_steps=1 --data.batch_size=4"
    for command in (
        f"{synthetic} {_TINY} {steps} --output=RUN",
        f"{_TABLE} --data.table=a.csv {steps} --output=SIGNALS",
        f"{_TEXT} --data.train=a.txt {steps} --output=TEXT",
        "sample RUN --num 2 --length 12 --seed 0 --trace steps.npz --out unused.fa",
    ):
        _check(seqdiff_main(command.split()) == 0, f"the world needs: {command}")
    torch.manual_seed(0)
    sizes = {"num_embeddings": 12, "num_logits": 12, "d_state": 4}
    complement = (0, 1, 2, 3, 4, 5, 6, 10, 9, 8, 7, 11)
    Caduceus(6, 2, complement=complement, variant="ps", **sizes).to_hub(Path("HUB"))


def _gzip(content: bytes) -> bytes:
    packer = zlib.compressobj(wbits=31)
    return packer.compress(content) + packer.flush()


def _write_words(folder: Path) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    folder.mkdir()
    words = ["[UNK]", "the", "a", "dog", "cat", "sees", "runs"]
    made = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    made.pre_tokenizer = Whitespace()
    made.save(str(folder / "tokenizer.json"))


_WORDS = (
    *(b"", b"0", b"-1", b"1e999", b"nan", b"NaN", b"inf", b"null", b"99999999999999999999"),
    *(b"\x00", b"\n", b"\r\n", b"\t", b" ", b",", b"{", b"[", b'"', b":", b"&a *a", b">", b"#"),
    *(b"\xff\xfe", b"\xef\xbb\xbf", b"\x1b[2J", b"=1+1", "\u202e".encode(), b"[" * 300),
)


def damage(content: bytes, draw: random.Random) -> bytes:
    """Change a file in one to three ways.

    Args:
        content: The sound file.
        draw: Source of randomness.
    """
    for _ in range(draw.choice((1, 1, 2, 3))):
        content = draw.choice(_DAMAGES)(content, draw)
    return content


def _flip(content: bytes, draw: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(draw.choice((1, 1, 4, 32)) if changed else 0):
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def _cut(content: bytes, draw: random.Random) -> bytes:
    return content[: draw.randrange(len(content) + 1)]


def _remove(content: bytes, draw: random.Random) -> bytes:
    start = draw.randrange(len(content) + 1)
    return content[:start] + content[start + draw.choice((1, 2, 8, 64)) :]


def _insert(content: bytes, draw: random.Random) -> bytes:
    place = draw.randrange(len(content) + 1)
    words = (draw.choice(_WORDS), draw.randbytes(draw.choice((1, 8, 64))))
    return content[:place] + draw.choice(words) + content[place:]


def _repeat(content: bytes, draw: random.Random) -> bytes:
    start = draw.randrange(len(content) + 1)
    part = content[start : start + draw.choice((1, 16, 256))]
    return content[:start] + part * draw.choice((2, 5)) + content[start:]


def _swap_lines(content: bytes, draw: random.Random) -> bytes:
    lines = content.split(b"\n")
    draw.shuffle(lines)
    return b"\n".join(lines)


def _replace_word(content: bytes, draw: random.Random) -> bytes:
    between = draw.choice((b" ", b",", b"\t"))
    words = content.split(between)
    words[draw.randrange(len(words))] = draw.choice(_WORDS)
    return between.join(words)


def _empty(content: bytes, draw: random.Random) -> bytes:
    del content
    return draw.choice((b"", b"\n", b"\x00" * 512))


_DAMAGES: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    *(_flip, _flip, _cut, _remove, _insert, _insert, _repeat, _swap_lines, _replace_word),
    _empty,
)


@dataclass(frozen=True)
class Outcome:
    """How a process ended.

    Attributes:
        code: Exit code; -9 after a kill.
        output: Standard output and standard error.
        hung: Whether it was killed because its time was over.
    """

    code: int
    output: str
    hung: bool = False


def run(command: str, folder: Path, *, kill_after: float | None = None) -> Outcome:
    """Run a command in a forked process.

    Args:
        command: Arguments of seqdiff.
        folder: Its working folder.
        kill_after: Seconds after which it is killed; ``None`` lets it end.
    """
    log = folder.parent / f"{folder.name}.log"
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        code = 70
        try:
            os.chdir(folder)
            target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(target, 1)
            os.dup2(target, 2)
            sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
            sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
            used = _address_space()
            resource.setrlimit(resource.RLIMIT_AS, (used + _MEMORY, used + _MEMORY))
            code = seqdiff_main(command.split())
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    ends = time.monotonic() + (_SECONDS if kill_after is None else kill_after)
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            hung = False
            break
        if time.monotonic() > ends:
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
            hung = kill_after is None
            break
        time.sleep(0.002)
    output = log.read_text(errors="replace") if log.exists() else ""
    return Outcome(os.waitstatus_to_exitcode(status), output, hung)


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _files(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def fuzz(world: Path, kind: str, seed: int) -> str:
    """Damage a file and run the command that reads it.

    Args:
        world: Folder of ``build_world``.
        kind: Key of ``READERS``.
        seed: Seed of the damage.

    Returns:
        ``read`` or ``refused``.

    Raises:
        AssertionError: If the command fails in another way.
    """
    reader, draw = READERS[kind], random.Random(f"{kind} {seed}")
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / "case"
        shutil.copytree(world, folder)
        path = folder / reader.file
        path.write_bytes(damage(path.read_bytes(), draw))
        before = _files(folder)
        found = run(reader.command, folder)
        after = _files(folder)
    where = f"{kind}, seed {seed}: {reader.command}\n{found.output}"
    _check(not found.hung, f"it took more than {_SECONDS} s: {where}")
    _check("Traceback" not in found.output, where)
    _check(found.code in (0, 2), f"exit code {found.code}: {where}")
    if found.code == 0:
        return "read"
    errors = [line for line in found.output.splitlines() if line.startswith("seqdiff: error: ")]
    _check(len(errors) == 1, f"{len(errors)} lines of errors: {where}")
    _check(found.output.rstrip("\n").endswith(errors[0]), f"text after the error: {where}")
    changed = sorted(name for name in after if after[name] != before.get(name) and _ours(name))
    _check(not changed, f"it wrote {changed}: {where}")
    return "refused"


def _ours(name: str) -> bool:
    """Whether a file is an output; an index beside a FASTA file is a cache, and a lock is empty."""
    return not name.endswith((".fai", ".gzi", ".lock"))


KILLED = {
    "train": "train CONFIG --data.num_train=64 --data.length=16 --trainer.max_steps=40 "
    "--checkpoint_every_n_steps=4 --data.batch_size=4 --output=out",
    "sample": "sample RUN --num 300 --length 16 --seed 0 --out out.fa",
    "score": "score RUN many.fa --evaluations 8 --out out.tsv",
    "variants": "variants RUN --vcf many.vcf --fasta g.fa --evaluations 8 --out out.tsv",
    "embed": "embed RUN --fasta many.fa --out out.npz",
    "ism": "ism RUN --fasta few.fa --out out.npz",
    "evaluate": "evaluate RUN --evaluations 8 --json out.json",
    "report": "report RUN --samples s.fa --reference g.fa --seed 0 --out out.html",
    "design": "design RUN --num 2 --candidates 20 --seed 0 --out out",
}
RESULTS = {
    "train": "out/model.safetensors",
    "sample": "out.fa",
    "embed": "out.npz",
    "ism": "out.npz",
    "evaluate": "out.json",
    "report": "out.html",
    "design": "out/designs.tsv",
}


def build_jobs(world: Path) -> dict[str, tuple[bytes, float]]:
    """Write larger inputs, and run each command of ``KILLED`` once.

    Returns:
        The result of each command, and its seconds.
    """
    with chdir(world):
        _write_inputs()
    found = {}
    for name in KILLED:
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made) / "case"
            shutil.copytree(world, folder)
            start = time.monotonic()
            done = run(_job(name), folder)
            seconds = time.monotonic() - start
            _check(done.code == 0, f"{name}: {done.output}")
            found[name] = (_result(name, folder), seconds)
    return found


def _write_inputs() -> None:
    draw = random.Random(1)
    rows = ["".join(draw.choices("ACGT", k=16)) for _ in range(200)]
    names = [f"r{i}" for i in range(200)]
    write_fasta(Path("many.fa"), names, rows)
    write_fasta(Path("few.fa"), names[:20], rows[:20])
    genome = "".join(Path("g.fa").read_text().split(">chr2")[0].splitlines()[1:])
    lines = [f"chr1\t{i + 1}\t.\t{genome[i]}\tA,C,G,T\t.\t.\t.\n" for i in range(20, 60)]
    header = "##fileformat=VCFv4.2\n#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO\n"
    Path("many.vcf").write_text(header + "".join(lines))


def _job(name: str) -> str:
    tiny = f"{EXPERIMENTS}/genomics/demo.yaml {_TINY}"
    return KILLED[name].replace("CONFIG", tiny)


def _result(name: str, folder: Path) -> bytes:
    return (folder / RESULTS.get(name, "out.tsv")).read_bytes()


def kill(world: Path, name: str, seed: int, expected: bytes, seconds: float) -> int:
    """Kill a command once or several times, and compare what it writes in the end.

    Args:
        world: Folder of ``build_world`` and ``build_jobs``.
        name: Key of ``KILLED``.
        seed: Seed of the times.
        expected: Result of an undisturbed command.
        seconds: Time that it took.

    Returns:
        The number of kills before it ended.

    Raises:
        AssertionError: If the result differs, the command cannot go on, or a temporary file stays.
    """
    draw, kills = random.Random(f"{name} {seed}"), 0
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / "case"
        shutil.copytree(world, folder)
        before = set(_files(folder))
        for _ in range(draw.choice((1, 1, 2, 3))):
            found = run(_job(name), folder, kill_after=draw.random() * seconds)
            if found.code >= 0:
                break
            kills += 1
        if found.code < 0:
            found = run(_job(name), folder)
        where = f"{name}, seed {seed}, {kills} kills: {found.output}"
        _check(found.code == 0, where)
        _check(_result(name, folder) == expected, f"another result: {where}")
        left = [file for file in set(_files(folder)) - before if Path(file).name.startswith(".")]
        _check(not [file for file in left if _ours(file)], f"{left} stay: {where}")
    return kills


def _check(holds: bool, said: str) -> None:
    if not holds:
        raise AssertionError(said)


def main(argv: Sequence[str] | None = None) -> int:
    """Run cases in turn over all readers and commands, and print a table.

    Returns:
        1 if a case failed, else 0.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=int, default=10_000, help="damaged files")
    parser.add_argument("--kills", type=int, default=100, help="killed commands")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first case")
    parser.add_argument("--only", help="one reader or command")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    readers = [name for name in READERS if options.only in (None, name)]
    killed = [name for name in KILLED if options.only in (None, name)]
    counts: Counter[tuple[str, str]] = Counter()
    failures = 0
    with tempfile.TemporaryDirectory() as made:
        world = Path(made) / "world"
        world.mkdir()
        build_world(world)
        jobs = build_jobs(world) if options.kills else {}
        cases: list[tuple[str, Callable[[], str]]] = []
        for number in range(options.cases if readers else 0):
            name, seed = readers[number % len(readers)], options.seed + number // len(readers)
            cases.append((name, lambda n=name, s=seed: fuzz(world, n, s)))
        for number in range(options.kills if killed else 0):
            name, seed = killed[number % len(killed)], options.seed + number // len(killed)
            cases.append(
                (f"{name}, killed", lambda n=name, s=seed: f"{min(kill(world, n, s, *jobs[n]), 1)}")
            )
        start = time.monotonic()
        for number, (name, case) in enumerate(cases):
            try:
                counts[name, case()] += 1
            except AssertionError as error:
                failures += 1
                counts[name, "failed"] += 1
                print(f"FAILED {error}", flush=True)
            if number % 200 == 199:
                rate = (number + 1) / (time.monotonic() - start)
                print(
                    f"{number + 1:,} of {len(cases):,}, {rate:.1f}/s, {failures} failed", flush=True
                )
    names = {"read": "read", "refused": "refused", "0": "ended before", "1": "killed"}
    print(f"{'file or command':24}{'cases':>8}  outcome")
    for name in dict.fromkeys(name for name, _ in cases):
        own = {outcome: count for (key, outcome), count in counts.items() if key == name}
        said = ", ".join(f"{count} {names.get(outcome, outcome)}" for outcome, count in own.items())
        print(f"{name:24}{sum(own.values()):>8,}  {said}")
    print(f"seeds from {options.seed}: {len(cases):,} cases, {failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

"""Commands continue after an interruption, and write the same bytes on workers of Ray."""

import gc
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from genomics.io.fasta import write_fasta
from genomics.variants import effects, table
from seqdiff import tables
from seqdiff.cli.app import main
from seqdiff.data import Blanks
from seqdiff.run import drawing, load, scoring
from seqdiff.run import engine as engines
from seqdiff.run.engine import Engine, FinishedShards, RayEngine, Shard
from tests.integration.test_variants import CHROM, LINES, train, vcf
from tests.integration.toy_domain import write_ring

RAY = ("--engine", "ray", "--num-workers")


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """Two workers on this machine, shared by all tests here."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray = pytest.importorskip("ray")
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def squares(run: Any, content: tuple[Path, int], progress: Any) -> dict[str, np.ndarray]:
    """Square a number; a file with a reason makes the worker fail or die while it computes."""
    folder, number = content
    with (folder / f"{number}.log").open("a") as log:
        log.write("computed\n")
    for path in (folder / f"{number}.once", folder / f"{number}.always"):
        if path.exists():
            text = path.read_text()
            if path.suffix == ".once":
                path.unlink()
            if text == "die":
                os._exit(1)
            raise ValueError(text)
    return {"square": np.array(number**2), "model": np.array(run.name)}


def ray_engine(folder: Path) -> RayEngine:
    return RayEngine(FinishedShards("score", folder, lambda: {"seed": "0"}), "cpu", 1, None, 2)


def begin(engine: Engine, folder: Path, count: int = 7) -> Iterator[dict[str, np.ndarray]]:
    run: Any = SimpleNamespace(denoiser=torch.nn.Identity(), name="toy")
    shards = (Shard(1, (folder, number)) for number in range(count))
    return engine.map("squaring", squares, run, shards, count)


def compute(engine: Engine, folder: Path, count: int = 7) -> list[int]:
    found = list(begin(engine, folder, count))
    assert all(str(part["model"]) == "toy" for part in found)
    return [int(part["square"]) for part in found]


@pytest.mark.parametrize("content", ["[1]", "{", "[" * 100_000, '"'])
def test_a_damaged_manifest_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / engines.MANIFEST).write_text(content)
    with pytest.raises(ValueError, match=r"manifest.json must describe the command that began"):
        FinishedShards("score", tmp_path, lambda: {"seed": "0"})


def times(folder: Path) -> list[int]:
    """How often each shard was computed."""
    logs = (folder / f"{number}.log" for number in range(7))
    return [len(log.read_text().splitlines()) if log.exists() else 0 for log in logs]


def test_an_interruption_between_shards_says_how_to_continue(tmp_path: Path) -> None:
    """A signal may come while the command writes the result of a shard."""
    (tmp_path / "out.shards").mkdir()
    with (
        pytest.raises(KeyboardInterrupt, match=r"^to continue, repeat the command$"),
        ray_engine(tmp_path / "out.shards"),
    ):
        raise KeyboardInterrupt
    assert (tmp_path / "out.shards").is_dir(), "finished shards are kept"


def local_engine(folder: Path) -> Engine:
    return Engine(FinishedShards("score", folder, lambda: {"seed": "0"}))


@pytest.mark.parametrize("seconds", [0.0, 3600.0])
@pytest.mark.parametrize("kind", [KeyboardInterrupt, OSError])
def test_one_process_continues_where_it_was_interrupted(
    tmp_path: Path, monkeypatch, seconds: float, kind: type
) -> None:
    """Whether results were written after every shard, or only at the interruption."""
    monkeypatch.setattr(engines, "_SECONDS_BETWEEN_SAVES", seconds)
    with pytest.raises(kind), local_engine(tmp_path / "shards") as engine:
        for part in begin(engine, tmp_path):
            if part["square"] == 9:
                raise kind
    finished = 0 if kind is OSError and seconds else 4
    assert times(tmp_path) == [1] * 4 + [0] * 3
    with local_engine(tmp_path / "shards") as engine:
        assert compute(engine, tmp_path) == [n**2 for n in range(7)]
    assert times(tmp_path) == [1] * finished + [2] * (4 - finished) + [1] * 3
    assert not (tmp_path / "shards").exists()


def test_the_end_of_the_context_ends_the_iterator(tmp_path: Path) -> None:
    """So the bar does not wait for the garbage collector."""
    with pytest.raises(OSError, match="full"), local_engine(tmp_path / "shards") as engine:
        results = begin(engine, tmp_path)
        assert int(next(results)["square"]) == 0
        raise OSError("full")
    assert list(results) == []
    assert times(tmp_path) == [1] + [0] * 6


def test_an_iterator_that_is_dropped_ends_at_once(tmp_path: Path) -> None:
    """So its bar and its model do not wait for the garbage collector."""
    ended = []

    def shards() -> Iterator[Shard]:
        try:
            for number in range(7):
                yield Shard(1, (tmp_path, number))
        finally:
            ended.append(True)

    run: Any = SimpleNamespace(denoiser=torch.nn.Identity(), name="toy")
    gc.disable()
    try:
        results = Engine().map("squaring", squares, run, shards(), 7)
        assert int(next(results)["square"]) == 0
        del results
        assert ended
    finally:
        gc.enable()


def test_an_error_at_the_end_of_the_iterator_skips_nothing(tmp_path: Path, monkeypatch) -> None:
    """Results are saved, Ray is shut down, its handler of SIGTERM replaced, and the hint given."""
    called = []

    def fail(*arguments: object) -> None:
        called.append(arguments)
        raise ValueError("no end")

    monkeypatch.setattr(Engine, "_end", fail)
    with pytest.raises(KeyboardInterrupt, match=r"^to continue, repeat the command$"):
        with local_engine(tmp_path / "local") as engine:
            assert int(next(begin(engine, tmp_path))["square"]) == 0
            raise KeyboardInterrupt
    assert FinishedShards("score", tmp_path / "local", lambda: {"seed": "0"}).has(0)
    monkeypatch.setattr(engines, "require_extra", lambda *names: SimpleNamespace(shutdown=fail))
    before, remote = signal.getsignal(signal.SIGTERM), ray_engine(tmp_path / "ray")
    remote._owns_ray, remote._on_term = True, signal.SIG_IGN
    with pytest.raises(KeyboardInterrupt, match=r"^to continue, repeat the command$"):
        with remote:
            raise KeyboardInterrupt
    found = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, before)
    assert len(called) == 3 and found == signal.SIG_IGN


def test_a_short_command_writes_no_shards(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(FinishedShards, "save", lambda self, results: pytest.fail("written"))
    with local_engine(tmp_path / "shards") as engine:
        assert compute(engine, tmp_path) == [n**2 for n in range(7)]
    with (
        pytest.raises(KeyboardInterrupt, match=r"^$"),
        local_engine(tmp_path / "shards"),
    ):
        raise KeyboardInterrupt


def test_wrong_input_leaves_no_shards(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(engines, "_SECONDS_BETWEEN_SAVES", 0.0)
    (tmp_path / "4.always").write_text("score.x must be y, got z")
    with pytest.raises(ValueError, match=r"^score\.x"), local_engine(tmp_path / "shards") as engine:
        compute(engine, tmp_path)
    assert not (tmp_path / "shards").exists()


@pytest.mark.slow
def test_a_worker_that_dies_is_replaced_and_nothing_is_lost_or_doubled(
    cluster: None, tmp_path: Path
) -> None:
    for number in (0, 3, 6):
        (tmp_path / f"{number}.once").write_text("die")
    assert compute(ray_engine(tmp_path / "shards"), tmp_path) == [n**2 for n in range(7)]
    assert times(tmp_path) == [2, 1, 1, 2, 1, 1, 2]


@pytest.mark.slow
def test_errors_are_those_of_the_work_and_finished_shards_are_kept(
    cluster: None, tmp_path: Path
) -> None:
    (tmp_path / "4.once").write_text("score.x must be y, got z")
    (tmp_path / "5.always").write_text("die")  # or it may be finished beside the 4th
    with pytest.raises(ValueError, match=r"^score.x must be y, got z$"):
        compute(ray_engine(tmp_path / "shards"), tmp_path)
    with pytest.raises(OSError, match="must have workers that live, got 3 deaths on shard 5"):
        compute(ray_engine(tmp_path / "shards"), tmp_path)
    (tmp_path / "5.always").unlink()
    before = times(tmp_path)
    kept = {int(path.stem) for path in (tmp_path / "shards").glob("0*.npz")}
    assert len(kept - {4, 5, 6}) >= 3, "all but the one that may have been computed beside the 4th"
    with ray_engine(tmp_path / "shards") as engine:
        assert compute(engine, tmp_path) == [n**2 for n in range(7)]
    after = times(tmp_path)
    assert {number for number in range(7) if before[number] == after[number]} == kept
    assert not (tmp_path / "shards").exists()


def command(run: Path, source: Path, out: Path, *flags: str) -> list[str]:
    return ["score", str(run), str(source), f"--out={out}", "--batch-size=1", *flags]


@pytest.mark.slow
@pytest.mark.usefixtures("toy_writer")
def test_score_is_the_same_on_workers_and_continues(
    cluster: None, trained: Path, rings: Path, tmp_path: Path, fails, monkeypatch
) -> None:
    monkeypatch.setattr(scoring, "_BATCHES_PER_SHARD", 1)
    out, shards = tmp_path / "b.tsv", tmp_path / "b.tsv.shards"
    assert main(command(trained, rings, tmp_path / "a.tsv", "--both_ways")) == 0
    wanted = (tmp_path / "a.tsv").read_bytes()
    for workers in "12":
        assert main(command(trained, rings, out, "--both_ways", *RAY, workers)) == 0
        assert out.read_bytes() == wanted and not shards.exists()
        out.unlink()
    with monkeypatch.context() as patch:
        patch.setattr(engines.shutil, "rmtree", lambda folder, **options: None)
        assert main(command(trained, rings, out, "--both_ways", *RAY, "2")) == 0
    found = sorted(shards.glob("*.npz"))
    assert len(found) == 8, "a shard for each reading with a known symbol"
    kept = {path: path.stat().st_mtime_ns for path in found}
    found[3].unlink()
    message = fails(command(trained, rings, out, "--both_ways", "--seed=1", *RAY, "2"))
    assert "score.out must be continued by the command that began it, got the seed 1, and 0 in" in (
        message
    )
    assert f"start again: rm -r {shards}" in message and not found[3].exists()
    with monkeypatch.context() as patch:
        patch.setattr(engines.shutil, "rmtree", lambda folder, **options: None)
        assert main(command(trained, rings, out, "--both_ways", *RAY, "1")) == 0
    assert [path.stat().st_mtime_ns == kept[path] for path in found] == [True] * 3 + [False] + [
        True
    ] * 4
    assert out.read_bytes() == wanted
    write_ring(rings, ["uv"], ["other"])
    message = fails(command(trained, rings, out, "--both_ways", *RAY, "1"))
    assert "got the file " in message


def test_shards_are_the_batches_of_one_process() -> None:
    tokens = [np.full(length, 1) for length in (3, 5, 3, 3, 5, 3)]
    readings = [
        scoring._Reading(str(number), ids, ids < 9, number, False)
        for number, ids in enumerate(sorted(tokens, key=len))
    ]
    batches = list(scoring._batches(readings, 3))
    assert [len(batch.tokens) for batch in batches] == [3, 1, 2]
    for per_shard, rows in ((1, [3, 1, 2]), (2, [4, 2]), (8, [6])):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(scoring, "_BATCHES_PER_SHARD", per_shard)
            shards = list(scoring._shards(readings, 3))
        assert [shard.rows for shard in shards] == rows
        found = [batch for shard in shards for batch in shard.content]
        for batch, other in zip(batches, found, strict=True):
            assert torch.equal(batch.tokens, other.tokens) and torch.equal(batch.index, other.index)


@pytest.mark.usefixtures("toy_writer")
def test_options_of_engines_are_checked_before_work(
    trained: Path, rings: Path, tmp_path: Path, fails, monkeypatch
) -> None:
    out = tmp_path / "a.tsv"
    said = fails(command(trained, rings, out, "--num-workers", "2"))
    assert "score.num_workers must go with --engine ray, got 2 without; add it" in said
    assert "score.num_workers must be at least 1" in fails(command(trained, rings, out, *RAY, "0"))
    printed = ["score", str(trained), str(rings), *RAY, "1"]
    assert "score.out must be given with --engine ray" in fails(printed)
    message = fails(command(trained, rings, out, *RAY, "1", "--device", "cuda:1"))
    assert "score.device must be cpu or cuda with --engine ray, got 'cuda:1'" in message
    message = fails(command(trained, rings, out, *RAY, "1", "--evaluations=4", "--max-nfe=2"))
    assert "score.max_nfe must be at least 4" in message
    monkeypatch.setitem(sys.modules, "ray", None)
    assert "pip install -e '.[ray]'" in fails(command(trained, rings, out, *RAY, "1"))
    assert not list(tmp_path.glob("a.tsv*"))


@pytest.fixture(scope="module")
def dna(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run on DNA, a genome, its variants, and some records."""
    folder = tmp_path_factory.mktemp("dna")
    train(folder, "--backbone.d_model=8")
    write_fasta(folder / "g.fa", ["c"], [CHROM])
    vcf(folder, LINES)
    write_fasta(folder / "some.fa", list("abcde"), ["ACGTAC", "ACG", "TTGNCA", "GGA", "ACCCCC"])
    write_fasta(folder / "more.fa", ["f"], ["ACCT"])
    return folder


@pytest.mark.parametrize("seed", [["--seed=5"], []])
def test_sample_goes_on_where_it_stopped(
    dna: Path, tmp_path: Path, monkeypatch, capsys, fails, seed: list[str]
) -> None:
    monkeypatch.setattr(engines, "_SECONDS_BETWEEN_SAVES", 0.0)
    monkeypatch.setattr(drawing.secrets, "randbelow", lambda most: 5)
    command = ["sample", str(dna / "run"), "--num=7", "--batch-size=3"]
    whole, out = tmp_path / "whole.fa", tmp_path / "out.fa"
    assert main([*command, "--seed=5", f"--out={whole}"]) == 0
    real, calls = drawing._draw, []

    def draw(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*arguments, **options)

    monkeypatch.setattr(drawing, "_draw", draw)
    capsys.readouterr()
    assert main([*command, *seed, f"--out={out}"]) == 130
    hint = "to continue, repeat the command" + ("" if seed else " with --seed 5")
    assert capsys.readouterr().err.endswith(f"seqdiff: interrupted; {hint}\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.fa.shards", "whole.fa"]
    assert "got the seed 6, and 5 in" in fails([*command, "--seed=6", f"--out={out}"])
    assert main([*command, "--seed=5", f"--out={out}"]) == 0
    assert len(calls) == 4, "only the last batch was missing"
    assert out.read_bytes() == whole.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.fa", "whole.fa"]


def test_samples_are_there_before_the_last_is_drawn(dna: Path, monkeypatch) -> None:
    """In their order, also if they have different lengths; parts bound what waits."""
    monkeypatch.setattr(drawing, "ROWS_PER_PART", 4)
    run = load(dna / "run")
    sampler = drawing.open_sampler(run, None, [])
    lengths = [5, 3, 5, 3, 2, 2, 4, 4]
    real, calls = drawing._draw, []

    def draw(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        return real(*arguments, **options)

    monkeypatch.setattr(drawing, "_draw", draw)
    blanks = Blanks(8, lengths, run.process.unknown_id)
    found, counts = [], []
    for sequence in run.draw(blanks, sampler=sampler, seed=0, batch_size=2):
        found.append(sequence)
        counts.append(len(calls))
    assert [len(sequence) for sequence in found] == lengths
    assert counts == [2, 2, 2, 2, 3, 3, 4, 4]
    monkeypatch.setattr(drawing, "ROWS_PER_PART", 100)
    assert list(run.draw(blanks, sampler=sampler, seed=0, batch_size=8)) == found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "out", "shards"),
    [
        (["variants", "--vcf=v.vcf", "--fasta=g.fa", "--evaluations=2"], "a.tsv", 4),
        (["variants", "--vcf=v.vcf", "--fasta=g.fa", "--score=marginal"], "*.parquet", 4),
        (["score", "some.fa", "more.fa", "--rc=mean", "--batch-size=1"], "part-*.tsv", 12),
        (["ism", "--fasta=some.fa", "--batch-size=2"], "a.npz", 13),
        (["embed", "--fasta=some.fa", "--pooling=none", "--batch-size=2"], "a.npz", 3),
        (["sample", "--num=7", "--seed=0", "--batch-size=3", "--trace=t.npz"], "a.fa", 3),
        (["design", "--candidates=7", "--num=3", "--batch-size=3"], "a", 3),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_every_command_writes_the_same_on_workers(
    cluster: None, dna: Path, words: list[str], out: str, shards: int, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(table, "_CHUNK", 2)
    monkeypatch.setattr(effects, "_BATCHES_PER_SHARD", 1)
    monkeypatch.setattr(scoring, "_BATCHES_PER_SHARD", 1)
    for name, size in (("_ROWS_PER_GROUP", 3), ("ROWS_PER_PART", 3)):
        monkeypatch.setattr(tables, name, size)
    name, *flags = words
    for folder, engine in (("local", []), ("ray", [*RAY, "2"])):
        (tmp_path / folder).mkdir()
        monkeypatch.chdir(dna)
        given = [flag.replace("=t.npz", f"={tmp_path / folder / 't.npz'}") for flag in flags]
        to = f"--out={tmp_path / folder / out}"
        with monkeypatch.context() as patch:
            patch.setattr(engines.shutil, "rmtree", lambda folder, **options: None)
            assert main([name, "run", to, *given, *engine]) == 0
    made = sorted((tmp_path / "ray").rglob("*.npz"))
    assert (
        len([path for path in made if path.parent.name == f"{out.replace('*', '')}.shards"])
        == shards
    )
    wanted = {
        path.relative_to(tmp_path / "local"): path.read_bytes()
        for path in (tmp_path / "local").rglob("*.*")
        if path.is_file()
    }
    assert len(wanted) == {"*.parquet": 3, "part-*.tsv": 2}.get(out, len(wanted) or 1)
    assert wanted == {path: (tmp_path / "ray" / path).read_bytes() for path in wanted}


@pytest.mark.parametrize("kind", [ConnectionError, RuntimeError])
def test_a_cluster_that_is_not_there_is_one_line(
    trained: Path, rings: Path, tmp_path: Path, toy_writer: None, fails, monkeypatch, kind: type
) -> None:
    def init(address: str, **options: object) -> None:
        raise kind(f"nothing at {address}")

    ray = SimpleNamespace(is_initialized=lambda: False, init=init)
    monkeypatch.setattr(engines, "require_extra", lambda *names: ray)
    monkeypatch.setattr(engines, "_knock", lambda address: None)
    out = tmp_path / "a.tsv"
    message = fails(command(trained, rings, out, *RAY, "1", "--address", "host:1"))
    assert "score.address must be a running cluster of Ray, got host:1 (nothing at host:1)" in (
        message
    )
    assert not list(tmp_path.glob("a.tsv*"))


def test_an_address_where_nobody_listens_is_one_line(
    trained: Path, dna: Path, rings: Path, tmp_path: Path, toy_writer: None, fails, monkeypatch
) -> None:
    """Ray itself would try again for minutes."""
    monkeypatch.setattr(pytest.importorskip("ray"), "is_initialized", lambda: False)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]  # bound, but nobody listens
        out = tmp_path / "a.tsv"
        given = command(trained, rings, out, *RAY, "1", "--address", f"127.0.0.1:{port}")
        message = fails(given)
        given = ["variants", str(dna / "run"), f"--vcf={dna / 'v.vcf'}", f"--fasta={dna / 'g.fa'}"]
        given += [f"--out={out}", *RAY, "1", "--address", f"127.0.0.1:{port}"]
        inside = fails(given)  # while the table is being written
    assert f"score.address must be a running cluster of Ray, got 127.0.0.1:{port} (" in message
    assert "error: variants.address must be a running cluster of Ray, got 127.0.0.1" in inside
    assert not list(tmp_path.glob("a.tsv*"))

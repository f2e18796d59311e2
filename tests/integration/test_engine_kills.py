"""A command on workers of Ray, a process of its own, continues after any of its parts is killed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from genomics.io.fasta import write_fasta
from seqdiff.cli.app import main
from tests.integration.test_engine import begin, ray_engine
from tests.integration.test_variants import HEAD, train

ROOT = Path(__file__).parents[2]
SHARDS, ROWS = 12, 256
SWAP = dict(zip("ACGT", "CGTA", strict=True))
pytestmark = pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds processes in /proc")


def words(world: Path, out: Path, *engine: str) -> list[str]:
    flags = ("--score=likelihood", "--evaluations=4", *engine)
    files = (f"--vcf={world / 'v.vcf'}", f"--fasta={world / 'g.fa'}", f"--out={out}")
    return ["variants", str(world / "run"), *files, *flags]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, a genome, variants in twelve shards, and the table of one process."""
    pytest.importorskip("ray")
    folder = tmp_path_factory.mktemp("world")
    train(folder, "--backbone.d_model=8")
    genome = "ACGTTGCAACCGGTTTAACAGT" * 140
    write_fasta(folder / "g.fa", ["c"], [genome])
    sites = enumerate(genome[: SHARDS * ROWS], start=1)
    lines = [f"c\t{at}\t.\t{base}\t{SWAP[base]}\t.\t.\t.\n" for at, base in sites]
    (folder / "v.vcf").write_text(HEAD + "".join(lines))
    assert main(words(folder, folder / "wanted.tsv")) == 0
    return folder


@contextmanager
def started(world: Path, out: Path) -> Iterator[subprocess.Popen[str]]:
    """The command, with two workers."""
    command = words(world, out, "--engine=ray", "--num-workers=2")
    process = subprocess.Popen(
        [sys.executable, "-m", "seqdiff.cli", *command],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()


def below(parent: int) -> dict[int, str]:
    """The living processes that a process has started, in any generation, with their names."""
    parents, names = {}, {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            state, above = (path / "stat").read_text().rpartition(")")[2].split()[:2]
            title = (path / "cmdline").read_bytes()
        except OSError:
            continue
        if state != "Z":
            parents[int(path.name)] = int(above)
            names[int(path.name)] = title.replace(b"\0", b" ").decode().strip()
    found = {parent}
    while more := {pid for pid, above in parents.items() if above in found} - found:
        found |= more
    return {pid: names[pid] for pid in found - {parent}}


def wait_for(
    what: str, done: Callable[[], object], process: subprocess.Popen[str] | None = None
) -> None:
    deadline = time.monotonic() + 120
    while not done():
        alive = process is None or process.poll() is None
        assert alive and time.monotonic() < deadline, f"no {what}"
        time.sleep(0.02)


def finished(out: Path) -> dict[str, int]:
    """The files of finished shards, with their times."""
    folder = out.with_name(out.name + ".shards")
    times = {}
    for path in folder.glob("*.npz"):
        try:
            if not path.name.startswith("."):
                times[path.name] = path.stat().st_mtime_ns
        except FileNotFoundError:  # removed at the end
            continue
    return times


def check_result(world: Path, out: Path, pids: dict[int, str]) -> None:
    assert out.read_bytes() == (world / "wanted.tsv").read_bytes()
    assert [path.name for path in out.parent.iterdir()] == [out.name], "nothing else is left"
    wait_for("end of the processes", lambda: not any(living(pid, pids[pid]) for pid in pids))


def living(pid: int, name: str) -> bool:
    """Whether a process lives and still has the name; its number may have been given again."""
    try:
        path = Path(f"/proc/{pid}")
        if (path / "stat").read_text().rpartition(")")[2].split()[0] == "Z":
            return False
        found = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except OSError:
        return False
    return found.partition(":")[0] == name.partition(":")[0]


@pytest.mark.slow
def test_a_killed_worker_is_replaced(world: Path, tmp_path: Path) -> None:
    out = tmp_path / "a.tsv"
    with started(world, out) as process:
        wait_for("finished shard", lambda: finished(out), process)
        pids = below(process.pid)
        workers = [pid for pid, name in pids.items() if name.startswith("ray::_Worker")]
        assert len(workers) == 2, pids
        os.kill(workers[0], signal.SIGKILL)
        assert len(finished(out)) < SHARDS - 2, "in the middle"
        pids |= below(process.pid)
        said, _ = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert "seqdiff: warning: a worker died and is replaced; shard " in said
    check_result(world, out, pids)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP, signal.SIGTERM])
def test_a_killed_command_continues(world: Path, tmp_path: Path, number: signal.Signals) -> None:
    out = tmp_path / "a.tsv"
    with started(world, out) as process:
        wait_for("finished shards", lambda: len(finished(out)) > 2, process)
        pids = below(process.pid)
        os.kill(process.pid, number)
        if number == signal.SIGKILL:  # Ray's agents notice after a minute; they are idle
            pids = {pid: title for pid, title in pids.items() if "Agent" not in title}
        process.wait(timeout=60)
    if number == signal.SIGKILL:
        assert process.returncode == -number
    else:
        said, _ = process.communicate(timeout=60)
        assert process.returncode == 130, said
        assert said.splitlines()[-1] == "seqdiff: interrupted; to continue, repeat the command"
    kept = finished(out)
    assert 2 < len(kept) < SHARDS and not out.exists()
    wait_for("end of the processes", lambda: not any(living(pid, pids[pid]) for pid in pids))
    seen: dict[str, int] = {}
    with started(world, out) as process:
        while process.poll() is None:
            seen |= finished(out)
            pids |= below(process.pid)
            time.sleep(0.02)
        said, _ = process.communicate()
    assert process.returncode == 0, said
    assert {name: seen[name] for name in kept} == kept, "finished shards are not computed again"
    assert len(seen) > len(kept)
    check_result(world, out, pids)


@pytest.mark.slow
def test_workers_are_stopped_before_ray_is(tmp_path: Path) -> None:
    """Else Ray would start again to stop them, if a signal came while a result was used."""
    ray = pytest.importorskip("ray")
    with (
        pytest.raises(KeyboardInterrupt, match=r"^to continue, repeat the command$"),
        ray_engine(tmp_path / "out.shards") as engine,
    ):
        results = begin(engine, tmp_path)
        assert int(next(results)["square"]) == 0
        raise KeyboardInterrupt
    assert list(results) == []
    assert not ray.is_initialized()

"""Files are complete or absent, under the name that the user gave."""

import errno
import fcntl
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from seqdiff.files import (
    append_text,
    check_apart,
    check_folder,
    check_parent,
    expand_files,
    owning,
    remove_abandoned,
    replacing,
    write_bytes,
)


@contextmanager
def copying(path: Path) -> Iterator[Path]:
    """A broken twin: for a moment the file is half-written."""
    temporary = path.with_name(".temporary")
    yield temporary
    shutil.copyfile(temporary, path)
    temporary.unlink()


def old_file_survives(
    replace: Callable[[Path], AbstractContextManager[Path]], folder: Path
) -> bool:
    """A process that has the old file open, here by a second name, still reads all of it."""
    path, held = folder / "a.txt", folder / "held.txt"
    path.write_text("precious")
    os.link(path, held)
    with replace(path) as temporary:
        temporary.write_text("new")
    assert path.read_text() == "new"
    assert {file.name for file in folder.iterdir()} == {"a.txt", "held.txt"}
    return held.read_text() == "precious"


@pytest.mark.parametrize("replace, survives", [(replacing, True), (copying, False)])
def test_a_file_is_exchanged_and_never_overwritten(replace, survives, tmp_path: Path) -> None:
    assert old_file_survives(replace, tmp_path) is survives


def test_one_message_names_the_file_of_the_user(tmp_path: Path) -> None:
    """Also if the block itself writes atomically and fails."""
    path = tmp_path / "a.txt"
    with pytest.raises(OSError) as caught, replacing(path) as temporary:
        with replacing(temporary) as deeper:
            deeper.write_text("half")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    expected = f"{path} must be writable, got: No space left on device; free some "
    expected += "space or use another disk"
    assert caught.value.strerror == expected
    assert list(tmp_path.iterdir()) == []


def test_careful_writing_nests(tmp_path: Path) -> None:
    with replacing(tmp_path / "a.txt") as temporary:
        write_bytes(temporary, b"whole")
    assert [(f.name, f.read_bytes()) for f in tmp_path.iterdir()] == [("a.txt", b"whole")]


def test_a_folder_need_not_exist_but_must_be_possible(tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    check_folder("run.output", tmp_path / "new" / "deeper")
    assert [f.name for f in tmp_path.iterdir()] == ["taken"]
    for path in (tmp_path / "taken", tmp_path / "taken" / "deeper"):
        with pytest.raises(NotADirectoryError, match=r"^run\.output must be a folder, got .*taken"):
            check_folder("run.output", path)
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for path in (tmp_path / "dangling", tmp_path / "dangling" / "deeper"):
        with pytest.raises(NotADirectoryError, match=r"dangling is a link to nothing; choose"):
            check_folder("run.output", path)
    (tmp_path / "linked").symlink_to(tmp_path)
    check_folder("run.output", tmp_path / "linked" / "deeper")
    with pytest.raises(OSError) as caught:
        check_folder("run.output", Path("/proc/run"))
    assert str(caught.value.strerror).startswith("run.output must be writable, got /proc/run: ")


def test_a_link_stays_and_what_it_points_to_is_written(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    target, link = tmp_path / "far" / "a", tmp_path / "link.txt"
    link.symlink_to(Path("far") / "a")
    for content in (b"made", b"replaced"):
        check_parent("run.out", link)
        with replacing(link) as temporary:
            assert temporary.suffix == ".txt"
            write_bytes(temporary, content)
        assert link.is_symlink() and target.read_bytes() == content
        assert [file.name for file in target.parent.iterdir()] == ["a"]
    target.unlink()
    target.parent.rmdir()
    with pytest.raises(FileNotFoundError, match=rf"got {link}; run: mkdir -p {target.parent}"):
        check_parent("run.out", link)


def test_a_pipe_or_a_device_is_not_replaced(tmp_path: Path) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    for path in (pipe, link, Path("/dev/null")):
        with pytest.raises(
            ValueError, match=rf"^run\.out must be a regular file, got the pipe or device {path}; "
        ):
            check_parent("run.out", path)
    assert pipe.is_fifo() and len(list(tmp_path.iterdir())) == 2


def test_a_name_as_long_as_may_be_is_written_and_a_longer_one_refused(tmp_path: Path) -> None:
    """Atomic writers may be nested, which gives a temporary name of a temporary name."""
    longest = os.pathconf(tmp_path, "PC_NAME_MAX")
    path = tmp_path / ("a" * (longest - 3) + ".fa")
    check_parent("run.out", path)
    with replacing(path) as temporary:
        write_bytes(temporary, b"whole")
    assert [(f.name, f.read_bytes()) for f in tmp_path.iterdir()] == [(path.name, b"whole")]
    for name in ("a" + path.name, "a." + "f" * (longest - 2)):
        with pytest.raises(OSError) as caught:
            check_parent("run.out", tmp_path / name)
        said = f"run.out must be writable, got {tmp_path / name}: File name too long; "
        assert str(caught.value.strerror).startswith(said)


def test_a_file_that_is_read_is_told_from_others(tmp_path: Path) -> None:
    path, link, other = (tmp_path / name for name in ("a.txt", "b.txt", "c.txt"))
    path.write_text("precious")
    link.symlink_to(path)
    for same in (path, link, tmp_path / "." / "a.txt", tmp_path / ".." / tmp_path.name / "a.txt"):
        with pytest.raises(ValueError, match=r"x.out must be another file than --in, got .*; rena"):
            check_apart("x.out", same, {"--else": None, "--in": path})
    check_apart("x.out", other, {"--in": path, "--else": None})
    os.link(path, other)
    check_apart("x.out", other, {"--in": path})  # whose content survives when the name is reused
    with pytest.raises(ValueError, match="must be another file than --in"):
        check_apart("x.out", other, {"--in": [path, other]})


def test_files_folders_and_globs_are_sorted_files(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("b/2.fa", "b/10.fa.gz", "b/.3.fa", "b/4.fai", "b/c/5.fa", "a.fasta", "[x].fa"):
        Path(name).parent.mkdir(exist_ok=True, parents=True)
        Path(name).touch()

    def found(*given: str) -> list[str]:
        return [str(path) for path in expand_files("x.in", [*map(Path, given)], ("fa", "fasta"))]

    assert found("b") == ["b/10.fa.gz", "b/2.fa"], "neither hidden files nor folders inside"
    assert found("b/*", "a.fasta") == ["a.fasta", "b/10.fa.gz", "b/2.fa", "b/4.fai"]
    assert found("b/**/*.fa", "[x].fa") == ["[x].fa", "b/2.fa", "b/c/5.fa"]
    plain = getattr(expand_files, "__wrapped__", expand_files)  # without the checker of types
    with pytest.raises(
        TypeError, match=r"^x\.in must be a tuple of paths, got .*; write \(path,\)"
    ):
        plain("x.in", Path("b"), ("fa",))
    with pytest.raises(FileNotFoundError, match=r"^x\.in must be an existing file, got none\.fa; "):
        found("a.fasta", "none.fa")
    with pytest.raises(FileNotFoundError, match=r"^x\.in must match existing files, got d/\*, "):
        found("d/*")
    Path("d").mkdir()
    with pytest.raises(ValueError, match=r"files that end in \.fa, \.fasta, got none in d; name"):
        found("d")
    Path("d/e.fa").symlink_to("../b/2.fa")
    with pytest.raises(ValueError, match=r"must name each file once, got b/2\.fa and d/e\.fa, "):
        found("b", "d")


def test_one_file_has_no_star(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^x\.out must have no \*, since it is one file, got "):
        check_parent("x.out", tmp_path / "*.npz")


@contextmanager
def running(code: str, *arguments: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has done something, said so, and lives until the end of the block."""
    lines = ["import os, subprocess, sys, time", "from pathlib import Path", code]
    lines += ["print('ready', flush=True)", "time.sleep(600)"]
    with subprocess.Popen(
        [sys.executable, "-c", "\n".join(lines), *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            assert process.stdout and process.stdout.readline() == "ready\n"
            yield process
        finally:
            os.killpg(process.pid, signal.SIGKILL)


LOCK = """
from seqdiff.files import owning
held = owning('run.output', Path(sys.argv[1]))
held.__enter__()
if os.fork() == 0:  # a worker, which outlives a killed parent for some seconds
    time.sleep(600)
"""
FLOCK = """
import fcntl
held = open(sys.argv[1] + '/.flock', 'w')
fcntl.flock(held, fcntl.LOCK_EX)
if os.fork() == 0:
    time.sleep(600)
"""


def test_a_folder_has_one_owner_until_its_process_ends(tmp_path: Path) -> None:
    with running(LOCK, tmp_path) as process:
        with pytest.raises(BlockingIOError) as caught, owning("run.output", tmp_path):
            raise AssertionError("two owners")
        said = rf"run\.output must not be in use, got {tmp_path}: process {process.pid} on "
        said += (
            rf"{socket.gethostname()}, started 20\S+ \S+, writes to it; wait until that ends, or "
        )
        assert re.fullmatch(said + "choose another folder", str(caught.value.strerror))
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        with owning("run.output", tmp_path):
            pass


def test_a_lock_that_workers_inherit_would_outlive_its_process(tmp_path: Path) -> None:
    """Broken twin: the lock of ``flock``, which filelock uses."""
    with running(FLOCK, tmp_path) as process:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        with (tmp_path / ".flock").open("w") as held, pytest.raises(BlockingIOError):
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_file_system_without_locks_is_reported(tmp_path: Path, capsys, monkeypatch) -> None:
    def lockf(*arguments: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "lockf", lockf)
    with owning("run.output", tmp_path):
        pass
    said = capsys.readouterr().err
    assert f"warning: {tmp_path / '.lock'} cannot be locked ([Errno {errno.ENOLCK}]" in said
    assert f"make sure that no other process writes to {tmp_path}" in said
    with pytest.raises(OSError, match=r"run.output must be writable, got .*none: No such file"):
        with owning("run.output", tmp_path / "none"):
            pass


WRITE = """
from seqdiff.files import replacing, write_bytes
held = [replacing(Path(path)) for path in sys.argv[1:]]
opened = [one.__enter__() for one in held]
opened[0].write_text("half")
nested = replacing(opened[1])
nested.__enter__().write_text("half")
"""


def test_what_a_killed_process_left_is_removed_by_the_next_write(tmp_path: Path) -> None:
    """Also a temporary file of a temporary file; those of living processes are kept."""
    paths = [tmp_path / "a.txt", tmp_path / "b.txt"]
    with running(WRITE, *paths) as process:
        left = {path.name for path in tmp_path.iterdir()}
        assert len(left) == 2 and all(f"-{process.pid}-" in name for name in left)
        for path in paths:
            write_bytes(path, b"whole")
        assert {path.name for path in tmp_path.iterdir()} == {"a.txt", "b.txt", *left}
    elsewhere = [name.replace(name.split("-")[1], "0" * 8) for name in left]
    for name in elsewhere:  # as if it were written on another machine
        (tmp_path / name).touch()
    write_bytes(tmp_path / "c.txt", b"whole")
    assert left <= {path.name for path in tmp_path.iterdir()}
    for path in paths:
        write_bytes(path, b"whole")
    names = {"a.txt", "b.txt", "c.txt"}
    assert {path.name for path in tmp_path.iterdir()} == names | set(elsewhere)
    for path in paths:
        remove_abandoned(path, owned=True)
    assert {path.name for path in tmp_path.iterdir()} == names


def test_a_full_disk_names_the_file_and_the_bytes(tmp_path: Path) -> None:
    """The limit of a process on the size of files takes the place of the disk."""
    code = """
import resource, signal
sys.dont_write_bytecode = True  # the limit would truncate it
from seqdiff.files import append_text, write_bytes
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
path = Path(sys.argv[1])
for write, content in ((write_bytes, bytes(12345)), (append_text, "a" * 1001)):
    try:
        write(path, content)
    except OSError as error:
        print(error.strerror, flush=True)
"""
    path = tmp_path / "a.txt"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\nfrom pathlib import Path\n{code}", str(path)],
        capture_output=True,
        text=True,
        check=True,
    )
    said = f"{path} must be writable, got: File too large; free {{}} bytes or use another disk"
    assert done.stdout.splitlines() == [said.format("12,345"), said.format("1,001")]
    append_text(path, "b")
    assert path.read_text() == "a" * 1000 + "b"

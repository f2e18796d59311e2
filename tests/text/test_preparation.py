import os
import resource
import signal
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import text.corpora.preparation as preparation
from text.corpora.detokenizers import DETOKENIZERS
from text.corpora.documents import Reading
from text.corpora.preparation import Encoder, prepare
from text.corpora.shards import TokenStore, open_shard
from text.corpora.sources import find_part
from text.tokenizers.characters import ByteTokenizer, CharacterTokenizer, Text8Tokenizer

LINES = [f"line {i} " + "abc" * (i % 7) for i in range(200)]


@pytest.fixture(autouse=True)
def _small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "_SHARD_CHARACTERS", 500)
    monkeypatch.setattr(preparation, "_cores", lambda: 1)


def source(path: Path, document="line"):
    return find_part("train", str(path), Reading(document), None).source


def texts(store: TokenStore) -> list[str]:
    return [ByteTokenizer().decode(store.read(i, 0, int(n))) for i, n in enumerate(store.lengths)]


def folder(cache: Path) -> Path:
    (found,) = (cache / "text").iterdir()
    return found


def shards(cache: Path) -> dict[str, bytes]:
    whole = sorted(folder(cache).glob("[!.]*.shard"))  # others are being written
    return {path.name: path.read_bytes() for path in whole}


@pytest.fixture
def lines(write) -> Path:
    return write("lines.txt", "\n".join(LINES))


def test_documents_come_back(lines, cache) -> None:
    store = prepare(source(lines), ByteTokenizer())
    assert texts(store) == LINES
    assert len(shards(cache)) > 5
    assert store.read(3, 2, 6).tolist() == list(LINES[3].encode()[2:6])
    assert len(set(store.hashes.tolist())) == len(LINES)
    assert np.array_equal(store.hashes, prepare(source(lines), ByteTokenizer()).hashes)


def test_more_shards_than_files_may_be_open(lines, cache, monkeypatch) -> None:
    monkeypatch.setattr(preparation, "_SHARD_CHARACTERS", 1)
    prepare(source(lines), ByteTokenizer())
    assert len(shards(cache)) == len(LINES)
    monkeypatch.setattr("text.corpora.shards._OPEN", 10)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 30, limit[1]))
    try:
        store = prepare(source(lines), ByteTokenizer())
        assert texts(store) == LINES
        with pytest.raises(OSError, match="Too many open files"):
            _ = [open_shard(path, check=False).map() for path in store.__getstate__()]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)


def test_ids_take_the_bytes_they_need(write) -> None:
    path = write("a.txt", "abc")
    for size, bytes_each in ((256, 1), (257, 2), (65536, 2), (65537, 4)):
        characters = "".join(chr(i) for i in range(size + 2048) if not 0xD800 <= i < 0xE000)[:size]
        store = prepare(source(path), CharacterTokenizer(characters))
        ids = store.read(0, 0, 3)
        assert ids.tolist() == [97, 98, 99] and ids.dtype.itemsize == bytes_each


@pytest.mark.slow
def test_processes_make_the_same_shards(lines, cache, monkeypatch) -> None:
    prepare(source(lines), ByteTokenizer(), num_processes=1)
    alone = shards(cache)
    monkeypatch.setenv("SEQDIFF_CACHE", str(cache / "other"))
    prepare(source(lines), ByteTokenizer(), num_processes=2)
    assert shards(cache / "other") == alone


def test_the_second_opening_reads_nothing(lines, monkeypatch) -> None:
    prepare(source(lines), ByteTokenizer())
    monkeypatch.setattr("text.corpora.sources.read_documents", None)
    assert texts(prepare(source(lines), ByteTokenizer())) == LINES


def test_the_key_is_content_tokenizer_and_options(lines, write, cache) -> None:
    def count() -> int:
        return len(list((cache / "text").iterdir()))

    prepare(source(lines), ByteTokenizer())
    prepare(source(write("copy.txt", lines.read_bytes())), ByteTokenizer())
    assert count() == 1
    prepare(source(lines), ByteTokenizer(), detokenizer="ptb")
    prepare(source(lines, "file"), ByteTokenizer())
    prepare(source(lines), CharacterTokenizer("".join(sorted(set("".join(LINES))))))
    assert count() == 4
    lines.write_text("other")
    assert texts(prepare(source(lines), ByteTokenizer())) == ["other"]
    assert count() == 5


def test_what_an_older_detokenizer_mended_is_not_used(write, monkeypatch) -> None:
    path = source(write("a.txt", "it does n't"))
    with monkeypatch.context() as older:
        older.setitem(DETOKENIZERS, "ptb", str.upper)
        assert texts(prepare(path, ByteTokenizer(), detokenizer="ptb")) == ["IT DOES N'T"]
    monkeypatch.setattr(preparation, "VERSION", preparation.VERSION + 1)
    assert texts(prepare(path, ByteTokenizer(), detokenizer="ptb")) == ["it doesn't"]


def test_it_is_mended_before_it_is_encoded(write) -> None:
    store = prepare(source(write("a.txt", "it does n't")), ByteTokenizer(), detokenizer="ptb")
    assert texts(store) == ["it doesn't"]


class _Stop(KeyboardInterrupt):
    pass


def test_an_interrupted_preparation_goes_on(lines, cache, monkeypatch) -> None:
    whole_write, written = Encoder.write, []

    def write(self, path, block):
        if len(written) == 3:
            raise _Stop
        written.append(path.name)
        return whole_write(self, path, block)

    monkeypatch.setattr(Encoder, "write", write)
    with pytest.raises(_Stop):
        prepare(source(lines), ByteTokenizer())
    first = list(written)
    assert sorted(shards(cache)) == first and not (folder(cache) / "manifest.json").exists()
    monkeypatch.setattr(Encoder, "write", whole_write)
    times = {name: (folder(cache) / name).stat().st_mtime_ns for name in first}
    assert texts(prepare(source(lines), ByteTokenizer())) == LINES
    assert {name: (folder(cache) / name).stat().st_mtime_ns for name in first} == times


def _flip(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


@pytest.mark.parametrize(
    "harm",
    [
        lambda data: data[:10],
        lambda data: data[:-1],
        lambda data: b"",
        lambda data: _flip(data, 0),
        lambda data: _flip(data, 9),
        lambda data: _flip(data, 70),  # a length
        lambda data: _flip(data, len(data) - 5),  # an id
        None,
    ],
)
def test_a_damaged_shard_is_noticed_and_made_anew(lines, cache, harm) -> None:
    prepare(source(lines), ByteTokenizer())
    whole = shards(cache)
    path = folder(cache) / "000002.shard"
    if harm is None:
        path.unlink()
    else:
        path.write_bytes(harm(path.read_bytes()))
        with pytest.raises(ValueError, match="the cache file is damaged or truncated; delete"):
            open_shard(path, check=True)
    assert texts(prepare(source(lines), ByteTokenizer())) == LINES
    assert shards(cache) == whole


def test_a_shard_that_was_only_touched_is_kept(lines, cache, monkeypatch) -> None:
    """For example when a cache is copied: the shard is read once more and then trusted again."""
    prepare(source(lines), ByteTokenizer())
    for path in folder(cache).glob("*.shard"):
        os.utime(path, (1, 1))
    monkeypatch.setattr("text.corpora.sources.read_documents", None)
    prepare(source(lines), ByteTokenizer())
    monkeypatch.setattr(preparation, "_is_sound", None)
    assert texts(prepare(source(lines), ByteTokenizer())) == LINES


def test_a_damaged_manifest_costs_no_tokenising(lines, cache, monkeypatch) -> None:
    prepare(source(lines), ByteTokenizer())
    (folder(cache) / "manifest.json").write_text("[[")
    monkeypatch.setattr(Encoder, "write", None)
    assert texts(prepare(source(lines), ByteTokenizer())) == LINES


CODE = """
import sys, time
from pathlib import Path
import text.corpora.preparation as preparation
import text.corpora.preparation as encoding
from text.corpora.sources import find_part
from text.corpora.documents import Reading
from text.tokenizers import ByteTokenizer

class Slow(ByteTokenizer):
    def encode(self, string):
        time.sleep(0.002)
        return super().encode(string)

written = []
write = encoding.Encoder.write

def counted(self, path, block):
    written.append(path)
    return write(self, path, block)

if __name__ == "__main__":
    preparation._SHARD_CHARACTERS = 500
    encoding.Encoder.write = counted
    part = find_part("train", sys.argv[1], Reading(), None)
    store = preparation.prepare(part.source, Slow(), num_processes=int(sys.argv[2]))
    print(len(store), int(store.lengths.sum()), sum(int(store.read(i, 0, 1)[0]) for i in range(9)))
    print(len(written))
"""


@pytest.fixture
def script(write) -> Path:
    return write("prepare.py", CODE)


def start(script: Path, lines: Path, processes: int) -> subprocess.Popen[str]:
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": root}
    return subprocess.Popen(
        [sys.executable, str(script), str(lines), str(processes)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )


@pytest.mark.slow
def test_two_processes_may_prepare_the_same_corpus(script, lines, cache) -> None:
    both = [start(script, lines, 1) for _ in range(2)]
    said = [process.communicate(timeout=100) for process in both]
    answers, made = zip(*(out.splitlines() for out, _ in said), strict=True)
    total = sum(len(line) for line in LINES)
    assert answers == (f"{len(LINES)} {total} {9 * ord('l')}",) * 2
    assert sum(map(int, made)) == len(shards(cache)), "no shard is made twice"
    # The second process found the first at work, or found the work done.
    assert sum("waiting for another process" in err for _, err in said) <= 1
    names = {path.name for path in folder(cache).iterdir()}
    assert names == {"lock", "manifest.json", *shards(cache)}


@pytest.mark.slow
def test_a_killed_preparation_leaves_no_process_and_goes_on(script, lines, cache) -> None:
    process = start(script, lines, 2)
    for _ in range(1000):
        if len(list(cache.glob("text/*/[!.]*.shard"))) >= 2:
            break
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=20)  # until the last process closes the pipes
    with pytest.raises(ProcessLookupError):
        for _ in range(1000):
            os.killpg(process.pid, 0)
            time.sleep(0.02)
    kept = shards(cache)
    assert kept and not (folder(cache) / "manifest.json").exists()
    assert texts(prepare(source(lines), ByteTokenizer())) == LINES
    assert {name: data for name, data in shards(cache).items() if name in kept} == kept


def test_a_full_disk_leaves_no_half_written_shard(script, write, cache) -> None:
    path = write("big.txt", "a" * 5000 + "\nb")
    done = subprocess.run(
        [sys.executable, str(script), str(path), "1"],
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "PYTHONDONTWRITEBYTECODE": "1",  # the limit would truncate it
        },
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)),
    )
    last = done.stderr.strip().splitlines()[-1]
    assert ".shard must be writable, got: File too large; free some space" in last
    assert {path.name for path in folder(cache).iterdir()} == {"lock"}


def test_bad_text_leaves_nothing_behind(write, cache) -> None:
    for content, said in ((b"good\n" * 500 + b"\xff\n", "offset 2500"), (b" \n\n", "got none;")):
        with pytest.raises(ValueError, match=said):
            prepare(source(write("a.txt", content)), ByteTokenizer())
        assert not (cache / "text").exists()


def test_a_document_that_does_not_encode_is_numbered(write) -> None:
    path = write("a.txt", "good\n" * 300 + "x 7\n")
    for processes in (1, 2):
        with pytest.raises(ValueError, match=r"a.txt: document 301: .*got '7' at offset 2"):
            prepare(source(path), Text8Tokenizer(), num_processes=processes)


def test_documents_without_ids_are_left_out(write) -> None:
    """A tokenizer may find no token in a text that is not blank."""

    class Deaf(ByteTokenizer):
        def encode(self, string):
            return super().encode(string.replace("-", ""))

    assert texts(prepare(source(write("a.txt", "a\n--\nb")), Deaf())) == ["a", "b"]


@pytest.mark.slow
def test_a_corpus_need_not_fit_in_memory(write) -> None:
    """Forty shards are read with memory for a few."""
    size = 1 << 17
    path = write("a.txt", ("x" * 255 + "\n") * (40 * size // 256))
    preparation._SHARD_CHARACTERS = size
    tracemalloc.start()
    store = prepare(source(path), ByteTokenizer())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert int(store.lengths.sum()) > 39 * size
    assert peak < 15 * size, f"{peak / size:.1f} shards"

"""Trace files: written traces are read back, and other files are rejected."""

import io
import json
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from seqdiff.samplers import Recorder
from seqdiff.trace import Trace, read_trace, write_trace


@pytest.mark.parametrize("count", [2, 256, 257, 70_000])
def test_a_file_gives_back_what_was_written(tmp_path: Path, count: int) -> None:
    """Alphabets of any size; symbols may be empty, end in a zero byte or repeat."""
    symbols = ["\x00", "", *("é" if i % 2 else "\n" for i in range(count - 1))]
    mask = count
    found = Recorder()
    found.start(torch.tensor([[mask, mask, 0]]), [0])
    found(1, torch.tensor([[count - 1, mask, 0]]))
    found(2, torch.tensor([[count - 1, mask, 0]]))
    found(3, torch.tensor([[mask, 1, 0]]))
    written = found.trace(sampler="s", names=["n\x00"], symbols=symbols)
    write_trace(tmp_path / "t.npz", written)
    trace = read_trace(tmp_path / "t.npz")
    assert (trace.sampler, trace.names, trace.symbols) == ("s", ("n\x00",), tuple(symbols))
    expected = [[mask, mask, 0], [count - 1, mask, 0], [count - 1, mask, 0], [mask, 1, 0]]
    assert trace.states(0).tolist() == written.states(0).tolist() == expected
    assert trace.token.itemsize == (1 if count < 256 else 2 if count < 65536 else 4)


class TestReading:
    """Files that are not traces give a one-line error with the reason."""

    @pytest.fixture
    def arrays(self) -> dict[str, np.ndarray]:
        about = {"sampler": "s", "names": ["a", "b"], "symbols": ["0", "1", "?"]}
        small = {name: np.array(value, dtype=np.uint8) for name, value in _GOOD.items()}
        return {"about": np.frombuffer(json.dumps(about).encode(), dtype=np.uint8), **small}

    def _refused(self, path: Path) -> str:
        with pytest.raises(ValueError) as caught:
            read_trace(path)
        text = str(caught.value)
        start = f"{path} must be a trace that seqdiff sample --trace wrote, got a file with: "
        assert text.startswith(start) and text.endswith("; sample it again") and "\n" not in text
        return text.removeprefix(start).removesuffix("; sample it again")

    def test_the_good_one(self, arrays: dict[str, np.ndarray], tmp_path: Path) -> None:
        np.savez(tmp_path / "t.npz", **arrays)
        trace = read_trace(tmp_path / "t.npz")
        assert isinstance(trace, Trace)
        assert trace.states(0).tolist() == [[2, 2], [0, 2], [0, 1]]
        assert trace.states(1).tolist() == [[2], [1], [1]]

    @pytest.mark.parametrize(
        ("name", "value", "reason"),
        [
            ("row", [0, 0, 2], "rows that do not exist or are not in order"),
            ("row", [1, 0, 0], "rows that do not exist or are not in order"),
            ("position", [0, 1, 1], "positions beyond the end of a sequence"),
            ("lengths", [2, 3], "positions beyond the end of a sequence"),
            ("step", [1, 3, 1], "steps that were not done or are not in order"),
            ("step", [0, 1, 1], "steps that were not done or are not in order"),
            ("step", [2, 1, 1], "steps that were not done or are not in order"),
            ("token", [0, 3, 1], "ids above the mask's"),
            ("x_init", [[2, 3], [2, 2]], "ids above the mask's"),
            ("x_init", [2, 2], "x_init with shape (2,) of uint8, not unsigned integers with 2 ax"),
            ("x_init", np.empty((0, 2), np.uint8), "arrays whose lengths differ or are 0"),
            ("token", [0, 1], "arrays whose lengths differ or are 0"),
            ("lengths", [2, 1, 1], "arrays whose lengths differ or are 0"),
            ("token", np.array([0, 1, 1]), "token with shape (3,) of int64, not unsigned"),
            ("token", np.array([0, 1, 1], np.uint16), "x_init and token of two dtypes"),
            ("token", np.array([0, 1, 1], object), "Object arrays cannot be loaded"),
            ("about", [1, 2], "Expecting value"),
            ("about", list(b"[]"), "no list of strings names in about"),
            ("about", list(b'{"names": ["a", 1]}'), "no list of strings names in about"),
            ("about", list(b'{"names": ["a"], "symbols": []}'), "'sampler'"),
            ("token", None, "no array token"),
            ("about", None, "no array about"),
        ],
    )
    def test_wrong_arrays(self, arrays, tmp_path: Path, name: str, value, reason: str) -> None:
        if value is None:
            del arrays[name]
        else:
            arrays[name] = np.asarray(value, None if isinstance(value, np.ndarray) else np.uint8)
        np.savez(tmp_path / "t.npz", **arrays)
        assert self._refused(tmp_path / "t.npz").startswith(reason)

    @pytest.mark.parametrize("name", ["token", "about"])
    def test_members_that_are_no_arrays(self, arrays, tmp_path: Path, name: str) -> None:
        path, good = tmp_path / "t.npz", arrays.pop(name)
        np.savez(path, **arrays)
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr(f"{name}.npy", b"words")
        assert self._refused(path) == f"{name} that is no array"
        stream = io.BytesIO()
        np.save(stream, good)
        for old, new in ((b"'shape': (", b"'shape': (("), (b"{'descr'", b"['descr'")):
            np.savez(path, **arrays)
            with zipfile.ZipFile(path, "a") as archive:
                archive.writestr(f"{name}.npy", stream.getvalue().replace(old, new, 1))
            assert name in self._refused(path) or "header" in self._refused(path)

    def test_other_files(self, arrays: dict[str, np.ndarray], tmp_path: Path) -> None:
        path = tmp_path / "t.npz"
        np.save(tmp_path / "bare.npy", np.arange(3))
        bare = (tmp_path / "bare.npy").read_bytes()
        for content in (b"", b">a\nACGT\n", pickle.dumps([1]), bare):
            path.write_bytes(content)
            assert self._refused(path) == "no zip archive, as every npz is"
        np.savez_compressed(path, **arrays)
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
        assert self._refused(path) == "File is not a zip file"
        for place in range(60, len(whole), 97):  # damage never gives a traceback
            path.write_bytes(whole[:place] + b"\xff" * 4 + whole[place + 4 :])
            try:
                read_trace(path)
            except ValueError as error:
                assert str(path) in str(error) and "\n" not in str(error)
        with pytest.raises(FileNotFoundError):
            read_trace(tmp_path / "none.npz")


_GOOD = {
    "x_init": [[2, 2], [2, 2]],
    "lengths": [2, 1],
    "num_steps": [2, 2],
    "row": [0, 0, 1],
    "step": [1, 2, 1],
    "position": [0, 1, 0],
    "token": [0, 1, 1],
}

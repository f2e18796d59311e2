"""Traces of samplers, as files: the first tokens, and the changes of every step."""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Integer, UInt8

from seqdiff.files import check_parent, parse_json, read_npz_array, replacing

_SHAPES = {
    "x_init": 2,
    "lengths": 1,
    "num_steps": 1,
    "row": 1,
    "step": 1,
    "position": 1,
    "token": 1,
}
_ZIP = b"PK\x03\x04"
_BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, ValueError, KeyError, NotImplementedError)


class Samples(NamedTuple):
    """What a model draws while it is trained.

    Attributes:
        texts: Decoded sequences.
        picture: How the first of them was drawn, in red, green and blue.
    """

    texts: list[str]
    picture: UInt8[np.ndarray, "H W 3"]


@dataclass(frozen=True)
class Trace:
    """The states of N sequences after every step of a sampler, exactly, kept as changes.

    A file of it is an npz with the arrays below under their names and ``about``: the UTF-8 bytes of
    a JSON object that holds the other attributes.

    Attributes:
        sampler: Name of the sampler.
        names: Unique names of the sequences.
        symbols: Decoded ids ``0..K``; the last is that of the mask.
        x_init: Tokens before the first step; masks beyond the end of a sequence.
        lengths: Number of tokens of each sequence.
        num_steps: Number of steps of the sampler on the batch of each sequence.
        row: Number of the sequence of each change, in ascending order.
        step: Step of each change, from 1; in ascending order within a sequence.
        position: Position of each change.
        token: New token of each change.
    """

    sampler: str
    names: tuple[str, ...]
    symbols: tuple[str, ...]
    x_init: Integer[np.ndarray, "N L"]
    lengths: Integer[np.ndarray, " N"]
    num_steps: Integer[np.ndarray, " N"]
    row: Integer[np.ndarray, " C"]
    step: Integer[np.ndarray, " C"]
    position: Integer[np.ndarray, " C"]
    token: Integer[np.ndarray, " C"]

    @property
    def mask_id(self) -> int:
        """K."""
        return len(self.symbols) - 1

    def replay(
        self, row: int
    ) -> Iterator[tuple[Integer[np.ndarray, " c"], Integer[np.ndarray, " c"]]]:
        """Iterate over the steps of a sequence.

        Yields:
            For each step the positions that changed, and their new tokens.

        Raises:
            ValueError: If there is no such sequence.
        """
        if not 0 <= row < len(self.names):
            raise ValueError(
                f"Trace.row must be in 0..{len(self.names) - 1}, got {row}; choose another"
            )
        first, last = np.searchsorted(self.row, [row, row + 1])
        steps = np.arange(1, int(self.num_steps[row]) + 2)
        edges = first + np.searchsorted(self.step[first:last], steps)
        for start, end in pairwise(edges):
            yield self.position[start:end], self.token[start:end]

    def states(self, row: int) -> Integer[np.ndarray, "S L"]:
        """Tokens of a sequence before the first step and after each.

        Raises:
            ValueError: If there is no such sequence.
        """
        changes = list(self.replay(row))
        states = np.tile(self.x_init[row, : self.lengths[row]], (len(changes) + 1, 1))
        for step, (position, token) in enumerate(changes, start=1):
            states[step] = states[step - 1]
            states[step, position] = token
        return states


def check_trace(path: Path) -> None:
    """Check, before slow work, that a trace can be written.

    Args:
        path: The file to write.

    Raises:
        OSError: If it cannot be written.
        ValueError: If its suffix is not npz.
    """
    if path.suffix != ".npz":
        raise ValueError(f"sample.trace must end in .npz, got {path}; rename it")
    check_parent("sample.trace", path)


def write_trace(path: Path, trace: Trace) -> None:
    """Write a trace, compressed, each array in the smallest unsigned dtype that holds it.

    Raises:
        OSError: If the file cannot be written.
    """
    about = {"sampler": trace.sampler, "names": trace.names, "symbols": trace.symbols}
    arrays = {name: _shrink(getattr(trace, name)) for name in _SHAPES}
    for name in ("x_init", "token"):
        arrays[name] = arrays[name].astype(np.min_scalar_type(trace.mask_id))
    text = np.frombuffer(json.dumps(about).encode(), dtype=np.uint8)
    with replacing(path) as temporary, temporary.open("wb") as stream:
        np.savez_compressed(stream, allow_pickle=False, about=text, **arrays)


def _shrink(array: Integer[np.ndarray, "*shape"]) -> Integer[np.ndarray, "*shape"]:
    return array.astype(np.min_scalar_type(int(array.max(initial=0))))


def read_trace(path: str | Path) -> Trace:
    """Read what ``write_trace`` or ``seqdiff sample --trace`` wrote; nothing is unpickled.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is no trace, or a damaged one.
    """
    try:
        with Path(path).open("rb") as stream:
            if stream.read(len(_ZIP)) != _ZIP:
                raise ValueError("no zip archive, as every npz is")
        with np.load(path, allow_pickle=False) as file:
            missing = [name for name in ("about", *_SHAPES) if name not in file.files]
            if missing:
                raise ValueError(f"no array {', '.join(missing)}")
            arrays = {name: read_npz_array(file, name) for name in _SHAPES}
            about = parse_json(read_npz_array(file, "about").tobytes())
        for name, dimensions in _SHAPES.items():
            if arrays[name].ndim != dimensions or arrays[name].dtype.kind != "u":
                raise ValueError(
                    f"{name} with shape {arrays[name].shape} of {arrays[name].dtype}, not unsigned "
                    f"integers with {dimensions} axes"
                )
        names, symbols = (_strings(about, key) for key in ("names", "symbols"))
        (sampler,) = _strings({"sampler": [about["sampler"]]}, "sampler")
        _check(arrays, len(names), len(symbols))
    except _BROKEN as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(
            f"{path} must be a trace that seqdiff sample --trace wrote, got a file with: {reason}; "
            "sample it again"
        ) from error
    return Trace(sampler, names, symbols, **arrays)


def _strings(about: object, key: str) -> tuple[str, ...]:
    found = about.get(key) if isinstance(about, dict) else None
    if not isinstance(found, list) or not all(isinstance(part, str) for part in found):
        raise ValueError(f"no list of strings {key} in about")
    return tuple(found)


def _check(arrays: dict[str, np.ndarray], names: int, symbols: int) -> None:
    """Raise ``ValueError`` with the reason if arrays do not fit each other."""
    count, width = arrays["x_init"].shape
    row, step, position, token = (arrays[name] for name in ("row", "step", "position", "token"))
    lengths, num_steps = arrays["lengths"], arrays["num_steps"]
    sizes = {names, len(lengths), len(num_steps), count}
    if sizes != {count} or count == 0 or {len(step), len(position), len(token)} != {len(row)}:
        raise ValueError("arrays whose lengths differ or are 0")
    onward = np.diff(row.astype(np.int64))
    if row.max(initial=0) >= count or bool((onward < 0).any()):
        raise ValueError("rows that do not exist or are not in order")
    if bool((lengths > width).any()) or bool((position >= lengths[row]).any()):
        raise ValueError("positions beyond the end of a sequence")
    back = (np.diff(step.astype(np.int64)) < 0) & (onward == 0)
    if bool((step < 1).any()) or bool((step > num_steps[row]).any()) or bool(back.any()):
        raise ValueError("steps that were not done or are not in order")
    if arrays["x_init"].dtype != token.dtype:
        raise ValueError("x_init and token of two dtypes")
    if max(arrays["x_init"].max(initial=0), token.max(initial=0)) >= symbols:
        raise ValueError("ids above the mask's")

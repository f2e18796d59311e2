"""Values along a genome, in bigWig and bedGraph files."""

from __future__ import annotations

import gzip
import hashlib
import math
import os
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Float64

from genomics.io.fasta import check_file
from genomics.io.genome import describe_names
from seqdiff.cells import describe_error
from seqdiff.extras import require_extra
from seqdiff.files import check_parent, content_digest, is_gzip, make_cache_folder, replacing

_BIGWIG = (".bw", ".bigwig")
_MAGIC = (b"\x26\xfc\x8f\x88", b"\x88\x8f\xfc\x26")  # in either byte order
_BEDGRAPH = (".bedgraph", ".bdg", ".bg")

Value = tuple[str, int, int, float]  # chromosome, start, end and the value of its positions


class Track:
    """Values of positions on chromosomes, read from a bigWig file when they are asked for.

    pybigtools reads the file. Unlike pyBigWig, it has wheels for macOS, Windows and Arm.

    Attributes:
        path: The file that the values come from.
        lengths: Bases of each chromosome that has values, by name.
    """

    def __init__(self, path: Path, bigwig: Path) -> None:
        """Open a file; use ``open_track``, which also reads bedGraph.

        Args:
            path: The file that the values come from, for messages.
            bigwig: The bigWig file of its values.

        Raises:
            ValueError: If the file is damaged or not bigWig, or pybigtools is not installed.
        """
        self.path, self._bigwig = path, bigwig
        self._reader: tuple[int, Any] | None = None  # of one process, because of its file position
        self.lengths: dict[str, int] = self._read("chroms")

    def values(self, chrom: str, start: int, end: int) -> Float32[np.ndarray, " L"]:
        """Return the values of an interval, NaN where the file has none.

        Args:
            chrom: Chromosome, one of ``lengths``.
            start: First base, 0-based.
            end: One past the last base.

        Raises:
            ValueError: If the file is damaged.
        """
        return self._read("values", chrom, start, end, fillna=None).astype(np.float32)

    def _read(self, method: str, *args: object, **options: object) -> Any:
        """Call a method of the reader, and open the file first if this process has not."""
        library = require_extra("pybigtools", "data.tracks", "genomics")
        try:
            if self._reader is None or self._reader[0] != os.getpid():
                self._reader = os.getpid(), library.open(str(self._bigwig))
            return getattr(self._reader[1], method)(*args, **options)
        except BaseException as error:
            # Damaged blocks end in a panic of its Rust code, which is no Exception.
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            raise ValueError(
                f"{self.path}: not a readable bigWig file ({describe_error(error)}); fetch it again"
            ) from error

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the paths; another process opens the file again."""
        return self.__dict__ | {"_reader": None}


def open_track(path: str | Path, lengths: Mapping[str, int], used: Collection[str]) -> Track:
    """Open a track of a genome.

    A bedGraph file is converted to bigWig in the cache when it is opened for the first time;
    chromosomes that the genome lacks are left out.

    Args:
        path: File that ends in .bw or .bigWig, or in .bedGraph, .bdg or .bg, perhaps with .gz.
        lengths: Bases of each chromosome of the genome, by name.
        used: Chromosomes that must have values.

    Raises:
        FileNotFoundError: If the file does not exist.
        OSError: If the cache cannot be written.
        ValueError: If the file is damaged or not valid, lacks a chromosome in use, or has one of
            another length; or if pybigtools is not installed.
    """
    source = Path(path)
    check_file(source, "set data.tracks")
    name = source.name.lower()
    if name.endswith(_BIGWIG):
        with source.open("rb") as file:
            if file.read(4) not in _MAGIC:  # pybigtools would print a line of its own
                raise ValueError(f"{source}: not a bigWig file; fetch it again")
        track = Track(source, source)
    elif name.removesuffix(".gz").endswith(_BEDGRAPH):
        track = Track(source, _converted(source, lengths))
    else:
        raise ValueError(
            f"{source}: the name of a track must end in .bw, .bigWig, .bedGraph, .bdg or .bg; "
            "rename it"
        )
    for chrom in used:
        if chrom not in track.lengths:
            raise ValueError(
                f"{source}: must have values on {chrom!r}, got "
                f"{describe_names(tuple(track.lengths))}; use the chromosome names of the FASTA "
                "file, or leave that record out"
            )
        if track.lengths[chrom] != lengths[chrom]:
            raise ValueError(
                f"{source}: {chrom} must have {lengths[chrom]} bases as in the FASTA file, got "
                f"{track.lengths[chrom]}; use the genome build of the track"
            )
    return track


def _converted(source: Path, lengths: Mapping[str, int]) -> Path:
    """Return the bigWig file of a bedGraph file, from the cache or converted now."""
    require_extra("pybigtools", "data.tracks", "genomics")
    folder = make_cache_folder()
    genome = hashlib.sha256(repr(sorted(lengths.items())).encode()).hexdigest()[:16]
    target = folder / f"{content_digest(source, folder)}-{genome}.bw"
    if target.exists():
        return target
    rows = _bedgraph(source, lengths)
    first = next(rows, None)
    if first is None:
        raise ValueError(
            f"{source}: must have a value on a chromosome of the FASTA file, "
            f"{describe_names(tuple(lengths))}, got none; use matching names"
        )
    with replacing(target) as temporary:
        _write_bigwig(temporary, lengths, chain([first], rows))
    return target


def _write_bigwig(path: Path, lengths: Mapping[str, int], rows: Iterable[Value]) -> None:
    library = require_extra("pybigtools", "the track", "genomics")
    failures: list[BaseException] = []

    def guarded() -> Iterator[Value]:
        try:
            yield from rows
        except BaseException as error:  # the writer would print it and finish the file
            failures.append(error)

    library.open(str(path), "w").write(dict(lengths), guarded())
    if failures:
        raise failures[0]


def check_track(owner: str, path: Path) -> None:
    """Check, before slow work, that ``write_track`` can write a file.

    Args:
        owner: Name of the argument, for the message.
        path: The file.

    Raises:
        OSError: If its folder does not exist or cannot be written to.
        ValueError: If the name has another ending, or pybigtools is not installed.
    """
    if not path.name.lower().endswith((*_BIGWIG, *_BEDGRAPH)):
        raise ValueError(
            f"{owner} must end in .bw, .bigWig, .bedGraph, .bdg or .bg, got {path}; rename it"
        )
    check_parent(owner, path)
    if path.name.lower().endswith(_BIGWIG):
        require_extra("pybigtools", owner, "genomics")


def write_track(path: Path, values: Mapping[str, Float64[np.ndarray, " L"]]) -> None:
    """Write a value for each position of sequences, as bigWig or bedGraph by the suffix.

    bigWig has single precision, bedGraph 6 significant digits.

    Args:
        path: File that ends in .bw or .bigWig, or in .bedGraph, .bdg or .bg; see ``check_track``.
        values: The values of each sequence by its name, NaN where there is none.

    Raises:
        OSError: If the file cannot be written.
    """
    rows = (
        (name, start, start + 1, float(track[start]))
        for name, track in values.items()
        for start in np.flatnonzero(~np.isnan(track)).tolist()
    )
    write_values(path, {name: len(track) for name, track in values.items()}, rows)


def write_values(path: Path, lengths: Mapping[str, int], rows: Iterable[Value]) -> None:
    """Write values of intervals, as bigWig or bedGraph by the suffix, see ``write_track``.

    Args:
        path: The file.
        lengths: Bases of each chromosome, by name.
        rows: The values, sorted by chromosome, in the order of ``lengths``, and start.

    Raises:
        OSError: If the file cannot be written.
    """
    with replacing(path) as temporary:
        if path.name.lower().endswith(_BIGWIG):
            _write_bigwig(temporary, lengths, rows)
        else:
            with temporary.open("w", encoding="utf-8") as file:
                for name, start, end, value in rows:
                    file.write(f"{name}\t{start}\t{end}\t{value:.6g}\n")


def _bedgraph(source: Path, lengths: Mapping[str, int]) -> Iterator[Value]:
    """Stream the intervals of a bedGraph file, plain or compressed, and check each.

    Raises:
        ValueError: If the file is damaged or a line is not valid; starts with file and line.
    """
    opened = gzip.open if is_gzip(source) else open
    seen: set[str] = set()
    last, place = "", 0
    try:
        with opened(source, "rt", encoding="utf-8") as stream:
            for number, line in enumerate(stream, start=1):
                cells = line.split()
                if not cells or line.startswith("#") or cells[0] in {"track", "browser"}:
                    continue
                where = f"{source}:{number}"
                chrom, start, end, value = _parse(where, cells)
                if chrom != last:
                    if chrom in seen:
                        raise ValueError(
                            f"{where}: the lines of {chrom} must follow each other, got "
                            f"{last} in between; run: sort -k1,1 -k2,2n"
                        )
                    seen.add(chrom)
                    last, place = chrom, 0
                if start < place:
                    raise ValueError(
                        f"{where}: start must be at least {place}, the end of the line before, "
                        f"got {start}; sort the file, and keep one value for each position"
                    )
                place = end
                if end > lengths.get(chrom, end):
                    raise ValueError(
                        f"{where}: end must lie inside {chrom}, which has {lengths[chrom]} bases, "
                        f"got {end}; use the genome build of the track"
                    )
                if chrom in lengths:
                    yield chrom, start, end, value
    except EOFError as error:
        raise ValueError(f"{source}: the gzip file is truncated; fetch it again") from error
    except (gzip.BadGzipFile, zlib.error, UnicodeDecodeError) as error:
        raise ValueError(
            f"{source}: not a readable bedGraph file ({error}); fetch it again"
        ) from error


def _parse(where: str, cells: list[str]) -> Value:
    """Read the cells of a line."""
    try:
        chrom, start, end, value = cells[0], int(cells[1]), int(cells[2]), float(cells[3])
        if len(cells) == 4 and 0 <= start < end and math.isfinite(value):
            return chrom, start, end, value
    except (ValueError, IndexError):
        pass
    raise ValueError(
        f"{where}: a bedGraph line must be a chromosome, a start, a larger end and a finite value, "
        f"got {' '.join(cells)[:80]!r}; correct it, or leave positions without a value out"
    )

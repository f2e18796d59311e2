"""Read the sites and alleles of VCF files, plain, gzip or bgzip, and copy files with annotations.

Genotypes are not read. An annotated file is a copy of the text, because vcfpy would write some
values in another way, such as 0.5 for 0.50.
"""

from __future__ import annotations

import gzip
import re
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import TextIOWrapper
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple

import vcfpy
from Bio.bgzf import BgzfWriter
from vcfpy.exceptions import VCFPyException
from vcfpy.header import InfoHeaderLine
from vcfpy.writer import format_atomic

from genomics.io.fasta import check_bgzf_end, check_file, is_bgzip
from seqdiff.cells import describe_error
from seqdiff.files import is_gzip, replacing

_SITE_COLUMNS = 5  # CHROM POS ID REF ALT; then QUAL FILTER INFO
_FIXED_COLUMNS = 8
_INFO = 7
_ALT = 4
_BREAKEND = re.compile(
    r"[^\[\]]+([\[\]])<?[^\[\]:<>]+>?:\d+\1|([\[\]])<?[^\[\]:<>]+>?:\d+\2[^\[\]]+"
)


@dataclass(frozen=True)
class Variant:
    """One alternative allele.

    Attributes:
        line: 1-based line of the file.
        chrom: Chromosome name.
        pos: First base of ``ref``, 1-based as in the file.
        name: The ID column, ``.`` if empty.
        ref: Reference allele in upper case.
        alt: Alternative allele in upper case, or a symbolic allele such as ``<DEL>``.
    """

    line: int
    chrom: str
    pos: int
    name: str
    ref: str
    alt: str

    @property
    def start(self) -> int:
        """First base of ``ref``, 0-based."""
        return self.pos - 1


class _SiteLines:
    """A stream for vcfpy that skips blank lines and replaces QUAL, FILTER and INFO by ``.``.

    Attributes:
        number: 1-based number of the last line read.
    """

    def __init__(self, stream: TextIOWrapper) -> None:
        self.number = 0
        self._stream = stream

    def readline(self) -> str:
        """Return the next line, or an empty string at the end."""
        for line in iter(self._stream.readline, ""):
            self.number += 1
            if line.startswith("##"):
                return line
            if line.strip():
                columns = line.rstrip("\r\n").split("\t", _FIXED_COLUMNS)[:_FIXED_COLUMNS]
                if not line.startswith("#"):
                    if len(columns) > _ALT:
                        alts = columns[_ALT].split(",")
                        columns[_ALT] = ",".join(map(_without_brackets, alts))
                    columns[_SITE_COLUMNS:] = "." * len(columns[_SITE_COLUMNS:])
                return "\t".join(columns) + "\n"
        self.number += 1
        return ""


def _without_brackets(alt: str) -> str:
    """Replace a malformed breakend, at which vcfpy would fail, by a symbolic allele."""
    malformed = ("[" in alt or "]" in alt) and not _BREAKEND.fullmatch(alt)
    return "<BND>" if malformed else alt


def read_vcf(path: str | Path) -> Iterator[Variant]:
    """Stream the alternative alleles of a VCF file in file order.

    A line without an alternative allele yields one variant with the alternative ``.``.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If the file is truncated or not VCF. The message starts with the file and, if
            known, the line.
    """
    source = Path(path)
    check_file(source)
    if is_bgzip(source):
        check_bgzf_end(source)
    with _open(source) as stream:
        yield from _parse(source, _SiteLines(stream))


def _open(path: Path) -> TextIOWrapper:
    opener = gzip.open if is_gzip(path) else open
    stream = opener(path, "rt", encoding="utf-8")
    assert isinstance(stream, TextIOWrapper)
    return stream


def _parse(source: Path, lines: _SiteLines) -> Iterator[Variant]:
    # The parser reads one line ahead: a record is on the line before the last one read.
    number = 0
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about columns that are not used
            reader = vcfpy.Reader.from_stream(lines)  # pyright: ignore[reportArgumentType]
        number = lines.number
        for record in reader:
            assert record is not None  # the parser's own end of the file
            alts = [alt.serialize().upper() for alt in record.ALT] or ["."]
            name = ";".join(record.ID) or "."
            for alt in alts:
                yield Variant(number, record.CHROM, record.POS, name, record.REF.upper(), alt)
            number = lines.number
    except EOFError as error:
        raise ValueError(f"{source}: the gzip file is truncated; fetch it again") from error
    except (gzip.BadGzipFile, zlib.error, UnicodeDecodeError) as error:
        raise ValueError(f"{source}: not a readable VCF file ({error}); fetch it again") from error
    except (VCFPyException, ValueError, IndexError, KeyError) as error:
        place = f"{source}:{number or lines.number}"
        raise ValueError(
            f"{place}: not a VCF {'record' if number else 'header'} ({describe_error(error)}); "
            "fix the line, or fetch the file again if it was cut short"
        ) from error


class InfoField(NamedTuple):
    """The declaration of a field of the INFO column.

    Attributes:
        name: Its ID.
        number: Number of values, ``A`` for one for each alternative allele, ``.`` for any.
        type: Type of a value.
        description: What it means.
    """

    name: str
    number: str
    type: Literal["Float", "Integer", "String"]
    description: str


Values = Mapping[str, Sequence[str | None]]


def annotated_header(files: Sequence[Path], fields: Sequence[InfoField]) -> list[str]:
    """Read the header of an annotated copy of VCF files.

    It consists of the meta-information of the first file, those lines of the others that declare
    something new, the declarations of the fields, and the columns. Older declarations of the same
    fields are left out.

    Args:
        files: Files that ``read_vcf`` reads.
        fields: The fields.

    Raises:
        ValueError: If the files have different columns, for example other samples.
    """
    keys = ("ID", "Number", "Type", "Description")
    declared = {
        f"##INFO=<ID={field.name}": InfoHeaderLine.from_mapping(
            dict(zip(keys, field, strict=True))
        ).serialize()
        for field in fields
    }
    known, columns = dict.fromkeys(declared, ""), ""
    for path in files:
        for line in _lines(path):
            if not line.startswith("##"):
                if line != (columns or line):
                    raise ValueError(
                        f"{path}: must have the columns of {files[0]} to be in one annotated file, "
                        f"got {_short(line)}, and there {_short(columns)}; annotate the files one "
                        "by one"
                    )
                columns = line
                break
            known.setdefault(_subject(line), line)
    return [*filter(None, known.values()), *declared.values(), columns]


def _subject(line: str) -> str:
    """Return what a line of meta-information declares, the same for two declarations of it."""
    key, _, content = line.partition("=")
    if content.startswith("<ID="):
        return f"{key}={re.split('[,>]', content, maxsplit=1)[0]}"
    return key if key == "##fileformat" else line


def _short(line: str) -> str:
    samples = line.split("\t")[_FIXED_COLUMNS + 1 :]
    return f"{len(samples):,} samples" + (f" from {samples[0]!r} on" if samples else "")


def _lines(path: Path) -> Iterator[str]:
    """Yield the lines that are not blank, without their ends."""
    with _open(path) as stream:
        for line in stream:
            if line.strip():
                yield line.rstrip("\r\n")


@contextmanager
def annotating_vcf(
    out: Path, files: Sequence[Path], fields: Sequence[InfoField]
) -> Iterator[Callable[[Values], None]]:
    """Yield a function that copies the next record, and which takes its values of some fields.

    The file is there if the block succeeds. Nothing but the INFO column of a record is changed;
    older values of the fields are removed from it.

    Args:
        out: The file to write, bgzip if its name ends in ``.gz`` or ``.bgz``.
        files: Files that ``read_vcf`` reads; the records of all of them are copied, in this order.
        fields: The fields.

    Raises:
        OSError: If the file cannot be written.
        ValueError: See ``annotated_header``.
    """
    names = {field.name for field in fields}
    records = (line for line in chain.from_iterable(map(_lines, files)) if not line.startswith("#"))

    def write(values: Values) -> None:
        columns = next(records).split("\t", _FIXED_COLUMNS)
        old = [entry for entry in columns[_INFO].split(";") if entry not in ("", ".")]
        entries = [entry for entry in old if entry.partition("=")[0] not in names]
        for name, content in values.items():
            # VCF 4.2 allows no spaces here.
            texts = ("." if text is None else text.replace(" ", "_") for text in content)
            entries.append(f"{name}={','.join(format_atomic(text, 'INFO') for text in texts)}")
        columns[_INFO] = ";".join(entries) or "."
        put("\t".join(columns))

    with replacing(out) as temporary:
        zipped = out.suffix in (".gz", ".bgz")
        with BgzfWriter(temporary, "wb") if zipped else temporary.open("wb") as stream:

            def put(line: str) -> None:
                stream.write(f"{line}\n".encode())

            for line in annotated_header(files, fields):
                put(line)
            yield write

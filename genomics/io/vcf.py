"""Read the sites and alleles of VCF files, plain, gzip or bgzip; genotypes are ignored."""

from __future__ import annotations

import gzip
import re
import warnings
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path

import vcfpy
from vcfpy.exceptions import VCFPyException

from genomics.io.fasta import check_bgzf_end, check_file, is_bgzip
from seqdiff.cells import describe_error
from seqdiff.files import is_gzip

_SITE_COLUMNS = 5  # CHROM POS ID REF ALT; then QUAL FILTER INFO
_FIXED_COLUMNS = 8
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
    opener = gzip.open if is_gzip(source) else open
    with opener(source, "rt", encoding="utf-8") as stream:
        yield from _parse(source, _SiteLines(stream))


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

"""VCF files, plain, gzip or bgzip, read line by line by vcfpy: sites and alleles, no genotypes."""

from __future__ import annotations

import gzip
import warnings
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path

import vcfpy
from vcfpy.exceptions import VCFPyException

from genomics.io.fasta import check_bgzf_end, check_file, is_bgzip, is_gzip

_SITE_COLUMNS = 5  # CHROM POS ID REF ALT; then QUAL FILTER INFO
_FIXED_COLUMNS = 8


@dataclass(frozen=True)
class Variant:
    """One alternative allele of a line.

    Attributes:
        line: Of the file, from 1.
        chrom: Chromosome name.
        pos: First base of ``ref``, from 1, as the file has it.
        name: The ID column; ``.`` without one.
        ref: Letters in upper case.
        alt: Letters in upper case, or what stands there in place of letters, such as ``<DEL>``.
    """

    line: int
    chrom: str
    pos: int
    name: str
    ref: str
    alt: str

    @property
    def start(self) -> int:
        """First base of ``ref``, from 0."""
        return self.pos - 1


class _SiteLines:
    """The lines of a VCF file, without blank ones and without what follows a site.

    Attributes:
        number: Of the last line that was given, from 1.
    """

    def __init__(self, stream: TextIOWrapper) -> None:
        self.number = 0
        self._stream = stream

    def readline(self) -> str:
        """Give the next line, empty at the end: what vcfpy asks of a stream."""
        for line in iter(self._stream.readline, ""):
            self.number += 1
            if line.startswith("##"):
                return line
            if line.strip():
                columns = line.rstrip("\r\n").split("\t", _FIXED_COLUMNS)[:_FIXED_COLUMNS]
                if not line.startswith("#"):
                    columns[_SITE_COLUMNS:] = "." * len(columns[_SITE_COLUMNS:])
                return "\t".join(columns) + "\n"
        self.number += 1
        return ""


def read_vcf(path: str | Path) -> Iterator[Variant]:
    """Stream the alleles of a VCF file, one at a time, in the order of the file.

    Args:
        path: The file.

    Returns:
        One for each alternative allele; one with the alternative ``.`` for a line without any.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is truncated or damaged, or no VCF, or a line is no record. The
            message names the file, and the line where there is one.
    """
    source = Path(path)
    check_file(source)
    if is_bgzip(source):
        check_bgzf_end(source)
    opener = gzip.open if is_gzip(source) else open
    with opener(source, "rt", encoding="utf-8") as stream:
        yield from _parse(source, _SiteLines(stream))


def _open(lines: _SiteLines) -> vcfpy.Reader:
    """Read the header, without warnings of what we have no use for."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return vcfpy.Reader.from_stream(lines)  # pyright: ignore[reportArgumentType]


def _parse(source: Path, lines: _SiteLines) -> Iterator[Variant]:
    # The parser reads one line ahead, so a record stands on the line before the last one given.
    number = 0
    try:
        reader = _open(lines)
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
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(
            f"{place}: not a VCF {'record' if number else 'header'} ({reason}); mend the line, or "
            "fetch the file again if it was cut short"
        ) from error

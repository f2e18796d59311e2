"""Indexed access to single intervals of a FASTA file, without encoding the whole file."""

from __future__ import annotations

import hashlib
import os
import secrets
import struct
import zlib
from pathlib import Path

import pyfaidx

from genomics.io.fasta import check_bgzf_end, check_file, is_bgzip, read_encoded
from genomics.io.genome import describe_names, make_cache_folder
from genomics.sequence import ENCODE_TABLE, Interval, check_encoded
from seqdiff.cells import describe_error
from seqdiff.files import is_gzip

# Exceptions of pyfaidx and Bio.bgzf for damaged files and files that are not FASTA.
_INVALID_FILE = (
    pyfaidx.FastaIndexingError,
    ValueError,
    EOFError,
    RuntimeError,
    struct.error,
    zlib.error,
)


class IndexedFasta:
    """Random access to a FASTA file by pyfaidx, with the index in the cache.

    Use it to read single intervals on their strand, and ``load_genome`` to train on a genome. For
    example, read the sequence of every row of a BED file::

        fasta = IndexedFasta("hg38.fa.gz")
        sequences = [fasta.fetch(row) for row in read_bed("promoters.bed", fasta.lengths)]

    Attributes:
        path: The FASTA file.
        lengths: Bases of each record, by name, in file order.
    """

    def __init__(self, path: str | Path) -> None:
        """Open a .fa or bgzip .fa.gz file; the first call builds the index.

        Raises:
            FileNotFoundError: If the file does not exist.
            OSError: If the index cannot be written.
            ValueError: If the file is plain gzip, truncated or damaged, if its lines differ in
                length, if a name is repeated, or if a record has no bases.
        """
        self.path = Path(path)
        check_file(self.path)
        if is_gzip(self.path) and not is_bgzip(self.path):
            name = self.path.name.removesuffix(".gz")
            raise ValueError(
                f"{self.path}: plain gzip cannot be indexed; "
                f"run: gunzip -c {self.path} | bgzip > {name}.bgz and use that file"
            )
        if is_gzip(self.path) != (self.path.suffix in {".gz", ".bgz"}):
            raise ValueError(
                f"{self.path}: the name must end in .gz or .bgz exactly when the file is "
                "compressed; rename it"
            )
        if is_bgzip(self.path):
            check_bgzf_end(self.path)
        self._fasta = self._open()
        self.lengths: dict[str, int] = {name: len(self._fasta[name]) for name in self._fasta.keys()}
        empty = [name for name, length in self.lengths.items() if length == 0]
        if empty:
            for _ in read_encoded(self.path):
                pass  # raises an error with the record's name and line
        assert not empty, self.path

    def _open(self) -> pyfaidx.Fasta:
        status = self.path.stat()
        key = f"{self.path.resolve()}\n{status.st_size}\n{status.st_ino}\n{status.st_mtime_ns}"
        stem = make_cache_folder() / hashlib.sha256(key.encode()).hexdigest()[:32]
        fai, gzi = stem.with_suffix(".fai"), stem.with_suffix(".gzi")
        try:
            if not fai.exists() or (is_bgzip(self.path) and not gzi.exists()):
                self._index(fai, gzi)
            return pyfaidx.Fasta(
                self.path, indexname=fai, gzi_indexname=gzi, as_raw=True, build_index=False
            )
        except _INVALID_FILE as error:
            raise ValueError(
                f"{self.path}: cannot be indexed ({describe_error(error)}); it must be FASTA "
                "with lines of equal length and unique names: rewrite it, or fetch it again if it "
                "is damaged"
            ) from error

    def _index(self, fai: Path, gzi: Path) -> None:
        """Build the index under temporary names, so that concurrent processes do not collide."""
        suffix = f".{os.getpid()}.{secrets.token_hex(4)}.tmp"
        temporary = [Path(f"{target}{suffix}") for target in (gzi, fai)]
        try:
            pyfaidx.Faidx(self.path, indexname=temporary[1], gzi_indexname=temporary[0]).close()
            for made, target in zip(temporary, (gzi, fai), strict=True):
                if made.exists():
                    os.replace(made, target)
        finally:
            for made in temporary:
                made.unlink(missing_ok=True)

    def fetch(self, interval: Interval) -> str:
        """Read an interval in the case of the file, reverse complemented on the strand '-'.

        Raises:
            ValueError: If the interval does not lie inside a record or is not DNA.
        """
        chrom, start, end = interval.chrom, interval.start, interval.end
        if chrom not in self.lengths:
            raise ValueError(
                f"{self.path}: no record {chrom!r}; "
                f"choose one of {describe_names(tuple(self.lengths))}"
            )
        if end > self.lengths[chrom]:
            raise ValueError(
                f"IndexedFasta.fetch must lie inside {chrom} (0..{self.lengths[chrom]}), "
                f"got [{start}, {end}); use another interval"
            )
        sequence = str(self._fasta[chrom][start:end])
        text = sequence.encode("latin-1", "replace")
        where = f"{self.path}: record {chrom!r}"
        check_encoded(text.translate(ENCODE_TABLE), text, where=where, offset=start)
        return pyfaidx.complement(sequence)[::-1] if interval.strand == "-" else sequence

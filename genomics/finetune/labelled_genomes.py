"""Genomes of interval tasks, and the records that the regions of intervals name."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import yaml

from genomics.io import IndexedFasta, check_file
from genomics.sequence import Interval

_ENDINGS = ("", ".bgz", ".gz")
_MITOCHONDRIAL = ("M", "MT")
_VERSIONED = re.compile(r"(ENS[A-Z]*[0-9]{11})\.[0-9]+")


class ClassSource(NamedTuple):
    """The entry of a class in ``metadata.yaml``.

    Attributes:
        where: File and line.
        url: URL of its genome; "" without one.
    """

    where: str
    url: str = ""


class ClassGenome:
    """A genome, and the names that intervals have for its records.

    The published reader of Genomic Benchmarks adds ``chr`` to the names of an Ensembl genome and
    removes the versions of Ensembl transcripts, as ``extra_processing`` in ``metadata.yaml`` says.
    Here a region names the record of exactly the same name, if there is one. Otherwise it names the
    record that differs only in ``chr`` (except for mitochondria, because chrM of UCSC was a
    different sequence from MT), or only in the version of an Ensembl name, if one of the two names
    has no version.

    Attributes:
        fasta: The genome.
        name: Name of its file, without .gz.
    """

    def __init__(self, path: Path) -> None:
        """Open a genome.

        Raises:
            FileNotFoundError: If there is no such file.
            OSError: If its index cannot be written.
            ValueError: If it is invalid, see ``IndexedFasta``.
        """
        self.fasta = IndexedFasta(path)
        self.name = _unpacked(path.name)
        self._records = _other_names(self.fasta.lengths)

    def record(self, region: str) -> str:
        """Find the record that a region names.

        Returns:
            The name of the record; ``region`` if there is none.
        """
        if region in self.fasta.lengths:
            return region
        unversioned = _without_version(region)
        if unversioned is not None and unversioned in self.fasta.lengths:
            return unversioned
        return self._records.get(region) or region

    def cut(self, interval: Interval) -> tuple[str, Interval]:
        """Read an interval.

        Returns:
            Its bases, and the interval with ``genome:record`` as its chromosome, because two
            genomes may have records of the same name.

        Raises:
            ValueError: If it does not lie inside a record.
        """
        found = replace(interval, chrom=self.record(interval.chrom))
        bases = self.fasta.fetch(found)
        return bases, replace(found, chrom=f"{self.name}:{found.chrom}")


def _unpacked(name: str) -> str:
    return name.removesuffix(".gz").removesuffix(".bgz")


def _without_version(name: str) -> str | None:
    match = _VERSIONED.fullmatch(name)
    return match[1] if match else None


def _other_names(records: Iterable[str]) -> dict[str, str | None]:
    """Map alternative names to records; ``None`` for a name that fits two records."""
    found: dict[str, str | None] = {}
    for record in records:
        short = record.removeprefix("chr")
        other = _without_version(record)
        if other is None and short not in _MITOCHONDRIAL:
            other = short if short != record else f"chr{record}"
        if other is not None:
            found[other] = None if other in found else record
    return found


def read_metadata(path: Path) -> dict[str, ClassSource]:
    """Read the classes of a ``metadata.yaml``, and their places in the file.

    Raises:
        ValueError: If it is not YAML with classes; the message begins with the file, and the line
            if it is known.
    """
    try:
        root = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark is not None else ""
        reason = " ".join(str(error).split())
        raise ValueError(f"{path}{line}: must be YAML ({reason}); copy it again") from error
    classes = _value(root, "classes")
    if isinstance(classes, yaml.MappingNode):
        pairs = [(key, _value(value, "url")) for key, value in classes.value]
    elif isinstance(classes, yaml.SequenceNode):
        pairs = [(name, None) for name in classes.value]
    else:
        line = 1 if classes is None else classes.start_mark.line + 1
        raise ValueError(f"{path}:{line}: must name classes, got none; copy it again")
    return {
        str(name.value): ClassSource(
            f"{path}:{(url or name).start_mark.line + 1}",
            url.value if isinstance(url, yaml.ScalarNode) else "",
        )
        for name, url in pairs
    }


def _value(node: yaml.Node | None, key: str) -> yaml.Node | None:
    pairs = node.value if isinstance(node, yaml.MappingNode) else []
    return next((value for name, value in pairs if name.value == key), None)


def find_genomes(task: Path, classes: Iterable[str], fasta: Path | None) -> dict[str, Path]:
    """Find the genome of each class of an interval task.

    Args:
        task: Folder of the task.
        classes: Names of its classes.
        fasta: A file for all classes, or a folder with the files that the URLs in
            ``metadata.yaml`` name, decompressed, in bgzip format, or as downloaded.

    Raises:
        FileNotFoundError: If a file does not exist; the message says where to get it.
        ValueError: If no genome is given, or the metadata do not name one.
    """
    if fasta is None:
        raise ValueError(
            f"finetune.fasta must be given for the intervals of {task}, got none; "
            "give the genome that they are cut from, or a folder of genomes"
        )
    if not fasta.is_dir():
        check_file(fasta)
        return dict.fromkeys(classes, fasta)
    metadata = task / "metadata.yaml"
    sources = read_metadata(metadata) if metadata.is_file() else {}
    return {
        name: _find_genome(name, sources.get(name, ClassSource(str(metadata))), fasta)
        for name in sorted(classes)
    }


def _find_genome(name: str, source: ClassSource, folder: Path) -> Path:
    stem = _unpacked(source.url.rsplit("/", 1)[-1])
    if not stem:
        raise ValueError(
            f"{source.where}: class {name!r} must have the URL of its genome if --fasta is a "
            "folder, got none; set --fasta to the file"
        )
    files = [folder / (stem + ending) for ending in _ENDINGS]
    found = next((file for file in files if file.is_file()), None)
    if found is None:
        # The FTP servers provide the same files by HTTPS.
        url = re.sub(r"^ftp://", "https://", source.url)
        raise FileNotFoundError(
            f"{source.where}: class {name!r} is cut from {stem}, which {folder} must hold (plain "
            f"or bgzip), got no such file; run: seqdiff fetch {url} --checksum ALGORITHM:DIGEST "
            f"--out {folder}"
        )
    return found

"""Loading of runs on DNA."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import torch

from genomics.sequence import DNATokenizer
from seqdiff.cells import say
from seqdiff.data import CountingTokenizer
from seqdiff.run import Run, guide, load


def load_dna_run(
    command: str, directory: Path, device: torch.device, units: Collection[str] = ()
) -> Run:
    """Load a run on DNA, for use without a label.

    Args:
        command: Name of the command, for error messages.
        directory: Run directory or hub folder.
        device: Device of the network.
        units: Units of tokenizers with other tokens than single bases that will do.

    Raises:
        FileNotFoundError: See ``load``.
        ValueError: If the run is not on DNA, or the model needs a label; see ``load``.
    """
    return as_dna_run(command, load(directory, device=device), units)


def as_dna_run(command: str, run: Run, units: Collection[str] = ()) -> Run:
    """Return a run on DNA, for use without a label; see ``load_dna_run``.

    Raises:
        ValueError: If the run is not on DNA, or the model needs a label.
    """
    tokenizer = run.tokenizer
    unit = tokenizer.unit if isinstance(tokenizer, CountingTokenizer) else run.datamodule.token_name
    counts = isinstance(tokenizer, CountingTokenizer) and unit in units
    if not counts and not _reads_bases(run):
        if unit == "base":
            raise ValueError(
                f"{command}.directory must be a run whose tokens are single bases, got "
                f"{run.directory}, whose tokens are longer; choose another run"
            )
        raise ValueError(
            f"{command}.directory must be a run on DNA, got {run.directory}, which is on "
            f"{unit}s; choose another run"
        )
    return guide(command, run, None)


def _reads_bases(run: Run) -> bool:
    return run.tokenizer.fingerprint == DNATokenizer().fingerprint


def choose_window(command: str, run: Run, window: int | None) -> int:
    """Choose how many bases the network sees at a time.

    Args:
        command: Name of the command, for error messages.
        run: The run.
        window: Requested number; ``None`` means the length of the training rows.

    Raises:
        ValueError: If the network does not support the length, or no length was requested and the
            training rows differ in length.
    """
    learnt, most = run.datamodule.context_length, run.max_length
    chosen = learnt if window is None else window
    if chosen is not None and chosen >= 2 and not _reads_bases(run):
        return chosen  # how many tokens it has is known when it is tokenized
    if chosen is None:
        raise ValueError(
            f"{command}.window must be given for a run whose training rows differ in length, got "
            f"{run.directory}; add --window 1024"
        )
    if chosen < 2 or (most is not None and chosen > most):
        limit = "" if most is None else f" and at most {most}, the most that the network supports"
        raise ValueError(
            f"{command}.window must be at least 2{limit}, got {chosen}; leave out --window"
        )
    if learnt is not None and chosen > learnt:
        say(
            f"seqdiff: warning: {command} extrapolates: windows have {chosen:,} bases, but "
            f"{run.directory} was trained on rows of {learnt:,}",
            error=True,
        )
    return chosen

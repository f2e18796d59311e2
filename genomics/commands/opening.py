"""Loading of runs on DNA."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from genomics.sequence import DNATokenizer
from seqdiff.run import Run, guide, load


def load_dna_run(command: str, directory: Path, device: torch.device) -> Run:
    """Load a run of DNA, as a model without a label.

    Args:
        command: Who asks, for the messages.
        directory: Run directory.
        device: Where the network goes.

    Raises:
        FileNotFoundError: See ``load``.
        ValueError: If it is no model of DNA, or cannot do without a label; see ``load``.
    """
    run = load(directory, device=device)
    if run.tokenizer.fingerprint != DNATokenizer().fingerprint:
        raise ValueError(
            f"{command}.directory must be a run on DNA, got {directory}, whose tokenizer is "
            f"{run.tokenizer.fingerprint}; choose another run"
        )
    return guide(command, run, None)


def choose_window(command: str, run: Run, window: int | None) -> int:
    """Choose how many bases the network sees at a time.

    Args:
        command: Who asks, for the messages.
        run: The run.
        window: What was asked for; ``None`` takes the length of the rows of the training.

    Raises:
        ValueError: If the network takes no such row, or nothing was asked for and rows of the
            training had no one length.
    """
    learnt, most = run.datamodule.context_length, run.max_length
    chosen = learnt if window is None else window
    if chosen is None:
        raise ValueError(
            f"{command}.window must be given for a run whose training rows had no one length, got "
            f"{run.directory}; add --window 1024"
        )
    if chosen < 2 or (most is not None and chosen > most):
        limit = "" if most is None else f" and at most {most}, all that the network takes"
        raise ValueError(
            f"{command}.window must be at least 2{limit}, got {chosen}; leave out --window"
        )
    if learnt is not None and chosen > learnt:
        print(
            f"seqdiff: warning: {command} extrapolates: windows have {chosen:,} bases, the rows "
            f"that {run.directory} was trained on {learnt:,}",
            file=sys.stderr,
        )
    return chosen

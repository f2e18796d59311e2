"""Draw sequences from a run under a bar, for ``sample`` and other subcommands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Int, Int64
from torch import Tensor

from seqdiff.data.templates import Templates
from seqdiff.run import Run, load_run
from seqdiff.sampler_config import build_sampler
from seqdiff.samplers import Recorder, Sampler
from seqdiff.samplers.draws import row_seeds
from seqdiff.subcommands.terminal import progress

_DEFAULT, _DEFAULT_IF_CAUSAL = "first_hitting", "left_to_right"

# A token's id and, for two symbols, their probabilities and noise: what any sampler holds at least.
_BYTES_PER_TOKEN = 64


def check_memory(sequences: int, length: int, device: torch.device) -> None:
    """Refuse, before slow work, sequences that cannot fit; the network needs more on top.

    Args:
        sequences: Drawn at a time.
        length: Tokens in each.
        device: Where.

    Raises:
        ValueError: If there is not even room for the tokens.
    """
    try:
        torch.empty((sequences, length, _BYTES_PER_TOKEN), dtype=torch.uint8, device=device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(
            f"sample.length must fit in the memory of {device}, got {sequences} of {length:,} "
            "tokens at a time; lower --length or --batch_size"
        ) from error


def open_run(
    directory: Path, sampler: str | None, flags: Sequence[str], device: torch.device
) -> tuple[Run, Sampler]:
    """Build the sampler that is asked for, then load the run.

    Args:
        directory: Of the run.
        sampler: Its name; ``None`` is the default of such a run.
        flags: The sampler's options.
        device: Where the network goes.

    Raises:
        FileNotFoundError: See ``load_run``.
        ValueError: See ``build_sampler`` and ``load_run``.
    """
    chosen = build_sampler(sampler or _DEFAULT, flags)
    trained = load_run(directory, device=device)
    if sampler is None and trained.denoiser.causal:
        chosen = build_sampler(_DEFAULT_IF_CAUSAL, flags)
    return trained, chosen


def draw(
    run: Run,
    sampler: Sampler,
    templates: Templates,
    *,
    seed: int,
    batch_size: int,
    recorder: Recorder | None = None,
) -> list[str]:
    """Draw decoded sequences under a progress bar.

    Only sequences of one length share a batch, so none is padded.

    Args:
        run: The run.
        sampler: How to draw.
        templates: What is given of each sequence.
        seed: Of the sequences; each has a seed of its own drawn from this one.
        batch_size: Drawn at a time; the sequences do not depend on it.
        recorder: Keeps every step.
    """
    num = len(templates.names)
    seeds = row_seeds(num, torch.Generator().manual_seed(seed))
    sequences = [""] * num
    done = 0
    reached = 0.0  # never falls, though a sampler may hide tokens again

    def show(step: int, x_t: Int[Tensor, "B L"]) -> None:
        nonlocal reached
        known = (x_t != run.process.mask_id).double().mean(dim=1).sum()
        reached = max(reached, done + float(known))
        bar.update(task, completed=reached)
        if recorder is not None:
            recorder(step, x_t)

    with progress() as bar:
        task = bar.add_task("sampling", total=num)
        for numbers in _batches(templates.lengths, batch_size):
            x_init, allowed = _start(run, templates, numbers, seeds)
            if recorder is not None:
                recorder.start(x_init, numbers)
            drawn = sampler.sample(
                run.denoiser,
                run.process,
                x_init,
                seeds=seeds[numbers].to(x_init.device),
                allowed=allowed,
                callback=show,
            )
            for number, row in zip(numbers, drawn.tokens.cpu().numpy(), strict=True):
                sequences[number] = run.tokenizer.decode(row)
            done += len(numbers)
            bar.update(task, completed=done)
    return sequences


def _batches(lengths: list[int], batch_size: int) -> Iterator[list[int]]:
    """Cut the numbers of sequences into batches of one length."""
    order = sorted(range(len(lengths)), key=lambda number: lengths[number])
    for _, group in groupby(order, key=lambda number: lengths[number]):
        alike = list(group)
        for first in range(0, len(alike), batch_size):
            yield alike[first : first + batch_size]


def _start(
    run: Run, templates: Templates, numbers: list[int], seeds: Int64[Tensor, " n"]
) -> tuple[Int64[Tensor, "B L"], Bool[Tensor, "B L K"] | None]:
    """Stack templates on the run's device."""
    device = next(run.denoiser.parameters()).device
    found = [templates.template(number, int(seeds[number])) for number in numbers]
    x_init = torch.from_numpy(np.stack([template.tokens for template in found])).to(device)
    if all(template.allowed is None for template in found):
        return x_init, None
    every = np.ones((x_init.shape[1], run.process.vocab_size), dtype=bool)
    stacked = [every if template.allowed is None else template.allowed for template in found]
    return x_init, torch.from_numpy(np.stack(stacked)).to(device)

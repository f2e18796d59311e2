"""Draw sequences from a run under a bar, for ``sample`` and other subcommands."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int, Int64
from torch import Tensor

from seqdiff.data.templates import Templates
from seqdiff.run import Run
from seqdiff.samplers import Recorder, Sampler
from seqdiff.subcommands.terminal import progress

# A token's id and, for two symbols, their probabilities and noise: what any sampler holds at least.
_BYTES_PER_TOKEN = 64
_SECONDS_BETWEEN_LOOKS = 0.1


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


class Drawn(NamedTuple):
    """What was drawn.

    Attributes:
        sequences: Decoded.
        lengths: Tokens of each.
        clamped: Draws whose probabilities had to be scaled down, from a sampler that counts them.
    """

    sequences: list[str]
    lengths: list[int]
    clamped: int | None = None


def draw(
    run: Run,
    sampler: Sampler,
    templates: Templates,
    *,
    seed: int,
    batch_size: int,
    recorder: Recorder | None = None,
) -> Drawn:
    """Draw decoded sequences under a progress bar.

    Only sequences of one length share a batch, so none is padded.

    Args:
        run: The run.
        sampler: How to draw.
        templates: What is given of each sequence.
        seed: Of the sequences; the seed of each follows from it, see ``Run.row_seeds``.
        batch_size: Drawn at a time; the sequences do not depend on it.
        recorder: Keeps every step.
    """
    num = len(templates.names)
    seeds = run.row_seeds(num, seed)
    sequences, lengths = [""] * num, [0] * num
    done, clamped = 0, None
    steps = getattr(sampler, "num_steps", None)
    reached = 0.0  # never falls, though a sampler may hide tokens again
    due = 0.0  # looking at all tokens after each step would take time like their number squared

    def show(step: int, x_t: Int[Tensor, "B L"]) -> None:
        nonlocal reached, due
        if recorder is not None:
            recorder(step, x_t)
        if time.monotonic() < due:
            return
        share = float((x_t != run.process.unknown_id).double().mean())
        if steps is not None:  # a noisy token may look like a known one until the last step
            share = min(share, step / steps)
        reached = max(reached, done + share * len(x_t))
        bar.update(task, completed=reached)
        due = time.monotonic() + _SECONDS_BETWEEN_LOOKS

    with progress() as bar:
        task = bar.add_task("sampling", total=num)
        for numbers in _batches(templates.lengths, batch_size):
            x_init, allowed = _start(run, templates, numbers, seeds)
            if recorder is not None:
                recorder.start(x_init, numbers)
            drawn = sampler.sample(
                run.denoiser,
                x_init,
                seeds=seeds[numbers].to(x_init.device),
                allowed=allowed,
                callback=show,
            )
            if drawn.clamped is not None:
                clamped = (clamped or 0) + int(drawn.clamped.sum())
            full = [x_init.shape[1]] * len(numbers)
            ends = full if drawn.length is None else drawn.length.tolist()
            for number, end, row in zip(numbers, ends, drawn.tokens.cpu().numpy(), strict=True):
                lengths[number] = end
                sequences[number] = run.tokenizer.decode(row[:end])
            done += len(numbers)
            bar.update(task, completed=done)
    return Drawn(sequences, lengths, clamped)


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

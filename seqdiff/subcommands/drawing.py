"""Draw sequences from a run under a bar, for ``sample`` and other subcommands."""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor

from seqdiff.run import Run
from seqdiff.samplers import Recorder, Sampler
from seqdiff.samplers.draws import row_seeds
from seqdiff.subcommands.terminal import progress

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


def draw(
    run: Run,
    sampler: Sampler,
    *,
    num: int,
    length: int,
    seed: int,
    batch_size: int,
    recorder: Recorder | None = None,
) -> list[str]:
    """Draw decoded sequences under a progress bar.

    Args:
        run: The run.
        sampler: How to draw.
        num: Number of sequences.
        length: Tokens in each.
        seed: Of the sequences; each has a seed of its own drawn from this one.
        batch_size: Drawn at a time; the sequences do not depend on it.
        recorder: Keeps every step.
    """
    device = next(run.denoiser.parameters()).device
    seeds = row_seeds(num, torch.Generator().manual_seed(seed)).to(device)
    sequences: list[str] = []
    reached = 0.0  # never falls, though a sampler may hide tokens again

    def show(step: int, x_t: Int[Tensor, "B L"]) -> None:
        nonlocal reached
        known = int((x_t != run.process.mask_id).sum())
        reached = max(reached, len(sequences) + known / length)
        bar.update(task, completed=reached)
        if recorder is not None:
            recorder(step, x_t)

    with progress() as bar:
        task = bar.add_task("sampling", total=num)
        for first in range(0, num, batch_size):
            shape = (min(batch_size, num - first), length)
            x_init = run.process.prior(shape, device)
            rows = seeds[first : first + batch_size]
            if recorder is not None:
                recorder.start(x_init, range(first, first + len(x_init)))
            drawn = sampler.sample(run.denoiser, run.process, x_init, seeds=rows, callback=show)
            sequences += [run.tokenizer.decode(row) for row in drawn.tokens.cpu().numpy()]
            bar.update(task, completed=len(sequences))
    return sequences

"""Draw sequences from a run."""

from __future__ import annotations

import torch

from seqdiff.run import Run
from seqdiff.samplers import Sampler
from seqdiff.subcommands.terminal import progress


def draw(
    run: Run, sampler: Sampler, *, num: int, length: int, seed: int, batch_size: int
) -> list[str]:
    """Draw decoded sequences under a progress bar.

    Args:
        run: The run.
        sampler: How to draw.
        num: Number of sequences.
        length: Tokens in each.
        seed: The same seed and batch size give the same sequences.
        batch_size: Drawn at a time.
    """
    device = next(run.denoiser.parameters()).device
    generator = torch.Generator(device).manual_seed(seed)
    sequences: list[str] = []
    with progress() as bar:
        task = bar.add_task("sampling", total=num)
        for first in range(0, num, batch_size):
            shape = (min(batch_size, num - first), length)
            x_init = run.process.prior(shape, device)
            drawn = sampler.sample(run.denoiser, run.process, x_init, generator=generator)
            sequences += [run.tokenizer.decode(row) for row in drawn.tokens.cpu().numpy()]
            bar.advance(task, shape[0])
    return sequences

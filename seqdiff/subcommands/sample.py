"""``seqdiff sample``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from seqdiff.commands import find_writer
from seqdiff.files import check_parent, replacing
from seqdiff.subcommands.common import add_device, choose_device, progress

if TYPE_CHECKING:
    from seqdiff.run import Run
    from seqdiff.samplers import Sampler

help = "draw sequences from a run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See ``Command``."""
    parser.add_argument("directory", type=Path, metavar="RUN", help="run directory")
    parser.add_argument("--num", type=int, required=True, help="number of sequences")
    parser.add_argument("--length", type=int, required=True, help="tokens in each")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="its suffix chooses the format"
    )
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--num-steps", type=int, metavar="T", help="default: the length")
    parser.add_argument("--batch-size", type=int, default=32, help="drawn at a time")
    add_device(parser)


def run(args: argparse.Namespace) -> None:
    """See ``Command``."""
    for name in ("num", "length", "batch_size"):
        if getattr(args, name) < 1:
            raise ValueError(
                f"sample.{name} must be at least 1, got {getattr(args, name)}; raise it"
            )
    writer = find_writer(args.out)
    check_parent("sample.out", args.out)
    from seqdiff.run import load_run
    from seqdiff.samplers import AncestralSampler

    trained = load_run(args.directory, device=choose_device(args))
    steps = args.length if args.num_steps is None else args.num_steps
    sequences = draw(
        trained,
        AncestralSampler(steps),
        num=args.num,
        length=args.length,
        seed=args.seed,
        batch_size=args.batch_size,
    )
    with replacing(args.out) as temporary:
        writer(temporary, sequences, [f"sample_{i}" for i in range(args.num)])
    print(f"{args.out}: {args.num} sequences of {args.length} tokens")


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
    import torch

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

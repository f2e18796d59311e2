"""Samples that a run draws to be judged, in place of a file of samples."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING

from seqdiff.subcommands.common import check_count, check_seed

if TYPE_CHECKING:
    import torch

    from seqdiff.run import Run
    from seqdiff.samplers import Sampler

_NUM = 64
_OPTIONS = ("num_samples", "length", "extrapolate", "sampler", "seed")


def add_drawing(parser: argparse.ArgumentParser) -> None:
    """Declare what a run can be told, as ``seqdiff sample`` is."""
    parser.epilog = (
        "Beside a RUN any option of the sampler may follow, for example --temperature 0.8; "
        "seqdiff samplers NAME lists them."
    )
    parser.add_argument(
        "--num_samples", type=int, metavar="N", help=f"to draw from a RUN; default: {_NUM}"
    )
    parser.add_argument(
        "--length", type=int, metavar="L", help="tokens in each; default: those of a training row"
    )
    parser.add_argument(
        "--extrapolate",
        action="store_true",
        default=None,
        help="draw samples longer than those that the run was trained on",
    )
    parser.add_argument(
        "--sampler",
        metavar="NAME",
        help="one of those that seqdiff samplers lists; default: that of seqdiff sample for "
        "such a run",
    )
    parser.add_argument("--seed", type=int, help="of the draws; default: 0")
    parser.set_defaults(flags=[])


def refuse_drawing(owner: str, args: argparse.Namespace) -> None:
    """Refuse what a file of samples has no use for.

    Args:
        owner: The command, for the message.
        args: What was given.

    Raises:
        ValueError: If any of it was given.
    """
    given = [f"--{name}" for name in _OPTIONS if getattr(args, name) is not None]
    if args.flags:
        raise ValueError(
            f"{owner}: unrecognized arguments: {' '.join(args.flags)}; options of a sampler go "
            f"with a RUN to draw from, got the file {args.samples}"
        )
    if given:
        raise ValueError(
            f"{owner}: {', '.join(given)} must come with a RUN to draw from, got the file "
            f"{args.samples}; leave out, or give a run directory"
        )


@dataclass(frozen=True)
class Drawing:
    """A run that is about to draw.

    Attributes:
        run: The run.
        sampler: How.
        num: Samples.
        length: Tokens in each.
        seed: Of the draws.
    """

    run: Run
    sampler: Sampler
    num: int
    length: int
    seed: int

    @classmethod
    def open(cls, owner: str, args: argparse.Namespace, device: torch.device) -> Drawing:
        """Load what was asked for, and refuse what cannot be drawn.

        Args:
            owner: The command, for the messages.
            args: What was given.
            device: Where the network goes.

        Raises:
            OSError: If there is no such run.
            ValueError: If the run is not one of text, an option does not fit, or the samples are
                too long.
        """
        num = _NUM if args.num_samples is None else args.num_samples
        seed = 0 if args.seed is None else args.seed
        check_count(f"{owner}.num_samples", num)
        check_seed(f"{owner}.seed", seed)
        if args.length is not None:
            check_count(f"{owner}.length", args.length)
        from seqdiff.subcommands.drawing import check_memory
        from seqdiff.subcommands.given import check_context
        from seqdiff.subcommands.growing import fit_sampler
        from seqdiff.subcommands.opening import open_run

        from .datamodule import TextDataModule

        run, sampler = open_run(args.samples, args.sampler, args.flags, device)
        if not isinstance(run.datamodule, TextDataModule):
            raise ValueError(
                f"{owner}.samples must be a run on text, got {args.samples}, a run on "
                f"{type(run.datamodule).__name__}; choose another"
            )
        extrapolate = bool(args.extrapolate)
        sampler = fit_sampler(sampler, run, stop=None, extrapolate=extrapolate)
        length = args.length or run.datamodule.length
        check_context(f"{owner}.length", length, run, sampler, extrapolate=extrapolate)
        check_memory(min(num, args.batch_size), length, device)
        return cls(run, sampler, num, length, seed)

    def draw(self, batch_size: int) -> list[str]:
        """Draw the samples, ``batch_size`` at a time, on which they do not depend."""
        from seqdiff.data.templates import Blanks
        from seqdiff.subcommands.drawing import draw

        blanks = Blanks(self.num, self.length, self.run.process.unknown_id)
        drawn = draw(self.run, self.sampler, blanks, seed=self.seed, batch_size=batch_size)
        return drawn.sequences

    def __str__(self) -> str:
        """What was drawn, for the title of a report."""
        from seqdiff.samplers.protocol import sampler_name

        unit = self.run.datamodule.token_name
        name = sampler_name(type(self.sampler))
        return f"{self.run.directory}, {self.length:,} {unit}s by {name}, seed {self.seed},"

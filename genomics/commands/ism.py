"""``seqdiff ism``."""

from __future__ import annotations

import argparse
from pathlib import Path

from seqdiff.cli.options import add_device, check_count
from seqdiff.files import check_apart, check_parent

help = "in-silico mutagenesis: an (L, 4) matrix of masked-marginal effects for each record"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See ``seqdiff.cli.commands.Command``."""
    parser.add_argument("directory", type=Path, metavar="RUN", help="run directory")
    parser.add_argument(
        "--fasta", type=Path, required=True, metavar="FILE", help="FASTA, plain, gzip or bgzip"
    )
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="FILE.npz",
        help="arrays to write: names, sequences, and effect_0, effect_1, ... in their order",
    )
    parser.add_argument(
        "--window", type=int, metavar="L", help="bases around a position; default: the run's rows"
    )
    parser.add_argument(
        "--batch_size", type=int, default=32, metavar="B", help="rows of a call; default: 32"
    )
    add_device(parser)


def run(args: argparse.Namespace) -> None:
    """See ``seqdiff.cli.commands.Command``.

    Raises:
        ValueError: If the file or the run cannot be used.
    """
    check_count("ism.batch_size", args.batch_size)
    if args.out.suffix != ".npz":
        raise ValueError(f"ism.out must end in .npz, got {args.out}; rename it")
    check_parent("ism.out", args.out)
    check_apart("ism.out", args.out, {"--fasta": args.fasta})
    import numpy as np

    from genomics.commands.opening import choose_window, load_dna_run
    from genomics.io import read_ids, require_known
    from genomics.sequence import MASK_ID, can_mask, decode
    from genomics.variants import mutation_effects
    from seqdiff.cli.terminal import choose_device, progress
    from seqdiff.files import replacing

    trained = load_dna_run("ism", args.directory, choose_device(args.device))
    if not can_mask(trained.denoiser):
        raise ValueError(
            "ism.directory must be a run of a process with masks alone, got the "
            f"{trained.denoiser.description}; seqdiff variants takes every process"
        )
    window = choose_window("ism", trained, args.window)
    records = read_ids(args.fasta)
    require_known("ism", args.fasta, records)
    known = sum(int((ids != MASK_ID).sum()) for ids in records.values())
    with progress() as bar:
        task = bar.add_task("mutating", total=known)
        effects = [
            mutation_effects(
                trained.denoiser,
                ids,
                window=window,
                batch_size=args.batch_size,
                progress=lambda count: bar.advance(task, count),
            )
            for ids in records.values()
        ]
    letters = [decode(ids) for ids in records.values()]
    named = {f"effect_{number}": effect for number, effect in enumerate(effects)}
    with replacing(args.out) as temporary:
        arrays = {"names": np.array(list(records)), "sequences": np.array(letters), **named}
        np.savez(temporary, **arrays)  # pyright: ignore[reportArgumentType]
    print(f"{args.out}: {len(records):,} records, {known:,} positions, nats against the reference")

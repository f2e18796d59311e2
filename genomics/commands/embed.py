"""``seqdiff embed``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from seqdiff.cli.options import add_device, check_count
from seqdiff.extras import require_extra
from seqdiff.files import check_apart, check_parent, replacing

if TYPE_CHECKING:
    import numpy as np

    from seqdiff.backbones import Backbone
    from seqdiff.run import Run

help = "write the hidden states of each record of a FASTA file, averaged over strands"


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
        metavar="FILE",
        help=".npz: names and embeddings, unpooled embedding_0, embedding_1, ...; .h5ad: AnnData",
    )
    parser.add_argument(
        "--layer",
        type=int,
        metavar="N",
        help="states after N layers, 0 for embedded bases; default: those that the head reads",
    )
    parser.add_argument(
        "--pooling",
        choices=("mean", "none"),
        default="mean",
        help="mean: over known bases; none: a vector a base; default: mean",
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
    check_count("embed.batch_size", args.batch_size)
    _check_out(args.out, args.pooling)
    check_parent("embed.out", args.out)
    check_apart("embed.out", args.out, {"--fasta": args.fasta})
    from genomics.commands.opening import load_dna_run
    from genomics.io import read_ids
    from seqdiff.backbones import require_layer
    from seqdiff.cli.terminal import choose_device

    trained = load_dna_run("embed", args.directory, choose_device(args.device))
    if trained.denoiser.reads_embeddings:
        raise ValueError(
            f"embed.directory must be a run whose network reads bases, got {args.directory} of the "
            f"process {trained.process.name}, which reads noisy vectors; train another process"
        )
    backbone = trained.denoiser.backbone
    require_layer("embed", args.layer, backbone.num_layers)
    records = read_ids(args.fasta)
    _check_records(trained, args.fasta, records, args.pooling)
    vectors = _embed(backbone, list(records.values()), args)
    with replacing(args.out) as temporary:
        _write(temporary, list(records), vectors, pooled=args.pooling == "mean")
    width, which = vectors[0].shape[-1], "the last layer, normalised"
    if args.layer is not None:
        which = f"{args.layer} of {backbone.num_layers} layers"
    each = "record" if args.pooling == "mean" else "base"
    print(f"{args.out}: {len(records):,} records, {width} numbers a {each}, after {which}")


def _check_out(out: Path, pooling: str) -> None:
    """Refuse a format that is not known, not installed, or has no place for what is asked.

    Raises:
        ValueError: If it is.
    """
    if out.suffix not in {".npz", ".h5ad"}:
        raise ValueError(f"embed.out must end in .npz or .h5ad, got {out}; rename it")
    if out.suffix == ".npz":
        return
    if pooling == "none":
        raise ValueError(
            f"embed.out must end in .npz with --pooling none, got {out}: AnnData has one vector a "
            "record; rename it or pool"
        )
    require_extra("anndata", "embed", "genomics")


def _check_records(trained: Run, fasta: Path, records: dict[str, np.ndarray], pooling: str) -> None:
    """Refuse a record that the network does not take, or that has nothing to pool.

    Raises:
        ValueError: If there is one.
    """
    from genomics.io import require_known

    most = trained.max_length
    for name, ids in records.items():
        if most is not None and len(ids) > most:
            raise ValueError(
                f"{fasta}: record {name!r}: embed must be given at most {most:,} bases, all that "
                f"the network of {trained.directory} takes, got {len(ids):,}; cut the record"
            )
    if pooling == "mean":
        require_known("embed.pooling mean", fasta, records)


def _embed(
    backbone: Backbone, rows: list[np.ndarray], args: argparse.Namespace
) -> list[np.ndarray]:
    """One vector a record, or one a base; records of one length share a call."""
    import numpy as np

    from genomics.finetune import embed
    from genomics.sequence import MASK_ID
    from seqdiff.cli.terminal import progress

    alike: dict[int, list[int]] = {}
    for number, ids in enumerate(rows):
        alike.setdefault(len(ids), []).append(number)
    vectors: dict[int, np.ndarray] = {}
    with progress() as bar:
        task = bar.add_task("embedding", total=len(rows))
        for numbers in alike.values():
            for first in range(0, len(numbers), args.batch_size):
                part = numbers[first : first + args.batch_size]
                batch = np.stack([rows[number] for number in part])
                found = embed(backbone, batch, args.layer)
                for number, ids, vector in zip(part, batch, found, strict=True):
                    pool = args.pooling == "mean"
                    vectors[number] = vector[ids != MASK_ID].mean(axis=0) if pool else vector
                bar.advance(task, len(part))
    return [vectors[number] for number in range(len(rows))]


def _write(path: Path, names: list[str], vectors: list[np.ndarray], *, pooled: bool) -> None:
    """Write the file that the suffix stands for."""
    import numpy as np

    if path.suffix == ".h5ad":
        import anndata

        table = anndata.AnnData(np.stack(vectors))
        table.obs_names = names
        table.write_h5ad(path)
    elif pooled:
        np.savez(path, names=names, embeddings=np.stack(vectors))
    else:
        named = {f"embedding_{number}": vector for number, vector in enumerate(vectors)}
        np.savez(path, names=np.array(names), **named)  # pyright: ignore[reportArgumentType]

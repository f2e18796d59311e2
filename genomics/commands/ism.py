"""``seqdiff ism``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from seqdiff.cells import say
from seqdiff.checks import check_count
from seqdiff.cli.options import FlatOptions, Several
from seqdiff.files import check_apart, check_parent, expand_files
from seqdiff.run import EngineOptions

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Float64

    from seqdiff.run import Engine, Run

_HERE = EngineOptions()


def ism(
    run: Path,
    /,
    *,
    fasta: Annotated[tuple[Path, ...], Several],
    out: Path,
    track: Path | None = None,
    window: int | None = None,
    batch_size: int = 32,
    device: str | None = None,
    engine: Annotated[EngineOptions, FlatOptions] = _HERE,
) -> None:
    """In-silico mutagenesis: an (L, 4) matrix of masked-marginal effects for each record.

    Args:
        run: Run directory, or name of a packaged model.
        fasta: FASTA files, plain, gzip or bgzip, folders, or globs in quotes. They are read in the
            order of their paths, as if they were one file.
        out: .npz file to write: names, sequences, and effect_0, effect_1, ... in their order.
        track: Also write log p(base given all others) at each position, in nats, to this .bw,
            .bigWig, .bedGraph, .bdg or .bg file; its chromosomes are the records.
        window: Bases of the window around a position; default: the length of a training row.
        batch_size: Rows per network call.
        device: cpu, cuda, ...; default: cuda if there is one, else cpu.
        engine: Where the command computes.

    Raises:
        ValueError: If the file or the run cannot be used.
    """
    check_count("ism.batch_size", batch_size)
    if out.suffix != ".npz":
        raise ValueError(f"ism.out must end in .npz, got {out}; rename it")
    check_parent("ism.out", out)
    from genomics.io import FASTA_SUFFIXES, check_track, read_records, write_track

    files = expand_files("ism.fasta", fasta, FASTA_SUFFIXES)
    check_apart("ism.out", out, {"--fasta": files})
    if track is not None:
        check_track("ism.track", track)
        check_apart("ism.track", track, {"--fasta": files})
    engine.check("ism", out)
    import numpy as np

    from genomics.commands.opening import choose_window, load_dna_run
    from genomics.sequence import MASK_ID, decode
    from genomics.variants import mutate_records
    from seqdiff.files import replacing

    trained = load_dna_run("ism", run, engine.place("ism", device))
    _check_masks(trained)
    window = choose_window("ism", trained, window)
    records, known = {}, 0
    for path, name, ids in read_records(files):
        if not (count := int((ids != MASK_ID).sum())):
            raise ValueError(
                f"{path}: record {name!r}: ism must have a known base, got {len(ids):,} unknown "
                "bases; remove the record"
            )
        records[name], known = ids, known + count
    bases = np.array([decode(ids) for ids in records.values()])
    options = {"window": window, "batch_size": batch_size}
    with engine.start("ism", trained, out, device, {"fasta": files}, options) as computing:
        effects = mutate_records(
            trained, list(records.values()), window=window, batch_size=batch_size, engine=computing
        )
        named = {f"effect_{number}": effect for number, effect in enumerate(effects)}
        with replacing(out) as temporary:
            arrays = {"names": np.array(list(records)), "sequences": bases, **named}
            np.savez(temporary, **arrays)  # pyright: ignore[reportArgumentType]
            if track is not None:
                # Effects are relative to the reference: their exponentials sum to 1 / p(reference).
                values = [-np.log(np.exp(effect).sum(axis=1)) for effect in effects]
                write_track(track, dict(zip(records, values, strict=True)))
    noun = "record" if len(records) == 1 else "records"
    say(f"{out}: {len(records):,} {noun}, {known:,} positions, nats relative to the reference")


def mutate(run: Run, sequence: str, engine: Engine) -> Float64[np.ndarray, "L 4"]:
    """Compute the effects of all substitutions of a sequence, see ``seqdiff.cli.extensions``.

    Raises:
        ValueError: If the run is not on DNA or its noise is not masks, or the sequence is not DNA
            or has no known base.
    """
    from genomics.commands.opening import as_dna_run
    from genomics.sequence import MASK_ID, encode
    from genomics.variants import mutate_records

    run = as_dna_run("ism", run)
    _check_masks(run)
    ids = encode(sequence)
    if (ids == MASK_ID).all():
        raise ValueError(f"ism must have a known base, got {len(ids):,} unknown bases; type one")
    window = run.datamodule.context_length or run.max_length or len(ids)
    return mutate_records(run, [ids], window=window, engine=engine)[0]


def _check_masks(run: Run) -> None:
    from genomics.sequence import can_mask

    if not can_mask(run.denoiser):
        raise ValueError(
            "ism.directory must be a run of a process whose only noise is masks, got the "
            f"{run.denoiser.description}; seqdiff variants supports every process"
        )

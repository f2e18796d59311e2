"""``seqdiff embed``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from seqdiff.cells import say
from seqdiff.checks import check_count
from seqdiff.cli.options import FlatOptions, Several
from seqdiff.extras import require_extra
from seqdiff.files import check_apart, check_parent, expand_files, name_files, replacing
from seqdiff.run import EngineOptions

if TYPE_CHECKING:
    import numpy as np

_HERE = EngineOptions()


def embed(
    run: Path,
    /,
    *,
    fasta: Annotated[tuple[Path, ...], Several],
    out: Path,
    layer: int | None = None,
    pooling: Literal["mean", "none"] = "mean",
    batch_size: int = 32,
    device: str | None = None,
    engine: Annotated[EngineOptions, FlatOptions] = _HERE,
) -> None:
    """Write the hidden states of each record of FASTA files.

    States of models of single bases are averaged over both strands.

    Args:
        run: Run directory, name of a packaged model, or hub folder of a masked language model of
            DNA or proteins.
        fasta: FASTA files, plain, gzip or bgzip, folders, or globs in quotes. They are read in the
            order of their paths, as if they were one file.
        out: File to write: .npz with names and embeddings (unpooled embedding_0, embedding_1, ...),
            or .h5ad for AnnData.
        layer: Number of layers after which states are taken, 0 for embedded bases; default: the
            states that the head reads.
        pooling: mean averages over known bases or tokens; none writes one vector for each.
        batch_size: Rows per network call.
        device: cpu, cuda, ...; default: cuda if there is one, else cpu.
        engine: Where the command computes.

    Raises:
        ValueError: If the file or the run cannot be used.
    """
    check_count("embed.batch_size", batch_size)
    _check_out(out, pooling)
    check_parent("embed.out", out)
    from genomics.io import FASTA_SUFFIXES, FASTA_UNITS, read_records, read_strings

    files = expand_files("embed.fasta", fasta, FASTA_SUFFIXES)
    check_apart("embed.out", out, {"--fasta": files})
    engine.check("embed", out)
    from genomics.commands.opening import load_dna_run
    from genomics.sequence import DNATokenizer
    from seqdiff.backbones import require_layer
    from seqdiff.run import check_readable
    from seqdiff.run import embed as embed_rows

    trained = load_dna_run("embed", run, engine.place("embed", device), FASTA_UNITS)
    backbone = trained.denoiser.backbone
    pooled = pooling == "mean"
    require_layer("embed", layer, backbone.num_layers)
    if trained.tokenizer.fingerprint == DNATokenizer().fingerprint:
        records = {record.name: record.ids for record in read_records(files)}
    else:
        records = {name: trained.tokenizer.encode(text) for name, text in read_strings(files)}
    try:
        check_readable("embed", trained, records, pooled=pooled)
    except ValueError as error:
        where = f"{name_files(files)}: " if "record" in str(error) else ""
        raise ValueError(f"{where}{error}") from None
    options = {"layer": layer, "pooling": pooling, "batch_size": batch_size}
    with engine.start("embed", trained, out, device, {"fasta": files}, options) as computing:
        vectors = embed_rows(
            trained,
            list(records.values()),
            layer=layer,
            pooled=pooled,
            batch_size=batch_size,
            engine=computing,
        )
        with replacing(out) as temporary:
            _write(temporary, list(records), vectors, pooled=pooled)
    width, which = vectors[0].shape[-1], "the last layer, normalised"
    if layer is not None:
        which = f"{layer} of {backbone.num_layers} layers"
    each = "record" if pooled else trained.datamodule.token_name
    noun = "record" if len(records) == 1 else "records"
    say(f"{out}: {len(records):,} {noun}, {width} numbers per {each}, after {which}")


def _check_out(out: Path, pooling: str) -> None:
    """Check that the format is known, installed, and can hold the result.

    Raises:
        ValueError: If a check fails.
    """
    if out.suffix not in {".npz", ".h5ad"}:
        raise ValueError(f"embed.out must end in .npz or .h5ad, got {out}; rename it")
    if out.suffix == ".npz":
        return
    if pooling == "none":
        raise ValueError(
            f"embed.out must end in .npz with --pooling none, got {out}: AnnData has one vector "
            "per record; rename it or pool"
        )
    require_extra("anndata", "embed", "genomics")


def _write(path: Path, names: list[str], vectors: list[np.ndarray], *, pooled: bool) -> None:
    """Write the file in the format of its suffix."""
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

"""``seqdiff score``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from seqdiff.cells import say
from seqdiff.checks import check_count, check_seed
from seqdiff.cli.options import FlatOptions, Several, extend, parse_signals
from seqdiff.data import Reader, TrackWriter, choose_reader, find_readers
from seqdiff.files import check_apart, expand_files
from seqdiff.run import EngineOptions, EstimatorOptions, choose_estimator, run_packages
from seqdiff.tables import check_table, writing_table

_DEFAULTS = EstimatorOptions()
_HERE = EngineOptions()


def score(
    run: Path,
    /,
    *files: Path,
    out: Path | None = None,
    tracks: Path | None = None,
    estimation: Annotated[EstimatorOptions, FlatOptions] = _DEFAULTS,
    label: str | None = None,
    signal: Annotated[tuple[str, ...], Several] = (),
    block_size: int | None = None,
    seed: int = 0,
    batch_size: int = 32,
    device: str | None = None,
    engine: Annotated[EngineOptions, FlatOptions] = _HERE,
    **readers: Any,
) -> None:
    """Estimate the likelihood of each sequence of files, with its standard error.

    Args:
        run: Run directory, or name of a packaged model.
        files: Files of sequences, folders, or globs in quotes; the suffix chooses the format. They
            are read in the order of their paths, as if they were one file.
        out: Write a tab-separated table to this file, or Parquet if it ends in .parquet; a * in the
            name, in quotes, writes parts of 100,000 rows; default: print the table.
        tracks: For FASTA files: also write the contribution of each position to the nats of its
            record, to this .bw, .bigWig, .bedGraph, .bdg or .bg file. Its chromosomes are the
            records.
        estimation: How the likelihood is estimated.
        label: Class to score as, for a run with labels.
        signal: Value to score given, NAME=VALUE, for a run with signals.
        block_size: Tokens of a block, for a run of several sizes; default: the largest.
        seed: Seed of the draws.
        batch_size: Rows of a network call.
        device: cpu, cuda, ...; default: cuda if there is one, else cpu.
        engine: Where the command computes.
        readers: File options of the installed domains.

    Raises:
        ValueError: If an option, a file or the run cannot be used.
    """
    check_count("score.batch_size", batch_size)
    check_seed("score.seed", seed)
    name, reader, found = _source(run, files, readers)
    own = {option: value for option, value in vars(reader).items() if option != name}
    beside = {option: own.pop(option) for option in list(own) if isinstance(own[option], Path)}
    if out is not None:
        check_table("score.out", out)
        apart = {f"--{option}": path for option, path in beside.items()}
        check_apart("score.out", out, {f"--{name}": found, **apart})
    if tracks is not None:
        if not isinstance(reader, TrackWriter):
            raise ValueError(
                f"score.tracks must go with files that have tracks, such as FASTA, got --{name}; "
                "leave it out"
            )
        reader.check_tracks(tracks, found)
        apart = {f"--{option}": path for option, path in beside.items()} | {"--out": out}
        check_apart("score.tracks", tracks, {f"--{name}": found, **apart})
    engine.check("score", out)
    estimator = choose_estimator("score", estimation)
    values = parse_signals("score.signal", signal)
    from seqdiff.likelihood import check_additive, check_budget
    from seqdiff.run import load

    if tracks is not None and estimator is not None:
        check_additive("score", estimator)
    check_budget(estimator, num_tokens=1, **estimation.budget, owner="score")
    trained = load(run, device=engine.place("score", device))
    conditions: dict[str, Any] = {"label": label, "signal": values or None}
    trained = trained.in_blocks(block_size, "score")
    trained.condition("score", **conditions)
    records = reader.read(found, trained.tokenizer)
    options = {**vars(estimation), **conditions, "seed": seed, "batch_size": batch_size}
    options |= {"block_size": block_size, "tracks": tracks is not None}
    with engine.start(
        "score", trained, out, device, {"file": found, **beside}, {**options, **own}
    ) as computing:
        scores = trained.score(
            records,
            **conditions,
            seed=seed,
            batch_size=batch_size,
            engine=computing,
            by_position=tracks is not None,
            **vars(estimation),
        )
        if out is not None:
            with writing_table(out, scores.columns) as write:
                write(map(scores.cells, scores))
        if isinstance(reader, TrackWriter) and tracks is not None:
            found_tracks = {s.record: s.by_position for s in scores if s.by_position is not None}
            reader.write_tracks(tracks, found, found_tracks)
    given = "" if label is None else f", given the label {label}"
    given += "".join(f", given {name} = {value:g}" for name, value in values.items())
    used = scores.estimator
    about = (
        f"{len(scores):,} {'record' if len(scores) == 1 else 'records'}; nats: "
        f"{used.quantity}{given}, by {used.name}, convention {used.convention}"
    )
    if out is None:
        print(scores)
        say(about)
        return
    say(f"{out}: {about}")


def _source(
    run: Path, given: Sequence[Path], options: dict[str, Reader | None]
) -> tuple[str, Reader, list[Path]]:
    """Find the files to score, the option for them, and their reader.

    Raises:
        FileNotFoundError: If one does not exist.
        ValueError: If they are named in no way or in several, or no reader is for them.
    """
    kinds = find_readers()
    chosen = {name: options.get(name) or kind() for name, kind in kinds.items()}
    named = {name: path for name, reader in chosen.items() if (path := getattr(reader, name))}
    ways = len(named) + bool(given)
    if ways != 1:
        flags = ", ".join(f"--{name}" for name in kinds)
        got = "no file" if ways == 0 else f"files in {ways} ways"
        raise ValueError(
            f"score must be given files after RUN, or by one of {flags}, got {got}; name them once"
        )
    if given:
        name, files = choose_reader(given, lambda: run_packages(run))
    else:
        ((name, path),) = named.items()
        files = expand_files(f"score.{name}", [path], kinds[name].suffixes)
    for other, reader in options.items():
        if other != name and reader is not None:
            raise ValueError(
                f"score.{name} must go without the options of --{other}; leave them out"
            )
    return name, chosen[name], files


extend(score, find_readers())

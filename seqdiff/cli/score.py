"""``seqdiff score``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from seqdiff.checks import check_count, check_seed
from seqdiff.cli.options import FlatOptions, Several, extend, parse_signals
from seqdiff.data import Reader, choose_reader, find_readers
from seqdiff.files import check_apart, check_parent, write_bytes
from seqdiff.run import EngineOptions, EstimatorOptions, choose_estimator

_DEFAULTS = EstimatorOptions()
_HERE = EngineOptions()


def score(
    run: Path,
    file: Path | None = None,
    /,
    *,
    out: Path | None = None,
    estimation: Annotated[EstimatorOptions, FlatOptions] = _DEFAULTS,
    label: str | None = None,
    signal: Annotated[tuple[str, ...], Several] = (),
    seed: int = 0,
    batch_size: int = 32,
    device: str | None = None,
    engine: Annotated[EngineOptions, FlatOptions] = _HERE,
    **readers: Any,
) -> None:
    """Estimate the likelihood of each sequence of a file, with its standard error.

    Args:
        run: Run directory, or name of a packaged model.
        file: File of sequences; its suffix chooses the format.
        out: Write a tab-separated table to this file; default: print it.
        estimation: How the likelihood is estimated.
        label: Class to score as, for a run with labels.
        signal: Value to score given, NAME=VALUE, for a run with signals.
        seed: Seed of the draws.
        batch_size: Rows of a network call.
        device: cpu, cuda, ...; default: cuda if there is one, else cpu.
        engine: Where the command computes.
        readers: File options of the installed domains.

    Raises:
        ValueError: If an option, the file or the run cannot be used.
    """
    check_count("score.batch_size", batch_size)
    check_seed("score.seed", seed)
    name, reader, path = _source(file, readers)
    if out is not None:
        check_parent("score.out", out)
        check_apart("score.out", out, {f"--{name}": path})
    engine.check("score", out)
    estimator = choose_estimator("score", estimation)
    values = parse_signals("score.signal", signal)
    from seqdiff.likelihood import check_budget
    from seqdiff.run import load

    check_budget(estimator, num_tokens=1, **estimation.budget, owner="score")
    trained = load(run, device=engine.place("score", device))
    conditions: dict[str, Any] = {"label": label, "signal": values or None}
    trained.condition("score", **conditions)
    records = reader.read(path, trained.tokenizer)
    options = {**vars(estimation), **conditions, "seed": seed, "batch_size": batch_size}
    options |= {option: value for option, value in vars(reader).items() if option != name}
    with engine.start("score", trained, out, device, {"file": path}, options) as computing:
        scores = trained.score(
            records,
            **conditions,
            seed=seed,
            batch_size=batch_size,
            engine=computing,
            **vars(estimation),
        )
        if out is not None:
            write_bytes(out, scores.to_tsv().encode())
    given = "" if label is None else f", given the label {label}"
    given += "".join(f", given {name} = {value:g}" for name, value in values.items())
    used = scores.estimator
    about = (
        f"{len(scores):,} {'record' if len(scores) == 1 else 'records'}; nats: "
        f"{used.quantity}{given}, by {used.name}, convention {used.convention}"
    )
    if out is None:
        print(scores)
        print(about)
        return
    print(f"{out}: {about}")


def _source(file: Path | None, given: dict[str, Reader | None]) -> tuple[str, Reader, Path]:
    """Find the file to score, the option that names it, and its reader.

    Raises:
        FileNotFoundError: If it is not an existing file.
        ValueError: If there is not exactly one file, or no reader is for it.
    """
    kinds = find_readers()
    chosen = {name: given.get(name) or kind() for name, kind in kinds.items()}
    files = {name: path for name, reader in chosen.items() if (path := getattr(reader, name))}
    if len(files) + (file is not None) != 1:
        options = ", ".join(f"--{name}" for name in kinds)
        raise ValueError(
            f"score must be given one file, got {len(files) + (file is not None)}; name it after "
            f"RUN, or by one of {options}"
        )
    if file is not None:
        files = {choose_reader(file): file}
    ((name, path),) = files.items()
    for other, reader in given.items():
        if other != name and reader is not None:
            raise ValueError(
                f"score.{name} must go without the options of --{other}; leave them out"
            )
    if not path.is_file():
        raise FileNotFoundError(
            f"score.{name} must be an existing file, got {path}; check the path"
        )
    return name, chosen[name], path


extend(score, find_readers())

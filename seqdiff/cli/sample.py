"""``seqdiff sample``."""

from __future__ import annotations

import inspect
import secrets
import sys
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.metadata import entry_points
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from seqdiff.cells import printable, say
from seqdiff.checks import check_count, check_seed
from seqdiff.cli.extensions import (
    SampleOptions,
    Writer,
    find_template_reader,
    find_writer,
    list_writers,
)
from seqdiff.cli.options import (
    FlatOptions,
    RunAndFlags,
    Several,
    check_guidance,
    check_spelling,
    extend,
    parse_signals,
    part,
)
from seqdiff.files import check_apart, check_parent, part_path, replacing
from seqdiff.run import EngineOptions
from seqdiff.tables import ROWS_PER_PART

if TYPE_CHECKING:
    from seqdiff.data import Templates
    from seqdiff.run import Run

_HERE = EngineOptions()


def sample(
    *words: RunAndFlags,
    num: int | None = None,
    length: int | None = None,
    infill: Path | None = None,
    out: Path | None = None,
    seed: int | None = None,
    sampler: str | None = None,
    label: str | None = None,
    signal: Annotated[tuple[str, ...], Several] = (),
    signal_file: Path | None = None,
    signal_from: Literal["train", "valid", "test"] | None = None,
    guidance: float | None = None,
    stop: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    block_size: int | None = None,
    extrapolate: bool = False,
    trace: Path | None = None,
    batch_size: int | None = None,
    device: str | None = None,
    engine: Annotated[EngineOptions, FlatOptions] = _HERE,
    **domains: SampleOptions | None,
) -> None:
    """Draw sequences, or fill in templates.

    Options of the sampler may follow, for example --temperature 0.8; seqdiff samplers NAME lists
    them.

    Args:
        words: Run directory, or name of a packaged model, and options of the sampler.
        num: Number of sequences; default: 10, or one for each row of --signal-file and
            --signal-from. With --infill, the number for each record.
        length: Tokens in each; default: those of a training row.
        infill: File of templates to fill: known tokens stay. For DNA a FASTA file with N and IUPAC
            codes where there is something to fill, for text a .txt or .jsonl with [MASK], or
            [MASK:20] for 20 tokens.
        out: Write the sequences to this file, whose suffix chooses the format; a * in the name, in
            quotes, writes parts of 100,000 sequences; default: print them.
        seed: Seed of the draws; default: drawn and printed.
        sampler: Name of a sampler, see seqdiff samplers; default: first_hitting for masked
            diffusion, block for block diffusion, left_to_right if autoregressive, tweedie for
            scores, gaussian for Gaussian diffusion, ancestral otherwise.
        label: Class to draw, for a run with labels.
        signal: Value to condition on, NAME=VALUE, for a run with signals.
        signal_file: Table (.tsv or .csv) with a column name and a column for each signal: draws a
            sequence of that name for each row.
        signal_from: Draw a sequence for each row of this split of the run's data, given the row's
            own values.
        guidance: Strength of guidance towards the label and the signal; default: 1, the model's
            distribution given them.
        stop: Symbol that ends a sequence, for runs of block diffusion.
        block_size: Tokens of a block, for a run of several sizes; default: the largest.
        extrapolate: Draw sequences longer than the rows of training.
        trace: Keep the tokens after every step in this .npz file, for seqdiff plot trace.
        batch_size: Sequences drawn at a time; default: as many as fit well.
        device: cpu, cuda, ...; default: cuda if there is one, else cpu.
        engine: Where the command computes; with ray give --seed, so that it can be continued.
        domains: Options of the installed domains.

    Raises:
        ValueError: If an option, a file or the run cannot be used.
    """
    run, options = part("sample", words)
    if num is not None:
        check_count("sample.num", num)
    if batch_size is not None:
        check_count("sample.batch_size", batch_size)
    check_seed("sample.seed", seed)
    check_guidance("sample.guidance", guidance)
    given = [extra for extra in domains.values() if extra is not None]
    _check_given(run, length, infill, given)
    constant = _check_signals(signal, signal_file, signal_from, num, infill)
    writer = None if out is None else find_writer(out, run)
    if out is not None:
        check_parent("sample.out", out, parts=True)
        check_apart("sample.out", out, {"--infill": infill})
    engine.check("sample", out, seed)
    if trace is not None:
        from seqdiff.trace import check_trace

        check_apart("sample.trace", trace, {"--out": out})
        check_trace(trace)
    from seqdiff.run import (
        check_memory,
        check_sampler,
        find_run,
        fit_signal,
        load,
        open_sampler,
        read_signal_file,
        save_trace,
        signal_of_split,
    )
    from seqdiff.samplers import Recorder, check_room, named_samplers

    chosen_device = engine.place("sample", device)
    if length is not None:
        most = 1 if batch_size is None else min(num or 10, batch_size)
        check_memory(most, length, chosen_device)
    if trace is not None:
        check_room(num or 1, length or 1)
    known = (inspect.signature(kind).parameters for kind in named_samplers().values())
    check_spelling("sample", sample, options, chain(*known))
    run = find_run(run)
    check_sampler(run, sampler, options)
    trained = load(run, device=chosen_device).in_blocks(block_size, "sample")
    if out is not None and writer is not None:
        _check_format(trained, out, writer)
    built = open_sampler(trained, sampler, options)

    wanted = None
    if signal_file is not None:
        wanted = read_signal_file(signal_file, trained)
    elif signal_from is not None:
        wanted = signal_of_split(trained, signal_from)
    lengths: int | list[int] | None = length
    if infill is None and length is None:
        own = None if wanted is None else wanted.lengths
        lengths = trained.usual_length("sample.length") if own is None else own
    if num is None:
        num = 10 if wanted is None else len(wanted.values)
    templates = _templates(trained, num, lengths, infill, given)
    if wanted is not None and wanted.names is not None:
        templates.names = wanted.names
    values = None if wanted is None else wanted.values
    if constant:
        values = fit_signal("sample.signal", trained, constant, len(templates.names))
    recorder = None if trace is None else Recorder()
    if recorder is not None:
        check_room(len(templates.names), max(templates.lengths))
    chosen = secrets.randbelow(2**32) if seed is None else seed
    conditions = {"label": label, "guidance": guidance, "stop": stop, "extrapolate": extrapolate}
    about = {
        **conditions,
        **{"num": num, "length": lengths, "seed": chosen, "sampler": built, "trace": trace},
        **{"signal": constant, "signal_from": signal_from, "batch_size": batch_size},
        "block_size": block_size,
        **domains,
    }
    files = {"infill": infill, "signal_file": signal_file}
    with (
        _seed_in_hint(chosen, drawn=seed is None),
        engine.start("sample", trained, out, device, files, about) as computing,
    ):
        drawn = trained.draw(
            templates,
            sampler=built,
            seed=chosen,
            signal=values,
            **conditions,
            batch_size=batch_size,
            extras=given,
            recorder=recorder,
            engine=computing,
        )
        if seed is None:  # after the last check, so that an error is a single line
            say(f"seqdiff: seed {chosen}", error=True)
        if out is None:
            _print(trained, drawn, templates.names)
        else:
            assert writer is not None
            _write(out, writer, drawn, templates.names)
    if trace is not None and recorder is not None:
        save_trace(trace, recorder, drawn.sampler, templates.names, trained.tokenizer)
    if out is not None:
        least, most = drawn.shortest, drawn.longest
        span = f"{least}" if least == most else f"{least} to {most}"
        unit = trained.datamodule.token_name
        say(f"{out}: {drawn.num} x {span} {unit}s, {computing.rate:,.1f}/s")
    if drawn.clamped:
        say(
            f"{drawn.clamped:,} times the probabilities of a token's jumps added up to more than 1 "
            "and were scaled down; increase --num-steps to make this rarer"
        )


@contextmanager
def _seed_in_hint(seed: int, *, drawn: bool) -> Iterator[None]:
    """Add a seed that was drawn to the hint on how to continue.

    Raises:
        KeyboardInterrupt: With the hint.
    """
    try:
        yield
    except KeyboardInterrupt as stop:
        if not drawn or not stop.args:
            raise
        raise KeyboardInterrupt(f"{stop} with --seed {seed}") from None


def _check_format(trained: Run, out: Path, writer: Writer) -> None:
    """Check, before anything is drawn, that a file can hold the symbols of the run.

    Only alphanumeric characters are tried, since a format may take a line break in one place only.

    Raises:
        ValueError: If the writer does not take one.
    """
    symbols = trained.tokenizer.decode(list(range(trained.tokenizer.vocab_size)))
    text = "".join(filter(str.isalnum, symbols))
    if not text:
        return
    with tempfile.TemporaryDirectory() as folder:
        try:
            writer(Path(folder) / f"symbols{out.suffix}", [text], ["symbols"])
        except ValueError as error:
            raise ValueError(
                f"sample.out must be a file that can hold the symbols of the run, got {out} "
                f"({error}); choose another suffix: {', '.join(list_writers())}"
            ) from error


def _check_given(
    run: Path, length: int | None, infill: Path | None, given: list[SampleOptions]
) -> None:
    """Check options that need no network, before slow imports.

    Raises:
        FileNotFoundError: If there is no file of templates.
        ValueError: If both a file and a length are given.
    """
    if length is not None and infill is None:
        check_count("sample.length", length)
    if infill is None:
        return
    if length is not None:
        raise ValueError(
            f"sample.length must be left out with --infill, got {length}; the records have their "
            "own lengths"
        )
    for extra in given:
        extra.check_infill()
    find_template_reader(infill, run)
    if not infill.is_file():
        raise FileNotFoundError(
            f"sample.infill must be an existing file, got {infill}; check the path"
        )


def _check_signals(
    signal: tuple[str, ...],
    signal_file: Path | None,
    signal_from: str | None,
    num: int | None,
    infill: Path | None,
) -> dict[str, float]:
    """Check the options of signals before slow imports, and read those of the form NAME=VALUE.

    Raises:
        FileNotFoundError: If there is no file of signals.
        ValueError: If options contradict each other, or one has another form.
    """
    given = {"--signal": signal, "--signal-file": signal_file, "--signal-from": signal_from}
    chosen = [option for option, value in given.items() if value]
    if len(chosen) > 1:
        raise ValueError(
            f"sample{chosen[1].replace('--', '.').replace('-', '_')} must be left out with "
            f"{chosen[0]}, which gives the values too; keep one"
        )
    for option in chosen:
        if option == "--signal":
            continue
        for other, value in (("--infill", infill), ("--num", num)):
            if value is not None:
                raise ValueError(
                    f"sample.{other[2:]} must be left out with {option}, which asks for one "
                    f"sequence for each row, got {value}; drop it, or give --signal NAME=VALUE"
                )
    if signal_file is not None and not signal_file.is_file():
        raise FileNotFoundError(
            f"sample.signal_file must be an existing file, got {signal_file}; check the path"
        )
    return parse_signals("sample.signal", signal)


def _templates(
    trained: Run,
    num: int,
    length: int | list[int] | None,
    infill: Path | None,
    given: list[SampleOptions],
) -> Templates:
    """Make a template for each sequence.

    Raises:
        ValueError: If the file is not valid, or options do not fit the run.
    """
    from seqdiff.data import Blanks, Records

    if infill is not None:
        reader = find_template_reader(infill, trained.directory)
        return Records(reader(infill), num, trained.tokenizer)
    assert length is not None
    for extra in given:
        longest = length if isinstance(length, int) else max(length)
        templates = extra.templates(trained, num, longest)
        if templates is not None:
            return templates
    return Blanks(num, length, trained.process.unknown_id)


def _write(out: Path, writer: Writer, sequences: Iterable[str], names: Sequence[str]) -> None:
    """Write sequences, while they are drawn, to one file or to parts."""
    size = ROWS_PER_PART if "*" in out.name else len(names)
    drawn = iter(sequences)
    with ExitStack() as stack:
        for number, first in enumerate(range(0, len(names), size)):
            temporary = stack.enter_context(replacing(part_path(out, number)))
            own = names[first : first + size]
            writer(temporary, islice(drawn, len(own)), own)
        deque(drawn, maxlen=0)  # ends the progress bar


def _print(trained: Run, sequences: Iterable[str], names: Sequence[str]) -> None:
    """Print sequences in the format of the run's domain."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"samples.{trained.datamodule.file_suffix}"
        find_writer(path, trained.directory)(path, sequences, names)
        text = path.read_text(encoding="utf-8")
    if sys.stdout.isatty():  # a file or a program gets the names as they are
        text = "\n".join(map(printable, text.split("\n")))
    print(text, end="")


extend(
    sample,
    {entry.name: entry.load() for entry in entry_points(group="seqdiff.sample_options")},
)

"""``seqdiff sample``."""

from __future__ import annotations

import inspect
import tempfile
from importlib.metadata import entry_points
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from seqdiff.checks import check_count, check_seed
from seqdiff.cli.extensions import SampleOptions, find_template_reader, find_writer
from seqdiff.cli.options import RunAndFlags, check_guidance, check_spelling, extend, part
from seqdiff.files import check_apart, check_parent, replacing

if TYPE_CHECKING:
    from seqdiff.data import Templates
    from seqdiff.run import Run


def sample(
    *words: RunAndFlags,
    num: int = 10,
    length: int | None = None,
    infill: Path | None = None,
    out: Path | None = None,
    seed: int | None = None,
    sampler: str | None = None,
    label: str | None = None,
    guidance: float | None = None,
    stop: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    extrapolate: bool = False,
    trace: Path | None = None,
    batch_size: int | None = None,
    device: str | None = None,
    **domains: SampleOptions | None,
) -> None:
    """Draw sequences, or fill in templates.

    Options of the sampler may follow, for example --temperature 0.8; seqdiff samplers NAME lists
    them.

    Args:
        words: Run directory, and options of the sampler.
        num: Number of sequences; with --infill, for each record.
        length: Tokens in each; default: those of a training row.
        infill: File of templates to fill: known tokens stay. For DNA a FASTA file with N and IUPAC
            codes where there is something to fill, for text a .txt or .jsonl with [MASK], or
            [MASK:20] for 20 tokens.
        out: Write the sequences to this file, whose suffix chooses the format; default: print them.
        seed: Seed of the draws; default: drawn and printed.
        sampler: Name of a sampler, see seqdiff samplers; default: first_hitting for masked
            diffusion, block for block diffusion, left_to_right if autoregressive, tweedie for
            scores, gaussian for Gaussian diffusion, ancestral otherwise.
        label: Class to draw, for a run with labels.
        guidance: Strength of guidance towards the label; default: 1, the model's distribution given
            the label.
        stop: Symbol that ends a sequence, for runs of block diffusion.
        extrapolate: Draw sequences longer than the rows of training.
        trace: Keep the tokens after every step in this .npz file, for seqdiff plot trace.
        batch_size: Sequences drawn at a time; default: as many as fit well.
        device: cpu, cuda, ...; default: cuda if there is one, else cpu.
        domains: Options of the installed domains.

    Raises:
        ValueError: If an option, a file or the run cannot be used.
    """
    run, options = part("sample", words)
    check_count("sample.num", num)
    if batch_size is not None:
        check_count("sample.batch_size", batch_size)
    check_seed("sample.seed", seed)
    check_guidance("sample.guidance", guidance)
    given = [extra for extra in domains.values() if extra is not None]
    _check_given(length, infill, given)
    writer = None if out is None else find_writer(out)
    if out is not None:
        check_parent("sample.out", out)
        check_apart("sample.out", out, {"--infill": infill})
    if trace is not None:
        from seqdiff.trace import check_trace

        check_apart("sample.trace", trace, {"--out": out})
        check_trace(trace)
    from seqdiff.run import (
        check_memory,
        check_sampler,
        choose_device,
        draw_seed,
        load,
        open_sampler,
        save_trace,
    )
    from seqdiff.samplers import Recorder, check_room, named_samplers

    chosen_device = choose_device(device)
    if length is not None:
        check_memory(1 if batch_size is None else min(num, batch_size), length, chosen_device)
    if trace is not None:
        check_room(num, length or 1)
    known = (inspect.signature(kind).parameters for kind in named_samplers().values())
    check_spelling("sample", sample, options, chain(*known))
    check_sampler(run, sampler, options)
    trained = load(run, device=chosen_device)
    built = open_sampler(trained, sampler, options)

    if infill is None and length is None:
        length = trained.usual_length("sample.length")
    templates = _templates(trained, num, length, infill, given)
    recorder = None if trace is None else Recorder()
    if recorder is not None:
        check_room(len(templates.names), max(templates.lengths))
    drawn = trained.draw(
        templates,
        sampler=built,
        seed=draw_seed() if seed is None else seed,
        label=label,
        guidance=guidance,
        stop=stop,
        extrapolate=extrapolate,
        batch_size=batch_size,
        extras=given,
        recorder=recorder,
    )
    if out is None:
        _print(trained, drawn.sequences, templates.names)
    else:
        assert writer is not None
        with replacing(out) as temporary:
            writer(temporary, drawn.sequences, templates.names)
    if trace is not None and recorder is not None and drawn.sampler is not None:
        save_trace(trace, recorder, drawn.sampler, templates.names, trained.tokenizer)
    if out is not None:
        least, most = min(drawn.lengths), max(drawn.lengths)
        span = f"{least}" if least == most else f"{least} to {most}"
        print(f"{out}: {len(drawn.sequences)} x {span} {trained.datamodule.token_name}s")
    if drawn.clamped:
        print(
            f"{drawn.clamped:,} times the probabilities of a token's jumps added up to more than 1 "
            "and were scaled down; increase --num-steps to make this rarer"
        )


def _check_given(length: int | None, infill: Path | None, given: list[SampleOptions]) -> None:
    """Check options that do not need a run, before slow imports.

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
    find_template_reader(infill)
    if not infill.is_file():
        raise FileNotFoundError(
            f"sample.infill must be an existing file, got {infill}; check the path"
        )


def _templates(
    trained: Run,
    num: int,
    length: int | None,
    infill: Path | None,
    given: list[SampleOptions],
) -> Templates:
    """Make a template for each sequence.

    Raises:
        ValueError: If the file is not valid, or options do not fit the run.
    """
    from seqdiff.data import Blanks, Records

    if infill is not None:
        return Records(find_template_reader(infill)(infill), num, trained.tokenizer)
    assert length is not None
    for extra in given:
        templates = extra.templates(trained, num, length)
        if templates is not None:
            return templates
    return Blanks(num, length, trained.process.unknown_id)


def _print(trained: Run, sequences: list[str], names: list[str]) -> None:
    """Print sequences in the format of the run's domain."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"samples.{trained.datamodule.file_suffix}"
        find_writer(path)(path, sequences, names)
        print(path.read_text(encoding="utf-8"), end="")


extend(
    sample,
    {entry.name: entry.load() for entry in entry_points(group="seqdiff.sample_options")},
)

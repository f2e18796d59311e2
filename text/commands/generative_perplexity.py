"""``seqdiff generative-perplexity``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from seqdiff.checks import check_count, check_seed
from seqdiff.cli.options import part

if TYPE_CHECKING:
    from rich.table import Table

    from seqdiff.data import Blanks
    from seqdiff.run import Run
    from seqdiff.samplers import Sampler
    from text.evaluation import GenerativePerplexity

_OWNER = "generative-perplexity"
SamplesAndFlags = Annotated[str, Parameter(name="RUN_OR_FILE", allow_leading_hyphen=True)]
_NUM = 64


def generative_perplexity(
    *words: SamplesAndFlags,
    num_samples: int | None = None,
    length: int | None = None,
    extrapolate: bool = False,
    sampler: str | None = None,
    seed: int | None = None,
    model: str = "openai-community/gpt2-large",
    batch_size: int = 8,
    device: str | None = None,
) -> None:
    """Compute the perplexity of samples under another model, and their unigram entropy.

    After a run directory you can give options of the sampler, for example --temperature 0.8.
    The command seqdiff samplers NAME lists the options of a sampler.

    Args:
        words: A run directory to sample from, followed by options of the sampler; or a file of
            samples. The file is a .txt file with one sample per line, a .txt file written by
            seqdiff sample, or a .jsonl file with the key text.
        num_samples: Number of samples to draw from a run; default: 64.
        length: Number of tokens per sample; default: the length of a training row.
        extrapolate: Draw samples longer than the training rows.
        sampler: Name of a sampler; default: the one that seqdiff sample uses for this run.
        seed: Seed for sampling; default: 0.
        model: Folder or hub name of an autoregressive transformers model, saved as safetensors.
        batch_size: Number of windows per call of the model, and of samples drawn at a time.
        device: cpu, cuda, ...; default: cuda if there is one, else cpu.

    Raises:
        ValueError: If the samples or the model cannot be used.
    """
    samples, options = part(_OWNER, words, "RUN_OR_FILE")
    check_count(f"{_OWNER}.batch_size", batch_size)
    drawing = {
        "num_samples": num_samples,
        "length": length,
        "extrapolate": extrapolate or None,
        "sampler": sampler,
        "seed": seed,
    }
    texts = [] if samples.is_dir() else _read(samples, options, drawing)
    num = _NUM if num_samples is None else num_samples
    check_count(f"{_OWNER}.num_samples", num)
    check_seed(f"{_OWNER}.seed", seed)
    if length is not None:
        check_count(f"{_OWNER}.length", length)
    from rich.console import Console

    from seqdiff.progress import progress
    from seqdiff.run import check_memory, check_sampler, choose_device, draw, load
    from seqdiff.samplers import sampler_name
    from text.evaluation import Judge, windows
    from text.evaluation import generative_perplexity as judge_samples

    place, title = choose_device(device), str(samples)
    plan = None
    if not texts:
        check_sampler(samples, sampler, options)
        run = load(samples, device=place)
        built, blanks = _plan(run, sampler, options, num, length, extrapolate=extrapolate)
        check_memory(min(num, batch_size), blanks.lengths[0], place)
        plan = run, built, blanks
    judge = Judge.load(f"{_OWNER}.model", model)
    if plan is not None:
        run, built, blanks = plan
        chosen = seed or 0
        texts = list(draw(run, built, blanks, seed=chosen, batch_size=batch_size))
        unit, name = run.datamodule.token_name, sampler_name(type(built))
        title = f"{samples}, {blanks.lengths[0]:,} {unit}s by {name}, seed {chosen},"
    encoded = judge.encode(texts)
    lead = judge.bos is not None
    with progress() as bar:
        total = len(windows([len(sample) + lead for sample in encoded], judge.context))
        task = bar.add_task("reading", total=total)
        result = judge_samples(
            judge.network.to(place),
            encoded,
            vocab_size=judge.vocab_size,
            bos=judge.bos,
            context=judge.context,
            batch_size=batch_size,
            progress=lambda count: bar.advance(task, count),
        )
    notes = conventions(judge.bos_name, judge.context)
    Console().print(build_table(result, f"{title} under {model}", notes))


def _plan(
    run: Run,
    sampler: str | None,
    options: list[str],
    num: int,
    length: int | None,
    *,
    extrapolate: bool,
) -> tuple[Sampler, Blanks]:
    """Build the sampler and check the requested samples before the judge is loaded.

    Raises:
        ValueError: If the run is not a text model, or cannot draw samples of that length.
    """
    from seqdiff.data import Blanks
    from seqdiff.run import check_context, fit_sampler, open_sampler
    from text.corpora import TextDataModule

    built = open_sampler(run, sampler, options)
    if not isinstance(run.datamodule, TextDataModule):
        raise ValueError(
            f"{_OWNER}.samples must be a run on text, got {run.directory}, which is a run on "
            f"{type(run.datamodule).__name__}; choose another run"
        )
    built = fit_sampler(built, run, stop=None, extrapolate=extrapolate)
    tokens = length or run.datamodule.length
    check_context(f"{_OWNER}.length", tokens, run, built, extrapolate=extrapolate)
    return built, Blanks(num, tokens, run.process.unknown_id)


def _read(samples: Path, options: list[str], drawing: dict[str, object]) -> list[str]:
    """Read a file of samples; options that only apply to a run raise an error.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is invalid, or an option of a run was given.
    """
    if not samples.exists():
        raise FileNotFoundError(
            f"{_OWNER}.samples must be a run directory or a file, got {samples}, "
            "which does not exist; check the path"
        )
    from text.corpora import read_samples

    texts = read_samples(f"{_OWNER}.samples", samples)
    if options:
        raise ValueError(
            f"{_OWNER}: unrecognized arguments: {' '.join(options)}; sampler options require a "
            f"run directory, got the file {samples}"
        )
    given = [f"--{name}" for name, value in drawing.items() if value is not None]
    if given:
        raise ValueError(
            f"{_OWNER}: {', '.join(given)} requires a run directory, got the file {samples}; "
            "remove the option, or give a run directory"
        )
    return texts


def conventions(bos_name: str | None, context: int | None) -> tuple[str, ...]:
    """Describe how samples were tokenized, cut into windows and counted.

    Args:
        bos_name: Name of the token before each sample, if there is one.
        context: Maximum number of tokens that the model reads at once.
    """
    first = f"is predicted after {bos_name}" if bos_name else "is not predicted"
    span = (
        "the model reads whole samples"
        if context is None
        else f"the model reads windows of {context:,} tokens, with stride {max(1, context // 2):,}"
    )
    return (
        "samples are tokenized by the model's own tokenizer; the entropy is that of the tokens "
        "of one sample",
        f"the first token of a sample {first}; {span}",
        "± SE is the standard error over samples; samples that repeat themselves have a low "
        "perplexity and a low entropy",
    )


def build_table(result: GenerativePerplexity, title: str, notes: tuple[str, ...]) -> Table:
    """Build the table for a terminal.

    Args:
        result: The numbers.
        title: Title above the table.
        notes: Lines below it.
    """
    from rich.table import Table

    likelihood = result.likelihood
    tokens = int(likelihood.num_tokens.sum())
    rows = (
        ("perplexity", result.perplexity, result.perplexity_error),
        ("nats/token", likelihood.nats_per_token, result.nats_per_token_error),
        ("unigram entropy, nats", float(result.entropy.mean()), result.entropy_error),
        ("lowest entropy of a sample", float(result.entropy.min()), None),
    )
    counted = f"{len(result.entropy):,} samples, {tokens:,} tokens predicted"
    without = len(result.entropy) - len(likelihood.nats)
    if without:
        counted += f"; {without:,} samples without a predicted token are left out of the perplexity"
    table = Table(title=f"{title}: {counted}", caption="\n".join(notes))
    table.add_column("")
    for heading in ("mean", "± SE"):
        table.add_column(heading, justify="right")
    for name, mean, error in rows:
        table.add_row(name, f"{mean:.4f}", "" if error is None else f"{error:.4f}")
    return table

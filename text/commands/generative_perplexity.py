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
    """Perplexity of samples under another model, beside their unigram entropy.

    With a run, options of the sampler may follow, for example --temperature 0.8; seqdiff samplers
    NAME lists them.

    Args:
        words: Run directory to draw from, and options of the sampler; or a file: .txt with a sample
            per line or as seqdiff sample writes it, or .jsonl with the key text.
        num_samples: Number of samples to draw from a run; default: 64.
        length: Tokens in each; default: those of a training row.
        extrapolate: Draw samples longer than the rows of training.
        sampler: Name of a sampler; default: that of seqdiff sample for such a run.
        seed: Seed of the draws; default: 0.
        model: Folder or hub name of an autoregressive model of transformers, with safetensors.
        batch_size: Windows per call of the model, and samples drawn at a time.
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
        texts = draw(run, built, blanks, seed=chosen, batch_size=batch_size).sequences
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
    """Choose and check the samples to draw from a run, before the judge is loaded.

    Raises:
        ValueError: If the run is not on text, or cannot draw samples of that length.
    """
    from seqdiff.data import Blanks
    from seqdiff.run import check_context, fit_sampler, open_sampler
    from text.corpora import TextDataModule

    built = open_sampler(run, sampler, options)
    if not isinstance(run.datamodule, TextDataModule):
        raise ValueError(
            f"{_OWNER}.samples must be a run on text, got {run.directory}, a run on "
            f"{type(run.datamodule).__name__}; choose another"
        )
    built = fit_sampler(built, run, stop=None, extrapolate=extrapolate)
    tokens = length or run.datamodule.length
    check_context(f"{_OWNER}.length", tokens, run, built, extrapolate=extrapolate)
    return built, Blanks(num, tokens, run.process.unknown_id)


def _read(samples: Path, options: list[str], drawing: dict[str, object]) -> list[str]:
    """Read a file of samples, which takes no options of a run.

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
            f"{_OWNER}: unrecognized arguments: {' '.join(options)}; options of a sampler go "
            f"with a RUN to draw from, got the file {samples}"
        )
    given = [f"--{name}" for name, value in drawing.items() if value is not None]
    if given:
        raise ValueError(
            f"{_OWNER}: {', '.join(given)} must come with a RUN to draw from, got the file "
            f"{samples}; leave out, or give a run directory"
        )
    return texts


def conventions(bos_name: str | None, context: int | None) -> tuple[str, ...]:
    """Describe in words how samples were read.

    Args:
        bos_name: Name of the token before each sample, if there is one.
        context: Most tokens that the model reads at once.
    """
    first = f"predicted after {bos_name}" if bos_name else "given, not counted"
    span = (
        "whole samples are read at once"
        if context is None
        else f"read {context:,} tokens at once, with stride {max(1, context // 2):,} if longer"
    )
    return (
        "tokenized by the model's own tokenizer; entropy is of these tokens within a sample",
        f"first token of a sample: {first}; {span}",
        "± SE is over samples; low perplexity with little entropy is a failure, not a success",
    )


def build_table(result: GenerativePerplexity, title: str, notes: tuple[str, ...]) -> Table:
    """Build the table for a terminal; it always includes the entropy.

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
        ("least entropy of a sample", float(result.entropy.min()), None),
    )
    counted = f"{len(result.entropy):,} samples, {tokens:,} tokens predicted"
    without = len(result.entropy) - len(likelihood.nats)
    if without:
        counted += f", none in {without:,} of the samples, which the perplexity leaves out"
    table = Table(title=f"{title}: {counted}", caption="\n".join(notes))
    table.add_column("")
    for heading in ("mean", "± SE"):
        table.add_column(heading, justify="right")
    for name, mean, error in rows:
        table.add_row(name, f"{mean:.4f}", "" if error is None else f"{error:.4f}")
    return table

"""Drawing of sequences from a run: samplers, templates, labels and guidance."""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from inspect import signature
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Int, Int64
from torch import Tensor

from seqdiff.data import Signals, Templates, Tokenizer
from seqdiff.run.directory import CONFIG_NAME, Trained
from seqdiff.run.engine import Engine, Shard
from seqdiff.run.loading import load_trained
from seqdiff.run.prediction import equal_lengths
from seqdiff.run.sampler_config import build_sampler, choose_sampler
from seqdiff.samplers import (
    BlockClassifierFree,
    BlockSampler,
    ClassifierFree,
    Recorder,
    Sampler,
    Watch,
    WordAutomaton,
    find_conflict,
    sampler_name,
)
from seqdiff.tables import ROWS_PER_PART
from seqdiff.trace import Samples, Trace, write_trace

_SHOWN, _LONGEST_SHOWN = 4, 512  # sequences that loggers show, and their longest length

AnyRun = TypeVar("AnyRun", bound=Trained)


def fit_sampler(sampler: Sampler, run: Trained, *, stop: str | None, extrapolate: bool) -> Sampler:
    """Set the window of a block sampler to the context of the run, and its stop symbol.

    Args:
        sampler: Any sampler; only a ``BlockSampler`` is changed.
        run: The run.
        stop: The stop symbol, as text.
        extrapolate: Whether the window may be longer than the context of training.

    Raises:
        ValueError: If the sampler does not fit the run, or the sampler or the tokenizer does not
            support the stop symbol.
    """
    if not isinstance(sampler, BlockSampler):
        if stop is not None:
            raise ValueError(
                f"sample.stop must be left out for sampler {type(sampler).__name__}, which "
                f"fills rows of a given length, got {stop!r}; it is for runs of block diffusion"
            )
        return sampler
    size = sampler.check(run.denoiser)
    limits = [run.max_length, None if extrapolate else run.datamodule.context_length]
    known = [limit for limit in limits if limit is not None]
    if sampler.window is None and known and min(known) >= 2 * size:
        sampler = replace(sampler, window=min(known))
    if stop is None:
        return sampler
    if sampler.stop_id is not None:
        raise ValueError(
            f"sample.stop must be left out with --stop-id, got {stop!r} and {sampler.stop_id}; "
            "they mean the same"
        )
    return replace(sampler, stop_id=find_symbol(stop, run.tokenizer))


def find_symbol(text: str, tokenizer: Tokenizer) -> int:
    """Find the id of a single symbol, by decoding every id or by encoding the text.

    Args:
        text: The symbol.
        tokenizer: A tokenizer; some do not encode special symbols from their names.

    Raises:
        ValueError: If the text is not a single symbol.
    """
    every = range(tokenizer.vocab_size) if text else ()
    known = [i for i in every if tokenizer.decode(np.array([i])) == text]
    ids = known if len(known) == 1 else tokenizer.encode(text).tolist()
    if len(ids) == 1 and ids[0] < tokenizer.vocab_size:
        return int(ids[0])
    raise ValueError(
        f"sample.stop must be a single symbol of the run's {type(tokenizer).__name__}, got "
        f"{text!r}, which is {len(ids)} symbols; choose one symbol"
    )


# Least memory of any sampler: a token's id and, for two symbols, their probabilities and noise.
_BYTES_PER_TOKEN = 64
_SECONDS_BETWEEN_LOOKS = 0.1


def choose_batch(
    run: Trained, length: int, batch_size: int | None = None, engine: Engine | None = None
) -> int:
    """Choose how many sequences are drawn at a time.

    Args:
        run: The run.
        length: Tokens of the longest sequence.
        batch_size: Requested number; ``None`` chooses 256 on a GPU, on a CPU 32,768 tokens but at
            least 32 and at most 256 sequences, or fewer if the tokens alone would not fit.
        engine: Where they are drawn; by default in this process.

    Raises:
        ValueError: If the tokens alone do not fit in memory.
    """
    device = next(run.denoiser.parameters()).device
    if batch_size is not None:
        check_memory(batch_size, length, device)
        return batch_size
    # Small batches of short sequences would spend most of the time on calls, not on arithmetic.
    on_cpu = (engine or Engine()).device_type(run) == "cpu"
    chosen = min(256, max(32, 32_768 // length)) if on_cpu else 256
    while chosen > 1:
        try:
            check_memory(chosen, length, device)
            return chosen
        except ValueError:
            chosen //= 2
    check_memory(1, length, device)
    return 1


def check_memory(sequences: int, length: int, device: torch.device) -> None:
    """Check, before slow work, that the tokens fit in memory; the network needs more.

    Args:
        sequences: Number of sequences drawn at a time.
        length: Tokens in each.
        device: The device.

    Raises:
        ValueError: If the tokens alone do not fit in memory.
    """
    try:
        torch.empty((sequences, length, _BYTES_PER_TOKEN), dtype=torch.uint8, device=device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(
            f"sample.length must fit in the memory of {device}, got {sequences} of {length:,} "
            "tokens at a time; lower --length or --batch-size"
        ) from error


class Drawing:
    """Sequences that are drawn while they are iterated over, once and in order.

    Attributes:
        num: Number of sequences.
        sampler: The sampler.
        shortest: Tokens of the shortest sequence so far; ``None`` before the first.
        longest: Tokens of the longest sequence so far.
        clamped: Draws so far whose probabilities had to be scaled down, from a sampler that counts
            them.
    """

    def __init__(
        self,
        run: Trained,
        sampler: Sampler,
        num: int,
        batches: Iterable[list[int]],
        results: Iterable[dict[str, np.ndarray]],
        recorder: Recorder | None,
    ) -> None:
        """Describe what is drawn.

        Args:
            run: The run, which decodes tokens.
            sampler: The sampler.
            num: Number of sequences.
            batches: The numbers of the sequences of each batch.
            results: What ``_draw`` returns for each batch, computed one after another.
            recorder: Records every step.
        """
        self.num, self.sampler = num, sampler
        self.shortest: int | None = None
        self.longest = 0
        self.clamped: int | None = None
        self._run, self._recorder = run, recorder
        self._results = zip(batches, results, strict=True)

    def __iter__(self) -> Iterator[str]:
        """Yield each sequence, decoded, as soon as those before it are drawn."""
        waiting: dict[int, str] = {}
        first = 0
        for numbers, found in self._results:
            if self._recorder is not None:
                self._recorder.add(found["x_init"], numbers, found["changes"], found["steps"])
            if "clamped" in found:
                self.clamped = (self.clamped or 0) + int(found["clamped"])
            ends = found["ends"].tolist()
            self.shortest = min(ends if self.shortest is None else [self.shortest, *ends])
            self.longest = max(self.longest, *ends)
            for number, end, row in zip(numbers, ends, found["tokens"], strict=True):
                waiting[number] = self._run.tokenizer.decode(row[:end])
            while first in waiting:
                yield waiting.pop(first)
                first += 1


def draw(
    run: Trained,
    sampler: Sampler,
    templates: Templates,
    *,
    seed: int | None,
    batch_size: int,
    recorder: Recorder | None = None,
    signal: Signals | None = None,
    avoid: WordAutomaton | None = None,
    engine: Engine | None = None,
) -> Drawing:
    """Prepare to draw and decode sequences, with a progress bar.

    Args:
        run: The run.
        sampler: The sampler.
        templates: The given tokens of each sequence.
        seed: Seed from which that of each sequence follows, see ``Run.row_seeds``; ``None`` draws
            one, and prints it.
        batch_size: Sequences drawn at a time; the sequences do not depend on it.
        recorder: Records every step.
        signal: The values that each sequence is conditioned on; tracks may go on after its end.
        avoid: Words that no sequence may hold.
        engine: Where to draw; by default in this process.

    Raises:
        ValueError: If a sequence cannot be filled without such a word, before anything is drawn.
    """
    num = len(templates.names)
    chosen = secrets.randbelow(2**32) if seed is None else seed
    seeds = run.row_seeds(num, chosen)
    if avoid is not None:
        _check_words(run, templates, seeds, batch_size, avoid)
    if seed is None:  # after the last check, so that an error is a single line
        print(f"seqdiff: seed {chosen}", file=sys.stderr)
    batches = list(_batches(templates.lengths, batch_size))
    shards = (
        Shard(len(numbers), _rows(run, templates, numbers, seeds, signal)) for numbers in batches
    )
    watch = None if recorder is None else recorder.watch
    record = recorder is not None
    work = partial(_draw, sampler=sampler, avoid=avoid, record=record, watch=watch)
    results = (engine or Engine()).map("sampling", work, run, shards, num)
    return Drawing(run, sampler, num, batches, results, recorder)


def _batches(lengths: Sequence[int], batch_size: int) -> Iterator[list[int]]:
    """Divide the numbers of sequences into batches of equal length, part after part."""
    for first in range(0, len(lengths), ROWS_PER_PART):
        part = lengths[first : first + ROWS_PER_PART]
        for numbers in equal_lengths(part, batch_size):
            yield [first + number for number in numbers]


class _Rows(NamedTuple):
    """A batch of rows to draw."""

    x_init: Int64[Tensor, "B L"]
    allowed: Bool[Tensor, "B L K"] | None
    seeds: Int64[Tensor, " B"]
    signal: Tensor | None


def _rows(
    run: Trained,
    templates: Templates,
    numbers: list[int],
    seeds: Int64[Tensor, " n"],
    signal: Signals | None,
) -> _Rows:
    x_init, allowed = _start(run, templates, numbers, seeds)
    return _Rows(x_init, allowed, seeds[numbers], _signal_of(signal, numbers, x_init))


def _draw(
    run: Trained,
    rows: _Rows,
    progress: Callable[[float], object],
    *,
    sampler: Sampler,
    avoid: WordAutomaton | None,
    record: bool,
    watch: Watch | None,
) -> dict[str, np.ndarray]:
    """Draw a batch: its tokens, the end of each row and, if asked for, the changes of each step."""
    device = next(run.denoiser.parameters()).device
    x_init, allowed, seeds, signal = (None if t is None else t.to(device) for t in rows)
    assert x_init is not None and seeds is not None
    recorder = Recorder(watch) if record else None
    if recorder is not None:
        recorder.start(x_init, range(len(x_init)))
    steps = getattr(sampler, "num_steps", None)
    reached = 0.0  # never falls, though a sampler may remask tokens
    due = 0.0  # counting after every step would take time quadratic in the number of tokens

    def show(step: int, x_t: Int[Tensor, "B L"]) -> None:
        nonlocal reached, due
        if recorder is not None:
            recorder(step, x_t)
        if time.monotonic() < due:
            return
        fraction = float((x_t != run.process.unknown_id).double().mean())
        if steps is not None:  # a noisy token may look like a known one until the last step
            fraction = min(fraction, step / steps)
        reached = max(reached, fraction * len(x_t))
        progress(reached)
        due = time.monotonic() + _SECONDS_BETWEEN_LOOKS

    drawn = sampler.sample(
        run.denoiser,
        x_init,
        seeds=seeds,
        allowed=allowed,
        callback=show,
        signal=signal,
        avoid=avoid,
        chance=None if recorder is None else recorder.chance,
    )
    full = torch.full((len(x_init),), x_init.shape[1])
    ends = full if drawn.length is None else drawn.length
    found = {"tokens": drawn.tokens.cpu().numpy(), "ends": ends.cpu().numpy()}
    if drawn.clamped is not None:
        found["clamped"] = drawn.clamped.sum().cpu().numpy()
    return found if recorder is None else {**found, **recorder.last()}


def _signal_of(signal: Signals | None, numbers: list[int], like: Tensor) -> Tensor | None:
    """Return the signals of some sequences, and of their positions, on the device of the rows."""
    if signal is None:
        return None
    values = signal[numbers]
    if values.ndim == 3:
        values = values[:, : like.shape[1]]
    return torch.from_numpy(values).to(like.device)


def _check_words(
    run: Trained,
    templates: Templates,
    seeds: Int64[Tensor, " n"],
    batch_size: int,
    avoid: WordAutomaton,
) -> None:
    """Check that every sequence can be filled without a forbidden word."""
    for numbers in equal_lengths(templates.lengths, batch_size):
        conflict = find_conflict(avoid, *_start(run, templates, numbers, seeds))
        if conflict is not None:
            name = templates.names[numbers[conflict.row]]
            what = f"the word {conflict.word}" if conflict.word else "none"
            raise ValueError(
                f"sample.avoid must leave a way to fill every sequence, got {what} for {name} at "
                f"position {conflict.position}; change the template or the motif there, or forbid "
                "less"
            )


def _start(
    run: Trained, templates: Templates, numbers: list[int], seeds: Int64[Tensor, " n"]
) -> tuple[Int64[Tensor, "B L"], Bool[Tensor, "B L K"] | None]:
    """Stack templates on the run's device."""
    device = next(run.denoiser.parameters()).device
    found = [templates.template(number, int(seeds[number])) for number in numbers]
    x_init = torch.from_numpy(np.stack([template.tokens for template in found])).to(device)
    if all(template.allowed is None for template in found):
        return x_init, None
    every = np.ones((x_init.shape[1], run.process.vocab_size), dtype=bool)
    stacked = [every if template.allowed is None else template.allowed for template in found]
    return x_init, torch.from_numpy(np.stack(stacked)).to(device)


_DEFAULT = ("first_hitting", "left_to_right", "block", "ancestral", "tweedie", "gaussian")


def open_sampler(run: Trained, sampler: str | None, flags: Sequence[str]) -> Sampler:
    """Build the sampler of a run, by default the usual one for its process.

    Args:
        run: The run.
        sampler: Name of the sampler.
        flags: Options of the sampler, ``--key=value``.

    Raises:
        ValueError: If there is no such sampler or option, or the sampler does not fit the run.
    """
    chosen = build_sampler(usual_sampler(run) if sampler is None else sampler, flags)
    chosen.check_fit(run.denoiser)
    return chosen


def check_sampler(directory: Path, sampler: str | None, flags: Sequence[str]) -> None:
    """Check the options of a sampler before a run is loaded.

    Args:
        directory: The run directory.
        sampler: Name of the sampler; ``None`` for the usual one of the run.
        flags: Options of the sampler.

    Raises:
        FileNotFoundError: If it is no run directory, or nothing has been saved yet.
        ValueError: If the sampler does not take the options; without a name, if none of the usual
            samplers does.
    """
    try:
        _first_fit(_DEFAULT if sampler is None else [sampler], flags)
    except ValueError:
        if sampler is None and (directory / CONFIG_NAME).is_file():
            build_sampler(usual_sampler(load_trained(directory)), flags)  # raises, naming that one
        raise


def usual_sampler(run: Trained) -> str:
    """Return the name of the default sampler of a run."""
    return next(n for n in _DEFAULT if choose_sampler(n).needs.met_by(run.denoiser))


def _first_fit(names: Iterable[str], flags: Sequence[str]) -> Sampler:
    """Build the first sampler of a list that accepts the options.

    Raises:
        ValueError: If none does: the error of the first sampler that has all of these options, or
            else of the first sampler.
    """
    given = {flag.removeprefix("--").partition("=")[0].partition(".")[0] for flag in flags}
    complaints = []
    for name in names:
        try:
            return build_sampler(name, flags)
        except ValueError as error:
            complaints.append((given - set(signature(choose_sampler(name)).parameters), error))
    raise next((error for unknown, error in complaints if not unknown), complaints[0][1])


def guide(
    command: str,
    run: AnyRun,
    label: str | None,
    gamma: float | None = None,
    *,
    signal: bool = False,
) -> AnyRun:
    """Return the run with a model that is guided to a label, to signals or to both.

    Args:
        command: Name of the command, for the messages.
        run: The run.
        label: Name of the label; ``None`` for none.
        gamma: Strength of classifier-free guidance; ``None`` means 1, the model given the
            condition.
        signal: Whether the rows are given signals.

    Raises:
        ValueError: If the run has no such label, or was not trained for this guidance.
    """
    known = run.datamodule.labels
    if label is not None and known is None:
        raise ValueError(
            f"{command}.label must be left out for a run without labels, got {label!r}; train "
            "on data with labels (data.labels, data.label_file)"
        )
    if label is not None and known is not None and label not in known:
        raise ValueError(
            f"{command}.label must be one of {', '.join(known)}, got {label!r}; "
            "choose a label of the training data"
        )
    if label is None and not signal and gamma is not None:
        raise ValueError(
            f"{command}.guidance must come with a label or a signal, got {gamma} without; add "
            "--label or --signal"
        )
    strength = 1.0 if gamma is None else gamma
    if known is not None and run.config.label_dropout == 0 and (label is None or strength != 1):
        raise ValueError(
            f"{command}.label must be given, with guidance 1, for a run trained with label_dropout "
            f"0, got label {label} and guidance {strength}: it cannot do without a label; give "
            f"--label {known[0]}, or train with label_dropout 0.1"
        )
    has_signals, dropout = run.datamodule.signals is not None, run.config.signal_dropout
    if has_signals and dropout == 0 and not (signal and strength == 1):
        raise ValueError(
            f"{command}.signal must be given, with guidance 1, for a run trained with "
            f"signal_dropout 0, got guidance {strength} and {'a' if signal else 'no'} signal: it "
            "cannot do without; give --signal, or train with signal_dropout 0.1"
        )
    number = None if label is None or known is None else known.index(label)
    if strength == 0 or (number is None and not (signal and strength != 1)):
        return run
    model = run.denoiser
    if model.kind == "score" or model.reads_embeddings:
        if strength != 1:
            raise ValueError(
                f"{command}.guidance must be 0 or 1 for the {model.description}, of which other "
                f"strengths are not defined, got {strength}; leave it out"
            )
        assert number is not None
        return replace(run, denoiser=model.given_label(number).eval())
    if model.context == "block":
        return replace(run, denoiser=BlockClassifierFree(model, number, strength).eval())
    return replace(run, denoiser=ClassifierFree(model, number, strength).eval())


def choose_labels(command: str, run: Trained, *, given: bool) -> bool | None:
    """Decide whether the rows of a split are evaluated given their labels.

    Args:
        command: Name of the command, for the messages.
        run: The run.
        given: Whether the user asks for labels.

    Returns:
        The decision; ``None`` for a run without labels.

    Raises:
        ValueError: If the user asks for labels and the run has none, or the run needs labels.
    """
    if run.datamodule.labels is None:
        if given:
            raise ValueError(
                f"{command}.given_labels must be left out for a run without labels, got it for "
                f"{run.directory}; train on data with labels (data.labels, data.label_file)"
            )
        return None
    if not given and run.config.label_dropout == 0:
        raise ValueError(
            f"{command}.given_labels must be set for a run trained with label_dropout 0, which "
            f"cannot do without labels, got {run.directory} without it; add --given-labels, or "
            "train with label_dropout 0.1"
        )
    return given


def choose_signals(command: str, run: Trained, *, given: bool) -> bool | None:
    """Decide whether the rows of a split are evaluated given their signals.

    Args:
        command: Name of the command, for the messages.
        run: The run.
        given: Whether the user asks for signals.

    Returns:
        The decision; ``None`` for a run without signals.

    Raises:
        ValueError: If the user asks for signals and the run has none, or the run needs signals.
    """
    if run.datamodule.signals is None:
        if given:
            raise ValueError(
                f"{command}.given_signals must be left out for a run without signals, got it for "
                f"{run.directory}; train on data with measured values (data.signals)"
            )
        return None
    if not given and run.config.signal_dropout == 0:
        raise ValueError(
            f"{command}.given_signals must be set for a run trained with signal_dropout 0, which "
            f"cannot do without signals, got {run.directory} without it; add --given-signals, or "
            "train with signal_dropout 0.1"
        )
    return given


def check_context(
    owner: str, length: int, run: Trained, sampler: Sampler, *, extrapolate: bool
) -> None:
    """Check that a sequence is not longer than the network takes and the rows of training.

    Args:
        owner: Name of the sequence, for the message.
        length: Tokens of the sequence; with a sliding window the network sees fewer at a time.
        run: The run.
        sampler: The sampler.
        extrapolate: Whether the sequence may be longer than the rows of training.

    Raises:
        ValueError: If it is too long.
    """
    seen = sampler.context_length(length)
    unit = run.datamodule.token_name
    bound, learnt = run.max_length, run.datamodule.context_length
    window = min(limit for limit in (bound, learnt, seen) if limit is not None)
    slide = (
        "or slide a window: --sampler semi_autoregressive "
        f"--window {window} --stride {max(1, window // 2)}"
    )
    if isinstance(sampler, BlockSampler):
        slide = f"or condition it on fewer tokens: --window {window}"
    if bound is not None and seen > bound:
        raise ValueError(
            f"{owner} must be at most {bound:,} {unit}s, all that the network of {run.directory} "
            f"takes at a time, got {length:,}; shorten it, {slide}"
        )
    if learnt is not None and seen > learnt and not extrapolate:
        raise ValueError(
            f"{owner} must be at most {learnt:,} {unit}s, the context that {run.directory} was "
            f"trained with, got {length:,}; shorten it, add --extrapolate, {slide}"
        )


def save_trace(
    path: Path, recorder: Recorder, sampler: Sampler, names: list[str], tokenizer: Tokenizer
) -> None:
    """Write the trace of a recorder.

    Args:
        path: The file.
        recorder: Recorder of all sequences.
        sampler: The sampler.
        names: Names of the sequences.
        tokenizer: Tokenizer that decodes each id.

    Raises:
        OSError: If the file cannot be written.
    """
    write_trace(path, _trace(recorder, sampler, names, tokenizer))


def _trace(recorder: Recorder, sampler: Sampler, names: list[str], tokenizer: Tokenizer) -> Trace:
    symbols = [tokenizer.decode(np.array([i])) for i in range(tokenizer.vocab_size + 1)]
    return recorder.trace(sampler=sampler_name(type(sampler)), names=names, symbols=symbols)


def draw_samples(directory: Path, *, seed: int) -> Samples | None:
    """Draw a few sequences from what a run in training has just saved, on the CPU.

    They have the length of a training row, but at most 512 tokens, and no n-gram experts, which are
    added after the training.

    Args:
        directory: The run directory.
        seed: Seed of the draws.

    Returns:
        The samples; ``None`` if training rows differ in length, the model cannot do without a
        label or a signal, or no sampler is for it.
    """
    from seqdiff.plots import draw_trace, rasterize  # imports matplotlib

    trained = load_trained(directory)
    length = trained.datamodule.context_length
    if length is None:
        return None
    try:
        trained = guide("sample", trained, None)
        sampler = open_sampler(trained, None, [])
    except (ValueError, StopIteration):
        return None
    recorder = Recorder()
    x_init = torch.full((_SHOWN, min(length, _LONGEST_SHOWN)), trained.process.unknown_id)
    recorder.start(x_init, range(_SHOWN))
    seeds = trained.row_seeds(_SHOWN, seed)
    drawn = sampler.sample(trained.denoiser, x_init, seeds=seeds, callback=recorder)
    names = [f"sample_{number}" for number in range(_SHOWN)]
    trace = _trace(recorder, sampler, names, trained.tokenizer)
    texts = [trained.tokenizer.decode(row) for row in drawn.tokens.numpy()]
    return Samples(texts, rasterize(draw_trace(trace, 0)))

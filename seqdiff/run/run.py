"""Trained runs: every command that uses a run is a method."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal, TypeGuard

import numpy as np
import torch
from jaxtyping import Float

from seqdiff.backbones import CONFIG_FILE
from seqdiff.cells import describe_error
from seqdiff.checks import check_count, check_options, check_seed, check_string, check_strings
from seqdiff.data import (
    Blanks,
    CountingTokenizer,
    Motif,
    Reader,
    Record,
    Records,
    Scaffolds,
    Signals,
    Split,
    Templates,
    choose_reader,
    find_readers,
)
from seqdiff.denoiser import Denoiser
from seqdiff.experts import PARTS
from seqdiff.likelihood import check_additive, check_budget
from seqdiff.run.comparison import Comparison, compare_runs
from seqdiff.run.directory import CONFIG_NAME, Trained
from seqdiff.run.domains import run_packages
from seqdiff.run.drawing import (
    Drawing,
    check_context,
    choose_batch,
    choose_labels,
    choose_signals,
    draw,
    fit_sampler,
    guide,
    save_trace,
    usual_sampler,
)
from seqdiff.run.engine import Engine
from seqdiff.run.estimators import EstimatorOptions, choose_estimator, suit
from seqdiff.run.evaluation import Conditions, Evaluation, compare, estimate
from seqdiff.run.loading import load_hub, load_trained
from seqdiff.run.packaged import find_run
from seqdiff.run.prediction import (
    FillTable,
    check_readable,
    embed,
    fill_table,
    masked_marginals,
    substitute,
)
from seqdiff.run.sampler_config import choose_sampler
from seqdiff.run.scoring import Scores, score_records
from seqdiff.run.signals import GivenSignal, check_tracks, fit_signal, warn_of_range
from seqdiff.run.variance import Report, measure_variance
from seqdiff.samplers import Recorder, Sampler, WordAutomaton, check_room
from seqdiff.trace import check_trace


@dataclass(frozen=True)
class Run(Trained):
    """A trained model, ready to use.

    Methods that draw take a ``seed``; without one they draw a seed and print it. Results depend on
    the seed, the weights and the tokenizer, not on the batch size.

    Attributes:
        directory: The run directory.
        config: The configuration.
        denoiser: The model with the exported weights, in eval mode.
        digest: Hash of the exported weights; wrapping the network does not change it.
    """

    def __repr__(self) -> str:
        """Describe the run in one line."""
        size = sum(parameter.numel() for parameter in self.denoiser.parameters())
        return (
            f"Run({str(self.directory)!r}: {self.denoiser.description}, "
            f"{type(self.denoiser.backbone).__name__} of {size:,} parameters)"
        )

    def to(self, device: torch.device | str) -> Run:
        """Move the network.

        Args:
            device: A device of torch, for example ``"cuda"``.

        Returns:
            This run.

        Raises:
            ValueError: If there is no such device.
        """
        try:
            self.denoiser.to(device)
        except (RuntimeError, AssertionError) as error:  # torch raises either
            raise ValueError(
                f"Run.to.device must be available, got {device}: "
                f"{describe_error(error)}; cpu always is"
            ) from error
        return self

    def sample(
        self,
        num: int = 10,
        *,
        length: int | None = None,
        seed: int | None = None,
        sampler: str | Sampler | None = None,
        motifs: Sequence[str] = (),
        label: str | None = None,
        signal: GivenSignal | None = None,
        guidance: float | None = None,
        stop: str | None = None,
        block_size: int | None = None,
        extrapolate: bool = False,
        trace: Path | None = None,
        batch_size: int | None = None,
        **options: Any,
    ) -> list[str]:
        """Draw sequences.

        Args:
            num: Number of sequences.
            length: Tokens in each; by default the length of the training rows.
            seed: Seed of the draws, in [0, 2^32).
            sampler: Name of a sampler, or a sampler; by default the usual one for the process.
            motifs: ``PATTERN`` or ``PATTERN@START``, counted from 0: tokens that occur in every
                sequence.
            label: Class to draw, for a run with labels.
            signal: Values to condition on, for a run with signals: by name, one for all sequences
                or one for each, or an array ``[num, S]`` (``[num, length, S]`` if positions have
                values) with NaN where a value is unknown.
            guidance: Strength of classifier-free guidance; by default 1, the model's distribution
                given the label and the signal.
            stop: A symbol that ends a sequence, for runs of block diffusion.
            block_size: Tokens of a block, for runs of several sizes; see ``in_blocks``.
            extrapolate: Whether sequences may be longer than the rows of training.
            trace: Keep the tokens after every step in this .npz file.
            batch_size: Sequences drawn at a time; chosen by default.
            options: Options of the sampler, for example ``temperature=0.9``, and of installed
                domains, for example ``rc_consistent=True`` or ``avoid=["GAATTC"]`` for DNA.

        Returns:
            The sequences, decoded.

        Raises:
            ValueError: If an argument does not fit the run or the sampler.
        """
        run = self.in_blocks(block_size, "sample")
        length = self.usual_length("sample.length") if length is None else length
        check_count("sample.num", num)
        check_count("sample.length", length)
        templates: Templates = Blanks(num, length, self.process.unknown_id)
        if isinstance(motifs, str) or motifs:
            parsed = [Motif.parse(text) for text in check_strings("sample.motifs", motifs)]
            templates = Scaffolds(parsed, num, length, self.tokenizer)
        extras = _take_domain_options(options)
        for extra in extras:
            templates = extra.templates(self, num, length) or templates
        recorder = None
        if trace is not None:
            check_trace(trace)
            check_room(num, length)
            recorder = Recorder()
        drawn = run.draw(
            templates,
            seed=seed,
            sampler=self._sampler(sampler, options),
            label=label,
            signal=None if signal is None else fit_signal("sample.signal", self, signal, num),
            guidance=guidance,
            stop=stop,
            extrapolate=extrapolate,
            batch_size=batch_size,
            extras=extras,
            recorder=recorder,
        )
        sequences = list(drawn)
        if trace is not None and recorder is not None:
            save_trace(trace, recorder, drawn.sampler, templates.names, self.tokenizer)
        return sequences

    def infill(
        self,
        templates: str | Sequence[str],
        num: int = 1,
        *,
        seed: int | None = None,
        sampler: str | Sampler | None = None,
        label: str | None = None,
        signal: GivenSignal | None = None,
        guidance: float | None = None,
        block_size: int | None = None,
        extrapolate: bool = False,
        batch_size: int | None = None,
        **options: Any,
    ) -> list[str]:
        """Fill the unknown positions of templates; known tokens stay.

        Args:
            templates: One or several. For DNA, N and other IUPAC codes are filled; for text,
                ``[MASK]``, or ``[MASK:20]`` for twenty tokens.
            num: Sequences for each template.
            seed: See ``sample``.
            sampler: See ``sample``.
            label: See ``sample``.
            signal: See ``sample``; the number of sequences is that of all templates together.
            guidance: See ``sample``.
            block_size: See ``sample``.
            extrapolate: See ``sample``.
            batch_size: See ``sample``.
            options: See ``sample``.

        Returns:
            The sequences, ``num`` for each template, template by template.

        Raises:
            ValueError: If an argument does not fit the run or the sampler.
        """
        run = self.in_blocks(block_size, "infill")
        check_count("infill.num", num)
        rows = [templates] if isinstance(templates, str) else templates
        rows = check_strings("infill.templates", rows)
        records = Records([(str(i), row) for i, row in enumerate(rows)], num, self.tokenizer)
        extras = _take_domain_options(options)
        for extra in extras:
            extra.check_infill()
        total = len(records.names)
        drawn = run.draw(
            records,
            seed=seed,
            sampler=self._sampler(sampler, options),
            label=label,
            signal=None if signal is None else fit_signal("infill.signal", self, signal, total),
            guidance=guidance,
            extrapolate=extrapolate,
            batch_size=batch_size,
            extras=extras,
        )
        return list(drawn)

    def draw(
        self,
        templates: Templates,
        *,
        sampler: Sampler,
        seed: int | None = None,
        label: str | None = None,
        signal: Signals | None = None,
        guidance: float | None = None,
        stop: str | None = None,
        extrapolate: bool = False,
        batch_size: int | None = None,
        extras: Sequence[Any] = (),
        recorder: Recorder | None = None,
        avoid: WordAutomaton | None = None,
        steer: Callable[[Denoiser], Denoiser] | None = None,
        engine: Engine | None = None,
    ) -> Drawing:
        """Prepare to draw a sequence for each template, under a progress bar.

        The arguments are checked at once. The sequences are drawn when the result is iterated over.

        Args:
            templates: The given tokens of each sequence.
            sampler: The sampler.
            seed: See ``sample``.
            label: See ``sample``.
            signal: Values of each sequence, see ``fit_signal``.
            guidance: See ``sample``.
            stop: See ``sample``.
            extrapolate: See ``sample``.
            batch_size: See ``sample``.
            extras: Options of installed domains, see ``seqdiff.cli.extensions.SampleOptions``,
                which change the model before it is guided, for example to read both strands.
            recorder: Records every step.
            avoid: Words that no sequence may hold; by default those of ``extras``.
            steer: Changes the model after it is guided to the label and the signal, for example by
                ``ExactClassifierBased``.
            engine: Where to draw; by default in this process.

        Raises:
            ValueError: If an argument does not fit the run or the sampler.
        """
        check_seed("sample.seed", seed)
        if batch_size is not None:
            check_count("sample.batch_size", batch_size)
        sampler.check_fit(self.denoiser)
        run = self
        for extra in extras:
            run = extra.modify(run, sampler)
            avoid = extra.words(run) or avoid
        run = guide("sample", run, label, guidance, signal=signal is not None)
        if steer is not None:
            run = replace(run, denoiser=steer(run.denoiser).eval())
        if signal is not None:
            check_tracks(signal, templates.lengths)
            warn_of_range(self, signal)
            signal = None if guidance == 0 else signal
        sampler = fit_sampler(sampler, run, stop=stop, extrapolate=extrapolate)
        if isinstance(templates, Records):
            for name, length in templates.records:
                owner = f"sample.infill record {name!r}"
                check_context(owner, length, run, sampler, extrapolate=extrapolate)
        else:
            longest = max(templates.lengths)
            check_context("sample.length", longest, run, sampler, extrapolate=extrapolate)
        batch_size = choose_batch(run, max(templates.lengths), batch_size, engine)
        return draw(
            run,
            sampler,
            templates,
            seed=seed,
            batch_size=batch_size,
            recorder=recorder,
            signal=signal,
            avoid=avoid,
            engine=engine,
        )

    def score(
        self,
        sequences: Sequence[str] | Sequence[Record] | Path,
        *,
        names: Sequence[str] | None = None,
        label: str | None = None,
        signal: Mapping[str, float] | None = None,
        block_size: int | None = None,
        seed: int = 0,
        batch_size: int = 32,
        engine: Engine | None = None,
        by_position: bool = False,
        **options: Any,
    ) -> Scores:
        """Estimate the likelihood of sequences.

        Args:
            sequences: Strings, a file, a folder or glob of files, or records of a reader. Unknown
                symbols are context, not counted.
            names: Names of strings; by default their numbers from 0.
            label: Class that the scores are conditioned on, for a run with labels.
            signal: Values that the scores are conditioned on, by name, for a run with signals.
            block_size: Tokens of a block, for runs of several sizes; see ``in_blocks``.
            seed: Seed of the draws.
            batch_size: Rows per network call.
            engine: Where to compute; by default in this process.
            by_position: Whether each score also has what every position contributes to it.
            options: Fields of ``EstimatorOptions``, for example ``estimator="fixed-order"`` or
                ``target_se=0.5``; for a file also options of its reader, for example
                ``rc="mean"`` for FASTA.

        Returns:
            A table with a line for each sequence: nats, standard error, 95% interval.

        Raises:
            ValueError: If an option does not fit the run, or a sequence is too long.
        """
        reader: Reader | None = None
        files: list[Path] = []
        if isinstance(sequences, Path):
            option, files = choose_reader([sequences], partial(run_packages, self.directory))
            kind = find_readers()[option]
            own = {f.name for f in fields(kind)} & set(options)
            reader = kind(**{name: options.pop(name) for name in own})
        elif not _are_records(sequences):
            sequences = check_strings("score.sequences", sequences)
            if names is not None and len(names) != len(sequences):
                raise ValueError(
                    f"score.names must hold one name per sequence: {len(sequences):,}, got "
                    f"{len(names):,}; leave it out to number them"
                )
        check_seed("score.seed", seed)
        check_count("score.batch_size", batch_size)
        check_options("score", options, EstimatorOptions)
        chosen = EstimatorOptions(**options)
        estimator = choose_estimator("score", chosen)
        check_budget(estimator, num_tokens=1, **chosen.budget, owner="score")
        run = self.in_blocks(block_size, "score").condition("score", label, signal)
        if signal is not None:
            warn_of_range(self, fit_signal("score.signal", self, signal, 1))
        estimator = suit("score", estimator, chosen, run)
        if by_position:
            check_additive("score", estimator)
        if isinstance(sequences, Path):
            assert reader is not None
            rows = reader.read(files, self.tokenizer)
        else:
            rows = _records(self, sequences, names)
        found = score_records(
            run,
            rows,
            estimator=estimator,
            seed=seed,
            batch_size=batch_size,
            **chosen.budget,
            engine=engine,
            by_position=by_position,
        )
        counts = self.tokenizer.unit if isinstance(self.tokenizer, CountingTokenizer) else None
        return Scores(tuple(found), self.datamodule.token_name, estimator, counts)

    def in_blocks(self, block_size: int | None, command: str = "in_blocks") -> Run:
        """Return this run with blocks of another size, for every method that uses the model.

        Args:
            block_size: One of the sizes that the run was trained for (``denoiser.block_sizes``), of
                which the largest is the default; ``None`` keeps the present one.
            command: Name of the caller, for messages.

        Raises:
            ValueError: If the run was not trained for this size; names those that it was.
        """
        if block_size is None:
            return self
        return replace(self, denoiser=self.denoiser.in_blocks(block_size, command).eval())

    def condition(
        self, command: str, label: str | None = None, signal: Mapping[str, float] | None = None
    ) -> Run:
        """Return this run with a model that is given a label and a signal for every row.

        Args:
            command: Name of the caller, for messages.
            label: Class, for a run with labels.
            signal: Values by name, for a run with signals.

        Raises:
            ValueError: If the run has no such label or signal, or cannot do without one.
        """
        run: Run = self
        if signal is not None:
            values = fit_signal(f"{command}.signal", self, signal, 1)[0].tolist()
            run = replace(self, denoiser=self.denoiser.given_signal(values).eval())
        return guide(command, run, label, signal=signal is not None)

    def evaluate(
        self,
        split: Split = "test",
        *,
        given_labels: bool = False,
        given_signals: bool = False,
        block_size: int | None = None,
        seed: int = 0,
        **options: Any,
    ) -> Evaluation:
        """Estimate the likelihood of a split, and compare it with baselines on the same rows.

        Args:
            split: The split.
            given_labels: Whether each row is evaluated given its label.
            given_signals: Whether each row is evaluated given its signals.
            block_size: Tokens of a block, for runs of several sizes; see ``in_blocks``.
            seed: Seed of the draws.
            options: Fields of ``EstimatorOptions``, for example ``evaluations=4``.

        Raises:
            ValueError: If an option does not fit the run.
        """
        check_seed("evaluate.seed", seed)
        check_options("evaluate", options, EstimatorOptions)
        chosen = EstimatorOptions(**options)
        estimator = choose_estimator("evaluate", chosen)
        check_budget(estimator, num_tokens=1, **chosen.budget)
        run = self.in_blocks(block_size, "evaluate")
        estimator = suit("evaluate", estimator, chosen, run)
        conditions = Conditions(
            choose_labels("evaluate", self, given=given_labels),
            choose_signals("evaluate", self, given=given_signals),
        )
        ask = partial(
            estimate,
            *(run, split),
            estimator=estimator,
            seed=seed,
            **chosen.budget,
            conditions=conditions,
        )
        result, parts = ask(), {}
        if run.denoiser.experts is not None and run.denoiser.experts.counted:
            for part in PARTS:
                with run.denoiser.experts.only(part):
                    parts[f"{part} alone"] = ask()
        return compare(run, split, result, estimator, conditions, parts)

    def compare(
        self, *others: Run, split: Split = "test", seed: int = 0, **options: Any
    ) -> Comparison:
        """Compare other runs with this one on the sequences of a split, with the same noise.

        Args:
            others: Runs of the same tokenizer.
            split: Split of this run's data.
            seed: Seed of the draws.
            options: Fields of ``EstimatorOptions``, for example ``evaluations=4``.

        Raises:
            ValueError: If an option or a run does not fit; see ``compare_runs``.
        """
        check_seed("compare.seed", seed)
        check_options("compare", options, EstimatorOptions)
        return compare_runs([self, *others], split, options=EstimatorOptions(**options), seed=seed)

    def embed(
        self,
        sequences: Sequence[str],
        *,
        layer: int | None = None,
        pooling: Literal["mean", "none"] = "mean",
        batch_size: int = 32,
    ) -> Float[np.ndarray, "N H"] | list[Float[np.ndarray, "L H"]]:
        """Compute the hidden states of sequences.

        States of DNA are averaged over both strands.

        Args:
            sequences: Strings.
            layer: Number of layers after which states are taken; by default the input of the head.
            pooling: ``mean`` averages over known positions; ``none`` keeps every position.
            batch_size: Rows per network call.

        Returns:
            One vector for each sequence; without pooling a list with a matrix for each.

        Raises:
            ValueError: If the network does not read tokens, there is no such layer, or a sequence
                is too long or has no known position.
        """
        strings = check_strings("embed.sequences", sequences)
        if pooling not in ("mean", "none"):
            raise ValueError(f"embed.pooling must be mean or none, got {pooling!r}")
        pooled = pooling == "mean"
        check_count("embed.batch_size", batch_size)
        rows = [self.tokenizer.encode(string) for string in strings]
        check_readable("embed", self, {str(i): row for i, row in enumerate(rows)}, pooled=pooled)
        found = embed(self, rows, layer=layer, pooled=pooled, batch_size=batch_size)
        return np.stack(found) if pooled else found

    def variance(
        self, split: Split = "valid", *, batches: int = 64, gradient: bool = False
    ) -> Report:
        """Compare intervals of mask fractions by the variance of block diffusion's training loss.

        Args:
            split: Split whose batches are read.
            batches: Number of training batches, at least 2; each takes 36 network passes.
            gradient: Measure the variance of the gradient instead of the loss.

        Raises:
            ValueError: If it is not a run of block diffusion, or there are too few batches.
        """
        check_count("variance.batches", batches, 2)
        return measure_variance(self, split, batches=batches, gradient=gradient)

    def fill_probabilities(self, template: str) -> FillTable:
        """Predict p(token | known tokens) for every unknown position of a template.

        Args:
            template: A string with unknown symbols, such as N in DNA.

        Raises:
            ValueError: If the process is not masked diffusion, or no symbol is unknown.
        """
        check_string("fill_probabilities.template", template)
        return fill_table(self, template)

    def substitutions(
        self, sequence: str, changes: Sequence[str], *, batch_size: int = 32
    ) -> list[float]:
        """Score substitutions of a sequence by masked marginals, see ``masked_marginals``.

        Args:
            sequence: The reference, for example a protein.
            changes: ``M182T`` for T instead of M at position 182, counted from 1;
                ``M182T:A42G`` for several at once.
            batch_size: Maximum number of rows of a network call.

        Returns:
            log p(changed) - log p(reference) in nats, for each of them.

        Raises:
            ValueError: If a change is not valid for the sequence, the process is not masked
                diffusion, or the sequence is too long for the network.
        """
        check_string("substitutions.sequence", sequence)
        check_count("substitutions.batch_size", batch_size)
        changed = check_strings("substitutions.changes", changes)
        pairs = [(sequence, substitute(sequence, change)) for change in changed]
        return masked_marginals(self, pairs, batch_size=batch_size)

    def usual_length(self, owner: str) -> int:
        """Return the number of tokens of a training row.

        Args:
            owner: Name of the caller, for the message.

        Raises:
            ValueError: If training rows differ in length.
        """
        length = self.datamodule.context_length
        if length is None:
            raise ValueError(
                f"{owner} must be given for {self.directory}, whose training rows differ in "
                "length, got none; add it, for example 100"
            )
        return length

    def _sampler(self, sampler: str | Sampler | None, options: dict[str, Any]) -> Sampler:
        """Build a sampler from keyword arguments.

        Raises:
            ValueError: If options are given with a sampler object, or the sampler does not take
                one.
        """
        if isinstance(sampler, Sampler):
            if options:
                raise ValueError(
                    f"Run.sample.{next(iter(options))} must be set on the sampler that was given, "
                    f"a {type(sampler).__name__}"
                )
            return sampler
        name = usual_sampler(self) if sampler is None else sampler
        kind = choose_sampler(name)
        check_options(f"sample.sampler {name}", options, kind)
        try:
            return kind(**options)
        except TypeError as error:  # a required option is missing
            raise ValueError(f"sample.sampler {name}: {error}") from error


def load(directory: Path | str, *, device: torch.device | str = "cpu") -> Run:
    """Load a run, a packaged model, or a published network. Nothing is unpickled.

    Args:
        directory: A run directory; the name of a packaged model, if there is no such folder; or a
            hub folder with ``config.json`` and ``model.safetensors`` of a Caduceus, an MDLM, a
            BD3-LM or a masked language model of transformers.
        device: Device of the network.

    Raises:
        FileNotFoundError: If it is none of them, or nothing has been saved yet.
        ValueError: If the tokenizer or the weights do not fit the configuration.
    """
    if not isinstance(directory, str | Path):
        raise ValueError(f"load.directory must be a path, got {directory!r}; give a string")
    directory = find_run(directory)
    if (directory / CONFIG_NAME).is_file() or not (directory / CONFIG_FILE).is_file():
        found = load_trained(directory, device=device)
    else:
        found = load_hub(directory, device=device)
    return Run(found.directory, found.config, found.denoiser, found.digest)


def _take_domain_options(options: dict[str, Any]) -> list[Any]:
    """Take the options of installed domains out of keyword arguments, and build them."""
    found = []
    for entry in entry_points(group="seqdiff.sample_options"):
        kind = entry.load()
        own = {f.name for f in fields(kind)} & set(options)
        if own:
            found.append(kind(**{name: options.pop(name) for name in own}))
    return found


def _are_records(sequences: object) -> TypeGuard[Sequence[Record]]:
    return (
        isinstance(sequences, Sequence)
        and len(sequences) > 0
        and all(isinstance(one, Record) for one in sequences)
    )


def _records(
    run: Run, sequences: Sequence[str] | Sequence[Record], names: Sequence[str] | None
) -> list[Record]:
    """Encode strings as records; records stay as they are."""
    found = []
    for number, sequence in enumerate(sequences):
        if not isinstance(sequence, Record):
            name = str(number) if names is None else names[number]
            sequence = Record(name, (run.tokenizer.encode(sequence),))
        found.append(sequence)
    return found


def train(config: Path | str, *flags: str) -> Run:
    """Train what a configuration file describes, and load the run.

    Args:
        config: A YAML file.
        flags: Keys that override the file, as on the command line: ``"--optim.lr", "1e-3"``.

    Raises:
        FileExistsError: If the run directory already holds a run.
        ValueError: If the configuration does not fit together.
    """
    from seqdiff.run.config import parse_run
    from seqdiff.run.start import quieten_lightning, start_run

    quieten_lightning()
    return load(start_run(parse_run(Path(config), flags)))


def resume(directory: Path | str, *flags: str) -> Run:
    """Continue training a run as if it had never stopped, and load it.

    Args:
        directory: The run directory.
        flags: Keys to override, for example ``"--trainer.max_steps", "20000"``.

    Raises:
        FileNotFoundError: If there is nothing to resume.
        ValueError: If the checkpoint does not fit, or the run is already finished.
    """
    from seqdiff.run.start import quieten_lightning, resume_run

    quieten_lightning()
    return load(resume_run(Path(directory), flags))

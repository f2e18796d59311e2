"""What the page can do with a run: draw, score, mutate, and predict one token."""

from __future__ import annotations

import math
import secrets
import shlex
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_type_hints

import docstring_parser
import numpy as np
import torch
from scipy.special import entr

from seqdiff.checks import check_count, check_seed
from seqdiff.data import Blanks, ConstraintTokenizer, Records, StringTokenizer, Templates
from seqdiff.playground.jobs import Event, Job, JobEngine
from seqdiff.playground.requests import Condition, Draw, Mutate, Predict, Score
from seqdiff.run import Engine, Run, fit_signal, list_options, open_sampler, usual_sampler
from seqdiff.samplers import Recorder, find_sampler, fitting_samplers
from seqdiff.tables import format_rows
from seqdiff.types import Inputs

_MOST_SEQUENCES = 16
_MOST_TOKENS = 16_384  # of all sequences, which the page draws one by one
_MOST_COLORS = 40
_MOST_SHOWN = 20  # symbols of a distribution
_PLAIN = ("an integer", "a number", "true or false")
_WORDS = ("true", "false", "none")


class Hooks(NamedTuple):
    """What the command line and the run's domain give to the page.

    Attributes:
        write: Writes sequences with their names to a path, in the format of the domain.
        command: Formats the words of a command of seqdiff for a shell.
        options: The domain's options of ``seqdiff sample``: dataclasses.
        mutate: Computes the effects of all substitutions ``[L, K]``, if the domain can.
    """

    write: Callable[[Path, Iterable[str], Iterable[str]], None]
    command: Callable[..., str]
    options: Sequence[type] = ()
    mutate: Callable[[Run, str, Engine], np.ndarray] | None = None


class Studio:
    """A run and what the page does with it."""

    def __init__(self, run: Run, name: str, hooks: Hooks) -> None:
        """Prepare the run for the page.

        Args:
            run: The run.
            name: The run as it is typed in commands.
            hooks: What the domain adds.
        """
        self.run, self.name, self._hooks = run, name, hooks
        tokenizer = run.tokenizer
        self.symbols = [tokenizer.decode([i]) for i in range(tokenizer.vocab_size + 1)]
        self.samplers = _describe_samplers(run)
        self._suffix = run.datamodule.file_suffix
        self._layout = not _reads(run, f"{self.symbols[0]}\n{self.symbols[0]}")

    def about(self) -> Event:
        """Describe the run for the form of the page."""
        data, denoiser = self.run.datamodule, self.run.denoiser
        signals = None if data.signal_tracks else data.signals
        embedding = denoiser.backbone.signal_embedding
        ranges = [] if embedding is None else embedding.range.T.tolist()
        return {
            "name": self.name,
            "about": f"{denoiser.description}, {type(denoiser.backbone).__name__}",
            "token": data.token_name,
            "length": data.context_length,
            "most": {"sequences": _MOST_SEQUENCES, "tokens": _MOST_TOKENS},
            "symbols": self.symbols,
            "colors": self._colors(),
            "labels": data.labels or [],
            "signals": [
                {"name": name, "low": low, "high": high}
                for name, (low, high) in zip(signals or [], ranges, strict=True)
            ]
            if signals and ranges
            else [{"name": name, "low": None, "high": None} for name in signals or []],
            "samplers": self.samplers,
            "sampler": usual_sampler(self.run),
            "options": [option for kind in self._hooks.options for option in _form(kind)],
            "template": isinstance(self.run.tokenizer, ConstraintTokenizer),
            "predicts": _predicts(self.run),
            "mutates": self._hooks.mutate is not None,
        }

    def draw(self, wanted: Draw) -> Callable[[Job], Event]:
        """Check a request, and return the work that draws it.

        The work reports each step that changes something with its changes: row, position, id, and
        the probability of the token in percent, or -1.

        Raises:
            ValueError: If it does not fit the run.
        """
        run, flags = self.run, self._flags(wanted)
        check_count("number", wanted.num)
        check_seed("seed", wanted.seed)
        if wanted.num > _MOST_SEQUENCES:
            raise ValueError(
                f"number must be at most {_MOST_SEQUENCES}, got {wanted.num}; seqdiff sample draws "
                "more"
            )
        if wanted.length is not None:
            check_count("length", wanted.length)
        sampler = open_sampler(run, wanted.sampler, flags)
        extras = self._extras(wanted.domain)
        template = self._template(wanted)
        templates = self._templates(wanted, template, extras)
        tokens = sum(templates.lengths)
        if tokens > _MOST_TOKENS:
            raise ValueError(
                f"sequences must have at most {_MOST_TOKENS:,} tokens together, got {tokens:,}; "
                "lower the number or the length, or use seqdiff sample"
            )
        seed = secrets.randbelow(2**32) if wanted.seed is None else wanted.seed
        signal = None
        if wanted.signal:
            signal = fit_signal("signal", run, wanted.signal, wanted.num)

        def work(job: Job) -> Event:
            last = -1

            def watch(step: int, changes: np.ndarray, chance: np.ndarray) -> None:
                nonlocal last
                if len(changes) or step <= last:  # a sampler may replace its last steps
                    percent = np.nan_to_num(100 * chance, nan=-1).round()
                    content = np.column_stack((changes, percent)).astype(int).tolist()
                    job.events.append({"kind": "step", "step": step, "changes": content})
                    last = step
                job.step()

            drawn = run.draw(
                templates,
                sampler=sampler,
                seed=seed,
                label=wanted.label,
                signal=signal,
                guidance=wanted.guidance,
                extras=extras,
                recorder=Recorder(watch),
                engine=JobEngine(job),
            )
            sequences, names = list(drawn), templates.names
            rows = [("name", "sequence"), *zip(names, sequences, strict=True)]
            return {
                "sequences": sequences,
                "names": names,
                "seed": seed,
                "file": {"name": f"samples.{self._suffix}", "text": self._file(sequences, names)},
                "tsv": format_rows(rows),
                "command": self._command(wanted, seed, template),
            }

        return work

    def score(self, wanted: Score) -> Callable[[Job], Event]:
        """Check a request, and return the work that scores sequences.

        Raises:
            ValueError: If it does not fit the run.
        """
        sequences = [self._clean(sequence) for sequence in wanted.sequences]
        tokens = sum(len(self.run.tokenizer.encode(sequence)) for sequence in sequences)
        if not tokens:
            raise ValueError("a sequence to score must not be empty; type or draw one")
        if tokens > _MOST_TOKENS:
            raise ValueError(
                f"sequences must have at most {_MOST_TOKENS:,} tokens together, got {tokens:,}; "
                "use seqdiff score"
            )

        def work(job: Job) -> Event:
            scores = self.run.score(
                sequences,
                label=wanted.label,
                signal=wanted.signal or None,
                seed=wanted.seed,
                engine=JobEngine(job),
            )
            cells = [scores.cells(score) for score in scores]
            rows = [(*row, text) for row, text in zip(cells, sequences, strict=True)]
            used = scores.estimator
            return {
                "columns": list(scores.columns),
                "rows": cells,
                "about": f"{used.quantity}, by {used.name}",
                "sequences": sequences,
                "tsv": format_rows([(*scores.columns, "sequence"), *rows]),
            }

        return work

    def mutate(self, wanted: Mutate) -> Callable[[Job], Event]:
        """Check a request, and return the work that computes the effects of all substitutions.

        Raises:
            ValueError: If the run's domain has none, or the sequence is not valid.
        """
        mutate, sequence = self._hooks.mutate, self._clean(wanted.sequence)
        if mutate is None:
            raise ValueError(
                f"mutagenesis must be of a domain that offers it, got {self.name}; see the guide "
                "to your own kind of tokens"
            )
        ids = self.run.tokenizer.encode(sequence).tolist()
        if not ids or len(ids) > _MOST_TOKENS:
            raise ValueError(
                f"a sequence to mutate must have 1 to {_MOST_TOKENS:,} tokens, got {len(ids):,}"
            )

        def work(job: Job) -> Event:
            effects = mutate(self.run, sequence, JobEngine(job))
            cells = [[None if math.isnan(e) else round(e, 4) for e in row] for row in effects]
            return {"ids": ids, "effects": cells}

        return work

    def predict(self, wanted: Predict) -> Event:
        """Predict the token at a position from the others, most likely symbol first.

        Its information, in bits, is the entropy of equally likely tokens less that of the
        prediction (Schneider and Stephens 1990, without the correction for small samples).

        Raises:
            ValueError: If the run cannot, or the request does not fit it.
        """
        run, unknown = self._conditioned("predict", wanted), self.run.process.unknown_id
        ids, place = wanted.tokens, wanted.position
        if not _predicts(run):
            raise ValueError(
                "predict.run must predict tokens from clean ones, got the "
                f"{run.denoiser.description}"
            )
        if not (0 <= place < len(ids) <= _MOST_TOKENS and 0 <= min(ids) <= max(ids) <= unknown):
            raise ValueError(
                f"predict.tokens must be ids in 0..{unknown} with a position in them, got "
                f"position {place} of {len(ids):,} tokens; draw again"
            )
        tokens = torch.tensor([ids], device=next(run.denoiser.parameters()).device)
        where = torch.zeros_like(tokens, dtype=torch.bool)
        where[0, place] = True
        tokens[where] = unknown
        with torch.no_grad():
            (log_probs,) = run.denoiser.log_probs(Inputs(tokens), where)
        chance = log_probs.double().exp().cpu().numpy()
        best = np.argsort(-chance, kind="stable")[:_MOST_SHOWN].tolist()
        most = math.log2(len(chance))
        bits = most - float(entr(chance).sum()) / math.log(2)
        return {"ids": best, "chances": chance[best].tolist(), "bits": bits, "most": most}

    def _conditioned(self, command: str, wanted: Condition) -> Run:
        return self.run.condition(command, wanted.label, wanted.signal or None)

    def _clean(self, text: str) -> str:
        """Remove line breaks, and names of FASTA, if whitespace is no symbol of the run."""
        if not self._layout:
            return text
        lines = (line for line in text.splitlines() if not line.startswith(">"))
        return "".join("".join(lines).split())

    def _flags(self, wanted: Draw) -> list[str]:
        """Check the options of the sampler, which could name code to import, and spell them.

        Raises:
            ValueError: If there is no such sampler or option, or a value is no number.
        """
        name = usual_sampler(self.run) if wanted.sampler is None else wanted.sampler
        known = {each["name"]: each["options"] for each in self.samplers}
        if name not in known:
            raise ValueError(f"sampler must be one of {', '.join(known)}, got {name!r}")
        flags = {option["flag"] for option in known[name]}
        for flag, value in wanted.options.items():
            if flag not in flags:
                raise ValueError(f"{name} must have an option {flag}; see: seqdiff samplers {name}")
            if value not in _WORDS and not _is_number(value):
                raise ValueError(f"{flag} must be a number, got {value!r}; correct it")
        return [f"--{k[2:].replace('-', '_')}={value}" for k, value in wanted.options.items()]

    def _extras(self, given: Mapping[str, Any]) -> list[Any]:
        """Build the domain's options.

        Raises:
            ValueError: If it has no such option.
        """
        left = {name: value for name, value in given.items() if value}
        found = []
        for kind in self._hooks.options:
            own = {f.name: left.pop(f.name) for f in fields(kind) if f.name in left}
            if own:
                found.append(kind(**own))
        if left:
            raise ValueError(f"draw.domain must hold options of the domain, got {next(iter(left))}")
        return found

    def _template(self, wanted: Draw) -> str:
        """Return the template, with unknown tokens up to the length after a prompt.

        Raises:
            ValueError: If the run has no templates, it is no template, or there is nothing to fill.
        """
        text, tokenizer = self._clean(wanted.template), self.run.tokenizer
        if not text or not isinstance(tokenizer, ConstraintTokenizer):
            return text
        allowed = tokenizer.allowed(text)
        if (allowed.sum(axis=1) > 1).any():
            return text
        length = self._length(wanted)
        missing = length - len(allowed)
        if missing < 1:
            raise ValueError(
                f"template must have something to fill, got {len(allowed):,} known tokens and the "
                f"length {length:,}; write {self._unknown(1)} for an unknown token, or raise the "
                "length"
            )
        return text + self._unknown(missing)

    def _unknown(self, count: int) -> str:
        """Spell unknown tokens as templates do."""
        if isinstance(self.run.tokenizer, StringTokenizer):
            return f"[MASK:{count}]"
        return self.symbols[-1] * count

    def _length(self, wanted: Draw) -> int:
        return self.run.usual_length("length") if wanted.length is None else wanted.length

    def _templates(self, wanted: Draw, template: str, extras: Sequence[Any]) -> Templates:
        if template:
            for extra in extras:
                extra.check_infill()
            return Records([("sample", template)], wanted.num, self.run.tokenizer)
        length = self._length(wanted)
        for extra in extras:
            found = extra.templates(self.run, wanted.num, length)
            if found is not None:
                return found
        return Blanks(wanted.num, length, self.run.process.unknown_id)

    def _file(self, sequences: Sequence[str], names: Sequence[str]) -> str:
        """Format sequences as the domain writes them."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"samples.{self._suffix}"
            self._hooks.write(path, sequences, names)
            return path.read_text(encoding="utf-8")

    def _command(self, wanted: Draw, seed: int, template: str) -> str:
        """Return the command line that writes the same sequences to a file."""
        words = [self.name, f"--num={wanted.num}", f"--seed={seed}"]
        before = ""
        if template:
            path = f"template.{self._suffix}"
            content = self._file([template], ["sample"])
            before = f"printf %s {shlex.quote(content)} > {path} && "
            words.append(f"--infill={path}")
        elif wanted.length is not None:
            words.append(f"--length={wanted.length}")
        words += [] if wanted.sampler is None else [f"--sampler={wanted.sampler}"]
        words += [f"{flag}={value}" for flag, value in wanted.options.items()]
        for name, value in wanted.domain.items():
            flag = f"--{name.replace('_', '-')}"
            words += [flag] * value if isinstance(value, bool) else [f"{flag}={v}" for v in value]
        words += [] if wanted.label is None else [f"--label={wanted.label}"]
        words += [f"--signal={name}={value!r}" for name, value in wanted.signal.items()]
        words += [] if wanted.guidance is None else [f"--guidance={wanted.guidance!r}"]
        return before + self._hooks.command("sample", *words, f"--out=samples.{self._suffix}")

    def _colors(self) -> list[str]:
        """List the colours of the symbols; none if there are too many to tell apart."""
        if len(self.symbols) > _MOST_COLORS:
            return []
        from seqdiff.plots import Colors

        every = np.arange(len(self.symbols) - 1)[None]
        (found,) = Colors(tuple(self.symbols)).paint(every, np.zeros_like(every, dtype=bool))
        return [f"{red} {green} {blue}" for red, green, blue, _ in found.tolist()]


def _predicts(run: Run) -> bool:
    """Whether a run predicts a token from clean ones."""
    return run.denoiser.any_order or run.denoiser.context == "prefix"


def _reads(run: Run, text: str) -> bool:
    try:
        run.tokenizer.encode(text)
    except ValueError:
        return False
    return True


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _describe_samplers(run: Run) -> list[Event]:
    """Describe the samplers for a run, with their options that are numbers."""
    found = []
    for name in fitting_samplers(run.denoiser, own=True):
        kind = find_sampler(name)
        listed = [(option.flag, option) for option in list_options(kind)]
        for flag, option in list(listed):
            if "sampler" in option.kind and option.default is not None:
                inner = list_options(find_sampler(option.default))
                listed += [(f"{flag}.{each.flag.removeprefix('--')}", each) for each in inner]
        plain = [
            {"flag": flag, "meaning": option.meaning, "default": option.default}
            for flag, option in listed
            if option.kind in _PLAIN
        ]
        taken = {option["flag"] for option in plain}
        if all(option.default is not None or flag in taken for flag, option in listed):
            first = (kind.__doc__ or "").strip().splitlines()[0]
            found.append({"name": name, "about": first.replace("``", ""), "options": plain})
    return found


def _form(kind: type) -> list[Event]:
    """Describe the options of a domain: words, or a switch."""
    described = {
        parameter.arg_name: " ".join((parameter.description or "").split())
        for parameter in docstring_parser.parse(kind.__doc__ or "").params
    }
    found = []
    for name, hint in get_type_hints(kind).items():
        if hint is bool or list[str] in (hint, *get_args(hint)):
            what = "switch" if hint is bool else "words"
            found.append({"name": name, "kind": what, "meaning": described.get(name, "")})
    return found

"""A run's configuration: typed constructors are the schema of YAML files and flags.

Flags override an experiment file, which overrides its base file, which overrides defaults. An
experiment file names its base with the top-level key ``base``, relative to itself.
"""

from __future__ import annotations

import inspect
import itertools
import json
import re
from argparse import SUPPRESS, ArgumentError
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, get_args, get_type_hints

import torch
import yaml
from jsonargparse import ArgumentParser, Namespace

from seqdiff.backbones import AdapterConfig, Backbone, check_adaptable
from seqdiff.checks import check_seed
from seqdiff.data import ReservingTokenizer, SequenceDataModule
from seqdiff.denoiser import usual_parameterization
from seqdiff.experts import ExpertsConfig
from seqdiff.objectives import BlockNELBO, ContinuousNELBO, Objective, TimeSampler
from seqdiff.parameterization import Parameterization
from seqdiff.process import Blockwise, Process, check_block_size, check_block_sizes
from seqdiff.run.config_files import (
    check_yaml,
    config_files,
    convert_flags,
    named_classes,
    one_line,
    read_config,
    read_flags,
    unquote,
)
from seqdiff.run.kinds import describe, fits
from seqdiff.run.presets import PRESETS, find_preset
from seqdiff.run.trust import (
    UntrustedCodeError,
    check_trusted,
    import_path,
    trust_typed,
    trusted_modules,
)
from seqdiff.schedules import NoiseSchedule
from seqdiff.siblings import SIBLINGS, check_sibling
from seqdiff.training import ConditionDropout, OptimConfig, TrainerConfig

ParsedRun = Namespace

_TOLD = "backbone.time_conditioned"  # what most presets decide, unless a flag does
_NO_FLAGS = ("--config", "--base", "--provenance", "--resumed")
_NOT_FLAGS = {"base", "preset", "provenance", "resumed"}
DEFAULTS = {
    "process": "seqdiff.process.Absorbing",
    "objective": "seqdiff.objectives.ContinuousNELBO",
}


@dataclass(frozen=True)
class RunConfig:
    """The configuration of a run.

    Attributes:
        output: The run directory, which the run creates.
        data: Data and tokenizer.
        backbone: The network.
        process: The forward process.
        seed: Seed of the weights, the order of the data and all noise; in [0, 2^32).
        parameterization: Meaning of the network's outputs; null is the usual one for the process.
        objective: The loss.
        block_size: Tokens of a block for block diffusion, where the process runs on each block
            given the clean blocks before it; null runs it on whole rows. A list trains one network
            on all these sizes, each for the same number of steps; validation, evaluation and
            sampling use the largest unless they are given another.
        experts: N-gram tables of the training split, which the denoiser mixes with the predictions
            of the network; null uses none.
        start_from: A run directory, packaged model or hub folder whose weights the network starts
            with, of the same names and shapes and for the same tokenizer; null draws weights from
            the seed.
        adapter: Small matrices that are trained in place of the weights of a published network,
            which stay as they are; null trains all weights. ``--adapter lora`` uses the defaults.
        optim: Optimizer and learning rate.
        label_dropout: Fraction of training examples whose label is dropped, so that the network can
            be guided towards a label later; without effect on data without labels.
        signal_dropout: Fraction of training examples whose signals are all dropped, for the same
            purpose; if there are several, each of the others is dropped with this probability too.
        ema_decay: Decay of the averaged weights, which are validated and exported; null exports the
            last weights.
        checkpoint_every_n_steps: Optimizer steps between two checkpoints.
        trainer: Arguments of Lightning's Trainer.
    """

    output: Path
    data: SequenceDataModule
    backbone: Backbone
    process: Process
    seed: int = 0
    parameterization: Parameterization | None = None
    objective: Objective = field(default_factory=ContinuousNELBO)
    block_size: int | list[int] | None = None
    experts: ExpertsConfig | None = None
    start_from: Path | None = None
    adapter: AdapterConfig | None = None
    optim: OptimConfig = field(default_factory=OptimConfig)
    label_dropout: float = 0.1
    signal_dropout: float = 0.1
    ema_decay: float | None = 0.9999
    checkpoint_every_n_steps: int = 1000
    trainer: TrainerConfig = field(default_factory=TrainerConfig)

    def __post_init__(self) -> None:
        """Check what types cannot express.

        Raises:
            TypeError: If the backbone is not a ``Backbone``.
            ValueError: If the seed does not fit in 32 bits, a block holds no token, the backbone
                does not take the labels or signals of the data, a dropout is out of range, or
                sharded weights or several block sizes would be used in a search.
        """
        if not isinstance(self.backbone, Backbone):
            raise TypeError(
                f"RunConfig.backbone must be a Backbone, got {type(self.backbone).__name__}; "
                f"choose from {', '.join(list_choices('backbone'))}"
            )
        if self.adapter is not None:
            check_adaptable(self.backbone)
        if not 0 <= self.seed < 2**32:
            raise ValueError(
                f"RunConfig.seed must be in [0, 2^32), got {self.seed}; choose one, such as 0"
            )
        for name in ("label_dropout", "signal_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(
                    f"RunConfig.{name} must be in [0, 1), got {getattr(self, name)}; 0.1 is usual"
                )
        if isinstance(self.block_size, list):
            check_block_sizes("RunConfig.block_size", self.block_size)
            if len(self.block_size) > 1 and self.search_batches is not None:
                raise ValueError(
                    "RunConfig.objective.search_batches must be null with several block sizes, "
                    f"whose intervals differ, got {self.search_batches}; set it to null, or choose "
                    "one block_size"
                )
        elif self.block_size is not None:
            check_block_size("RunConfig", self.block_size)
        if self.data.labels is not None and self.backbone.num_classes is None:
            raise ValueError(
                "RunConfig.backbone must take num_classes for data with labels, got "
                f"{type(self.backbone).__name__}; choose another, or drop data.labels"
            )
        if self.data.signals is not None and self.backbone.num_signals is None:
            raise ValueError(
                "RunConfig.backbone must take num_signals for data with signals, got "
                f"{type(self.backbone).__name__}; choose another, or drop data.signals"
            )
        if self.trainer.strategy == "fsdp" and self.search_batches is not None:
            raise ValueError(
                "RunConfig.objective.search_batches must be null with sharded weights, got "
                f"{self.search_batches} and trainer.strategy=fsdp; set it to null, or set "
                "trainer.strategy=ddp"
            )

    @property
    def dropout(self) -> ConditionDropout:
        """Dropout of labels and signals in training."""
        return ConditionDropout(self.label_dropout, self.signal_dropout)

    @property
    def search_batches(self) -> int | None:
        """Batches of a search for the interval of mask fractions; ``None`` without one."""
        return self.objective.search_batches if isinstance(self.objective, BlockNELBO) else None


@cache
def run_parser() -> ArgumentParser:
    """Build the parser whose schema is ``RunConfig``, once."""
    parser = ArgumentParser(prog="seqdiff train", exit_on_error=False, allow_abbrev=False)
    parser.add_argument("--config", action="config", help=SUPPRESS)
    parser.add_argument("--base", type=str | None, default=None, help=SUPPRESS)
    parser.add_argument(
        "--preset",
        type=str | None,
        default=None,
        help=f"sets process, parameterization and objective at once: {', '.join(PRESETS)}",
    )
    for name, kind, what in (
        ("provenance", dict[str, str], "the versions that made a run"),
        ("resumed", list[dict[str, str]], "the versions that resumed it, and from which step"),
    ):
        meaning = f"{what}; a run writes it, no option sets it"
        parser.add_argument(f"--{name}", type=kind | None, default=None, help=meaning)
    parser.add_class_arguments(RunConfig, sub_configs=True)
    parser.set_defaults({"process": {"class_path": DEFAULTS["process"]}})
    for (part, argument), (source, compute, _) in _LINKED.items():
        target = f"{part}.init_args.{argument}"
        parser.link_arguments(source, target, compute_fn=compute, apply_on="instantiate")
    return parser


def _vocab_size(data: SequenceDataModule) -> int:
    return data.tokenizer.vocab_size


def _num_embeddings(data: SequenceDataModule) -> int:
    return data.tokenizer.vocab_size + 1  # with the unknown symbol or mask


def _num_classes(data: SequenceDataModule) -> int | None:
    return None if data.labels is None else len(data.labels)


def _num_signals(data: SequenceDataModule) -> int | None:
    return None if data.signals is None else len(data.signals)


def _reserved(data: SequenceDataModule) -> tuple[int, ...] | None:
    tokenizer = data.tokenizer
    found = tokenizer.reserved_ids if isinstance(tokenizer, ReservingTokenizer) else ()
    return tuple(found) or None


def _num_outputs(process: Process, parameterization: Parameterization | None) -> int:
    return (parameterization or usual_parameterization(process)).num_outputs(process)


# Arguments that a configuration must not set, because they follow from other keys: these keys, the
# function that computes the argument, and the keys in words.
_LINKED: dict[tuple[str, str], tuple[str | tuple[str, ...], Callable[..., object], str]] = {
    ("process", "vocab_size"): ("data", _vocab_size, "data.tokenizer"),
    ("process", "reserved"): ("data", _reserved, "data.tokenizer"),
    ("backbone", "num_embeddings"): ("data", _num_embeddings, "data.tokenizer"),
    ("backbone", "num_logits"): (
        ("process", "parameterization"),
        _num_outputs,
        "data.tokenizer and parameterization",
    ),
    ("backbone", "num_classes"): ("data", _num_classes, "data.labels"),
    ("backbone", "num_signals"): ("data", _num_signals, "data.signals"),
}


def parse_run(path: Path, flags: Sequence[str] = (), output: str | None = None) -> ParsedRun:
    """Read a configuration file, its bases and the flags that override them.

    Classes that files name must be of trusted modules, see ``trust_code``. Those that flags name
    are trusted, because the caller wrote them.

    Args:
        path: The YAML file.
        flags: Keys with their values, as on the command line.
        output: Run directory if neither a file nor a flag sets it; ``None`` requires one of them.

    Raises:
        ValueError: If a key does not exist, follows from other keys or may only be set in a file,
            or if a value does not fit. The message has one line and lists the choices.
    """
    for flag in flags:
        if re.split("[=.+]", flag)[0] in _NO_FLAGS:
            raise ValueError(
                f"train.flags must be keys that an option can set, got {flag}; leave it out, "
                "only a file can set it"
            )
    contents = [read_config(file) for file in config_files(path)]
    trusted_modules()  # restricts what the parser imports
    for named in named_classes(flags):
        trust_typed(named)
    for content, sibling in itertools.product(contents, SIBLINGS):
        if sibling in content.packages:
            check_sibling(sibling)
    own, flags = _take_preset(_name_adapter(convert_flags(flags)))
    named = [content.preset for content in contents if content.preset is not None]
    name = own or (named[-1] if named else None)
    arguments = [] if output is None else ["--config", json.dumps({"output": output})]
    for content in contents:
        if content.preset is not None:
            arguments += ["--config", json.dumps(find_preset(content.preset).keys)]
        arguments += ["--config", content.argument]
    if own is not None:
        arguments += ["--config", json.dumps(find_preset(own).keys)]
    try:
        parsed = run_parser().parse_args([*arguments, *flags])
    except RecursionError as error:
        raise ValueError(f"{path}: values must not be nested so deeply; correct them") from error
    except ArgumentError as error:
        message = one_line(str(error))
        try:
            hint = _hint([*arguments, *flags])
        except (UntrustedCodeError, _MisfitError) as plainer:
            where = _where(path, flags, str(plainer))
            raise type(plainer)(f"{where}{plainer}") from error
        raise ValueError(f"{_where(path, flags, message)}{message}{hint}") from error
    for (part, linked), (*_, origin) in _LINKED.items():
        value = (parsed[part].get("init_args") or {}).get(linked)
        if value is not None:
            raise ValueError(
                f"{path}: {part}.init_args.{linked} must not be set, got {value}; drop it, "
                f"it follows from {origin}"
            )
    # What the file that names the preset, a later file or a flag says comes before the preset.
    last = max((place for place, one in enumerate(contents) if one.preset is not None), default=0)
    after = [] if own is not None or not named else contents[last:]
    said = any(content.says_time for content in after) or any(
        flag.partition("=")[0].replace(".init_args", "") == f"--{_TOLD}" for flag in flags
    )
    if name is not None and find_preset(name).time_conditioned and not said:
        _tell_noise_level(parsed, name)
    del parsed["config"], parsed["base"], parsed["preset"]
    unquote(parsed)
    return parsed.clone(with_meta=False)


def _where(path: Path, flags: Sequence[str], message: str) -> str:
    """Name the file that a message is about, or nothing if it is about a flag."""
    for key, _ in read_flags(flags):
        if re.search(rf"(?<![\w.]){re.escape(key.rstrip('+'))}(?![\w.])", message):
            return ""
    return f"{path}: "


def _take_preset(flags: Sequence[str]) -> tuple[str | None, list[str]]:
    """Separate the last ``--preset`` from the other flags."""
    name, others, words = None, [], list(flags)
    while words:
        word = words.pop(0)
        key, equals, value = word.partition("=")
        if key != "--preset":
            others.append(word)
        elif equals or words:
            name = value if equals else words.pop(0)
        else:
            raise ValueError(
                f"train.preset must be followed by the name of a preset, got none; choose from "
                f"{', '.join(PRESETS)}"
            )
    return name, others


def _name_adapter(flags: Sequence[str]) -> list[str]:
    """Spell ``--adapter lora`` as ``--adapter.kind lora``."""
    found = []
    for place, word in enumerate(flags):
        key, equals, value = word.partition("=")
        named = value if equals else next(iter(flags[place + 1 :]), "")
        found.append(
            word.replace("--adapter", "--adapter.kind", 1)
            if key == "--adapter" and named.isalpha() and named not in ("null", "None")
            else word
        )
    return found


def _tell_noise_level(parsed: ParsedRun, preset: str) -> None:
    """Make the network of a preset time-conditioned.

    Raises:
        ValueError: If it does not have this option.
    """
    chosen = parsed["backbone"]["class_path"]
    if "time_conditioned" not in inspect.signature(import_path(chosen)).parameters:
        raise ValueError(
            f"train.preset {preset} must go with a backbone that can be told the noise level, got "
            f"{chosen}; choose seqdiff.backbones.Caduceus or seqdiff.backbones.Transformer"
        )
    parsed["backbone"]["init_args"]["time_conditioned"] = True


def instantiate(parsed: ParsedRun) -> RunConfig:
    """Build what a parsed configuration describes; weights follow from its seed.

    Raises:
        TypeError: If a value has the wrong type for its constructor.
        ValueError: If a value is not valid for its constructor.
    """
    check_seed("RunConfig.seed", parsed["seed"])
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(parsed["seed"])
        built = _instantiate(parsed)
    config = RunConfig(**{f.name: built[f.name] for f in fields(RunConfig)})
    config.data.seed = config.seed
    return config


_OR_NULL = re.compile(
    r"any of the Union .*?Errors:\s*- (.*?)\s*- Expected a <class 'NoneType'>", re.S
)


def _instantiate(parsed: ParsedRun) -> Namespace:
    try:
        return run_parser().instantiate(parsed)
    except ValueError as error:
        # Only the tokenizer's error about its files, without the parser's text about the link.
        if isinstance(error.__cause__, (OSError, ValueError)) and "compute_fn" in str(error):
            raise error.__cause__ from None
        # Only what a dataclass says, without the parser's text about null, its alternative.
        said = _OR_NULL.search(str(error))
        if said is not None:
            raise ValueError(said[1]) from error
        raise


def dump(parsed: ParsedRun) -> str:
    """Write a parsed configuration as YAML, from which ``parse_run`` reads the same."""
    return run_parser().dump(parsed, skip_unset=False)


def _subclasses(base: type) -> list[type]:
    direct = base.__subclasses__()
    return direct + [deeper for child in direct for deeper in _subclasses(child)]


def _choices(base: type) -> list[str]:
    """List the import paths of public subclasses that are not abstract."""
    public = [cls for cls in _subclasses(base) if cls.__name__[0] != "_" and cls is not Blockwise]
    return sorted({_shortest_path(cls) for cls in public if not inspect.isabstract(cls)})


def _shortest_path(cls: type) -> str:
    """Import path of a class from the outermost package that exports it."""
    parts = cls.__module__.split(".")
    for end in range(1, len(parts)):
        package = ".".join(parts[:end])
        if getattr(import_module(package), cls.__name__, None) is cls:
            return f"{package}.{cls.__name__}"
    return f"{cls.__module__}.{cls.__qualname__}"


_CHOICES: dict[str, type] = {
    "data": SequenceDataModule,
    "process": Process,
    "schedule": NoiseSchedule,
    "parameterization": Parameterization,
    "objective": Objective,
    "time_sampler": TimeSampler,
    "backbone": Backbone,
}


def list_choices(key: str) -> list[str]:
    """List the import paths of the imported classes that a key may name, none for other keys."""
    return _choices(_CHOICES[key]) if key in _CHOICES else []


def follows(part: str, argument: str) -> bool:
    """Whether an argument of a class follows from other keys, so that no configuration sets it."""
    return (part, argument) in _LINKED


class _MisfitError(ValueError):
    """A value does not have the type of its key."""


def _check_value(key: str, hint: object, value: object) -> None:
    """Raise ``_MisfitError`` if a value cannot have a type."""
    if fits(hint, value) is False:
        listed = describe(hint).startswith("a list") and not isinstance(value, list)
        example = f"[{value}]" if listed else None
        fix = f"write {example}" if example else "correct it"
        raise _MisfitError(f"{key} must be {describe(hint)}, got {value}; {fix}")


def _hint(arguments: Sequence[str]) -> str:
    """List the valid choices in place of the first key or class that does not exist.

    Raises:
        UntrustedCodeError: If a class of a module is named that is not trusted.
        _MisfitError: If a value does not have the type of its key.
    """
    merged: dict[str, Any] = dict(DEFAULTS)
    for key, text in read_flags(arguments):
        if key == "config":
            content, folder = _read(text, Path()), Path(text).parent
            content = {part: _read(value, folder) for part, value in content.items()}
        else:
            content = _read(text, Path())
            for part in reversed(key.removesuffix("+").split(".")):
                content = {part: content}
        _merge(merged, _flat(content))
    known = [f.name for f in fields(RunConfig)]
    hints = get_type_hints(RunConfig)
    for key, value in merged.items():
        if key in _CHOICES:
            blocks = ", with --block_size N for blocks" if key == "process" else ""
            found = _hint_of_class(key, _CHOICES[key], value, linked=key, more=blocks)
        elif key in known:
            found = _hint_of_group(key, hints[key], value)
        else:
            found = "" if key in _NOT_FLAGS else f"; choose from {', '.join(known)}"
        if found:
            return found
    return ""


def _read(value: Any, folder: Path) -> Any:
    """Read a value as YAML, or the file that it names."""
    if not isinstance(value, str):
        return value
    with suppress(OSError, UnicodeDecodeError):  # a value may be longer than a path, or name data
        if (folder / value).is_file():
            value = (folder / value).read_text()
    with suppress(yaml.YAMLError):
        check_yaml(value)
        return yaml.safe_load(value)
    return value


def _flat(value: Any) -> Any:
    """Move ``init_args`` to the level of ``class_path``, where flags may write them."""
    if not isinstance(value, dict):
        return value
    value = {**value, **(value.get("init_args") or {})}
    return {key: _flat(part) for key, part in value.items() if key != "init_args"}


def _merge(into: dict[str, Any], new: Mapping[str, Any]) -> None:
    """Merge a mapping into another one, which it overrides; a string names a class."""
    for key, value in new.items():
        before = {"class_path": into[key]} if isinstance(into.get(key), str) else into.get(key)
        if isinstance(before, dict) and isinstance(value, dict) and "class_path" not in value:
            _merge(before, value)
            value = before
        into[key] = value


def _hint_of_group(key: str, hint: object, value: object) -> str:
    """Check a key of the configuration, which may be a dataclass, or one or null."""
    if isinstance(value, dict):
        hint = next(filter(is_dataclass, get_args(hint)), hint)
    if not (isinstance(hint, type) and is_dataclass(hint) and isinstance(value, dict)):
        _check_value(key, hint, value)
        return ""
    known = [f.name for f in fields(hint)]
    if not set(value) <= set(known):
        return f"; choose from {', '.join(known)}"
    hints = get_type_hints(hint)
    for name, one in value.items():
        _check_value(f"{key}.{name}", hints[name], one)
    return ""


def _hint_of_class(key: str, base: type, value: object, linked: str = "", more: str = "") -> str:
    """Check that a value names a class and arguments that it takes."""
    named = value.get("class_path") if isinstance(value, dict) else value
    if named is None:
        return ""
    choices = _choices(base)
    short = [path for path in choices if path.rpartition(".")[2] == named]
    check_trusted(key, str(named))
    try:
        cls = import_path(short[0] if short else str(named))
    except ImportError:
        if "." in str(named):
            raise _MisfitError(
                f"{key} must be the import path of a class, got {named}; choose from "
                f"{', '.join(choices) or 'your own'}{more}"
            ) from None
        cls = None
    except (AttributeError, ValueError):
        cls = None
    if not (isinstance(cls, type) and issubclass(cls, base)):
        return f"; choose from {', '.join(choices) or 'your own import path'}{more}"
    given = dict(value) if isinstance(value, dict) else {}
    given.pop("class_path", None)
    skipped = {name for part, name in _LINKED if part == linked}
    names = [name for name in inspect.signature(cls).parameters if name not in skipped]
    if set(given) - set(names) - skipped:
        return f"; choose from {', '.join(names)}" if names else "; drop it, the class takes none"
    try:
        hints = get_type_hints(cls.__init__)
    except NameError:  # of an outside class, imported for type checkers alone
        return ""
    for name, argument in given.items():
        kinds = get_args(hints.get(name)) or (hints.get(name),)
        if str in kinds and isinstance(argument, list) and len(argument) == 1:
            word = argument[0]
            twice = f"""'"[{word}]"'; in YAML once: "[{word}]\""""
            return f"; quote a string in brackets twice, as in {twice}"
        for kind in kinds:
            if isinstance(kind, type) and inspect.isabstract(kind):
                if found := _hint_of_class(f"{key}.{name}", kind, argument):
                    return found
        _check_value(f"{key}.{name}", hints.get(name), argument)
    return ""

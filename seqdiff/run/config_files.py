"""Configuration files: their bases, and the names of keys and classes in older versions."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from os.path import abspath
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import yaml
from jsonargparse import Namespace

from seqdiff.run.trust import import_path

_PROCESS, _OLD_OBJECTIVES = "seqdiff.process", "seqdiff.training."
# Options of older files, and the objectives in them that determine the process.
_OLD_OPTIONS = {"block_size", "share"}
_WITH_A_PROCESS = ("Autoregressive", "BlockWeightedMLM")
# Modules of classes in older files, and their present modules.
_MOVED = {
    "genomics.alphabet": "genomics.sequence",
    "genomics.datamodules": "genomics.data",
    "genomics.motifs": "genomics.data",
    "genomics.published": "genomics.pretrained",
    "genomics.sources": "genomics.data",
    "genomics.synthetic": "genomics.data",
    "seqdiff.time_sampling": "seqdiff.objectives",
    "text.datamodule": "text.corpora",
    "text.subwords": "text.tokenizers",
}
# Classes that have another name now.
_RENAMED = dict.fromkeys(
    ("text.bert.BertBackbone", "text.pretrained.BertBackbone"), "seqdiff.backbones.HubBackbone"
)
# Packages whose classes may be named by a module inside, which may have moved.
_ROOMS = ("seqdiff.objectives", "seqdiff.parameterization", "seqdiff.process")
_CLASS_PATH = re.compile(r"([A-Za-z_]\w*\.)+[A-Z]\w*")
# Limits of a file: characters, values when every alias is expanded, and levels of nesting.
_MOST_CHARACTERS, _MOST_VALUES, _MOST_LEVELS = 1_000_000, 100_000, 50
# libyaml reads ten times as fast; PyYAML may be built without it.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_QUOTED = re.compile(r"""(["'])([\[{].*[\]}])\1""")


def _shipped(path: Path) -> Path:
    """Find ``configs/...`` of the package if it is not in the current folder; others stay."""
    if path.parts[:1] == ("configs",):
        for folder in Path(__file__).parents[1:3]:  # an installed package, or a checkout
            if (folder / path).is_file():
                return folder / path
    return path


def config_files(path: Path) -> list[Path]:
    """List a configuration file after its bases, the outermost base first.

    The configurations that come with seqdiff are found from any folder.

    Raises:
        FileNotFoundError: If a file is missing.
        ValueError: If a file is not a mapping, or a file is its own base.
    """
    chain: list[Path] = []
    current: Path | None = path if path.exists() else _shipped(path)
    while current is not None:
        if not current.is_file():
            origin = f" (base of {chain[-1]})" if chain else ""
            raise FileNotFoundError(
                f"CONFIG must be an existing file, got {current}{origin}; check the path"
            )
        if current.resolve() in {file.resolve() for file in chain}:
            raise ValueError(
                f"{current} must not be its own base, directly or through other files; remove a "
                "`base`"
            )
        chain.append(current)
        content = read_yaml(current)
        if not isinstance(content, dict):
            raise ValueError(
                f"{current} must hold `key: value` lines, got {str(content)[:60]!r}; add some"
            )
        base = content.get("base")
        current = None if base is None else current.parent / str(base)
    return chain[::-1]


def read_yaml(path: Path) -> Any:
    """Read a YAML file.

    Raises:
        ValueError: If it is no YAML, or too large, see ``check_yaml``.
    """
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(_MOST_CHARACTERS + 1)
        check_yaml(text)
        return yaml.load(text, Loader=_LOADER)
    except (yaml.YAMLError, ValueError) as error:  # ValueError of dates and very long numbers
        raise ValueError(
            f"{path} must be YAML within the limits of seqdiff, got: {one_line(str(error))}; "
            "correct it"
        ) from error


def check_yaml(text: str) -> None:
    """Check that YAML can be read in little time and memory, before it is.

    Aliases count as often as they are used: a few lines of nested aliases can stand for billions of
    values.

    Raises:
        yaml.YAMLError: If it is no YAML, or has too many characters, values or levels.
    """
    if len(text) > _MOST_CHARACTERS:
        raise yaml.YAMLError(f"more than {_MOST_CHARACTERS:,} characters")
    sizes: dict[str, int] = {}  # of anchored values, with their aliases expanded
    opened: list[tuple[str | None, int]] = []  # anchors of the open collections, values before them
    total = 0
    for event in yaml.parse(text, Loader=_LOADER):
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in sizes:
                raise yaml.YAMLError(f"an alias *{event.anchor} of no earlier value")
            total += sizes[event.anchor]
        elif isinstance(event, yaml.ScalarEvent):
            total += 1
            if event.anchor is not None:
                sizes[event.anchor] = 1
        elif isinstance(event, yaml.CollectionStartEvent):
            opened.append((event.anchor, total))
            total += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = opened.pop()
            if anchor is not None:
                sizes[anchor] = total - before
        if total > _MOST_VALUES:
            raise yaml.YAMLError(f"more than {_MOST_VALUES:,} values")
        if len(opened) > _MOST_LEVELS:
            raise yaml.YAMLError(f"more than {_MOST_LEVELS} levels of nesting")


class Content(NamedTuple):
    """A configuration file for the parser.

    Attributes:
        argument: The path of the file, or JSON for a file of an older version.
        preset: The preset that it names.
        says_time: Whether it sets ``time_conditioned`` of the backbone.
        packages: The top-level packages of its data and tokenizer classes.
    """

    argument: str
    preset: str | None
    says_time: bool = False
    packages: frozenset[str] = frozenset()


def read_config(path: Path) -> Content:
    """Read a configuration file, and convert one of an older version.

    Args:
        path: From ``config_files``.
    """
    written = read_yaml(path)
    parts = {key: value for key, value in written.items() if key != "base"}
    content = written | {key: _moved(value, path.parent) for key, value in parts.items()}
    preset = content.get("preset")
    if not _is_old(content) and content == written:
        return Content(str(path), preset, _says_time(content), _packages(content))
    for key, value in content.items():
        if isinstance(value, str) and _is_yaml(path.parent / value):
            content[key] = str((path.parent / value).resolve())
    modern = _modern(content) if _is_old(content) else content
    return Content(json.dumps(modern), preset, _says_time(content), _packages(content))


def _packages(content: dict[str, object]) -> frozenset[str]:
    """Name the top-level packages of the classes for data and their tokenizer."""
    data = content.get("data")
    named = [data, _options_of(data).get("tokenizer")]
    paths = [one.get("class_path") if isinstance(one, dict) else one for one in named]
    return frozenset(path.partition(".")[0] for path in paths if isinstance(path, str))


def _says_time(content: dict[str, object]) -> bool:
    """Whether a file sets ``time_conditioned`` of the backbone."""
    return "time_conditioned" in _options_of(content.get("backbone"))


def convert_flags(flags: Sequence[str]) -> list[str]:
    """Replace the class paths of classes that have moved, also in YAML files that flags name."""
    converted = []
    for flag in flags:
        key, equals, value = flag.partition("=") if flag.startswith("--") else ("", "", flag)
        with suppress(yaml.YAMLError):
            check_yaml(value)
            written = yaml.safe_load(value) if value.startswith(("{", "[")) else value
            content = _moved(written, Path())
            if content != written:
                value = content if isinstance(content, str) else json.dumps(content)
        converted.append(key + equals + value)
    return converted


def _is_yaml(path: Path) -> bool:
    return path.suffix in {".yaml", ".yml"} and path.is_file()


def _moved(value: Any, folder: Path | None = None) -> Any:
    """Replace the class paths of classes that have moved.

    Args:
        value: A value of a configuration.
        folder: Folder of the YAML file that the value may name. A file that names such a class is
            replaced by its content.
    """
    if isinstance(value, list):
        return [_moved(one) for one in value]
    if isinstance(value, dict):
        return {key: _moved(one) for key, one in value.items()}
    if not isinstance(value, str):
        return value
    if folder is not None and _is_yaml(folder / value):
        written = read_yaml(folder / value)
        content = _moved(written)
        return value if content == written else content
    if value in _RENAMED:
        return _RENAMED[value]
    module, _, name = value.rpartition(".")
    room = module.rpartition(".")[0]
    if name[:1].isupper() and (module in _MOVED or room in _ROOMS):
        return f"{_MOVED.get(module, room)}.{name}"
    return value


def _is_old(content: dict[str, object]) -> bool:
    """Whether a file is of a version in which runs named no process."""
    objective = content.get("objective")
    name, options = _class_of(objective), _options_of(objective)
    if "schedule" in content or name.startswith(_OLD_OBJECTIVES) or _OLD_OPTIONS & options.keys():
        return True
    return name in _WITH_A_PROCESS and not {"process", "preset"} & content.keys()


def _class_of(value: object) -> str:
    found = value.get("class_path") if isinstance(value, dict) else value
    return found if isinstance(found, str) else ""


def _options_of(value: object) -> dict[str, object]:
    return dict(value.get("init_args") or {}) if isinstance(value, dict) else {}


def _modern(content: dict[str, object]) -> dict[str, object]:
    """Convert the keys of an older version, where the objective determined the process.

    Raises:
        ValueError: If a file mixes old and new keys.
    """
    new = dict(content)
    schedule, objective = new.pop("schedule", None), new.get("objective")
    if schedule is not None:
        if "process" in new:
            raise ValueError(
                "CONFIG must hold process or schedule, got both; write the schedule as "
                "process.init_args.schedule"
            )
        new["process"] = {
            "class_path": f"{_PROCESS}.Absorbing",
            "init_args": {"schedule": schedule},
        }
    path, options = _class_of(objective), _options_of(objective)
    name = path.rpartition(".")[2]
    ours = path in (name, f"seqdiff.objectives.{name}") or path.startswith(_OLD_OBJECTIVES)
    if not name or not ours:
        return new
    if "block_size" in options:
        new["block_size"] = options.pop("block_size")
    if "share" in options:
        options["fraction"] = options.pop("share")
    if name == "Autoregressive":
        new["process"] = {"class_path": f"{_PROCESS}.LeftToRight"}
    name = {"BlockWeightedMLM": "WeightedMLM"}.get(name, name)
    new["objective"] = {"class_path": f"seqdiff.objectives.{name}", "init_args": options}
    return new


def unquote(parsed: Namespace) -> None:
    """Remove the inner quotes of strings such as ``'"[CLS]"'``, which are not lists.

    Args:
        parsed: A configuration, changed in place.
    """
    for key, value in vars(parsed).items():
        if isinstance(value, Namespace):
            unquote(value)
        elif isinstance(value, str) and (match := _QUOTED.fullmatch(value)):
            parsed[key] = match[2]


def one_line(message: str) -> str:
    """Join the lines of a message."""
    return re.sub(r"\s*\n[\s-]*", " ", message.strip()).replace(": ;", ":")


def read_flags(arguments: Sequence[str]) -> list[tuple[str, str]]:
    """Read flags, ``--key=value`` or ``--key value``; returns keys without dashes and values."""
    found, words = [], list(arguments)
    while words:
        key, equals, value = words.pop(0).partition("=")
        if not equals and words and not words[0].startswith("--"):
            value = words.pop(0)
        found.append((key.removeprefix("--"), value))
    return found


def named_classes(flags: Sequence[str]) -> list[str]:
    """List the import paths of classes that flags name, also inside YAML.

    Args:
        flags: Keys with their values, as on the command line.
    """
    found: list[str] = []

    def visit(value: object) -> None:
        if isinstance(value, str) and _CLASS_PATH.fullmatch(value):
            found.append(value)
        for part in value.values() if isinstance(value, dict) else ():
            visit(part)
        for part in value if isinstance(value, list) else ():
            visit(part)

    for _, text in read_flags(flags):
        visit(text)
        with suppress(yaml.YAMLError):
            check_yaml(text)
            visit(yaml.safe_load(text) if text.startswith(("{", "[")) else None)
    return found


@runtime_checkable
class Located(Protocol):
    """A class that a configuration names, some of whose arguments name files."""

    @classmethod
    def is_path(cls, argument: str, value: str) -> bool:
        """Whether a value of an argument is the name of a file, a folder or a glob.

        Args:
            argument: Name of an argument of the constructor.
            value: Its value, perhaps a name on a hub.
        """
        ...


def make_absolute(parsed: Namespace) -> None:
    """Replace relative names of existing files by absolute ones.

    Args:
        parsed: A configuration, changed in place.
    """
    _rename_files(parsed, lambda path: abspath(Path(path).expanduser()))


def make_bare(parsed: Namespace) -> None:
    """Replace names of existing files by names without folders, for others to read.

    Args:
        parsed: A configuration, changed in place.
    """
    _rename_files(parsed, lambda path: Path(path).name)


def _rename_files(parsed: Namespace, rename: Callable[[str], str]) -> None:
    for value in vars(parsed).values():
        if not isinstance(value, Namespace):
            continue
        options = vars(value).get("init_args")
        if isinstance(options, Namespace):
            owner = import_path(value["class_path"])
            for argument, given in vars(options).items():
                if isinstance(owner, Located):
                    options[argument] = _renamed(owner, argument, given, rename)
        _rename_files(value, rename)


def _renamed(owner: Located, argument: str, given: object, rename: Callable[[str], str]) -> object:
    if isinstance(given, list):
        return [_renamed(owner, argument, one, rename) for one in given]
    if isinstance(given, dict):
        return {key: _renamed(owner, argument, one, rename) for key, one in given.items()}
    if isinstance(given, Path):
        return Path(str(_renamed(owner, argument, str(given), rename)))
    if isinstance(given, str) and owner.is_path(argument, given):
        return rename(given)
    return given

"""The command line: finds the commands, and turns errors into one line."""

from __future__ import annotations

import atexit
import inspect
import os
import re
import select
import signal
import sys
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from importlib.metadata import entry_points, version
from typing import Any, get_args

from cyclopts import App, CycloptsError, Group, Parameter, Token, UnknownCommandError, convert

from seqdiff.cells import describe_error, printable
from seqdiff.cli.extensions import Command, top_package

TRACEBACK_VARIABLE = "SEQDIFF_TRACEBACK"
TRUST_CODE = "--trust-code"
_STANDARD_OUTPUT = 1
_LONGEST_MESSAGE = 2000  # characters
_EXPECTED = (ValueError, TypeError, OSError, ArithmeticError, ImportError)
# On the CPU, PyTorch raises a plain RuntimeError if memory is exhausted.
_OUT_OF_MEMORY = re.compile(r"(out of memory|can't allocate memory|not enough memory).*", re.DOTALL)
_GROUPS = ("Train", "Evaluate", "Generate", "DNA", "Text")

COMMANDS = [
    Command(
        "train",
        "seqdiff.cli.train:train",
        "Train",
        "Train what a YAML file describes: seqdiff train CONFIG --output runs/mine",
    ),
    Command(
        "evaluate",
        "seqdiff.cli.evaluate:evaluate",
        "Evaluate",
        "Likelihood of a split, beside baselines: seqdiff evaluate runs/mine",
    ),
    Command(
        "score",
        "seqdiff.cli.score:score",
        "Evaluate",
        "Likelihood of each sequence of a file: seqdiff score runs/mine some.fa",
    ),
    Command(
        "compare",
        "seqdiff.cli.compare:compare",
        "Evaluate",
        "Differences between runs on the same sequences: seqdiff compare runs/a runs/b",
    ),
    Command(
        "variance",
        "seqdiff.cli.variance:variance",
        "Evaluate",
        "Variance of block diffusion's training loss: seqdiff variance runs/blocks",
    ),
    Command(
        "sample",
        "seqdiff.cli.sample:sample",
        "Generate",
        "Draw sequences, or fill gaps: seqdiff sample runs/mine",
    ),
    Command(
        "playground",
        "seqdiff.cli.playground:playground",
        "Generate",
        "A page to draw on, on this machine: seqdiff playground runs/mine",
    ),
    Command(
        "samplers",
        "seqdiff.cli.samplers:samplers",
        "Generate",
        "List samplers, or the options of one: seqdiff samplers ancestral",
    ),
    Command(
        "export",
        "seqdiff.cli.export:export",
        "Train",
        "Write a folder for the hub: seqdiff export runs/mine --to hub folder",
    ),
    Command(
        "models",
        "seqdiff.cli.models:models",
        "Generate",
        "List packaged models, which commands take in place of a run: seqdiff models",
    ),
    Command(
        "plot",
        "seqdiff.cli.plot:plot",
        "Generate",
        "Draw how a sequence was filled in: seqdiff plot trace steps.npz",
    ),
]


def commands() -> dict[str, Command]:
    """List the core's own commands, then those of installed domains.

    For a name that several domains have, it is the first domain's.

    Raises:
        ValueError: See ``_find_all``.
    """
    return {name: same[0] for name, same in _find_all().items()}


def _find_all() -> dict[str, list[Command]]:
    """List the commands of each name: one, or one of each domain that has it.

    Raises:
        ValueError: If a domain takes a name of the core, or one twice.
    """
    found = {command.name: [command] for command in COMMANDS}
    for entry in sorted(entry_points(group="seqdiff.commands"), key=lambda entry: entry.name):
        for command in entry.load():
            same = found.setdefault(command.name, [])
            packages = {top_package(other.function) for other in same}
            if packages & {"seqdiff", top_package(command.function)}:
                raise ValueError(
                    f"seqdiff.commands must not repeat a name, got {command.name} from "
                    f"{entry.value}; rename that command"
                )
            same.append(command)
    return found


def _with_others(same: Sequence[Command]) -> Command:
    """Return the first domain's command, with the other domains in its line of help."""
    first, *others = same
    also = f"; also for {', '.join(other.group for other in others)}" if others else ""
    return first._replace(help=first.help + also)


def _of_run(same: Sequence[Command], words: Sequence[str]) -> Command:
    """Choose among commands of several domains that of the first run in the arguments, if any."""
    from seqdiff.run import run_packages

    own = {top_package(command.function): command for command in same}
    for word in words:
        if not word.startswith("-"):
            with suppress(FileNotFoundError):
                for package in run_packages(word) & own.keys():
                    return own[package]
    return same[0]


def build_app(known: Mapping[str, Command], only: str | None = None, note: str = "") -> App:
    """Build the application; no command is imported before it is called.

    Args:
        known: From ``commands``.
        only: Add this command alone, with the help of its function; ``None`` adds all, with a line
            each.
        note: Last line of the help.
    """
    app = App(
        name="seqdiff",
        help="Discrete diffusion over token sequences: DNA, text, and domains of your own.",
        version=lambda: version("seqdiff"),
        help_format="markdown",
        help_epilogue=(
            f"Every command takes {TRUST_CODE} MODULE, which allows the configuration of a run to "
            "name classes of this module, and so to run its code." + note
        ),
        default_parameter=Parameter(negative=(), converter=_convert),
        result_action="return_value",
    )
    groups: dict[str, Group] = {}
    for command in known.values():
        if only is not None:
            if command.name == only:
                app.command(command.function, name=only)
            continue
        order = _GROUPS.index(command.group) if command.group in _GROUPS else len(_GROUPS)
        group = groups.setdefault(command.group, Group(command.group, sort_key=order))
        app.command(command.function, name=command.name, group=group, help=command.help)
    return app


def _convert(kind: Any, tokens: Sequence[Token]) -> Any:
    """Convert words as cyclopts does, but reject fractions for integers instead of rounding them.

    Raises:
        ValueError: If a word cannot be converted.
    """
    kinds = get_args(kind) or (kind,)
    if int in kinds and float not in kinds:
        for token in tokens:
            if "." in token.value:
                raise ValueError(f"must be an integer, got {token.value}")
    return convert(kind, tokens)


def parse(arguments: Sequence[str]) -> tuple[Callable[..., Any], inspect.BoundArguments]:
    """Parse the command line into the function to call and its arguments.

    Args:
        arguments: Without the program's name.

    Raises:
        ValueError: If they do not fit a command.
    """
    found, note = _find_all(), ""
    known = {name: _with_others(same) for name, same in found.items()}
    arguments = _join_name(list(arguments), known)
    name = arguments[0] if arguments and arguments[0] in known else None
    if name is not None and len(found[name]) > 1:
        known[name] = _of_run(found[name], arguments[1:])
        groups = ", ".join(command.group for command in found[name])
        note = (
            f" There is a {name} for each of {groups}: seqdiff {name} RUN --help shows the run's."
        )
    try:
        function, bound, _ = build_app(known, name, note).parse_args(
            list(arguments), exit_on_error=False, print_error=False
        )
    except UnknownCommandError as error:
        close = get_close_matches(arguments[0], known, 1)
        hint = f", did you mean {close[0]}?" if close else ""
        raise ValueError(
            f"seqdiff must be given a command, got {arguments[0]!r}{hint}; see: seqdiff --help"
        ) from error
    except CycloptsError as error:
        where = "" if name is None else f" {name}"
        raise ValueError(f"{str(error).rstrip('.')}; see: seqdiff{where} --help") from error
    return function, bound


def _join_name(arguments: list[str], known: Collection[str]) -> list[str]:
    """Make one argument of the name of a command, which may be of two words.

    Raises:
        ValueError: If the first word of a name is not followed by a second.
    """
    for length in (1, 2):
        name = " ".join(arguments[:length]).replace("_", "-")
        if name in known:
            return [name, *arguments[length:]]
    first = arguments[0] if arguments else ""
    second = [name.partition(" ")[2] for name in known if name.startswith(f"{first} ")]
    if not second:
        return arguments
    if arguments[1:] in (["--help"], ["-h"]):
        return ["--help"]
    got = repr(arguments[1]) if len(arguments) > 1 else "nothing"
    raise ValueError(
        f"seqdiff {first} must be followed by {' or '.join(second)}, got {got}; see: seqdiff "
        f"{first} {second[0]} --help"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: Arguments without the program's name; ``None`` reads the command line.

    Returns:
        The exit code: 0, or 2 after an error, which is printed in one line on standard error; set
        ``SEQDIFF_TRACEBACK=1`` for a traceback. 130 after an interruption. 141 if the reader of the
        output has gone, as after ``| head``.
    """
    before = _stop_at_signals()
    # Idle OpenMP threads spin before they sleep. By default, they spin so long that two commands on
    # the same cores slow each other down by a large factor.
    if os.environ.keys().isdisjoint({"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}):
        os.environ["GOMP_SPINCOUNT"] = "1000"
    try:
        modules, arguments = take_trusted(sys.argv[1:] if argv is None else argv)
        function, bound = parse(arguments)
        if modules:
            from seqdiff.run import trust_code

            trust_code(*modules)
        function(*bound.args, **bound.kwargs)
        sys.stdout.flush()
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _output_is_cut_off():
            return 141
        message = _explain(error)
        if message is None or os.environ.get(TRACEBACK_VARIABLE) == "1":
            raise
        print(f"seqdiff: error: {message}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        with suppress(OSError):  # the terminal may be gone
            print("; ".join(["seqdiff: interrupted", *map(str, stop.args)]), file=sys.stderr)
        return 130
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 0


def run() -> int:
    """Run a command as a program, which ends afterwards.

    Returns:
        The exit code, see ``main``.
    """
    code = [1]
    atexit.register(_leave_broken_group, code)  # registered first, so called last
    code[0] = main()
    return code[0]


def _leave_broken_group(code: list[int]) -> None:
    """End the process at once if the process group of a distributed run is still there.

    A command destroys it unless there was an error. The threads of a broken group may abort the
    interpreter while that ends (pytorch/pytorch#190489), so that the exit code is -6.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # closed, or there is none
            stream.flush()
    os._exit(code[0])


def _stop_at_signals() -> dict[signal.Signals, Any]:
    """Let SIGTERM and SIGHUP end a command as Ctrl-C does, unless the caller handles them.

    Returns:
        The former handlers of the signals.
    """
    before = {}
    if threading.current_thread() is threading.main_thread():
        for name in ("SIGTERM", "SIGHUP"):  # nohup ignores SIGHUP
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) is signal.SIG_DFL:
                before[number] = signal.signal(number, signal.default_int_handler)
    return before


def take_trusted(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separate the modules of ``--trust-code`` from the other arguments.

    Raises:
        ValueError: If the option has no value.
    """
    modules, others, rest = [], [], list(words)
    while rest:
        word = rest.pop(0)
        key, equals, value = word.partition("=")
        if key != TRUST_CODE:
            others.append(word)
        elif equals or rest:
            modules.append(value if equals else rest.pop(0))
        else:
            raise ValueError(f"{TRUST_CODE} must be followed by a module, got none; name one")
    return modules, others


def _output_is_cut_off() -> bool:
    """Return whether the reader of standard output has gone; if so, discard further output."""
    watch = select.poll()
    watch.register(_STANDARD_OUTPUT, select.POLLERR)
    if not watch.poll(0):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), _STANDARD_OUTPUT)
    return True


def _explain(error: Exception) -> str | None:
    """Describe an error that the user can correct in one line; ``None`` for an internal error."""
    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        text = error.strerror
    if isinstance(error, OSError) and error.filename is not None:
        text = f"{error.filename}: {text}"
    full = _OUT_OF_MEMORY.search(text) if isinstance(error, RuntimeError) else None
    if full or isinstance(error, MemoryError):
        said = full[0] if full else describe_error(error)
        text = (
            f"the memory is too small: {said}; lower the batch size or the length, or take a "
            "smaller network"
        )
    elif not isinstance(error, _EXPECTED):
        return None
    text = " ".join(text.split()) or describe_error(error)
    if len(text) > _LONGEST_MESSAGE:  # it quotes a long value
        text = f"{text[:_LONGEST_MESSAGE]} [...]"
    return printable(text)

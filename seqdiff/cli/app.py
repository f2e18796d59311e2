"""The command line: finds the subcommands, and turns errors into one line."""

from __future__ import annotations

import argparse
import os
import re
import select
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import NoReturn

from seqdiff.cli import evaluate, plot, sample, samplers, score, train, variance
from seqdiff.cli.commands import Command

TRACEBACK_VARIABLE = "SEQDIFF_TRACEBACK"
_STANDARD_OUTPUT = 1
_EXPECTED = (ValueError, TypeError, OSError, ArithmeticError, ImportError)
_OUT_OF_MEMORY = re.compile(r"(out of memory|can't allocate memory|not enough memory).*", re.DOTALL)


class Parser(argparse.ArgumentParser):
    """Reports a wrong argument as every other error: in one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        """Refuse the arguments.

        Raises:
            ValueError: Always.
        """
        raise ValueError(f"{message}; see: {self.prog} --help")

    def knows(self, option: str) -> bool:
        """Whether an option with its dashes has been declared."""
        return option in self._option_string_actions


def commands() -> dict[str, Command]:
    """List the core's own subcommands, then those of installed domains.

    Raises:
        ValueError: If a domain takes a name that is already taken.
    """
    found: dict[str, Command] = {
        "train": train,
        "evaluate": evaluate,
        "sample": sample,
        "samplers": samplers,
        "score": score,
        "plot": plot,
        "variance": variance,
    }
    for entry in sorted(entry_points(group="seqdiff.commands"), key=lambda entry: entry.name):
        if entry.name in found:
            raise ValueError(
                f"seqdiff.commands must not repeat a name, got {entry.name} from {entry.value}; "
                "rename that entry point"
            )
        found[entry.name] = entry.load()
    return found


def build_parser() -> argparse.ArgumentParser:
    """Build the parser of all subcommands."""
    parser = Parser(prog="seqdiff", description="Masked discrete diffusion over token sequences.")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, command in commands().items():
        sub = subparsers.add_parser(name, help=command.help, description=command.help)
        command.add_arguments(sub)
        sub.set_defaults(command=command, parser=sub)
    return parser


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the arguments; ``command`` is the subcommand that they are for.

    Args:
        arguments: Without the program's name.

    Raises:
        ValueError: If they do not fit the subcommand.
    """
    own, flags = list(arguments), []
    if own[:1] == ["train"]:
        own, flags = train.split(own[1:])
        own = ["train", *own]
    elif own and (command := commands().get(own[0])) is not None:
        if takes_flags(command):
            words, flags = split(own[1:], command)
        else:
            words = respell(own[1:], command)
        own = [own[0], *words]
    args, unknown = build_parser().parse_known_args(own)
    if unknown:
        args.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    if flags:
        args.flags = flags
    return args


def takes_flags(command: Command) -> bool:
    """Whether options that a command does not declare go to what it configures, as ``flags``."""
    parser = Parser()
    command.add_arguments(parser)
    return parser.get_default("flags") is not None


def respell(arguments: Sequence[str], command: Command) -> list[str]:
    """Spell a command's own options as they are declared, with underscores between words.

    Args:
        arguments: What follows the command.
        command: Its options take a dash too.
    """
    parser = Parser()
    command.add_arguments(parser)
    words: list[str] = []
    for word in arguments:
        key, equals, value = word.partition("=")
        spelled = "--" + key[2:].replace("-", "_")
        wrong = key.startswith("--") and not parser.knows(key) and parser.knows(spelled)
        words.append(spelled + equals + value if wrong else word)
    return words


def split(arguments: Sequence[str], command: Command) -> tuple[list[str], list[str]]:
    """Part a command's own arguments from the options of what it configures.

    Args:
        arguments: What follows the command.
        command: Its own options take a dash or an underscore between words.

    Returns:
        The command's own, and the others, with underscores, each as ``--key=value``.
    """
    parser = Parser()
    command.add_arguments(parser)
    own: list[str] = []
    flags: list[str] = []
    words = list(arguments)
    while words:
        word = words.pop(0)
        key, equals, value = word.partition("=")
        spelled = "--" + key[2:].replace("-", "_")
        if not key.startswith("--") or parser.knows(key):
            own.append(word)
        elif parser.knows(spelled):
            own.append(spelled + equals + value)
        else:
            if not equals and words and not words[0].startswith("--"):
                equals, value = "=", words.pop(0)
            flags.append(spelled + equals + value)
    return own, flags


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand.

    Args:
        argv: Arguments without the program's name; ``None`` reads the command line.

    Returns:
        0, or 2 after an error, which is shown in one line on standard error. Set
        ``SEQDIFF_TRACEBACK=1`` to see where it came from. 141 if nobody reads the output any more,
        as after ``| head``: then nothing is said.
    """
    # An idle OpenMP thread that spins takes the core that our CPU kernels' own threads need.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        args = parse(sys.argv[1:] if argv is None else argv)
        args.command.run(args)
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
        print("; ".join(["seqdiff: interrupted", *map(str, stop.args)]), file=sys.stderr)
        return 130
    return 0


def _output_is_cut_off() -> bool:
    """Find out whether the reader of standard output has gone; if so, write the rest to nowhere."""
    watch = select.poll()
    watch.register(_STANDARD_OUTPUT, select.POLLERR)
    if not watch.poll(0):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), _STANDARD_OUTPUT)
    return True


def _explain(error: Exception) -> str | None:
    """Say in one line what a user can mend; ``None`` if it is a mistake of ours."""
    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        text = error.strerror
    if isinstance(error, OSError) and error.filename is not None:
        text = f"{error.filename}: {text}"
    full = _OUT_OF_MEMORY.search(text) if isinstance(error, RuntimeError) else None
    if full or isinstance(error, MemoryError):
        text = (
            f"memory must hold what is computed at a time, got: {full[0] if full else text}; "
            "lower the batch size or the length"
        )
    elif not isinstance(error, _EXPECTED):
        return None
    return " ".join(text.split()) or type(error).__name__

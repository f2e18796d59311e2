"""The command line: finds the subcommands, and turns errors into one line."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points

from seqdiff.commands import Command
from seqdiff.subcommands import evaluate, sample, train

TRACEBACK_VARIABLE = "SEQDIFF_TRACEBACK"
_EXPECTED = (ValueError, TypeError, OSError, ArithmeticError, ImportError)


def commands() -> dict[str, Command]:
    """List the core's own subcommands, then those of installed domains.

    Raises:
        ValueError: If a domain takes a name that is already taken.
    """
    found: dict[str, Command] = {"train": train, "evaluate": evaluate, "sample": sample}
    for entry in sorted(entry_points(group="seqdiff.commands"), key=lambda entry: entry.name):
        if entry.name in found:
            raise ValueError(
                f"seqdiff.commands must not repeat a name, got {entry.name} from {entry.value}; "
                "rename that entry point"
            )
        found[entry.name] = entry.load()
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand.

    Args:
        argv: Arguments without the program's name; ``None`` reads the command line.

    Returns:
        0, or 2 after an error, which is shown in one line on standard error. Set
        ``SEQDIFF_TRACEBACK=1`` to see where it came from.
    """
    # An idle OpenMP thread that spins takes the core that our CPU kernels' own threads need.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        parser = argparse.ArgumentParser(
            prog="seqdiff", description="Masked discrete diffusion over token sequences."
        )
        subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
        for name, command in commands().items():
            sub = subparsers.add_parser(name, help=command.help, description=command.help)
            command.add_arguments(sub)
            sub.set_defaults(command=command)
        arguments, flags = list(sys.argv[1:] if argv is None else argv), []
        if arguments[:1] == ["train"]:
            own, flags = train.split(arguments[1:])
            arguments = ["train", *own]
        args = parser.parse_args(arguments)
        if flags:
            args.flags = flags
        args.command.run(args)
    except _EXPECTED as error:
        if os.environ.get(TRACEBACK_VARIABLE) == "1":
            raise
        print(f"seqdiff: error: {_one_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("seqdiff: interrupted; train --resume RUN goes on with a run", file=sys.stderr)
        return 130
    return 0


def _one_line(error: BaseException) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    if isinstance(error, OSError) and error.filename is not None:
        text = f"{error.filename}: {text}"
    return " ".join(text.split()) or type(error).__name__


if __name__ == "__main__":
    sys.exit(main())

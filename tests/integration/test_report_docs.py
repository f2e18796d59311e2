"""What docs/report.md shows is run, so that it cannot rot; its keys are those of the JSON."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from genomics.report.measures import Measured, MotifTable
from genomics.report.page import About, Curves, numbers
from seqdiff.cli.app import parse

ROOT = Path(__file__).parents[2]
DOCS = (ROOT / "docs" / "report.md").read_text()
COMMANDS = re.findall(r"^seqdiff .*$", DOCS, flags=re.MULTILINE)


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_are_valid(line: str) -> None:
    parse(shlex.split(line)[1:])


def test_the_keys_are_those_of_the_json() -> None:
    table = MotifTable([], {}, {})
    measured = Measured([], {"samples": np.array([1])}, {}, {}, {}, table)
    found = numbers(About({}, True, 5), 0, measured, Curves("test", {}, {}))
    section = DOCS.partition("## The JSON")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", section, flags=re.MULTILINE))
    assert list(rows) == list(found)
    for name in ("about", "motifs", "training"):
        inner = found[name]
        assert isinstance(inner, dict) and all(f"`{key}`" in rows[name] for key in inner)


def test_the_limits_are_those_of_the_code() -> None:
    from genomics.commands import report as command
    from genomics.finetune.labelled import SHARED_BASES
    from genomics.io.motifs import HIT_FRACTION
    from genomics.report import windows
    from genomics.report.sets import MIN_SAMPLES

    for text in (
        f"at least {MIN_SAMPLES}\nsequences of at least {windows.MIN_LENGTH} bases",
        f"share no {SHARED_BASES} bases in a row",
        f"(`--markov_order`, {command.DEFAULT_ORDER})",
        f"At most 2^{windows._TRIED_BASES.bit_length() - 1} bases",
        f"at least {HIT_FRACTION:.0%} of the motif's best score",
    ):
        assert text in DOCS

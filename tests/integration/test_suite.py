"""A zero-shot suite of a domain outside of the package, run by the core."""

import json
import math
from pathlib import Path

import pytest

from seqdiff.cli.app import main
from seqdiff.data import suite as module
from seqdiff.data.suite import MissingSet, Suite, SuiteSet
from tests.integration.conftest import Entry
from tests.integration.toy_domain import RingSet


class Rings:
    """One set that is available and one that is not."""

    models = ("Ring net",)
    unit = "turn"

    def find(self, data, folder):
        rows = RingSet(7, 12, 0)
        found = SuiteSet("seven", "made here", rows, 7, 0.5, {"Ring net": 6.0})
        return [found], [MissingSet("eight", str(folder / "eight"), "why")]

    def notes(self, data) -> tuple[str, ...]:
        return ("a note of the suite",)


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "entry_points", lambda group: [Entry("rings", Rings())])


def test_the_core_evaluates_any_suite(trained: Path, tmp_path: Path, capsys, fails) -> None:
    assert isinstance(Rings(), Suite)
    out = tmp_path / "s.json"
    command = ["evaluate", str(trained), "--suite", "rings", "--suite_folder", str(tmp_path)]
    assert main([*command, "--json", str(out)]) == 0
    printed = capsys.readouterr().out
    for text in ("Ring net", "a note of the suite", "seven: 7 documents, made here"):
        assert text in printed, text
    assert f"eight: missing (why), would be read from {tmp_path / 'eight'}" in printed
    content = json.loads(out.read_text())
    (row,) = content["sets"]
    assert (row["num_rows"], row["of_rows"]) == (7, 7)
    assert row["bits_per_unit"] == pytest.approx(row["nats_per_token"] / math.log(2) / 0.5)
    assert content["missing"] == [
        {"name": "eight", "place": str(tmp_path / "eight"), "reason": "why"}
    ]
    said = fails(["evaluate", str(trained), "--suite", "zero_shot"])
    assert "evaluate.suite must be one of rings, got 'zero_shot'" in said


def test_a_single_row_has_no_error(trained: Path, tmp_path: Path, capsys) -> None:
    command = ["evaluate", str(trained), "--suite", "rings", "--suite_folder", str(tmp_path)]
    assert main([*command, "--limit", "1"]) == 0
    printed = capsys.readouterr().out
    assert "seven: 1 of 7 rows, evenly spaced" in printed and "inf" not in printed

"""Estimators and conventions of ``seqdiff evaluate``."""

import json
from pathlib import Path

import pytest

from seqdiff import likelihood
from seqdiff.cli import main
from seqdiff.likelihood import Estimator
from seqdiff.subcommands import estimation


def test_names_on_the_command_line_are_those_of_the_classes() -> None:
    classes = [getattr(likelihood, name) for name in likelihood.__all__]
    kinds = [kind for kind in classes if isinstance(kind, type) and issubclass(kind, Estimator)]
    kinds.remove(Estimator)
    assert sorted(estimation.ESTIMATORS) == sorted(kind.name for kind in kinds)
    assert len(kinds) == 7


@pytest.mark.parametrize(
    ("flags", "row", "estimator", "convention"),
    [
        ((), "model, upper bound", "stratified-k", "exact"),
        (("--convention", "mdlm"), "model, as published, not a bound", "bernoulli-time", "mdlm"),
        (("--estimator", "fixed-order"), "model, exact, left to right", "fixed-order", "exact"),
        (
            ("--estimator", "importance-weighted-orders", "--orders", "3"),
            "model, upper bound, 3 orders",
            "importance-weighted-orders",
            "exact",
        ),
    ],
)
def test_the_table_names_estimator_convention_and_what_was_counted(
    trained: Path,
    tmp_path: Path,
    capsys,
    flags: tuple[str, ...],
    row: str,
    estimator: str,
    convention: str,
) -> None:
    out = tmp_path / "e.json"
    assert main(["evaluate", str(trained), "--json", str(out), *flags]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    counted = "known tokens; unknown ones and context are given"
    for text in (row, f"estimator {estimator}", f"convention {convention}", "130 tokens"):
        assert text in printed, text
    assert "known tokens" in printed
    content = json.loads(out.read_text())
    assert content["estimator"] == estimator and content["convention"] == convention
    assert content["counted"] == counted
    assert content["rows"][0]["name"] == row
    assert content["rows"][0]["num_tokens"] == 130

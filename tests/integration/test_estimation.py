"""Estimators and conventions of ``seqdiff evaluate``."""

import json
from inspect import isabstract
from pathlib import Path
from typing import get_args

import pytest

from seqdiff import likelihood
from seqdiff.cli.app import main
from seqdiff.likelihood import BlockBound, Estimator, SmallK
from seqdiff.run import estimators
from tests.integration.toy_domain import ToyNet


def test_names_on_the_command_line_are_those_of_the_classes() -> None:
    classes = [getattr(likelihood, name) for name in likelihood.__all__]
    kinds = [kind for kind in classes if isinstance(kind, type) and issubclass(kind, Estimator)]
    # SmallK estimates differences of likelihoods only.
    kinds = [kind for kind in kinds if not isabstract(kind) and kind not in (BlockBound, SmallK)]
    assert sorted(get_args(estimators.EstimatorName)) == sorted(kind.name for kind in kinds)
    assert len(kinds) == 11


@pytest.mark.parametrize(
    ("flags", "row", "estimator", "convention"),
    [
        ((), "model, upper bound", "stratified-k", "exact"),
        (("--convention", "mdlm"), "model, as published, not a bound", "bernoulli-time", "mdlm"),
        (("--estimator", "fixed-order"), "model, exact, left to right", "fixed-order", "exact"),
        (
            ("--estimator", "confident-order", "--certainty", "margin"),
            "model, exact, by margin",
            "confident-order",
            "exact",
        ),
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
    counted = "known tokens; unknown tokens and context are given"
    for text in (row, f"estimator {estimator}", f"convention {convention}", "130 tokens"):
        assert text in printed, text
    assert "known tokens" in printed
    content = json.loads(out.read_text())
    assert content["estimator"] == estimator and content["convention"] == convention
    assert content["counted"] == counted
    assert content["rows"][0]["name"] == row
    assert content["rows"][0]["num_tokens"] == 130


def test_a_budget_too_small_for_a_row_is_refused_before_the_network(
    trained: Path, fails, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row 0 has 11 known symbols; the others have up to 12, first row 1."""
    calls: list[int] = []
    forward = ToyNet.forward

    def counted(self, inputs, where=None):
        calls.append(len(inputs.tokens))
        return forward(self, inputs, where)

    monkeypatch.setattr(ToyNet, "forward", counted)
    command = ["evaluate", str(trained), "--estimator", "fixed-order", "--max_nfe"]
    for most in ("5", "11"):
        message = fails([*command, most])
        assert "row 1 of the test split: evaluate.max_nfe must be at least 12, what" in message
        assert f"for 12 tokens, got {most}; raise it" in message
        assert not calls
    assert main([*command, "12"]) == 0 and calls

"""``seqdiff compare``, and the sentence at the end of ``seqdiff evaluate``."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from seqdiff.cli.app import main
from seqdiff.likelihood import evaluate
from seqdiff.run import load
from seqdiff.run.evaluation import Difference
from tests.integration.conftest import write_config


@pytest.fixture(scope="module")
def shorter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a tenth of the training, on longer rows."""
    config = write_config(tmp_path_factory.mktemp("shorter"))
    assert main(["train", str(config), "--data.init_args.length", "14"]) == 0
    return config.parents[2] / "run"


def test_differences_are_those_of_the_same_rows(
    trained: Path, shorter: Path, tmp_path: Path, capsys
) -> None:
    out, plot = tmp_path / "differences.json", tmp_path / "differences.svg"
    command = ["compare", *map(str, (trained, shorter, trained)), "--evaluations", "4"]
    assert main([*command, "--seed", "3", "--json", str(out), "--plot", str(plot)]) == 0
    printed = capsys.readouterr().out
    content = json.loads(out.read_text())
    first, second, again = content["runs"]

    # The definition: rows of the first run, the same masks, 6 stretches of its 11 rows.
    runs = [load(folder) for folder in (trained, shorter)]
    loader = runs[0].datamodule.evaluation_loader("test")
    a, b = (evaluate(run.denoiser, loader, evaluations=4, seed=3) for run in runs)
    gap, tokens = b.nats - a.nats, a.num_tokens
    assert content["num_tokens"] == tokens.sum() == 11 * 12 - 2
    mean = gap.sum() / tokens.sum()
    assert second["difference"] == pytest.approx(mean / math.log(2), rel=1e-5)
    totals = np.array([part.sum() for part in _six(gap - mean * tokens)])
    weights = np.array([part.sum() for part in _six(tokens)]) / tokens.sum()
    error = math.sqrt((totals**2).sum() / (1 - (weights**2).sum())) / tokens.sum()
    assert second["difference_error"] == pytest.approx(error / math.log(2), rel=1e-4)
    assert first["difference"] == again["difference"] == again["difference_error"] == 0
    assert content["verdicts"] == [
        f"{shorter} is worse than {trained} by {second['difference']:.4f} ± "
        f"{second['difference_error']:.4f} bits/token.",
        f"These sequences do not tell {trained} from {trained}: the difference is +0.0000 ± 0.0000 "
        "bits/token.",
    ]
    assert all(verdict in printed for verdict in content["verdicts"])
    assert "bits/token minus" in plot.read_text() and str(shorter) in plot.read_text()
    python = runs[0].compare(runs[1], evaluations=4, seed=3)
    tiny = replace(python.runs[1], difference=4e-5, difference_error=1e-9)
    (verdict,) = replace(python, runs=(python.runs[0], tiny)).verdicts
    assert verdict.startswith("These sequences do not tell"), "the difference is printed as zero"
    assert python.runs[1].difference == second["difference"]
    assert content["verdicts"][0] in repr(python)


def _six(values: np.ndarray) -> list[np.ndarray]:
    """Cut the rows of a split into its 6 stretches."""
    return np.split(values, [11 * i // 6 for i in range(1, 6)])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{a}"], "compare.runs must be at least two, got {a} alone; name another run"),
        (["{a}", "{b}", "--plot", "a.jpg"], "compare.plot must end in one of .pdf, .png, .svg"),
        (["{a}", "{a}", "--json", "x.svg", "--plot", "x.svg"], "compare.plot must"),
        (["{a}", "ecoli-promoters"], "compare.runs must have the same tokenizer"),
        (["{a}", "nowhere"], "nowhere"),
    ],
)
def test_what_is_rejected(
    trained: Path, shorter: Path, fails, tmp_path: Path, monkeypatch, words: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    names = {"a": trained, "b": shorter}
    assert message.format(**names) in fails(["compare", *(w.format(**names) for w in words)])
    assert list(tmp_path.iterdir()) == []


def test_an_evaluation_ends_with_a_sentence(trained: Path, capsys) -> None:
    assert main(["evaluate", str(trained), "--evaluations", "4"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    found = load(trained).evaluate(evaluations=4)
    assert found.verdict == last
    assert last.startswith("The model is better than every baseline: ")
    assert last.endswith(" bits/token below the best, uniform.")
    assert repr(found).endswith("\n" + last)
    # With 5 degrees of freedom, a 95% interval is 2.571 standard errors wide to each side.
    for bits, verdict in {
        0.258: "worse than a baseline: 0.2580 ± 0.1000 bits/token above uniform. Train it longer",
        0.256: "do not tell the model from uniform: the difference is +0.2560 ± 0.1000",
        -0.256: "do not tell the model from uniform: the difference is -0.2560 ± 0.1000",
        -0.258: "better than every baseline: 0.2580 ± 0.1000 bits/token below the best",
    }.items():
        changed = replace(found, difference=Difference("uniform", bits, 0.1))
        assert verdict in (changed.verdict or "")
    alone = replace(found, degrees=0, difference=Difference("uniform", 0.25, None))
    assert "0.2500 bits/token above uniform; one sequence has no" in (alone.verdict or "")
    assert replace(found, split="train").verdict is None
    assert replace(found, difference=None).verdict is None

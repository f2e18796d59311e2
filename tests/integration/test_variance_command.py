"""``seqdiff variance``: the numbers of a search as a table, as JSON and as a heat map."""

import json
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from seqdiff.cli.app import main
from seqdiff.objectives import BlockNELBO
from seqdiff.plots.variance import draw_variances
from seqdiff.rng import CounterNoise
from seqdiff.run import load
from seqdiff.training.clipping import ClippedEstimates, Interval, Variances, clipping_grid
from tests.integration.conftest import write_config

NET = ["--backbone", "tests.integration.toy_domain.ToyBlockNet"]


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of block diffusion that searched at step 4."""
    folder = tmp_path_factory.mktemp("blocks")
    flags = [*NET, "--objective", "BlockNELBO", "--block_size", "3"]
    flags += ["--objective.search_batches", "4", "--trainer.val_check_interval", "4"]
    assert main(["train", str(write_config(folder)), *flags]) == 0
    return folder / "run"


def estimates(run: Path) -> tuple[ClippedEstimates, list]:
    loaded = load(run)
    noise = CounterNoise(7)  # the run's seed
    found = ClippedEstimates(BlockNELBO(), loaded.denoiser, noise)
    return found, list(islice(loaded.datamodule.training_loader("test"), 5))


def test_the_table_and_the_numbers(
    blocks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "v.json"
    command = ["variance", str(blocks), "--split", "test", "--batches", "5", "--json", str(out)]
    assert main(command) == 0
    content = json.loads(out.read_text())
    found, batches = estimates(blocks)
    expected = found.variances(torch.stack([found.totals(batch) for batch in batches]))
    rows = content["intervals"]
    assert [(row["beta"], row["omega"]) for row in rows] == list(clipping_grid())
    assert [row["variance"] for row in rows] == pytest.approx(list(expected.values), rel=1e-9)
    errors = [row["standard_error"] for row in rows]
    assert errors == pytest.approx(list(expected.standard_errors), rel=1e-9)
    least = expected.intervals[expected.least]
    assert content["least"] == {"beta": least.beta, "omega": least.omega}
    shown = capsys.readouterr().out
    scale = 10 ** np.floor(np.log10(expected.values[expected.least]))
    value, error = (v[expected.least] / scale for v in (expected.values, expected.standard_errors))
    shown = " ".join(shown.split())  # titles and cells are wrapped
    assert f" {value:.3g} ±{float(f'{error:.1g}'):g}* " in shown and shown.count("*") == 2
    assert f"* smallest: {least}, " in shown and expected.values[-1] > 10 * scale
    assert f" {float(f'{expected.values[-1] / scale:.3g}'):g} ±" in shown
    assert f"unit: 1e{np.log10(scale):.0f} nats² per token²" in shown
    assert "blocks of 3, 5 batches of 8 rows" in shown
    assert "masked fractions are uniform on [beta, beta + width]" in shown
    logged = (blocks / "metrics.csv").read_text().splitlines()
    (beta,), (omega,) = (
        [float(line.split(",")[2]) for line in logged if line.startswith(f"4,train/{name},")]
        for name in ("beta", "omega")
    )
    assert content["in_use"] == {"beta": beta, "omega": omega}
    assert f"the run used U[{beta:g}, {omega:g}] in training from step 4 on" in shown


def test_the_gradient(blocks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "v.json"
    command = ["variance", str(blocks), "--split", "test", "--batches", "5", "--gradient"]
    assert main([*command, "--json", str(out)]) == 0
    content = json.loads(out.read_text())
    found, batches = estimates(blocks)
    values = [row["variance"] for row in content["intervals"]]
    assert values == pytest.approx(list(found.gradient_variances(batches)), rel=1e-6)
    assert content["of"] == "gradient" and content["intervals"][0]["standard_error"] is None
    assert "±" not in capsys.readouterr().out


def test_a_run_that_masks_exact_numbers_has_no_interval(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [*NET, "--objective", "WeightedMLM", "--block_size", "4"]
    assert main(["train", str(config), *flags]) == 0
    assert main(["variance", str(tmp_path / "run"), "--batches", "2"]) == 0
    shown = capsys.readouterr().out
    assert "blocks of 4" in shown and "exact numbers of masks" in " ".join(shown.split())


def test_a_run_without_a_search_names_its_interval(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [*NET, "--objective", "BlockNELBO", "--block_size", "4"]
    flags += ["--objective.beta", "0.25"]
    assert main(["train", str(config), *flags]) == 0
    out = tmp_path / "v.json"
    assert main(["variance", str(tmp_path / "run"), "--batches", "2", "--json", str(out)]) == 0
    assert "used U[0.25, 1] in training from step 0 on" in " ".join(capsys.readouterr().out.split())
    assert json.loads(out.read_text())["in_use"] == {"beta": 0.25, "omega": 1.0}


def variances() -> Variances:
    grid = clipping_grid()
    values = torch.linspace(4.0, 0.5, len(grid)).double().numpy().copy()
    values[7] = 0.125
    return Variances(grid, values, None, 3)


def _cells(figure: Figure) -> list[Rectangle]:
    return [patch for patch in figure.axes[0].patches if isinstance(patch, Rectangle)]


def test_the_heat_map_marks_the_least_and_the_one_in_use() -> None:
    found = variances()
    used = Interval(0.3, 0.8)
    figure = draw_variances(found, "of mine", "unit", used)
    cells = [patch for patch in _cells(figure) if patch.get_fill()]
    marks = [patch for patch in _cells(figure) if not patch.get_fill()]
    assert len(cells) == 36 and len({cell.get_xy() for cell in cells}) == 36
    texts = {text.get_position(): text.get_text() for text in figure.axes[0].texts}
    # Columns are widths 0.5 to 1, rows are betas 0 to 0.5.
    assert texts[0, 7].splitlines() == ["0.125", "U[0.35, 0.85]"]
    assert texts[5, 0].splitlines() == ["0.5", "U[0, 1]"]
    assert [mark.get_label() for mark in marks] == ["least", "in use at the end of training"]
    assert [mark.get_xy() for mark in marks] == [(-0.47, 6.53), (-0.47, 5.53)]
    by_place = {cell.get_xy(): cell.get_facecolor() for cell in cells}
    darkest = min(by_place, key=lambda place: sum(by_place[place][:3]))
    assert darkest == (-0.5, 6.5)
    assert marks[0].get_edgecolor() == to_rgba("#D55E00")
    assert figure.get_suptitle() == "of mine" and figure.axes[0].get_ylabel() == "beta"
    assert len(draw_variances(found, "t", "u").axes[0].patches) == 37
    same = Variances(found.intervals, 0 * found.values, None, 3)
    assert len(draw_variances(same, "t", "u").axes[0].patches) == 37


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_the_picture_is_written(blocks: Path, tmp_path: Path, suffix: str) -> None:
    out = tmp_path / f"heat.{suffix}"
    assert main(["variance", str(blocks), "--batches", "2", "--out", str(out)]) == 0
    begin = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[suffix]
    assert out.read_bytes().startswith(begin)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--batches", "1"], "variance.batches must be at least 2, got 1; raise it"),
        (["--out", "{}/a.gif"], "variance.out must end in one of .pdf, .png, .svg, got"),
        (["--out", "{}/no/a.png"], "variance.out must lie in an existing folder"),
        (["--json", "{}/no/a.json"], "variance.json must lie in an existing folder"),
        (["--out", "{}/a.svg", "--json", "{}/a.svg"], "must be another file than --json"),
        (["--split", "all"], 'Invalid value "all" for --split'),
        (["--device", "abacus"], "--device must be usable, got 'abacus'"),
    ],
)
def test_wrong_arguments(blocks: Path, tmp_path: Path, fails, flags: list[str], said: str) -> None:
    flags = [flag.format(tmp_path) for flag in flags]
    assert said in fails(["variance", str(blocks), *flags])
    assert list(tmp_path.iterdir()) == []


def test_other_runs_are_refused(trained: Path, tmp_path: Path, fails) -> None:
    out = tmp_path / "a.png"
    said = "variance.run must be of block diffusion, got"
    assert said in fails(["variance", str(trained), "--out", str(out)])
    assert "of ContinuousNELBO; train one with" in fails(["variance", str(trained)])
    assert not out.exists()
    assert "a run directory must hold run.yaml" in fails(["variance", str(tmp_path)])

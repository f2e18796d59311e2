"""``seqdiff design`` guided by an oracle, and ranked by a command."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import seqdiff
from benchmarks import guidance
from genomics.design import Oracle, OracleGoal
from genomics.sequence import encode
from seqdiff.cli.app import main
from seqdiff.samplers import BlockClassifierBased, ExactClassifierBased
from tests.genomics.conftest import DESIGN, SMALL
from tests.genomics.design.test_design_command import fails as fails
from tests.genomics.design.test_design_command import read
from tests.oracles import UniformBackbone, masked_model

WHOLE = ["--preset=mdlm", "--backbone.class_path=seqdiff.backbones.Caduceus"]


def train_run(table: Path, out: Path, *more: str) -> None:
    flags = [*SMALL, f"--data.table={table}", "--data.signals=[gc, noise]", *more]
    assert main(["train", str(DESIGN), *flags, "--trainer.max_steps=5", f"--output={out}"]) == 0


@pytest.fixture(scope="module")
def folder(gc_table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of blocks, and oracles of the two halves of its table."""
    folder = tmp_path_factory.mktemp("guides")
    train_run(gc_table, folder / "blocks")
    train = ["oracle", "train", str(gc_table), "--members=1", "--signals", "[gc]"]
    for name, more in (
        ("guide", ["--part=a", "--mask-inputs", "--epochs=8"]),
        ("plain", ["--part=a", "--epochs=1"]),
        ("judge", ["--part=b", "--epochs=8"]),
    ):
        assert main([*train, *more, f"--out={folder / name}"]) == 0
    return folder


def judged(folder: Path) -> list[float]:
    return [float(row["judged_gc"]) for row in read(folder)]


@pytest.mark.parametrize(
    ("run", "by"),
    [
        pytest.param("blocks", "smc", marks=pytest.mark.slow),
        pytest.param("blocks", "classifier", marks=pytest.mark.slow),
        pytest.param("whole", "smc", marks=pytest.mark.slow),
        pytest.param("whole", "classifier", marks=pytest.mark.slow),
    ],
)
def test_guided_candidates_come_closer(
    folder: Path, gc_table: Path, tmp_path: Path, run: str, by: str
) -> None:
    """The run has learnt little, so the value comes from the guide; constraints hold beside it."""
    if run == "whole" and not (folder / run).is_dir():
        train_run(gc_table, folder / run, *WHOLE)
    flags = ["design", str(folder / run), "--signal=gc=2", "--num=16", "--candidates=16"]
    flags += ["--spread=0", f"--judge={folder / 'judge'}", "--avoid=ACG", "--motif=TGAC@4"]
    guide = [f"--guide={folder / 'guide'}", f"--guide-by={by}", "--guidance=6"]
    assert main([*flags, f"--out={tmp_path / 'free'}"]) == 0
    free = np.mean(judged(tmp_path / "free"))
    for name, batch in (("a", 5), ("b", 16)):
        out = tmp_path / name
        assert main([*flags, *guide, f"--out={out}", f"--batch-size={batch}"]) == 0
        assert np.mean(judged(out)) > free + 0.5
        for row in read(out):
            sequence = row["sequence"]
            assert sequence[4:8] == "TGAC" and "ACG" not in sequence and "CGT" not in sequence
            assert float(row["wanted_gc"]) == 2 and row["predicted_gc"], "the guide ranks"
    assert (tmp_path / "a/designs.tsv").read_bytes() == (tmp_path / "b/designs.tsv").read_bytes()
    page = (tmp_path / "a/design.html").read_text()
    assert f"{folder / 'guide'}, by {by}" in page and "took no part in the choice" in page


def test_each_target_of_a_file_is_guided_to_its_own_value(folder: Path, tmp_path: Path) -> None:
    wanted, out = tmp_path / "w.tsv", tmp_path / "out"
    wanted.write_text("name\tgc\nlow\t-2\nhigh\t2\n")
    flags = [f"--signal-file={wanted}", "--num=4", "--candidates=4", "--spread=0", f"--out={out}"]
    flags += [f"--guide={folder / 'guide'}", f"--judge={folder / 'judge'}"]
    assert main(["design", str(folder / "blocks"), *flags]) == 0
    rows = read(out)
    assert [row["target"] for row in rows] == ["low"] * 4 + ["high"] * 4
    assert len({row["sequence"] for row in rows}) == 8
    found = judged(out)
    assert np.mean(found[:4]) + 0.5 < np.mean(found[4:])


@pytest.mark.slow
def test_a_value_is_maximised_by_an_oracle_of_whole_sequences(folder: Path, tmp_path: Path) -> None:
    flags = ["design", str(folder / "blocks"), "--num=4", "--candidates=4", "--spread=0"]
    flags += [f"--judge={folder / 'judge'}"]
    assert main([*flags, f"--out={tmp_path / 'free'}"]) == 0
    guide = [f"--guide={folder / 'guide'}", "--maximise=gc"]
    assert main([*flags, *guide, f"--out={tmp_path / 'a'}"]) == 0
    assert np.mean(judged(tmp_path / "a")) > np.mean(judged(tmp_path / "free")) + 0.5
    plain = [f"--guide={folder / 'plain'}", "--signal=gc=1"]
    assert main([*flags, *plain, f"--out={tmp_path / 'b'}"]) == 0


def test_scores_of_a_goal(folder: Path) -> None:
    """By hand from predictions: log-densities of the targets; whole rows leave out a constant."""
    oracle = Oracle.load(folder / "guide")
    rows = torch.from_numpy(np.stack([encode("ACGT" * 6), encode("G" * 24)])).long()
    predicted = torch.from_numpy(oracle.predict(["ACGT" * 6, "G" * 24]))[:, 0].float()
    sd = float(oracle.residual_sd[0, 0])
    goal = OracleGoal(oracle=oracle, targets={"gc": 1.0, "other": 3.0})
    score = -((predicted - 1) ** 2) / (2 * sd**2)
    torch.testing.assert_close(goal.reward(rows), score, rtol=1e-4, atol=1e-4)
    gap = goal.log_wanted(rows).detach() - goal.reward(rows)
    torch.testing.assert_close(gap[0], gap[1], rtol=1e-4, atol=1e-3)
    most = OracleGoal(oracle=oracle, maximise="gc")
    torch.testing.assert_close(most.reward(rows), predicted / sd, rtol=1e-4, atol=1e-4)
    blocks, whole = seqdiff.load(folder / "blocks").denoiser, masked_model(UniformBackbone(4))
    for model, cls in ((blocks, BlockClassifierBased), (whole, ExactClassifierBased)):
        assert isinstance(goal.steer(model, 24), cls)
    assert goal.sampler().unfinished_reward is not None
    plain = OracleGoal(oracle=Oracle.load(folder / "plain"), maximise="gc")
    assert plain.sampler().unfinished_reward is None


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--guide=none"], "design.guide must be the folder of an oracle, got none; train one"),
        (["--guide=G"], "design.guide must predict a wanted value, got an oracle of gc and wanted"),
        (["--guide=G", "--signal=noise=1"], "oracle of gc and wanted values of noise; give one"),
        (["--guide=G", "--maximise=x"], "design.maximise must be one of the oracle's values, gc,"),
        (["--guide=G", "--signal=gc=1", "--judge=G"], "another oracle than the one that guides"),
        (["--guide=G", "--signal=gc=1", "--judge=P"], "trained on other sequences than the"),
        (
            ["--guide=G", "--signal=gc=1", "--length=30"],
            "design.guide must predict sequences of 30",
        ),
        (["--judge=J", "--length=30"], "design.judge must predict sequences of 30 bases, as the"),
        (
            ["--guide=P", "--signal=gc=1", "--guide-by=classifier"],
            "design.guide must be an oracle that was trained on masked rows for --guide-by class",
        ),
        (
            ["--guide=G", "--signal=gc=1", "--guide-by=classifier", "--infill=T"],
            "design.infill must hold records of one length with --guide-by classifier, got 8 to 9",
        ),
        (["--oracle=G", "--oracle-command=x"], "design.oracle_command must be left out with --ora"),
        (["--oracle-command=x"], "design.oracle_command must come with one wanted signal or with"),
        (["--oracle-command=no-such", "--maximise=y"], "must be a command that can be run, got"),
        (
            ["--oracle-command=false", "--signal=gc=1"],
            "oracle command 'false' must end with exit code 0, got 1 and: nothing on standard",
        ),
        (
            ["--oracle-command=echo 1", "--signal=gc=1"],
            "must write one line for each of 2 sequences, got 1; write nothing else to standard",
        ),
    ],
)
def test_what_cannot_guide_is_one_line_before_drawing(
    folder: Path,
    tmp_path: Path,
    fails: Callable[[list[str]], str],
    monkeypatch: pytest.MonkeyPatch,
    flags: list[str],
    said: str,
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("candidates were drawn")

    monkeypatch.setattr(seqdiff.Run, "draw", never)
    (tmp_path / "T").write_text(">a\nACNNNNNN\n>b\nACNNNNNNN\n")
    places = {"G": folder / "guide", "P": folder / "plain", "J": folder / "judge"}
    places["T"] = tmp_path / "T"
    pairs = [flag.split("=", 1) for flag in flags]
    flags = [f"{key}={places.get(value, value)}" for key, value in pairs]
    out = tmp_path / "out"
    size = ["--num=2", "--candidates=4", f"--out={out}"]
    assert said in fails(["design", str(folder / "blocks"), *flags, *size])
    assert not out.exists()


def test_a_command_ranks(folder: Path, tmp_path: Path) -> None:
    script, out = tmp_path / "count.py", tmp_path / "out"
    script.write_text(
        "import sys\nfor line in sys.stdin:\n    if line[0] != '>': print(line.count('A'))\n"
    )
    flags = ["design", str(folder / "blocks"), "--num=3", "--candidates=12", "--spread=0"]
    flags += [f"--oracle-command={sys.executable} {script}", f"--out={out}"]
    assert main([*flags, "--maximise=count"]) == 0
    found = [(row["sequence"].count("A"), float(row["predicted_count"])) for row in read(out)]
    assert all(a == b for a, b in found) and found == sorted(found, reverse=True)
    assert f"{script}" in (out / "design.html").read_text()
    assert main([*flags, "--signal=gc=0", f"--guide={folder / 'guide'}"]) == 0
    assert all(float(row["predicted_gc"]) == row["sequence"].count("A") for row in read(out))


@pytest.mark.slow
def test_the_benchmark_gives_every_way_the_same_compute(
    folder: Path, gc_table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--table", str(gc_table), "--signals", "gc", "--num=2", "--targets=2"]
    flags += ["--run", str(folder / "blocks"), "--guide", str(folder / "guide"), "--pairs=1"]
    figures = tmp_path / "figures.json"
    judge = ["--judge", str(folder / "judge")]
    guidance.main([*flags, *judge, "--particles=3", "--json", str(figures)])
    said = capsys.readouterr().out
    results = json.loads(figures.read_text())["results"]
    assert list(results) == [way.name for way in guidance.WAYS]
    budget = results["conditions + smc"]["mean"]["cost"]
    for way in guidance.WAYS:
        assert way.name in said
        found = results[way.name]
        mean = found["mean"]
        alone = way.uses == "ranks" and found["copies"] == 1  # nothing to rank
        assert mean["network_evaluations"] == pytest.approx(
            (24 + 4) * found["copies"] * (2 if way.guidance not in (0, 1) else 1)
        )
        assert (mean["oracle_evaluations"] > 0) == (way.uses != "nothing" and not alone)
        if way.uses != "nothing":
            each = mean["cost"] / found["copies"]
            assert abs(mean["cost"] - budget) <= each, "as many copies as fit"
    with pytest.raises(SystemExit, match="2"):
        guidance.main([*flags, "--judge", str(folder / "guide")])
    assert "judge must be another oracle than the one that guided" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        guidance.main([*flags, "--judge", str(folder / "plain"), "--signals", "other"])
    assert "in common" in capsys.readouterr().err

"""From data with measured values to sequences of wanted values, from the command line."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors.numpy import load_file

from seqdiff.cli.app import main
from seqdiff.likelihood import evaluate
from seqdiff.run import Run, load
from tests.integration.toy_domain import MeasuredData, read_rings, write_ring

TOY = "tests.integration.toy_domain"
EXPERIMENT = {
    "seed": 7,
    "data": {"class_path": f"{TOY}.MeasuredData", "init_args": {"length": 12}},
    "backbone": {
        "class_path": "seqdiff.backbones.Caduceus",
        "init_args": {"d_model": 16, "n_layer": 1, "d_state": 4},
    },
    "optim": {"lr": 2e-2, "warmup_steps": 2},
    "ema_decay": 0.9,
    "trainer": {
        "accelerator": "cpu",
        "enable_progress_bar": False,
        "log_every_n_steps": 1,
        "val_check_interval": None,
        "max_steps": 200,
    },
}
WEIGHTS = "model.safetensors"
Fails = Callable[[list[str]], str]

pytestmark = pytest.mark.usefixtures("toy_writer")


def train(output: Path, *flags: str) -> list[str]:
    """The command; the experiment file lies beside the output."""
    path = output.parent / f"{output.name}.yaml"
    path.write_text(yaml.safe_dump(EXPERIMENT))
    return ["train", str(path), f"--output={output}", *flags]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has learned how the symbols depend on the level; tests only read it."""
    folder = tmp_path_factory.mktemp("measured")
    assert main(train(folder / "run")) == 0
    return folder / "run"


@pytest.fixture(scope="module")
def tracked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with a level for each position, in rows of several lengths."""
    folder = tmp_path_factory.mktemp("tracked")
    flags = ["--data.tracks=true", "--data.ragged=true"]
    assert main(train(folder / "run", *flags)) == 0
    return folder / "run"


def sample(run: Path, out: Path, *flags: str) -> dict[str, str]:
    """The drawn sequences by name."""
    assert main(["sample", str(run), "--seed=1", f"--out={out}", *flags]) == 0
    return dict(read_rings(out))


def low(sequences: object) -> float:
    """The fraction of u, v and w."""
    letters = "".join(sequences)  # type: ignore[arg-type]
    return sum(letter in "uvw" for letter in letters) / len(letters)


# Training


def test_statistics_are_those_of_the_training_split(measured: Path) -> None:
    weights = load_file(measured / WEIGHTS)
    kept = {name: weights[f"backbone.signal_map.{name}"] for name in ("mean", "std", "range")}
    data = MeasuredData()
    for split, same in (("train", True), ("test", False)):
        signal = data.dataset(split).signal.astype(np.float64)
        wanted = {
            "mean": np.nanmean(signal, axis=0),
            "std": np.nanstd(signal, axis=0),
            "range": np.stack((np.nanmin(signal, axis=0), np.nanmax(signal, axis=0))),
        }
        for name, values in wanted.items():
            assert np.allclose(kept[name], values, rtol=1e-6) == same, (split, name)
    saved = yaml.safe_load((measured / "run.yaml").read_text())
    assert saved["signal_dropout"] == 0.1
    assert "num_signals" not in saved["backbone"]["init_args"]
    run = load(measured)
    assert run.denoiser.num_signals == 2 and run.datamodule.signals == ["level", "other"]


def test_resume_is_bit_identical(tmp_path: Path) -> None:
    stopped, straight, other = (tmp_path / name for name in ("stopped", "straight", "other"))
    flat = ["--optim.schedule=constant", "--optim.min_lr=0", "--signal_dropout=0.5"]
    assert main(train(straight, "--trainer.max_steps=6", *flat)) == 0
    assert main(train(stopped, "--trainer.max_steps=3", *flat)) == 0
    assert main(["train", "--resume", str(stopped), "--trainer.max_steps", "6"]) == 0
    resumed = (stopped / WEIGHTS).read_bytes()
    assert resumed == (straight / WEIGHTS).read_bytes()
    assert main(train(other, "--trainer.max_steps=6", *flat[:2], "--signal_dropout=0")) == 0
    assert resumed != (other / WEIGHTS).read_bytes(), "dropout acts"


def test_a_start_from_other_weights_keeps_their_standardisation(
    measured: Path, tmp_path: Path
) -> None:
    """The range, which warnings are about, is that of the new data."""
    output = tmp_path / "run"
    flags = ["--data.ragged=true", "--data.length=14", f"--start_from={measured}"]
    assert main(train(output, "--trainer.max_steps=0", *flags)) == 0
    before, after = load_file(measured / WEIGHTS), load_file(output / WEIGHTS)
    prefix = "backbone.signal_map."
    for name in ("mean", "std", "hidden.weight"):
        assert np.array_equal(before[prefix + name], after[prefix + name])
    signal = MeasuredData(length=14).dataset("train").signal
    assert np.array_equal(after[prefix + "range"][0], np.nanmin(signal, axis=0))
    assert not np.array_equal(after[prefix + "range"], before[prefix + "range"])


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            ["--data.values=constant"],
            "data.signals must vary over the training rows, got the single value 1 of 'other'",
        ),
        (
            ["--data.values=unknown"],
            "data.signals must vary over the training rows, got no value of 'other'; drop the",
        ),
        (
            ["--data.values=infinite"],
            "data.signals must be finite, got values from inf to inf of 'other'; leave unknown",
        ),
        (["--signal_dropout=1"], "RunConfig.signal_dropout must be in [0, 1), got 1.0; 0.1 is us"),
        (
            ["--backbone.num_signals=2"],
            "num_signals must not be set, got 2; drop it, it follows from data.signals",
        ),
        (
            [f"--backbone={TOY}.ToyNet"],
            "RunConfig.backbone must take num_signals for data with signals, got ToyNet; choose",
        ),
    ],
)
def test_configurations_that_do_not_fit(
    flags: list[str], said: str, fails: Fails, tmp_path: Path
) -> None:
    assert said in fails(train(tmp_path / "run", *flags))
    assert not (tmp_path / "run").exists()


# Sampling


def test_sequences_have_the_value_that_is_asked_for(measured: Path, tmp_path: Path) -> None:
    """1,200 symbols give a fraction to 0.015; 1e-6 is at 4.9 of those, 0.07.

    The model may be off by another 0.1. A model that ignores the level gives 0.5.
    """
    out = tmp_path / "s.ring"
    many = ["--num=100"]
    for level in (-1.5, 0.5, 1.5):
        drawn = sample(measured, out, *many, f"--signal=level={level}")
        assert list(drawn)[:2] == ["sample_0", "sample_1"] and len(drawn) == 100
        assert abs(low(drawn.values()) - 1 / (1 + np.exp(-2 * level))) < 0.17
    given = [*many, "--signal", "level=0.5"]
    strengths = {
        g: low(sample(measured, out, *given, f"--guidance={g}").values()) for g in (0.5, 3)
    }
    plain = low(sample(measured, out, *given).values())
    assert strengths[3] > plain + 0.05 and strengths[0.5] < plain - 0.02
    free = sample(measured, out, *many)
    assert abs(low(free.values()) - 0.5) < 0.17
    assert free == sample(measured, out, *many, "--signal=level=1.5", "--guidance=0")
    assert free != sample(measured, out, *many, "--signal=other=9", "level=1.5")


def test_python_draws_what_the_command_draws(measured: Path, tmp_path: Path) -> None:
    run, out = load(measured), tmp_path / "s.ring"
    drawn = sample(measured, out, "--num=5", "--signal", "level=-1", "other=4", "--guidance=2")
    options = {"seed": 1, "guidance": 2.0}
    found = run.sample(5, signal={"other": 4.0, "level": -1.0}, **options)
    assert list(drawn.values()) == found
    array = np.tile(np.array([-1, 4], dtype=np.float32), (5, 1))
    assert run.sample(5, signal=array, **options) == found
    assert run.sample(5, signal=array, batch_size=2, **options) == found
    each = run.sample(5, signal={"level": [-1.0, 1.0, -1.0, 1.0, -1.0], "other": 4.0}, **options)
    assert each[::2] == found[::2] and each[1::2] != found[1::2]
    assert len(sample(measured, out, "--signal=level=1")) == 10


def test_a_table_names_the_sequences(measured: Path, tmp_path: Path) -> None:
    """Of each row, with unknown values, blank lines, and any order of the columns."""
    out, levels = tmp_path / "s.ring", [1.8, -1.8, float("nan")] * 10
    table = tmp_path / "wanted.tsv"
    cells = [("NA" if np.isnan(level) else str(level)) for level in levels]
    lines = [f"{cell}\trow{i}" for i, cell in enumerate(cells)]
    table.write_bytes(("\ufefflevel\tname\n" + "\n".join(lines) + "\n\n").encode())
    drawn = sample(measured, out, f"--signal-file={table}")
    assert list(drawn) == [f"row{i}" for i in range(30)]
    found = list(drawn.values())
    assert low(found[::3]) > 0.8 > 0.2 > low(found[1::3])
    assert 0.25 < low(found[2::3]) < 0.75
    run = load(measured)
    assert run.sample(30, seed=1, signal={"level": levels}) == found
    comma = tmp_path / "wanted.csv"
    rows = "".join(f'"row{i}",{cell},\n' for i, cell in enumerate(cells))
    comma.write_text(f"name,level,other\n{rows}")
    assert sample(measured, out, f"--signal-file={comma}") == drawn
    longer = sample(measured, out, f"--signal-file={comma}", "--length=7")
    assert {len(s) for s in longer.values()} == {7}


def test_the_values_of_a_split(measured: Path, tmp_path: Path) -> None:
    drawn = sample(measured, tmp_path / "s.ring", "--signal-from=test")
    run = load(measured)
    signal = run.datamodule.dataset("test").signal
    assert list(drawn) == [f"test_{i}" for i in range(40)]
    assert list(drawn.values()) == run.sample(40, seed=1, signal=signal)
    fractions = [low([sequence]) for sequence in drawn.values()]
    assert np.corrcoef(fractions, signal[:, 0])[0, 1] > 0.8
    assert {len(s) for s in drawn.values()} == {12}


def test_templates_are_filled_given_a_value(measured: Path, tmp_path: Path) -> None:
    out, given = tmp_path / "s.ring", tmp_path / "t.ring"
    write_ring(given, ["u-----------", "---zzz"], ["a", "b"])
    flags = [f"--infill={given}", "--num=20"]
    high, lower = (sample(measured, out, *flags, f"--signal=level={v}") for v in (-1.8, 1.8))
    assert list(high)[:2] == ["a_0", "a_1"] and len(high) == 40
    for drawn in (high, lower):
        assert all(s[0] == "u" for name, s in drawn.items() if name[0] == "a")
        assert all(s.endswith("zzz") for name, s in drawn.items() if name[0] == "b")
    free = [[s[1:] if name[0] == "a" else s[:3] for name, s in d.items()] for d in (high, lower)]
    assert low(free[0]) < 0.2 and low(free[1]) > 0.8
    run = load(measured)
    found = run.infill(["u-----------", "---zzz"], 20, seed=1, signal={"level": 1.8})
    assert found == list(lower.values())


def test_values_far_outside_the_range_of_training_warn(
    measured: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once for each signal, in every command; a tenth of the range is not far."""
    out, table, ring = tmp_path / "s.ring", tmp_path / "w.tsv", tmp_path / "a.ring"
    table.write_text("name\tlevel\na\t7\nb\t-1\nc\t9\n")
    write_ring(ring, ["uvwxyzuvwxyz"], ["a"])
    head = "seqdiff: warning: level was between -2 and 2 in training; "
    score = ["score", str(measured), str(ring), "--evaluations=2"]
    for command, said in (
        (["--num=3", "--signal=level=7"], "3 of 3 values lie far outside, for example 7"),
        ([f"--signal-file={table}"], "2 of 3 values lie far outside, for example 7"),
        ([*score, "--signal=level=7"], "1 of 1 values lie far outside, for example 7"),
        (["--num=3", "--signal=level=-2.3"], None),
        (["--num=3", "--signal=level=2.5"], "3 of 3 values lie far outside, for example 2.5"),
        (["--num=3"], None),
    ):
        capsys.readouterr()
        if command[0] != "score":
            command = ["sample", str(measured), "--seed=1", f"--out={out}", *command]
        assert main(command) == 0
        warnings = [x for x in capsys.readouterr().err.splitlines() if "warning" in x]
        found = [line.replace("-1.999", "-2").replace("1.999", "2") for line in warnings]
        found = [line.replace("between -1.99", "between -2") for line in found]
        assert len(found) == (said is not None)
        if said is not None:
            assert found[0].endswith(said) and found[0].startswith(head[:42])


# Scores and likelihoods


def test_scores_are_given_the_value(
    measured: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ring, out = tmp_path / "a.ring", tmp_path / "s.tsv"
    write_ring(ring, ["uvwvuwuvuwvu", "xyzyxzxyxzyx"], ["low", "high"])
    command = ["score", str(measured), str(ring), f"--out={out}", "--estimator=fixed-order"]
    nats, run = {}, load(measured)
    for level in (None, 1.8, -1.8):
        given = [] if level is None else ["--signal", f"level={level}"]
        capsys.readouterr()
        assert main([*command, *given]) == 0
        said = capsys.readouterr().out
        assert (f"left to right, given level = {level}, by" in said) == bool(given)
        with out.open() as file:
            rows = list(csv.DictReader(file, delimiter="\t"))
        nats[level] = [float(row["nats"]) for row in rows]
        signal = None if level is None else {"level": level}
        own = run.score(["uvwvuwuvuwvu", "xyzyxzxyxzyx"], signal=signal, estimator="fixed-order")
        assert [float(row.nats) for row in own.rows] == pytest.approx(nats[level], abs=1e-3)
    assert nats[1.8][0] < nats[None][0] < nats[-1.8][0]
    assert nats[-1.8][1] < nats[None][1] < nats[1.8][1]
    assert main([*command, "--signal", "level=1", "other=5.25"]) == 0
    assert "given level = 1, given other = 5.25, by" in capsys.readouterr().out


def test_an_evaluation_says_whether_the_values_are_given(
    measured: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By default they are not; the bound is lower with them, since they tell of the symbols."""
    run, out = load(measured), tmp_path / "e.json"
    batches = list(run.datamodule.evaluation_loader("test"))
    hidden = [replace(batch, signal=None) for batch in batches]
    told = "unknown tokens, context and each row's signals are given"
    untold = "unknown tokens and context are given, signals are not"
    bits = {}
    for flags, given, counted in (([], hidden, untold), (["--given-signals"], batches, told)):
        capsys.readouterr()
        assert main(["evaluate", str(measured), f"--json={out}", *flags]) == 0
        content, printed = json.loads(out.read_text()), " ".join(capsys.readouterr().out.split())
        assert content["counted"].endswith(counted) and counted in printed
        model = content["rows"][0]
        assert model["name"].endswith("given each row's signals") == bool(flags)
        right = evaluate(run.denoiser, given)
        assert model["bits_per_token"] == pytest.approx(right.bits_per_token, abs=1e-6)
        bits[bool(flags)] = model["bits_per_token"]
        python = run.evaluate("test", given_signals=bool(flags))
        assert python.content()["rows"] == content["rows"]
    assert bits[True] < bits[False] - 0.1


# Values of positions


def test_tracks(tracked: Path, tmp_path: Path, fails: Fails) -> None:
    """Every sequence has the length of its row, and every symbol the value of its position."""
    out, run = tmp_path / "s.ring", load(tracked)
    drawn = sample(tracked, out, "--signal-from=test", "--guidance=2")
    data = run.datamodule.dataset("test")
    lengths = (~data.pads).sum(axis=1)
    assert [len(sequence) for sequence in drawn.values()] == lengths.tolist()
    assert len(set(lengths.tolist())) > 3
    hits = [
        (letter in "uvw") == (level > 0)
        for sequence, track in zip(drawn.values(), data.signal[..., 0].tolist(), strict=True)
        for letter, level in zip(sequence, track, strict=False)
        if abs(level) > 1
    ]
    assert np.mean(hits) > 0.85
    full = np.full((2, 12, 2), np.nan, dtype=np.float32)
    full[0, ::2, 0], full[0, 1::2, 0] = 1.8, -1.8
    full[1] = full[0, ::-1]
    rows = np.repeat(full, 20, axis=0)
    first, second = np.array([list(s) for s in run.sample(40, seed=1, signal=rows)]).reshape(2, -1)
    fractions = [
        np.isin(part.reshape(20, 12), list("uvw")).mean(axis=0) for part in (first, second)
    ]
    assert fractions[0][::2].mean() > 0.8 > 0.2 > fractions[0][1::2].mean()
    assert fractions[1][1::2].mean() > 0.8 > 0.2 > fractions[1][::2].mean()
    assert main(["evaluate", str(tracked), "--given-signals", "--evaluations=2"]) == 0


@pytest.mark.parametrize("length", [11, 13])
def test_tracks_of_another_length_raise(tracked: Path, length: int, tmp_path: Path, fails) -> None:
    run, track = load(tracked), np.ones((2, 12, 2), dtype=np.float32)
    said = f"sample.signal must have a value for each of {length} tokens, got 12; draw sequences"
    with pytest.raises(ValueError, match=f"^{said}"):
        run.sample(2, length=length, seed=1, signal=track, extrapolate=True)
    if length == 11:
        out = tmp_path / "s.ring"
        command = ["sample", str(tracked), "--signal-from=test", f"--out={out}", "--seed=1"]
        assert said in fails([*command, "--length=11"]) and not out.exists()


def test_tracks_have_no_value_of_a_whole_sequence(
    tracked: Path, tmp_path: Path, fails: Fails
) -> None:
    out, table = tmp_path / "s.ring", tmp_path / "w.tsv"
    table.write_text("name\tlevel\na\t1\n")
    write_ring(tmp_path / "a.ring", ["uvw"], ["a"])
    command = ["sample", str(tracked), f"--out={out}", "--seed=1"]
    said = "must be left out for {}, whose positions have values of their own; take the values of a"
    said = said.format(tracked)
    assert f"sample.signal {said}" in fails([*command, "--signal=level=1"])
    assert f"sample.signal_file {said}" in fails([*command, f"--signal-file={table}"])
    score = ["score", str(tracked), str(tmp_path / "a.ring"), "--signal=level=1"]
    assert f"score.signal {said}" in fails(score)
    with pytest.raises(ValueError, match=r"sample\.signal must have shape \(2, tokens, 2\): a row"):
        load(tracked).sample(2, signal=np.ones((2, 2), dtype=np.float32))
    assert not out.exists()


# Other processes


PROCESSES = {
    "sedd": ["--preset=sedd"],
    "plaid": ["--preset=plaid"],
    "udlm": ["--preset=udlm"],
    "ar": ["--preset=ar", "--backbone=seqdiff.backbones.AutoregressiveMamba"],
    "blocks": ["--preset=bd3lm", "--block_size=4", "--backbone=seqdiff.backbones.BlockMamba"],
    "transformer": [
        *("--backbone=seqdiff.backbones.Transformer", "--backbone.n_heads=2"),
        *("--backbone.d_model=16", "--backbone.n_layer=1"),
    ],
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow if n in ("sedd", "plaid") else ()) for n in PROCESSES],
)
def test_every_process_takes_signals(name: str, tmp_path: Path, fails: Fails) -> None:
    """Trained for one step; the embedding is then drawn at random, so that values matter."""
    run, out = tmp_path / "run", tmp_path / "s.ring"
    sizes = ["--backbone.d_model=16", "--backbone.n_layer=1"]
    assert main(train(run, *PROCESSES[name], *sizes, "--trainer.max_steps=1")) == 0
    trained = load(run)
    torch.manual_seed(0)
    for weight in trained.denoiser.backbone.signal_map.parameters():
        torch.nn.init.normal_(weight)
    options = {} if name in ("ar", "transformer", "blocks") else {"num_steps": 3}
    drawn = [
        trained.sample(60, seed=1, signal=signal, **options)  # few tokens change after one step
        for signal in (None, {"level": 1.5}, {"level": [1.5] * 59 + [-1.5]})
    ]
    assert drawn[0] != drawn[1] and drawn[1][:59] == drawn[2][:59]
    flags = ["--num-steps=3"] if options else []
    assert len(sample(run, out, "--num=2", "--signal=level=1", *flags)) == 2
    command = ["sample", str(run), "--seed=1", f"--out={tmp_path / 'o.ring'}", *flags]
    strong = [*command, "--signal=level=1", "--guidance=2"]
    if name in ("sedd", "plaid"):
        assert "sample.guidance must be 0 or 1 for the process" in fails(strong)
        assert not (tmp_path / "o.ring").exists()
    else:
        assert main(strong) == 0
    batch = next(iter(trained.datamodule.evaluation_loader("test")))
    plain = replace(batch, signal=None)
    same = replace(batch, signal=torch.tensor([1.5, torch.nan]).expand(len(batch.tokens), -1))
    given = trained.condition("score", None, {"level": 1.5}).denoiser
    nats = [evaluate(d, [b]).nats for d, b in ((given, plain), (trained.denoiser, same))]
    assert np.allclose(*nats) and not np.allclose(nats[0], evaluate(trained.denoiser, [plain]).nats)
    brief = [] if name == "ar" else ["--evaluations=2"]
    assert main(["evaluate", str(run), "--given-signals", *brief]) == 0


# Errors


TABLE = "name\tlevel\na\t1\n"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            ["--signal=height=1"],
            "sample.signal must name signals of the run (level, other), got 'h",
        ),
        (["--signal=level"], "sample.signal must be NAME=VALUE with a finite number, got 'level'"),
        (
            ["--signal=level=x"],
            "sample.signal must be NAME=VALUE with a finite number, got 'level=",
        ),
        (["--signal=level=nan"], "must be NAME=VALUE with a finite number, got 'level=nan'; write"),
        (
            ["--signal=level=1e39"],
            "sample.signal must be finite in float32, got infinity; give NaN",
        ),
        (
            ["--signal", "level=1", "level=2"],
            "sample.signal must give each signal once, got 'level' twice; drop one",
        ),
        (
            ["--signal=level=1", "--signal-from=test"],
            "sample.signal_from must be left out with --signal, which gives the values too; keep",
        ),
        (
            ["--signal-file=TABLE", "--signal-from=test"],
            "sample.signal_from must be left out with --signal-file, which gives the values too",
        ),
        (
            ["--signal-file=TABLE", "--num=3"],
            "sample.num must be left out with --signal-file, which asks for one sequence for each",
        ),
        (
            ["--signal-from=test", "--infill=t.ring"],
            "sample.infill must be left out with --signal-from, which asks for one sequence for",
        ),
        (["--signal-file=no.tsv"], "sample.signal_file must be an existing file, got no.tsv; chec"),
        (["--signal-from=dev"], "signal-from"),
        (["--guidance=2"], "sample.guidance must come with a label or a signal, got 2.0 without"),
        (["--signal=level=1", "--label=x"], "sample.label must be left out for a run without lab"),
    ],
)
def test_options_that_do_not_fit(
    measured: Path, flags: list[str], said: str, tmp_path: Path, fails: Fails
) -> None:
    table, out = tmp_path / "w.tsv", tmp_path / "s.ring"
    table.write_text(TABLE)
    write_ring(tmp_path / "t.ring", ["u--"], ["a"])
    flags = [flag.replace("TABLE", str(table)) for flag in flags]
    flags = [flag.replace("t.ring", str(tmp_path / "t.ring")) for flag in flags]
    assert said in fails(["sample", str(measured), "--seed=1", f"--out={out}", *flags])
    assert not out.exists()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", ":1: the columns must be name and any of level, other, each once, got none; correct"),
        ("name\n", ":1: the columns must be name and any of level, other, each once, got name;"),
        (
            "level\n1\n",
            ":1: the columns must be name and any of level, other, each once, got level",
        ),
        (
            "name\theight\na\t1\n",
            ":1: the columns must be name and any of level, other, each once,",
        ),
        ("name\tlevel\tlevel\na\t1\t1\n", "each once, got name, level, level; correct the header"),
        ("name\tlevel\n", ": must have a row for each sequence, got none; add one"),
        ("name\tlevel\na\n", ":2: must have 2 columns like the header, got 1; correct the line"),
        ("name\tlevel\na\t1\t2\n", ":2: must have 2 columns like the header, got 3; correct"),
        ("name\tlevel\na\t1\n\nb\tx\n", ":4: level must be a finite number, got 'x'; leave it em"),
        ("name\tlevel\na\tinf\n", ":2: level must be a finite number, got 'inf'; leave it empty"),
        ("name\tlevel\na\t1e39\n", ":2: level must be a finite number, got '1e39'; leave it empty"),
        (
            "name\tlevel\na\t1\na\t2\n",
            "must have a name of its own, without blanks, got 'a' of line 2",
        ),
        (
            "name\tlevel\n\t1\n",
            ":2: must have a name of its own, without blanks, got ''; change it",
        ),
        ("name\tlevel\na b\t1\n", "must have a name of its own, without blanks, got 'a b'; change"),
        (b"name\tlevel\na\t\xff\n", ": must be a text table, got 'utf-8' codec can't decode byte"),
    ],
)
def test_tables_that_cannot_be_read(
    measured: Path, content: str | bytes, said: str, tmp_path: Path, fails: Fails
) -> None:
    table, out = tmp_path / "w.tsv", tmp_path / "s.ring"
    table.write_bytes(content if isinstance(content, bytes) else content.encode())
    line = fails(["sample", str(measured), "--seed=1", f"--out={out}", f"--signal-file={table}"])
    assert line.startswith(f"seqdiff: error: {table}:") and said in line
    assert not out.exists()


@pytest.mark.parametrize(
    ("signal", "said"),
    [
        ({}, r"must name signals of the run \(level, other\), got none; correct the name"),
        (
            {"level": [1.0, 2.0]},
            r" level must be one value or 3, one for each sequence, got shape \(2,",
        ),
        (
            {"level": "high"},
            r" level must hold numbers, got 'high'; give NaN where a value is unkn",
        ),
        (np.ones((3, 1)), r"must have shape \(3, 2\): a row for each sequence and a column for ea"),
        (np.ones((2, 2)), r"must have shape \(3, 2\): .* of level, other, got \(2, 2\); give NaN"),
        (np.full((3, 2), np.inf), r"must be finite in float32, got infinity; give NaN where a val"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_values_that_do_not_fit_in_python(measured: Path, signal: object, said: str) -> None:
    run = load(measured)
    for draw, name in (
        (lambda: run.sample(3, seed=1, signal=signal), "sample"),
        (lambda: run.infill("u--", 3, seed=1, signal=signal), "infill"),
    ):
        with pytest.raises(ValueError, match=rf"^{name}\.signal ?{said}"):
            draw()


def test_scores_and_evaluations_that_do_not_fit(
    measured: Path, tmp_path: Path, fails: Fails
) -> None:
    ring, out = tmp_path / "a.ring", tmp_path / "s.tsv"
    write_ring(ring, ["uvw"], ["a"])
    score = ["score", str(measured), str(ring), f"--out={out}"]
    line = fails([*score, "--signal=height=1"])
    assert "score.signal must name signals of the run (level, other), got 'height'" in line
    assert "score.signal must be NAME=VALUE" in fails([*score, "--signal=level"])
    assert not out.exists()
    suite = ["evaluate", str(measured), "--suite=gpt2", "--given-signals"]
    assert "evaluate.given_signals must be left out beside a suite" in fails(suite)


def test_a_run_without_signals_has_none_to_ask_for(
    trained: Path, tmp_path: Path, fails: Fails
) -> None:
    out, table = tmp_path / "s.ring", tmp_path / "w.tsv"
    table.write_text(TABLE)
    for flag, name in (
        ("--signal=level=1", "signal"),
        (f"--signal-file={table}", "signal_file"),
        ("--signal-from=test", "signal_from"),
    ):
        line = fails(["sample", str(trained), "--seed=1", f"--out={out}", flag])
        assert f"sample.{name} must be left out for a run without signals, got it for" in line
    assert not out.exists()
    ring = tmp_path / "a.ring"
    write_ring(ring, ["uvw"], ["a"])
    line = fails(["score", str(trained), str(ring), "--signal=level=1"])
    assert "score.signal must be left out for a run without signals" in line
    line = fails(["evaluate", str(trained), "--given-signals"])
    assert "evaluate.given_signals must be left out for a run without signals, got it for" in line


def test_a_run_that_always_saw_its_signals_cannot_do_without(tmp_path: Path, fails: Fails) -> None:
    run, out, ring = tmp_path / "run", tmp_path / "s.ring", tmp_path / "a.ring"
    write_ring(ring, ["uvw"], ["a"])
    assert main(train(run, "--trainer.max_steps=1", "--signal_dropout=0")) == 0
    command, both = ["sample", str(run), "--seed=1", f"--out={out}"], ["level=1", "other=5"]
    for flags in ([], ["--signal", *both, "--guidance=2"], ["--signal", *both, "--guidance=0"]):
        line = fails([*command, *flags])
        assert (
            "sample.signal must be given, with guidance 1, for a run trained with signal_d" in line
        )
    line = fails([*command, "--signal=level=1"])
    assert (
        "sample.signal must give every signal of a run trained with signal_dropout 0, got" in line
    )
    table = tmp_path / "w.tsv"
    table.write_text(TABLE)
    line = fails([*command, f"--signal-file={table}"])
    assert f"{table}:1: the columns must give every signal of a run trained with" in line
    assert "none for other; add it, or train with signal_dropout 0.1" in line
    assert not out.exists()
    assert len(sample(run, out, "--num=2", "--signal", *both)) == 2
    assert "score.signal must be given, with guidance 1" in fails(["score", str(run), str(ring)])
    line = fails(["evaluate", str(run)])
    assert (
        "evaluate.given_signals must be set for a run trained with signal_dropout 0, which" in line
    )
    assert main(["evaluate", str(run), "--given-signals", "--evaluations=2"]) == 0
    assert isinstance(load(run), Run)

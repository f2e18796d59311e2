"""From a table of activities to sequences of a wanted activity, from the command line."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from Bio import SeqIO

import seqdiff
from seqdiff.cli.app import main

CONFIG = Path(__file__).parents[2] / "configs" / "experiment" / "genomics" / "design.yaml"
SMALL = [
    "--data.batch_size=32",
    "--backbone.d_model=16",
    "--backbone.n_layer=1",
    "--optim.lr=2e-2",
    "--optim.warmup_steps=5",
    "--ema_decay=0.9",
    "--trainer.max_steps=60",
    "--trainer.enable_progress_bar=false",
    "--trainer.val_check_interval=null",
    "--trainer.accelerator=cpu",
]
LENGTH = 24


def write_table(path: Path) -> Path:
    """Sequences whose fraction of G and C is a logistic function of a value from -3 to 3."""
    rng, lines = np.random.default_rng(0), ["name\tsequence\tgc\tnoise"]
    for row in range(600):
        value = rng.uniform(-3, 3)
        share = 1 / (1 + np.exp(-value))
        chances = [(1 - share) / 2, share / 2, share / 2, (1 - share) / 2]
        text = "".join(rng.choice(list("ACGT"), size=LENGTH, p=chances))
        lines.append(f"r{row}\t{text}\t{value:.4f}\t{'' if row % 3 else rng.normal():.4}")
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_table(tmp_path_factory.mktemp("data") / "t.tsv")


@pytest.fixture(scope="module")
def trained(table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("run") / "run"
    data = [f"--data.table={table}", "--data.signals=[gc, noise]"]
    assert main(["train", str(CONFIG), f"--output={run}", *SMALL, *data]) == 0
    return run


def share(sequences: list[str]) -> float:
    return sum(s.count("G") + s.count("C") for s in sequences) / sum(map(len, sequences))


def read(path: Path) -> dict[str, str]:
    return {record.id: str(record.seq) for record in SeqIO.parse(path, "fasta")}


def test_the_run_keeps_statistics_and_length(trained: Path, table: Path) -> None:
    run = seqdiff.load(trained)
    assert run.datamodule.signals == ["gc", "noise"]
    assert run.usual_length("x") == LENGTH, "known without the table"
    embedding = run.denoiser.backbone.signal_embedding
    values = run.datamodule.dataset("train").signals(
        np.arange(len(run.datamodule.dataset("train")))
    )
    wanted = (np.nanmean, np.nanstd, np.nanmin, np.nanmax)
    found = (embedding.mean, embedding.std, *embedding.range)
    for ours, statistic in zip(found, wanted, strict=True):
        assert np.allclose(ours.numpy(), statistic(values.astype(float), axis=0), rtol=1e-5)


def test_a_run_without_its_table_still_draws(trained: Path, table: Path) -> None:
    hidden = table.rename(table.with_suffix(".away"))
    try:
        found = seqdiff.load(trained).sample(3, signal={"gc": 2.0}, seed=0)
    finally:
        hidden.rename(table)
    assert [len(s) for s in found] == [LENGTH] * 3


def test_values_steer_sequences(trained: Path) -> None:
    """Fractions of 40 x 24 bases have a standard error of .016; the wanted ones are .12 and .88."""
    run = seqdiff.load(trained)
    low, high = (share(run.sample(40, signal={"gc": v}, seed=0)) for v in (-2.0, 2.0))
    plain = share(run.sample(40, seed=0))
    assert low < plain - 0.1 and plain + 0.1 < high
    told, guided = (run.sample(4, signal={"gc": 1.0}, guidance=g, seed=0) for g in (1.0, 3.0))
    assert told == run.sample(4, signal={"gc": 1.0}, seed=0) and guided != told
    none = run.sample(40, signal={"gc": 2.0}, guidance=0.0, seed=0)
    assert none == run.sample(40, seed=0)


def test_commands_are_calls(trained: Path, tmp_path: Path) -> None:
    run, out = seqdiff.load(trained), tmp_path / "s.fa"
    command = ["sample", str(trained), "--seed=3", f"--out={out}"]
    assert main([*command, "--num=4", "--signal", "gc=1.5", "noise=-0.5"]) == 0
    given = {"gc": 1.5, "noise": -0.5}
    assert list(read(out).values()) == run.sample(4, signal=given, seed=3)

    wanted = tmp_path / "wanted.tsv"
    wanted.write_text("name\tgc\nweak\t-2\nstrong\t2\nopen\t\n")
    assert main([*command, f"--signal-file={wanted}", "--guidance=2"]) == 0
    array = np.array([[-2, np.nan], [2, np.nan], [np.nan, np.nan]])
    drawn = run.sample(3, signal=array, guidance=2.0, seed=3)
    assert read(out) == dict(zip(("weak", "strong", "open"), drawn, strict=True))

    assert main([*command, "--signal-from=test"]) == 0
    dataset = run.datamodule.dataset("test")
    values = dataset.signals(np.arange(len(dataset)))
    paired = run.sample(len(dataset), signal=values, seed=3)
    assert read(out) == {f"test_{i}": text for i, text in enumerate(paired)}

    templates = tmp_path / "templates.fa"
    templates.write_text(">a\nACGTNNNNNNNN\n")
    assert main([*command, f"--infill={templates}", "--num=2", "--signal", "gc=2"]) == 0
    filled = run.infill("ACGTNNNNNNNN", 2, signal={"gc": 2.0}, seed=3)
    assert list(read(out).values()) == filled and filled[0].startswith("ACGT")


def test_scores_and_bounds_given_the_values(trained: Path, tmp_path: Path) -> None:
    """Rich sequences are likelier given a high value; the bound is lower given all values."""
    run = seqdiff.load(trained)
    rich = ["GCGCGGCCGCGCCGGCGCGCCGCG"]
    nats = [run.score(rich, signal={"gc": v})[0].nats for v in (-2.0, 2.0)]
    assert nats[1] < nats[0] - 5, "nats are negative log-likelihoods"
    fasta, table = tmp_path / "x.fa", tmp_path / "x.tsv"
    fasta.write_text(f">0\n{rich[0]}\n")
    assert main(["score", str(trained), str(fasta), "--signal", "gc=2", f"--out={table}"]) == 0
    assert table.read_text() == run.score(fasta, signal={"gc": 2.0}).to_tsv()

    bits = []
    for flags in ([], ["--given-signals"]):
        out = tmp_path / "e.json"
        assert main(["evaluate", str(trained), "--evaluations=4", f"--json={out}", *flags]) == 0
        content = json.loads(out.read_text())
        bits.append(content["rows"][0]["bits_per_token"])
    assert "context and each row's signals are given" in content["counted"]
    assert bits[1] < bits[0] - 0.01
    found = run.evaluate(given_signals=True, evaluations=4)
    assert found.content()["rows"][0]["bits_per_token"] == bits[1]


def test_values_outside_the_range_are_warned_of(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = seqdiff.load(trained)
    run.sample(1, signal={"gc": 3.0}, seed=0)
    assert "warning" not in capsys.readouterr().err
    run.sample(1, signal={"gc": 30.0}, seed=0)
    said = capsys.readouterr().err
    assert "seqdiff: warning: gc was between -2.9" in said
    assert "1 of 1 values lie far outside, for example 30" in said


REFUSED = {
    "form": (["--signal", "gc"], "sample.signal must be NAME=VALUE with a finite number, got 'gc'"),
    "word": (["--signal", "gc=high"], "must be NAME=VALUE with a finite number, got 'gc=high'"),
    "twice": (["--signal", "gc=1", "gc=2"], "must give each signal once, got 'gc' twice"),
    "unknown": (["--signal", "x=1"], "must name signals of the run (gc, noise), got 'x'"),
    "both": (
        ["--signal", "gc=1", "--signal-from", "test"],
        "sample.signal_from must be left out with --signal",
    ),
    "num": (["--signal-from", "test", "--num", "3"], "sample.num must be left out with --signal-"),
    "missing": (["--signal-file", "no.tsv"], "sample.signal_file must be an existing file, got no"),
    "guidance": (["--guidance", "2"], "must come with a label or a signal, got 2.0 without"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_options_are_refused(
    name: str, trained: Path, tmp_path: Path, fails: Callable[[list[str]], str]
) -> None:
    flags, message = REFUSED[name]
    out = tmp_path / "s.fa"
    assert message in fails(["sample", str(trained), f"--out={out}", *flags])
    assert not out.exists()


BAD_FILES = {
    "no name": ("gc\n1\n", ":1: the columns must be name and any of gc, noise, each once, got gc"),
    "a stranger": ("name\tz\na\t1\n", ":1: the columns must be name and any of gc, noise"),
    "no row": ("name\tgc\n", ": must have a row for each sequence, got none"),
    "a word": ("name\tgc\na\tx\n", ":2: gc must be a finite number, got 'x'"),
    "ragged": ("name\tgc\na\t1\t2\n", ":2: must have 2 columns like the header, got 3"),
    "a name twice": (
        "name\tgc\na\t1\na\t2\n",
        ":3: must have a name of its own, without blanks, got",
    ),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_files_are_refused(
    name: str, trained: Path, tmp_path: Path, fails: Callable[[list[str]], str]
) -> None:
    text, message = BAD_FILES[name]
    path = tmp_path / "w.tsv"
    path.write_text(text)
    assert message in fails(["sample", str(trained), f"--signal-file={path}"])


def test_bad_arguments_are_refused(trained: Path) -> None:
    run = seqdiff.load(trained)
    with pytest.raises(ValueError, match=r"^sample\.signal must have shape \(3, 2\): a row for"):
        run.sample(3, signal=np.zeros((2, 2)))
    with pytest.raises(ValueError, match=r"sample\.signal gc must be one value or 3, one for each"):
        run.sample(3, signal={"gc": [1.0, 2.0]})
    with pytest.raises(ValueError, match="must be finite in float32, got infinity"):
        run.sample(1, signal={"gc": float("inf")})


def test_runs_without_signals_refuse_them(
    table: Path, tmp_path: Path, fails: Callable[[list[str]], str]
) -> None:
    config = CONFIG.parent / "fasta.yaml"
    fasta = tmp_path / "x.fa"
    fasta.write_text(">a\n" + "ACGT" * 200 + "\n")
    run = tmp_path / "plain"
    flags = [f"--data.fasta={fasta}", "--data.length=16", "--backbone.d_model=8"]
    assert main(["train", str(config), f"--output={run}", *flags, "--trainer.max_steps=0"]) == 0
    for command in (["sample"], ["score", str(fasta)]):
        line = fails([command[0], str(run), *command[1:], "--signal", "gc=1"])
        assert f"{command[0]}.signal must be left out for a run without signals" in line
    line = fails(["evaluate", str(run), "--given-signals"])
    assert "evaluate.given_signals must be left out for a run without signals" in line


def test_a_run_that_was_always_given_signals_cannot_do_without(
    table: Path, tmp_path: Path, fails: Callable[[list[str]], str]
) -> None:
    run = tmp_path / "run"
    data = [f"--data.table={table}", "--data.signals=[gc]", "--signal_dropout=0"]
    brief = [*SMALL, "--trainer.max_steps=0"]
    assert main(["train", str(CONFIG), f"--output={run}", *brief, *data]) == 0
    line = fails(["sample", str(run)])
    assert "sample.signal must be given, with guidance 1, for a run trained with signal" in line
    assert main(["sample", str(run), "--signal", "gc=1", "--num=1", "--seed=0"]) == 0
    line = fails(["evaluate", str(run)])
    assert "evaluate.given_signals must be set for a run trained with signal_dropout 0" in line
    line = fails(
        ["train", str(CONFIG), f"--output={run}2", *brief, *data[:2], "--signal_dropout=1"]
    )
    assert "RunConfig.signal_dropout must be in [0, 1), got 1.0; 0.1 is usual" in line

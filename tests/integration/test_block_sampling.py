"""Block diffusion from the command line: stop symbols, lengths, labels, and errors."""

import contextlib
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from seqdiff.cli.app import main
from seqdiff.data.templates import Blanks
from seqdiff.run import drawing, engine, load
from seqdiff.run.drawing import find_symbol
from seqdiff.samplers import BlockSampler, FirstHittingSampler
from seqdiff.trace import read_trace
from tests.integration import test_labelled_run as labelled
from tests.integration.conftest import Entry, write_config
from tests.integration.toy_domain import RingTokenizer

pytestmark = pytest.mark.usefixtures("toy_writer")
BLOCKS = {"block_size": 4, "objective": "seqdiff.objectives.BlockNELBO"}
MAMBA = {
    "class_path": "seqdiff.backbones.BlockMamba",
    "init_args": {"d_model": 8, "n_layer": 1, "d_state": 4, "backend": "reference"},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network with initial weights: letters are almost equally likely."""
    folder = tmp_path_factory.mktemp("blocks")
    path = write_config(folder)
    content = yaml.safe_load(path.read_text())
    content |= {"backbone": MAMBA, **BLOCKS}
    path.write_text(yaml.safe_dump(content))
    assert main(["train", str(path), "--trainer.max_steps", "0"]) == 0
    return folder / "run"


def sample(run: Path, out: Path, *flags: str) -> list[str]:
    command = ["sample", str(run), "--num", "20", "--seed", "3", "--out", str(out), *flags]
    assert main(command) == 0
    return [line.split()[1] for line in out.read_text().splitlines()]


def test_a_stop_symbol_ends_sequences(run: Path, tmp_path: Path, capsys) -> None:
    """The sequences without it, cut after the symbol, which may be the first letter."""
    whole = sample(run, tmp_path / "a.ring", "--length", "30")
    stopped = sample(run, tmp_path / "b.ring", "--length", "30", "--stop", "w")
    ends = [sequence.find("w", 1) + 1 or 30 for sequence in whole]
    assert stopped == [sequence[:end] for sequence, end in zip(whole, ends, strict=True)]
    assert len(set(ends)) > 5 and any(sequence[0] == "w" for sequence in whole)
    printed = capsys.readouterr().out.splitlines()
    said = re.escape(f"{tmp_path / 'b.ring'}: 20 x {min(ends)} to {max(ends)} tokens, ")
    assert re.fullmatch(rf"{said}[\d,.]+/s", printed[-1])
    by_number = sample(run, tmp_path / "c.ring", "--length", "30", "--stop-id", "2")
    assert by_number == stopped
    alone = sample(run, tmp_path / "d.ring", "--length=30", "--stop=w", "--batch_size=1")
    assert alone == stopped


def test_monotonous_sequences_end(run: Path, tmp_path: Path) -> None:
    flags = ["--length=30", "--min-entropy=1.2", "--entropy-window=8", "--inner.temperature=0.8"]
    drawn = sample(run, tmp_path / "a.ring", *flags)
    assert {len(sequence) for sequence in drawn} <= {8, 12, 16, 20, 24, 28, 30}
    assert len({len(sequence) for sequence in drawn}) > 2


def test_a_trace_of_sequences_that_stop_ends_with_them(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    flags = ["--length", "12", "--stop", "w", "--trace", str(path)]
    drawn = sample(run, tmp_path / "a.ring", *flags)
    trace = read_trace(path)
    for row, sequence in enumerate(drawn):
        last = RingTokenizer().decode(trace.states(row)[-1])
        assert last == sequence + "-" * (12 - len(sequence))


def test_prompts_of_any_length_are_kept(run: Path, tmp_path: Path) -> None:
    templates = tmp_path / "t.ring"
    templates.write_text("a uvwxyzu---------\nb w----------------\nc ---uu-------w\n")
    command = ["sample", str(run), "--infill", str(templates), "--num", "2", "--seed", "1"]
    out = tmp_path / "a.ring"
    assert main([*command, "--out", str(out), "--stop", "w"]) == 0
    drawn = [line.split()[1] for line in out.read_text().splitlines()]
    assert all(s.startswith("uvwxyzu") and len(s) > 7 for s in drawn[:2])
    assert all(s[0] == "w" and len(s) > 1 for s in drawn[2:4])
    assert all(s[3:5] == "uu" and s[12:] == "w" for s in drawn[4:])


def test_a_window_slides_over_rows_longer_than_those_of_training(run: Path, tmp_path, capsys):
    """No warning, unless it is told to look back further than the run has been trained for."""
    out = tmp_path / "a.ring"
    assert {len(s) for s in sample(run, out, "--length", "100")} == {100}
    command = ["sample", str(run), "--num=1", "--seed=1", f"--out={tmp_path / 'b.ring'}"]
    command += ["--length=100", "--window=24"]
    assert main(command) == 2
    said = capsys.readouterr().err
    assert "must be at most 12 tokens, the context that" in said
    assert said.endswith(
        "got 100; shorten it, add --extrapolate, or condition it on fewer tokens: --window 12\n"
    )
    assert not (tmp_path / "b.ring").exists()
    assert main([*command, "--extrapolate"]) == 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--stop", "uv"], "sample.stop must be a single symbol of the run's RingTokenizer, got "),
        (["--stop", ""], "got '', which is 0 symbols; choose one"),
        (["--stop", "-"], "sample.stop must be a single symbol"),
        (["--stop", "u", "--stop-id", "2"], "must be left out with --stop-id, got 'u' and 2; "),
        (["--stop-id", "6"], "BlockSampler.stop_id must be in 0..5, got 6; the tokenizer's"),
        (["--min-entropy", "4"], "BlockSampler.min_entropy must be below 1.792 nats, all that 256"),
        (["--window", "7"], "BlockSampler.window must hold two blocks of 4 tokens, got 7; the"),
        (["--window", "a"], "sample.sampler block: --window must be an integer, got a; its"),
        (["--inner", "left_to_right"], "can fill a block by itself, got LeftToRightSampler; "),
        (["--sampler", "ancestral", "--stop", "u"], "sampler must work with the process b"),
        (["--rc_consistent"], "sample.rc_consistent must be left out for sequences with one"),
        (["--label", "rich"], "sample.label must be left out for a run without labels"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused(run: Path, tmp_path, flags, message, capsys) -> None:
    out = tmp_path / "a.ring"
    command = ["sample", str(run), "--num=1", "--length=8", "--seed=1", f"--out={out}", *flags]
    assert main(command) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1
    assert not out.exists()


def test_the_block_sampler_is_for_block_runs(trained: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "a.ring"
    command = ["sample", str(trained), "--num=1", "--length=8", "--seed=1", f"--out={out}"]
    assert main([*command, "--sampler", "block"]) == 2
    assert "sampler must work with the process absorbing" in capsys.readouterr().err
    assert main([*command, "--sampler", "ancestral", "--stop", "u"]) == 2
    assert "must be left out for sampler AncestralSampler" in capsys.readouterr().err
    assert main([*command, "--stop", "u"]) == 2
    assert "it is for runs of block diffusion" in capsys.readouterr().err
    assert not out.exists()


def test_samplers_lists_it(capsys) -> None:
    assert main(["samplers"]) == 0
    assert "\nblock " in capsys.readouterr().out
    assert main(["samplers", "block"]) == 0
    said = capsys.readouterr().out
    for option in ("--inner", "--window", "--stop-id", "--min-entropy", "--entropy-window"):
        assert f"  {option}  " in said
    assert "default: first_hitting" in said


class Special(RingTokenizer):
    """Has a symbol whose name does not encode to itself."""

    def encode(self, string):
        return super().encode(string.replace("<", "u").replace(">", "u"))

    def decode(self, ids):
        return super().decode(ids).replace("z", "<x>")


def test_a_symbol_is_what_decodes_to_it() -> None:
    assert find_symbol("<x>", Special()) == 5
    assert find_symbol("v", Special()) == 1


def test_the_bar_looks_at_all_tokens_now_and_then(run: Path, monkeypatch) -> None:
    """Every tenth of a second rather than after each of 48 steps; the test stops the clock."""
    updates: list[float] = []
    bar = SimpleNamespace(
        add_task=lambda *_, **__: 0,
        update=lambda _, completed, **text: updates.append(completed),
    )
    monkeypatch.setattr(engine, "progress", lambda: contextlib.nullcontext(bar))
    monkeypatch.setattr(drawing, "time", SimpleNamespace(monotonic=lambda: 5.0))
    trained = load(run)
    blanks = Blanks(2, 24, trained.process.unknown_id)
    for sampler in (BlockSampler(), BlockSampler(FirstHittingSampler(1))):
        updates.clear()
        list(drawing.draw(trained, sampler, blanks, seed=1, batch_size=2))
        assert len(updates) == 2 and updates[-1] == 2


# Labels


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A block run on two classes of DNA with different fractions of G and C."""
    folder = tmp_path_factory.mktemp("classes")
    data = [*labelled.write_data(folder), "--data.labels=[rich, poor]"]
    small = [flag for flag in labelled.SMALL if not flag.startswith("--backbone")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SEQDIFF_CACHE", str(folder / "cache"))
        net = {**MAMBA, "init_args": MAMBA["init_args"] | {"backend": "auto"}}
        content = {"base": str(labelled.CONFIG), "backbone": net, **BLOCKS}
        path = folder / "classes.yaml"
        path.write_text(yaml.safe_dump(content))
        command = ["train", str(path), f"--output={folder / 'run'}", *small, *data]
        assert main([*command, "--trainer.max_steps=150"]) == 0
    return folder / "run"


def share(run: Path, out: Path, *flags: str) -> float:
    """The fraction of G and C in 40 sequences of 50."""
    command = ["sample", str(run), "--num=40", "--length=50", "--seed=1", f"--out={out}", *flags]
    assert main(command) == 0
    letters = "".join(line for line in out.read_text().splitlines() if not line.startswith(">"))
    assert len(letters) == 2000
    return sum(letter in "GC" for letter in letters) / len(letters)


@pytest.fixture
def fasta_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    from genomics.io import fasta
    from seqdiff.cli import extensions

    found = {"seqdiff.writers": [Entry("fa", fasta.write_samples)]}
    monkeypatch.setattr(extensions, "entry_points", lambda group: found[group])


@pytest.mark.slow
def test_labels_steer_blocks(classes: Path, tmp_path: Path, fasta_writer: None, capsys) -> None:
    """The true fractions are 0.2 and 0.8; the standard error in 2,000 letters is 0.01."""
    out = tmp_path / "a.fa"
    rich, poor = (share(classes, out, f"--label={label}") for label in ("rich", "poor"))
    assert poor < 0.35 < 0.65 < rich
    assert share(classes, out, "--label=rich", "--guidance=10") > rich + 0.02, "not gamma 1"
    capsys.readouterr()
    command = ["sample", str(classes), "--num=1", "--length=8", "--seed=1", f"--out={out}"]
    assert main([*command, "--rc_consistent"]) == 2
    assert "must be left out for a run of block diffusion, which reads" in capsys.readouterr().err

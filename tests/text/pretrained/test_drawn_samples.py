"""``seqdiff generative-perplexity RUN`` gives the numbers of the samples that ``sample`` writes."""

from collections.abc import Callable
from pathlib import Path

import pytest

from seqdiff.cli import extensions
from seqdiff.cli.app import main
from tests.integration.conftest import Entry, override
from text.corpora import samples as writers

CONFIGS = Path(__file__).parents[3] / "configs"
SMALL = ["--backbone.d_model=16", "--backbone.n_layer=1", "--data.length=24"]


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {
        "seqdiff.writers": [Entry("txt", writers.write_txt), Entry("jsonl", writers.write_jsonl)],
    }
    monkeypatch.setattr(extensions, "entry_points", lambda group: found[group])
    monkeypatch.setenv("COLUMNS", "200")


def build(folder: Path, *flags: str) -> Path:
    """A network with initial weights: every byte is equally likely."""
    config = str(CONFIGS / "experiment" / "text" / "bytes.yaml")
    command = ["train", config, f"--output={folder}", "--data.train=x.txt", *SMALL]
    assert main([*command, "--trainer.max_steps=0", *flags]) == 0
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("drawn") / "run")


def numbers(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines of the table that contain numbers."""
    capsys.readouterr()
    assert main(["generative-perplexity", *arguments]) == 0
    return [line for line in capsys.readouterr().out.splitlines() if line.startswith("│")]


@pytest.mark.parametrize("suffix", ["txt", "jsonl"])
def test_a_run_and_a_file_of_its_samples_give_the_same(
    run: Path, gpt2_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], suffix: str
) -> None:
    drawn = ["--length", "10", "--seed", "3", "--sampler", "ancestral", "--num-steps", "4"]
    samples, model = tmp_path / f"s.{suffix}", ["--model", str(gpt2_folder)]
    assert main(["sample", str(run), "--num", "5", "--out", str(samples), *drawn]) == 0
    from_file = numbers([str(samples), *model], capsys)
    asked = [str(run), "--num-samples", "5", *drawn, *model, "--batch_size", "2"]
    assert numbers(asked, capsys) == from_file and len(from_file) == 4
    for other in (["--seed", "4"], ["--length", "11"], ["--num-samples", "4"], ["--top-k", "2"]):
        assert numbers(override(asked, *other), capsys) != from_file, other


def test_the_defaults_are_said(run: Path, gpt2_folder: Path, capsys) -> None:
    assert main(["generative-perplexity", str(run), "--model", str(gpt2_folder)]) == 0
    printed = "".join(capsys.readouterr().out.split())
    title = f"{run}, 24 bytes by first_hitting, seed 0, under {gpt2_folder}: 64 samples"
    assert title.replace(" ", "") in printed


def test_an_autoregressive_run_draws_from_left_to_right(
    tmp_path: Path, gpt2_folder, capsys
) -> None:
    net = f"--backbone={CONFIGS / 'backbone' / 'autoregressive_tiny.yaml'}"
    run = build(tmp_path / "run", net, "--preset=ar")
    assert main(["generative-perplexity", str(run), "--model", str(gpt2_folder)]) == 0
    assert "24 bytes by left_to_right, seed 0," in " ".join(capsys.readouterr().out.split())


def test_what_cannot_be_drawn_is_one_line_before_the_model_is_sought(
    run: Path, trained: Path, tmp_path: Path, fails: Callable[[list[str]], str]
) -> None:
    (tmp_path / "a.txt").write_text("a dog\n")
    for arguments, said in (
        ([run, "--num_samples", "0"], "generative-perplexity.num_samples must be at least 1"),
        ([run, "--length", "0"], "generative-perplexity.length must be at least 1, got 0"),
        ([run, "--seed", "-1"], "generative-perplexity.seed must be in [0, 2^32), got -1"),
        ([run, "--length", "25"], "length must be at most 24 bytes, the context that"),
        ([run, "--sampler", "best"], "sample.sampler must be one of ancestral, "),
        (
            [run, "--colour", "red"],
            "unrecognized arguments: --colour=red; its options are --num-steps",
        ),
        ([trained], "samples must be a run on text, got"),
        ([tmp_path], "a run directory must hold run.yaml, got none in"),
        ([tmp_path / "a.txt", "--length", "3"], "--length requires a run directory, got the file"),
        (
            [tmp_path / "a.txt", "--temperature", "3"],
            "unrecognized arguments: --temperature=3; sampler options require a run directory",
        ),
    ):
        command = ["generative-perplexity", *map(str, arguments), "--model", "./nowhere"]
        assert said in fails(command), arguments

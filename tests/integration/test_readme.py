"""What the README shows is run, so that it cannot rot."""

import re
import shlex
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from Bio import bgzf

from genomics.io.fasta import write_fasta
from genomics.sequence.alphabet import MASK_ID
from seqdiff.backbones import Caduceus, Transformer
from seqdiff.cli.app import main, parse
from seqdiff.run.config import instantiate, parse_run
from seqdiff.run.sampler_config import build_sampler

ROOT = Path(__file__).parents[2]
TEXT = ROOT / "configs" / "experiment" / "text" / "bytes.yaml"
README = (ROOT / "README.md").read_text()
FASTA = ROOT / "configs" / "experiment" / "genomics" / "fasta.yaml"
BLOCKS = ROOT / "configs" / "experiment" / "text" / "wap_block4.yaml"
SECTIONS = {"Your own text": TEXT, "Block diffusion": BLOCKS}
PROSE = re.sub(r"```.*?```", "", README, flags=re.DOTALL)
INLINE = re.findall(r"`([^`]+)`", PROSE)
CHOICES = [shlex.split(code) for code in INLINE if code.startswith("--data.test_")]


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)


def commands(text: str = README) -> list[list[str]]:
    """Every command of a shell block, and every inline one of ours that is whole."""
    lines = [line for block in blocks("sh", text) for line in block.splitlines()]
    lines += [code for code in INLINE if code.startswith(("seqdiff ", "make ", "pip "))]
    return [words for words in (shlex.split(line, comments=True) for line in lines) if words]


def check(words: list[str]) -> None:
    """Read a command as its program would, without doing it."""
    words = words[words[0] == "PYTHONPATH=." :]
    program, *arguments = words
    if program == "seqdiff":
        args = parse(arguments)
        if getattr(args, "config", None) is not None:
            parse_run(args.config, args.flags)
        if hasattr(args, "sampler"):
            default = "block" if "runs/blocks" in arguments else "first_hitting"
            build_sampler(args.sampler or default, args.flags)
    elif program == "make":
        targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert set(arguments) <= set(targets), words
    elif program == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        named = re.findall(r"\[(\w+)\]", arguments[-1])
        assert arguments[:2] == ["install", "-e"], words
        assert set(named) <= set(extras["optional-dependencies"]), words
    else:
        assert words == [".", ".venv/bin/activate"], f"unknown command {words}"


@pytest.mark.parametrize("words", commands(), ids=shlex.join)
def test_commands_are_valid(
    words: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(ROOT)
    if words[0] == "PYTHONPATH=.":
        (function,) = re.findall(r"^def gc_content.*?\n\n", README, re.DOTALL | re.MULTILINE)
        (tmp_path / "rewards.py").write_text(function)
        monkeypatch.syspath_prepend(tmp_path)
    check(words)


@pytest.mark.parametrize(
    "broken",
    [
        "seqdiff train configs/experiment/genomics/fasta.yaml --data.fast genome.fa",
        "seqdiff train configs/no.yaml --output runs/mine",
        "seqdiff sample runs/mine --num 100 --size 1024 --out samples.fa --seed 1",
        "seqdiff fly",
        "PYTHONPATH=. seqdiff sample a --num 1 --length 9 --out a.fa --seed 1 --sampler smc "
        "--reward nowhere.gc_content",
        "seqdiff sample runs/mine --num 1 --length 9 --out a.fa --seed 1 --sampler fly",
        "seqdiff sample runs/mine --num 1 --length 9 --out a.fa --seed 1 --fly 3",
        "make coffee",
        "pip install -e .[tpu]",
    ],
)
def test_a_rotten_command_would_be_found(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broken twins of the commands above."""
    monkeypatch.chdir(ROOT)
    with pytest.raises((AssertionError, OSError, ValueError)):
        check(shlex.split(broken))


def test_keys_in_prose_exist() -> None:
    shown = [
        (SECTIONS.get(section.partition("\n")[0], FASTA), shlex.split(code))
        for section in re.split(r"^## ", PROSE, flags=re.MULTILINE)
        for code in re.findall(r"`(--[^`]+)`", section)
    ]
    assert len(shown) >= 2 and len(CHOICES) == 2
    assert {config for config, _ in shown} == {FASTA, TEXT, BLOCKS}
    for config, flags in shown:
        parse_run(config, flags)


@pytest.mark.parametrize("flags", CHOICES, ids=shlex.join)
def test_what_is_held_out_by_choice_leaves_data_to_train_and_to_validate_on(
    flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shipped configuration validates, so the other held-out split must not go missing."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SEQDIFF_CACHE", str(tmp_path / "cache"))
    letters = np.array(list("ACGT"))[np.random.default_rng(0).integers(0, 4, 300_000)]
    records = ["".join(part) for part in np.split(letters, 3)]
    write_fasta("genome.fa", ["chr1", "chr20"], records[:2])
    write_fasta("other.fa", ["chrX"], records[2:])
    data = instantiate(parse_run(FASTA, flags)).data
    assert len(data.dataset("test")) == 98, "100,000 bases, the last window shifted inside"
    rest = 100_000 if "chr20" in flags[-1] else 200_000
    assert abs(len(data.dataset("valid")) * 1024 / rest - 0.05) < 0.02
    assert len(data.dataset("train")) > 300


def test_named_files_exist() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    named = [code for code in INLINE if code.startswith(("configs/", "tests/"))]
    assert links and named
    for path in (*links, *named):
        assert (ROOT / path).exists(), path


@pytest.fixture
def shown_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what the Python blocks open: a run, a published network and DNA, all tiny."""
    config = tmp_path / "demo.yaml"
    shipped = ROOT / "configs" / "experiment" / "genomics" / "demo.yaml"
    small = {
        "base": str(shipped),
        "data": {"init_args": {"length": 16, "num_train": 32}},
        "trainer": {"max_steps": 1, "enable_progress_bar": False},
    }
    config.write_text(yaml.safe_dump(small))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SEQDIFF_CACHE", str(tmp_path / "cache"))
    assert main(["train", str(config)]) == 0
    hub, words = re.findall(r'from_hub\("([^"]+)"\)', README)
    complement = (0, 1, 2, 3, 4, 5, 6, 10, 9, 8, 7, 11, 12, 13, 14, 15)
    sizes = {"num_embeddings": 16, "num_logits": 16, "complement": complement}
    (tmp_path / hub).mkdir()
    Caduceus(8, 1, variant="ps", d_state=4, **sizes).to_hub(tmp_path / hub)
    Transformer(8, 1, 2, num_embeddings=50258, num_logits=50257).to_hub(tmp_path / words)
    with bgzf.open(tmp_path / "genome.fa.gz", "wb") as stream:
        stream.write(b">chr1\nACGTTN\n")
    (tmp_path / "promoters.bed").write_text("chr1\t1\t4\tx\t0\t+\nchr1\t1\t4\tx\t0\t-\n")
    return tmp_path


def test_python_blocks_run(shown_folders: Path, capsys) -> None:
    first, likelihoods, tilted, second, cached, third = map(_run, blocks("python"))
    vocab_size, *drawn = capsys.readouterr().out.splitlines()[:2]
    drawn = drawn[0].split()
    assert int(vocab_size) == MASK_ID == 4
    sequence, nfe = drawn[0], int(drawn[1].strip("tensor([])"))
    assert re.fullmatch("ACGT[ACGT]{8}ACGT", sequence) and 1 <= nfe <= 8
    assert first["drawn"].nfe.tolist() == [nfe]
    found = likelihoods["found"]
    assert found.num_tokens == 14 and found.nfe <= 4096
    assert found.standard_error <= 0.05, "what is shown reaches its target"
    assert tilted["gc_content"](tilted["drawn"].tokens).mean() > 0.55, "0.5 without a reward"
    assert second["logits"].shape == torch.Size([1, 5, 16])
    assert second["word_logits"].shape == torch.Size([1, 3, 50258])
    assert "[1, 5, 16]" in README and "[1, 3, 50258]" in README
    assert cached["logits"].shape == torch.Size([2, 32, 4]) and cached["cache"].length == 12
    assert third["sequences"] == ["CGT", "ACG"]


def _run(block: str) -> dict:
    """Each block on its own, as it would be pasted."""
    names: dict = {}
    exec(compile(block, "README.md", "exec"), names)
    return names


def test_hooks_are_what_ci_runs() -> None:
    """Nothing is found by CI that a hook could not have said before, and the other way round."""
    (local,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    hooks = {hook["entry"] for hook in local["hooks"]}
    ci = (ROOT / ".ci" / "run").read_text().splitlines()
    assert hooks == {line for line in ci if line.startswith("make ")}

"""A run directory from somebody else: no command imports what it names, or reads without end."""

import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from seqdiff.cli.app import main
from seqdiff.run.config_files import check_yaml, read_yaml
from tests.faults import torture

RUN = {
    "output": "runs/evil",
    "data": {
        "class_path": "genomics.data.TableDataModule",
        "init_args": {"table": "rows.tsv", "signals": ["value"]},
    },
    "backbone": {"class_path": "seqdiff.backbones.BlockMamba"},
}
EVIL = {"class_path": "evil.Thing"}
PLACES = {
    "backbone": {"backbone": EVIL},
    "backbone as a string": {"backbone": "evil.Thing"},
    "data": {"data": EVIL},
    "process": {"process": EVIL},
    "schedule": {
        "process": {
            "class_path": "seqdiff.process.Absorbing",
            "init_args": {"schedule": "evil.Thing"},
        }
    },
    "schedule of an older version": {"schedule": EVIL},
    "parameterization": {"parameterization": "evil.Thing"},
    "objective": {"objective": EVIL},
    "time sampler": {
        "objective": {
            "class_path": "seqdiff.objectives.ContinuousNELBO",
            "init_args": {"time_sampler": EVIL},
        }
    },
    "an argument that is no class": {"output": EVIL},
    "trainer": {"trainer": EVIL},
    "provenance": {"provenance": EVIL},
}
COMMANDS = {
    "sample": ["sample", "RUN"],
    "evaluate": ["evaluate", "RUN"],
    "score": ["score", "RUN", "rows.fa"],
    "resume": ["train", "--resume", "RUN"],
    "train": ["train", "RUN/run.yaml", "--output", "new"],
    "start_from": ["train", "RUN/run.yaml", "--start_from", "RUN", "--output", "new"],
    "report": ["report", "RUN", "--reference", "rows.fa", "--out", "report.html"],
    "embed": ["embed", "RUN", "--fasta", "rows.fa", "--out", "out.npz"],
    "finetune": ["finetune", "RUN", "--data", "labelled.tsv", "--out", "new"],
    "design": ["design", "RUN", "--num", "2", "--out", "new"],
    "keys": ["train", "RUN/run.yaml", "--keys"],
}


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on Python's path with a module that leaves a mark when it is imported."""
    (tmp_path / "evil.py").write_text(
        f"import pathlib\npathlib.Path({str(tmp_path / 'mark')!r}).touch()\nclass Thing: pass\n"
    )
    (tmp_path / "rows.fa").write_text(">a\nACGT\n")
    (tmp_path / "rows.tsv").write_text("sequence\tvalue\nACGT\t1\nACGA\t2\n")
    bases = np.random.default_rng(0).integers(0, 4, (400, 12))
    rows = [
        "".join("ACGT"[i] for i in row) + f"\t{number % 2}\n" for number, row in enumerate(bases)
    ]
    labelled = "".join(rows)
    (tmp_path / "labelled.tsv").write_text("sequence\tlabel\n" + labelled)
    (tmp_path / "RUN").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def write(folder: Path, keys: dict[str, object]) -> None:
    (folder / "RUN" / "run.yaml").write_text(yaml.safe_dump(RUN | keys))


@pytest.mark.parametrize("place", PLACES)
def test_no_class_of_an_untrusted_module_is_imported(hostile: Path, place: str, capsys) -> None:
    """Wherever the configuration names it."""
    write(hostile, PLACES[place])
    assert main(["sample", "RUN"]) == 2
    assert not (hostile / "mark").exists()
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_imports_it(hostile: Path, command: str, capsys) -> None:
    """The error says how to trust the module, and nothing is written."""
    write(hostile, PLACES["schedule"])
    before = sorted(hostile.rglob("*"))
    assert main(COMMANDS[command]) == 2
    assert sorted(hostile.rglob("*")) == before
    error = capsys.readouterr().err
    assert "process.schedule must be a class of genomics, " in error
    assert "got evil.Thing; if you trust the code of evil, add --trust-code evil " in error


@pytest.mark.parametrize(
    "path",
    [
        "antigravity.geohash",
        "os.system",
        "seqdiff.files.os.system",
        "seqdiff.run.trust.trust_code",
        "seqdiff.cli.__main__.main",
        "jsonargparse.set_parsing_settings",
        "builtins.exec",
    ],
)
def test_no_function_is_called(hostile: Path, path: str) -> None:
    """Nor is a module of the standard library imported, or one reached through ours."""
    for value in (path, {"class_path": path, "init_args": {"command": "touch mark"}}):
        write(hostile, {"backbone": value})
        assert main(["sample", "RUN"]) == 2
    assert not (hostile / "mark").exists()
    assert "antigravity" not in sys.modules


def test_trusted_code_is_imported(hostile: Path) -> None:
    """The broken twin of the tests above: with --trust-code, the module leaves its mark."""
    write(hostile, PLACES["schedule"])
    assert torture.run("sample RUN", hostile).code == 2
    assert not (hostile / "mark").exists()
    assert torture.run("sample RUN --trust-code evil", hostile).code == 2, "it is no schedule"
    assert (hostile / "mark").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--trust-code"], "--trust-code must be followed by a module, got none"),
        (["--trust-code=nowhere"], "trust_code.modules must exist, got nowhere; install it"),
        (["--trust-code", "a-b"], "trust_code.modules must be names of modules, got 'a-b'"),
    ],
)
def test_modules_that_cannot_be_trusted(words: list[str], said: str, capsys) -> None:
    assert main(["sample", "RUN", *words]) == 2
    assert said in capsys.readouterr().err


BOMB = "a0: &a0 [1, 1]\n" + "".join(
    f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]\n" for level in range(1, 12)
)
LARGE = {
    "aliases": (BOMB, "more than 100,000 values"),
    "brackets": ("a: " + "[" * 5000, "levels of nesting"),
    "keys": ("".join(" " * level + "a:\n" for level in range(1000)), "levels of nesting"),
    "values": ("a: [" + "1," * 100_001 + "]", "more than 100,000 values"),
    "characters": ("a: " + "b" * 1_000_001, "more than 1,000,000 characters"),
    "circle": ("a: &a [*a]\n", "an alias *a of no earlier value"),
}


@pytest.mark.parametrize("name", LARGE)
def test_large_configurations_are_refused(tmp_path: Path, name: str, capsys) -> None:
    """In one line; the expanded aliases would not fit into any memory."""
    text, said = LARGE[name]
    (tmp_path / "run.yaml").write_text(text)
    assert main(["sample", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_anchors_are_read(tmp_path: Path) -> None:
    """Ordinary aliases and merge keys work, and are counted as often as they are used."""
    text = "base: &base {a: 1, b: [2, 3]}\nmore: {<<: *base, c: 4}\nagain: *base\n"
    (tmp_path / "some.yaml").write_text(text)
    assert read_yaml(tmp_path / "some.yaml")["more"] == {"a": 1, "b": [2, 3], "c": 4}
    row = f"a: &a [{', '.join('1' * 999)}]\n"
    check_yaml(row + f"b: [{', '.join(['*a'] * 98)}]\n")
    with pytest.raises(yaml.YAMLError, match="more than 100,000 values"):
        check_yaml(row + f"b: [{', '.join(['*a'] * 99)}]\n")

"""Several domains may register one name; a run uses what its own package registers."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import ClassVar

import pytest
import yaml

from seqdiff.cli import app
from seqdiff.cli.app import main, parse
from seqdiff.cli.extensions import Command, find_template_reader, find_writer
from seqdiff.data import choose_reader
from seqdiff.run import run_packages
from tests.integration import toy_domain
from tests.integration.conftest import Entry, install


@dataclass(frozen=True, kw_only=True)
class OtherReader(toy_domain.RingReader):
    """A reader of the same files in another package.

    Attributes:
        circle: File of 'name sequence' lines.
    """

    circle: Path | None = None
    suffixes: ClassVar = ("ring", "circle")


OtherReader.__module__ = "another.files"


def shout(run: Path, /, *, loud: bool = False) -> None:
    """Name the run.

    Args:
        run: Run directory.
        loud: In capitals.
    """
    print(str(run).upper() if loud else run)


def _other(*_: object) -> list[tuple[str, str]]:
    raise AssertionError("the other domain's")


@pytest.fixture
def two_domains(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two packages that write, read and score files of the same suffix; ours is the toy domain."""
    ours = "tests.integration.toy_domain:it"
    install(
        monkeypatch,
        {
            "seqdiff.writers": [
                Entry("ring", toy_domain.write_ring, ours),
                Entry("ring", _other, "another.files:it"),
                Entry("circle", _other, "another.files:it"),
            ],
            "seqdiff.templates": [
                Entry("ring", _other, "another.files:it"),
                Entry("ring", toy_domain.read_rings, ours),
            ],
            "seqdiff.readers": [
                Entry("circle", OtherReader, "another.files:it"),
                Entry("ring", toy_domain.RingReader, ours),
            ],
        },
    )


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """What a run of another package looks like from outside."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    tokenizer = {"class_path": "another.Tokenizer", "init_args": {}}
    data = {"class_path": "seqdiff.data.Any", "init_args": {"tokenizer": tokenizer}}
    (folder / "run.yaml").write_text(yaml.safe_dump({"data": data, "backbone": data}))
    return folder


def test_a_run_belongs_to_the_package_of_its_data(
    trained: Path, elsewhere: Path, tmp_path: Path
) -> None:
    assert run_packages(trained) == {"tests"}
    assert run_packages(elsewhere) == {"another"}, "the tokenizer's"
    assert run_packages("ecoli-promoters") == {"genomics"}
    for nothing in (tmp_path, Path("no such run")):
        with pytest.raises(FileNotFoundError, match="a run directory must hold"):
            run_packages(nothing)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mdlm"}))
    assert run_packages(tmp_path) == {"text"}, "a published network"


def test_files_of_a_suffix_are_those_of_the_runs_domain(
    trained: Path, elsewhere: Path, two_domains: None, rings: Path, fails: Callable
) -> None:
    for path in (Path("a.ring"), Path("a.gz.ring")):
        assert find_writer(path, trained) is toy_domain.write_ring
        assert find_writer(path, elsewhere) is _other
        assert find_template_reader(path, trained) is toy_domain.read_rings
        assert find_template_reader(path, elsewhere) is _other
    assert find_writer(Path("a.circle"), trained) is _other, "there is no other"
    for name, package in (("ring", "tests"), ("circle", "another")):
        assert choose_reader([rings], partial(set, [package])) == (name, [rings])
    command = ["sample", "ecoli-promoters", "--length", "9", "--seed", "0", "--num", "1"]
    for option in ("--out", "--infill"):
        words = command if option == "--out" else [*command[:2], "--seed", "0"]
        assert fails([*words, option, str(rings)]) == (
            f"seqdiff: error: sample.{option[2:]} {rings} must be a file for the domain of "
            "ecoli-promoters, got a suffix of another and tests; choose another suffix"
        )
    assert "which several domains read; name it by --circle or --ring" in fails(
        ["score", "ecoli-promoters", str(rings)]
    )


def test_commands_use_what_the_runs_domain_registers(
    trained: Path, two_domains: None, rings: Path, tmp_path: Path, capsys
) -> None:
    out = tmp_path / "out.ring"
    assert main(["sample", str(trained), "--num", "2", "--seed", "0", "--out", str(out)]) == 0
    assert [name for name, _ in toy_domain.read_rings(out)] == ["sample_0", "sample_1"]
    filled = ["sample", str(trained), "--infill", str(rings), "--seed", "0"]
    assert main([*filled, "--out", str(out)]) == 0
    assert toy_domain.read_rings(out)[0] == ("one_0", "uvwxyzuv")
    capsys.readouterr()
    assert main(["score", str(trained), str(rings), "--estimator", "fixed-order"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[:2] == ["one", "8"]


def test_a_command_of_several_domains_is_that_of_the_run(
    trained: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys, fails: Callable
) -> None:
    ours = Command("shout", f"{__name__}:shout", "Rings", "name it: seqdiff shout a")
    theirs = Command("shout", "shutil:rmtree", "Files", "name it: seqdiff shout b")
    found = {"seqdiff.commands": [Entry("a", [theirs]), Entry("b", [ours])]}
    monkeypatch.setattr(app, "entry_points", lambda group: found[group])
    assert parse(["shout", str(trained)])[0].__name__ == "shout"
    for words in ([str(elsewhere)], ["no such run"]):
        assert parse(["shout", *words])[0].__name__ == "rmtree", "the first, which explains it"
    assert main(["shout", "--loud", str(trained)]) == 0
    assert capsys.readouterr().out == f"{trained}\n".upper()
    assert main(["shout", str(trained), "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "Name the run." in shown and "a shout for each of Files, Rings" in shown
    assert main(["--help"]) == 0
    assert "name it: seqdiff shout b; also for Rings" in " ".join(capsys.readouterr().out.split())
    found["seqdiff.commands"].append(Entry("c", [ours]))
    assert "must not repeat a name, got shout" in fails(["shout", str(trained)])


def test_the_page_on_domains_lists_what_the_code_reads() -> None:
    root = Path(__file__).parents[2]
    code = "".join(path.read_text() for path in (root / "seqdiff").rglob("*.py"))
    page = (root / "docs" / "how-to" / "domain.md").read_text()
    listed = re.findall(r"^\| `(seqdiff\.\w+)` \|", page, re.MULTILINE)
    assert set(listed) == set(re.findall(r'group="(seqdiff\.\w+)"', code))
    named = re.findall(r"`(seqdiff\.[\w.]+)\.([A-Z]\w+)`", page)
    assert len(named) > 8
    for module, name in named:
        assert hasattr(import_module(module), name), f"{module}.{name}"

"""A small run of the toy domain, shared by tests that only read it."""

import re
import runpy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml

from seqdiff.cli import extensions, score
from seqdiff.cli.app import main
from seqdiff.cli.options import extend
from seqdiff.data import reader
from seqdiff.samplers import named_samplers

TOY = "tests.integration.toy_domain"
BASE = {
    "trainer": {"accelerator": "cpu", "enable_progress_bar": False, "log_every_n_steps": 1},
    "ema_decay": 0.9,
}
EXPERIMENT = {
    "base": "../base.yaml",
    "seed": 7,
    "data": {"class_path": f"{TOY}.ToyData", "init_args": {"length": 12, "batch_size": 8}},
    "backbone": "net.yaml",
    "optim": {"lr": 0.02, "warmup_steps": 2},
    "trainer": {"max_steps": 6},
}


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Networks this small are slower with a second thread."""
    torch.set_num_threads(1)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """An experiment file with a base and a sub-configuration, in the layout of the
    shipped configs.
    """
    return write_config(tmp_path)


def write_config(folder: Path) -> Path:
    experiments = folder / "configs" / "experiment"
    experiments.mkdir(parents=True)
    (experiments.parent / "base.yaml").write_text(yaml.safe_dump(BASE))
    net = {"class_path": f"{TOY}.ToyNet", "init_args": {"width": 8}}
    (experiments / "net.yaml").write_text(yaml.safe_dump(net))
    path = experiments / "toy.yaml"
    path.write_text(yaml.safe_dump({**EXPERIMENT, "output": str(folder / "run")}))
    return path


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run; tests only read it."""
    folder = tmp_path_factory.mktemp("trained")
    path = write_config(folder)
    assert main(["train", str(path), "--trainer.max_steps", "60"]) == 0
    return folder / "run"


@pytest.fixture
def fails(capsys: pytest.CaptureFixture[str]) -> Callable[[list[str]], str]:
    """Run a command that must fail with one line; return the line."""

    def run(arguments: list[str]) -> str:
        capsys.readouterr()
        assert main(arguments) == 2
        lines = capsys.readouterr().err.splitlines()
        assert all(line.strip() for line in lines), "no blank line"
        errors = [line for line in lines if line.startswith("seqdiff: error: ")]
        assert errors == lines[-1:], "one line, and nothing after it"
        return _FITTING.sub(_without_twins, lines[-1])

    return run


_FITTING = re.compile("(sampler must work with .*; choose from )(.*)")


def _without_twins(found: re.Match[str]) -> str:
    """The names of samplers, without those that other tests of this process have defined."""
    known = named_samplers()
    ours = (n for n in found[2].split(", ") if known[n].__module__.startswith("seqdiff."))
    return found[1] + ", ".join(ours)


def same(left: object, right: object) -> bool:
    """Whether two parts of checkpoints are equal, bit for bit."""
    if isinstance(left, torch.Tensor):
        return isinstance(right, torch.Tensor) and torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right


@pytest.fixture(scope="session")
def proteins_installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the distribution of ``examples/proteins``, for PYTHONPATH of a new process."""
    folder = tmp_path_factory.mktemp("site")
    tutorials = Path(__file__).parents[2] / "docs" / "tutorials"
    runpy.run_path(str(tutorials / "run.py"))["install_proteins"](folder)
    return folder


class Entry:
    """An entry point whose object is already loaded."""

    def __init__(self, name: str, target: object, value: str = "a test") -> None:
        self.name, self.target, self.value = name, target, value

    def load(self) -> object:
        return self.target


@pytest.fixture
def toy_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the toy domain's writer and readers, as its package would."""
    from tests.integration import toy_domain

    install(
        monkeypatch,
        {
            "seqdiff.writers": [Entry("ring", toy_domain.write_ring)],
            "seqdiff.templates": [Entry("ring", toy_domain.read_rings)],
            "seqdiff.readers": [Entry("ring", toy_domain.RingReader)],
        },
    )


def install(monkeypatch: pytest.MonkeyPatch, found: dict[str, list["Entry"]]) -> None:
    """Replace the installed writers, templates and readers, and the options of ``score``."""
    for module in (extensions, reader):
        monkeypatch.setattr(module, "entry_points", lambda group: found.get(group, []))
    for name in ("__signature__", "__annotations__"):  # restored after the test
        monkeypatch.setattr(score.score, name, getattr(score.score, name))
    extend(score.score, reader.find_readers())


def override(command: list[str], *flags: str) -> list[str]:
    """A command in which options replace earlier ones of the same name; each has one value."""
    names = {flag.partition("=")[0] for flag in flags if flag.startswith("--")}
    kept: list[str] = []
    words = list(command)
    while words:
        word = words.pop(0)
        if word.partition("=")[0] not in names:
            kept.append(word)
        elif "=" not in word:
            words.pop(0)
    return [*kept, *flags]


@pytest.fixture
def rings(tmp_path: Path) -> Path:
    """Five sequences of three lengths, one with unknown symbols and one of unknown symbols only."""
    from tests.integration.toy_domain import write_ring

    path = tmp_path / "a.ring"
    sequences = ["uvwxyzuv", "uwyuw", "zz-yyxx-", "--", "uvwxyzvu"]
    write_ring(path, sequences, ["one", "two", "three", "four", "five"])
    return path

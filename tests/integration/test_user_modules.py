"""A user's own ``text.py`` and ``genomics.py`` beside a script that uses seqdiff."""

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from seqdiff.cli.app import main
from seqdiff.siblings import SiblingFinder

ROOT = Path(__file__).parents[2]
SCRIPT = """
import sys
sys.path.insert(1, ROOT)  # as an installed package, after the folder of the script
import seqdiff
print(seqdiff.load(RUN).sample(1, length=16, seed=0))
print(seqdiff.load("ecoli-promoters").tokenizer.decode([0, 1, 2, 3]))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of text, not trained."""
    folder = tmp_path_factory.mktemp("bytes")
    (folder / "corpus.txt").write_text("one\ntwo\n" * 40)
    config = ROOT / "configs" / "experiment" / "text" / "bytes.yaml"
    small = ["--backbone.d_model=8", "--backbone.n_layer=1", "--data.length=16", "--experts=null"]
    where = [f"--data.train={folder / 'corpus.txt'}", f"--output={folder / 'run'}"]
    assert main(["train", str(config), *small, *where, "--trainer.max_steps=0"]) == 0
    return folder / "run"


def test_files_of_the_user_are_neither_run_nor_in_the_way(run: Path, tmp_path: Path) -> None:
    for name in ("text", "genomics"):
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name}.py of the user ran')")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.replace("ROOT", repr(str(ROOT))).replace("RUN", repr(str(run))))
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    command = [sys.executable, str(script)]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "ACGT"


def test_a_module_that_was_imported_before_is_named(
    run: Path, tmp_path: Path, fails, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = ModuleType("text")
    theirs.__file__ = str(tmp_path / "text.py")
    monkeypatch.setitem(sys.modules, "text", theirs)
    line = fails(["sample", str(run)])
    assert f"text must be seqdiff's, got {tmp_path / 'text.py'}; rename that file" in line


def test_the_finder_leaves_other_modules_alone() -> None:
    assert SiblingFinder.find_spec("json") is None
    assert SiblingFinder.find_spec("text.corpora", ["elsewhere"]) is None
    found = SiblingFinder.find_spec("text")
    assert found is not None and found.origin == str(ROOT / "text" / "__init__.py")

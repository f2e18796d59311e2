"""``examples/proteins`` is installed as a user would install it, and passes its own tests."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "proteins"


@pytest.mark.slow
def test_the_example_passes_its_own_tests(proteins_installed: Path, tmp_path: Path) -> None:
    """In a process of its own, since other tests list what is installed."""
    path = os.pathsep.join([str(proteins_installed), str(ROOT)])
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "--basetemp",
            tmp_path / "t",
        ],
        cwd=EXAMPLE,
        env=os.environ | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout

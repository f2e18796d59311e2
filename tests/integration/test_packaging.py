"""The installed package: three import names, typed, importable without side effects."""

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_wheel_holds_exactly_three_packages(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    top_level = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert top_level == {"seqdiff", "genomics", "text"}
    assert {f"{package}/py.typed" for package in top_level} <= set(names)
    model = "genomics/models/ecoli-promoters"
    files = {f"{model}/{file}" for file in ("README.md", "model.safetensors", "run.yaml")}
    assert {name for name in names if name.startswith(f"{model}/")} == files
    (entries,) = (name for name in names if name.endswith("/entry_points.txt"))
    text = zipfile.ZipFile(wheel).read(entries).decode()
    assert "[seqdiff.models]\necoli-promoters = genomics.models:ECOLI_PROMOTERS\n" in text


def test_core_imports_no_domain_no_kernel_and_no_trainer() -> None:
    """A new interpreter imports the core; heavy and unrelated modules must not be imported."""
    code = (
        "import sys, seqdiff, seqdiff.likelihood, seqdiff.samplers, seqdiff.backbones;"
        "bad = {'lightning', 'jsonargparse', 'numba', 'triton', 'genomics', 'text', 'pyfaidx'};"
        "sys.exit(', '.join(bad & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_help_needs_no_torch() -> None:
    code = (
        "import sys\n"
        "from seqdiff.cli.app import main\n"
        "try: main(['--help'])\n"
        "except SystemExit as e: assert not e.code\n"
        "sys.exit('torch was imported' if 'torch' in sys.modules else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "train" in done.stdout and "evaluate" in done.stdout and "sample" in done.stdout

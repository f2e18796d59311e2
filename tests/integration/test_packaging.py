"""The installed package: three import names, typed, importable without side effects."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    return path


def test_wheel_holds_exactly_three_packages_and_the_configurations(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    names = {name for name in archive.namelist() if ".dist-info/" not in name}
    packages = ("seqdiff", "genomics", "text")
    ours = {file for package in packages for file in (ROOT / package).rglob("*") if file.is_file()}
    expected = {str(f.relative_to(ROOT)) for f in ours if "__pycache__" not in f.parts}
    configs = {str(f.relative_to(ROOT)) for f in (ROOT / "configs").rglob("*.yaml")}
    assert names == expected | {f"seqdiff/{name}" for name in configs}
    assert {f"{package}/py.typed" for package in packages} <= names
    model = "genomics/models/ecoli-promoters"
    files = {f"{model}/{file}" for file in ("README.md", "model.safetensors", "run.yaml")}
    assert {name for name in names if name.startswith(f"{model}/")} == files
    (entries,) = (name for name in archive.namelist() if name.endswith("/entry_points.txt"))
    text = archive.read(entries).decode()
    assert "[seqdiff.models]\necoli-promoters = genomics.models:ECOLI_PROMOTERS\n" in text


def test_installed_wheel_runs_and_finds_its_configurations(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    alone = ["--no-deps", "--no-index", "--no-compile", "--target", str(site)]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    subprocess.run([*pip, *alone, str(wheel)], check=True)
    code = (
        "import sys, seqdiff.cli.app as app\n"
        "assert app.__file__.startswith(sys.argv[1]), app.__file__\n"
        "sys.exit(app.main(['train', 'configs/experiment/text/bytes.yaml', '--keys']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(site)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "--data.tokenizer" in done.stdout and "--experts.order" in done.stdout


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

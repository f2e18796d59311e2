"""The notebooks of docs/tutorials contain the outputs of a run, and run."""

import gzip
import json
import re
import runpy
from pathlib import Path

import nbformat
import pytest
from nbclient.exceptions import CellTimeoutError

TUTORIALS = Path(__file__).parents[2] / "docs" / "tutorials"
NOTEBOOKS = sorted(TUTORIALS.glob("*.ipynb"))

# Files that the notebooks train on: the first tenth or fiftieth shows that all cells run. With
# whole files, most of the time goes to counting and to fitting the experts.
_PARTS = {
    "text/wap.train.txt.gz": 10,
    "text/wap.valid.txt.gz": 50,
    "genomes/GCF_000005845.2_ASM584v2_genomic.fna.gz": 10,
    "hg38/chr2_1-2333275.fa.gz": 10,
}

# Numbers of steps of training and sampling, and of characters to evaluate, in the code cells.
_LENGTHS = re.compile(
    r"((?:(?:max|num|warmup)_steps|val_check_interval|lines\.read)[\W]{1,8}?)(\d[\d_]*)\b"
)


def _shorter(found: re.Match[str]) -> str:
    return f"{found[1]}{max(1, int(found[2]) // 5)}"


def _write_shorter_data(data: Path, out: Path) -> None:
    """Link all files of ``data`` in ``out``, but write only the first lines of the long ones."""
    for path in data.glob("*/*"):
        name = path.relative_to(data)
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        if str(name) not in _PARTS:
            (out / name).symlink_to(path)
            continue
        with gzip.open(path, "rt", encoding="utf-8") as file:
            lines = file.readlines()
        with gzip.open(out / name, "wt", encoding="utf-8") as file:
            file.writelines(lines[: len(lines) // _PARTS[str(name)]])


def test_all_are_in_the_navigation() -> None:
    pages = (TUTORIALS.parents[1] / "mkdocs.yml").read_text(), (TUTORIALS / "index.md").read_text()
    assert len(NOTEBOOKS) == 6
    assert all(notebook.name in page for notebook in NOTEBOOKS for page in pages)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_they_hold_the_outputs_of_a_run(notebook: Path) -> None:
    cells = [c for c in json.loads(notebook.read_text())["cells"] if c["cell_type"] == "code"]
    counts = [cell["execution_count"] for cell in cells]
    assert counts == list(range(1, len(cells) + 1)), "run all cells in order"
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert len(outputs) > 3
    assert not [out for out in outputs if out["output_type"] == "error" or "stderr" in out.values()]


def test_a_notebook_is_stopped_when_its_time_is_over(tmp_path: Path) -> None:
    """The limit is one for all cells; the second cell would take an hour."""
    cells = [nbformat.v4.new_code_cell(f"import time; time.sleep({s})") for s in (0, 3600)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "endless.ipynb")
    with pytest.raises(CellTimeoutError):
        runpy.run_path(str(TUTORIALS / "run.py"))["run"](tmp_path / "endless.ipynb", 2)


def test_a_domain_takes_sixty_lines() -> None:
    """From nothing to samples, without empty lines, as the tutorial says."""
    cells = json.loads((TUTORIALS / "proteins.ipynb").read_text())["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    last = next(number for number, source in enumerate(sources) if "tiny.sample" in source)
    lines = [line for source in sources[1 : last + 1] for line in source.splitlines()]
    assert 40 < sum(bool(line.strip()) for line in lines) <= 60


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_they_run(
    notebook: Path,
    real_data: Path,
    proteins_installed: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fewer steps and shorter files show that all cells run; ``make notebooks`` runs all."""
    _write_shorter_data(real_data, tmp_path / "data")
    monkeypatch.setenv("SEQDIFF_DATA", str(tmp_path / "data"))
    # The threads of two tests would wait for each other on the same cores.
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    folder = tmp_path / "docs" / "tutorials"
    folder.mkdir(parents=True)
    for shared in ("configs", "examples"):
        (tmp_path / shared).symlink_to(TUTORIALS.parents[1] / shared)
    (folder / notebook.name).write_text(_LENGTHS.sub(_shorter, notebook.read_text()))
    names = runpy.run_path(str(TUTORIALS / "run.py"))
    # Other tests run on the same cores, so only a notebook that is far too slow is stopped here.
    seconds = 5 * names["SECONDS"]
    ran = names["run"](folder / notebook.name, seconds, str(proteins_installed))
    kept = json.loads(notebook.read_text())
    for cell, before in zip(ran.cells, kept["cells"], strict=True):
        outputs = (cell.get("outputs", []), before.get("outputs", []))
        now, then = ([output["output_type"] for output in part] for part in outputs)
        assert list(dict.fromkeys(now)) == list(dict.fromkeys(then))

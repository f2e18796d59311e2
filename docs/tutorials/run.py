"""Run the tutorials and save their outputs: ``python docs/tutorials/run.py [NAME ...]``."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from time import monotonic

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent
SECONDS = 120  # what the tutorials promise for two free cores


def install_proteins(folder: Path) -> None:
    """Install the distribution of ``examples/proteins`` into a folder, without a network."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    alone = ["--no-deps", "--no-index", "--no-build-isolation", "--target", str(folder)]
    subprocess.run([*pip, *alone, str(HERE.parents[1] / "examples" / "proteins")], check=True)


def run(path: Path, seconds: float = SECONDS, packages: str = "") -> nbformat.NotebookNode:
    """Execute a notebook in its folder, and remove the output on standard error.

    Args:
        path: The notebook.
        seconds: It is stopped after this time.
        packages: Folder of packages for it, see ``install_proteins``.

    Raises:
        nbclient.exceptions.CellExecutionError: If a cell raises.
        nbclient.exceptions.CellTimeoutError: If the time is over.
    """
    end = monotonic() + seconds
    notebook = nbformat.read(path, as_version=4)
    folder = {"metadata": {"path": str(path.parent)}}
    client = NotebookClient(
        notebook,
        timeout_func=lambda _: max(1, round(end - monotonic())),  # 0 would be no limit
        record_timing=False,
        coalesce_streams=True,
        resources=folder,
    )
    commands = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    found = os.pathsep.join(filter(None, [packages, str(HERE.parents[1])]))
    client.execute(env=os.environ | {"PATH": commands, "PYTHONPATH": found})
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    return notebook


def main() -> None:
    """Run the notebooks named on the command line, or all of them."""
    with tempfile.TemporaryDirectory() as packages:
        install_proteins(Path(packages))
        for path in sorted(HERE.glob("*.ipynb")):
            if not sys.argv[1:] or path.stem in sys.argv[1:]:
                start = monotonic()
                nbformat.write(run(path, packages=packages), path)
                print(f"{path.name}: {monotonic() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()

"""Run the tutorials and save their outputs: ``python docs/tutorials/run.py [NAME ...]``."""

import os
import sys
from pathlib import Path
from time import monotonic

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent
SECONDS = 120  # what the tutorials promise for two free cores


def run(path: Path, seconds: float = SECONDS) -> nbformat.NotebookNode:
    """Execute a notebook in its folder, and remove the output on standard error.

    Args:
        path: The notebook.
        seconds: It is stopped after this time.

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
    client.execute(env=os.environ | {"PATH": commands})
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    return notebook


def main() -> None:
    """Run the notebooks named on the command line, or all of them."""
    for path in sorted(HERE.glob("*.ipynb")):
        if not sys.argv[1:] or path.stem in sys.argv[1:]:
            start = monotonic()
            nbformat.write(run(path), path)
            print(f"{path.name}: {monotonic() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()

"""Run the command line with ``python -m seqdiff.cli``."""

import sys
from pathlib import Path

import seqdiff.cli

# Python searches the current folder first, which may hold the files of somebody else. Only a
# checkout of seqdiff is searched.
if not sys.flags.safe_path and Path(seqdiff.cli.__file__).parents[2] != Path.cwd():
    del sys.path[0]

from seqdiff.cli.app import run

if __name__ == "__main__":
    sys.exit(run())

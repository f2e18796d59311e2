"""Run the command line with ``python -m seqdiff.cli``."""

import sys

from seqdiff.cli.app import main

sys.exit(main())

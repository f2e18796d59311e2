"""Benchmarks, with one script per claim about speed or models. They are not installed."""

import os

# The command line does the same: an idle OpenMP thread that spins takes a core from our kernels.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

"""One script for each claim about speed; none of it is installed."""

import os

# As the command line does: an idle OpenMP thread that spins takes a core from our kernels' threads.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

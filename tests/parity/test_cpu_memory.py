"""The allocator keeps freed memory in the process."""

import subprocess
import sys

import pytest

SCRIPT = """
import resource, torch
from seqdiff.ops.selective_scan import selective_scan
if {broken}:
    import ctypes, seqdiff.ops.cpu_simd.runtime
    # Where glibc starts from; left alone, it moves the threshold with what a process happens to do.
    seqdiff.ops.cpu_simd.runtime.keep_freed_memory = lambda: ctypes.CDLL(None).mallopt(-3, 1 << 17)
u = torch.randn(4, 1024, 256).mT.requires_grad_()
A, B = -torch.rand(256, 4), torch.randn(4, 4, 1024)
def step():
    y = selective_scan(u, u, A, B, B, delta_softplus=True)
    torch.autograd.grad(y, u, torch.ones_like(y))
for _ in range(5):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator")
def test_steps_do_not_fault_their_pages_in_anew():
    """Each step frees 16 MiB, which is 4,096 pages."""
    faults = [
        int(
            subprocess.run(
                [sys.executable, "-c", SCRIPT.format(broken=broken)],
                capture_output=True,
                text=True,
                check=True,
            ).stdout
        )
        for broken in (False, True)
    ]
    assert faults[0] < 4_000 < 20_000 < faults[1], faults

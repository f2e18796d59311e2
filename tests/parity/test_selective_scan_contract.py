"""Properties of the selective scan other than its values: bits, dtypes, memory, imports, errors."""

import logging
import subprocess
import sys

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from seqdiff.ops.selective_scan.dispatch import selective_scan
from seqdiff.ops.selective_scan.inputs import ScanInputs, check_scan_inputs
from tests.parity.scan_cases import RTOL, arguments, gap, run


def test_bits_do_not_depend_on_threads():
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(
                run(arguments(3, 150, 200, 16, dtype=torch.float32), "cpu", reverse=True)
            )
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        for name, value in results[0].items():
            assert torch.equal(value, other[name]), name


def test_bfloat16_keeps_a_float32_state():
    given = arguments(dtype=torch.bfloat16, states=16)
    wide = {name: v.float() for name, v in given.items()}
    out, last = selective_scan(**given, delta_softplus=True, return_last_state=True)
    wanted, wanted_last = selective_scan(
        **wide, delta_softplus=True, return_last_state=True, backend="reference"
    )
    assert out.dtype == torch.bfloat16
    assert last.dtype == torch.float32
    torch.testing.assert_close(out.float(), wanted, rtol=1e-2, atol=1e-3)
    torch.testing.assert_close(last, wanted_last, rtol=1e-4, atol=1e-4)


def test_extreme_steps_stay_exact_and_nan_is_never_hidden():
    """Softplus far from 0 and decays below the smallest float agree; NaN gives NaN."""
    given = arguments(1, 16, 40, 7, dtype=torch.float32, without=("delta_bias",))
    given["delta"] = torch.linspace(-60, 60, 40).expand(1, 16, 40)
    gaps = gap(run(given, "cpu"), run(given, "reference"))
    assert max(gaps.values()) < RTOL[torch.float32], gaps
    for name in ("u", "delta", "z", "B", "C"):
        broken = given | {name: given[name].clone()}
        broken[name][..., 20] = torch.nan
        assert selective_scan(**broken, delta_softplus=True)[..., 20].isnan().all(), name


class _Sizes(TorchDispatchMode):
    """Records the number of elements of each tensor that an operator returns."""

    def __init__(self):
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **kwargs or {})
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self.largest = max(self.largest, leaf.untyped_storage().nbytes() // 4)
        return result


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_never_holds_all_states(backend):
    """No tensor reaches (Bt, D, L, N) / 8; the reference's tape does in total (the broken twin)."""
    batch, channels, length, states = 2, 64, 256, 32
    given = arguments(batch, channels, length, states, dtype=torch.float32)
    leaves = {name: v.requires_grad_() for name, v in given.items()}
    saved = {}

    def pack(tensor: Tensor) -> Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes() // 4
        return tensor

    everything = batch * channels * length * states
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t), _Sizes() as sizes:
        selective_scan(**leaves, delta_softplus=True, backend=backend).sum().backward()
    if backend == "cpu":
        assert sizes.largest < everything / 8
        assert sum(saved.values()) < everything / 4
    else:
        assert sum(saved.values()) > everything


@pytest.mark.slow
def test_kernels_hold_no_hidden_copy_of_all_states():
    """While the kernels run, the process grows by less than the size of all states."""
    program = (
        "import torch, resource\n"
        "from seqdiff.ops.selective_scan.dispatch import selective_scan\n"
        "def go(length):\n"
        "    u = torch.rand(1, length, 64).transpose(1, 2).requires_grad_()\n"
        "    m = torch.rand(1, 64, length)\n"
        "    A = -torch.rand(64, 64)\n"
        "    selective_scan(u, u, A, m, m, backend='cpu').sum().backward()\n"
        "    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "go(64)\n"
        "print((go(16384) - go(64)) * 1024 / (64 * 64 * 16384 * 4))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert float(result.stdout) < 0.5


@pytest.mark.slow
def test_import_loads_no_compiler_and_torch_compile_keeps_one_graph():
    """In a separate process, because the shape checker of these tests cannot be traced."""
    program = (
        "import sys, torch\n"
        "from seqdiff.ops.causal_conv import causal_conv1d\n"
        "from seqdiff.ops.selective_scan import selective_scan\n"
        "assert 'numba' not in sys.modules\n"
        "def loss(u, A, m, w):\n"
        "    x = causal_conv1d(u, w, activation='silu', reverse=True)\n"
        "    return selective_scan(x, u, A, m, m, z=u, delta_softplus=True).square().sum()\n"
        "u, A, m = torch.randn(1, 20, 16).mT, -torch.rand(16, 4), torch.randn(1, 4, 20)\n"
        "leaves = [v.requires_grad_() for v in (u, A, m, torch.randn(16, 3))]\n"
        "compiled = torch.compile(loss, fullgraph=True, backend='aot_eager')\n"
        "got, want = (torch.autograd.grad(f(*leaves), leaves) for f in (compiled, loss))\n"
        "torch.testing.assert_close(got, want)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.slow
def test_cold_cache_says_once_that_it_compiles(tmp_path):
    """The smallest kernel, in a new process with an empty cache and then with a filled one.

    Logging is not configured, so the test counts what a user sees.
    """
    program = (
        "import torch\n"
        "from seqdiff.ops.causal_conv.dispatch import causal_conv1d\n"
        "x = torch.ones(1, 2, 3)\n"
        "for _ in range(2): causal_conv1d(x, torch.ones(2, 2))\n"
    )
    environment = {"NUMBA_CACHE_DIR": str(tmp_path), "PATH": "/usr/bin"}
    counts = []
    for _ in range(2):
        result = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True, text=True, check=True, env=environment,
        )  # fmt: skip
        counts.append(result.stderr.count("compiling the CPU kernels"))
    assert counts == [1, 0]
    assert logging.getLogger("seqdiff.ops").level == logging.NOTSET


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"u": torch.zeros(2, 3)}, r"selective_scan\.u must have shape"),
        ({"delta": torch.zeros(2, 37, 3)}, r"\.delta must have shape \(2, 37, 134\), got"),
        ({"A": torch.zeros(36, 5)}, r"\.A must have shape \(channels=37"),
        ({"B": torch.zeros(2, 6, 134)}, r"\.B must have shape \(2, 5, 134\).*constant \(37, 5\)"),
        ({"C": torch.zeros(2, 2, 5, 134)}, r"\.C must have shape .*groups dividing 37"),
        ({"D": torch.zeros(36)}, r"\.D must have shape \(37,\)"),
        ({"initial_state": torch.zeros(2, 5)}, r"\.initial_state must have shape \(2, 37, 5\)"),
        ({"A": torch.zeros(37, 5, dtype=torch.complex64)}, r"\.A must be one of .*complex"),
        ({"z": torch.zeros(2, 37, 134, dtype=torch.int64)}, r"\.z must be one of float64"),
        ({"D": torch.zeros(37, device="meta")}, r"\.D must be on u's device cpu, got meta"),
    ],
)
def test_wrong_inputs_are_named(change, message):
    given = {"delta_softplus": True} | arguments(dtype=torch.float32) | change
    with pytest.raises(ValueError, match=message):
        check_scan_inputs(ScanInputs(**given))


def test_wrong_backends_are_named():
    given = arguments()
    with pytest.raises(ValueError, match=r"backend must be one of .*'reference'.*got 'cuda'"):
        selective_scan(**given, backend="cuda")
    with pytest.raises(ValueError, match="'mamba_ssm' needs CUDA tensors"):
        selective_scan(**given, backend="mamba_ssm")
    on_meta = {name: v.to("meta") for name, v in given.items()}
    with pytest.raises(ValueError, match="'cpu' needs CPU tensors, got meta"):
        selective_scan(**on_meta, backend="cpu")


def test_a_device_without_kernel_warns_and_names_the_remedy():
    on_meta = {name: v.to("meta") for name, v in arguments(length=2).items()}
    with pytest.warns(UserWarning, match="PyTorch reference is used.*move the tensors to the CPU"):
        selective_scan(**on_meta)

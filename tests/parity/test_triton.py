"""The Triton kernels against the reference loops, on a device or in Triton's interpreter."""

import os
import subprocess
import sys

import pytest
import torch

from seqdiff.ops.selective_scan.dispatch import selective_scan
from tests.gaps import largest_gap
from tests.parity import test_causal_conv1d as conv
from tests.parity.scan_cases import OPTIONAL, arguments, gap, run

pytest.importorskip("triton")

ON_DEVICE = torch.cuda.is_available()
DEVICE = "cuda" if ON_DEVICE else "cpu"
TOLERANCES = {torch.float32: (6e-4, 2e-3), torch.bfloat16: (3e-2, 5e-2)}
RTOL = {torch.float32: 1e-4, torch.float64: 1e-11}


def compare(dtype=torch.float32, *, softplus=True, reverse=False, use_last=True, **shape):
    """Compare every output and gradient of Triton with the reference."""
    given = arguments(1, **{"channels": 20, "length": 40} | shape, dtype=dtype, softplus=softplus)
    given = {name: v.to(DEVICE) for name, v in given.items()}
    options = {"softplus": softplus, "reverse": reverse, "use_last": use_last}
    got, wanted = (run(given, backend, **options) for backend in ("triton", "reference"))
    for name, value in wanted.items():
        assert got[name].dtype == value.dtype, name
        if dtype in TOLERANCES:
            rtol, atol = TOLERANCES[dtype]
            torch.testing.assert_close(got[name], value, rtol=rtol, atol=atol, msg=name)
    if dtype in RTOL:
        gaps = gap(got, wanted)
        assert max(gaps.values()) < RTOL[dtype], gaps


CASES = {
    "plain": {"length": 70},
    "no_optional_inputs": {"without": OPTIONAL, "length": 9},
    "no_skip_no_bias": {"without": ("D", "delta_bias"), "length": 9},
    "no_gate": {"without": ("z",)},
    "length_1": {"length": 1},
    "length_2": {"length": 2, "layout": "channels_first"},
    "length_3": {"length": 3},
    "one_chunk_exactly": {"length": 32, "layout": "channels_first"},
    "two_blocks": {"channels": 37, "states": 16, "length": 9},
    "one_state": {"states": 1, "length": 10},
    "state_64": {"states": 64, "length": 10},
    "grouped_B": {"channels": 38, "B": "bgnl", "groups": 2, "length": 9},
    "grouped_both": {"B": "bgnl", "C": "bgnl", "groups": 4, "states": 3, "length": 9},
    "two_blocks_a_group": {"channels": 70, "C": "bgnl", "groups": 2, "length": 5},
    "constant_B": {"B": "dn"},
    "constant_both": {"B": "dn", "C": "dn"},
    "grouped_B_constant_C": {"B": "bgnl", "C": "dn", "groups": 2, "length": 9},
    "half_of_a_projection": {"layout": "slice", "length": 9},
    "every_other_position": {"layout": "every_other", "length": 9},
}  # fmt: skip


# One case of each kind; the other cases differ in size only and are slow in the interpreter.
QUICK = ("plain", "no_optional_inputs", "no_gate", "length_1", "two_blocks", "grouped_both")
QUICK += ("two_blocks_a_group", "constant_both", "half_of_a_projection")


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=[pytest.mark.slow] if c not in QUICK else []) for c in CASES]
)
def test_scan_equals_reference(case):
    compare(reverse=True, **CASES[case])


@pytest.mark.parametrize("reverse", [False, True])
def test_scan_in_float64_equals_reference_to_rounding(reverse):
    compare(torch.float64, reverse=reverse)


@pytest.mark.parametrize("softplus", [False, True])
def test_scan_in_bfloat16_equals_reference(softplus):
    compare(torch.bfloat16, softplus=softplus, length=34)


def test_float32_parameters_beside_bfloat16_activations():
    given = arguments(1, 8, 5, 4, dtype=torch.float32)
    for name in ("u", "z", "B", "C"):
        given[name] = given[name].bfloat16()
    given = {name: v.to(DEVICE) for name, v in given.items()}
    got, wanted = (run(given, backend) for backend in ("triton", "reference"))
    for name, value in wanted.items():
        assert got[name].dtype == value.dtype
        torch.testing.assert_close(got[name], value, rtol=3e-2, atol=5e-2, msg=name)


def test_the_last_state_may_go_unused():
    compare(use_last=False, length=9)


@pytest.mark.parametrize("broken", ["reverse", *OPTIONAL])
def test_the_comparison_sees_a_broken_twin(broken):
    """A twin that ignores one argument exceeds the tolerance by far, also in a gradient."""
    given = {name: v.to(DEVICE) for name, v in arguments(1, 8, 9, 4, dtype=torch.float32).items()}
    kept = {name: v for name, v in given.items() if name != broken}
    wanted = run(given, "reference", reverse=True)
    twin = run(kept, "triton", reverse=broken != "reverse")
    gaps = gap(twin, {name: wanted[name] for name in twin})
    assert gaps["out"] > 100 * RTOL[torch.float32]
    assert max(gaps["d_u"], gaps["d_delta"]) > 100 * RTOL[torch.float32]


def test_extreme_steps_stay_exact_and_nan_is_never_hidden():
    given = arguments(1, 4, 40, 3, dtype=torch.float32, without=("delta_bias",))
    given["delta"] = torch.linspace(-60, 60, 40).expand(1, 4, 40)
    given = {name: v.to(DEVICE) for name, v in given.items()}
    gaps = gap(run(given, "triton"), run(given, "reference"))
    assert max(gaps.values()) < RTOL[torch.float32], gaps
    for name in ("u", "delta", "z", "B", "C"):
        broken = given | {name: given[name].clone()}
        broken[name][..., 20] = torch.nan
        out = selective_scan(**broken, delta_softplus=True, backend="triton")
        assert out[..., 20].isnan().all(), name


@pytest.mark.skipif(not ON_DEVICE, reason="the interpreter has no memory to measure")
def test_a_long_row_never_holds_all_states():
    length, channels, states = 131_072, 64, 16
    given = arguments(1, channels, length, states, dtype=torch.float32)
    leaves = {name: v.to(DEVICE).requires_grad_() for name, v in given.items()}
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    selective_scan(**leaves, delta_softplus=True, backend="triton").sum().backward()
    grown = torch.cuda.max_memory_allocated() - before
    assert grown < 4 * channels * length * states


@pytest.mark.parametrize(
    ("dtype", "layout", "activation"),
    [
        (torch.float32, "channels_last", "silu"),
        (torch.float32, "channels_first", None),
        (torch.float64, "slice", "silu"),
    ],
)
def test_conv_equals_reference(dtype, layout, activation):
    for length, reverse in ((1, False), (3, True), (40, True), (40, False)):
        x, weight, bias = conv.arguments(length=length, channels=37, dtype=dtype, layout=layout)
        given = [v.to(DEVICE) for v in (x, weight, bias)]
        if activation is None:
            given[2] = None
        got, wanted = (
            conv.run(*given, activation, reverse, name) for name in ("triton", "reference")
        )
        assert largest_gap(got, wanted) < conv.RTOL[dtype]
    twin = conv.run(*given, activation, True, "triton")
    assert largest_gap(twin, wanted) > 100 * conv.RTOL[dtype]


def test_conv_in_bfloat16_is_computed_in_float32():
    given = [v.to(DEVICE) for v in conv.arguments(channels=8, length=9, dtype=torch.bfloat16)]
    got, wanted = (conv.run(*given, "silu", False, name) for name in ("triton", "reference"))
    for a, b in zip(got, wanted, strict=True):
        assert a.dtype == torch.bfloat16
        torch.testing.assert_close(a, b, rtol=2e-2, atol=1e-2)


@pytest.mark.parametrize("keep", [False, True])
def test_operators_describe_themselves_truly(keep):
    """Schema, fake kernel and autograd registration, with and without the optional inputs."""
    for without in ((), OPTIONAL):
        given = arguments(1, 4, 3, 2, dtype=torch.float32, without=without)
        given = {name: v.to(DEVICE).requires_grad_(keep) for name, v in given.items()}
        u, delta, A, B, C = (given[name] for name in ("u", "delta", "A", "B", "C"))
        rest = (given.get(name) for name in ("D", "z", "delta_bias", "initial_state"))
        scan = (u, delta, A, B[:, None], C[:, None], *rest, True, False, keep)
        torch.library.opcheck(torch.ops.seqdiff.selective_scan_triton, scan)
        filtered = (u, torch.ones(4, 2, device=DEVICE), given.get("D"), True, True)
        torch.library.opcheck(torch.ops.seqdiff.causal_conv1d_triton, filtered)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["cpu", "triton"])
def test_torch_compile_keeps_the_whole_backbone_in_one_graph(backend):
    """In a separate process, because the shape checker of these tests cannot be traced."""
    device = "cpu" if backend == "cpu" else DEVICE
    program = (
        "import torch\n"
        "from seqdiff.ops.selective_scan.cuda import choose_for_cuda\n"
        "from seqdiff.backbones.caduceus.network import Caduceus\n"
        "from seqdiff.types import Inputs\n"
        "torch.manual_seed(0)\n"
        "net = Caduceus(d_model=8, n_layer=1, num_embeddings=5, num_logits=4, d_state=2,\n"
        f"    backend={backend!r}).to({device!r})\n"
        f"tokens = torch.randint(0, 5, (1, 6), device={device!r})\n"
        "def loss(tokens):\n"
        "    assert choose_for_cuda(0, False) == 'triton'\n"
        "    return net(Inputs(tokens)).square().sum()\n"
        "compiled = torch.compile(loss, fullgraph=True, backend='aot_eager')\n"
        "leaves = list(net.parameters())\n"
        "got, want = (torch.autograd.grad(f(tokens), leaves) for f in (compiled, loss))\n"
        "torch.testing.assert_close(got, want)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.slow
def test_kernels_compile_for_a_device_that_is_not_there():
    """The compiler is stricter than the interpreter: every kernel is compiled to machine code."""
    program = """
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import JITFunction, driver

class Absent:
    get_current_target = lambda self: GPUTarget("cuda", 90, 32)
    get_current_device = lambda self: 0
    get_current_stream = lambda self, device: 0

driver.set_active(Absent())
launch = JITFunction.run

def build(self, *args, grid, warmup, **options):
    kernel = launch(self, *args, grid=grid, warmup=True, **options)
    print(self.__name__, len(kernel.asm["cubin"]) > 0)

JITFunction.run = build
import seqdiff.ops.causal_conv.triton, seqdiff.ops.selective_scan.triton
seqdiff.ops.selective_scan.triton.SPAN = 2  # the unrolled part, so that this test is short
u = torch.ones(2, 70, 40, dtype=torch.bfloat16).mT.requires_grad_()
A, v, m = -torch.ones(40, 4), torch.ones(40), torch.ones(2, 1, 4, 70)
ops = torch.ops.seqdiff
for C, z, h, softplus in ((m, u, None, True), (A, None, torch.ones(2, 40, 4), False)):
    out, last, _ = ops.selective_scan_triton(u, u, A, m, C, v, z, v, h, softplus, True, True)
    (out.float().sum() + last.sum()).backward()
ops.causal_conv1d_triton(u, torch.ones(40, 4), v, True, False).sum().backward()
"""
    environment = {name: v for name, v in os.environ.items() if name != "TRITON_INTERPRET"}
    result = subprocess.run(
        [sys.executable, "-c", program], env=environment, check=True, capture_output=True, text=True
    )
    built = result.stdout.split("\n")
    for name in (
        "chunk_states", "join_chunks", "scan_outputs", "chunk_flows", "scan_gradients",
        "conv_outputs", "conv_slopes",
    ):  # fmt: skip
        assert f"{name} True" in built
    assert "warning" not in result.stderr.lower()

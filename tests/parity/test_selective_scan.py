"""Every backend of the selective scan against the reference loop, and the loop against a matrix."""

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from seqdiff.ops.selective_scan.dispatch import selective_scan
from tests.parity.scan_cases import OPTIONAL, RTOL, arguments, gap, run


def explicit_matrix(given: dict[str, Tensor]) -> np.ndarray:
    """The scan as ``M u``: ``M[l, j] = C_l exp(A sum_{j<i<=l} delta_i) delta_j B_j``, in numpy."""
    u, delta, A, B, C = (given[name].numpy() for name in ("u", "delta", "A", "B", "C"))
    out = np.zeros_like(u)
    clock = np.cumsum(delta, axis=-1)
    for b, d, end in np.ndindex(u.shape):
        for start in range(end + 1):
            decay = np.exp(A[d] * (clock[b, d, end] - clock[b, d, start]))
            drive = delta[b, d, start] * u[b, d, start]
            out[b, d, end] += (C[b, :, end] * decay * B[b, :, start]).sum() * drive
    return out


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_equals_the_explicit_matrix(backend):
    given = arguments(2, 3, 9, 4, softplus=False, without=OPTIONAL)
    out = selective_scan(**given, backend=backend)
    wanted = explicit_matrix(given)
    np.testing.assert_allclose(out.numpy(), wanted, rtol=1e-10, atol=1e-12)
    undiscretised = selective_scan(**given | {"B": 2 * given["B"]}, backend=backend)
    assert np.abs(undiscretised.numpy() - wanted).max() > 1e-3


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_one_state_constant_step_is_a_geometric_sum(backend):
    """h_l = sum_k a^k delta = delta (1 - a^(l+1)) / (1 - a) for u = B = C = 1."""
    length, step, rate = 200, 0.05, -0.7
    ones = torch.ones(1, 1, length, dtype=torch.float64)
    A = torch.full((1, 1), rate, dtype=torch.float64)
    out, last = selective_scan(
        ones, step * ones, A, ones, ones, return_last_state=True, backend=backend
    )
    a = np.exp(step * rate)
    wanted = step * (1 - a ** np.arange(1, length + 1)) / (1 - a)
    np.testing.assert_allclose(out[0, 0].numpy(), wanted, rtol=1e-12)
    np.testing.assert_allclose(last.item(), wanted[-1], rtol=1e-12)


CASES = {
    "plain": {},
    "forward_only_inputs": {"without": OPTIONAL},
    "no_skip": {"without": ("D",)},
    "no_gate": {"without": ("z",)},
    "no_bias": {"without": ("delta_bias",)},
    "length_1": {"length": 1},
    "length_2": {"length": 2, "layout": "channels_first"},
    "length_3": {"length": 3},
    "two_chunks_exactly": {"length": 256, "channels": 64},
    "several_blocks": {"length": 40, "channels": 150, "states": 16},
    "one_state": {"states": 1, "channels": 16},
    "state_64": {"states": 64, "channels": 5, "length": 33},
    "grouped_B": {"channels": 38, "B": "bgnl", "groups": 2},
    "grouped_both": {"channels": 40, "B": "bgnl", "C": "bgnl", "groups": 4, "states": 3},
    "constant_B": {"B": "dn"},
    "constant_C": {"C": "dn"},
    "constant_both": {"B": "dn", "C": "dn"},
    "channels_first": {"layout": "channels_first"},
    "half_of_a_projection": {"layout": "slice", "channels": 32},
    "every_other_position": {"layout": "every_other"},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
@pytest.mark.parametrize("case", CASES)
def test_cpu_equals_reference(case, dtype):
    for reverse in (False, True):
        given = arguments(dtype=dtype, **CASES[case])
        gaps = gap(run(given, "cpu", reverse=reverse), run(given, "reference", reverse=reverse))
        assert max(gaps.values()) < RTOL[dtype], gaps


def test_without_softplus():
    given = arguments(softplus=False)
    gaps = gap(run(given, "cpu", softplus=False), run(given, "reference", softplus=False))
    assert max(gaps.values()) < RTOL[torch.float64], gaps


def test_last_state_may_go_unused_or_be_all_that_is_used():
    given = arguments()
    gaps = gap(run(given, "cpu", use_last=False), run(given, "reference", use_last=False))
    assert max(gaps.values()) < RTOL[torch.float64], gaps
    u = given["u"].requires_grad_()
    grads = []
    for backend in ("cpu", "reference"):
        _, last = selective_scan(
            **given | {"u": u}, delta_softplus=True, return_last_state=True, backend=backend
        )
        grads.append(torch.autograd.grad(last.sum(), u)[0])
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("broken", ["reverse", "D", "z", "initial_state", "delta_bias"])
def test_the_comparison_sees_a_broken_twin(broken):
    """A twin that ignores one argument exceeds the tolerance by far."""
    given = arguments(dtype=torch.float32)
    wanted = run(given, "reference", reverse=True)["out"]
    kept = {name: v for name, v in given.items() if name != broken}
    got = run(kept, "cpu", reverse=broken != "reverse")["out"]
    assert gap({"out": got}, {"out": wanted})["out"] > 100 * RTOL[torch.float32]


@given(
    batch=st.integers(1, 3),
    channels=st.integers(1, 40),
    length=st.integers(1, 140),
    states=st.integers(1, 20),
    seed=st.integers(0, 2**31),
    layout=st.sampled_from(["channels_last", "channels_first", "slice", "every_other"]),
    without=st.sets(st.sampled_from(OPTIONAL)),
    reverse=st.booleans(),
)
@settings(max_examples=25)
def test_cpu_equals_reference_on_any_shape(reverse, **shape):
    given = arguments(**shape)
    gaps = gap(run(given, "cpu", reverse=reverse), run(given, "reference", reverse=reverse))
    assert max(gaps.values()) < 1e-9, gaps


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_reverse_is_the_flipped_twin(backend):
    given = arguments(length=45)
    flipped = {
        name: v.flip(-1) if name in ("u", "delta", "z", "B", "C") else v
        for name, v in given.items()
    }
    wanted = run(flipped, backend, use_last=False)
    got = run(given, backend, reverse=True, use_last=False)
    torch.testing.assert_close(got["out"], wanted["out"].flip(-1))
    torch.testing.assert_close(got["last_state"], wanted["last_state"])


@pytest.mark.parametrize("cut", [1, 32, 128, 133])
@pytest.mark.parametrize("reverse", [False, True])
def test_two_halves_make_the_whole(cut, reverse):
    given = arguments(dtype=torch.float64)
    scan = partial(selective_scan, delta_softplus=True, return_last_state=True, reverse=reverse)
    whole, last = scan(**given)
    parts = [
        {
            name: v[..., span] if name in ("u", "delta", "z", "B", "C") else v
            for name, v in given.items()
        }
        for span in (slice(None, cut), slice(cut, None))
    ]
    first, second = reversed(parts) if reverse else parts
    out_1, state = scan(**first)
    out_2, state = scan(**second | {"initial_state": state})
    joined = torch.cat([out_2, out_1] if reverse else [out_1, out_2], -1)
    torch.testing.assert_close(joined, whole, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(state, last, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("maps", [("bnl", "bnl"), ("bgnl", "dn"), ("dn", "bgnl")])
def test_gradcheck(maps, reverse):
    given = arguments(1, 4, 5, 5, B=maps[0], C=maps[1], groups=2)
    leaves = tuple(v.requires_grad_() for v in given.values())

    def scan(*values: Tensor) -> tuple[Tensor, ...]:
        named = dict(zip(given, values, strict=True))
        return selective_scan(
            **named, delta_softplus=True, return_last_state=True, reverse=reverse, backend="cpu"
        )

    assert torch.autograd.gradcheck(scan, leaves, atol=1e-7)


@pytest.mark.parametrize("reverse", [False, True])
def test_mamba_ssm_equals_reference(reverse):
    pytest.importorskip("mamba_ssm")
    if not torch.cuda.is_available():
        pytest.skip("mamba_ssm's kernel needs a CUDA device")
    given = arguments(dtype=torch.float32, states=16, without=("initial_state",))
    given = {name: v.contiguous().cuda() for name, v in given.items()}
    gaps = gap(
        run(given, "mamba_ssm", reverse=reverse, use_last=False),
        run(given, "reference", reverse=reverse, use_last=False),
    )
    assert max(gaps.values()) < 2e-3, gaps

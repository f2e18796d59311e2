"""The grid of shapes and options on which mamba_ssm tests its selective scan.

Inputs are rounded to bfloat16 first, so that one float64 run of the reference loop is the expected
result of both dtypes. Outputs and gradients must agree within 6e-4 of the value plus 2e-3 in
float32, and 3e-2 plus 5e-2 in bfloat16 (tests/ops/test_selective_scan.py of mamba_ssm 2).
"""

import pytest
import torch
from torch import Tensor

from seqdiff.ops.selective_scan.dispatch import selective_scan

BATCH, CHANNELS, STATES = 2, 4, 8
ROUNDED = {torch.float32: (6e-4, 2e-3), torch.bfloat16: (3e-2, 5e-2)}
SEQUENCES = ("u", "delta", "B", "C", "z")
DEVICES = [
    pytest.param("cpu", "cpu", id="cpu"),
    pytest.param(
        "triton",
        "cuda",
        id="triton",
        marks=pytest.mark.skipif(
            not torch.cuda.is_available(), reason="the interpreter would take an hour"
        ),
    ),
]
OPTIONS = [(), ("z",), ("D",), ("z", "D", "delta_bias")]


def inputs(length: int, groups: int, without: tuple[str, ...]) -> dict[str, Tensor]:
    """Random inputs with mamba_ssm's sizes and ranges; rates are large enough for float32."""
    random = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random).bfloat16().float()

    def uniform(*shape: int) -> Tensor:
        return (0.5 * torch.rand(*shape, generator=random)).bfloat16().float()

    given = {
        "u": normal(BATCH, CHANNELS, length),
        "delta": uniform(BATCH, CHANNELS, length),
        "A": -uniform(CHANNELS, STATES).clamp_min(1 / 32),
        "B": normal(BATCH, groups, STATES, length),
        "C": normal(BATCH, groups, STATES, length),
        "D": normal(CHANNELS),
        "z": normal(BATCH, CHANNELS, length),
        "delta_bias": uniform(CHANNELS),
    }
    return {name: tensor for name, tensor in given.items() if name not in without}


def results(
    given: dict[str, Tensor], backend: str, *, softplus: bool, last: bool
) -> dict[str, Tensor]:
    """Output, last state if requested, and every gradient, in float32 on the CPU."""
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in given.items()}
    got = selective_scan(**leaves, delta_softplus=softplus, return_last_state=last, backend=backend)
    out, state = got if isinstance(got, tuple) else (got, None)
    random = torch.Generator().manual_seed(1)
    d_out = torch.randn(out.shape, generator=random).bfloat16().to(out)
    grads = torch.autograd.grad(out, list(leaves.values()), d_out)
    named = {f"d_{name}": grad for name, grad in zip(leaves, grads, strict=True)}
    named |= {"out": out} if state is None else {"out": out, "last_state": state}
    return {name: tensor.detach().float().cpu() for name, tensor in named.items()}


def check(backend: str, device: str, length: int, groups: int, softplus: bool, without) -> None:
    """Compare both dtypes with the loop."""
    given = inputs(length, groups, without)
    exact = {name: tensor.double() for name, tensor in given.items()}
    wanted = results(exact, "reference", softplus=softplus, last=True)
    for dtype, (rtol, atol) in ROUNDED.items():
        for last in (True, False):
            cast = {
                name: tensor.to(device, dtype if name in SEQUENCES else torch.float32)
                for name, tensor in given.items()
            }
            got = results(cast, backend, softplus=softplus, last=last)
            assert got.keys() == wanted.keys() - (set() if last else {"last_state"})
            for name, tensor in got.items():
                torch.testing.assert_close(
                    tensor, wanted[name], rtol=rtol, atol=atol, msg=lambda m, n=name: f"{n}: {m}"
                )


@pytest.mark.parametrize("without", OPTIONS, ids=lambda names: "no_" + "_".join(names))
@pytest.mark.parametrize("softplus", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(
    "length", [128, 256, *(pytest.param(n, marks=pytest.mark.slow) for n in (512, 1024))]
)
@pytest.mark.parametrize(("backend", "device"), DEVICES)
def test_the_grid(backend, device, length, groups, softplus, without):
    check(backend, device, length, groups, softplus, without)


@pytest.mark.slow
@pytest.mark.parametrize("without", [(), ("z", "D", "delta_bias")], ids=["all", "bare"])
@pytest.mark.parametrize("softplus", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("length", [2048, 4096])
@pytest.mark.parametrize(("backend", "device"), DEVICES)
def test_the_grid_of_long_rows(backend, device, length, groups, softplus, without):
    check(backend, device, length, groups, softplus, without)


def test_the_tolerance_tells_a_wrong_group_from_the_right_one():
    given = inputs(128, 2, ())
    wanted = results(given, "reference", softplus=True, last=True)
    swapped = given | {"B": given["B"].flip(1)}
    got = results(swapped, "cpu", softplus=True, last=True)
    with pytest.raises(AssertionError, match="Mismatched"):
        torch.testing.assert_close(got["out"], wanted["out"], rtol=3e-2, atol=5e-2)

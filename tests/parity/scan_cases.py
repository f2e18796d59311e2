"""Random scans, and how to compare the results of two backends."""

import math

import torch
from torch import Tensor

from seqdiff.ops.selective_scan.dispatch import selective_scan

RTOL = {torch.float32: 3e-5, torch.float64: 1e-11}
OPTIONAL = ("D", "z", "delta_bias", "initial_state")


def arguments(
    batch=2, channels=37, length=134, states=5, *, dtype=torch.float64, B="bnl", C="bnl",
    groups=1, layout="channels_last", without=(), softplus=True, seed=0,
):  # fmt: skip
    """Random arguments by name; layouts are strides of u, delta and z."""
    random = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64).to(dtype)

    def sequence() -> Tensor:
        if layout == "channels_last":
            return normal(batch, length, channels).transpose(1, 2)
        if layout == "slice":
            return normal(batch, length, 2 * channels)[..., channels:].transpose(1, 2)
        if layout == "every_other":
            return normal(batch, channels, 2 * length)[..., ::2]
        return normal(batch, channels, length)

    forms = {
        "bnl": (batch, states, length),
        "bgnl": (batch, groups, states, length),
        "dn": (channels, states),
    }
    delta = sequence()
    bias = normal(channels) - 2
    result = {
        "u": sequence(),
        "delta": delta if softplus else delta.abs() * 0.1,
        "A": -normal(channels, states).abs() * states,
        "B": normal(*forms[B]),
        "C": normal(*forms[C]),
        "D": normal(channels),
        "z": sequence(),
        "delta_bias": bias if softplus else bias.abs() * 0.1,
        "initial_state": normal(batch, channels, states),
    }
    return {name: v for name, v in result.items() if name not in without}


def run(given, backend, *, softplus=True, reverse=False, use_last=True):
    """Outputs and every gradient, by name."""
    leaves = {name: v.detach().requires_grad_() for name, v in given.items()}
    out, last = selective_scan(
        **leaves, delta_softplus=softplus, return_last_state=True, reverse=reverse, backend=backend
    )
    random = torch.Generator().manual_seed(9)
    weights = torch.randn(out.shape, generator=random, dtype=torch.float64).to(out)
    loss = (out * weights).sum()
    if use_last:
        loss = loss + (last * last.detach().cos()).sum()
    grads = torch.autograd.grad(loss, list(leaves.values()))
    named = {f"d_{name}": g for name, g in zip(leaves, grads, strict=True)}
    return {"out": out.detach(), "last_state": last.detach(), **named}


def gap(got: dict[str, Tensor], wanted: dict[str, Tensor]) -> dict[str, float]:
    """The largest difference relative to each result's largest value; infinite for NaN."""
    assert got.keys() == wanted.keys()
    gaps = {
        name: ((got[name] - w).abs().max() / w.abs().max().clamp(min=1e-30)).item()
        for name, w in wanted.items()
    }
    return {name: math.inf if math.isnan(gap) else gap for name, gap in gaps.items()}

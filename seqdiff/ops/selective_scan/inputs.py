"""The arguments of the selective scan, which are checked once for all backends."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from seqdiff.ops.operators import FLOATS, compute_dtype


class ScanInputs(NamedTuple):
    """The arguments of one selective scan, as `selective_scan` takes them.

    Attributes:
        u: Input ``(Bt, D, L)``.
        delta: Step sizes before bias and softplus ``(Bt, D, L)``.
        A: Decay rates ``(D, N)``.
        B: Input map ``(Bt, N, L)``, ``(Bt, G, N, L)`` or constant ``(D, N)``.
        C: Output map, in any of the shapes that B may have.
        D: Skip weight ``(D,)``.
        z: Gate ``(Bt, D, L)``.
        delta_bias: Added to delta ``(D,)``.
        initial_state: State before the first position read ``(Bt, D, N)``.
        delta_softplus: Whether delta passes through softplus.
        reverse: Whether positions are read from right to left.
    """

    u: Tensor
    delta: Tensor
    A: Tensor
    B: Tensor
    C: Tensor
    D: Tensor | None = None
    z: Tensor | None = None
    delta_bias: Tensor | None = None
    initial_state: Tensor | None = None
    delta_softplus: bool = False
    reverse: bool = False

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that are present, by argument name."""
        return {name: v for name, v in self._asdict().items() if isinstance(v, Tensor)}

    @property
    def compute_dtype(self) -> torch.dtype:
        """The dtype of the state, see ``operators.compute_dtype``."""
        return compute_dtype(*self.tensors().values())


def check_scan_inputs(inputs: ScanInputs) -> None:
    """Check the arguments that every backend takes.

    Raises:
        ValueError: A tensor has the wrong shape or dtype, or is on another device than u.
    """
    if inputs.u.ndim != 3 or inputs.u.shape[2] < 1:
        raise ValueError(_message("u", "(batch, channels, length >= 1)", inputs.u))
    for name, tensor in inputs.tensors().items():
        if tensor.dtype not in FLOATS:
            raise ValueError(
                f"selective_scan.{name} must be one of float64, float32, bfloat16, float16, "
                f"got {tensor.dtype}; complex state spaces are not supported"
            )
        if tensor.device != inputs.u.device:
            raise ValueError(
                f"selective_scan.{name} must be on u's device {inputs.u.device}, "
                f"got {tensor.device}; move it there"
            )
    batch, channels, length = inputs.u.shape
    if inputs.A.ndim != 2 or inputs.A.shape[0] != channels or inputs.A.shape[1] < 1:
        raise ValueError(_message("A", f"(channels={channels}, state >= 1)", inputs.A))
    state = inputs.A.shape[1]
    expected: dict[str, tuple[int, ...]] = {
        "delta": (batch, channels, length),
        "z": (batch, channels, length),
        "D": (channels,),
        "delta_bias": (channels,),
        "initial_state": (batch, channels, state),
    }
    present = inputs.tensors()
    for name, shape in expected.items():
        if name in present and present[name].shape != shape:
            raise ValueError(_message(name, str(shape), present[name]))
    for name in ("B", "C"):
        _check_map(name, present[name], inputs)


def _check_map(name: str, tensor: Tensor, inputs: ScanInputs) -> None:
    """Check that B or C has one of its three shapes."""
    batch, channels, length = inputs.u.shape
    state = inputs.A.shape[1]
    good = tensor.shape in ((channels, state), (batch, state, length))
    if tensor.ndim == 4:
        groups = tensor.shape[1]
        good = tensor.shape == (batch, groups, state, length)
        good = good and groups > 0 and channels % groups == 0
    if not good:
        forms = (
            f"({batch}, {state}, {length}), ({batch}, groups dividing {channels}, {state}, "
            f"{length}) or constant ({channels}, {state})"
        )
        raise ValueError(_message(name, forms, tensor))


def _message(name: str, wanted: str, tensor: Tensor) -> str:
    return f"selective_scan.{name} must have shape {wanted}, got {tuple(tensor.shape)}"

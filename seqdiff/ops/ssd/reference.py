"""The recurrence of state-space duality, position by position, as a reference; it is slow."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def ssd_reference(
    x: Float[Tensor, "Bt L H P"],
    dt: Float[Tensor, "Bt L H"],
    A: Float[Tensor, " H"],
    B: Float[Tensor, "Bt L N"],
    C: Float[Tensor, "Bt L N"],
    D: Float[Tensor, " H"],
    reverse: bool,
) -> Float[Tensor, "Bt L H P"]:
    """Run the recurrence (Dao and Gu 2024, arXiv:2405.21060, equation 2, with scalar decay).

    Each head has a state of P x N values: ``h_l = exp(dt_l A) h_{l-1} + dt_l x_l B_l'`` and
    ``y_l = h_l C_l + D x_l``. The arguments are those of `ssd`, all of one dtype.
    """
    length = x.shape[1]
    state = x.new_zeros(*x.shape[:1], *x.shape[2:], B.shape[2])
    outputs: list[Tensor] = [x[:, 0]] * length
    for place in reversed(range(length)) if reverse else range(length):
        step = dt[:, place, :, None]
        drive = (step * x[:, place])[..., None] * B[:, place, None, None]
        state = torch.exp(step * A[:, None])[..., None] * state + drive
        outputs[place] = (state * C[:, place, None, None]).sum(-1)
    return torch.stack(outputs, dim=1) + D[:, None] * x

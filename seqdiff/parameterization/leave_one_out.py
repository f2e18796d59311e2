"""Predictions of the clean token without, and with, the evidence of its own noisy token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float, Int
from torch import Tensor
from typing_extensions import override

from seqdiff.parameterization.base import Kind, Parameterization, log_softmax
from seqdiff.process import Hybrid, LeftToRight, Process, Uniform


@dataclass(frozen=True)
class LeaveOneOut(Parameterization):
    """Outputs are logits of p(x0 | the other positions), at every position.

    This is what the objectives of D3PM, UDLM, Duo and GIDD teach a network, although it sees its
    own noisy token; and what an autoregressive network gives, whose other positions are those
    before. Source: Austin et al. 2021, arXiv:2107.03006; Schiff et al. 2024, arXiv:2412.10193.
    """

    name: ClassVar[str] = "leave-one-out"
    kind: ClassVar[Kind] = "loo"
    processes: ClassVar[tuple[type[Process], ...]] = (Uniform, Hybrid, LeftToRight)

    @override
    def read(
        self,
        outputs: Float[Tensor, "*n K"],
        z: Int[Tensor, "*n"],
        t: Float[Tensor, "*n"] | None,
        process: Process,
    ) -> Float[Tensor, "*n K"]:
        del z, t, process
        return log_softmax(outputs)


@dataclass(frozen=True)
class Full(Parameterization):
    """Outputs are logits of p(x0 | all positions), the own noisy token included.

    ``Denoiser`` divides by the evidence q_t(z | x0) of the own token where a kernel or a bound
    needs the leave-one-out distribution. Samplers that draw x0 and then go back to z_s (discrete
    DDIM) are built on this one.
    """

    name: ClassVar[str] = "full"
    kind: ClassVar[Kind] = "full"
    processes: ClassVar[tuple[type[Process], ...]] = (Uniform, Hybrid)

    @override
    def read(
        self,
        outputs: Float[Tensor, "*n K"],
        z: Int[Tensor, "*n"],
        t: Float[Tensor, "*n"] | None,
        process: Process,
    ) -> Float[Tensor, "*n K"]:
        del z, t, process
        return log_softmax(outputs)

"""The parameterization of SEDD: outputs are logarithms of probability ratios."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor
from typing_extensions import override

from seqdiff.parameterization.base import Kind, Parameterization
from seqdiff.process import Absorbing, DiscreteProcess, Process, Uniform


@dataclass(frozen=True)
class Score(Parameterization):
    """Outputs are log-scores log p_t(z with y here) / p_t(z) of all states y, up to a known scale.

    With the absorbing process, log(e^sigma - 1) + log K is subtracted, so that outputs of 0 are the
    scores of a uniform predictor at any noise level. With the uniform process, scores lie in a
    bounded range and nothing is subtracted. The entry of the present token is 0. Source: Lou et al.
    2024, arXiv:2310.16834, appendix C.2.
    """

    name: ClassVar[str] = "score"
    kind: ClassVar[Kind] = "score"
    processes: ClassVar[tuple[type[Process], ...]] = (Absorbing, Uniform)
    needs_time: ClassVar[bool] = True

    @override
    def num_outputs(self, process: Process) -> int:
        assert isinstance(process, DiscreteProcess)
        return process.states

    def read(
        self,
        outputs: Float[Tensor, "*n states"],
        z: Int[Tensor, "*n"],
        t: Float[Tensor, "*n"] | None,
        process: Process,
    ) -> Float64[Tensor, "*n states"]:
        """Turn outputs into log-scores, in float64 since ratios are unbounded towards t = 0."""
        scores = outputs.double()
        if isinstance(process, Absorbing):
            assert t is not None  # by needs_time
            level = log_expm1(process.sigma(before_the_end(t))) + math.log(process.vocab_size)
            scores = scores - level[..., None]
        return scores.scatter(-1, z[..., None].long(), 0.0)


def before_the_end(t: Float[Tensor, "*n"]) -> Float64[Tensor, "*n"]:
    """Clamp times to just below 1, where nothing of the data may be left and ratios are 0 / 0."""
    return t.double().clamp_max(1 - 1e-9)


def log_expm1(sigma: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """log(e^sigma - 1), accurate at both ends."""
    return torch.where(sigma < 1, sigma.expm1().log(), sigma + torch.log(-torch.expm1(-sigma)))

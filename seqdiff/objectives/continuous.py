"""The bound in continuous time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from seqdiff.denoiser import Denoiser, Needs
from seqdiff.losses import continuous_terms
from seqdiff.objectives.base import Objective, add_ends, corrupted
from seqdiff.objectives.time_sampling import TimeSampler, Uniform
from seqdiff.process import DiscreteProcess
from seqdiff.rng import CounterNoise
from seqdiff.types import Batch


@dataclass(frozen=True)
class ContinuousNELBO(Objective):
    """The continuous-time bound at one random time a sequence, for every discrete process.

    For masked diffusion it is MDLM's loss (Sahoo et al. 2024, arXiv:2406.07524, equation 10); for
    scores SEDD's, see ``losses.score_entropy``; for leave-one-out predictions that of UDLM and
    GIDD, see ``losses.ctmc_nelbo``. What the bound pays at both ends of time is counted, see
    ``add_ends``.

    Attributes:
        time_sampler: Draws the times.
    """

    needs: ClassVar[Needs] = Needs((DiscreteProcess,))
    time_sampler: TimeSampler = field(default_factory=Uniform)

    @override
    def terms(self, denoiser: Denoiser, batch: Batch, noise: CounterNoise) -> Float[Tensor, "B L"]:
        t, inverse_density = self.time_sampler.sample(batch.index, noise=noise)
        process = denoiser.process
        assert isinstance(process, DiscreteProcess)  # by ``needs``
        if process.uneven:
            t, slope = process.time_at(t)
            inverse_density = inverse_density * slope
        z = corrupted(denoiser, batch, t, noise)
        terms = continuous_terms(denoiser, batch, z, t, inverse_density)
        return add_ends(terms, denoiser, batch, noise)

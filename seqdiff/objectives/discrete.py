"""The bound of a chain with a finite number of steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from seqdiff.denoiser import Denoiser, Needs
from seqdiff.losses import step_terms
from seqdiff.objectives.base import Objective, add_ends, corrupted
from seqdiff.objectives.time_sampling import TimeSampler, Uniform
from seqdiff.process import DiscreteProcess
from seqdiff.rng import CounterNoise
from seqdiff.types import Batch


@dataclass(frozen=True)
class DiscreteNELBO(Objective):
    """The bound of a chain with ``num_steps`` steps, at one random step a sequence: D3PM's loss.

    Source: Austin et al. 2021, arXiv:2107.03006, equations 3 and 5; for masked diffusion Sahoo et
    al. 2024, arXiv:2406.07524, equation 8. There the loss is the term of one step, here T times it.

    Attributes:
        num_steps: T, steps of the chain.
        time_sampler: Draws the times that fall into the steps.
        auxiliary: Coefficient lambda of the cross-entropy of x0 that D3PM adds to each step (the
            hybrid loss): .01 is published for absorbing text, 0 for uniform. Above 0 the loss is
            no bound; runs are validated without it.
    """

    needs: ClassVar[Needs] = Needs((DiscreteProcess,), ("loo", "full"))
    num_steps: int
    time_sampler: TimeSampler = field(default_factory=Uniform)
    auxiliary: float = 0.0

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            ValueError: If there is no step, or the coefficient is negative.
        """
        if self.num_steps < 1:
            raise ValueError(
                f"DiscreteNELBO.num_steps must be at least 1, got {self.num_steps}; "
                "use ContinuousNELBO for the limit of many steps"
            )
        if not self.auxiliary >= 0:
            raise ValueError(
                f"DiscreteNELBO.auxiliary must be at least 0, got {self.auxiliary}; 0.01 is "
                "published for absorbing text"
            )

    @override
    def terms(self, denoiser: Denoiser, batch: Batch, noise: CounterNoise) -> Float[Tensor, "B L"]:
        u, inverse_density = self.time_sampler.sample(batch.index, noise=noise)
        step = (u * self.num_steps).floor().clamp_max(self.num_steps - 1)
        s, t = step / self.num_steps, (step + 1) / self.num_steps
        z = corrupted(denoiser, batch, t, noise)
        weight = self.num_steps * inverse_density
        extra = self.auxiliary * self.num_steps
        terms = step_terms(denoiser, batch, z, s, t, weight, extra)
        return add_ends(terms, denoiser, batch, noise)

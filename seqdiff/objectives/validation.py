"""What a run is validated by, whatever it is trained by."""

from __future__ import annotations

from dataclasses import replace

from seqdiff.denoiser import Denoiser
from seqdiff.objectives.base import Objective
from seqdiff.objectives.continuous import ContinuousNELBO
from seqdiff.objectives.discrete import DiscreteNELBO
from seqdiff.objectives.gaussian import GaussianVLB
from seqdiff.objectives.time_sampling import Sobol
from seqdiff.objectives.weighted_mlm import WeightedMLM
from seqdiff.parameterization import Subs


def validation_objective(objective: Objective, denoiser: Denoiser) -> Objective:
    """Choose the estimate of the bound with the least variance for a kind of model.

    Numbers of runs of one process compare, whatever they were trained by. A chain of T steps is
    validated as that chain, unless it is masked diffusion, whose network does not depend on T.

    Args:
        objective: What the run is trained by.
        denoiser: The model.
    """
    process, parameterization = denoiser.process, denoiser.parameterization
    if isinstance(parameterization, Subs) and parameterization.carry_over:
        return WeightedMLM()
    if process.context == "prefix" or isinstance(objective, GaussianVLB):
        return objective
    if isinstance(objective, DiscreteNELBO):
        return replace(objective, auxiliary=0.0)
    return ContinuousNELBO(Sobol())

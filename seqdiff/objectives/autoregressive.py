"""The likelihood of autoregressive models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from seqdiff.denoiser import Denoiser, Needs
from seqdiff.losses import weighted
from seqdiff.objectives.base import Objective
from seqdiff.process import LeftToRight
from seqdiff.rng import CounterNoise
from seqdiff.types import Batch


@dataclass(frozen=True)
class Autoregressive(Objective):
    """The exact negative log-likelihood from left to right, by the chain rule, in one pass.

    Positions outside the loss mask are context: given to those after them, not counted.
    """

    needs: ClassVar[Needs] = Needs((LeftToRight,))

    def terms(self, denoiser: Denoiser, batch: Batch, noise: CounterNoise) -> Float[Tensor, "B L"]:
        """See ``Objective``; nothing is random."""
        del noise
        where = batch.loss_mask & (batch.tokens != denoiser.process.unknown_id)
        one = torch.ones(len(where), device=where.device)
        return weighted(denoiser, batch, batch.tokens, None, where, one)

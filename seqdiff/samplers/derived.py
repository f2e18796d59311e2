"""Denoisers made of another, which every sampler takes in its place."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from seqdiff.parameterization import Denoiser


class DerivedDenoiser(Denoiser, ABC):
    """A denoiser whose laws are made of those of another.

    A new one implements ``log_probs_at`` and, if it costs more than the other, ``evaluations``.

    Args:
        denoiser: The other, itself derived or not.

    Raises:
        ValueError: If it is one of block diffusion, which also remembers the blocks behind it.
    """

    def __init__(self, denoiser: Denoiser) -> None:
        if denoiser.kind == "block":
            raise ValueError(
                f"{type(self).__name__}.denoiser must not be one of block diffusion, which reads "
                f"clean blocks apart from noisy ones, got a {type(denoiser).__name__}; "
                "BlockClassifierFree guides those to a label"
            )
        super().__init__(denoiser.backbone, denoiser.vocab_size, denoiser.schedule)
        self.denoiser = denoiser
        self.kind = denoiser.kind

    def forward(
        self,
        x_t: Int[Tensor, "B L"],
        t: Float[Tensor, " B"] | None = None,
        padding: Bool[Tensor, "B L"] | None = None,
        label: Int[Tensor, " B"] | None = None,
    ) -> Float[Tensor, "B L K"]:
        """See ``Denoiser``."""
        everywhere = torch.ones_like(x_t, dtype=torch.bool)
        law = self.log_probs_at(x_t, everywhere, t, padding, label)
        return law.view(*x_t.shape, self.vocab_size)

    @abstractmethod
    def log_probs_at(
        self,
        x_t: Int[Tensor, "B L"],
        where: Bool[Tensor, "B L"],
        t: Float[Tensor, " B"] | None = None,
        padding: Bool[Tensor, "B L"] | None = None,
        label: Int[Tensor, " B"] | None = None,
    ) -> Float[Tensor, "N K"]:
        """See ``Denoiser``; ``forward`` asks about every position."""

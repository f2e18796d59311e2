"""The time grid of samplers that step from t = 1 to t = 0."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from seqdiff.samplers.decoding import DecodingSampler


@dataclass(frozen=True)
class GridSampler(DecodingSampler):
    """A sampler of ``num_steps`` equal steps.

    Attributes:
        num_steps: Steps from t = 1 to t = 0.
    """

    num_steps: int = 128

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            ValueError: If one is out of its range.
        """
        super().__post_init__()
        self._require(
            self.num_steps >= 1,
            "num_steps",
            "be at least 1",
            "the sequence length is a good choice",
        )

    def times(self, device: torch.device) -> Float64[Tensor, " n"]:
        """The ``num_steps + 1`` times, from 1 down to 0."""
        return torch.linspace(1, 0, self.num_steps + 1, dtype=torch.float64, device=device)

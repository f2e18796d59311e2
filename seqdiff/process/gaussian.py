"""Gaussian noise on embeddings: the process of Plaid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from seqdiff.process.base import Process, check_vocab_size, require


@dataclass(frozen=True)
class Gaussian(Process):
    """z_t = sqrt(sigmoid(-g(t))) e(x0) + sqrt(sigmoid(g(t))) eps, with a learned embedding e.

    What is learned, the embedding and the curve g, belongs to the denoiser; this holds the
    settings. Source: Gulrajani and Hashimoto 2023, arXiv:2305.18619.

    Attributes:
        vocab_size: K, the number of real symbols.
        dim: Channels of an embedding, whose norm is 1.
        gamma_0: g(0) at the start of training, a negative log signal-to-noise ratio.
        gamma_1: g(1) at the start of training.
        self_conditioning: Whether the network is also shown its last prediction.
    """

    name: ClassVar[str] = "gaussian"
    vocab_size: int
    dim: int = 16
    gamma_0: float = -3.0
    gamma_1: float = 6.0
    self_conditioning: bool = False

    def __post_init__(self) -> None:
        """Check the arguments.

        Raises:
            ValueError: If there is no symbol or no channel, or g does not grow.
        """
        check_vocab_size("Gaussian", self.vocab_size)
        require(self.dim >= 1, "Gaussian.dim", "be at least 1", self.dim, "16 is published")
        require(
            self.gamma_0 < self.gamma_1,
            "Gaussian.gamma_0 and gamma_1",
            "satisfy gamma_0 < gamma_1",
            (self.gamma_0, self.gamma_1),
            "-3 and 6 are published",
        )

    def sigma(self, t: Float[Tensor, "*n"]) -> Float64[Tensor, "*n"]:
        """See ``Process``: -log of the signal's variance on the straight curve between the ends."""
        gamma = self.gamma_0 + (self.gamma_1 - self.gamma_0) * t.double()
        return torch.nn.functional.softplus(gamma)

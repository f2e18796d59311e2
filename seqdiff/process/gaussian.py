"""Gaussian noise on embeddings: the process of Plaid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Float64
from torch import Tensor

from seqdiff.process.base import Process, check_vocab_size
from seqdiff.schedules import require


@dataclass(frozen=True)
class Gaussian(Process):
    """z_t = sqrt(sigmoid(-g(t))) e(x0) + sqrt(sigmoid(g(t))) eps, with a learned embedding e.

    The embedding and the curve g are learned and belong to the denoiser.
    Source: Gulrajani and Hashimoto 2023, arXiv:2305.18619.

    Attributes:
        vocab_size: K, the number of real symbols.
        dim: Channels of an embedding, whose norm is 1.
        gamma_0: g(0) at the start of training, a negative log signal-to-noise ratio.
        gamma_1: g(1) at the start of training.
        self_conditioning: Whether the network also sees its own first prediction, which takes two
            evaluations; in training this is done for a quarter of the rows.
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
        """Return the noise level of the straight line g that training starts from."""
        return -log_signal(self.gamma_0 + (self.gamma_1 - self.gamma_0) * t.double())


def log_signal(gamma: Float[Tensor, "*n"]) -> Float64[Tensor, "*n"]:
    """Return log A^2 at a negative log signal-to-noise ratio; sigma is its negative."""
    return F.logsigmoid(-gamma.double())


def scales(gamma: Float[Tensor, "*n"]) -> tuple[Float64[Tensor, "*n"], Float64[Tensor, "*n"]]:
    """Factors A of the embedding and S of the noise; A^2 + S^2 = 1.

    Args:
        gamma: Negative log signal-to-noise ratio.
    """
    return (log_signal(gamma) / 2).exp(), (log_signal(-gamma) / 2).exp()


def posterior(
    z: Float[Tensor, "*n d"],
    clean: Float[Tensor, "*n d"],
    gamma_s: Float[Tensor, "*#n"],
    gamma_t: Float[Tensor, "*#n"],
) -> tuple[Float64[Tensor, "*n d"], Float64[Tensor, "*#n 1"]]:
    """Mean and standard deviation of q(z_s | z_t, e): one step back in time.

    Source: Kingma et al. 2021, arXiv:2107.00630, appendix A.2.

    Args:
        z: Noisy embeddings at time t.
        clean: Embeddings e, or a prediction of them.
        gamma_s: g at the earlier time.
        gamma_t: g at the present time, greater.
    """
    (signal_s, noise_s), (signal_t, _) = scales(gamma_s), scales(gamma_t)
    new = -torch.expm1(gamma_s.double() - gamma_t.double())
    mean = (signal_s / signal_t * (1 - new))[..., None] * z + (signal_s * new)[..., None] * clean
    return mean, (noise_s * new.sqrt())[..., None]

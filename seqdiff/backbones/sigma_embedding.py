"""How a time-conditioned network reads the noise level."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

SINUSOID_WIDTH = 256
# -log alpha where 1 - alpha is 0.999, the most that published networks are trained on.
MAX_SIGMA = -math.log(1e-3)


class SigmaEmbedding(nn.Module):
    """A vector for the total noise sigma = -log alpha: sinusoids, then an MLP.

    Args:
        cond_dim: Channels of the condition.
    """

    def __init__(self, cond_dim: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Linear(SINUSOID_WIDTH, cond_dim), nn.SiLU(), nn.Linear(cond_dim, cond_dim)
        )

    def forward(self, sigma: Float[Tensor, " B"]) -> Float[Tensor, "B C"]:
        """Embed each row's noise, which is held at what published networks are trained on.

        Args:
            sigma: Not negative; infinite where everything is masked.
        """
        weight = next(self.parameters())
        half = SINUSOID_WIDTH // 2
        wide = torch.promote_types(weight.dtype, torch.float32)
        steps = torch.arange(half, dtype=wide, device=sigma.device) / half
        angles = sigma.to(wide).clamp_max(MAX_SIGMA)[:, None] * 1e4**-steps
        return self.mlp(torch.cat((angles.cos(), angles.sin()), dim=-1).to(weight.dtype))

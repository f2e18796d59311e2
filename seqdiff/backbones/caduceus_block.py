"""One layer of Caduceus."""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor, nn

from .caduceus_config import CaduceusConfig
from .layers import Norm
from .mamba import BiMamba


class CaduceusBlock(nn.Module):
    """Pre-norm residual block around a bidirectional mixer; there is no MLP.

    Args:
        config: The network's shape.
        backend: Kernel of the convolutions and scans.
    """

    def __init__(self, config: CaduceusConfig, backend: str = "auto") -> None:
        super().__init__()
        self.norm = Norm(config.d_model, config.norm, config.norm_eps)
        self.mixer = BiMamba(
            config.d_model,
            config.mamba,
            tied=config.tied,
            combine=config.combine,
            backend=backend,
        )

    def forward(
        self,
        x: Float[Tensor, "B L D"],
        padding: Bool[Tensor, "B L"] | None = None,
        *,
        mirrored: bool = False,
    ) -> Float[Tensor, "B L D"]:
        """Add the mixer's output to the residual stream.

        Args:
            x: Residual stream.
            padding: See ``BiMamba.forward``.
            mirrored: ``x`` and the result are stored reversed in length and in channels.
        """
        return x + self.mixer(self.norm(x, mirrored=mirrored), padding, mirrored=mirrored)

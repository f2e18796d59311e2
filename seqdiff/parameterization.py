"""SUBS: how K logits become the law of the clean token."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from seqdiff.backbones.protocol import Backbone


def subs_log_probs(
    logits: Float[Tensor, "B L K"], x_t: Int[Tensor, "B L"]
) -> Float[Tensor, "B L K"]:
    """Normalise in float32 or better, and copy the visible tokens.

    Zero masking probability holds by shape, since there is no column for the mask; carry-over
    unmasking by the copy. Source: Sahoo et al. 2024, arXiv:2406.07524, section 3.2.3.

    Args:
        logits: Scores of the K symbols.
        x_t: Ids in ``0..K``; K is the mask.

    Returns:
        Log-probabilities in nats; at visible positions 0 for the token and ``-inf`` elsewhere.
    """
    vocab_size = logits.shape[-1]
    dtype = torch.promote_types(logits.dtype, torch.float32)
    masked = (x_t == vocab_size)[..., None]
    copied = x_t[..., None] == torch.arange(vocab_size, device=x_t.device)
    visible = torch.where(copied, 0.0, -torch.inf).to(dtype)
    return torch.where(masked, logits.log_softmax(dim=-1, dtype=dtype), visible)


class Denoiser(nn.Module):
    """A backbone with its parameterization: the only thing that losses and samplers call."""

    def __init__(self, backbone: Backbone, vocab_size: int) -> None:
        """Wrap a backbone.

        Args:
            backbone: Embeds K+1 ids, emits K logits.
            vocab_size: K.
        """
        super().__init__()
        self.backbone = backbone
        self.vocab_size = vocab_size

    def forward(
        self,
        x_t: Int[Tensor, "B L"],
        t: Float[Tensor, " B"] | None = None,
        padding: Bool[Tensor, "B L"] | None = None,
    ) -> Float[Tensor, "B L K"]:
        """Give the law of every clean token, in nats.

        Raises:
            ValueError: If the backbone does not emit K logits.
        """
        logits = self.backbone(x_t, t, padding)
        if logits.shape[-1] != self.vocab_size:
            raise ValueError(
                f"Denoiser.backbone must emit vocab_size = {self.vocab_size} logits, got "
                f"{logits.shape[-1]}; build it with num_logits={self.vocab_size}"
            )
        with torch.autocast(logits.device.type, enabled=False):
            return subs_log_probs(logits, x_t)

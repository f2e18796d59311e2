"""What every backbone promises the core."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from jaxtyping import Bool, Float, Int
from torch import Tensor


@runtime_checkable
class Backbone(Protocol):
    """A network that embeds K+1 ids and emits K logits a position.

    A backbone that a run config can name is an ``nn.Module`` whose constructor takes
    ``num_embeddings`` (K+1) and ``num_logits`` (K); both are linked from the tokenizer.
    """

    def __call__(
        self,
        tokens: Int[Tensor, "B L"],
        t: Float[Tensor, " B"] | None = None,
        padding: Bool[Tensor, "B L"] | None = None,
    ) -> Float[Tensor, "B L K"]:
        """Score every symbol at every position.

        Args:
            tokens: Ids in ``0..K``, where ``K`` is the mask.
            t: Diffusion time in [0, 1]; ignored by time-free networks.
            padding: True at positions that hold nothing and must not be attended to.
        """
        ...

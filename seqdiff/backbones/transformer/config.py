"""Sizes and options of transformers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from seqdiff.backbones.layers import require_positive


@dataclass(frozen=True, kw_only=True)
class TransformerShape:
    """Sizes that every transformer has.

    Attributes:
        d_model: Model width.
        n_layer: Number of blocks.
        n_heads: Number of attention heads; ``d_model`` must be a multiple of ``2 * n_heads``.
        dropout: Probability with which training drops an entry of a branch's output.
        max_length: Length of the longest row.
        num_embeddings: Number of ids that can be embedded.
        num_logits: Number of ids that are scored, which are the first ones.
        num_signals: Number of values that a row can be conditioned on; ``None`` without signals.
    """

    owner: ClassVar[str] = "AutoregressiveTransformer"

    d_model: int
    n_layer: int
    n_heads: int
    dropout: float
    max_length: int
    num_embeddings: int
    num_logits: int
    num_signals: int | None = None

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            ValueError: If a field is out of range.
        """
        names = ("d_model", "n_layer", "n_heads", "max_length", "num_embeddings", "num_logits")
        for name in (*names, *(() if self.num_signals is None else ("num_signals",))):
            require_positive(self.owner, name, getattr(self, name))
        if self.d_model % (2 * self.n_heads):
            raise ValueError(
                f"{self.owner}.d_model must be a multiple of 2 * n_heads = {2 * self.n_heads}, "
                "since rotary positions rotate pairs of channels of a head, got "
                f"{self.d_model}; change either"
            )
        if not 0 <= self.dropout < 1:
            raise ValueError(
                f"{self.owner}.dropout must be in [0, 1), got {self.dropout}; 0 switches it off"
            )
        if self.num_logits > self.num_embeddings:
            raise ValueError(
                f"{self.owner}.num_logits must not exceed num_embeddings, whose first ids are "
                f"scored; got {self.num_logits} > {self.num_embeddings}"
            )


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(TransformerShape):
    """Sizes and options of a ``Transformer``.

    Attributes:
        cond_dim: Width of the vector that modulates the blocks.
        time_conditioned: Whether this vector depends on the noise level sigma.
        num_classes: Number of classes that a row can be labelled with; ``None`` without classes.
    """

    owner: ClassVar[str] = "Transformer"

    cond_dim: int
    time_conditioned: bool
    num_classes: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self.owner, "cond_dim", self.cond_dim)
        if self.num_classes is not None:
            require_positive(self.owner, "num_classes", self.num_classes)

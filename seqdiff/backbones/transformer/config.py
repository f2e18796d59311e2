"""The shape of a transformer, checked before anything is built."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from seqdiff.backbones.layers import require_positive


@dataclass(frozen=True, kw_only=True)
class TransformerShape:
    """Sizes that every transformer has.

    Attributes:
        d_model: Model width.
        n_layer: Number of blocks.
        n_heads: Attention heads, which share the width.
        dropout: Probability that an entry of a branch is dropped before it joins the residual
            stream, while training.
        max_length: Longest row.
        num_embeddings: Ids that can be embedded.
        num_logits: Ids that are scored, the first ones.
    """

    owner: ClassVar[str] = "AutoregressiveTransformer"

    d_model: int
    n_layer: int
    n_heads: int
    dropout: float
    max_length: int
    num_embeddings: int
    num_logits: int

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            ValueError: If one is out of range, or the heads do not share the width in even parts.
        """
        for name in ("d_model", "n_layer", "n_heads", "max_length", "num_embeddings", "num_logits"):
            require_positive(self.owner, name, getattr(self, name))
        if self.d_model % (2 * self.n_heads):
            raise ValueError(
                f"{self.owner}.d_model must be a multiple of 2 * n_heads = {2 * self.n_heads}, "
                f"since rotary positions turn pairs of channels of a head, got {self.d_model}; "
                "change either"
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

    def require_length(self, length: int) -> None:
        """Check that a row fits.

        Args:
            length: Of the row.

        Raises:
            ValueError: If it is longer than the context.
        """
        if length > self.max_length:
            raise ValueError(
                f"{self.owner}.tokens must be at most max_length = {self.max_length} long, got "
                f"{length}; cut the rows, or build it with a larger max_length"
            )

    def require_padding(self, padding: Tensor | None, tokens: Tensor) -> None:
        """Check that there is one flag a token.

        Args:
            padding: True at positions that hold nothing.
            tokens: Ids.

        Raises:
            ValueError: If the shapes differ.
        """
        if padding is not None and padding.shape != tokens.shape:
            raise ValueError(
                f"{self.owner}.padding must have the shape {tuple(tokens.shape)} of tokens, got "
                f"{tuple(padding.shape)}; pass one flag a token"
            )


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(TransformerShape):
    """Everything that decides what a ``Transformer`` computes, except its weights.

    Attributes:
        cond_dim: Width of the condition.
        time_conditioned: Whether the condition depends on sigma.
        num_classes: Classes that a row can be labelled with; None for a network without labels.
    """

    owner: ClassVar[str] = "Transformer"

    cond_dim: int
    time_conditioned: bool
    num_classes: int | None = None

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            ValueError: See ``TransformerShape``.
        """
        super().__post_init__()
        require_positive(self.owner, "cond_dim", self.cond_dim)
        if self.num_classes is not None:
            require_positive(self.owner, "num_classes", self.num_classes)

    def require_blocks(
        self, x_t: Tensor, x0: Tensor, block_size: int, padding: Tensor | None
    ) -> None:
        """Check what the network is to score by blocks.

        Args:
            x_t: Corrupted ids.
            x0: Clean ids.
            block_size: Tokens of a block.
            padding: True at positions that hold nothing.

        Raises:
            ValueError: See ``Transformer.block_logits``.
        """
        self.require_time_free("block_logits")
        require_positive(self.owner, "block_size", block_size)
        self.require_length(x_t.shape[1])
        if x0.shape != x_t.shape:
            raise ValueError(
                f"{self.owner}.x0 must have the shape {tuple(x_t.shape)} of x_t, got "
                f"{tuple(x0.shape)}; pass the row that x_t was made of"
            )
        self.require_padding(padding, x_t)
        if padding is None or torch.compiler.is_compiling():
            return
        if bool((padding[:, :-1] & ~padding[:, 1:]).any()):
            raise ValueError(
                f"{self.owner}.padding must come after the last token of a row, got a token after "
                "padding; blocks are counted from the first position, so move padding to the end"
            )

    def require_cache(
        self, batch_size: int, block_size: int, window: int | None, label: Tensor | None
    ) -> int:
        """Check the sizes of a cache.

        Args:
            batch_size: Rows.
            block_size: Tokens of a block.
            window: Most tokens behind that are seen; None for as many as fit into the context.
            label: Of each row.

        Returns:
            The window.

        Raises:
            ValueError: See ``Transformer.block_cache``.
        """
        self.require_time_free("block_cache")
        require_positive(self.owner, "batch_size", batch_size)
        require_positive(self.owner, "block_size", block_size)
        if label is not None and len(label) != batch_size:
            raise ValueError(
                f"{self.owner}.label must be one class for each of batch_size = {batch_size} rows, "
                f"got {len(label)}; repeat it"
            )
        if window is None:
            return max(0, self.max_length - block_size) // block_size * block_size
        if isinstance(window, bool) or not isinstance(window, int) or window < 0:
            raise ValueError(
                f"{self.owner}.window must be an integer of at least 0, got {window!r}"
            )
        if window % block_size:
            raise ValueError(
                f"{self.owner}.window must be a multiple of block_size = {block_size}, got "
                f"{window}; {window - window % block_size} is the next below"
            )
        return window

    def require_time_free(self, method: str) -> None:
        """Check that the network is not told the noise, of which each block has its own.

        Args:
            method: What was called.

        Raises:
            ValueError: If it is.
        """
        if self.time_conditioned:
            raise ValueError(
                f"{self.owner}.{method} must be asked of a time-free network, got one with "
                "time_conditioned=True; build it with time_conditioned=False"
            )

"""Block diffusion with state spaces: what is behind a block is one state and a few tokens."""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ..ops.selective_scan import BACKENDS
from .block_mixing import begin, read_borders, read_clean, read_noisy
from .caduceus_block import CaduceusBlock
from .caduceus_config import CaduceusConfig
from .layers import LabelEmbedding, Norm, NormKind, require_choice, require_layer, require_positive
from .mamba import MambaConfig
from .state_cache import StateCache


class BlockMamba(nn.Module):
    """The network of ``Caduceus`` (``ph``), also as a network of blocks.

    A block of noisy tokens is read in both directions. From left to right it begins with the state
    of the scan, and the last inputs of the convolution, that the clean tokens before it left; from
    right to left it knows nothing beyond its end. The clean tokens are read by the same network,
    whose direction from left to right runs through the row while the other begins anew in every
    block, so that neither depends on a later block. Time and memory grow linearly with the length,
    and what has to be kept to go on does not grow at all.

    Parameters have the names and shapes of ``Caduceus`` of variant ``ph`` with the same sizes,
    whose weights load strictly.

    Args:
        d_model: Model width.
        n_layer: Number of layers.
        num_embeddings: Ids that can be embedded; K + 1 with a mask.
        num_logits: Ids that are scored, the first ones; K with a mask.
        num_classes: Classes that a row can be labelled with; None for a network without labels.
        norm: ``rms`` or ``layer``.
        norm_eps: Added to the mean square.
        d_state: State width of each channel.
        d_conv: Width of the causal convolution.
        expand: Inner width as a multiple of ``d_model``.
        dt_rank: Rank of the step-size projection; ``auto`` is ``ceil(d_model / 16)``.
        dt_min: Smallest initial step size.
        dt_max: Largest initial step size.
        dt_init_floor: Initial step sizes are raised to this.
        conv_bias: Whether the convolution has a bias.
        bias: Whether the input and output projections have one.
        backend: Kernel of the convolutions and scans; ``auto`` takes the fastest that fits.

    Raises:
        ValueError: If an argument is out of range.
    """

    def __init__(
        self,
        d_model: int,
        n_layer: int,
        *,
        num_embeddings: int,
        num_logits: int,
        num_classes: int | None = None,
        norm: NormKind = "rms",
        norm_eps: float = 1e-5,
        d_state: int = 16,
        d_conv: int = 4,
        expand: int = 2,
        dt_rank: int | Literal["auto"] = "auto",
        dt_min: float = 1e-3,
        dt_max: float = 1e-1,
        dt_init_floor: float = 1e-4,
        conv_bias: bool = True,
        bias: bool = False,
        backend: str = "auto",
    ) -> None:
        super().__init__()
        mamba = MambaConfig(
            d_state, d_conv, expand, dt_rank, dt_min, dt_max, dt_init_floor, conv_bias, bias
        )
        config = CaduceusConfig(
            d_model=d_model,
            n_layer=n_layer,
            num_embeddings=num_embeddings,
            num_logits=num_logits,
            norm=norm,
            norm_eps=norm_eps,
            mamba=mamba,
            num_classes=num_classes,
        )
        require_choice("BlockMamba", "backend", backend, BACKENDS)
        self.config = config
        self.num_classes = num_classes
        self.embedding = nn.Embedding(num_embeddings, d_model)
        self.layers = nn.ModuleList(CaduceusBlock(config, backend) for _ in range(n_layer))
        self.norm = Norm(d_model, norm, norm_eps)
        nn.init.normal_(self.embedding.weight, std=0.02)
        for layer in self.stack:
            layer.mixer.initialise_projections(n_layer)
        self.label_embedding: LabelEmbedding | None = None
        if num_classes is not None:  # last, so that the other weights do not depend on it
            self.label_embedding = LabelEmbedding(num_classes, d_model)

    @property
    def stack(self) -> list[CaduceusBlock]:
        """The layers, from first to last."""
        return [layer for layer in self.layers if isinstance(layer, CaduceusBlock)]

    def forward(
        self,
        tokens: Int[Tensor, "B L"],
        t: Float[Tensor, " B"] | None = None,
        padding: Bool[Tensor, "B L"] | None = None,
        label: Int[Tensor, " B"] | None = None,
    ) -> Float[Tensor, "B L K"]:
        """Score every position by the whole row: one block as long as the row.

        Args:
            tokens: Ids below ``num_embeddings``.
            t: Ignored; the network does not depend on time.
            padding: True at positions before the first or after the last real one. The logits at
                the real ones are those of the row without padding.
            label: See ``LabelledBackbone``; only for a network with classes.

        Raises:
            ValueError: If there is a label and the network has no classes.
        """
        return self.score(self._both_ways(tokens, padding, label))

    def logits_at(
        self,
        tokens: Int[Tensor, "B L"],
        where: Bool[Tensor, "B L"],
        t: Float[Tensor, " B"] | None = None,
        padding: Bool[Tensor, "B L"] | None = None,
        label: Int[Tensor, " B"] | None = None,
    ) -> Float[Tensor, "N K"]:
        """See ``SelectiveBackbone``; the arguments and refusals are those of ``forward``."""
        return self.score(self._both_ways(tokens, padding, label), where)

    @property
    def num_layers(self) -> int:
        """See ``HiddenBackbone``."""
        return len(self.layers)

    @property
    def strands(self) -> int:
        """See ``HiddenBackbone``."""
        return 1

    def hidden(
        self,
        tokens: Int[Tensor, "B L"],
        padding: Bool[Tensor, "B L"] | None = None,
        layer: int | None = None,
    ) -> Float[Tensor, "B L D"]:
        """See ``HiddenBackbone``; the row is one block."""
        require_layer("BlockMamba", layer, self.num_layers)
        x = self._both_ways(tokens, padding, None, layer)
        return self.norm(x) if layer is None else x

    def block_logits(
        self,
        x_t: Int[Tensor, "B L"],
        x0: Int[Tensor, "B L"],
        block_size: int,
        where: Bool[Tensor, "B L"] | None = None,
        padding: Bool[Tensor, "B L"] | None = None,
        label: Int[Tensor, " B"] | None = None,
    ) -> Float[Tensor, "B L K"] | Float[Tensor, "N K"]:
        """Score every position given its own block of x_t and the earlier blocks of x0, at once.

        Args:
            x_t: Corrupted ids.
            x0: Clean ids; those of the last block are not read.
            block_size: Tokens of a block; the last may be shorter.
            where: Positions to score; ``None`` for all.
            padding: Positions that hold nothing, after the last token of a shorter row.
            label: See ``LabelledBackbone``; only for a network with classes.

        Raises:
            ValueError: If ``block_size`` is below one, or there is a label and the network has no
                classes.
        """
        require_positive("BlockMamba", "block_size", block_size)
        behind = (x_t.shape[1] - 1) // block_size * block_size
        if not behind:
            return self.score(self._both_ways(x_t, padding, label), where)
        clean, noisy = self.embed(x0[:, :behind], label), self.embed(x_t, label)
        absent = None if padding is None else padding[:, :behind]
        for layer in self.stack:
            start = begin(layer, len(clean))
            if layer is self.stack[-1]:
                borders = read_borders(layer, clean, block_size, start, absent)
            else:
                clean, borders = read_clean(layer, clean, block_size, start, absent)
            noisy = read_noisy(layer, noisy, block_size, borders, padding)
        return self.score(noisy, where)

    def block_cache(
        self,
        batch_size: int,
        block_size: int,
        *,
        window: int | None = None,
        label: Int[Tensor, " B"] | None = None,
    ) -> StateCache:
        """Open an empty cache, to score a row block by block.

        Args:
            batch_size: Rows.
            block_size: Tokens of a block.
            window: Of no consequence: a state forgets by itself.
            label: See ``block_logits``.

        Raises:
            ValueError: If a size is below one, or there is a label and the network has no classes.
        """
        require_positive("BlockMamba", "batch_size", batch_size)
        require_positive("BlockMamba", "block_size", block_size)
        self._check_label(label)
        return StateCache.empty(self, batch_size, block_size, label)

    def embed(
        self, tokens: Int[Tensor, "B L"], label: Int[Tensor, " B"] | None
    ) -> Float[Tensor, "B L D"]:
        """Begin the residual stream.

        Args:
            tokens: Ids below ``num_embeddings``.
            label: See ``LabelledBackbone``.

        Raises:
            ValueError: If there is a label and the network has no classes.
        """
        self._check_label(label)
        x = self.embedding(tokens)
        return x if self.label_embedding is None else x + self.label_embedding(label, tokens)

    def score(
        self, x: Float[Tensor, "B L D"], where: Bool[Tensor, "B L"] | None = None
    ) -> Float[Tensor, "B L K"] | Float[Tensor, "N K"]:
        """End the residual stream.

        Args:
            x: Of the last layer.
            where: Positions to score; ``None`` for all.
        """
        x = x if where is None else x[where]
        return F.linear(self.norm(x), self.embedding.weight[: self.config.num_logits])

    def _both_ways(
        self,
        tokens: Tensor,
        padding: Tensor | None,
        label: Tensor | None,
        layer: int | None = None,
    ) -> Tensor:
        x = self.embed(tokens, label)
        for block in self.stack[:layer]:
            x = block(x, padding)
        return x

    def _check_label(self, label: Tensor | None) -> None:
        if label is not None and self.label_embedding is None:
            raise ValueError(
                "BlockMamba.label must be None for a network without classes, got one of shape "
                f"{tuple(label.shape)}; build it with num_classes"
            )

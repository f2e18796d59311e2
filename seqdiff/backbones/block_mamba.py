"""Block diffusion with state spaces: what is behind a block is one state and a few tokens."""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ..ops.selective_scan import BACKENDS
from ..types import Inputs
from .base import Backbone
from .block_mixing import begin, read_borders, read_clean, read_noisy
from .caduceus_block import CaduceusBlock
from .caduceus_config import CaduceusConfig
from .layers import LabelEmbedding, Norm, NormKind, require_choice, require_positive
from .mamba import MambaConfig
from .state_cache import StateCache


class BlockMamba(Backbone):
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

    reads_blocks = True

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
        self.width, self.num_logits = d_model, num_logits
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

    @property
    def num_layers(self) -> int:
        """Number of blocks."""
        return len(self.layers)

    def embed(self, inputs: Inputs) -> Float[Tensor, "B L D"]:
        """Embed tokens."""
        return self.embedding(inputs.tokens)

    def labelled(
        self, h: Float[Tensor, "B L D"], label: Int[Tensor, " B"] | None
    ) -> Float[Tensor, "B L D"]:
        """Add each row's label to its embedded tokens.

        Args:
            h: From ``embed``.
            label: Class of each row or ``NO_LABEL``; ``None`` if no row has one.
        """
        return h if self.label_embedding is None else h + self.label_embedding(label, h)

    def body(
        self, h: Float[Tensor, "B L D"], inputs: Inputs, layer: int | None = None
    ) -> Float[Tensor, "B L D"]:
        """Run the layers over the whole row: one block as long as the row.

        Args:
            h: See ``Backbone.body``.
            inputs: Padding must lie before the first or after the last real position of a row. The
                outputs at the real ones are those of the row without padding.
            layer: See ``Backbone.body``.
        """
        h = self.labelled(h, inputs.label)
        for block in self.stack[:layer]:
            h = block(h, inputs.padding)
        return h

    def head(
        self, h: Float[Tensor, "B L D"], inputs: Inputs, where: Bool[Tensor, "B L"] | None = None
    ) -> Float[Tensor, "*positions K"]:
        """Score each position; the weights are the first rows of the embedding."""
        h = h if where is None else h[where]
        return F.linear(self.norm(h), self.embedding.weight[: self.num_logits])

    def _states(
        self, h: Float[Tensor, "B L D"], inputs: Inputs, layer: int | None
    ) -> Float[Tensor, "B L D"]:
        return self.norm(h) if layer is None else h

    def block_logits(
        self,
        inputs: Inputs,
        x0: Int[Tensor, "B L"],
        block_size: int,
        where: Bool[Tensor, "B L"] | None = None,
    ) -> Float[Tensor, "*positions K"]:
        """Score every position given its own block of x_t and the earlier blocks of x0, at once.

        Args:
            inputs: See ``Backbone.block_logits``.
            x0: Clean ids; those of the last block are not read.
            block_size: Tokens of a block; the last may be shorter.
            where: Positions to score; ``None`` for all.

        Raises:
            ValueError: If ``block_size`` is below one, or there is a label and the network has no
                classes.
        """
        require_positive("BlockMamba", "block_size", block_size)
        behind = (x0.shape[1] - 1) // block_size * block_size
        if not behind:
            return self(inputs, where)
        self.check_label(inputs.label)
        padding = inputs.padding
        absent = None if padding is None else padding[:, :behind]
        clean = self.labelled(self.embedding(x0[:, :behind]), inputs.label)
        noisy = self.labelled(self.embed(inputs), inputs.label)
        for layer in self.stack:
            start = begin(layer, len(clean))
            if layer is self.stack[-1]:
                borders = read_borders(layer, clean, block_size, start, absent)
            else:
                clean, borders = read_clean(layer, clean, block_size, start, absent)
            noisy = read_noisy(layer, noisy, block_size, borders, padding)
        return self.head(noisy, inputs, where)

    def block_cache(
        self,
        batch_size: int,
        block_size: int,
        *,
        window: int | None = None,
        label: Int[Tensor, " B"] | None = None,
    ) -> StateCache:
        """See ``Backbone.block_cache``; ``window`` has no effect."""
        require_positive("BlockMamba", "batch_size", batch_size)
        require_positive("BlockMamba", "block_size", block_size)
        self.check_label(label)
        return StateCache.empty(self, batch_size, block_size, label)

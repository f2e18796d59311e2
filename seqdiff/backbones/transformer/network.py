"""The transformer denoiser of MDLM and BD3-LM (DiT), with their published weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import cast

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from seqdiff.backbones.base import Backbone
from seqdiff.backbones.layers import LabelEmbedding, SigmaEmbedding
from seqdiff.backbones.transformer.block_pass import Layers, Pair, choose_pass
from seqdiff.backbones.transformer.cache import TransformerCache
from seqdiff.backbones.transformer.config import TransformerConfig
from seqdiff.backbones.transformer.hub import (
    BlockDiffusionFields,
    read_config,
    read_weights,
    write_hub,
)
from seqdiff.backbones.transformer.layers import (
    AdaptiveBlock,
    AdaptiveHead,
    Rotary,
    rotary_table,
    token_embedding,
)
from seqdiff.backbones.transformer.packing import lay_out
from seqdiff.types import Inputs


class Transformer(Backbone):
    """The network of Sahoo et al. 2024, arXiv:2406.07524, and Arriola et al. 2025, 2503.09573.

    Bidirectional attention with rotary positions; every norm and branch is modulated by a condition
    (adaLN-zero; Peebles and Xie 2023, arXiv:2212.09748). The condition is an embedding of the noise
    sigma = -log alpha(t), or of sigma = 0 in a time-free network, where modulation is a learned
    bias and gate; a row's label adds a vector to it.

    Args:
        d_model: Model width.
        n_layer: Number of blocks.
        n_heads: Attention heads, which share the width.
        num_embeddings: Ids that can be embedded; K + 1 with a mask.
        num_logits: Ids that are scored, the first ones; K with a mask.
        num_classes: Classes that a row can be labelled with; None for a network without labels.
        cond_dim: Width of the condition.
        dropout: Probability that an entry of a branch is dropped, while training.
        max_length: Longest row.
        time_conditioned: Whether the network is told the noise. ``Denoiser`` then gives it sigma.

    Attributes:
        config: The checked arguments.
        block_fields: What a BD3-LM folder says beyond the network; None unless it came from one.

    Raises:
        ValueError: If an argument is out of range.
    """

    reads_blocks = True
    head: AdaptiveHead

    def __init__(
        self,
        d_model: int,
        n_layer: int,
        n_heads: int,
        *,
        num_embeddings: int,
        num_logits: int,
        num_classes: int | None = None,
        cond_dim: int = 128,
        dropout: float = 0.1,
        max_length: int = 1024,
        time_conditioned: bool = False,
    ) -> None:
        super().__init__()
        self.config = TransformerConfig(
            d_model=d_model,
            n_layer=n_layer,
            n_heads=n_heads,
            dropout=dropout,
            max_length=max_length,
            num_embeddings=num_embeddings,
            num_logits=num_logits,
            cond_dim=cond_dim,
            time_conditioned=time_conditioned,
            num_classes=num_classes,
        )
        self.width, self.num_logits, self.max_length = d_model, num_logits, max_length
        self.time_conditioned = time_conditioned
        self.num_classes = num_classes
        self.block_fields: BlockDiffusionFields | None = None
        self.embedding = token_embedding(num_embeddings, d_model)
        self.sigma_map = SigmaEmbedding(cond_dim)
        self.blocks = nn.ModuleList(
            AdaptiveBlock(d_model, n_heads, dropout, cond_dim) for _ in range(n_layer)
        )
        self.head = AdaptiveHead(d_model, num_logits, cond_dim, self.condition)
        self.label_embedding: LabelEmbedding | None = None
        if num_classes is not None:  # last, so that the other weights do not depend on it
            self.label_embedding = LabelEmbedding(num_classes, cond_dim)

    @property
    def num_layers(self) -> int:
        """Number of blocks."""
        return len(self.blocks)

    def embed(self, inputs: Inputs) -> Float[Tensor, "B L D"]:
        """Embed tokens.

        Args:
            inputs: See ``Backbone.embed``.

        Raises:
            ValueError: If rows are longer than the context.
        """
        self.config.require_length(inputs.tokens.shape[1])
        return self.embedding(inputs.tokens)

    def body(
        self, h: Float[Tensor, "B L D"], inputs: Inputs, layer: int | None = None
    ) -> Float[Tensor, "B L D"]:
        """Run the blocks.

        Args:
            h: See ``Backbone.body``.
            inputs: Positions of padding cost nothing and get 0; outputs at the real ones are those
                of the row alone. A time-free network ignores ``sigma``; others clamp it at
                -log 1e-3.
            layer: See ``Backbone.body``.

        Raises:
            ValueError: If padding has another shape than tokens, or a time-conditioned network gets
                no ``sigma``.
        """
        self.config.require_padding(inputs.padding, inputs.tokens)
        condition = self.condition(inputs)
        layout = lay_out(inputs.tokens, inputs.padding)
        x, rotary = layout.pack(h), self._rotary(layout.positions)
        for block in self.blocks[:layer]:
            x = block(x, condition, rotary, layout)
        return layout.unpack(x)

    def condition(self, inputs: Inputs) -> Float[Tensor, "#B C"]:
        """Embed the noise level and the label: one vector for each row, or one for all.

        Args:
            inputs: See ``body``.

        Raises:
            ValueError: If a time-conditioned network gets no ``sigma``.
        """
        tokens = inputs.tokens
        zero = torch.zeros(1, device=tokens.device)
        sigma = self._sigma(inputs) if self.time_conditioned else zero
        condition = F.silu(self.sigma_map(sigma))
        if self.label_embedding is None:
            return condition
        return condition + self.label_embedding(inputs.label, tokens)[:, 0]

    def _states(
        self, h: Float[Tensor, "B L D"], inputs: Inputs, layer: int | None
    ) -> Float[Tensor, "B L D"]:
        return self.head.normalised(h, inputs) if layer is None else h

    def block_logits(
        self,
        inputs: Inputs,
        x0: Int[Tensor, "B L"],
        block_size: int,
        where: Bool[Tensor, "B L"] | None = None,
    ) -> Float[Tensor, "*positions K"]:
        """Score every position of x_t given its own block of x_t and the earlier blocks of x0.

        Logits at padding are 0. The halves of [x_t ; x0] share positions; with a block as long as
        the row there is no clean half, and it is the ordinary network. Source: see
        ``block_diffusion_mask``.

        Args:
            inputs: See ``Backbone.block_logits``.
            x0: See ``Backbone.block_logits``.
            block_size: See ``Backbone.block_logits``.
            where: See ``Backbone.block_logits``.

        Raises:
            ValueError: If the block size is no positive integer, rows are longer than the context,
                an argument has another shape than x_t, padding comes before a token, the network is
                time-conditioned (a block has a noise level of its own), or there are labels and
                the network has no classes.
        """
        self.config.require_blocks(inputs.tokens, x0, block_size, inputs.padding)
        self.check_label(inputs.label)
        pair = Pair(inputs.tokens, x0, block_size, inputs.padding)
        return self.head(choose_pass(pair)(self._layers(inputs), pair), inputs, where)

    def block_cache(
        self,
        batch_size: int,
        block_size: int,
        *,
        window: int | None = None,
        label: Int[Tensor, " B"] | None = None,
    ) -> TransformerCache:
        """Open an empty cache, to score rows of any length block by block.

        Args:
            batch_size: See ``Backbone.block_cache``.
            block_size: See ``Backbone.block_cache``.
            window: Most earlier tokens that are seen, a multiple of ``block_size``; ``None`` for
                what is left of the context beside a block.
            label: See ``Backbone.block_cache``.

        Raises:
            ValueError: If a size is no positive integer, the window no multiple of the block size,
                labels are not as many as rows or the network has no classes, or it is
                time-conditioned.
        """
        window = self.config.require_cache(batch_size, block_size, window, label)
        self.check_label(label)
        weight = self.embedding.weight
        rows = torch.empty((batch_size, 0), dtype=torch.int64, device=weight.device)
        layers = self._layers(Inputs(rows, label=label))
        return TransformerCache(layers, self.head, batch_size, block_size, window)

    def _layers(self, inputs: Inputs) -> Layers:
        blocks = cast(Sequence[AdaptiveBlock], self.blocks)
        return Layers(self.embedding, self._rotary, blocks, self.condition(inputs))

    def _rotary(self, positions: Tensor) -> Rotary:
        config = self.config
        return rotary_table(positions, config.d_model // config.n_heads, self.embedding.weight)

    @staticmethod
    def from_hub(directory: str | Path) -> Transformer:
        """Load published MDLM or BD3-LM weights, strictly.

        An MDLM called with tokens and sigma then returns its published logits, in the ids of the
        hub's vocabulary. The last id is the mask, which is scored too. A BD3-LM returns them from
        ``block_logits``.

        Args:
            directory: Folder that holds config.json and model.safetensors.

        Returns:
            The network in eval mode.

        Raises:
            FileNotFoundError: If a file is not there.
            ValueError: If a file is damaged, the configuration holds what is not supported, or the
                weights do not fit it.
        """
        config, block_fields = read_config(directory)
        with torch.device("meta"):
            model = Transformer(**asdict(config))
        state, model.block_fields = read_weights(
            directory, config, block_fields, model.state_dict()
        )
        model.load_state_dict(state, assign=True)
        return model.eval()

    def to_hub(self, directory: str | Path) -> None:
        """Write the network in the published format, where every embedded id is also scored.

        Ids that the network does not score, such as the mask, get the score 0, which is what they
        keep in published networks since SUBS never reads it. A network with ``block_fields`` is
        written as a BD3-LM, any other as an MDLM.

        Args:
            directory: Folder, made if it is not there.

        Raises:
            OSError: If it cannot be written; each file there is then still whole, old or new.
            ValueError: If the network has classes, for which the format has no place.
        """
        if self.num_classes is not None:
            raise ValueError(
                f"Transformer.to_hub must be given a network without classes, got "
                f"{self.num_classes}; the published format has no labels, so keep the run directory"
            )
        write_hub(directory, self.config, self.block_fields, self.state_dict())

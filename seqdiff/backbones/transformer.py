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

from .block_pass import Body, Pair, choose_pass
from .layers import LabelEmbedding, require_layer
from .packing import Layout, lay_out
from .rotary import Rotary, rotary_table
from .sigma_embedding import SigmaEmbedding
from .transformer_cache import TransformerCache
from .transformer_config import TransformerConfig
from .transformer_hub import read_config, read_weights, write_hub
from .transformer_hub_config import BlockDiffusionFields
from .transformer_layers import AdaptiveBlock, AdaptiveHead, token_embedding


class Transformer(nn.Module):
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
        self.max_length = max_length
        self.time_conditioned = time_conditioned
        self.num_classes = num_classes
        self.block_fields: BlockDiffusionFields | None = None
        self.embedding = token_embedding(num_embeddings, d_model)
        self.sigma_map = SigmaEmbedding(cond_dim)
        self.blocks = nn.ModuleList(
            AdaptiveBlock(d_model, n_heads, dropout, cond_dim) for _ in range(n_layer)
        )
        self.head = AdaptiveHead(d_model, num_logits, cond_dim)
        self.label_embedding: LabelEmbedding | None = None
        if num_classes is not None:  # last, so that the other weights do not depend on it
            self.label_embedding = LabelEmbedding(num_classes, cond_dim)

    def forward(
        self,
        tokens: Int[Tensor, "B L"],
        sigma: Float[Tensor, " B"] | None = None,
        padding: Bool[Tensor, "B L"] | None = None,
        label: Int[Tensor, " B"] | None = None,
    ) -> Float[Tensor, "B L K"]:
        """Score ``num_logits`` ids at every position.

        Args:
            tokens: Ids below ``num_embeddings``.
            sigma: -log alpha of each row, held at -log 1e-3; a time-free network ignores it.
            padding: True at positions that hold nothing: they cost nothing, and their logits are 0.
                Those of the real ones are what the row would get alone.
            label: See ``LabelledBackbone``; only for a network with classes.

        Raises:
            ValueError: If rows are longer than the context, padding has another shape than tokens,
                a time-conditioned network is not told sigma, or there is a label and the network
                has no classes.
        """
        return self.head(*self._hidden(tokens, sigma, padding, label))

    def logits_at(
        self,
        tokens: Int[Tensor, "B L"],
        where: Bool[Tensor, "B L"],
        sigma: Float[Tensor, " B"] | None = None,
        padding: Bool[Tensor, "B L"] | None = None,
        label: Int[Tensor, " B"] | None = None,
    ) -> Float[Tensor, "N K"]:
        """See ``SelectiveBackbone``; the arguments and refusals are those of ``forward``."""
        return self.head(*self._hidden(tokens, sigma, padding, label), where)

    @property
    def num_layers(self) -> int:
        """See ``HiddenBackbone``."""
        return len(self.blocks)

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
        """See ``HiddenBackbone``; a time-conditioned network is told sigma = 0."""
        require_layer("Transformer", layer, self.num_layers)
        sigma = torch.zeros(1, device=tokens.device)
        x, condition, layout = self._hidden(tokens, sigma, padding, None, layer)
        x = self.head.normalised(x, condition, layout) if layer is None else x
        return layout.unpack(x)

    def block_logits(
        self,
        x_t: Int[Tensor, "B L"],
        x0: Int[Tensor, "B L"],
        block_size: int,
        where: Bool[Tensor, "B L"] | None = None,
        padding: Bool[Tensor, "B L"] | None = None,
        label: Int[Tensor, " B"] | None = None,
    ) -> Float[Tensor, "B L K"] | Float[Tensor, "N K"]:
        """Score every position of x_t given its own block of x_t and the earlier blocks of x0.

        See ``BlockBackbone``; logits at padding are 0. The halves of [x_t ; x0] share positions;
        with a block as long as the row there is no clean half, and it is the ordinary network.
        Source: see ``block_diffusion_mask``.

        Raises:
            ValueError: If the block size is no positive integer, rows are longer than the context,
                an argument has another shape than x_t, padding comes before a token, or the network
                is time-conditioned: a block has a noise of its own.
        """
        self.config.require_blocks(x_t, x0, block_size, padding)
        condition = self._condition(x_t, None, label)
        pair = Pair(x_t, x0, block_size, padding)
        x, layout = choose_pass(pair)(self._body(condition), pair)
        return self.head(x, condition, layout, where)

    def block_cache(
        self,
        batch_size: int,
        block_size: int,
        *,
        window: int | None = None,
        label: Int[Tensor, " B"] | None = None,
    ) -> TransformerCache:
        """Open an empty cache, to score rows of any length block by block; see ``BlockBackbone``.

        By default the window takes what is left of the context beside a block.

        Raises:
            ValueError: If a size is no positive integer, the window no multiple of the block size,
                labels are not as many as rows or the network has no classes, or it is
                time-conditioned.
        """
        window = self.config.require_cache(batch_size, block_size, window, label)
        weight = self.embedding.weight
        rows = torch.empty((batch_size, 0), dtype=torch.int64, device=weight.device)
        body = self._body(self._condition(rows, None, label))
        return TransformerCache(body, self.head, batch_size, block_size, window)

    def _body(self, condition: Tensor) -> Body:
        blocks = cast(Sequence[AdaptiveBlock], self.blocks)
        return Body(self.embedding, self._rotary, blocks, condition)

    def _hidden(
        self,
        tokens: Tensor,
        sigma: Tensor | None,
        padding: Tensor | None,
        label: Tensor | None,
        layer: int | None = None,
    ) -> tuple[Tensor, Tensor, Layout]:
        """The residual stream after a layer, the condition, and how the stream lies."""
        self.config.require_length(tokens.shape[1])
        self.config.require_padding(padding, tokens)
        condition = self._condition(tokens, sigma, label)
        layout = lay_out(tokens, padding)
        x = self.embedding(layout.pack(tokens))
        rotary = self._rotary(layout.positions)
        for block in self.blocks[:layer]:
            x = block(x, condition, rotary, layout)
        return x, condition, layout

    def _rotary(self, positions: Tensor) -> Rotary:
        config = self.config
        return rotary_table(positions, config.d_model // config.n_heads, self.embedding.weight)

    def _condition(self, tokens: Tensor, sigma: Tensor | None, label: Tensor | None) -> Tensor:
        if not self.time_conditioned:
            sigma = torch.zeros(1, device=tokens.device)
        elif sigma is None:
            raise ValueError(
                "Transformer.sigma must be given to a time-conditioned network, got none; pass "
                "-log alpha(t) of each row, or build it with time_conditioned=False"
            )
        condition = F.silu(self.sigma_map(sigma))
        if self.label_embedding is not None:
            return condition + self.label_embedding(label, tokens)[:, 0]
        if label is not None:
            raise ValueError(
                "Transformer.label must be None for a network without classes, got one of shape "
                f"{tuple(label.shape)}; build it with num_classes"
            )
        return condition

    @staticmethod
    def from_hub(directory: str | Path) -> Transformer:
        """Load published MDLM or BD3-LM weights, strictly.

        ``forward(tokens, sigma)`` then gives MDLM's published logits in the ids of the hub's
        vocabulary, of which the last is the mask; it is scored too. A BD3-LM gives them through
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

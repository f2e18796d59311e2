"""The autoregressive twin of the transformer denoiser, for like-for-like comparison."""

from __future__ import annotations

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from .layers import require_layer
from .packing import Layout, lay_out
from .rotary import rotary_table
from .transformer_config import TransformerShape
from .transformer_layers import CausalBlock, Head, token_embedding


class AutoregressiveTransformer(nn.Module):
    """The blocks of ``Transformer`` without adaptive norms, each position seeing earlier ones only.

    The logits at position l are the law of token l given the tokens before it: the input is shifted
    inside, with the last embedded id, the mask, as the start symbol. One pass over a clean row
    therefore gives -log p of the row exactly, and as a denoiser it gives, at a masked position, the
    law given what lies to the left. Source: Sahoo et al. 2024, arXiv:2406.07524, appendix D.

    Args:
        d_model: Model width.
        n_layer: Number of blocks.
        n_heads: Attention heads, which share the width.
        num_embeddings: Ids that can be embedded; K + 1, the last of which is the mask.
        num_logits: Ids that are scored, the first ones; K.
        dropout: Probability that an entry of a branch is dropped, while training.
        max_length: Longest row.

    Attributes:
        config: The checked arguments.

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
        dropout: float = 0.1,
        max_length: int = 1024,
    ) -> None:
        super().__init__()
        self.config = TransformerShape(
            d_model=d_model,
            n_layer=n_layer,
            n_heads=n_heads,
            dropout=dropout,
            max_length=max_length,
            num_embeddings=num_embeddings,
            num_logits=num_logits,
        )
        self.max_length = max_length
        self.embedding = token_embedding(num_embeddings, d_model)
        self.blocks = nn.ModuleList(CausalBlock(d_model, n_heads, dropout) for _ in range(n_layer))
        self.head = Head(d_model, num_logits)

    def forward(
        self,
        tokens: Int[Tensor, "B L"],
        t: Float[Tensor, " B"] | None = None,
        padding: Bool[Tensor, "B L"] | None = None,
    ) -> Float[Tensor, "B L K"]:
        """Score every symbol at every position, given the tokens before it.

        Args:
            tokens: Ids below ``num_embeddings``; the last of a row is never read.
            t: Ignored; the network does not depend on time.
            padding: True at positions that hold nothing, before the first or after the last real
                one: they cost nothing, and their logits are 0. Those of the real ones are what the
                row would get alone.

        Raises:
            ValueError: If rows are longer than the context, or padding has another shape.
        """
        x, layout = self._hidden(tokens, padding)
        return layout.unpack(self.head(x))

    def logits_at(
        self,
        tokens: Int[Tensor, "B L"],
        where: Bool[Tensor, "B L"],
        t: Float[Tensor, " B"] | None = None,
        padding: Bool[Tensor, "B L"] | None = None,
        label: Int[Tensor, " B"] | None = None,
    ) -> Float[Tensor, "N K"]:
        """See ``SelectiveBackbone``; refusals are those of ``forward``, and there are no classes.

        Raises:
            ValueError: If there is a label.
        """
        if label is not None:
            raise ValueError(
                "AutoregressiveTransformer.label must be None, got one of shape "
                f"{tuple(label.shape)}; it has no classes"
            )
        x, layout = self._hidden(tokens, padding)
        return layout.unpack_at(self.head(x[layout.pack(where)]), where)

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
        """See ``HiddenBackbone``; the state at a position has read the tokens before it."""
        require_layer("AutoregressiveTransformer", layer, self.num_layers)
        x, layout = self._hidden(tokens, padding, layer)
        return layout.unpack(self.head.norm(x) if layer is None else x)

    def _hidden(
        self, tokens: Tensor, padding: Tensor | None, layer: int | None = None
    ) -> tuple[Tensor, Layout]:
        """The residual stream after a layer, and how it lies."""
        config, length = self.config, tokens.shape[1]
        config.require_length(length)
        config.require_padding(padding, tokens)
        start = config.num_embeddings - 1
        inputs = tokens.roll(1, dims=1)
        inputs[:, :1] = start
        if padding is not None:
            inputs = inputs.masked_fill(padding.roll(1, dims=1), start)
        layout = lay_out(tokens, padding, causal=True)
        head_dim = config.d_model // config.n_heads
        rotary = rotary_table(layout.positions, head_dim, self.embedding.weight)
        x = self.embedding(layout.pack(inputs))
        for block in self.blocks[:layer]:
            x = block(x, rotary, layout)
        return x, layout

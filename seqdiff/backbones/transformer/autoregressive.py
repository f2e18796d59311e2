"""The autoregressive twin of the transformer denoiser, for like-for-like comparison."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from seqdiff.backbones.base import Backbone
from seqdiff.backbones.layers import shifted
from seqdiff.backbones.transformer.config import TransformerShape
from seqdiff.backbones.transformer.layers import CausalBlock, Head, rotary_table, token_embedding
from seqdiff.backbones.transformer.packing import lay_out
from seqdiff.types import Inputs


class AutoregressiveTransformer(Backbone):
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

    causal = True
    head: Head

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
        self.width, self.num_logits, self.max_length = d_model, num_logits, max_length
        self.embedding = token_embedding(num_embeddings, d_model)
        self.blocks = nn.ModuleList(CausalBlock(d_model, n_heads, dropout) for _ in range(n_layer))
        self.head = Head(d_model, num_logits)

    @property
    def num_layers(self) -> int:
        """Number of blocks."""
        return len(self.blocks)

    def embed(self, inputs: Inputs) -> Float[Tensor, "B L D"]:
        """Embed at each position the token before it; the last of a row is never read.

        Args:
            inputs: See ``Backbone.embed``.

        Raises:
            ValueError: If rows are longer than the context, or padding has another shape.
        """
        tokens, padding = inputs.tokens, inputs.padding
        self.config.require_length(tokens.shape[1])
        self.config.require_padding(padding, tokens)
        return self.embedding(shifted(tokens, padding, self.config.num_embeddings - 1))

    def body(
        self, h: Float[Tensor, "B L D"], inputs: Inputs, layer: int | None = None
    ) -> Float[Tensor, "B L D"]:
        """Run the blocks.

        Args:
            h: See ``Backbone.body``; position l holds what is known of token l - 1.
            inputs: Padding must lie before the first or after the last real position of a row; it
                costs nothing and gets 0. Outputs at the real ones are those of the row alone.
            layer: See ``Backbone.body``.
        """
        config = self.config
        layout = lay_out(inputs.tokens, inputs.padding, causal=True)
        head_dim = config.d_model // config.n_heads
        rotary = rotary_table(layout.positions, head_dim, self.embedding.weight)
        x = layout.pack(h)
        for block in self.blocks[:layer]:
            x = block(x, rotary, layout)
        return layout.unpack(x)

    def _states(
        self, h: Float[Tensor, "B L D"], inputs: Inputs, layer: int | None
    ) -> Float[Tensor, "B L D"]:
        return self.head.normalised(h, inputs) if layer is None else h

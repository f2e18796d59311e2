"""The autoregressive twin of Caduceus, for like-for-like comparison."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from seqdiff.backbones.base import Backbone
from seqdiff.backbones.layers import (
    LabelEmbedding,
    Norm,
    NormKind,
    check_mamba_sizes,
    require_choice,
    shifted,
)
from seqdiff.backbones.mamba import MambaConfig, SelectiveSSM, project_in, project_out
from seqdiff.ops.selective_scan import BACKENDS
from seqdiff.types import Inputs


class AutoregressiveMamba(Backbone):
    """Mamba from left to right: the logits at position l depend on the tokens before l only.

    The input is shifted inside, with the last embedded id, the mask, as the start symbol. One pass
    over a clean row therefore gives its exact log-likelihood. The head is the first ``num_logits``
    rows of the embedding, as in ``Caduceus``. On DNA, 4 blocks of width 128 have 467 thousand
    parameters, as many as a ``Caduceus`` of 4 blocks of width 118.
    Source: Gu and Dao 2023, arXiv:2312.00752, section 3.4.

    Args:
        d_model: Model width.
        n_layer: Number of blocks.
        num_embeddings: Ids that can be embedded; K + 1, the last of which is the mask.
        num_logits: Ids that are scored, the first ones; K.
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

    causal = True

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
        owner = type(self).__name__
        check_mamba_sizes(
            owner,
            d_model=d_model,
            n_layer=n_layer,
            num_embeddings=num_embeddings,
            num_logits=num_logits,
            num_classes=num_classes,
            norm=norm,
            norm_eps=norm_eps,
        )
        require_choice(owner, "backend", backend, BACKENDS)
        mamba = MambaConfig(
            d_state, d_conv, expand, dt_rank, dt_min, dt_max, dt_init_floor, conv_bias, bias
        )
        self.width, self.num_logits, self.num_classes = d_model, num_logits, num_classes
        self.embedding = nn.Embedding(num_embeddings, d_model)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.layers = nn.ModuleList(
            MambaBlock(d_model, mamba, norm, norm_eps, n_layer, backend) for _ in range(n_layer)
        )
        self.norm = Norm(d_model, norm, norm_eps)
        self.label_embedding: LabelEmbedding | None = None
        if num_classes is not None:  # last, so that the other weights do not depend on it
            self.label_embedding = LabelEmbedding(num_classes, d_model)

    @property
    def num_layers(self) -> int:
        """Number of blocks."""
        return len(self.layers)

    def embed(self, inputs: Inputs) -> Float[Tensor, "B L D"]:
        """Embed at each position the token before it; the last of a row is never read."""
        start = self.embedding.num_embeddings - 1
        return self.embedding(shifted(inputs.tokens, inputs.padding, start))

    def body(
        self, h: Float[Tensor, "B L D"], inputs: Inputs, layer: int | None = None
    ) -> Float[Tensor, "B L D"]:
        """Run the blocks.

        Args:
            h: See ``Backbone.body``; position l holds what is known of token l - 1.
            inputs: Padding must lie before the first or after the last real position of a row. The
                outputs at the real ones are those of the row without padding.
            layer: See ``Backbone.body``.
        """
        if self.label_embedding is not None:
            h = h + self.label_embedding(inputs.label, h)
        for block in self.layers[:layer]:
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


class MambaBlock(nn.Module):
    """Pre-norm residual block around a Mamba mixer of one direction; there is no MLP.

    Args:
        d_model: Channels.
        config: Sizes of the mixer.
        norm: ``rms`` or ``layer``.
        norm_eps: Added to the mean square.
        n_layer: Blocks that add to the residual stream; the initial output weights are divided by
            its square root.
        backend: Kernel of the convolution and scan.
    """

    def __init__(
        self,
        d_model: int,
        config: MambaConfig,
        norm: NormKind,
        norm_eps: float,
        n_layer: int,
        backend: str,
    ) -> None:
        super().__init__()
        d_inner = config.expand * d_model
        self.norm = Norm(d_model, norm, norm_eps)
        self.in_proj = nn.Linear(d_model, 2 * d_inner, bias=config.bias)
        self.ssm = SelectiveSSM(d_inner, config.rank(d_model), config, backend)
        self.out_proj = nn.Linear(d_inner, d_model, bias=config.bias)
        with torch.no_grad():
            self.out_proj.weight.div_(n_layer**0.5)
            for projection in (self.in_proj, self.out_proj):
                if projection.bias is not None:
                    projection.bias.zero_()

    def forward(
        self, x: Float[Tensor, "B L D"], padding: Bool[Tensor, "B L"] | None = None
    ) -> Float[Tensor, "B L D"]:
        """Add the mixer's output to the residual stream.

        Args:
            x: Residual stream.
            padding: True at positions before the first or after the last real one.
        """
        xz = project_in(self.in_proj, self.norm(x), padding, mirrored=False)
        return x + project_out(self.out_proj, self.ssm(xz, padding), mirrored=False)

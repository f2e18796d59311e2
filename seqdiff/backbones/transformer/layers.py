"""Layers of transformers: rotary positions, norms, blocks, heads and embedded tokens."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from seqdiff.backbones.layers import exempt_from_muon
from seqdiff.backbones.transformer.packing import Mixing
from seqdiff.types import Inputs

BASE = 1e4

Rotary = tuple[Tensor, Tensor]


def rotary_frequencies(
    head_dim: int, dtype: torch.dtype = torch.float32, device: torch.device | None = None
) -> Float[Tensor, " half"]:
    """Compute the rotation of each pair of channels from one position to the next, in radians."""
    return BASE ** -(torch.arange(0, head_dim, 2, dtype=dtype, device=device) / head_dim)


def rotary_table(positions: Int[Tensor, " L"], head_dim: int, like: Tensor) -> Rotary:
    """Compute cosines and sines of the rotation at every position, ``[L, head_dim / 2]`` each.

    Angles are computed in float64. In float32, those of position 10^6 would be off by 0.03 radians.
    Source: Su et al. 2021, arXiv:2104.09864, section 3.2.2.

    Args:
        positions: Positions of the tokens.
        head_dim: Channels of a head.
        like: The result has the dtype of this tensor, but at least float32.
    """
    wide = torch.promote_types(like.dtype, torch.float32)
    angles = positions[:, None] * rotary_frequencies(head_dim, torch.float64, positions.device)
    return angles.cos().to(wide), angles.sin().to(wide)


def rotate(x: Float[Tensor, "B H L C"], table: Rotary) -> Float[Tensor, "B H L C"]:
    """Rotate each pair of channels: one of the first half, and the same one of the second half.

    Args:
        x: Queries or keys.
        table: From ``rotary_table``.
    """
    cos, sin = table
    first, second = x.chunk(2, dim=-1)
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return turned.to(x.dtype)


class CentredNorm(nn.Module):
    """LayerNorm with a gain and without a shift, computed in at least float32.

    Args:
        d_model: Channels.
    """

    eps = 1e-5

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d_model))

    def forward(self, x: Float[Tensor, "*shape D"]) -> Float[Tensor, "*shape D"]:
        """Normalise each vector."""
        wide = torch.promote_types(x.dtype, torch.float32)
        return F.layer_norm(x.to(wide), self.weight.shape, self.weight.to(wide), eps=self.eps)


class Block(nn.Module):
    """Pre-norm residual block: attention, then an MLP of four times the width.

    Args:
        d_model: Channels.
        n_heads: Attention heads.
        dropout: Dropout probability of each branch.
    """

    def __init__(self, d_model: int, n_heads: int, dropout: float) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.norm1 = CentredNorm(d_model)
        self.attn_qkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.attn_out = nn.Linear(d_model, d_model, bias=False)
        self.norm2 = CentredNorm(d_model)
        self.mlp = nn.Sequential(
            nn.Linear(d_model, 4 * d_model),
            nn.GELU(approximate="tanh"),
            nn.Linear(4 * d_model, d_model),
        )
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: Float[Tensor, "b l D"],
        condition: Float[Tensor, "#B C"] | None,
        rotary: Rotary,
        layout: Mixing,
    ) -> Float[Tensor, "b l D"]:
        """Add both branches to the residual stream.

        Args:
            x: Residual stream, in the order of the layout.
            condition: One vector for each row of the batch, or one for all rows. Only
                ``AdaptiveBlock`` reads it.
            rotary: From ``rotary_table``.
            layout: Determines which keys a query attends to.
        """
        x = x + self.attend(self.norm1(x), rotary, layout)
        return x + self.dropout(self.mlp(self.norm2(x)))

    def attend(
        self, h: Float[Tensor, "b l D"], rotary: Rotary, layout: Mixing
    ) -> Float[Tensor, "b l D"]:
        """Compute the attention branch.

        Args:
            h: Normalised activations, in the order of the layout.
            rotary: From ``rotary_table``.
            layout: Determines which keys a query attends to.
        """
        heads = self.attn_qkv(h).unflatten(-1, (3, self.n_heads, -1))
        q, k, v = (part.transpose(1, 2) for part in heads.unbind(2))
        mixed = layout.mix(rotate(q, rotary), rotate(k, rotary), v)
        return self.dropout(self.attn_out(mixed.transpose(1, 2).flatten(2)))

    def keys_values(
        self, h: Float[Tensor, "b l D"], rotary: Rotary
    ) -> tuple[Float[Tensor, "b H l C"], Float[Tensor, "b H l C"]]:
        """Compute only keys and values, for positions whose outputs are not needed.

        Args:
            h: Normalised activations.
            rotary: From ``rotary_table``.
        """
        weight = self.attn_qkv.weight[h.shape[-1] :]
        heads = F.linear(h, weight).unflatten(-1, (2, self.n_heads, -1))
        k, v = (part.transpose(1, 2) for part in heads.unbind(2))
        return rotate(k, rotary), v


class AdaptiveBlock(Block):
    """A block whose norms and branches are shifted, scaled and gated by a condition (adaLN-zero).

    The gates are zero at first, so the block is initially the identity. Source: Peebles and Xie
    2023, arXiv:2212.09748, section 3.2.

    Args:
        d_model: Channels.
        n_heads: Attention heads.
        dropout: Dropout probability of each branch.
        cond_dim: Channels of the condition.
    """

    forward_methods = ("modulated_keys_values",)

    def __init__(self, d_model: int, n_heads: int, dropout: float, cond_dim: int) -> None:
        super().__init__(d_model, n_heads, dropout)
        self.modulation = zeroed(nn.Linear(cond_dim, 6 * d_model))
        exempt_from_muon(self.modulation.weight)

    def forward(
        self,
        x: Float[Tensor, "b l D"],
        condition: Float[Tensor, "#B C"] | None,
        rotary: Rotary,
        layout: Mixing,
    ) -> Float[Tensor, "b l D"]:
        """Add both branches to the residual stream, modulated by the condition."""
        assert condition is not None
        shift_attn, scale_attn, gate_attn, shift_mlp, scale_mlp, gate_mlp = layout.spread(
            self.modulation(condition)
        ).chunk(6, dim=-1)
        h = self.norm1(x) * (1 + scale_attn) + shift_attn
        x = x + gate_attn * self.attend(h, rotary, layout)
        h = self.norm2(x) * (1 + scale_mlp) + shift_mlp
        return x + gate_mlp * self.dropout(self.mlp(h))

    def modulated_keys_values(
        self,
        x: Float[Tensor, "b l D"],
        condition: Float[Tensor, "#B width"],
        rotary: Rotary,
        layout: Mixing,
    ) -> tuple[Float[Tensor, "b H l C"], Float[Tensor, "b H l C"]]:
        """Compute only the keys and values of ``forward``.

        Args:
            x: Residual stream, in the order of the layout.
            condition: One vector for each row of the batch, or one for all rows.
            rotary: From ``rotary_table``.
            layout: Assigns the rows' vectors to their tokens.
        """
        shift, scale = layout.spread(self.modulation(condition)).chunk(6, dim=-1)[:2]
        return self.keys_values(self.norm1(x) * (1 + scale) + shift, rotary)


class Head(nn.Module):
    """A final norm and a linear layer to scores, which are all zero at first.

    Args:
        d_model: Channels.
        num_logits: Number of ids that are scored.
    """

    def __init__(self, d_model: int, num_logits: int) -> None:
        super().__init__()
        self.norm = CentredNorm(d_model)
        self.linear = zeroed(nn.Linear(d_model, num_logits))

    def normalised(
        self, h: Float[Tensor, "B L D"], inputs: Inputs, where: Bool[Tensor, "B L"] | None = None
    ) -> Float[Tensor, "*positions D"]:
        """Normalise the positions that ``forward`` scores."""
        return self.norm(h if where is None else h[where])

    def forward(
        self, h: Float[Tensor, "B L D"], inputs: Inputs, where: Bool[Tensor, "B L"] | None = None
    ) -> Float[Tensor, "*positions K"]:
        """Score all positions, or those in ``where``; scores at padding are 0.

        Args:
            h: Residual stream of the last layer.
            inputs: Inputs of the network.
            where: Positions to score; ``None`` for all.

        Returns:
            ``[B, L, K]``; with ``where``, ``[N, K]`` in the order of ``where.nonzero()``.
        """
        padding = inputs.padding
        if padding is None:
            return self.linear(self.normalised(h, inputs, where))
        if where is not None:
            scores = self.linear(self.normalised(h, inputs, where))
            return scores.masked_fill(padding[where][:, None], 0)
        if torch.compiler.is_compiling():  # shapes must not depend on the amount of padding
            return self.linear(self.normalised(h, inputs)).masked_fill(padding[..., None], 0)
        scores = self.linear(self.normalised(h, inputs, ~padding))
        return scores.new_zeros((*padding.shape, scores.shape[-1])).index_put((~padding,), scores)


class AdaptiveHead(Head):
    """A head whose norm is shifted and scaled by a condition.

    Args:
        d_model: Channels.
        num_logits: Number of ids that are scored.
        cond_dim: Channels of the condition.
        condition: Computes the condition from the network's inputs: one vector for each row, or
            one for all rows.
    """

    def __init__(
        self,
        d_model: int,
        num_logits: int,
        cond_dim: int,
        condition: Callable[[Inputs], Float[Tensor, "#B C"]],
    ) -> None:
        super().__init__(d_model, num_logits)
        self.modulation = zeroed(nn.Linear(cond_dim, 2 * d_model))
        self.condition = condition

    def normalised(
        self, h: Float[Tensor, "B L D"], inputs: Inputs, where: Bool[Tensor, "B L"] | None = None
    ) -> Float[Tensor, "*positions D"]:
        """Normalise, scale and shift the positions that ``forward`` scores."""
        shift, scale = self.modulation(self.condition(inputs))[:, None].chunk(2, dim=-1)
        if where is not None:
            shift, scale, h = shift.expand_as(h)[where], scale.expand_as(h)[where], h[where]
        return self.norm(h) * (1 + scale) + shift


def zeroed(linear: nn.Linear) -> nn.Linear:
    """Set the weight and the bias of a layer to zero, and return it."""
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear


def token_embedding(num_embeddings: int, d_model: int) -> nn.Embedding:
    """Create an embedding, uniform within ``1 / sqrt(d_model)`` as in published networks."""
    embedding = nn.Embedding(num_embeddings, d_model)
    nn.init.kaiming_uniform_(embedding.weight, a=math.sqrt(5))
    return embedding

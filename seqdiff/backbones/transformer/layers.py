"""Layers of transformers: rotary positions, norms, blocks, heads and embedded tokens."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from seqdiff.backbones.transformer.packing import Layout, Mixing
from seqdiff.types import Inputs

BASE = 1e4

Rotary = tuple[Tensor, Tensor]


def rotary_frequencies(
    head_dim: int, dtype: torch.dtype = torch.float32, device: torch.device | None = None
) -> Float[Tensor, " half"]:
    """Radians that each pair of channels turns by from one position to the next.

    Args:
        head_dim: Channels of a head.
        dtype: Of the result.
        device: Of the result.
    """
    return BASE ** -(torch.arange(0, head_dim, 2, dtype=dtype, device=device) / head_dim)


def rotary_table(positions: Int[Tensor, " L"], head_dim: int, like: Tensor) -> Rotary:
    """Cosines and sines of every position's turns, ``[L, head_dim / 2]`` each.

    The turns themselves are in float64: in float32 those of position 10^6 are off by 0.03 radians.
    Source: Su et al. 2021, arXiv:2104.09864, section 3.2.2.

    Args:
        positions: Of the tokens.
        head_dim: Channels of a head.
        like: Gives the dtype if it is wider than float32.
    """
    wide = torch.promote_types(like.dtype, torch.float32)
    angles = positions[:, None] * rotary_frequencies(head_dim, torch.float64, positions.device)
    return angles.cos().to(wide), angles.sin().to(wide)


def rotate(x: Float[Tensor, "B H L C"], table: Rotary) -> Float[Tensor, "B H L C"]:
    """Turn channel i of the first half together with channel i of the second half.

    Args:
        x: Queries or keys.
        table: From ``rotary_table``.
    """
    cos, sin = table
    first, second = x.chunk(2, dim=-1)
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return turned.to(x.dtype)


class CentredNorm(nn.Module):
    """LayerNorm with gains and without shifts, in float32 or better whatever comes in.

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
        dropout: Of each branch.
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

    def attend(
        self,
        h: Float[Tensor, "b l D"],
        rotary: Rotary,
        layout: Mixing,
    ) -> Float[Tensor, "b l D"]:
        """Mix positions.

        Args:
            h: Normalised activations, as the layout has them.
            rotary: From ``rotary_table``.
            layout: Says who sees whom.
        """
        heads = self.attn_qkv(h).unflatten(-1, (3, self.n_heads, -1))
        q, k, v = (part.transpose(1, 2) for part in heads.unbind(2))
        mixed = layout.mix(rotate(q, rotary), rotate(k, rotary), v)
        return self.dropout(self.attn_out(mixed.transpose(1, 2).flatten(2)))

    def keys_values(
        self, h: Float[Tensor, "b l D"], rotary: Rotary
    ) -> tuple[Float[Tensor, "b H l C"], Float[Tensor, "b H l C"]]:
        """Give the keys and values of positions that ask nothing themselves.

        Args:
            h: Normalised activations.
            rotary: From ``rotary_table``.
        """
        weight = self.attn_qkv.weight[h.shape[-1] :]
        heads = F.linear(h, weight).unflatten(-1, (2, self.n_heads, -1))
        k, v = (part.transpose(1, 2) for part in heads.unbind(2))
        return rotate(k, rotary), v

    def feed(self, h: Float[Tensor, "b l D"]) -> Float[Tensor, "b l D"]:
        """Transform each position by itself.

        Args:
            h: Normalised activations.
        """
        return self.dropout(self.mlp(h))


class CausalBlock(Block):
    """A block in which no position sees a later one."""

    def forward(
        self, x: Float[Tensor, "b l D"], rotary: Rotary, layout: Layout
    ) -> Float[Tensor, "b l D"]:
        """Add both branches to the residual stream.

        Args:
            x: Residual stream.
            rotary: From ``rotary_table``.
            layout: Causal.
        """
        x = x + self.attend(self.norm1(x), rotary, layout)
        return x + self.feed(self.norm2(x))


class AdaptiveBlock(Block):
    """A block whose norms and branches are shifted, scaled and gated by a condition (adaLN-zero).

    The gates start at zero, so that the block starts as the identity. Source: Peebles and Xie 2023,
    arXiv:2212.09748, section 3.2.

    Args:
        d_model: Channels.
        n_heads: Attention heads.
        dropout: Of each branch.
        cond_dim: Channels of the condition.
    """

    def __init__(self, d_model: int, n_heads: int, dropout: float, cond_dim: int) -> None:
        super().__init__(d_model, n_heads, dropout)
        self.modulation = zeroed(nn.Linear(cond_dim, 6 * d_model))

    def forward(
        self,
        x: Float[Tensor, "b l D"],
        condition: Float[Tensor, "#B C"],
        rotary: Rotary,
        layout: Mixing,
    ) -> Float[Tensor, "b l D"]:
        """Add both branches to the residual stream.

        Args:
            x: Residual stream, as the layout has it.
            condition: One for each row of the batch, or one for all.
            rotary: From ``rotary_table``.
            layout: See ``attend``.
        """
        shift_attn, scale_attn, gate_attn, shift_mlp, scale_mlp, gate_mlp = layout.spread(
            self.modulation(condition)
        ).chunk(6, dim=-1)
        h = self.norm1(x) * (1 + scale_attn) + shift_attn
        x = x + gate_attn * self.attend(h, rotary, layout)
        return x + gate_mlp * self.feed(self.norm2(x) * (1 + scale_mlp) + shift_mlp)

    def modulated_keys_values(
        self,
        x: Float[Tensor, "b l D"],
        condition: Float[Tensor, "#B width"],
        rotary: Rotary,
        layout: Mixing,
    ) -> tuple[Float[Tensor, "b H l C"], Float[Tensor, "b H l C"]]:
        """Give what ``forward`` would attend to, for a residual stream that goes no further.

        Args:
            x: See ``forward``.
            condition: See ``forward``.
            rotary: See ``forward``.
            layout: See ``forward``.
        """
        shift, scale = layout.spread(self.modulation(condition)).chunk(6, dim=-1)[:2]
        return self.keys_values(self.norm1(x) * (1 + scale) + shift, rotary)


class Head(nn.Module):
    """A last norm and one score for every id, all of which start at zero.

    Args:
        d_model: Channels.
        num_logits: Ids that are scored.
    """

    def __init__(self, d_model: int, num_logits: int) -> None:
        super().__init__()
        self.norm = CentredNorm(d_model)
        self.linear = zeroed(nn.Linear(d_model, num_logits))

    def normalised(
        self, h: Float[Tensor, "B L D"], inputs: Inputs, where: Bool[Tensor, "B L"] | None = None
    ) -> Float[Tensor, "*positions D"]:
        """Normalise what is scored.

        Args:
            h: See ``forward``.
            inputs: See ``forward``.
            where: See ``forward``.
        """
        return self.norm(h if where is None else h[where])

    def forward(
        self, h: Float[Tensor, "B L D"], inputs: Inputs, where: Bool[Tensor, "B L"] | None = None
    ) -> Float[Tensor, "*positions K"]:
        """Score every position, or those that are asked for; scores at padding are 0.

        Args:
            h: Residual stream of the last layer.
            inputs: What the network is given.
            where: True where scores are wanted; ``None`` for all positions.

        Returns:
            ``[B, L, K]``; with ``where``, ``[N, K]`` in the order of ``where.nonzero()``.
        """
        padding = inputs.padding
        if padding is None:
            return self.linear(self.normalised(h, inputs, where))
        if where is not None:
            scores = self.linear(self.normalised(h, inputs, where))
            return scores.masked_fill(padding[where][:, None], 0)
        if torch.compiler.is_compiling():  # shapes must not depend on the number of tokens
            return self.linear(self.normalised(h, inputs)).masked_fill(padding[..., None], 0)
        scores = self.linear(self.normalised(h, inputs, ~padding))
        return scores.new_zeros((*padding.shape, scores.shape[-1])).index_put((~padding,), scores)


class AdaptiveHead(Head):
    """A head whose norm is shifted and scaled by a condition.

    Args:
        d_model: Channels.
        num_logits: Ids that are scored.
        cond_dim: Channels of the condition.
        condition: Gives the condition of the network's inputs, one for each row or one for all.
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
        """Normalise what is scored, then scale and shift it.

        Args:
            h: See ``forward``.
            inputs: See ``forward``.
            where: See ``forward``.
        """
        shift, scale = self.modulation(self.condition(inputs))[:, None].chunk(2, dim=-1)
        if where is not None:
            shift, scale, h = shift.expand_as(h)[where], scale.expand_as(h)[where], h[where]
        return self.norm(h) * (1 + scale) + shift


def zeroed(linear: nn.Linear) -> nn.Linear:
    """Set a layer to zero, where it starts.

    Args:
        linear: With a bias.

    Returns:
        The same layer.
    """
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear


def token_embedding(num_embeddings: int, d_model: int) -> nn.Embedding:
    """Embed ids by vectors drawn uniformly within ``1 / sqrt(d_model)``, as published networks do.

    Args:
        num_embeddings: Ids.
        d_model: Channels.
    """
    embedding = nn.Embedding(num_embeddings, d_model)
    nn.init.kaiming_uniform_(embedding.weight, a=math.sqrt(5))
    return embedding

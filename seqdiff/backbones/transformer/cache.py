"""The cache of a transformer: the keys and values of earlier clean blocks."""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from seqdiff.backbones.layers import positions_of
from seqdiff.backbones.transformer.block_diffusion import Layers
from seqdiff.backbones.transformer.layers import AdaptiveBlock, AdaptiveHead, CentredNorm, Rotary

PIECE = 256  # tokens that `append` processes at a time, to bound memory for long prompts


class TransformerCache:
    """The keys and values of the last clean blocks, in a ring buffer.

    The buffer has ``window + block_size`` slots: the token at position p is in slot p modulo this
    number. Nothing is moved when the window slides, and memory stops growing once all slots are
    used. The cache uses no dropout and computes no gradients. The weights must not change while it
    is in use.

    Args:
        layers: Layers of the network.
        head: Head of the network.
        batch_size: Number of rows.
        block_size: Number of tokens in a block.
        window: Number of earlier tokens that a block attends to, a multiple of ``block_size``.
    """

    @torch.no_grad()
    def __init__(
        self, layers: Layers, head: AdaptiveHead, batch_size: int, block_size: int, window: int
    ) -> None:
        self._network = layers
        self._head = head.linear
        self._batch_size, self._block_size, self._window = batch_size, block_size, window
        self._slots = window + block_size
        self._length = 0
        condition = layers.condition[:, None]
        self._layers = [_Layer.of(block, condition) for block in layers.blocks]
        self._last_norm = _Modulated.of(head.norm, *head.modulation(condition).chunk(2, dim=-1))
        like = head.linear.weight
        heads = layers.blocks[0].n_heads
        empty = like.new_empty((batch_size, heads, 0, head.linear.in_features // heads))
        self._kept = [(empty, empty) for _ in layers.blocks]
        self._turns: tuple[int, Rotary] | None = None

    @property
    def length(self) -> int:
        """Number of tokens appended so far, which is the position of the next block."""
        return self._length

    @torch.no_grad()
    def logits(
        self, x_t: Int[Tensor, "B l"], where: Bool[Tensor, "B l"] | None = None
    ) -> Float[Tensor, "B l K"] | Float[Tensor, "N K"]:
        """Score the next block without appending it.

        Args:
            x_t: Ids of the next block, which may be shorter than ``block_size``.
            where: Positions to score; ``None`` for all.

        Returns:
            ``[B, l, K]``; with ``where``, one row for each position in the order of
            ``where.nonzero()``.

        Raises:
            ValueError: If the number of rows is wrong, or there are no tokens or more than a block.
        """
        self._require_rows(x_t)
        if not 0 < x_t.shape[1] <= self._block_size:
            raise ValueError(
                f"TransformerCache.x_t must hold 1 to block_size = {self._block_size} tokens of "
                f"the next block, got {x_t.shape[1]}; score one block at a time"
            )
        x = self._near(x_t, scored=True)
        return self._head(self._last_norm(x) if where is None else self._last_norm.at(x, where))

    @torch.no_grad()
    def append(self, x0: Int[Tensor, "B l"]) -> None:
        """Append clean tokens: one or several whole blocks.

        Raises:
            ValueError: If the number of rows is wrong, or the last block is incomplete.
        """
        self._require_rows(x0)
        if x0.shape[1] % self._block_size:
            raise ValueError(
                f"TransformerCache.x0 must be whole blocks of {self._block_size} tokens, got "
                f"{x0.shape[1]} tokens; a block that is cut short can only be scored"
            )
        for piece in x0.split(max(1, PIECE // self._block_size) * self._block_size, dim=1):
            if piece.shape[1] == self._block_size:
                self._near(piece, scored=False)
            else:
                self._far(piece)
            self._length += piece.shape[1]

    @torch.no_grad()
    def take(self, rows: Int[Tensor, " b"]) -> TransformerCache:
        """Create a cache of some rows, in the given order; a row may occur more than once."""
        taken = copy.copy(self)
        taken._batch_size = len(rows)
        taken._kept = [(keys[rows], values[rows]) for keys, values in self._kept]
        taken._layers = [layer.take(rows) for layer in self._layers]
        taken._last_norm = self._last_norm.take(rows)
        if self._network.signal is not None:
            taken._network = self._network._replace(signal=self._network.signal[rows])
        return taken

    def _require_rows(self, tokens: Tensor) -> None:
        if len(tokens) != self._batch_size:
            raise ValueError(
                f"TransformerCache.tokens must have the {self._batch_size} rows of the cache, got "
                f"{len(tokens)}; leave rows out by take"
            )

    def _reserve(self, length: int) -> None:
        """Grow the buffer, at least twofold, if it has fewer slots than ``length`` tokens need."""
        there = self._kept[0][0].shape[2]
        if there >= min(length, self._slots):
            return
        room = min(self._slots, max(length, 2 * there))
        for i, pair in enumerate(self._kept):
            grown = [x.new_empty((*x.shape[:2], room, x.shape[3])) for x in pair]
            for new, old in zip(grown, pair, strict=True):
                new[:, :, :there] = old
            self._kept[i] = (grown[0], grown[1])

    def _embed(self, tokens: Tensor) -> Tensor:
        """Embed the next tokens, with the signal of their positions."""
        x = self._network.embedding(tokens)
        signal = positions_of(self._network.signal, self._length, self._length + tokens.shape[1])
        return x if signal is None else x + signal

    def _near(self, tokens: Tensor, *, scored: bool) -> Tensor:
        """Run one block and write its keys and values to their slots.

        ``length`` does not change, so the next call overwrites them unless `append` counts them.
        """
        size, start = tokens.shape[1], self._length % self._slots
        self._reserve(self._length + self._block_size)
        end, seen, mask = start + size, start + size, None
        if self._length + self._block_size > self._slots:
            seen = self._slots
            if size < self._block_size:
                mask = torch.ones((1, seen), dtype=torch.bool, device=tokens.device)
                mask[:, end : start + self._block_size] = False
        x, turns = self._embed(tokens), self._next_turns(size)
        for layer, (keys, values) in zip(self._layers, self._kept, strict=True):
            q, k, v = layer.project(x, turns)
            keys[:, :, start:end], values[:, :, start:end] = k, v
            if scored or layer is not self._layers[-1]:
                x = layer.advance(x, q, keys[:, :, :seen], values[:, :, :seen], mask)
        return x

    def _far(self, tokens: Tensor) -> None:
        """Run several clean blocks, and write the last keys and values to their slots."""
        size, device = tokens.shape[1], tokens.device
        place = torch.arange(self._length, self._length + size, device=device)
        filled = min(self._length, self._slots)
        last = self._length - 1
        behind = last - (last - torch.arange(filled, device=device)) % self._slots
        block = place[:, None] // self._block_size
        other = torch.cat((behind, place)) // self._block_size
        mask = (other <= block) & (block - other <= self._window // self._block_size)
        self._reserve(self._length + size)
        stay = slice(max(0, size - self._slots), None)
        slots = place[stay] % self._slots
        x, turns = self._embed(tokens), _doubled(self._network.rotary(place))
        for layer, (keys, values) in zip(self._layers, self._kept, strict=True):
            q, k, v = layer.project(x, turns)
            if layer is not self._layers[-1]:
                all_k = torch.cat((keys[:, :, :filled], k), dim=2)
                all_v = torch.cat((values[:, :, :filled], v), dim=2)
                x = layer.advance(x, q, all_k, all_v, mask)
            keys.index_copy_(2, slots, k[:, :, stay].to(keys.dtype))
            values.index_copy_(2, slots, v[:, :, stay].to(values.dtype))

    def _next_turns(self, size: int) -> Rotary:
        """Return the rotary table of the next block, which is computed once per block."""
        if self._turns is None or self._turns[0] != self._length:
            device = self._head.weight.device
            place = torch.arange(self._length, self._length + self._block_size, device=device)
            self._turns = (self._length, _doubled(self._network.rotary(place)))
        cos, sin = self._turns[1]
        return cos[:size], sin[:size]


class _Modulated(NamedTuple):
    """A norm under a fixed condition.

    Attributes:
        eps: Added to the variance.
        gain: Gain ``[B, 1, D]``, or ``[1, 1, D]`` for all rows.
        shift: Shift of the same shape.
    """

    eps: float
    gain: Tensor
    shift: Tensor

    @classmethod
    def of(cls, norm: CentredNorm, shift: Tensor, scale: Tensor) -> _Modulated:
        return cls(norm.eps, norm.weight * (1 + scale), shift)

    def __call__(self, x: Tensor) -> Tensor:
        return torch.addcmul(self.shift, F.layer_norm(x, x.shape[-1:], eps=self.eps), self.gain)

    def at(self, x: Tensor, where: Tensor) -> Tensor:
        """Normalise only the positions in ``where``."""
        gain, shift = (part.expand_as(x)[where] for part in (self.gain, self.shift))
        return _Modulated(self.eps, gain, shift)(x[where])

    def take(self, rows: Tensor) -> _Modulated:
        return self._replace(gain=_rows(self.gain, rows), shift=_rows(self.shift, rows))


class _Layer(NamedTuple):
    """A block of the network under a fixed condition.

    Attributes:
        block: The block.
        norms: The norms before attention and before the MLP.
        gates: The gates of attention and of the MLP.
    """

    block: AdaptiveBlock
    norms: tuple[_Modulated, _Modulated]
    gates: tuple[Tensor, Tensor]

    @classmethod
    def of(cls, block: AdaptiveBlock, condition: Tensor) -> _Layer:
        parts = block.modulation(condition).chunk(6, dim=-1)
        norms = (_Modulated.of(block.norm1, *parts[:2]), _Modulated.of(block.norm2, *parts[3:5]))
        return cls(block, norms, (parts[2], parts[5]))

    def project(self, x: Tensor, turns: Rotary) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the rotated queries and keys, and the values."""
        heads = self.block.attn_qkv(self.norms[0](x)).unflatten(-1, (3, self.block.n_heads, -1))
        turned = heads[:, :, :2]
        cos, sin = turns
        turned = torch.addcmul(turned * cos, turned.roll(cos.shape[-1] // 2, dims=-1), sin)
        q, k = turned.transpose(1, 3).unbind(2)
        return q, k, heads[:, :, 2].transpose(1, 2)

    def advance(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """Add both branches to the residual stream."""
        block = self.block
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        mixed = block.attn_out(mixed.transpose(1, 2).flatten(2))
        x = torch.addcmul(x, self.gates[0], mixed)
        return torch.addcmul(x, self.gates[1], block.mlp(self.norms[1](x)))

    def take(self, rows: Tensor) -> _Layer:
        gates = (_rows(self.gates[0], rows), _rows(self.gates[1], rows))
        return _Layer(self.block, (self.norms[0].take(rows), self.norms[1].take(rows)), gates)


def _rows(x: Tensor, rows: Tensor) -> Tensor:
    return x if len(x) == 1 else x[rows]


def _doubled(table: Rotary) -> Rotary:
    """Expand a rotary table for use as ``x * cos + x.roll(C / 2) * sin`` over C channels."""
    cos, sin = table
    return torch.cat((cos, cos), dim=-1)[:, None, None], torch.cat((-sin, sin), dim=-1)[
        :, None, None
    ]

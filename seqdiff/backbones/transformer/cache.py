"""The caches of transformers: the keys and values of earlier clean tokens."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from seqdiff.backbones.layers import positions_of
from seqdiff.backbones.transformer.block_diffusion import Layers
from seqdiff.backbones.transformer.layers import (
    AdaptiveBlock,
    AdaptiveHead,
    Block,
    CentredNorm,
    Head,
    Rotary,
)

PIECE = 256  # tokens that `append` processes at a time, to bound memory for long prompts


class TransformerCache:
    """The keys and values of the last clean blocks, in a ring buffer.

    The buffer has ``window + block_size`` slots: the token at position p is in slot p modulo this
    number. Nothing is moved when the window slides, and memory stops growing once all slots are
    used. The cache uses no dropout and computes no gradients. The weights must not change while it
    is in use.

    The slots of the next block hold the keys and values of its last evaluation, some of which
    ``logits_of`` may use again.

    Args:
        layers: Layers of the network; without a condition if its blocks are not modulated.
        head: Head of the network.
        batch_size: Number of rows.
        block_size: Number of tokens in a block.
        window: Number of earlier tokens that a block attends to, a multiple of ``block_size``.
    """

    @torch.no_grad()
    def __init__(
        self, layers: Layers, head: Head, batch_size: int, block_size: int, window: int
    ) -> None:
        self._network = layers
        self._head = head.linear
        self._batch_size, self._block_size, self._window = batch_size, block_size, window
        self._slots = window + block_size
        self._length = 0
        condition = None if layers.condition is None else layers.condition[:, None]
        self._layers = [_Layer.of(block, condition) for block in layers.blocks]
        self._last_norm = _Modulated.plain(head.norm)
        if condition is not None:
            assert isinstance(head, AdaptiveHead)
            shift, scale = head.modulation(condition).chunk(2, dim=-1)
            self._last_norm = _Modulated.of(head.norm, shift, scale)
        like = head.linear.weight
        heads = layers.blocks[0].n_heads
        empty = like.new_empty((batch_size, heads, 0, head.linear.in_features // heads))
        self._kept = [(empty, empty) for _ in layers.blocks]
        self._turns: tuple[int, Rotary] | None = None
        self._seen: _Seen | None = None

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
        self._require_block(x_t)
        self._seen = None
        x = self._near(x_t, scored=True)
        return self._head(self._last_norm(x) if where is None else self._last_norm.at(x, where))

    @torch.no_grad()
    def logits_of(
        self,
        rows: Int[Tensor, " b"],
        x_t: Int[Tensor, "b l"],
        where: Bool[Tensor, "b l"],
        refresh: int = 1,
    ) -> Float[Tensor, "N K"]:
        """Score the next block of some rows, see ``PartialCache.logits_of``.

        Raises:
            ValueError: If there are no tokens or more than a block.
        """
        self._require_block(x_t)
        active = torch.ones_like(where)
        if refresh > 1:
            if self._seen is None:
                self._seen = _Seen.nothing(self._batch_size, self._block_size, x_t.device)
            active = self._seen.next(rows, x_t, where, refresh)
        if len(rows) == self._batch_size and bool(active.all()):
            return self._head(self._last_norm.at(self._near(x_t, scored=True), where))
        x = self._some(rows, x_t, active, where)
        scored = rows[where.nonzero()[:, 0]]
        return self._head(self._last_norm.take(scored)(x)[:, 0])

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
        self._seen = None

    def advance(self) -> None:
        """Append the block that was scored last, whose tokens were clean, without running it."""
        self._length += self._block_size
        self._seen = None

    @torch.no_grad()
    def take(self, rows: Int[Tensor, " b"]) -> TransformerCache:
        """Create a cache of some rows, in the given order; a row may occur more than once."""
        taken = copy.copy(self)
        taken._batch_size = len(rows)
        taken._kept = [(keys[rows], values[rows]) for keys, values in self._kept]
        taken._layers = [layer.take(rows) for layer in self._layers]
        taken._last_norm = self._last_norm.take(rows)
        taken._seen = None if self._seen is None else self._seen.take(rows)
        if self._network.signal is not None:
            taken._network = self._network._replace(signal=self._network.signal[rows])
        return taken

    def _require_block(self, x_t: Tensor) -> None:
        if not 0 < x_t.shape[1] <= self._block_size:
            raise ValueError(
                f"TransformerCache.x_t must hold 1 to block_size = {self._block_size} tokens of "
                f"the next block, got {x_t.shape[1]}; score one block at a time"
            )

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
        signal = self._signal_here(tokens.shape[1])
        return x if signal is None else x + signal

    def _signal_here(self, size: int) -> Tensor | None:
        """Return the signal of the next tokens, if there is any."""
        return positions_of(self._network.signal, self._length, self._length + size)

    def _near(self, tokens: Tensor, *, scored: bool) -> Tensor:
        """Run one block and write its keys and values to their slots.

        ``length`` does not change, so the next call overwrites them unless `append` counts them.
        """
        start, seen, mask = self._slots_seen(tokens.shape[1])
        end = start + tokens.shape[1]
        x, turns = self._embed(tokens), self._next_turns(tokens.shape[1])
        for layer, (keys, values) in zip(self._layers, self._kept, strict=True):
            q, k, v = layer.project(x, turns)
            keys[:, :, start:end], values[:, :, start:end] = k, v
            if scored or layer is not self._layers[-1]:
                x = layer.advance(x, mix(q, keys[:, :, :seen], values[:, :, :seen], mask))
        return x

    def _slots_seen(self, size: int) -> tuple[int, int, Tensor | None]:
        """Return the first slot of a block of some size, how many slots it sees, and a mask."""
        start = self._length % self._slots
        self._reserve(self._length + self._block_size)
        if self._length + self._block_size <= self._slots:
            return start, start + size, None
        if size == self._block_size:
            return start, self._slots, None
        mask = torch.ones((1, self._slots), dtype=torch.bool, device=self._head.weight.device)
        mask[:, start + size : start + self._block_size] = False
        return start, self._slots, mask

    def _some(
        self,
        rows: Int[Tensor, " b"],
        tokens: Int[Tensor, "b l"],
        active: Bool[Tensor, "b l"],
        scored: Bool[Tensor, "b l"],
    ) -> Float[Tensor, "N 1 D"]:
        """Run the active tokens of a block of some rows, and return those that are scored.

        In all layers but attention, each token is a row of its own, so rows may have different
        numbers of tokens. In attention the queries of a row are padded to the largest number.

        Args:
            rows: The rows.
            tokens: Their blocks.
            active: Tokens whose keys and values are computed.
            scored: Active tokens to return.
        """
        start, seen, mask = self._slots_seen(tokens.shape[1])
        number, place = active.nonzero(as_tuple=True)
        row, slot = rows[number], start + place
        rank = (active.cumsum(dim=1) - 1)[active]
        longest = int(active.sum(dim=1).max()) if len(row) else 0
        few = 3 * len(rows) < self._batch_size  # then copying their keys is cheaper
        query_row = number if few else row
        x = self._network.embedding(tokens[active])[:, None]
        signal = self._signal_here(tokens.shape[1])
        if signal is not None:
            x = x + signal.expand(-1, tokens.shape[1], -1)[row, place][:, None]
        cos, sin = (part[place, None] for part in self._next_turns(tokens.shape[1]))
        for layer, (keys, values) in zip(self._layers, self._kept, strict=True):
            own = layer.take(row)
            q, k, v = own.project(x, (cos, sin))
            keys[row, :, slot] = k[:, :, 0].to(keys.dtype)
            values[row, :, slot] = v[:, :, 0].to(values.dtype)
            seen_k, seen_v = keys[:, :, :seen], values[:, :, :seen]
            if few:
                seen_k, seen_v = seen_k[rows], seen_v[rows]
            if layer is self._layers[-1]:
                chosen = scored[active]
                own = layer.take(row[chosen])
                x, q, query_row, rank = x[chosen], q[chosen], query_row[chosen], rank[chosen]
            queries = q.new_zeros((len(seen_k), q.shape[1], longest, q.shape[3]))
            queries[query_row, :, rank] = q[:, :, 0]
            mixed = mix(queries, seen_k, seen_v, mask)[query_row, rank]
            x = own.advance(x, mixed[:, None])
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
                x = layer.advance(x, mix(q, all_k, all_v, mask))
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


class CausalCache:
    """The cache of an autoregressive network; its blocks are single tokens.

    The network reads at each position the token before it. So the keys and values that score a
    token do not depend on it, and ``append`` keeps them: generation runs each position once.

    Args:
        cache: An empty cache of the network's layers with blocks of one token.
        start: What the network reads at the first position of each row.
    """

    def __init__(self, cache: TransformerCache, start: Int[Tensor, "B 1"]) -> None:
        self._cache, self._last = cache, start
        self._scored = torch.zeros_like(start[:, 0], dtype=torch.bool)

    @property
    def length(self) -> int:
        """Number of tokens appended so far, which is the position of the next one."""
        return self._cache.length

    def logits(
        self, x_t: Int[Tensor, "B 1"], where: Bool[Tensor, "B 1"] | None = None
    ) -> Float[Tensor, "B 1 K"] | Float[Tensor, "N K"]:
        """Score the next token, see ``BlockCache.logits``; ``x_t`` is not read."""
        del x_t
        self._scored[:] = True
        return self._cache.logits(self._last, where)

    def logits_of(
        self,
        rows: Int[Tensor, " b"],
        x_t: Int[Tensor, "b 1"],
        where: Bool[Tensor, "b 1"],
        refresh: int = 1,
    ) -> Float[Tensor, "N K"]:
        """Score the next token of some rows, see ``PartialCache.logits_of``."""
        del x_t, refresh
        self._scored[rows] = True
        return self._cache.logits_of(rows, self._last[rows], where)

    def append(self, x0: Int[Tensor, "B l"]) -> None:
        """Append tokens."""
        read = torch.cat((self._last, x0), dim=1)[:, :-1]
        if read.shape[1] and bool(self._scored.all()):
            self._cache.advance()
            read = read[:, 1:]
        if read.shape[1]:
            self._cache.append(read)
        if x0.shape[1]:
            self._last, self._scored = x0[:, -1:], torch.zeros_like(self._scored)

    def take(self, rows: Int[Tensor, " b"]) -> CausalCache:
        """Create a cache of some rows, see ``BlockCache.take``."""
        taken = CausalCache(self._cache.take(rows), self._last[rows])
        taken._scored = self._scored[rows]
        return taken


@dataclass(frozen=True)
class _Seen:
    """What the keys and values of the next block were computed from.

    Attributes:
        tokens: The token at the last evaluation of each position; -1 if there was none.
        count: Evaluations of each row.
    """

    tokens: Int[Tensor, "B S"]
    count: Int[Tensor, " B"]

    @classmethod
    def nothing(cls, batch_size: int, block_size: int, device: torch.device) -> _Seen:
        tokens = torch.full((batch_size, block_size), -1, dtype=torch.int64, device=device)
        return cls(tokens, torch.zeros_like(tokens[:, 0]))

    def next(self, rows: Tensor, x_t: Tensor, where: Tensor, refresh: int) -> Bool[Tensor, "b l"]:
        """Choose the tokens that the next evaluation of some rows computes, and count it.

        These are the scored tokens, those that have changed, and all tokens in every ``refresh``-th
        evaluation of a row.
        """
        size = x_t.shape[1]
        anew = (self.count[rows] % refresh == 0)[:, None]
        active = where | anew | (self.tokens[rows, :size] != x_t)
        self.tokens[rows, :size] = x_t
        self.count[rows] += 1
        return active

    def take(self, rows: Tensor) -> _Seen:
        return _Seen(self.tokens[rows], self.count[rows])


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

    @classmethod
    def plain(cls, norm: CentredNorm) -> _Modulated:
        """Return a norm without modulation."""
        gain = norm.weight[None, None]
        return cls(norm.eps, gain, torch.zeros_like(gain))

    def __call__(self, x: Tensor) -> Tensor:
        return torch.addcmul(self.shift, F.layer_norm(x, x.shape[-1:], eps=self.eps), self.gain)

    def at(self, x: Tensor, where: Tensor) -> Tensor:
        """Normalise only the positions in ``where``."""
        gain, shift = (part.expand_as(x)[where] for part in (self.gain, self.shift))
        return _Modulated(self.eps, gain, shift)(x[where])

    def take(self, rows: Tensor) -> _Modulated:
        return self._replace(gain=_rows(self.gain, rows), shift=_rows(self.shift, rows))


class _Layer(NamedTuple):
    """A block of the network, under a fixed condition if it is modulated.

    Attributes:
        block: The block.
        norms: The norms before attention and before the MLP.
        gates: The gates of attention and of the MLP.
    """

    block: Block
    norms: tuple[_Modulated, _Modulated]
    gates: tuple[Tensor, Tensor]

    @classmethod
    def of(cls, block: Block, condition: Tensor | None) -> _Layer:
        if condition is None:
            one = block.norm1.weight.new_ones((1, 1, 1))
            return cls(
                block, (_Modulated.plain(block.norm1), _Modulated.plain(block.norm2)), (one, one)
            )
        assert isinstance(block, AdaptiveBlock)
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

    def advance(self, x: Tensor, mixed: Tensor) -> Tensor:
        """Add both branches to the residual stream, given the values that attention has mixed."""
        x = torch.addcmul(x, self.gates[0], self.block.attn_out(mixed))
        return torch.addcmul(x, self.gates[1], self.block.mlp(self.norms[1](x)))

    def take(self, rows: Tensor) -> _Layer:
        gates = (_rows(self.gates[0], rows), _rows(self.gates[1], rows))
        return _Layer(self.block, (self.norms[0].take(rows), self.norms[1].take(rows)), gates)


def mix(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Float[Tensor, "b l D"]:
    """Compute attention, and put the heads side by side."""
    mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return mixed.transpose(1, 2).flatten(2)


def _rows(x: Tensor, rows: Tensor) -> Tensor:
    return x if len(x) == 1 else x[rows]


def _doubled(table: Rotary) -> Rotary:
    """Expand a rotary table for use as ``x * cos + x.roll(C / 2) * sin`` over C channels."""
    cos, sin = table
    return torch.cat((cos, cos), dim=-1)[:, None, None], torch.cat((-sin, sin), dim=-1)[
        :, None, None
    ]

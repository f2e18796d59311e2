"""N-gram tables as experts, mixed with the outputs of a trained network by fitted gates."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor, nn
from torch.nn.functional import one_hot

from seqdiff.experts.ngrams import MOST_ORDER, NGramTable, Rows, blocks_of, most_order, smaller
from seqdiff.ops.ngram_chain import chain_posterior

Context = Literal["row", "block", "prefix"]
Part = Literal["network", "experts"]
PARTS: tuple[Part, Part] = ("network", "experts")
_MOST_BYTES = 16 * 2**20
_BLOCK_ROWS = 256
_MOST_TOKENS = 2**28
_PARTS = 8  # of the training split; each is predicted from the others to choose discounts
FOLDS = 4  # parts of the rows for cross-validation; fewer rows choose no gates
_MOST_STEPS, _SHORTEST, _SMALL_GAIN = 50, 2.0**-20, 1e-14  # of Newton's method
_CHUNK = 2**22  # numbers at a time: while gates are chosen, and in a call of the chain's kernel
_STEP = 0.03  # standard deviation of the difference of neighbours in a list or function
_KNOTS = 9  # of a piecewise linear function from 0 to 1
_MEASURES = 2  # of uncertainty
_MOST_SYMBOLS = 512  # whose chains are followed through masked tokens
# States of a chain before a visible token; before a masked one, and these times the symbols.
_MOST_STATES, _MOST_CHILDREN = 256, 2**15
# Steps of a piece of a row, from a state by a token, of which a state keeps about 16 at most; they
# take 120 MB in each thread.
_MOST_STEPS_KEPT, _MOST_STEPS_OF_A_STATE = 2**23, 16
_OVERLAP = 32  # times the order: tokens that a piece of a long row reads on each side


@dataclass(frozen=True)
class ExpertsConfig:
    """N-gram tables of the training split, which are mixed with the network after its training.

    Attributes:
        order: Longest context in tokens. Good choices are 20 for DNA, 8 for characters, 6 for
            bytes, and 2 or 3 for subwords. The saved tables take at most 16 MB; see
            ``NGramExperts.count`` for what they leave out.
    """

    order: int = 10

    def __post_init__(self) -> None:
        """Check the order.

        Raises:
            ValueError: If it is no integer from 0 to 24.
        """
        if not isinstance(self.order, int) or not 0 <= self.order <= MOST_ORDER:
            raise ValueError(
                f"ExpertsConfig.order must be in 0..{MOST_ORDER}, got {self.order}; set "
                "experts.order, or experts to null for none"
            )


class Terms(NamedTuple):
    """What the experts say at N positions: terms of the mixture, and what their weights depend on.

    Attributes:
        base: log u, the distribution without context.
        chain: log p - log u, where p is the distribution given the visible tokens.
        seen: Number of visible tokens nearby, which chooses a summand of the gate.
        uncertainty: Two numbers from 0 to 1: the entropy of p divided by log K, and the total
            variation distance between the distributions of the two chains.
    """

    base: Float[Tensor, "N K"]
    chain: Float[Tensor, "N K"]
    seen: Int[Tensor, " N"]
    uncertainty: Float[Tensor, "N 2"]

    @classmethod
    def join(cls, parts: Sequence[Terms]) -> Terms:
        """Put the positions of several calls together."""
        return cls(*(torch.cat(column) for column in zip(*parts, strict=True)))


class _Point(NamedTuple):
    """Values, and what the positions of each fold add to the loss and its derivatives there."""

    values: Float64[Tensor, " P"]
    nats: Float64[Tensor, " F"]
    slope: Float64[Tensor, "F P"]
    curve: Float64[Tensor, "F P P"]


@dataclass(frozen=True)
class _Problem:
    """The choice of the coefficients, a convex problem that Newton's method solves.

    Attributes:
        outputs: Of the network.
        found: Of the experts.
        targets: Tokens.
        share: Weight of each position; the weights add up to 1.
        fold: The part of the rows to which each position belongs.
        tokens: Number of tokens, against which the prior counts.
        runs: Numbers of coefficients of the three terms: the network's outputs, log u, and the term
            of the chain. Each has one or several runs, in which neighbours are close.
    """

    outputs: Float[Tensor, "N K"]
    found: Terms
    targets: Int[Tensor, " N"]
    share: Float64[Tensor, " N"]
    fold: Int[Tensor, " N"]
    tokens: float
    runs: tuple[tuple[int, ...], ...]

    @property
    def start(self) -> Float64[Tensor, " P"]:
        """The values of the network alone: the scale is 1, and the gates are 0."""
        return self.share.new_tensor([1.0] + [0.0] * (sum(map(sum, self.runs)) - 1))

    @property
    def roots(self) -> Float64[Tensor, "r P"]:
        """Rows whose squared products with the values, less their start, are the prior."""
        start = self.start
        units, roots, first = torch.eye(len(start)).to(start), [], 0
        for size in (size for run in self.runs for size in run):
            run = units[first : first + size]
            roots += [run[:1], (run[1:] - run[:-1]) / _STEP]
            first += size
        return torch.cat(roots)

    def at(self, values: Float64[Tensor, " P"]) -> _Point:
        """Evaluate the loss and its derivatives, without the prior."""
        count, K = len(values), self.outputs.shape[1]
        nats, slope = values.new_zeros(FOLDS), values.new_zeros(FOLDS, count)
        curve = values.new_zeros(FOLDS, count, count)
        sizes = torch.tensor([sum(run) for run in self.runs])
        parts = values.split(sizes.tolist())
        term = torch.arange(3).repeat_interleave(sizes)  # that a value belongs to
        size = max(1, _CHUNK // (3 * K + count))
        for n in range(FOLDS):
            for rows in (self.fold == n).nonzero()[:, 0].split(size):
                found = Terms(*(column[rows] for column in self.found))
                outputs, targets = self.outputs[rows].double(), self.targets[rows, None]
                terms = torch.stack((outputs, found.base.double(), found.chain.double()), dim=1)
                factors = self._factors(found)
                of_terms = torch.stack([x @ y for x, y in zip(factors, parts, strict=True)], dim=1)
                log_probs = (of_terms[:, :, None] * terms).sum(dim=1).log_softmax(dim=-1)
                share = self.share[rows]
                nats[n] -= share @ log_probs.gather(1, targets)[:, 0]
                scaled = log_probs.exp()[:, None] * terms
                mean = scaled.sum(dim=2)
                at_target = terms.gather(2, targets[:, None].expand(-1, 3, 1))[:, :, 0]
                away = share[:, None] * (mean - at_target)
                spread = scaled @ terms.transpose(1, 2) - mean[:, :, None] * mean[:, None, :]
                spread = share[:, None, None] * spread
                slope[n] += torch.cat([x.T @ away[:, i] for i, x in enumerate(factors)])
                every = torch.cat(factors, dim=1)
                curve[n] += torch.cat(
                    [x.T @ (spread[:, i, term] * every) for i, x in enumerate(factors)]
                )
        return _Point(values, nats, slope, curve)

    def _factors(self, found: Terms) -> tuple[Float64[Tensor, "n _"], ...]:
        """What multiplies the coefficients of the scale, of log u, and of the gate."""
        hats = _hats(found.uncertainty.double())
        one = torch.ones_like(hats[:, :1])
        seen = one_hot(found.seen, self.runs[2][0]).double()
        return torch.cat((one, hats), dim=1), one, torch.cat((seen, hats), dim=1)

    def minimum(self, point: _Point, folds: Sequence[int]) -> _Point:
        """Find the values with the least sum of loss and prior.

        Args:
            point: Where to begin.
            folds: The parts of the rows that the loss counts.
        """
        inside = (self.fold[:, None] == torch.tensor(folds, device=self.fold.device)).any(dim=1)
        share, tokens = float(self.share[inside].sum()), self.tokens * float(inside.double().mean())
        start, prior_curve = self.start, self.roots.T @ self.roots / tokens

        def loss(point: _Point) -> float:
            away = point.values - start
            return float(point.nats[folds].sum() / share + away @ prior_curve @ away / 2)

        for _ in range(_MOST_STEPS):
            slope = point.slope[folds].sum(dim=0) / share
            slope = slope + prior_curve @ (point.values - start)
            step = torch.linalg.solve(point.curve[folds].sum(dim=0) / share + prior_curve, slope)
            gain = float(slope @ step)
            if gain < _SMALL_GAIN:
                return point
            # A network that is certain and wrong has a curvature close to 0, so limit the step.
            length = 1 / max(1.0, float(step.abs().max()))
            shortest, present = _SHORTEST * length, loss(point)
            while loss(new := self.at(point.values - length * step)) > (
                present - 1e-4 * length * gain
            ):
                length /= 2
                if length < shortest:
                    return point
            point = new
        return point


def _log(probs: Tensor) -> Tensor:
    """Logarithm of positive numbers, some of which may have been rounded to 0."""
    return probs.clamp_min(torch.finfo(probs.dtype).tiny).log()


def _distance(one: Float[Tensor, "N K"], two: Float[Tensor, "N K"]) -> Float[Tensor, " N"]:
    """Total variation distance between distributions."""
    return (one - two).abs().sum(dim=1) / 2


def _hats(uncertainty: Float[Tensor, "N m"]) -> Float[Tensor, "N _"]:
    """Values of the hat functions, whose weighted sums are the piecewise linear functions."""
    places = uncertainty[..., None] * (_KNOTS - 1)
    knots = torch.arange(_KNOTS, device=places.device)
    return (1 - (places - knots).abs()).clamp_min(0).flatten(1)


class NGramExperts(nn.Module):
    """Mixes the outputs of a network with the predictions of n-gram chains.

    A table is a Markov chain, in which the next token depends on the last ``order`` tokens. In this
    chain, the visible tokens around a masked one give it a distribution: the sum over all tokens
    that the other masked positions may hold. ``chain_posterior`` computes it, exactly or with the
    most likely states. One chain reads rows forwards and another backwards, and p is the mean of
    their distributions. The logits of the position are::

        s network + c log u + g (log p - log u)

    where u is the distribution without context, c is a number, and the scale s and the gate g
    depend on how certain the chains are. Both are sums. Each contains a piecewise linear function
    of the entropy of p divided by log K, and one of the total variation distance between the
    distributions of the two chains. For s, the third summand is a number. For g, it is one of a
    list of numbers, chosen by how many of the ``order`` tokens on each side are visible.

    The network is trained alone. Afterwards ``fit`` chooses all these numbers. Until then the
    mixture is the network: s is 1, and c and g are 0. The distribution depends on visible tokens
    only, so all bounds and samplers of the network hold for the mixture. Without the network it is
    p.

    An autoregressive model has only the chain that reads forwards. With more than 512 symbols,
    there are too many states. Then each side gives p only the run of visible tokens next to the
    position, as if the two runs were independent given the token: p is the product of the
    distributions after both, divided by u.

    Attributes:
        vocab_size: K.
        order: Longest context in tokens.
        complement: Complement of each token if both strands are counted, else ``None``. Then one
            table holds both directions, and the mixture of a network that is equivariant under the
            reverse complement is so too.
        block_sizes: Sizes of blocks that each have a scale and a gate; empty for one of both.
        scale: For each block size, the numbers of s: the constant, then the values of both
            functions at 9 evenly spaced places from 0 to 1.
        gates: For each block size, c and the numbers of g: those of the list, then the values of
            both functions.
    """

    scale: Tensor
    gates: Tensor

    def __init__(
        self,
        vocab_size: int,
        config: ExpertsConfig,
        complement: Sequence[int] | None = None,
        block_sizes: Sequence[int] = (),
    ) -> None:
        """Make gates, without tables.

        Args:
            vocab_size: K.
            config: Order of the tables.
            complement: See the class.
            block_sizes: See the class.
        """
        super().__init__()
        self.vocab_size, self.order = vocab_size, config.order
        self.complement = None if complement is None else tuple(complement)
        self.block_sizes = tuple(block_sizes)
        lists = max(1, len(self.block_sizes))
        scale, unigram, gates = map(sum, self._runs)
        self.register_buffer("scale", torch.zeros(lists, scale))
        self.register_buffer("gates", torch.zeros(lists, unigram + gates))
        self.scale[:, 0] = 1
        self._tables: tuple[NGramTable, NGramTable] | None = None
        self._state = torch.empty(0, dtype=torch.uint8)
        self._parts: Literal["both", "network", "experts"] = "both"

    @property
    def _runs(self) -> tuple[tuple[int, ...], ...]:
        """Numbers of coefficients, see ``_Problem.runs``."""
        functions = (_KNOTS,) * _MEASURES
        return (1, *functions), (1,), (2 * self.order + 1, *functions)

    @property
    def counted(self) -> bool:
        """Whether there are tables; without them the mixture is the network."""
        return self._tables is not None

    def count(self, num_rows: int, read: Callable[[range], Rows]) -> None:
        """Count the words of the training split.

        Of a split with more than 2^28 tokens, evenly spaced blocks of rows with about as many are
        counted. Long words after rare contexts are left out, see ``NGramTable.count``. While the
        saved tables take more than 16 MB, more of them are left out, and then the longest words;
        see ``smaller`` and ``table_order``.

        Args:
            num_rows: Number of rows.
            read: Reads some of them: ids, and where they are known.

        Raises:
            ValueError: If there is too little data.
        """
        if num_rows < 2:
            raise ValueError(
                f"experts must count at least two rows, got {num_rows}; train on more rows, or set "
                "experts to null"
            )
        tokens = num_rows * read(range(min(1, num_rows)))[0].shape[-1]
        spacing = _BLOCK_ROWS * max(1, -(-tokens // _MOST_TOKENS))

        def blocks(part: range) -> Iterator[Rows]:
            for first in range(part.start, part.stop, spacing):
                yield read(range(first, min(first + _BLOCK_ROWS, part.stop)))

        def part_of(rows: range, *, backwards: bool) -> Iterator[Rows]:
            return blocks_of(blocks(rows), self.complement, backwards=backwards)

        def table(*, backwards: bool) -> NGramTable:
            cuts = [-(-num_rows * part // _PARTS) for part in range(_PARTS + 1)]
            parts = [
                functools.partial(part_of, range(*cut), backwards=backwards)
                for cut in pairwise(cuts)
            ]
            order = min(self.order, most_order(self.vocab_size))
            return NGramTable.count(parts, self.vocab_size, order)

        tables = [table(backwards=False)]
        if self.complement is None:
            tables.append(table(backwards=True))
        self._set(tables[0], tables[-1])
        self._state = self._encoded()
        while len(self._state) > _MOST_BYTES and tables[0].order > 0:
            tables = smaller(tables)
            self._set(tables[0], tables[-1])
            self._state = self._encoded()

    @property
    def table_order(self) -> int:
        """Longest context of the tables, at most ``order``; longer runs are cut to it."""
        return self.order if self._tables is None else self._tables[0].order

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> NGramExperts:
        """Move the tables too when the module moves to another device."""
        super()._apply(fn, recurse)
        if self._tables is not None and self._tables[0].device != self.gates.device:
            self._set(*self._tables)
        return self

    def _set(self, forward: NGramTable, backward: NGramTable) -> None:
        device = self.gates.device
        moved = forward.to(device)
        self._tables = (moved, moved if backward is forward else backward.to(device))

    def _encoded(self) -> Tensor:
        """Write the number of tables, their sizes and their contents."""
        assert self._tables is not None
        contents = [table.to("cpu").encode() for table in dict.fromkeys(self._tables)]
        sizes = np.array([len(content) for content in contents], dtype=np.int64)
        content = bytes([len(contents)]) + sizes.tobytes() + b"".join(contents)
        return torch.frombuffer(bytearray(content), dtype=torch.uint8)

    def forward(
        self,
        outputs: Float[Tensor, "*positions K"],
        tokens: Int[Tensor, "B L"],
        where: Bool[Tensor, "B L"] | None,
        *,
        context: Context = "row",
        clean: Int[Tensor, "B L"] | None = None,
        block_size: int = 1,
        absent: int = 0,
    ) -> Float[Tensor, "*positions K"]:
        """Mix.

        Args:
            outputs: Of the network.
            tokens: Visible ids, K where a token is masked or unknown.
            where: Positions of the outputs; ``None`` for all.
            context: Which tokens a position may see, see ``terms``.
            clean: Clean ids, for blocks.
            block_size: Tokens of a block.
            absent: Number of positions at the beginning that do not exist.
        """
        if not self.counted or self._parts == "network":
            return outputs
        sight = {"context": context, "clean": clean, "block_size": block_size, "absent": absent}
        found = self.terms(tokens, where, **sight)
        if self.alone:
            return (found.base + found.chain).view(outputs.shape).to(outputs.dtype)
        place = self.block_sizes.index(block_size) if self.block_sizes else 0
        hats, scales, gates = _hats(found.uncertainty), self.scale[place], self.gates[place]
        functions = 2 * self.order + 2  # where the values of the functions begin
        # Not by matrix products, which autocast would round.
        scale = scales[0] + (scales[1:] * hats).sum(dim=1)
        gate = gates[1 + found.seen] + (gates[functions:] * hats).sum(dim=1)
        logits = gates[0] * found.base + gate[:, None] * found.chain
        scaled = scale[:, None] * outputs.reshape(logits.shape).to(logits.dtype)
        return (scaled + logits).view(outputs.shape)

    @torch.no_grad()
    def terms(
        self,
        tokens: Int[Tensor, "B L"],
        where: Bool[Tensor, "B L"] | None,
        *,
        context: Context = "row",
        clean: Int[Tensor, "B L"] | None = None,
        block_size: int = 1,
        absent: int = 0,
    ) -> Terms:
        """Predict from the visible tokens.

        Args:
            tokens: Visible ids, K where a token is masked or unknown.
            where: Positions to predict; ``None`` for all. Of visible tokens, the experts say
                nothing, except in an autoregressive model.
            context: Which tokens a position may see: the row, those before it, or its block and the
                clean blocks before it.
            clean: Clean ids, for blocks.
            block_size: Tokens of a block.
            absent: Number of positions at the beginning that do not exist.
        """
        assert self._tables is not None
        where = torch.ones_like(tokens, dtype=torch.bool) if where is None else where
        b, i = where.nonzero().unbind(dim=1)
        base = self._base().log().expand(len(b), -1)
        if not len(b):
            return Terms(base, base, b, base.new_zeros(0, _MEASURES))
        steps = torch.arange(1, self.order + 1, device=tokens.device)
        before = i[:, None] - steps
        left = tokens[b[:, None], before.clamp_min(0)]
        if context == "block" and clean is not None:
            earlier = before // block_size < i[:, None] // block_size
            left = torch.where(earlier, clean[b[:, None], before.clamp_min(0)], left)
        left_known = (before >= absent) & (left < self.vocab_size)
        if context == "prefix":
            probs, run = self._after_run(self._tables[0], left, left_known)
            return self._terms_of(base, _log(probs), run, torch.zeros_like(probs[:, 0]))
        after = i[:, None] + steps
        inside = after < tokens.shape[1]
        if context == "block":
            inside &= after // block_size == i[:, None] // block_size
        right = tokens[b[:, None], after.clamp_max(tokens.shape[1] - 1)]
        right_known = inside & (right < self.vocab_size)
        if self.vocab_size > _MOST_SYMBOLS:
            one, left_run = self._after_run(self._tables[0], left, left_known)
            if self.complement is None:
                two, right_run = self._after_run(self._tables[1], right, right_known)
            else:
                other = torch.tensor((*self.complement, self.vocab_size), device=right.device)
                two, right_run = self._after_run(self._tables[1], other[right], right_known)
                two = two[:, list(self.complement)]
            log_probs = _log(one) + _log(two) - base
            return self._terms_of(base, log_probs, left_run + right_run, _distance(one, two))
        blocks = block_size if context == "block" else None
        both = self._posterior(tokens, where, clean, blocks, absent)
        visible = (tokens[b, i] < self.vocab_size)[:, None, None]
        one, two = torch.where(visible, base.exp()[:, None], both).unbind(dim=1)
        seen = left_known.sum(dim=1) + right_known.sum(dim=1)
        return self._terms_of(base, _log((one + two) / 2), seen, _distance(one, two))

    def _terms_of(
        self,
        base: Float[Tensor, "N K"],
        log_probs: Float[Tensor, "N K"],
        seen: Int[Tensor, " N"],
        distance: Float[Tensor, " N"],
    ) -> Terms:
        """Put together what was found; the probabilities may not add up to 1."""
        normal = log_probs.log_softmax(dim=-1)
        entropy = -(normal.exp() * normal).sum(dim=1) / math.log(max(2, self.vocab_size))
        uncertainty = torch.stack((entropy, distance), dim=1).clamp(0, 1)
        return Terms(base, log_probs - base, seen, uncertainty)

    def _base(self) -> Float[Tensor, " K"]:
        """The distribution without context."""
        assert self._tables is not None
        nothing = torch.zeros(1, 0, dtype=torch.int64, device=self.gates.device)
        return self._tables[0].probs(nothing, nothing.new_zeros(1))[0]

    def _after_run(
        self, table: NGramTable, tokens: Int[Tensor, "N n"], known: Bool[Tensor, "N n"]
    ) -> tuple[Float[Tensor, "N K"], Int[Tensor, " N"]]:
        """Predict from the known tokens next to positions, the nearest first, and count them."""
        run = known.long().cumprod(dim=1).sum(dim=1)
        return table.probs(torch.where(known, tokens, 0), run), run

    def _posterior(
        self,
        tokens: Int[Tensor, "B L"],
        where: Bool[Tensor, "B L"],
        clean: Int[Tensor, "B L"] | None,
        block_size: int | None,
        absent: int,
    ) -> Float[Tensor, "N 2 K"]:
        """Distributions in both chains, given the tokens that a position may see.

        A block and the ``order`` clean tokens before it are a row of its own. If these are known,
        tokens further away make no difference in either chain. A row that would take too much
        memory is cut into pieces that overlap, and that are the same for its reverse complement.
        """
        length = tokens.shape[1]
        steps = self._beams[0] * min(_MOST_STEPS_OF_A_STATE, self.vocab_size)
        longest = _MOST_STEPS_KEPT // steps
        size, ahead, behind, number, begin = length, 0, 0, 1, 0
        if block_size is not None:
            size, ahead, number = block_size, self.order, -(-length // block_size)
        elif length > longest:
            number = -(-length // longest)
            number += number % 2 == 0 and length % 2 == 1
            size = -(-length // number)
            size += (number * size - length) % 2
            ahead = behind = _OVERLAP * max(1, self.order)
            begin = (length - number * size) // 2
        first = begin + size * torch.arange(number, device=tokens.device)
        places = first[:, None] + torch.arange(-ahead, size + behind, device=tokens.device)
        kept = places.clamp(0, length - 1)
        rows = tokens[:, kept]
        if clean is not None:
            rows = torch.where(places < first[:, None], clean[:, kept], rows)
        own = (places >= first[:, None].clamp_min(0)) & (
            places < (first[:, None] + size).clamp_max(length)
        )
        asked = where[:, kept] & own
        start = (ahead + absent - first).clamp_min(0).expand(len(tokens), -1)
        stop = (ahead + length - first).clamp_max(ahead + size + behind).expand(len(tokens), -1)
        needed = asked.any(dim=-1)
        return self._both(rows[needed], start[needed], stop[needed])[asked[needed]]

    @property
    def _beams(self) -> tuple[int, int]:
        """Most states of a chain before a masked token, and before a visible one."""
        return min(_MOST_STATES, _MOST_CHILDREN // self.vocab_size), _MOST_STATES

    def _both(
        self, rows: Int[Tensor, "R L"], start: Int[Tensor, " R"], stop: Int[Tensor, " R"]
    ) -> Float[Tensor, "R L 2 K"]:
        """Distributions in both chains, from ``start`` to ``stop`` of each row."""
        assert self._tables is not None
        K, length = self.vocab_size, rows.shape[1]
        rows, start, stop = rows.cpu(), start.cpu(), stop.cpu()
        other = rows.flip(1)
        if self.complement is not None:
            other = torch.tensor((*self.complement, K))[other]
        forward, backward = (table.chain for table in self._tables)
        found = []
        for part in torch.arange(len(rows)).split(max(1, _CHUNK // (length * K))):
            one = chain_posterior(forward, rows[part], start[part], stop[part], *self._beams)
            turned = length - stop[part], length - start[part]
            two = chain_posterior(backward, other[part], *turned, *self._beams).flip(1)
            if self.complement is not None:
                two = two[..., list(self.complement)]
            found.append(torch.stack((one, two), dim=2))
        probs = torch.cat(found) if found else torch.zeros(0, length, 2, K)
        return probs.to(self.gates.device, self._base().dtype)

    def fit(
        self,
        outputs: Float[Tensor, "N K"],
        found: Terms,
        targets: Int[Tensor, " N"],
        weights: Float[Tensor, " N"],
        rows: Int[Tensor, " N"],
        num_tokens: int,
        block_size: int = 1,
    ) -> tuple[float, float]:
        """Choose the numbers of the scale and of the gate that predict tokens best.

        The loss is convex in them. Their prior is Gaussian, so that few tokens choose little: its
        standard deviation is 1 around the network alone, and .03 for the difference of neighbouring
        numbers of a list or function. Cross-validation over four parts of the rows decides whether
        they are used: if they do not help on rows that they were not chosen on, the mixture stays
        the network.

        Args:
            outputs: Of the network, at positions that it was not trained on.
            found: From ``terms``, at the same positions.
            targets: Their tokens.
            weights: Of each position in the bound.
            rows: Number of the row of each position.
            num_tokens: Number of different tokens among them, against which the prior counts.
            block_size: The size of blocks whose gates are chosen.

        Returns:
            Weighted mean of -log p of the targets in nats, of the network alone and of the mixture,
            the latter from cross-validation.
        """
        found_rows, rows = rows.unique(return_inverse=True)
        order = torch.randperm(len(found_rows), generator=torch.Generator().manual_seed(0))
        fold = (order % FOLDS)[rows.cpu()].to(rows.device)
        share = weights.double() / weights.double().sum()
        problem = _Problem(outputs, found, targets, share, fold, float(num_tokens), self._runs)
        start = problem.at(problem.start)
        values, before = start.values, float(start.nats.sum())
        after = before
        if len(found_rows) >= FOLDS:
            best = problem.minimum(start, range(FOLDS))
            unseen = 0.0
            for n in range(FOLDS):
                others = [other for other in range(FOLDS) if other != n]
                unseen += float(problem.minimum(best, others).nats[n])
            if unseen < before:
                values, after = best.values, unseen
        place = self.block_sizes.index(block_size) if self.block_sizes else 0
        sizes = self.scale.shape[1], self.gates.shape[1]
        self.scale[place], self.gates[place] = values.split(sizes)
        return before, after

    @contextmanager
    def only(self, part: Part) -> Iterator[None]:
        """Leave one part of the mixture out, to measure what each contributes.

        Args:
            part: The part that stays.
        """
        self._parts = part
        try:
            yield
        finally:
            self._parts = "both"

    @property
    def alone(self) -> bool:
        """Whether the network is left out at present."""
        return self.counted and self._parts == "experts"

    def get_extra_state(self) -> Tensor:
        """Return the tables as bytes, which are saved with the gates; none before they counted."""
        return self._state

    def set_extra_state(self, state: Tensor) -> None:
        """Read the tables.

        Raises:
            ValueError: If they are damaged or of another order.
        """
        content = state.cpu().numpy().tobytes()
        if not content:
            self._tables, self._state = None, state.cpu()
            return
        number, first, tables = content[0], 1 + 8 * content[0], []
        damaged = "NGramExperts.tables must be whole, got damaged ones; count them again"
        if number != (1 if self.complement is not None else 2) or len(content) < first:
            raise ValueError(damaged)
        sizes = np.frombuffer(content[1:first], dtype=np.int64).tolist()
        if min(sizes) < 0 or first + sum(sizes) != len(content):
            raise ValueError(damaged)
        for size in sizes:
            tables.append(NGramTable.decode(content[first : first + size], self.vocab_size))
            first += size
        if any(table.order != tables[0].order or table.order > self.order for table in tables):
            raise ValueError(
                f"NGramExperts.tables must be of one order up to {self.order}, got "
                f"{[table.order for table in tables]}; count them again"
            )
        self._set(tables[0], tables[-1])
        self._state = state.cpu()

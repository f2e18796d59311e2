"""N-gram tables as experts, mixed with the outputs of a network by learned gates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from seqdiff.experts.ngrams import NGramTable, Rows, blocks_of, most_order

Context = Literal["row", "block", "prefix"]
Part = Literal["network", "experts"]
PARTS: tuple[Part, Part] = ("network", "experts")
_MOST_BYTES = 16 * 2**20
_BLOCK_ROWS = 256
_MOST_TOKENS = 2**28


@dataclass(frozen=True)
class ExpertsConfig:
    """N-gram tables of the training split, which the network mixes with its own predictions.

    Attributes:
        order: Longest context in tokens: 10 for DNA, 6 for characters and bytes and 3 for subwords
            are good choices. It is lowered until the saved tables take at most 16 MB.
        folds: Parts of the training split. In training, the counts of the part that a row lies in
            are left out, because they would give the row's tokens away.
    """

    order: int = 10
    folds: int = 8

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            ValueError: If the order is negative or there are fewer than two folds.
        """
        for name, least in (("order", 0), ("folds", 2)):
            if getattr(self, name) < least:
                raise ValueError(
                    f"ExpertsConfig.{name} must be at least {least}, got {getattr(self, name)}; "
                    f"set experts.{name}"
                )


class NGramExperts(nn.Module):
    """Adds the log-probabilities of n-gram tables to the outputs of a network.

    A masked position has a run of visible tokens to its left and one to its right. A table
    predicts its token from each, and the position's logits are::

        network + left[0] log u + left[i] (log p_left - log u) + right[j] (log p_right - log u)

    where u is the distribution without context, and i and j are the lengths of the runs, at most
    the order; a run of length 0 adds nothing. The gates ``left`` and ``right`` start at 1: together
    with a network of small outputs, training starts near the product of the two experts, which is
    what Bayes' rule gives for contexts that are independent given the token. With gates of 0 the
    mixture is the network. The distribution depends on visible tokens only, so all bounds and
    samplers of the network hold for the mixture.

    Attributes:
        vocab_size: K.
        order: Longest context in tokens.
        complement: Complement of each token if both strands are counted, else ``None``. The two
            directions then have one table and one list of gates, and the mixture of a network that
            is equivariant under the reverse complement is so too.
    """

    def __init__(
        self, vocab_size: int, config: ExpertsConfig, complement: Sequence[int] | None = None
    ) -> None:
        """Make gates, without tables.

        Args:
            vocab_size: K.
            config: Order of the tables and number of folds.
            complement: See the class.
        """
        super().__init__()
        self.vocab_size, self.order, self.folds = vocab_size, config.order, config.folds
        self.complement = None if complement is None else tuple(complement)
        self.left = nn.Parameter(torch.ones(config.order + 1))
        if complement is None:
            self.right = nn.Parameter(torch.ones(config.order + 1))
        self._tables: tuple[NGramTable, NGramTable] | None = None
        self._state = torch.empty(0, dtype=torch.uint8)
        self._rows = 0
        self._parts: Literal["both", "network", "experts"] = "both"

    def close(self) -> None:
        """Set all gates to 0, so that training starts from the network alone."""
        with torch.no_grad():
            for gates in self.parameters():
                gates.zero_()

    def count(self, num_rows: int, read: Callable[[range], Rows]) -> None:
        """Count the words of the training split, part by part.

        Of a split with more than 2^28 tokens, evenly spaced blocks of rows with about as many are
        counted. The longest words are left out again while the saved tables take more than 16 MB,
        see ``table_order``.

        Args:
            num_rows: Number of rows. Neighbouring rows are in the same part.
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

        def table(*, backwards: bool) -> NGramTable:
            cuts = [-(-num_rows * fold // self.folds) for fold in range(self.folds + 1)]
            parts = (
                blocks_of(blocks(range(*cut)), self.complement, backwards=backwards)
                for cut in pairwise(cuts)
            )
            order = min(self.order, most_order(self.vocab_size))
            return NGramTable.count(parts, self.vocab_size, order)

        forward = table(backwards=False)
        backward = forward if self.complement is not None else table(backwards=True)
        self._set(forward, backward)
        self._rows, self._state = num_rows, self._encoded()
        while len(self._state) > _MOST_BYTES and forward.order > 0:
            both = forward is backward
            forward = forward.without_longest()
            backward = forward if both else backward.without_longest()
            self._set(forward, backward)
            self._state = self._encoded()

    @property
    def table_order(self) -> int:
        """Longest context of the tables, at most ``order``; longer runs are cut to it."""
        return self.order if self._tables is None else self._tables[0].order

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> NGramExperts:
        """Move the tables too when the module moves to another device."""
        super()._apply(fn, recurse)
        if self._tables is not None and self._tables[0].device != self.left.device:
            self._set(*self._tables)
        return self

    def _set(self, forward: NGramTable, backward: NGramTable) -> None:
        device = self.left.device
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
        row: Int[Tensor, " B"] | None = None,
    ) -> Float[Tensor, "*positions K"]:
        """Mix.

        Args:
            outputs: Of the network.
            tokens: Visible ids, K where a token is masked or unknown.
            where: Positions of the outputs; ``None`` for all.
            context: Which tokens a position may see: the row, those before it, or its block and the
                clean blocks before it.
            clean: Clean ids, for blocks.
            block_size: Tokens of a block.
            row: The number of each row in the training split, whose part is left out.

        Raises:
            ValueError: If nothing has been counted.
        """
        if self._parts == "network":
            return outputs
        if self._tables is None:
            raise ValueError(
                "NGramExperts.tables must be counted before they are used, got none; call count, "
                "or load weights that hold them"
            )
        b, i = (
            (torch.ones_like(tokens, dtype=torch.bool) if where is None else where)
            .nonzero()
            .unbind(dim=1)
        )
        part = None if row is None or not self._rows else row[b] * self.folds // self._rows
        with torch.no_grad():
            forward, backward = self._tables
            steps = torch.arange(1, self.order + 1, device=tokens.device)
            base = forward.probs(steps.new_zeros(len(b), 0), torch.zeros_like(b), part).log()
            before = i[:, None] - steps
            found = tokens[b[:, None], before.clamp_min(0)]
            if context == "block" and clean is not None:
                earlier = before // block_size < i[:, None] // block_size
                found = torch.where(earlier, clean[b[:, None], before.clamp_min(0)], found)
            sides = [self._side(forward, found, before >= 0, part)]
            if context != "prefix":
                after = i[:, None] + steps
                inside = after < tokens.shape[1]
                if context == "block":
                    inside &= after // block_size == i[:, None] // block_size
                found = tokens[b[:, None], after.clamp_max(tokens.shape[1] - 1)]
                if self.complement is not None:
                    found = self._complements(found)
                probs, run = self._side(backward, found, inside, part)
                if self.complement is not None:
                    probs = probs[:, torch.tensor(self.complement, device=probs.device)]
                sides.append((probs, run))
        logits = self.left[0] * base
        gates_of = (self.left, self.left if self.complement is not None else self.right)
        for (probs, run), gates in zip(sides, gates_of, strict=False):
            logits = logits + gates[run, None] * (probs.log() - base)
        logits = logits.view(outputs.shape)
        if self.alone:
            return logits.to(outputs.dtype)
        return logits + outputs.to(logits.dtype)

    def _complements(self, tokens: Tensor) -> Tensor:
        assert self.complement is not None
        table = torch.tensor((*self.complement, self.vocab_size), device=tokens.device)
        return table[tokens]

    def _side(
        self, table: NGramTable, found: Tensor, inside: Tensor, part: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Predict from the visible run on one side, and return its length too."""
        known = inside & (found < self.vocab_size)
        run = known.long().cumprod(dim=1).sum(dim=1)
        digits = torch.where(known, found, 0)
        return table.probs(digits, run, part), run

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
        return self._parts == "experts"

    def get_extra_state(self) -> Tensor:
        """Return the tables as bytes, which are saved with the gates."""
        return self._state

    def set_extra_state(self, state: Tensor) -> None:
        """Read the tables. Tables that have been counted stay, since they know their parts.

        Raises:
            ValueError: If they are damaged, of another order, or differ from those counted.
        """
        if torch.equal(state.cpu(), self._state):
            return
        content = state.cpu().numpy().tobytes()
        if not content:
            self._tables, self._state = None, state.cpu()
            return
        number = content[0]
        if number != (1 if self.complement is not None else 2) or len(content) < 1 + 8 * number:
            raise ValueError("NGramExperts.tables must be whole, got damaged ones; copy them again")
        sizes = np.frombuffer(content[1 : 1 + 8 * number], dtype=np.int64).tolist()
        first, tables = 1 + 8 * number, []
        for size in sizes:
            tables.append(NGramTable.decode(content[first : first + size], self.vocab_size))
            first += size
        if any(table.order != tables[0].order or table.order > self.order for table in tables):
            raise ValueError(
                f"NGramExperts.tables must be of one order up to {self.order}, got "
                f"{[table.order for table in tables]}; set experts.order to it"
            )
        if self._rows and self._tables is not None:
            pairs = zip((tables[0], tables[-1]), self._tables, strict=True)
            if not all(one.equals(two) for one, two in pairs):
                raise ValueError(
                    "experts must count the training split that the checkpoint was trained on, got "
                    "another; resume with the same data and experts, or begin another run with "
                    "--start_from"
                )
            return
        self._set(tables[0], tables[-1])
        self._state, self._rows = state.cpu(), 0

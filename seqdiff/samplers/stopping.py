"""When a row that grows block by block ends before it is full."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor


def unigram_entropy(tokens: Int64[Tensor, "B n"]) -> Float64[Tensor, " B"]:
    """Entropy in nats of the frequencies of the symbols in each row.

    Args:
        tokens: Any integers; their range does not matter.
    """
    ordered = tokens.sort(dim=-1).values
    first = torch.searchsorted(ordered, ordered)
    count = torch.searchsorted(ordered, ordered, right=True) - first
    return math.log(max(1, tokens.shape[1])) - count.double().log().mean(dim=-1)


@dataclass(frozen=True)
class StopRules:
    """A symbol that ends a row, and how monotonous the end of a row may become.

    Attributes:
        stop_id: The symbol.
        min_entropy: In nats.
        entropy_window: Tokens at the end of a row whose entropy is looked at.
    """

    stop_id: int | None
    min_entropy: float | None
    entropy_window: int

    def check(self, owner: str, vocab_size: int) -> None:
        """Refuse rules that no row or every row would fulfil.

        Args:
            owner: Whose options these are, for the message.
            vocab_size: K.

        Raises:
            ValueError: If there is no such symbol, or no row can have the entropy.
        """
        if self.stop_id is not None and not 0 <= self.stop_id < vocab_size:
            raise ValueError(
                f"{owner}.stop_id must be in 0..{vocab_size - 1}, got {self.stop_id}; "
                "the tokenizer's encode gives ids"
            )
        most = math.log(min(vocab_size, self.entropy_window))
        if self.min_entropy is not None and self.min_entropy >= most:
            raise ValueError(
                f"{owner}.min_entropy must be below {most:.4g} nats, all that {self.entropy_window}"
                f" tokens of {vocab_size} symbols can have, got {self.min_entropy}; lower it"
            )

    @property
    def idle(self) -> bool:
        """Whether there is no rule."""
        return self.stop_id is None and self.min_entropy is None

    @property
    def sight(self) -> int:
        """Tokens at the end of a row that the rules look at, besides those of the last block."""
        return 0 if self.min_entropy is None else self.entropy_window

    def ends(
        self,
        tail: Int64[Tensor, "B n"],
        drawn: Bool[Tensor, "B size"],
        end: int,
        earliest: Int64[Tensor, " B"],
    ) -> Int64[Tensor, " B"]:
        """Say which rows end now that a block is finished.

        Args:
            tail: Last tokens of the rows: the block, and ``sight`` tokens if there are as many.
            drawn: Positions of the block that were not given.
            end: Where the block ends.
            earliest: Tokens that a row has at least.

        Returns:
            The number of tokens of each row; -1 for those that go on.
        """
        ends, size = torch.full_like(earliest, -1), drawn.shape[1]
        if self.min_entropy is not None and end >= self.entropy_window:
            low = unigram_entropy(tail[:, -self.entropy_window :]) < self.min_entropy
            ends[low & (earliest <= end)] = end
        if self.stop_id is not None:
            number = torch.arange(end - size + 1, end + 1, device=ends.device)
            hit = drawn & (tail[:, -size:] == self.stop_id)
            hit &= (number >= earliest[:, None]) & (number > 1)
            first = torch.where(hit, number, end + 1).amin(dim=-1)
            ends = torch.where(first <= end, first, ends)
        return ends

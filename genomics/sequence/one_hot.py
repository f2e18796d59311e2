"""Bridges to networks that read DNA as one-hot channels, ``[B, 4, L]`` with zeros for N.

That is the layout of gReLU, tangermeme and most sequence-to-function models. With these adapters
such an oracle steers a sampler, as a classifier or as a reward, without being trained for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Num
from torch import Tensor

from genomics.sequence.alphabet import BASES, MASK_ID


def to_one_hot(
    tokens: Int[Tensor, "B L"], dtype: torch.dtype = torch.float32
) -> Num[Tensor, "B 4 L"]:
    """Turn ids into one-hot channels, N into zeros.

    Args:
        tokens: Ids ``0..4``.
        dtype: Of the result.

    Raises:
        ValueError: If an id is outside ``0..4``.
    """
    if tokens.numel() and not 0 <= int(tokens.min()) <= int(tokens.max()) <= MASK_ID:
        raise ValueError(
            f"to_one_hot.tokens must lie in 0..{MASK_ID}, got {int(tokens.min())}.."
            f"{int(tokens.max())}; encode the sequence with genomics.sequence.alphabet.encode"
        )
    return F.one_hot(tokens.long(), MASK_ID + 1)[..., : len(BASES)].mT.to(dtype)


@dataclass(frozen=True)
class OneHotOracle:
    """A network that reads one-hot channels, and which of its outputs is meant.

    Attributes:
        network: Takes ``[B, 4, L]``, gives one or more numbers a row, of any shape; put it in eval
            mode first, on the device of the rows.
        task: Which of the numbers, counted over all axes but the first; ``None`` if there is one.
        dtype: What the network takes.
    """

    network: Callable[[Tensor], Tensor]
    task: int | None = None
    dtype: torch.dtype = torch.float32

    def __call__(self, one_hot: Float[Tensor, "B 4 L"]) -> Float[Tensor, " B"]:
        """Give the number that is meant of each row.

        Raises:
            ValueError: If the network does not give such numbers.
        """
        output = self.network(one_hot.to(self.dtype))
        numbers = output.reshape(len(one_hot), -1) if len(output) == len(one_hot) else None
        size = 0 if numbers is None else numbers.shape[1]
        if numbers is None or (size != 1 if self.task is None else not 0 <= self.task < size):
            wanted = "one number a row" if self.task is None else f"a number {self.task} a row"
            raise ValueError(
                f"OneHotOracle.network must give {wanted}, got shape {tuple(output.shape)} for "
                f"{len(one_hot)} rows; set task to one of its outputs"
            )
        return numbers[:, self.task or 0]


@dataclass(frozen=True)
class OracleClassifier:
    """An oracle as a ``seqdiff.samplers.Classifier`` of ids.

    Rows come with masks, which the oracle sees as N: it should have seen such.

    Attributes:
        oracle: What to ask.
        log_prob: Turns its number into log p(wanted); the default takes a logit.
    """

    oracle: OneHotOracle
    log_prob: Callable[[Tensor], Tensor] = F.logsigmoid

    def __call__(
        self,
        tokens: Int[Tensor, "B L"],
        t: Float[Tensor, " B"] | None = None,
        padding: Bool[Tensor, "B L"] | None = None,
    ) -> Float[Tensor, " B"]:
        """See ``Classifier``; padding is N too, and the time is not told."""
        del t
        hidden = tokens if padding is None else tokens.masked_fill(padding, MASK_ID)
        return self.log_prob(self.oracle(to_one_hot(hidden)))


@dataclass(frozen=True)
class RelaxedOracleClassifier:
    """An oracle as a ``seqdiff.samplers.RelaxedClassifier``, with a gradient.

    Attributes:
        oracle: What to ask; it must be differentiable.
        log_prob: Turns its number into log p(wanted); the default takes a logit.
    """

    oracle: OneHotOracle
    log_prob: Callable[[Tensor], Tensor] = F.logsigmoid

    def __call__(
        self,
        one_hot: Float[Tensor, "B L V"],
        t: Float[Tensor, " B"] | None = None,
        padding: Bool[Tensor, "B L"] | None = None,
    ) -> Float[Tensor, " B"]:
        """See ``RelaxedClassifier``; the mask's column is left out, so that a mask is N."""
        del t
        channels = one_hot[..., : len(BASES)].mT
        if padding is not None:
            channels = channels.masked_fill(padding[:, None], 0.0)
        return self.log_prob(self.oracle(channels))


@dataclass(frozen=True)
class OracleReward:
    """An oracle as the reward of ``seqdiff.samplers.SMCSampler``.

    Attributes:
        oracle: What to ask.
    """

    oracle: OneHotOracle

    @torch.no_grad()
    def __call__(self, tokens: Int[Tensor, "B L"]) -> Float[Tensor, " B"]:
        """Give the oracle's number of each row.

        Args:
            tokens: Ids ``0..4``.
        """
        return self.oracle(to_one_hot(tokens))

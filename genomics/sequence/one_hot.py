"""Adapters for networks that read DNA as one-hot channels, ``[B, 4, L]`` with zeros for N.

This is the layout of gReLU, tangermeme and most sequence-to-function models. The adapters let such
an oracle guide a sampler as a classifier or as a reward.
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
    """Convert ids ``0..4`` to one-hot channels, with zeros for N.

    Raises:
        ValueError: If an id is outside ``0..4``.
    """
    if tokens.numel() and not 0 <= int(tokens.min()) <= int(tokens.max()) <= MASK_ID:
        raise ValueError(
            f"to_one_hot.tokens must lie in 0..{MASK_ID}, got {int(tokens.min())}.."
            f"{int(tokens.max())}; encode the sequence with genomics.sequence.encode"
        )
    return F.one_hot(tokens.long(), MASK_ID + 1)[..., : len(BASES)].mT.to(dtype)


@dataclass(frozen=True)
class OneHotOracle:
    """One output of a network that reads one-hot channels.

    Attributes:
        network: Maps ``[B, 4, L]`` to one or more numbers per row. It must be in eval mode and on
            the device of the rows.
        task: Index of the output in the flattened numbers of a row; ``None`` for a single output.
        dtype: Input dtype of the network.
    """

    network: Callable[[Tensor], Tensor]
    task: int | None = None
    dtype: torch.dtype = torch.float32

    def __call__(self, one_hot: Float[Tensor, "B 4 L"]) -> Float[Tensor, " B"]:
        """Return the chosen output for each row.

        Raises:
            ValueError: If the network does not return one number per row or has no such task.
        """
        output = self.network(one_hot.to(self.dtype))
        numbers = output.reshape(len(one_hot), -1) if len(output) == len(one_hot) else None
        size = 0 if numbers is None else numbers.shape[1]
        if numbers is None or (size != 1 if self.task is None else not 0 <= self.task < size):
            wanted = "one number per row" if self.task is None else f"a number {self.task} per row"
            raise ValueError(
                f"OneHotOracle.network must give {wanted}, got shape {tuple(output.shape)} for "
                f"{len(one_hot)} rows; set task to one of its outputs"
            )
        return numbers[:, self.task or 0]


@dataclass(frozen=True)
class OracleClassifier:
    """An oracle as a ``seqdiff.samplers.Classifier`` of ids.

    The oracle sees masks and padding as N and should be trained on such sequences.

    Attributes:
        oracle: The network.
        log_prob: Maps its output to log p(wanted); the default expects a logit.
    """

    oracle: OneHotOracle
    log_prob: Callable[[Tensor], Tensor] = F.logsigmoid

    def __call__(
        self,
        tokens: Int[Tensor, "B L"],
        t: Float[Tensor, " B"] | None = None,
        padding: Bool[Tensor, "B L"] | None = None,
    ) -> Float[Tensor, " B"]:
        """Return log p(wanted) for each row; the time is ignored."""
        del t
        tokens = tokens if padding is None else tokens.masked_fill(padding, MASK_ID)
        return self.log_prob(self.oracle(to_one_hot(tokens)))


@dataclass(frozen=True)
class RelaxedOracleClassifier:
    """An oracle as a ``seqdiff.samplers.RelaxedClassifier``, with a gradient.

    Attributes:
        oracle: A differentiable network.
        log_prob: Maps its output to log p(wanted); the default expects a logit.
    """

    oracle: OneHotOracle
    log_prob: Callable[[Tensor], Tensor] = F.logsigmoid

    def __call__(
        self,
        one_hot: Float[Tensor, "B L V"],
        t: Float[Tensor, " B"] | None = None,
        padding: Bool[Tensor, "B L"] | None = None,
    ) -> Float[Tensor, " B"]:
        """Return log p(wanted) for each row; the mask's column is dropped, so a mask is N."""
        del t
        channels = one_hot[..., : len(BASES)].mT
        if padding is not None:
            channels = channels.masked_fill(padding[:, None], 0.0)
        return self.log_prob(self.oracle(channels))


@dataclass(frozen=True)
class OracleReward:
    """An oracle as the reward of ``seqdiff.samplers.SMCSampler``."""

    oracle: OneHotOracle

    @torch.no_grad()
    def __call__(self, tokens: Int[Tensor, "B L"]) -> Float[Tensor, " B"]:
        """Return the oracle's output for each row of ids ``0..4``."""
        return self.oracle(to_one_hot(tokens))

"""Counter-based noise and exact categorical draws.

Noise is a function of its coordinates instead of a hidden state, so that a run does not depend on
the batch size, the number of workers or the number of devices.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Float64, Int, Int64
from torch import Tensor

TIME_STREAM, MASK_STREAM, AUGMENT_STREAM, ORDER_STREAM = range(4)
LABEL_STREAM, REPLACE_STREAM, RECONSTRUCTION_STREAM, CONDITIONING_STREAM = range(4, 8)
SIGNAL_STREAM, SECOND_MASK_STREAM, SIZE_STREAM = range(8, 11)

_WORD = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


def philox(
    counter: tuple[Int64[Tensor, ...], ...], key: tuple[int, int]
) -> tuple[Int64[Tensor, ...], ...]:
    """Philox4x32-10: four random 32-bit words from four counter words and a two-word key.

    Source: Salmon, Moraes, Dror and Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3".

    Args:
        counter: Four broadcastable int64 tensors with values in [0, 2^32).
        key: Two integers in [0, 2^32).

    Returns:
        Four int64 tensors with values in [0, 2^32).
    """
    c0, c1, c2, c3 = torch.broadcast_tensors(*counter)
    k0, k1 = key
    for _ in range(_ROUNDS):
        # An int64 product wraps modulo 2^64, so both 32-bit halves are still exact after the mask.
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            ((p1 >> 32) & _WORD) ^ c1 ^ k0,
            p1 & _WORD,
            ((p0 >> 32) & _WORD) ^ c3 ^ k1,
            p0 & _WORD,
        )
        k0, k1 = (k0 + _WEYL[0]) & _WORD, (k1 + _WEYL[1]) & _WORD
    return c0, c1, c2, c3


def _open_uniform(high: Tensor, low: Tensor) -> Tensor:
    """Two 32-bit words to one of 2^53 midpoints of (0, 1)."""
    return ((high >> 5).double() * 2.0**26 + (low >> 6).double() + 0.5) * 2.0**-53


@dataclass(frozen=True)
class CounterNoise:
    """Uniform noise as a pure function of (seed, branch, stream, index, position).

    Attributes:
        seed: Seed in [0, 2^32).
        branch: Number of one of 2^32 independent families of streams.
    """

    seed: int
    branch: int = 0

    def __post_init__(self) -> None:
        """Check the seed.

        Raises:
            ValueError: If the seed does not fit in 32 bits.
        """
        if not 0 <= self.seed <= _WORD:
            raise ValueError(
                f"CounterNoise.seed must be in [0, 2^32), got {self.seed}; choose a smaller seed"
            )

    @property
    def _key(self) -> tuple[int, int]:
        return self.seed, self.branch

    def uniform(
        self, index: Int[Tensor, " B"], length: int, *, stream: int | Int[Tensor, " B"]
    ) -> Float64[Tensor, "B {length}"]:
        """Draw from the open interval (0, 1), exactly representable at 53 bits.

        A longer row starts with the values of a shorter one.

        Args:
            index: One non-negative id per row, see ``Batch.index``.
            length: Draws per row.
            stream: Number of an independent stream, in [0, 2^32), such as ``MASK_STREAM``; one for
                all rows or one for each.
        """
        rows = index.to(torch.int64)[:, None]
        pairs = torch.arange((length + 1) // 2, device=index.device)[None]
        streams = torch.as_tensor(stream, device=index.device).to(torch.int64).reshape(-1, 1)
        w0, w1, w2, w3 = philox((pairs, streams, rows & _WORD, rows >> 32), self._key)
        draws = torch.stack((_open_uniform(w0, w1), _open_uniform(w2, w3)), dim=-1)
        return draws.flatten(1)[:, :length]

    def uniform_at(
        self, index: Int[Tensor, " n"], position: Int[Tensor, " n"], *, stream: int
    ) -> Float64[Tensor, " n"]:
        """Draw single values of ``uniform``: that of row ``index[i]`` at ``position[i]``."""
        rows = index.to(torch.int64)
        streams = torch.full_like(rows, stream)
        w0, w1, w2, w3 = philox((position // 2, streams, rows & _WORD, rows >> 32), self._key)
        odd = position % 2 == 1
        return _open_uniform(torch.where(odd, w2, w0), torch.where(odd, w3, w1))


def standard_normal(uniform: Float64[Tensor, "*shape"]) -> Float64[Tensor, "*shape"]:
    """Turn uniforms in (0, 1) into standard normals, by the inverse distribution function."""
    return torch.special.ndtri(uniform)


def categorical(
    log_probs: Float[Tensor, "*shape K"], noise: Float64[Tensor, "*shape"]
) -> Int64[Tensor, "*shape"]:
    """Draw exactly from a categorical distribution by inverting its distribution function.

    This is done in float64: in float32 this and the Gumbel-argmax truncate the tail, so that rare
    outcomes are drawn too seldom. Source: Zheng et al. 2024, arXiv:2409.02908.

    Args:
        log_probs: Normalised log-probabilities in nats; ``-inf`` is never drawn.
        noise: Independent uniforms in (0, 1), one per draw.
    """
    steps = log_probs.double().exp().cumsum(dim=-1)
    total = steps[..., -1]
    # The first step above u * total; there is one below total, and its symbol is possible.
    target = torch.minimum(noise * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(steps, target[..., None], right=True).squeeze(-1)


def permutation_rank(
    noise: Float64[Tensor, "B L"], eligible: Bool[Tensor, "B L"]
) -> Int64[Tensor, "B L"]:
    """Rank the eligible positions of each row in a uniformly random order.

    Returns:
        Ranks ``0, 1, ...`` at eligible positions, and higher numbers elsewhere.
    """
    order = torch.where(eligible, noise, torch.inf).argsort(dim=-1)
    ranks = torch.empty_like(order)
    return ranks.scatter_(
        -1, order, torch.arange(order.shape[-1], device=order.device).expand_as(order)
    )

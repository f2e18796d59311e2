"""The absorbing forward process and its exact posterior: no network, no device, no randomness."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Float64, Int, Int64
from torch import Tensor

from seqdiff.blocks import cut, join, spread
from seqdiff.rng import permutation_rank
from seqdiff.schedules import NoiseSchedule


@dataclass(frozen=True)
class MaskedDiffusion:
    """Tokens turn into the mask and stay there: q(x_t | x0) = Cat(alpha_t x0 + (1 - alpha_t) m).

    Source: Sahoo et al. 2024, arXiv:2406.07524, section 3.

    Attributes:
        vocab_size: K, the number of real symbols; the mask has id K.
        schedule: A complete noise schedule.
    """

    vocab_size: int
    schedule: NoiseSchedule

    def __post_init__(self) -> None:
        """Check that the bound will lack no end terms.

        Raises:
            ValueError: If there is no symbol, or alpha(0) != 1 or alpha(1) != 0.
        """
        if self.vocab_size < 1:
            raise ValueError(
                f"MaskedDiffusion.vocab_size must be at least 1, got {self.vocab_size}; "
                "count the real symbols without the mask"
            )
        first, last = self.schedule.alpha(torch.tensor([0.0, 1.0], dtype=torch.float64)).tolist()
        if (first, last) != (1.0, 0.0):
            raise ValueError(
                "MaskedDiffusion.schedule must have alpha(0) = 1 and alpha(1) = 0, got "
                f"{first:.6g} and {last:.6g} from {self.schedule}; wrap it in Completed(...)"
            )

    @property
    def mask_id(self) -> int:
        """The id of the absorbing state, ``vocab_size``."""
        return self.vocab_size

    def corrupt(
        self,
        x0: Int[Tensor, "B L"],
        t: Float[Tensor, " B"],
        *,
        keep: Bool[Tensor, "B L"] | None = None,
        noise: Float64[Tensor, "B L"],
    ) -> Int64[Tensor, "B L"]:
        """Draw x_t given x0: each token is masked independently with probability 1 - alpha(t).

        Args:
            x0: Clean ids in ``0..K``.
            t: Times in [0, 1].
            keep: Positions that stay as they are, whatever t.
            noise: Independent uniforms in (0, 1).
        """
        hidden = noise < 1 - self.schedule.alpha(t.double())[:, None]
        return self._hide(x0, hidden, keep)

    def corrupt_exactly(
        self,
        x0: Int[Tensor, "B L"],
        count: Int[Tensor, " B"],
        *,
        keep: Bool[Tensor, "B L"] | None = None,
        noise: Float64[Tensor, "B L"],
    ) -> Int64[Tensor, "B L"]:
        """Mask exactly ``count`` positions of each row, all subsets equally likely.

        Given its number of masked tokens, x_t of any absorbing process has this law (Ou et al.
        2024, arXiv:2406.03736, section 3.3).

        Args:
            x0: Clean ids in ``0..K``.
            count: Positions to mask, at most the number that is not kept.
            keep: Positions that stay as they are.
            noise: Independent uniforms in (0, 1).
        """
        eligible = torch.ones_like(x0, dtype=torch.bool) if keep is None else ~keep
        return self._hide(x0, permutation_rank(noise, eligible) < count[:, None], keep)

    def _hide(self, x0: Tensor, hidden: Tensor, keep: Tensor | None) -> Tensor:
        if keep is not None:
            hidden = hidden & ~keep
        return torch.where(hidden, self.mask_id, x0)

    def reveal_probability(
        self, s: Float[Tensor, " B"], t: Float[Tensor, " B"]
    ) -> Float64[Tensor, " B"]:
        """P(a token masked at t is visible at s) = (alpha_s - alpha_t) / (1 - alpha_t)."""
        alpha_s, alpha_t = self.schedule.alpha(s.double()), self.schedule.alpha(t.double())
        return (alpha_s - alpha_t) / (1 - alpha_t)

    def reverse_log_probs(
        self,
        log_probs: Float[Tensor, "B L K"],
        x_t: Int[Tensor, "B L"],
        s: Float[Tensor, " B"],
        t: Float[Tensor, " B"],
    ) -> Float64[Tensor, "B L K+1"]:
        """Law of x_s given x_t when x0 has the given law: the posterior with x0 summed out.

        Source: Sahoo et al. 2024, arXiv:2406.07524, equations 6 and 7.

        Args:
            log_probs: Law of x0 in nats.
            x_t: Ids in ``0..K``.
            s: Earlier time, less than t.
            t: Later time, greater than 0.

        Returns:
            Log-probabilities in nats of the K symbols and, last, of the mask.
        """
        reveal = self.reveal_probability(s, t)[:, None, None]
        opened = torch.cat(
            (log_probs.double() + reveal.log(), (1 - reveal).log().expand(*x_t.shape, 1)), dim=-1
        )
        copied = torch.nn.functional.one_hot(x_t, self.vocab_size + 1).double().log()
        return torch.where((x_t == self.mask_id)[..., None], opened, copied)

    def prior(
        self, shape: tuple[int, int], device: torch.device | str = "cpu"
    ) -> Int64[Tensor, "B L"]:
        """The law at t = 1: all mask."""
        return torch.full(shape, self.mask_id, dtype=torch.int64, device=device)


@dataclass(frozen=True)
class BlockDiffusion(MaskedDiffusion):
    """Masked diffusion of each block of a row given the clean blocks before it.

    Blocks are corrupted independently, each at a time of its own. Within a block, and with a model
    that reads the blocks before it as they are, everything that holds of ``MaskedDiffusion`` holds.
    Source: Arriola et al. 2025, arXiv:2503.09573, section 3.

    Attributes:
        block_size: L', tokens of a block; the last of a row may be shorter.
    """

    block_size: int

    def __post_init__(self) -> None:
        """Check the size too.

        Raises:
            ValueError: If a block holds no token; see ``MaskedDiffusion``.
        """
        super().__post_init__()
        check_block_size("BlockDiffusion", self.block_size)

    def corrupt_blocks(
        self,
        x0: Int[Tensor, "B L"],
        t: Float[Tensor, "B n"],
        *,
        keep: Bool[Tensor, "B L"] | None = None,
        noise: Float64[Tensor, "B L"],
    ) -> Int64[Tensor, "B L"]:
        """Draw x_t given x0: ``corrupt`` with a time for each of a row's n blocks.

        Args:
            x0: Clean ids in ``0..K``.
            t: Times in [0, 1].
            keep: Positions that stay as they are, whatever t.
            noise: Independent uniforms in (0, 1).
        """
        share = spread(1 - self.schedule.alpha(t.double()), self.block_size, x0.shape[1])
        return self._hide(x0, noise < share, keep)

    def corrupt_blocks_exactly(
        self,
        x0: Int[Tensor, "B L"],
        count: Int[Tensor, "B n"],
        *,
        keep: Bool[Tensor, "B L"],
        noise: Float64[Tensor, "B L"],
    ) -> Int64[Tensor, "B L"]:
        """Mask exactly as many positions of each block: ``corrupt_exactly`` block by block.

        Args:
            x0: Clean ids in ``0..K``.
            count: Positions to mask, at most the number that is not kept.
            keep: Positions that stay as they are.
            noise: Independent uniforms in (0, 1).
        """
        size = self.block_size
        parts = self.corrupt_exactly(
            cut(x0, size, self.mask_id),
            count.flatten(),
            keep=cut(keep, size, fill=1),
            noise=cut(noise, size),
        )
        return join(parts, x0.shape[1])


def check_block_size(owner: str, block_size: int) -> None:
    """Refuse a block without tokens.

    Raises:
        ValueError: If the size is no integer of at least 1.
    """
    if isinstance(block_size, bool) or not isinstance(block_size, int) or block_size < 1:
        raise ValueError(
            f"{owner}.block_size must be an integer of at least 1, got {block_size!r}; 4 and 16 "
            "are usual"
        )

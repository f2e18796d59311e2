"""Processes with an order: block diffusion, and the order of autoregressive models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Float64, Int, Int64
from torch import Tensor
from typing_extensions import override

from seqdiff.blocks import cut, join, spread
from seqdiff.process.absorbing import Absorbing
from seqdiff.process.base import Context, Process, check_vocab_size


@dataclass(frozen=True)
class Blockwise(Process):
    """Runs a process on each block of a row independently, at its own time.

    A model of it reads a noisy block and the clean blocks before it. Source: Arriola et al. 2025,
    arXiv:2503.09573, section 3; several sizes for one network, arXiv:2606.02241 (BlockGen).

    Attributes:
        process: The process on a block.
        block_size: L', tokens per block; the last block of a row may be shorter.
        sizes: The sizes that one network is trained for, of which ``block_size`` is the present
            one; by default there is only that. 1 is autoregressive, and the length of a row, or
            more, is masked diffusion.
    """

    name: ClassVar[str] = "blockwise"
    context: ClassVar[Context] = "block"
    needs_time: ClassVar[bool] = False
    process: Absorbing
    block_size: int
    sizes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Check the arguments.

        Raises:
            ValueError: If a block holds no token, the size is none of several, or the process needs
                a time input. Networks of blocks have none, because each block has its own noise
                level.
        """
        check_block_size("Blockwise", self.block_size)
        if self.sizes:
            check_block_sizes("Blockwise.sizes", self.sizes)
            if self.block_size not in self.sizes:
                raise ValueError(
                    f"Blockwise.block_size must be one of sizes, {spell_sizes(self.sizes)}, got "
                    f"{self.block_size}; choose one"
                )
        if not isinstance(self.process, Absorbing):
            raise ValueError(
                "Blockwise.process must be absorbing, got "
                f"{getattr(self.process, 'name', type(self.process).__name__)}, whose noise level "
                "a network must be told, while each block has its own; leave block_size out, or "
                "use the absorbing process"
            )

    @property
    def vocab_size(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """K of the process."""
        return self.process.vocab_size

    @property
    def mask_id(self) -> int:
        """The id of the mask, ``vocab_size``."""
        return self.process.mask_id

    @override
    def sigma(self, t: Float[Tensor, "*n"]) -> Float64[Tensor, "*n"]:
        return self.process.sigma(t)

    def corrupt(
        self,
        x0: Int[Tensor, "B L"],
        t: Float[Tensor, "B n"],
        *,
        keep: Bool[Tensor, "B L"] | None = None,
        noise: Float64[Tensor, "B L"],
    ) -> Int64[Tensor, "B L"]:
        """Draw z_t given x0 with a time for each of a row's n blocks."""
        times = spread(t, self.block_size, x0.shape[1])
        return self.process.corrupt(x0, times, keep=keep, noise=noise)

    def corrupt_exactly(
        self,
        x0: Int[Tensor, "B L"],
        count: Int[Tensor, "B n"],
        *,
        keep: Bool[Tensor, "B L"],
        noise: Float64[Tensor, "B L"],
    ) -> Int64[Tensor, "B L"]:
        """Mask exactly ``count`` positions of each block; see ``Absorbing.corrupt_exactly``."""
        size = self.block_size
        parts = self.process.corrupt_exactly(
            cut(x0, size, self.mask_id),
            count.flatten(),
            keep=cut(keep, size, fill=1),
            noise=cut(noise, size),
        )
        return join(parts, x0.shape[1])


@dataclass(frozen=True)
class LeftToRight(Process):
    """Autoregressive models: no noise; every token is predicted from the clean ones before it.

    Attributes:
        vocab_size: K, the number of real symbols.
    """

    name: ClassVar[str] = "left-to-right"
    context: ClassVar[Context] = "prefix"
    needs_time: ClassVar[bool] = False
    vocab_size: int

    def __post_init__(self) -> None:
        """Check the number of symbols.

        Raises:
            ValueError: If there is none.
        """
        check_vocab_size("LeftToRight", self.vocab_size)

    @override
    def sigma(self, t: Float[Tensor, "*n"]) -> Float64[Tensor, "*n"]:
        return torch.zeros_like(t, dtype=torch.float64)


def check_block_size(owner: str, block_size: int) -> None:
    """Check the number of tokens of a block.

    Raises:
        ValueError: If it is no integer of at least 1.
    """
    if isinstance(block_size, bool) or not isinstance(block_size, int) or block_size < 1:
        raise ValueError(
            f"{owner}.block_size must be an integer of at least 1, got {block_size!r}; 4 and 16 "
            "are usual"
        )


def check_block_sizes(owner: str, sizes: Sequence[int]) -> None:
    """Check several numbers of tokens of a block.

    Args:
        owner: Name of the argument, for messages.
        sizes: The numbers.

    Raises:
        ValueError: If there is none, one occurs twice, or one is no integer of at least 1.
    """
    wrong = [n for n in sizes if isinstance(n, bool) or not isinstance(n, int) or n < 1]
    if wrong or not sizes or len(set(sizes)) < len(sizes):
        raise ValueError(
            f"{owner} must hold different integers of at least 1, got {list(sizes)}; "
            "[1, 4, 16] is an example"
        )


def spell_sizes(sizes: Sequence[int]) -> str:
    """Write sizes of blocks in words, for messages."""
    *others, last = map(str, sizes)
    return f"{', '.join(others)} or {last}" if others else last

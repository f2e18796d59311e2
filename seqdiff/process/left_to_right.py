"""The order of autoregressive models, as far as the other rooms treat it as a process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from seqdiff.process.base import Context, Process, check_vocab_size


@dataclass(frozen=True)
class LeftToRight(Process):
    """No noise: every token is predicted from the clean ones before it.

    It has no time; unknown tokens have the id K.

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

    def sigma(self, t: Float[Tensor, "*n"]) -> Float64[Tensor, "*n"]:
        """See ``Process``: there is no noise."""
        return torch.zeros_like(t, dtype=torch.float64)

"""What every sampler promises."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from jaxtyping import Int
from torch import Tensor

from seqdiff.parameterization import Denoiser
from seqdiff.process import MaskedDiffusion
from seqdiff.types import SampleOutput

StepCallback = Callable[[int, Tensor], None]


class Sampler(ABC):
    """Draws sequences by running the process backwards."""

    @abstractmethod
    def sample(
        self,
        denoiser: Denoiser,
        process: MaskedDiffusion,
        x_init: Int[Tensor, "B L"],
        *,
        generator: torch.Generator,
        callback: StepCallback | None = None,
    ) -> SampleOutput:
        """Fill the masked positions of ``x_init``; visible tokens stay.

        Args:
            denoiser: The model; put it in eval mode first.
            process: The process it was trained for.
            x_init: Ids in ``0..K``; ``process.prior(...)`` for generation from nothing.
            generator: The only source of randomness, on the device of ``x_init``.
            callback: Called after each step with the step's number (from 1) and its tokens.

        Raises:
            ValueError: If ``x_init`` holds an id that the process does not know.
        """


def check_tokens(x_init: Int[Tensor, "B L"], process: MaskedDiffusion) -> None:
    """Refuse ids outside ``0..K``.

    Raises:
        ValueError: Naming the first bad id and its place.
    """
    bad = (x_init < 0) | (x_init > process.mask_id)
    if bad.any():
        row, column = bad.nonzero()[0].tolist()
        raise ValueError(
            f"Sampler.x_init must hold ids in 0..{process.mask_id} ({process.mask_id} is the mask),"
            f" got {x_init[row, column].item()} at row {row}, position {column}; re-encode it"
        )

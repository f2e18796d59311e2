"""The denoiser of masked diffusion with a learned noise schedule for every symbol."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn
from typing_extensions import override

from seqdiff.backbones import Backbone
from seqdiff.denoiser.discrete import Denoiser
from seqdiff.experts import NGramExperts
from seqdiff.parameterization import Parameterization
from seqdiff.process import AbsorbingBySymbol


class BySymbolDenoiser(Denoiser):
    """A denoiser that learns the powers of its process.

    A process is a constant, so the parameters belong to the denoiser, which gives them to the
    process whenever that is read. They are therefore saved, resumed, averaged and exported with the
    weights, and every loss, estimator and sampler uses their present values. At first all powers
    are 1. Source: Shi et al. 2024, arXiv:2406.04329, section 6.

    Args:
        backbone: A time-conditioned network that embeds K + 1 ids.
        process: The process.
        parameterization: ``None`` means ``LeaveOneOut``.
        experts: Must be ``None``; see ``Denoiser``.

    Attributes:
        log_powers: Logarithm of the power of each symbol.

    Raises:
        ValueError: If the parts do not fit together.
    """

    learns_process: ClassVar[bool] = True

    def __init__(
        self,
        backbone: Backbone,
        process: AbsorbingBySymbol,
        parameterization: Parameterization | None = None,
        experts: NGramExperts | None = None,
    ) -> None:
        super().__init__(backbone, process, parameterization, experts)
        self.log_powers = nn.Parameter(torch.zeros(process.vocab_size))

    @property
    @override
    def process(self) -> AbsorbingBySymbol:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The forward process with the present powers."""
        log_powers = getattr(self, "log_powers", None)
        if log_powers is None:  # while the denoiser is built
            return self._process
        return self._process.given_log_powers(log_powers)

    @process.setter
    def process(self, process: AbsorbingBySymbol) -> None:
        self._process = process

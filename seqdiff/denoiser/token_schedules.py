"""Denoisers of masked diffusion that learn the noise schedules of tokens.

A process is a constant, so what is learned belongs to the denoiser, which gives it to the process
whenever that is read. It is therefore saved, resumed, averaged and exported with the weights, and
every loss, estimator and sampler uses its present values.
"""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from typing_extensions import override

from seqdiff.backbones import Backbone
from seqdiff.denoiser.discrete import Denoiser
from seqdiff.experts import NGramExperts
from seqdiff.parameterization import Parameterization
from seqdiff.process import AbsorbingByContext, AbsorbingBySymbol

_CHANNELS, _WIDTH = 32, 5


class BySymbolDenoiser(Denoiser):
    """A denoiser that learns the power of every symbol.

    At first all powers are 1. Source: Shi et al. 2024, arXiv:2406.04329, section 6.

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


class TokenScores(nn.Module):
    """A small convolution over clean tokens that gives each position a score in (0, 1).

    At first all scores are 1/2.

    Args:
        vocab_size: K, the number of real symbols.
    """

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size + 1, _CHANNELS)
        self.mix = nn.Conv1d(_CHANNELS, _CHANNELS, _WIDTH, padding=_WIDTH // 2)
        self.last = nn.Linear(_CHANNELS, 1)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)

    def forward(self, x0: Int[Tensor, "B L"]) -> Float[Tensor, "B L"]:
        """Score the tokens of clean rows; K stands for an unknown token."""
        h = self.embedding(x0)
        h = h + F.gelu(self.mix(h.transpose(1, 2)).transpose(1, 2))
        return self.last(h).squeeze(-1).sigmoid()


class ByContextDenoiser(Denoiser):
    """A denoiser that learns the power of every token of a row, and predicts it.

    Source: arXiv:2602.02112; the network of the scores is our own.

    Args:
        backbone: A time-conditioned network that embeds K + 1 ids.
        process: The process.
        parameterization: ``None`` means ``Velocity``.
        experts: Must be ``None``; see ``Denoiser``.

    Attributes:
        scores: The network that scores clean tokens.

    Raises:
        ValueError: If the parts do not fit together.
    """

    learns_process: ClassVar[bool] = True

    def __init__(
        self,
        backbone: Backbone,
        process: AbsorbingByContext,
        parameterization: Parameterization | None = None,
        experts: NGramExperts | None = None,
    ) -> None:
        super().__init__(backbone, process, parameterization, experts)
        self.scores = TokenScores(process.vocab_size)

    @property
    @override
    def process(self) -> AbsorbingByContext:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The forward process with the present scores."""
        scores = getattr(self, "scores", None)
        if scores is None:  # while the denoiser is built
            return self._process
        return self._process.given_scores(scores)

    @process.setter
    def process(self, process: AbsorbingByContext) -> None:
        self._process = process

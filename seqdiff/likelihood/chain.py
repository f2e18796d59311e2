"""The likelihood of an autoregressive model: every token given those before it, in one pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor
from typing_extensions import override

from seqdiff.denoiser import Needs
from seqdiff.likelihood.estimator import PassNoise, Query, QueryEstimator, constant
from seqdiff.process import LeftToRight, Process
from seqdiff.types import Batch


@dataclass(frozen=True)
class ChainRule(QueryEstimator):
    """-log p of an autoregressive model, exactly, in one evaluation; for no other model.

    Positions that do not count are given to those after them, not to those before.
    """

    name: ClassVar[str] = "chain-rule"
    needs: ClassVar[Needs] = Needs((LeftToRight,))

    @property
    @override
    def exact(self) -> bool:
        return True

    @property
    @override
    def quantity(self) -> str:
        return "exact, left to right"

    @property
    @override
    def degrees(self) -> int:
        return 0

    @override
    def cost(self, num_tokens: Int64[Tensor, " B"]) -> Int64[Tensor, " B"]:
        return constant(1, num_tokens)

    def query(
        self,
        batch: Batch,
        evaluation: Int64[Tensor, " B"],
        *,
        noise: PassNoise,
        process: Process,
    ) -> Query:
        """See ``QueryEstimator``; the network sees the whole row and uses what is before."""
        del evaluation, noise, process
        ones = torch.ones(len(batch.tokens), dtype=torch.float64, device=batch.tokens.device)
        return Query(batch.tokens.long(), None, batch.loss_mask, ones)

    @override
    def combine(
        self, values: Float64[np.ndarray, " cost"]
    ) -> tuple[float, Float64[np.ndarray, " components"]]:
        return float(values.sum()), np.zeros(1)

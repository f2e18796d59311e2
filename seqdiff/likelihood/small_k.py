"""The estimator by masks for differences of likelihoods, which come of few positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Int64

from seqdiff.likelihood.estimator import PassNoise, Query
from seqdiff.likelihood.masks import StratifiedK, mask_exactly
from seqdiff.process import Absorbing, Process
from seqdiff.types import Batch

# Of k, in 1..n: the draws have a density like k^(1/bend - 1).
_BEND = 2.5


@dataclass(frozen=True)
class SmallK(StratifiedK):
    """``StratifiedK`` with more draws of small k, in strata of whole numbers k.

    At k masked tokens of n a row is worth n/k times the cost of those: of all tokens alike about
    the same at every k. The difference of two rows is that of a few positions, which a mask holds
    with a share of k/n and then at a weight of n/k. With k uniform, rare draws of small k would
    make most of its variance, and a third moment at which Student's t covers too little: 80% to
    90% where a stratum's draws fall on either side of a step in k. So the strata end at the whole
    numbers above n (h / H)^2.5, each k belongs to one, and a stratum that would be empty gives its
    draws to the one before. The target is that of ``StratifiedK``, whatever the strata.

    Attributes:
        evaluations: Draws of a pass; even.
    """

    name: ClassVar[str] = "small-k"

    def query(
        self,
        batch: Batch,
        evaluation: Int64[torch.Tensor, " B"],
        *,
        noise: PassNoise,
        process: Process,
    ) -> Query:
        """See ``Estimator``."""
        assert isinstance(process, Absorbing)  # by ``needs``
        begin, end, pairs = strata(batch.num_tokens, self.evaluations // 2, evaluation // 2)
        size = end - begin
        step = (noise.scalar(batch, evaluation) * size).long()
        query = mask_exactly(
            batch, evaluation, begin + step.clamp_max(size - 1) + 1, noise, process
        )
        share = size * (self.evaluations // 2) / (batch.num_tokens * pairs).double()
        return query._replace(weight=query.weight * share)


def strata(
    num_tokens: Int64[torch.Tensor, " B"], number: int, chosen: Int64[torch.Tensor, " B"]
) -> tuple[Int64[torch.Tensor, " B"], Int64[torch.Tensor, " B"], Int64[torch.Tensor, " B"]]:
    """Give the stratum of 1..n that each pair of draws falls into.

    Args:
        num_tokens: n of each row.
        number: Pairs of draws of a pass.
        chosen: Which pair, in ``0..number - 1``.

    Returns:
        The k before its first, its last k, and how many pairs share it.
    """
    bends = torch.from_numpy((np.arange(number + 1) / number) ** _BEND).to(num_tokens.device)
    edges = (num_tokens[:, None] * bends).ceil().long()
    end = edges.gather(1, chosen[:, None] + 1)
    begin = torch.where(edges < end, edges, 0).amax(dim=1)
    return begin, end[:, 0], (edges == end).sum(dim=1)

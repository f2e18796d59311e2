"""Remasking that hides most what the network was least sure of."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from seqdiff.samplers.remask import RemaskRescaleSampler


@dataclass(frozen=True)
class RemaskConfSampler(RemaskRescaleSampler):
    """ReMDM-conf: hides unsure tokens more often than rescale; not the model's distribution.

    The weights are exp(-confidence), as in Wang et al. 2025, arXiv:2503.00307. There
    they add up to 1 over the row, here to the number of tokens that may be hidden: then their mean
    leaves the row's mask rate at 1 - alpha_s. No weight exceeds e, so sigma is kept to 1 / e.
    """

    def sigma(
        self, alpha_t: Float64[Tensor, ""], alpha_s: Float64[Tensor, ""]
    ) -> Float64[Tensor, ""]:
        """See ``RemaskSampler``."""
        return super().sigma(alpha_t, alpha_s).clamp_max(math.exp(-1))

    def spread(
        self,
        sigma: Float64[Tensor, ""],
        shown: Bool[Tensor, "B L"],
        confidence: Float64[Tensor, "B L"],
    ) -> Float64[Tensor, "B L"]:
        """See ``RemaskSampler``."""
        weights = torch.where(shown, torch.exp(-confidence), 0.0)
        total = weights.sum(dim=-1, keepdim=True)
        mean = total / shown.sum(dim=-1, keepdim=True)
        return sigma * weights / torch.where(total > 0, mean, 1.0)

"""Ancestral sampling: the exact posterior, step by step."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Int
from torch import Tensor

from seqdiff.parameterization import Denoiser
from seqdiff.process import MaskedDiffusion
from seqdiff.rng import categorical, uniform
from seqdiff.samplers.protocol import Sampler, StepCallback, check_tokens
from seqdiff.types import SampleOutput


@dataclass(frozen=True)
class AncestralSampler(Sampler):
    """``num_steps`` equal steps from t = 1 to t = 0, each an exact draw from q(x_s | x_t, x_theta).

    Whether a position is revealed and which token it gets are two draws, both in float64, so no
    rare outcome is truncated. Source: Sahoo et al. 2024, arXiv:2406.07524, section 4.1.

    Attributes:
        num_steps: Steps; the law tends to the model's own like 1 / num_steps.
    """

    num_steps: int = 128

    def __post_init__(self) -> None:
        """Check the number of steps."""
        if self.num_steps < 1:
            raise ValueError(
                f"AncestralSampler.num_steps must be at least 1, got {self.num_steps}; "
                "the sequence length is a good choice"
            )

    @torch.no_grad()
    def sample(
        self,
        denoiser: Denoiser,
        process: MaskedDiffusion,
        x_init: Int[Tensor, "B L"],
        *,
        generator: torch.Generator,
        callback: StepCallback | None = None,
    ) -> SampleOutput:
        """See ``Sampler``; a row in which a step reveals nothing costs no evaluation."""
        check_tokens(x_init, process)
        x_t = x_init.clone()
        nfe = torch.zeros(len(x_t), dtype=torch.int64, device=x_t.device)
        times = torch.linspace(1, 0, self.num_steps + 1, dtype=torch.float64, device=x_t.device)
        for step, (t, s) in enumerate(pairwise(times), start=1):
            reveal = process.reveal_probability(s[None], t[None])
            opened = (uniform(tuple(x_t.shape), generator) < reveal) & (x_t == process.mask_id)
            rows = opened.any(dim=-1).nonzero().squeeze(-1)
            if len(rows):
                log_probs = denoiser(x_t[rows], t.expand(len(rows)))
                draws = categorical(log_probs, uniform(tuple(log_probs.shape), generator))
                x_t[rows] = torch.where(opened[rows], draws, x_t[rows])
                nfe[rows] += 1
            if callback is not None:
                callback(step, x_t)
        return SampleOutput(x_t, nfe)

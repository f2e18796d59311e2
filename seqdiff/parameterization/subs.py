"""SUBS, the parameterization of MDLM: no mass on the mask, and visible tokens are copied."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from seqdiff.parameterization.base import Kind, Parameterization, log_softmax
from seqdiff.process import Absorbing, Blockwise, Process


@dataclass(frozen=True)
class Subs(Parameterization):
    """Outputs are logits of the K symbols at masked positions; visible tokens are known.

    Zero masking probability holds by shape, since there is no column for the mask. Source: Sahoo et
    al. 2024, arXiv:2406.07524, section 3.2.3.

    Attributes:
        carry_over: Whether visible tokens are copied; without it the network has to learn to, and
            the bound has a reconstruction term (the first ablation of the paper's table 8).
    """

    name: ClassVar[str] = "subs"
    kind: ClassVar[Kind] = "loo"
    processes: ClassVar[tuple[type[Process], ...]] = (Absorbing, Blockwise)
    carry_over: bool = True

    def read(
        self,
        outputs: Float[Tensor, "*n outputs"],
        z: Int[Tensor, "*n"],
        t: Float[Tensor, "*n"] | None,
        process: Process,
    ) -> Float[Tensor, "*n K"]:
        """See ``Parameterization``; at visible positions 0 for the token and ``-inf`` elsewhere."""
        del t
        log_probs = log_softmax(outputs)
        if not self.carry_over:
            return log_probs
        masked = (z == process.unknown_id)[..., None]
        copied = z[..., None] == torch.arange(process.vocab_size, device=z.device)
        visible = torch.where(copied, 0.0, -torch.inf).to(log_probs.dtype)
        return torch.where(masked, log_probs, visible)

"""Parameterizations whose outputs are logits of the clean token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor
from typing_extensions import override

from seqdiff.parameterization.base import Kind, Parameterization
from seqdiff.process import (
    Absorbing,
    AbsorbingByContext,
    AbsorbingBySymbol,
    Blockwise,
    Gaussian,
    Hybrid,
    LeftToRight,
    Process,
    Uniform,
)


def log_softmax(outputs: Float[Tensor, "*n K"]) -> Float[Tensor, "*n K"]:
    """Normalise in float32 or better."""
    return outputs.log_softmax(dim=-1, dtype=torch.promote_types(outputs.dtype, torch.float32))


class _Normalised:
    """Reads outputs as logits; the noisy token and the time do not matter."""

    def read(
        self,
        outputs: Float[Tensor, "*n columns"],
        z: Int[Tensor, "*n"],
        t: Float[Tensor, "*n"] | None,
        process: Process,
    ) -> Float[Tensor, "*n columns"]:
        """Normalise the outputs over their last axis; see ``Parameterization.read``."""
        del z, t, process
        return log_softmax(outputs)


@dataclass(frozen=True)
class Subs(Parameterization):
    """SUBS of MDLM: logits of the K symbols at masked positions; visible tokens are copied.

    No probability is on the mask, because it has no column. Source: Sahoo et al. 2024,
    arXiv:2406.07524, section 3.2.3.

    Attributes:
        carry_over: Whether visible tokens are copied; without it the network has to learn to, and
            the bound has a reconstruction term (the first ablation of the paper's table 8).
    """

    name: ClassVar[str] = "subs"
    kind: ClassVar[Kind] = "loo"
    processes: ClassVar[tuple[type[Process], ...]] = (Absorbing, Blockwise)
    carry_over: bool = True

    @override
    def read(
        self,
        outputs: Float[Tensor, "*n outputs"],
        z: Int[Tensor, "*n"],
        t: Float[Tensor, "*n"] | None,
        process: Process,
    ) -> Float[Tensor, "*n K"]:
        del t
        log_probs = log_softmax(outputs)
        if not self.carry_over:
            return log_probs
        masked = (z == process.unknown_id)[..., None]
        copied = z[..., None] == torch.arange(process.vocab_size, device=z.device)
        visible = torch.where(copied, 0.0, -torch.inf).to(log_probs.dtype)
        return torch.where(masked, log_probs, visible)


@dataclass(frozen=True)
class MaskColumn(_Normalised, Parameterization):
    """D3PM with an absorbing state: logits of the K symbols and, last, of the mask.

    Probability mu on the mask delays unmasking. In continuous time this is SEDD with scores
    s_y = alpha p(y) / (alpha mu + 1 - alpha). Source: Austin et al. 2021, arXiv:2107.03006,
    section 3.3; as a baseline Sahoo et al. 2024, arXiv:2406.07524, section 3.2.3.

    Attributes:
        carry_over: See ``Subs``; the baseline in MDLM's table 8 has it off.
    """

    name: ClassVar[str] = "mask-column"
    kind: ClassVar[Kind] = "loo"
    processes: ClassVar[tuple[type[Process], ...]] = (Absorbing,)
    needs_time: ClassVar[bool] = True
    carry_over: bool = True

    @override
    def num_outputs(self, process: Process) -> int:
        return process.vocab_size + 1


@dataclass(frozen=True)
class LeaveOneOut(_Normalised, Parameterization):
    """Logits of p(x0 | the other positions), at every position.

    The objectives of D3PM, UDLM, Duo and GIDD teach a network this distribution, although it sees
    its own noisy token. An autoregressive network gives it too: its other positions are those
    before. Source: Austin et al. 2021, arXiv:2107.03006; Schiff et al. 2024, arXiv:2412.10193.
    """

    name: ClassVar[str] = "leave-one-out"
    kind: ClassVar[Kind] = "loo"
    processes: ClassVar[tuple[type[Process], ...]] = (
        Uniform,
        Hybrid,
        AbsorbingBySymbol,
        LeftToRight,
    )


@dataclass(frozen=True)
class Full(_Normalised, Parameterization):
    """Logits of p(x0 | all positions), the own noisy token included.

    Where a kernel or a bound needs the leave-one-out distribution, ``Denoiser`` divides by the
    evidence q_t(z | x0) of the own token. Samplers that draw x0 and then go back to z_s (discrete
    DDIM) use this one.
    """

    name: ClassVar[str] = "full"
    kind: ClassVar[Kind] = "full"
    processes: ClassVar[tuple[type[Process], ...]] = (Uniform, Hybrid, AbsorbingBySymbol)


@dataclass(frozen=True)
class Velocity(Parameterization):
    """Logits of the K symbols and, last, of the velocity at which a mask is removed.

    The velocity lies between the limits of the true powers. Times the probability of a symbol it is
    the rate at which the mask turns into that symbol, per unit of -log t. Visible tokens are
    copied. Source: arXiv:2602.02112.
    """

    name: ClassVar[str] = "velocity"
    kind: ClassVar[Kind] = "rates"
    processes: ClassVar[tuple[type[Process], ...]] = (AbsorbingByContext,)

    @override
    def num_outputs(self, process: Process) -> int:
        return process.vocab_size + 1

    @override
    def read(
        self,
        outputs: Float[Tensor, "*n outputs"],
        z: Int[Tensor, "*n"],
        t: Float[Tensor, "*n"] | None,
        process: Process,
    ) -> Float[Tensor, "*n K"]:
        """Return the logarithms of the rates; their sum is the velocity."""
        del t
        assert isinstance(process, AbsorbingByContext)  # by ``processes``
        log_probs = log_softmax(outputs[..., :-1])
        score = outputs[..., -1:].to(log_probs.dtype).sigmoid()
        log_rates = log_probs + (process.least + process.spread * score).log()
        copied = z[..., None] == torch.arange(process.vocab_size, device=z.device)
        visible = torch.where(copied, 0.0, -torch.inf).to(log_probs.dtype)
        return torch.where((z == process.mask_id)[..., None], log_rates, visible)


@dataclass(frozen=True)
class Categorical(_Normalised, Parameterization):
    """Plaid: logits of p(x0 | all noisy embeddings); their mean embedding predicts e(x0).

    The prediction lies within the hull of the embeddings, and the same distribution at t = 0
    decodes tokens. ``GaussianDenoiser`` has added the evidence of the position's own embedding to
    the logits. Source: Gulrajani and Hashimoto 2023, arXiv:2305.18619, section 3.2.
    """

    name: ClassVar[str] = "categorical"
    kind: ClassVar[Kind] = "full"
    processes: ClassVar[tuple[type[Process], ...]] = (Gaussian,)

"""The base class of parameterizations, and exact conversions between their kinds.

The kinds differ in what the prediction for a position is conditioned on:

- ``loo`` (leave-one-out): p(x0 | noisy tokens of the *other* positions);
- ``full``: p(x0 | all noisy tokens), the position's own among them;
- ``score``: p_t(z with y here) / p_t(z) for every state y;
- ``rates``: the rate, times t, at which a mask is removed and shows y.

At a masked position the first two are equal, because a mask says nothing about x0; elsewhere they
are not. The reverse kernel and the bounds of this library take ``loo``. A ``full`` distribution in
its place would give plausible but wrong numbers. Source: Austin et al. 2021, arXiv:2107.03006; Lou
et al. 2024, arXiv:2310.16834; Schiff et al. 2024, arXiv:2412.10193.
"""

# No postponed annotations: the configuration parser reads those of a base class in the module of
# a subclass, where names may be missing.
from abc import ABC, abstractmethod
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from seqdiff.process import DiscreteProcess, Interpolating, Process, Uniform

Kind = Literal["loo", "full", "score", "rates", "step"]

_LEAST = 1e-30


class Parameterization(ABC):
    """Reads the outputs of a network at some positions.

    Subclasses are frozen dataclasses.

    Attributes:
        name: Name in messages and tables.
        kind: Kind of the output of ``read``: ``loo`` or ``full`` distributions, ``score``
            ratios, or ``rates``. (Guided denoisers that give the reverse step alone have ``step``.)
        processes: The processes that it is for.
        needs_time: Whether the network needs the noise level as an input with every process.
        carry_over: Whether visible tokens are copied. Otherwise the bound has a reconstruction term
            for tokens that were never hidden.
    """

    name: ClassVar[str]
    kind: ClassVar[Kind]
    processes: ClassVar[tuple[type[Process], ...]] = (DiscreteProcess,)
    needs_time: ClassVar[bool] = False
    carry_over: bool = True

    def num_outputs(self, process: Process) -> int:
        """Outputs of the network at a position."""
        return process.vocab_size

    @abstractmethod
    def read(
        self,
        outputs: Float[Tensor, "*n outputs"],
        z: Int[Tensor, "*n"],
        t: Float[Tensor, "*n"] | None,
        process: Process,
    ) -> Float[Tensor, "*n columns"]:
        """Turn outputs into log-probabilities or log-scores.

        Args:
            outputs: Outputs of the network.
            z: Noisy ids at the same positions.
            t: Times; ``None`` if neither the process nor the parameterization needs them.
            process: The process.

        Returns:
            Log-probabilities in nats over the K symbols (or over all states, where the clean token
            may be predicted to be a mask), or log-scores over all states; in float32 or better.
        """


def evidence_added(
    log_loo: Float[Tensor, "*n K"],
    z: Int[Tensor, "*n"],
    t: Float[Tensor, "*n"],
    process: DiscreteProcess,
) -> Float64[Tensor, "*n K"]:
    """Turn a leave-one-out distribution into the full one: multiply by q_t(z | x0), normalise."""
    return (log_loo.double() + process.log_likelihood(z, t)).log_softmax(dim=-1)


def evidence_removed(
    log_full: Float[Tensor, "*n K"],
    z: Int[Tensor, "*n"],
    t: Float[Tensor, "*n"],
    process: DiscreteProcess,
) -> Float64[Tensor, "*n K"]:
    """Turn a full distribution into the leave-one-out one: divide by q_t(z | x0), normalise.

    Symbols that the noisy token rules out (at t = 0, all other symbols) keep probability 0.
    """
    evidence = process.log_likelihood(z, t)
    possible = evidence.isfinite()
    return torch.where(possible, log_full.double() - evidence, -torch.inf).log_softmax(dim=-1)


def scores_from_distribution(
    log_loo: Float[Tensor, "*n k"],
    z: Int[Tensor, "*n"],
    t: Float[Tensor, "*n"],
    process: DiscreteProcess,
) -> Float64[Tensor, "*n states"]:
    """Log-scores that follow from a leave-one-out distribution p: q_t(y | p) / q_t(z | p)."""
    marginal = process.log_marginal(log_loo, t)
    return marginal - marginal.gather(-1, z[..., None].long())


def distribution_from_scores(
    log_scores: Float[Tensor, "*n states"],
    z: Int[Tensor, "*n"],
    t: Float[Tensor, "*n"],
    process: DiscreteProcess,
) -> Float64[Tensor, "*n K"]:
    """Leave-one-out distribution whose marginal has the given scores, normalised.

    For a process that mixes data with noise, alpha p(y) = q_t(y) - b_t(y). Scores that do not
    belong to a distribution give a negative p(y), which is replaced by 1e-30, so that a template
    that allows only such symbols can still be filled.

    Raises:
        ValueError: If the process mixes otherwise.
    """
    if not isinstance(process, Interpolating):
        raise ValueError(
            "distribution_from_scores.process must mix data with noise (absorbing, uniform or "
            "hybrid), got "
            f"{process.name}; read its scores as they are"
        )
    size = process.vocab_size
    if isinstance(process, Uniform):
        # Scores minus 1 keep their digits where almost no signal is left.
        noise = process.log_prior(log_scores.device).exp()
        excess = log_scores.double().expm1()
        mean = (excess * noise).sum(dim=-1, keepdim=True)
        probs = 1 + (excess - mean) / (process.alpha(t)[..., None] * (1 + mean))
        probs = torch.where(noise > 0, probs, 0.0).clamp_min(_LEAST)
        return (probs / probs.sum(dim=-1, keepdim=True)).log()
    scores = log_scores.double().exp()
    noise = process.noise_probs(t).expand(scores.shape)
    if process.states > size:  # q_t(mask) = b_t(mask) is known, which fixes the scale
        marginal = scores * (noise[..., size:] / scores[..., size:])
    else:
        marginal = scores / scores.sum(dim=-1, keepdim=True)
    probs = (marginal - noise)[..., :size].clamp_min(_LEAST)
    return (probs / probs.sum(dim=-1, keepdim=True)).log()

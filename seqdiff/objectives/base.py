"""The base class of objectives, and the draws and end terms that they have in common."""

# No postponed annotations: the configuration parser reads those of a base class in the module of
# a subclass, where names may be missing.
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from seqdiff.denoiser import Denoiser, Needs
from seqdiff.losses import has_reconstruction, prior_terms, reconstruction_terms
from seqdiff.process import DiscreteProcess
from seqdiff.rng import MASK_STREAM, RECONSTRUCTION_STREAM, CounterNoise
from seqdiff.types import Batch

# Fraction of rows that have a reconstruction term, with one over it as the weight.
_RECONSTRUCTED = 1 / 8


class Objective(ABC):
    """Draws noise for a batch and returns the terms of a loss.

    Attributes:
        needs: The models that it can train.
    """

    needs: ClassVar[Needs]

    @abstractmethod
    def terms(self, denoiser: Denoiser, batch: Batch, noise: CounterNoise) -> Float[Tensor, "B L"]:
        """Estimate the loss of each sequence by one draw of the noise.

        Args:
            denoiser: The model.
            batch: Clean tokens; those outside the loss mask are not corrupted.
            noise: The run's noise, read at ``batch.index``.

        Returns:
            Nats, 0 outside the loss mask. If the objective is a bound, the sum over a row is an
            unbiased estimate of the row's bound.
        """

    def check(self, denoiser: Denoiser) -> None:
        """Check that this objective can train a model.

        Raises:
            ValueError: If it cannot; names the objectives that can.
        """
        if not self.needs.met_by(denoiser):
            fitting = [c.__name__ for c in Objective.__subclasses__() if c.needs.met_by(denoiser)]
            raise ValueError(
                f"RunConfig.objective must fit the {denoiser.description}, got "
                f"{type(self).__name__}; choose {' or '.join(sorted(fitting)) or 'your own'}, "
                "or set process, parameterization and objective together by --preset"
            )


def position_noise(
    batch: Batch, noise: CounterNoise, stream: int = MASK_STREAM
) -> Float64[Tensor, "B L"]:
    """Draw one uniform for each position, for corruption."""
    return noise.uniform(batch.index, batch.tokens.shape[1], stream=stream)


def corrupted(
    denoiser: Denoiser,
    batch: Batch,
    t: Float64[Tensor, "..."],
    noise: CounterNoise,
    stream: int = MASK_STREAM,
) -> Int64[Tensor, "B L"]:
    """Draw noisy rows; positions outside the loss mask keep their tokens."""
    draws = position_noise(batch, noise, stream)
    return denoiser.process.corrupt(  # pyright: ignore[reportAttributeAccessIssue]
        batch.tokens, t, keep=~batch.loss_mask, noise=draws
    )


def add_ends(
    terms: Float[Tensor, "B L"], denoiser: Denoiser, batch: Batch, noise: CounterNoise
) -> Float[Tensor, "B L"]:
    """Add the terms of a discrete process's bound at t = 1 and at t = 0.

    The prior term at t = 1 does not depend on the network. The reconstruction term at t = 0 takes
    another network pass, so that only an eighth of the rows, on average, have it, with a weight of
    8. Masked diffusion has neither term.
    """
    process = denoiser.process
    if isinstance(process, DiscreteProcess) and not process.forgets:
        terms = terms + prior_terms(denoiser, batch).to(terms.dtype)
    if not has_reconstruction(denoiser):
        return terms

    def decode(part: Batch, weight: Float64[Tensor, " b"]) -> Tensor:
        z = corrupted(denoiser, part, torch.zeros_like(weight), noise)
        return reconstruction_terms(denoiser, part, z, weight)

    return add_on_some_rows(terms, batch, noise, decode)


def add_on_some_rows(
    terms: Float[Tensor, "B L"],
    batch: Batch,
    noise: CounterNoise,
    decode: Callable[[Batch, Tensor], Tensor],
) -> Float[Tensor, "B L"]:
    """Add a reconstruction term to some of the rows, see ``add_ends``."""
    chosen = noise.uniform(batch.index, 1, stream=RECONSTRUCTION_STREAM)[:, 0] < _RECONSTRUCTED
    rows = chosen.nonzero().squeeze(-1)
    if not len(rows):
        return terms
    part = batch.take(rows)
    weight = torch.full_like(part.index, 1 / _RECONSTRUCTED, dtype=torch.float64)
    return terms.index_add(0, rows, decode(part, weight).to(terms.dtype))

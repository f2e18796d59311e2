"""What every objective promises."""

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

# Of the rows, that also pay for decoding z_0, at a weight of one over it.
_RECONSTRUCTED = 1 / 8


class Objective(ABC):
    """Draws noise for a batch and returns the terms of a loss.

    Attributes:
        needs: Of the models that it trains.
    """

    needs: ClassVar[Needs]

    @abstractmethod
    def terms(self, denoiser: Denoiser, batch: Batch, noise: CounterNoise) -> Float[Tensor, "B L"]:
        """Estimate the loss of each sequence by one draw of the noise.

        Args:
            denoiser: The model.
            batch: Clean tokens; those outside its loss mask are given as they are.
            noise: The run's noise, read at ``batch.index``.

        Returns:
            Nats, 0 outside the loss mask. Where the objective is a bound, a row's sum is unbiased
            for the row's bound.
        """

    def check(self, denoiser: Denoiser) -> None:
        """Check that this objective can train a model.

        Raises:
            ValueError: In one line, if it cannot, with the objectives that can.
        """
        if not self.needs.met_by(denoiser):
            fitting = [c.__name__ for c in Objective.__subclasses__() if c.needs.met_by(denoiser)]
            raise ValueError(
                f"RunConfig.objective must fit the {denoiser.description}, got "
                f"{type(self).__name__}; choose {' or '.join(sorted(fitting)) or 'your own'}, "
                "or set process, parameterization and objective together by --preset"
            )


def position_noise(batch: Batch, noise: CounterNoise) -> Float64[Tensor, "B L"]:
    """One uniform a position, for corruption."""
    return noise.uniform(batch.index, batch.tokens.shape[1], stream=MASK_STREAM)


def corrupted(
    denoiser: Denoiser, batch: Batch, t: Float64[Tensor, "..."], noise: CounterNoise
) -> Int64[Tensor, "B L"]:
    """Draw noisy rows; what is outside the loss mask stays as it is."""
    draws = position_noise(batch, noise)
    return denoiser.process.corrupt(  # pyright: ignore[reportAttributeAccessIssue]
        batch.tokens, t, keep=~batch.loss_mask, noise=draws
    )


def add_ends(
    terms: Float[Tensor, "B L"], denoiser: Denoiser, batch: Batch, noise: CounterNoise
) -> Float[Tensor, "B L"]:
    """Add what the bound of a discrete process pays at t = 1 and at t = 0.

    The prior term of t = 1 does not depend on the network. The reconstruction term of t = 0 takes a
    network pass of its own, so that only some rows pay it, an eighth on average, at a weight that
    makes up for the others. Masked diffusion has neither.
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
    """Add a reconstruction term that only some rows pay, see ``add_ends``.

    Args:
        terms: Of all rows.
        batch: The rows.
        noise: Chooses among them.
        decode: Gives the terms of a batch at a weight for each row.
    """
    chosen = noise.uniform(batch.index, 1, stream=RECONSTRUCTION_STREAM)[:, 0] < _RECONSTRUCTED
    rows = chosen.nonzero().squeeze(-1)
    if not len(rows):
        return terms
    part = batch.take(rows)
    weight = torch.full_like(part.index, 1 / _RECONSTRUCTED, dtype=torch.float64)
    return terms.index_add(0, rows, decode(part, weight).to(terms.dtype))

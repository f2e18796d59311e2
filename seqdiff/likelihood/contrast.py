"""Differences between the likelihoods of rows, with standard errors of the differences."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from seqdiff.denoiser import Denoiser
from seqdiff.likelihood.choice import fit, usual_contrast
from seqdiff.likelihood.estimator import Estimator, PassNoise, require_known, run_pass
from seqdiff.likelihood.masks import SmallK
from seqdiff.likelihood.orders import ImportanceWeightedOrders
from seqdiff.likelihood.result import Likelihood, effective_degrees
from seqdiff.rng import CounterNoise
from seqdiff.types import Batch


@torch.no_grad()
def contrast(
    denoiser: Denoiser,
    first: Batch,
    second: Batch,
    *,
    estimator: Estimator | None = None,
    rows_per_call: int | None = None,
    seed: int = 0,
) -> Likelihood:
    """Estimate the difference in nats between each row of one batch and its partner in another.

    A row and its partner get the same masks, so that the noise that they have in common cancels in
    the difference and in its standard error. For masked diffusion both values are bounds on
    -log p, so the result is the difference of two bounds.

    Args:
        denoiser: The model in eval mode, on the device of the batches.
        first: Rows with at least one counted position each. Equal rows with the same noise are
            evaluated once.
        second: Their partners, with the same shape, ``index``, ``label``, ``mirrored`` and
            ``padding``.
        estimator: By default ``SmallK``, or ``ChainRule`` for an autoregressive model.
        rows_per_call: Rows per network call; by default as many as both batches have.
        seed: Seed of the draws, in [0, 2^32).

    Returns:
        ``nats`` are those of ``first`` minus those of ``second``; ``num_tokens`` are those of
        ``first``; ``nfe`` counts the evaluations of both rows, shared or not.

    Raises:
        ValueError: If the batches do not fit together, a row has no counted position or counts an
            unknown symbol, or the estimator does not fit the model, is not linear in its
            evaluations, or makes different numbers of them for a row and its partner.
    """
    chosen = usual_contrast(denoiser) if estimator is None else fit(estimator, denoiser)
    if isinstance(chosen, ImportanceWeightedOrders):
        raise ValueError(
            f"contrast.estimator must be linear in its evaluations, got {chosen.name}, whose "
            f"differences cannot be averaged over draws; use {SmallK.name}"
        )
    _check_rows("first", first, denoiser)
    _check_rows("second", second, denoiser)
    _check_pairs(first, second)
    cost = chosen.cost(first.num_tokens)
    if not torch.equal(cost, chosen.cost(second.num_tokens)):
        raise ValueError(
            f"contrast.estimator must make as many evaluations of a row as of its partner, got "
            f"{chosen.name} and rows with different numbers of counted tokens; use {SmallK.name}"
        )
    rows, place = _distinct(_stack(first, second))
    calls = chosen.calls(rows.num_tokens).cpu()
    parts = run_pass(
        chosen,
        denoiser,
        rows,
        calls=calls,
        noise=PassNoise(CounterNoise(seed)),
        rows_per_call=2 * len(cost) if rows_per_call is None else rows_per_call,
    )
    values = np.split(np.concatenate(list(parts)), calls.cumsum(dim=0)[:-1].numpy())
    mine, other = place.chunk(2)
    differences = [values[a] - values[b] for a, b in zip(mine, other, strict=True)]
    nfe = 2 * denoiser.evaluations_per_call * cost.cpu().numpy()
    return _summarise(chosen, differences, first.num_tokens.cpu().numpy(), nfe)


def _check_rows(name: str, batch: Batch, denoiser: Denoiser) -> None:
    """Raise ``ValueError`` if a row of a batch counts no token, or an unknown one."""
    if not bool(batch.loss_mask.any(dim=-1).all()):
        raise ValueError(
            f"contrast.{name} must count at least one position of every row, got a row without any;"
            " leave it out"
        )
    require_known(f"contrast.{name}", batch, denoiser)


def _check_pairs(first: Batch, second: Batch) -> None:
    """Raise ``ValueError`` if batches differ in shape, or a row and its partner in their noise."""
    shapes = [tuple(rows.tokens.shape) for rows in (first, second)]
    if shapes[0] != shapes[1]:
        raise ValueError(
            f"contrast.second must have the shape of first, {shapes[0]}, got {shapes[1]}; pair "
            "rows of equal length"
        )
    for name in ("index", "label", "mirrored", "padding", "signal"):
        mine, other = getattr(first, name), getattr(second, name)
        if (mine is None) != (other is None) or (mine is not None and not _same(mine, other)):
            raise ValueError(
                f"contrast.second must have the {name} of first, so that a row and its partner "
                "have the same noise, got another one; copy it"
            )


def _distinct(rows: Batch) -> tuple[Batch, Tensor]:
    """Return the distinct rows, and the number of the distinct row that each row equals."""
    count = len(rows.tokens)
    wide = [_bits(field).reshape(count, -1) for field in vars(rows).values() if field is not None]
    seen: dict[bytes, int] = {}
    place, first = [], []
    for number, values in enumerate(torch.cat(wide, dim=1).cpu().numpy()):
        key = values.tobytes()
        if key not in seen:
            seen[key] = len(seen)
            first.append(number)
        place.append(seen[key])
    return rows.take(torch.tensor(first, device=rows.tokens.device)), torch.tensor(place)


def _bits(field: Tensor) -> Tensor:
    """Return numbers as integers that differ where they differ; unknown values are alike."""
    return field.double().view(torch.int64) if field.is_floating_point() else field.long()


def _same(first: Tensor, second: Tensor) -> bool:
    return first.shape == second.shape and torch.equal(_bits(first), _bits(second))


def _stack(first: Batch, second: Batch) -> Batch:
    """Put rows and, below them, their partners into one batch."""
    given = {name: mine for name, mine in vars(first).items() if mine is not None}
    return replace(
        first, **{name: torch.cat((mine, getattr(second, name))) for name, mine in given.items()}
    )


def _summarise(
    estimator: Estimator, differences: list[np.ndarray], num_tokens: np.ndarray, nfe: np.ndarray
) -> Likelihood:
    """Combine the differences of each pair as the estimator combines the values of one row."""
    nats, errors, degrees = [], [], []
    for values in differences:
        mean, components = estimator.combine(values)
        nats.append(mean)
        errors.append(np.sqrt(components.sum()))
        each = estimator.degrees / len(components)
        degrees.append(np.inf if estimator.exact else effective_degrees(components, each))
    return Likelihood(np.array(nats), num_tokens, np.array(errors), nfe, np.array(degrees))

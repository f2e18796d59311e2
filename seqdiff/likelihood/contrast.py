"""How much more likely one row is than another, with the error of that very difference."""

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
    """Estimate by how many nats each row of one batch costs more than that of another.

    A row and its partner see the same masks, so what both have in common cancels, in the difference
    and in its standard error: one pass of the estimator is made over the differences of the single
    evaluations. For a model of masked diffusion both are bounds on -log p, so the difference is
    that of two bounds.

    Args:
        denoiser: In eval mode, on the device of the batches.
        first: Batch; at least one position of each counts. Any that are alike, noise included, are
            shown to the network once.
        second: As many rows, equally long; ``index`` and ``mirrored`` are those of ``first``.
        estimator: ``None`` is ``SmallK``, or ``ChainRule`` for an autoregressive model.
        rows_per_call: Batch of a network call; ``None`` takes as many as both batches have.
        seed: Of the draws, in [0, 2^32).

    Returns:
        ``nats`` are those of ``first`` less those of ``second``; ``num_tokens`` are those of
        ``first``, and ``nfe`` counts the evaluations of both, shared or not.

    Raises:
        ValueError: If the batches do not fit together, a row counts nothing or an unknown symbol,
            or the estimator is for another kind of model, is not linear in its evaluations, or
            makes more of them for one row than for the other.
    """
    chosen = usual_contrast(denoiser) if estimator is None else fit(estimator, denoiser)
    if isinstance(chosen, ImportanceWeightedOrders):
        raise ValueError(
            f"contrast.estimator must be linear in its evaluations, got {chosen.name}, whose "
            f"differences mean nothing; use {SmallK.name}"
        )
    ours, theirs = _rows("first", first, denoiser), _rows("second", second, denoiser)
    _check_pairs(ours, theirs)
    cost = chosen.cost(ours.num_tokens)
    if not torch.equal(cost, chosen.cost(theirs.num_tokens)):
        raise ValueError(
            f"contrast.estimator must make as many evaluations of a row as of its partner, got "
            f"{chosen.name} and rows that count differently many tokens; use {SmallK.name}"
        )
    rows, place = _distinct(_stack(ours, theirs))
    costs = chosen.cost(rows.num_tokens).cpu()
    calls = run_pass(
        chosen,
        denoiser,
        rows,
        cost=costs,
        noise=PassNoise(CounterNoise(seed)),
        rows_per_call=2 * len(cost) if rows_per_call is None else rows_per_call,
    )
    values = np.split(np.concatenate(list(calls)), costs.cumsum(dim=0)[:-1].numpy())
    mine, other = place.chunk(2)
    differences = [values[a] - values[b] for a, b in zip(mine, other, strict=True)]
    per_pair = 2 * denoiser.evaluations_per_call
    return _summarise(chosen, differences, ours.num_tokens.cpu().numpy(), per_pair)


def _rows(name: str, batch: Batch, denoiser: Denoiser) -> Batch:
    """A batch all of whose rows count known tokens only, and at least one."""
    if not bool(batch.loss_mask.any(dim=-1).all()):
        raise ValueError(
            f"contrast.{name} must count at least one position of every row, got a row without any;"
            " leave it out"
        )
    require_known(f"contrast.{name}", batch, denoiser)
    return batch


def _check_pairs(ours: Batch, theirs: Batch) -> None:
    """Refuse batches whose rows are no partners.

    Raises:
        ValueError: If they differ in shape, or a row has other noise than its partner.
    """
    shapes = [tuple(rows.tokens.shape) for rows in (ours, theirs)]
    if shapes[0] != shapes[1]:
        raise ValueError(
            f"contrast.second must have the shape of first, {shapes[0]}, got {shapes[1]}; pair "
            "rows of equal length"
        )
    for name in ("index", "label", "mirrored", "padding"):
        mine, other = getattr(ours, name), getattr(theirs, name)
        if (mine is None) != (other is None) or (mine is not None and not torch.equal(mine, other)):
            raise ValueError(
                f"contrast.second must have the {name} of first, so that a row shares its noise "
                "with its partner, got another one; copy it"
            )


def _distinct(rows: Batch) -> tuple[Batch, Tensor]:
    """The rows that differ, in the order of their first, and where among them each row is."""
    fields = (rows.tokens, rows.loss_mask, rows.index, rows.label, rows.mirrored, rows.padding)
    count = len(rows.tokens)
    wide = [field.reshape(count, -1).long() for field in fields if field is not None]
    seen: dict[bytes, int] = {}
    place, first = [], []
    for number, values in enumerate(torch.cat(wide, dim=1).cpu().numpy()):
        key = values.tobytes()
        if key not in seen:
            seen[key] = len(seen)
            first.append(number)
        place.append(seen[key])
    return rows.take(torch.tensor(first, device=rows.tokens.device)), torch.tensor(place)


def _stack(first: Batch, second: Batch) -> Batch:
    """Put rows and, below them, their partners into one batch."""
    given = {name: mine for name, mine in vars(first).items() if mine is not None}
    return replace(
        first, **{name: torch.cat((mine, getattr(second, name))) for name, mine in given.items()}
    )


def _summarise(
    estimator: Estimator, differences: list[np.ndarray], num_tokens: np.ndarray, per_pair: int
) -> Likelihood:
    """Combine the differences of each pair as the estimator combines evaluations of one row."""
    nats, errors, degrees = [], [], []
    for values in differences:
        mean, components = estimator.combine(values)
        nats.append(mean)
        errors.append(np.sqrt(components.sum()))
        each = estimator.degrees / len(components)
        degrees.append(np.inf if estimator.exact else effective_degrees(components, each))
    nfe = np.array([per_pair * len(values) for values in differences])
    return Likelihood(np.array(nats), num_tokens, np.array(errors), nfe, np.array(degrees))

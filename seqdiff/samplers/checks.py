"""Options and requests that no sampler can fulfil, refused before the network is called."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from numbers import Integral, Real

import torch
from torch import Tensor

_NUMBERS = {"int": (Integral, "an integer"), "float": (Real, "a number")}


def check_numbers(sampler: object) -> None:
    """Refuse options that are no numbers, or no integers, although they are declared so.

    Args:
        sampler: A dataclass.

    Raises:
        ValueError: In one line, naming the first such option.
    """
    assert is_dataclass(sampler)
    for field in fields(sampler):
        declared = str(getattr(field.type, "__name__", field.type))
        kind, requirement = _NUMBERS.get(declared.removesuffix(" | None"), (object, ""))
        value = getattr(sampler, field.name)
        absent = value is None and declared.endswith("| None")
        if absent or (isinstance(value, kind) and not (requirement and isinstance(value, bool))):
            continue
        raise ValueError(
            f"{type(sampler).__name__}.{field.name} must be {requirement}, got {value!r}; "
            "convert it"
        )


def check_request(
    x_init: Tensor,
    unknown_id: int,
    allowed: Tensor | None,
    padding: Tensor | None,
    generator: torch.Generator | None,
    seeds: Tensor | None,
) -> None:
    """Refuse arguments of ``Sampler.sample`` that do not fit together.

    Raises:
        ValueError: In one line, naming the first bad place.
    """
    _check_rows(x_init)
    _check_tokens(x_init, unknown_id)
    for name, mask in (("padding", padding), ("allowed", allowed)):
        if mask is not None and mask.dtype != torch.bool:
            raise ValueError(f"Sampler.{name} must be bool, got {mask.dtype}; call .bool() on it")
    if padding is not None:
        _check_shape("padding", padding, tuple(x_init.shape))
    if (generator is None) == (seeds is None):
        got = "neither" if seeds is None else "both"
        raise ValueError(
            f"Sampler.generator or seeds must be given, and only one of them, got {got}; "
            "pass generator=torch.Generator().manual_seed(0)"
        )
    if seeds is not None:
        _check_shape("seeds", seeds, (len(x_init),))
        if seeds.is_floating_point():
            raise ValueError(f"Sampler.seeds must be integers, got {seeds.dtype}; round them")
        if len(seeds) and int(seeds.min()) < 0:
            raise ValueError(
                f"Sampler.seeds must be in [0, 2^63), got {int(seeds.min())}; make it positive"
            )
    if allowed is not None:
        _check_shape("allowed", allowed, (*x_init.shape, unknown_id))
        _check_allowed(x_init, unknown_id, allowed, padding)


def _check_shape(name: str, tensor: Tensor, wanted: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != wanted:
        raise ValueError(
            f"Sampler.{name} must have shape {wanted} like x_init, got {tuple(tensor.shape)}; "
            "give one entry for each"
        )


def _check_rows(x_init: Tensor) -> None:
    if not isinstance(x_init, Tensor):
        got, fix = f"a {type(x_init).__name__}", "torch.tensor makes one"
    elif x_init.dtype == torch.bool or x_init.is_floating_point() or x_init.is_complex():
        got, fix = str(x_init.dtype), "call .long() on ids"
    elif x_init.dim() != 2:
        got, fix = f"shape {tuple(x_init.shape)}", "a single row is x_init[None]"
    else:
        return
    raise ValueError(f"Sampler.x_init must be a tensor of integers [B, L], got {got}; {fix}")


def _check_tokens(x_init: Tensor, unknown_id: int) -> None:
    bad = (x_init < 0) | (x_init > unknown_id)
    if bad.any():
        row, column = bad.nonzero()[0].tolist()
        raise ValueError(
            f"Sampler.x_init must hold ids in 0..{unknown_id} ({unknown_id} is unknown),"
            f" got {x_init[row, column].item()} at row {row}, position {column}; re-encode it"
        )


def _check_allowed(
    x_init: Tensor, unknown_id: int, allowed: Tensor, padding: Tensor | None
) -> None:
    real = torch.ones_like(x_init, dtype=torch.bool) if padding is None else ~padding
    visible = x_init != unknown_id
    letter = torch.where(visible, x_init, 0).long()[..., None]
    for bad, requirement, fix in (
        (visible & ~allowed.gather(-1, letter).squeeze(-1), "hold the visible letter", "mask it"),
        (~visible & ~allowed.any(dim=-1), "hold a letter", "allow at least one"),
    ):
        if bool((bad & real).any()):
            row, column = (bad & real).nonzero()[0].tolist()
            got = allowed[row, column].nonzero().squeeze(-1).tolist()
            token = int(x_init[row, column])
            raise ValueError(
                f"Sampler.allowed must {requirement} of every position, got only {got} at row "
                f"{row}, position {column} where x_init is {token}; {fix} or change the constraint"
            )

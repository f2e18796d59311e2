"""Weights and checkpoints on disk: checked in one line, and never unpickled."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor

from seqdiff.denoiser import Denoiser
from seqdiff.parameterization import Parameterization

if TYPE_CHECKING:
    from seqdiff.training.module import DiffusionModule

CHECKPOINT_NAME, WEIGHTS_NAME = "last.ckpt", "model.safetensors"
AVERAGE_PREFIX = "average."
MODEL = "model"  # a key of checkpoints, and of what weights are for
# The key of that in the metadata of safetensors: two keys would be written in a random order.
_FOR, _TOKENIZER = "seqdiff", "tokenizer"

_STEPS = ("loops", "fit_loop", "epoch_loop.automatic_optimization.optim_progress")
_STEPS += ("optimizer", "step", "total", "completed")
# What going on reads from a checkpoint: where it lies, and its type. No number is negative.
_NEEDED: dict[tuple[str | int, ...], type] = {
    ("global_step",): int,
    ("pytorch-lightning_version",): str,
    ("state_dict",): dict,
    ("loops", "fit_loop"): dict,
    _STEPS: int,
    ("optimizer_states", 0, "state"): dict,
    ("optimizer_states", 0, "param_groups"): list,
    ("lr_schedulers", 0, "last_epoch"): int,
    ("lr_schedulers", 0, "lr_lambdas"): list,
    ("callbacks",): dict,
    ("log_window", "totals"): Tensor,
    ("log_window", "start"): int,
}
_SECONDS = ("callbacks", "Timer", "time_elapsed", "train")
_SEARCH = ("callbacks", "ClippedScheduleSearch")
_OPTIONAL: dict[tuple[str | int, ...], type] = {
    ("callbacks", "EMA", "num_updates"): Tensor,
    _SECONDS: float,
    (*_SEARCH, "beta"): float,
    (*_SEARCH, "omega"): float,
}


def encode_weights(weights: dict[str, Tensor], tokenizer: str, model: str) -> bytes:
    """Serialise weights as safetensors, each under its own name even if some are shared.

    Args:
        weights: By name.
        tokenizer: Fingerprint of the tokenizer whose ids they are for.
        model: ``Denoiser.description``: what the outputs mean.
    """
    tensors = {name: v.detach().cpu().contiguous().clone() for name, v in weights.items()}
    return save(tensors, metadata={_FOR: json.dumps({_TOKENIZER: tokenizer, MODEL: model})})


def weights_digest(weights: Mapping[str, Tensor]) -> str:
    """Hash tensors with their names, types and shapes.

    Args:
        weights: By name, on the CPU.
    """
    digest = hashlib.sha256()
    for name, weight in sorted(weights.items()):
        digest.update(f"{name} {weight.dtype} {tuple(weight.shape)} ".encode())
        digest.update(weight.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def load_weights(path: Path, denoiser: Denoiser, tokenizer: str) -> None:
    """Fill a network from a safetensors file, strictly.

    Args:
        path: The file.
        denoiser: The model.
        tokenizer: Fingerprint of the tokenizer that it is used with.

    Raises:
        FileNotFoundError: If there is no file.
        ValueError: If it is damaged, does not fit, or says that it is for another tokenizer or
            another kind of model.
    """
    weights = read_weights(path)
    written = read_purpose(path)
    if written.get(_TOKENIZER, tokenizer) != tokenizer:
        raise ValueError(
            f"{path} must be for the tokenizer of run.yaml ({tokenizer}), got weights for "
            f"{written[_TOKENIZER]}; use the run.yaml that was written with it"
        )
    _check_model(path, denoiser, written.get(MODEL))
    check_weights(str(path), denoiser.state_dict(), weights)
    denoiser.load_state_dict(weights)


def read_purpose(path: Path) -> dict[str, object]:
    """What the weights of a file are for, as far as it says so; the first versions had one key.

    Args:
        path: A safetensors file.

    Raises:
        ValueError: If what it says is no JSON.
    """
    with safe_open(path, "pt") as opened:
        metadata = opened.metadata() or {}
    if _FOR not in metadata:
        return {key: value for key, value in metadata.items() if key == _TOKENIZER}
    try:
        return dict(json.loads(metadata[_FOR]))
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"{path} must hold JSON under {_FOR} in its metadata, got: {error}; copy it again"
        ) from error


def _check_model(path: Path, denoiser: Denoiser, written: object) -> None:
    """Check that weights are used as they were trained; shapes alone would not tell.

    Raises:
        ValueError: If not; files that do not say it are taken as they are.
    """
    if written not in (None, denoiser.description):
        raise ValueError(
            f"{path} must be of the {denoiser.description}, as run.yaml and the flags say, got one "
            f"of the {written}; drop the flags, or use the run.yaml that was written with it"
        )


def check_prediction(owner: str, denoiser: Denoiser, written: object) -> None:
    """Check that a model reads the outputs of weights as the model did that they were trained for.

    Both must predict the clean token from the other positions, or from all of them, or scores (see
    ``Parameterization``). The process may be another: block diffusion starts from masked diffusion.

    Args:
        owner: Who has the weights, for the message.
        denoiser: The model.
        written: ``Denoiser.description`` of the model of the weights; ``None`` if it is not known.

    Raises:
        ValueError: If the two predict different things.
    """
    kinds = {kind.name: kind.law for kind in Parameterization.__subclasses__()}
    law = kinds.get(str(written).rpartition(" ")[2])
    if law not in (None, denoiser.law):
        raise ValueError(
            f"{owner} must be of a model whose outputs mean the same as those of the "
            f"{denoiser.description}, got the {written}; start from a run that has "
            f"parameterization {denoiser.parameterization.name}, or leave start_from out"
        )


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file.

    Args:
        path: The file.

    Raises:
        FileNotFoundError: If there is no file.
        ValueError: If it is damaged.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} must exist, got nothing there; train until it is saved")
    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(
            f"{path} must be a whole safetensors file, got: {error}; copy it again"
        ) from error


@dataclass(frozen=True)
class Progress:
    """How far a run has got.

    Attributes:
        step: Optimiser steps done.
        seconds: Of them, counted since a limit on the time was first set.
    """

    step: int = 0
    seconds: float = 0.0


def read_progress(path: Path, module: DiffusionModule, datamodule: object) -> Progress:
    """Look into a checkpoint: can it be gone on from, and how far has it got?

    Args:
        path: The checkpoint.
        module: The module that is to go on, not yet sharded.
        datamodule: The data that it is to go on with.

    Raises:
        FileNotFoundError: If there is no checkpoint.
        ValueError: If it is damaged, holds more than tensors and plain values, or does not fit.
    """
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} must exist to resume, got nothing there; start again with another --output"
        )
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # a damaged file raises many kinds
        reason = str(error).partition("\n")[0]
        raise ValueError(
            f"{path} must be a checkpoint of plain tensors, got: {reason}; copy it again"
        ) from error
    needed = _NEEDED | {(type(datamodule).__qualname__, "position"): int}
    for place, kind in _OPTIONAL.items():
        needed |= {} if _at(content, place[:2]) is None else {place: kind}
    for place, kind in needed.items():
        found, name = _at(content, place), ".".join(map(str, place))
        if not isinstance(found, kind):
            raise _damaged(path, f"{name} of type {kind.__name__}, got none")
        if isinstance(found, int | float) and not found >= 0:
            raise _damaged(path, f"{name} of at least 0, got {found}")
    if _at(content, _STEPS) != content["global_step"]:
        raise _damaged(path, f"one global_step, got {content['global_step']} and another in loops")
    _check_model(path, module.denoiser, content.get(MODEL))
    check_weights(str(path), module.state_dict(), content["state_dict"])
    _check_optimizer(path, module, content["optimizer_states"][0])
    average = _at(content, ("callbacks", "EMA"))
    if isinstance(average, dict):
        names = dict(module.denoiser.named_parameters())
        expected = {AVERAGE_PREFIX + name: parameter for name, parameter in names.items()}
        check_weights(str(path), {**expected, "num_updates": torch.tensor(0)}, average)
    if content["log_window"]["totals"].shape != (2,):
        raise _damaged(path, "log_window.totals of shape (2,), got another")
    seconds = _at(content, _SECONDS) or 0.0
    assert isinstance(seconds, float)
    return Progress(content["global_step"], seconds)


def _check_optimizer(path: Path, module: DiffusionModule, saved: dict[str, object]) -> None:
    """Refuse AdamW states of other parameters; one that never had a gradient has none."""
    groups = module.configure_optimizers()["optimizer"].param_groups
    parameters = [parameter for group in groups for parameter in group["params"]]
    needed = [len(group["params"]) for group in groups]
    assert isinstance(saved["param_groups"], list)
    indices = [_at(group, ("params",)) for group in saved["param_groups"]]
    found = [len(group) if isinstance(group, list) else None for group in indices]
    if found != needed:
        raise _damaged(path, f"optimizer_states.0.param_groups of {needed} tensors, got {found}")
    flat = [index for group in indices if isinstance(group, list) for index in group]
    owners = dict(zip(flat, parameters, strict=True))
    states = saved["state"]
    assert isinstance(states, dict)
    if not states or not states.keys() <= owners.keys():
        raise _damaged(path, f"optimizer_states.0.state of its groups, got {len(states)} states")
    for index, state in states.items():
        like = owners[index]
        expected = {"step": torch.tensor(0), "exp_avg": like, "exp_avg_sq": like}
        place = f"{path}: optimizer_states.0.state.{index}"
        check_weights(place, expected, state if isinstance(state, dict) else {})


def _damaged(path: Path, requirement: str) -> ValueError:
    return ValueError(
        f"{path} must hold {requirement}: damaged, of another version or of other data; "
        "start again with another --output"
    )


def _at(content: object, place: Sequence[str | int]) -> object | None:
    """What lies at a place of nested dictionaries and lists, or ``None``."""
    for key in place:
        if isinstance(content, dict) and key in content:
            content = content[key]
        elif isinstance(content, list) and isinstance(key, int) and key < len(content):
            content = content[key]
        else:
            return None
    return content


def check_weights(
    owner: str,
    expected: Mapping[str, Tensor],
    weights: Mapping[str, object],
    *,
    to_fit: str = "the backbone of run.yaml",
    fix: str = "use the run.yaml that was written with it",
) -> None:
    """Refuse tensors that have not exactly the names and shapes of others.

    Args:
        owner: Who has the tensors, for the message.
        expected: The others.
        weights: The tensors.
        to_fit: What they must fit.
        fix: What to do if they do not.

    Raises:
        ValueError: In one line, naming the first key that is missing, unexpected or misshapen.
    """
    missing = sorted(expected.keys() - weights.keys())
    unexpected = sorted(weights.keys() - expected.keys())
    misshapen = [
        k for k in expected.keys() & weights.keys() if expected[k].shape != _shape(weights[k])
    ]
    for problem, keys in (("missing", missing), ("unexpected", unexpected)):
        if keys:
            raise ValueError(
                f"{owner} must fit {to_fit}, got {len(keys)} {problem} key(s), "
                f"first {keys[0]}; {fix}"
            )
    if misshapen:
        key = min(misshapen)
        raise ValueError(
            f"{owner} must fit {to_fit}, got {key} of shape "
            f"{_shape(weights[key])} where {tuple(expected[key].shape)} is needed; {fix}"
        )


def _shape(weight: object) -> tuple[int, ...] | None:
    return tuple(weight.shape) if isinstance(weight, Tensor) else None

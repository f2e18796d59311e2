"""Weights and checkpoints on disk: checked in one line, and never unpickled."""

from __future__ import annotations

import pickle
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn


def encode_weights(weights: dict[str, Tensor]) -> bytes:
    """Serialise weights as safetensors, each under its own name even if some are shared."""
    return save({name: v.detach().cpu().contiguous().clone() for name, v in weights.items()})


def load_weights(path: Path, module: nn.Module) -> None:
    """Fill a network from a safetensors file, strictly.

    Args:
        path: The file.
        module: The network.

    Raises:
        FileNotFoundError: If there is no file.
        ValueError: If it is damaged or does not fit.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} must exist, got nothing there; train until it is saved")
    try:
        weights = load_file(path)
    except SafetensorError as error:
        raise ValueError(
            f"{path} must be a whole safetensors file, got: {error}; copy it again"
        ) from error
    check_weights(str(path), module, weights)
    module.load_state_dict(weights)


def read_step(path: Path, module: nn.Module) -> int:
    """Look into a checkpoint: does it fit, and at which optimiser step does it stand?

    Args:
        path: The checkpoint.
        module: The LightningModule that is to go on.

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
        step, weights = content["global_step"], content["state_dict"]
    except (RuntimeError, KeyError, EOFError, pickle.UnpicklingError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"{path} must be a checkpoint of plain tensors, got: {reason}; copy it again"
        ) from error
    check_weights(str(path), module, weights)
    return int(step)


def check_weights(owner: str, module: nn.Module, weights: dict[str, Tensor]) -> None:
    """Refuse weights that do not fit a network exactly.

    Raises:
        ValueError: In one line, naming the first key that is missing, unexpected or misshapen.
    """
    expected = module.state_dict()
    missing = sorted(expected.keys() - weights.keys())
    unexpected = sorted(weights.keys() - expected.keys())
    misshapen = [
        k for k in expected.keys() & weights.keys() if expected[k].shape != weights[k].shape
    ]
    fix = "use the run.yaml that was written with it"
    for problem, keys in (("missing", missing), ("unexpected", unexpected)):
        if keys:
            raise ValueError(
                f"{owner} must fit the backbone of run.yaml, got {len(keys)} {problem} key(s), "
                f"first {keys[0]}; {fix}"
            )
    if misshapen:
        key = min(misshapen)
        raise ValueError(
            f"{owner} must fit the backbone of run.yaml, got {key} of shape "
            f"{tuple(weights[key].shape)} where {tuple(expected[key].shape)} is needed; {fix}"
        )

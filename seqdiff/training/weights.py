"""Reading a run's weights, checkpoint and metrics, with checks and without unpickling."""

from __future__ import annotations

import csv
import hashlib
import json
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor

from seqdiff.backbones import base_weights, first_broken
from seqdiff.cells import describe_error
from seqdiff.denoiser import Denoiser
from seqdiff.files import parse_json
from seqdiff.parameterization import Parameterization

if TYPE_CHECKING:
    from seqdiff.training.module import DiffusionModule

_EXPERTS = "experts."
CHECKPOINT_NAME, WEIGHTS_NAME, METRICS_NAME = "last.ckpt", "model.safetensors", "metrics.csv"
METRICS_HEADER = ["step", "name", "value"]
AVERAGE_PREFIX = "average."
MODEL = "model"  # a key of checkpoints, and of the metadata of weights
# The metadata of safetensors have this one key: several keys would be written in random order.
_FOR, _TOKENIZER = "seqdiff", "tokenizer"
_EXTRA_STATE = "_extra_state"  # whose size is not fixed by the configuration

_STEPS = ("loops", "fit_loop", "epoch_loop.automatic_optimization.optim_progress")
_STEPS += ("optimizer", "step", "total", "completed")
# Places and types of what resuming reads from a checkpoint. No number is negative.
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
    ("time_fraction",): float,
    (*_SEARCH, "beta"): float,
    (*_SEARCH, "omega"): float,
}


def encode_weights(weights: dict[str, Tensor], tokenizer: str, model: str) -> bytes:
    """Serialise weights as safetensors; tied weights are stored under each name.

    Args:
        weights: The weights by name.
        tokenizer: Fingerprint of the tokenizer.
        model: ``Denoiser.description``, the meaning of the outputs.

    Raises:
        FloatingPointError: If a weight is NaN or infinite, see ``first_broken``.
    """
    broken = first_broken(weights)
    if broken is not None:
        raise FloatingPointError(
            f"encode_weights.weights must be finite, got {broken}; nothing was exported: lower "
            "optim.lr"
        )
    tensors = {name: v.detach().cpu().contiguous().clone() for name, v in weights.items()}
    return save(tensors, metadata={_FOR: json.dumps({_TOKENIZER: tokenizer, MODEL: model})})


def weights_digest(weights: Mapping[str, Tensor]) -> str:
    """Hash tensors with their names, types and shapes.

    Args:
        weights: The weights by name, on the CPU.
    """
    digest = hashlib.sha256()
    for name, weight in sorted(weights.items()):
        digest.update(f"{name} {weight.dtype} {tuple(weight.shape)} ".encode())
        digest.update(weight.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def load_weights(path: Path, denoiser: Denoiser, tokenizer: str) -> None:
    """Load a safetensors file into a model, strictly.

    Args:
        path: The file.
        denoiser: The model. If it has adapters, the weights below them are its own, since a run
            saves its adapters alone.
        tokenizer: Fingerprint of the tokenizer of the run.

    Raises:
        FileNotFoundError: If there is no file.
        ValueError: If it is damaged, does not fit, or its metadata names another tokenizer or
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
    weights = base_weights(denoiser.state_dict()) | weights
    if not any(name.startswith(_EXPERTS) for name in weights):
        weights = without_experts(weights, denoiser)  # its training has not ended
    again = ""
    if denoiser.experts is not None:
        again = f"seqdiff train --resume {path.parent} --experts.order {denoiser.experts.order}"
    scale = weights.get(f"{_EXPERTS}scale")
    if again and (f"{_EXPERTS}left" in weights or (scale is not None and scale.dim() == 1)):
        raise ValueError(
            f"{path} must have n-gram experts of this version, got older ones; count them again: "
            f"{again}"
        )
    check_weights(str(path), denoiser.state_dict(), weights)
    try:
        denoiser.load_state_dict(weights)
    except ValueError as error:  # of n-gram experts
        raise ValueError(f"{path}: {error}: {again}") from error


def without_experts(weights: dict[str, Tensor], denoiser: Denoiser) -> dict[str, Tensor]:
    """Replace the n-gram experts among weights by those of a model, if it has any."""
    own = denoiser.state_dict().items()
    kept = {name: weight for name, weight in weights.items() if not name.startswith(_EXPERTS)}
    return kept | {name: weight for name, weight in own if name.startswith(_EXPERTS)}


def read_purpose(path: Path) -> dict[str, object]:
    """Read the metadata of weights: tokenizer and kind of model, which early files lack.

    Args:
        path: A safetensors file.

    Raises:
        ValueError: If the metadata is no JSON.
    """
    with safe_open(path, "pt") as opened:
        metadata = opened.metadata() or {}
    if _FOR not in metadata:
        return {key: value for key, value in metadata.items() if key == _TOKENIZER}
    try:
        return dict(parse_json(metadata[_FOR]))
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"{path} must hold JSON under {_FOR} in its metadata, got: {error}; copy it again"
        ) from error


def _check_model(path: Path, denoiser: Denoiser, written: object) -> None:
    """Raise ``ValueError`` if weights are of another kind of model; files without one pass."""
    if written not in (None, denoiser.description):
        raise ValueError(
            f"{path} must be of the {denoiser.description}, as run.yaml and the flags say, got one "
            f"of the {written}; drop the flags, or use the run.yaml that was written with it"
        )


def check_prediction(owner: str, denoiser: Denoiser, written: object) -> None:
    """Check that a network's outputs have the same meaning in a new model as in the trained one.

    Both must predict the clean token from the other positions, or from all positions, or scores
    (see ``Parameterization``). The process may differ: block diffusion may start from masked
    diffusion.

    Args:
        owner: Path of the weights, for the message.
        denoiser: The model.
        written: ``Denoiser.description`` of the model of the weights; ``None`` if it is not known.

    Raises:
        ValueError: If the meanings differ.
    """
    kinds = {one.name: one.kind for one in Parameterization.__subclasses__()}
    kind = kinds.get(str(written).rpartition(" ")[2])
    if kind not in (None, denoiser.kind):
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
    """Progress of a run.

    Attributes:
        step: Optimizer steps done.
        seconds: Training time since a time limit was first set.
    """

    step: int = 0
    seconds: float = 0.0


def read_progress(path: Path, module: DiffusionModule, datamodule: object) -> Progress:
    """Check that a run can resume from a checkpoint, and read its progress.

    Args:
        path: The checkpoint.
        module: The module to resume, not yet sharded.
        datamodule: Its data.

    Raises:
        FileNotFoundError: If there is no checkpoint.
        ValueError: If it is damaged, holds more than tensors and plain values, or does not fit.
    """
    if not path.is_file():
        fix = "start it again with the command that started it"
        if (path.parent / WEIGHTS_NAME).exists():
            fix = f"start another run from its weights: --start_from {path.parent}"
        raise FileNotFoundError(f"{path} must exist to resume, got nothing there; {fix}")
    content = read_checkpoint(path)
    needed = _NEEDED | {(type(datamodule).__qualname__, "position"): int}
    for place, kind in _OPTIONAL.items():
        needed |= {} if _at(content, place[:2]) is None else {place: kind}
    for place, kind in needed.items():
        found, name = _at(content, place), ".".join(map(str, place))
        if not isinstance(found, kind):
            got = "nothing" if found is None else type(found).__name__
            raise _damaged(path, f"{name} of type {kind.__name__}, got {got}")
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
        if bool(average["num_updates"] < 0):
            raise _damaged(path, "callbacks.EMA.num_updates of at least 0, got less")
    if content["log_window"]["totals"].shape != (2,):
        raise _damaged(path, "log_window.totals of shape (2,), got another")
    seconds = _at(content, _SECONDS) or 0.0
    assert isinstance(seconds, float)
    return Progress(content["global_step"], seconds)


def read_checkpoint(path: Path) -> Any:
    """Read the content of a checkpoint, on the CPU and without unpickling, if it is undamaged.

    A checkpoint is a zip file, whose checksums ``torch.load`` ignores. They are verified first.

    Args:
        path: An existing file.

    Raises:
        ValueError: If it is damaged or holds more than tensors and plain values.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
        if damaged is not None:
            raise ValueError(f"a wrong checksum of {damaged}")
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # a damaged file raises many kinds
        said = describe_error(error).partition(". ")[0]
        if isinstance(error, zipfile.BadZipFile):
            said = f"a damaged file, or the beginning of one ({said})"
        fix = "start again with another --output"
        if (path.parent / WEIGHTS_NAME).exists():
            fix = f"start another run from the exported weights: --start_from {path.parent}"
        raise ValueError(
            f"{path} must be a checkpoint of plain tensors, got: {said}; copy it again, or {fix}"
        ) from error


def steps_done(path: Path) -> int:
    """Read the optimizer steps that a checkpoint was saved after.

    Args:
        path: A checkpoint that this version has written.
    """
    return torch.load(path, map_location="cpu", weights_only=True, mmap=True)["global_step"]


def read_average(path: Path) -> dict[str, Tensor]:
    """Read the weights that a checkpoint exports: the average, or those of the network.

    Args:
        path: A checkpoint that ``read_progress`` accepts.
    """
    content = read_checkpoint(path)
    prefix = "denoiser."
    state = {name.removeprefix(prefix): weight for name, weight in content["state_dict"].items()}
    for name, average in content["callbacks"].get("EMA", {}).items():
        if name.startswith(AVERAGE_PREFIX):
            name = name.removeprefix(AVERAGE_PREFIX)
            state[name] = average.to(state[name].dtype)
    return state


def _check_optimizer(path: Path, module: DiffusionModule, saved: dict[str, object]) -> None:
    """Check the states; a parameter that never had a gradient has none."""
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
    by_muon = {id(p) for group in groups if "momentum" in group for p in group["params"]}
    states = saved["state"]
    assert isinstance(states, dict)
    if not states or not states.keys() <= owners.keys():
        raise _damaged(path, f"optimizer_states.0.state of its groups, got {len(states)} states")
    for index, state in states.items():
        like = owners[index]
        expected = {"step": torch.tensor(0.0), "exp_avg": like, "exp_avg_sq": like}
        if id(like) in by_muon:
            expected = {"momentum_buffer": like}
        place = f"{path}: optimizer_states.0.state.{index}"
        check_weights(place, expected, state if isinstance(state, dict) else {})
        if "exp_avg_sq" in expected and bool((state["exp_avg_sq"] < 0).any()):
            raise _damaged(path, f"optimizer_states.0.state.{index}.exp_avg_sq of at least 0")


def _damaged(path: Path, requirement: str) -> ValueError:
    return ValueError(
        f"{path} must hold {requirement}: damaged, of another version or of other data; "
        "start again with another --output"
    )


def _at(content: object, place: Sequence[str | int]) -> object | None:
    """Look up a place in nested dictionaries and lists; ``None`` if it is missing."""
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
    """Check names, shapes, types and values of tensors.

    Args:
        owner: Path or name of the tensors, for the message.
        expected: Tensors of the required names and shapes.
        weights: The tensors.
        to_fit: Name of what they must fit, for the message.
        fix: Advice, for the message.

    Raises:
        ValueError: If a key is missing, unexpected or misshapen, an integer tensor has another
            type, or a number is not one of a network, see ``first_broken``; the message names the
            first.
    """
    missing = sorted(expected.keys() - weights.keys())
    unexpected = sorted(weights.keys() - expected.keys())
    misshapen = [
        k
        for k in expected.keys() & weights.keys()
        if expected[k].shape != _shape(weights[k]) and not k.endswith(_EXTRA_STATE)
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
    for key in sorted(expected):
        needed, found = expected[key].dtype, _dtype(weights[key])
        both_real = needed.is_floating_point and found.is_floating_point
        if found != needed and not both_real:
            raise ValueError(
                f"{owner} must fit {to_fit}, got {key} of {found}, not {needed}; {fix}"
            )
    broken = first_broken(weights)
    if broken is not None:
        raise ValueError(
            f"{owner} must hold finite numbers of usual size, got {broken}; use a checkpoint "
            "from before it diverged, or copy the file again"
        )


def _shape(weight: object) -> tuple[int, ...] | None:
    return tuple(weight.shape) if isinstance(weight, Tensor) else None


def _dtype(weight: object) -> torch.dtype:
    assert isinstance(weight, Tensor)
    return weight.dtype


def last_logged(path: Path, name: str) -> tuple[int, float] | None:
    """Return the last step at which a run logged a metric, and its value.

    Args:
        path: A run's metrics file, which may be missing.
        name: The metric.

    Raises:
        ValueError: If the file is no metrics file.
    """
    rows = rows_before(sys.maxsize, path) if path.exists() else []
    found = [(int(step), float(value)) for step, key, value in rows if key == name]
    return found[-1] if found else None


def rows_before(step: int, path: Path) -> list[list[str]]:
    """Read the rows of a metrics file before a step.

    Blank lines are dropped, and so is a last line that a killed process did not finish.

    Raises:
        ValueError: If the file is no metrics file.
    """
    with path.open(newline="", errors="replace") as file:
        rows = list(csv.reader(line for line in file if line.endswith("\n") and line.strip()))
    if rows and rows[0] != METRICS_HEADER:
        raise ValueError(
            f"{path} must begin with {','.join(METRICS_HEADER)}, got {','.join(rows[0])!r}; "
            "put that line back, or move the file"
        )
    for row in rows[1:]:
        if len(row) != len(METRICS_HEADER) or not row[0].isdecimal():
            raise ValueError(
                f"{path} must hold rows of {','.join(METRICS_HEADER)}, got {','.join(row)!r}; "
                "delete that line"
            )
    return [row for row in rows[1:] if int(row[0]) < step]

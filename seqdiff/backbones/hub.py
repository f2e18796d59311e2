"""Published formats: config.json and model.safetensors, and whether their tokens are the run's."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import cast

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from seqdiff.backbones.base import RunTokens

CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"
# Fields that other software reads.
WITHOUT_EFFECT = {"_name_or_path", "architectures", "auto_map", "dtype", "return_dict",
                  "torch_dtype", "transformers_version"}  # fmt: skip

Kinds = Mapping[str, tuple[type, ...]]


def existing(directory: str | Path, name: str, what: str) -> Path:
    """Find a file of a published network.

    Args:
        directory: Its folder.
        name: The file.
        what: The kind of network, for the message.

    Raises:
        FileNotFoundError: If it is not there.
    """
    path = Path(directory) / name
    if path.is_file():
        return path
    pickled = sorted(p.name for p in path.parent.glob("*") if p.suffix in (".bin", ".pt", ".ckpt"))
    if name == WEIGHTS_FILE and pickled:
        raise FileNotFoundError(
            f"{path} is not there, only {listed(pickled)}, which is not read since unpickling can "
            f"run any code; save the weights as {WEIGHTS_FILE}"
        )
    raise FileNotFoundError(
        f"{path} is not there; give the folder of a published {what}, which holds "
        f"{CONFIG_FILE} and {WEIGHTS_FILE}"
    )


def read_json(path: Path) -> dict[str, object]:
    """Read a JSON object.

    Args:
        path: The file.

    Raises:
        ValueError: If it holds none.
    """
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON ({error}); download it again") from error
    if not isinstance(fields, dict):
        raise ValueError(f"{path} must hold a JSON object, got a {type(fields).__name__}")
    return fields


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file.

    Args:
        path: The file.

    Raises:
        ValueError: If it is damaged.
    """
    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(
            f"{path} is not a complete safetensors file ({error}); download it again"
        ) from error


def require_names(path: Path, missing: Sequence[str], unexpected: Sequence[str]) -> None:
    """Check that a file of weights holds what the configuration beside it asks for.

    Args:
        path: The file.
        missing: Tensors that are not there.
        unexpected: Tensors that have no place.

    Raises:
        ValueError: If there are any.
    """
    if missing or unexpected:
        raise ValueError(
            f"{path} does not fit its {CONFIG_FILE}: missing {listed(missing)}; "
            f"unexpected {listed(unexpected)}"
        )


def require_shape(path: Path, name: str, shape: Sequence[int], stored: Tensor) -> None:
    """Check that a stored tensor has the shape that the configuration beside it asks for.

    Args:
        path: The file.
        name: The tensor.
        shape: What is asked for.
        stored: What is there.

    Raises:
        ValueError: If it has another.
    """
    if tuple(stored.shape) != tuple(shape):
        raise ValueError(
            f"{path} {name} must have shape {tuple(shape)} by {CONFIG_FILE}, "
            f"got {tuple(stored.shape)}"
        )


def check_fields(
    owner: str,
    what: str,
    fields: Mapping[str, object],
    required: Kinds,
    optional: Kinds,
    without_effect: Collection[str],
) -> None:
    """Check that fields are known, complete and of their types.

    Args:
        owner: Where they are, for the message.
        what: The kind of network, with its article.
        fields: What is there.
        required: Types of the fields that must be there.
        optional: Types of those that may.
        without_effect: Those that may hold anything.

    Raises:
        ValueError: If they are not.
    """
    missing = [name for name in required if name not in fields]
    unknown = sorted(set(fields).difference(required, optional, without_effect))
    if missing or unknown:
        raise ValueError(
            f"{owner} does not describe {what}: missing fields {listed(missing)}; "
            f"fields that are not supported {listed(unknown)}"
        )
    for name, kinds in (*required.items(), *optional.items()):
        value = fields.get(name)
        wrong_bool = isinstance(value, bool) and bool not in kinds
        if name in fields and (wrong_bool or not isinstance(value, kinds)):
            wanted = " or ".join("null" if k is type(None) else k.__name__ for k in kinds)
            raise ValueError(f"{owner} {name} must be {wanted}, got {value!r}")


def listed(names: Sequence[str], limit: int = 8) -> str:
    """Join names for a one-line message.

    Args:
        names: What to list.
        limit: How many to spell out.
    """
    shown = ", ".join(names[:limit]) or "none"
    return f"{shown} and {len(names) - limit} more" if len(names) > limit else shown


_LISTS = ("vocab.json", "encoder.json")


def read_tokens(folder: Path) -> tuple[Path, dict[int, str]] | None:
    """Read which token has which id from the tokenizer files beside a network, if there are any.

    Args:
        folder: Of the network; tokenizer.json, vocab.txt, vocab.json and encoder.json are known.

    Returns:
        The file, and the tokens by id.

    Raises:
        ValueError: If the file is not what its name says.
    """
    path = folder / "tokenizer.json"
    if path.is_file():
        content = read_json(path)
        model = cast(dict, content.get("model"))
        try:
            vocabulary = model["vocab"]
            if isinstance(vocabulary, dict):
                tokens = {place: token for token, place in vocabulary.items()}
            else:  # tokens with their scores
                tokens = {place: token for place, (token, *_) in enumerate(vocabulary)}
            added = cast(list, content.get("added_tokens") or [])
            return path, tokens | {token["id"]: token["content"] for token in added}
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"{path} must hold a vocabulary of the tokenizers library, got {error!r}; "
                "download it again"
            ) from error
    path = folder / "vocab.txt"
    if path.is_file():
        lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
        return path, dict(enumerate(line.removesuffix("\r") for line in lines))
    for name in _LISTS:
        if (path := folder / name).is_file():
            return path, {cast(int, place): token for token, place in read_json(path).items()}
    return None


def check_tokens(owner: str, origin: object, published: Mapping[int, str], run: RunTokens) -> None:
    """Refuse a network whose ids mean other tokens than a run's.

    Args:
        owner: Who was given the network, for the message.
        origin: Where its tokens were read.
        published: Its tokens by id; those beyond the run's do not matter.
        run: The run's.

    Raises:
        ValueError: If an id means another token, with the first one.
    """
    for place, token in enumerate(run.names()):
        if published.get(place) != token:
            raise ValueError(
                f"{owner} must mean by each id what data.tokenizer does, {run.tokenizer}, got id "
                f"{place} for {published.get(place)!r} in {origin}, and for {token!r} there; "
                "use the tokenizer of the checkpoint"
            )

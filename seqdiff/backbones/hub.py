"""Published networks: config.json, model.safetensors, and a comparison of tokens with a run's."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import cast

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from seqdiff.backbones.base import RunTokens
from seqdiff.files import parse_json, write_bytes

_LARGEST_WEIGHT = 1e9
CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"
# Fields that only other software reads; they do not change the network.
WITHOUT_EFFECT = {"_name_or_path", "architectures", "auto_map", "dtype", "return_dict",
                  "torch_dtype", "transformers_version"}  # fmt: skip

Kinds = Mapping[str, tuple[type, ...]]


def existing(directory: str | Path, name: str, what: str) -> Path:
    """Find a file of a published network.

    Args:
        directory: Folder of the network.
        name: Name of the file.
        what: The kind of network, for the message.

    Raises:
        FileNotFoundError: If it does not exist.
    """
    path = Path(directory) / name
    if path.is_file():
        return path
    pickled = sorted(p.name for p in path.parent.glob("*") if p.suffix in (".bin", ".pt", ".ckpt"))
    if name == WEIGHTS_FILE and pickled:
        raise FileNotFoundError(
            f"{path} does not exist, only {listed(pickled)}, which is not read since unpickling "
            f"can run any code; save the weights as {WEIGHTS_FILE}"
        )
    raise FileNotFoundError(
        f"{path} does not exist; give the folder of a published {what}, which holds "
        f"{CONFIG_FILE} and {WEIGHTS_FILE}"
    )


def read_json(path: Path) -> dict[str, object]:
    """Read a JSON object.

    Args:
        path: The file.

    Raises:
        ValueError: If the file is not a JSON object.
    """
    try:
        fields = parse_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON ({error}); download it again") from error
    if not isinstance(fields, dict):
        raise ValueError(f"{path} must hold a JSON object, got a {type(fields).__name__}")
    return fields


def read_tensors(directory: str | Path, what: str) -> tuple[Path, dict[str, Tensor]]:
    """Read model.safetensors.

    Args:
        directory: Folder of the file.
        what: The kind of network, for the message.

    Returns:
        The file and its tensors.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If it is damaged.
    """
    path = existing(directory, WEIGHTS_FILE, what)
    try:
        found = load_file(path)
    except SafetensorError as error:
        raise ValueError(
            f"{path} is not a complete safetensors file ({error}); download it again"
        ) from error
    broken = first_broken(found)
    if broken is not None:
        raise ValueError(
            f"{path} must hold finite numbers of usual size, got {broken}; download it again"
        )
    return path, found


def first_broken(tensors: Mapping[str, object]) -> str | None:
    """Name the first tensor with a number that no training gives, and how many there are.

    Such a number is a NaN, an infinity or one beyond a billion, which a network turns into
    predictions that look sound.

    Returns:
        ``None`` if there is none.

    Args:
        tensors: Tensors by name; other objects are skipped.
    """
    for name in sorted(tensors):
        tensor = tensors[name]
        if isinstance(tensor, Tensor) and tensor.is_floating_point():
            number = int((~tensor.isfinite()).sum())
            if number:
                return f"{number:,} NaN or inf of {tensor.numel():,} in {name}"
            huge = int((tensor.abs() > _LARGEST_WEIGHT).sum())
            if huge:
                return f"{huge:,} beyond ±{_LARGEST_WEIGHT:.0e} of {tensor.numel():,} in {name}"
    return None


def write_folder(
    directory: str | Path, config: Mapping[str, object], tensors: dict[str, Tensor]
) -> None:
    """Write config.json and model.safetensors, each atomically.

    Args:
        directory: Folder, created if it does not exist; files of these names are replaced.
        config: Fields of config.json.
        tensors: Tensors by published name.

    Raises:
        OSError: If the folder cannot be written.
    """
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    write_bytes(folder / WEIGHTS_FILE, save(tensors, metadata={"format": "pt"}))
    write_bytes(folder / CONFIG_FILE, (json.dumps(config, indent=2) + "\n").encode())


def require_names(path: Path, missing: Sequence[str], unexpected: Sequence[str]) -> None:
    """Check that a file of weights has exactly the tensors that its configuration implies.

    Args:
        path: The file.
        missing: Names of tensors that it lacks.
        unexpected: Names of tensors that it should not have.

    Raises:
        ValueError: If any tensor is missing or unexpected.
    """
    if missing or unexpected:
        raise ValueError(
            f"{path} does not fit its {CONFIG_FILE}: missing {listed(missing)}; "
            f"unexpected {listed(unexpected)}"
        )


def require_shape(path: Path, name: str, shape: Sequence[int], stored: Tensor) -> None:
    """Check that a stored tensor has the shape that the configuration implies.

    Args:
        path: The file.
        name: Name of the tensor.
        shape: Required shape.
        stored: The tensor.

    Raises:
        ValueError: If it has another shape.
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
    """Check that all required fields are present, no field is unknown, and their types are right.

    Args:
        owner: Where the fields were read, for the message.
        what: The kind of network, with an article, for the message.
        fields: The fields.
        required: Types of the required fields.
        optional: Types of the optional fields.
        without_effect: Names of fields that are ignored.

    Raises:
        ValueError: If a check fails.
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
        names: The names.
        limit: Largest number of names to show.
    """
    shown = ", ".join(names[:limit]) or "none"
    return f"{shown} and {len(names) - limit} more" if len(names) > limit else shown


_LISTS = ("vocab.json", "encoder.json")


def read_tokens(folder: Path) -> tuple[Path, dict[int, str]] | None:
    """Read the token of every id from the tokenizer files in a network's folder.

    Returns:
        The file and the tokens by id; ``None`` if there is no such file.

    Raises:
        ValueError: If the file does not have the format that its name implies.
    """
    path = folder / "tokenizer.json"
    if path.is_file():
        content = read_json(path)
        model = cast(dict, content.get("model"))
        try:
            vocabulary = model["vocab"]
            if isinstance(vocabulary, dict):
                tokens = {place: token for token, place in vocabulary.items()}
            else:  # a list of tokens with their scores
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
    """Check that the ids of a published network stand for the same tokens as those of a run.

    Args:
        owner: The argument that names the network, for the message.
        origin: Where its tokens were read.
        published: Its tokens by id. Ids that the run does not have are ignored.
        run: The run's tokens.

    Raises:
        ValueError: If an id stands for another token; the message names the first such id.
    """
    for place, token in enumerate(run.names()):
        if published.get(place) != token:
            raise ValueError(
                f"{owner} must have the same token ids as data.tokenizer ({run.tokenizer}); id "
                f"{place} is {published.get(place)!r} in {origin}, but {token!r} in the tokenizer; "
                "use the tokenizer of the checkpoint"
            )

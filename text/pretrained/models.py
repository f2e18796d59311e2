"""Load models of transformers from a folder or the hub, only from safetensors."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies

from seqdiff.cells import describe_error
from seqdiff.extras import require_extra

_OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE")


def why_offline() -> str | None:
    """Return a reason why the hub cannot be reached; ``None`` if there is no obvious one."""
    for variable in _OFFLINE:
        if os.environ.get(variable, "").upper() in ("1", "ON", "YES", "TRUE"):
            return f"{variable} is set"
    host = urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co").hostname
    if getproxies():
        return None
    try:
        socket.getaddrinfo(host, 443)
    except OSError:
        return f"no network: {host} cannot be resolved"
    return None


@contextmanager
def only_what_is_here(owner: str) -> Iterator[None]:
    """Keep the clients of the hub offline, as if HF_HUB_OFFLINE had been set before import."""
    places = [
        require_extra("huggingface_hub.constants", owner, "text"),
        require_extra("datasets.config", owner, "text"),
    ]
    before = [place.HF_HUB_OFFLINE for place in places]
    try:
        for place in places:
            vars(place)["HF_HUB_OFFLINE"] = True
        yield
    finally:
        for place, value in zip(places, before, strict=True):
            vars(place)["HF_HUB_OFFLINE"] = value


def short(error: BaseException) -> str:
    """Shorten the message of an error to one line."""
    text = describe_error(error)
    return text if len(text) <= 160 else text[:160] + "..."


_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")


def load_model(owner: str, name: str, auto_class: str, *, beside: tuple[str, ...] = ()):
    """Load a model of transformers in float32 and eval mode.

    The model is an ``nn.Module`` with a ``config``.

    Args:
        owner: The argument with the name, for error messages.
        name: A folder with config.json and safetensors, or a name on the hub. Files in the local
            cache of the hub are used without a request.
        auto_class: For example ``AutoModelForCausalLM``.
        beside: Prefixes of weights that a checkpoint may have although the model does not use them.

    Raises:
        OSError: If a folder has no model, or no safetensors.
        ValueError: If transformers is not installed, the model does not exist, or its weights do
            not match the configuration exactly.
    """
    transformers = require_extra("transformers", owner, "text")
    _check_weights(owner, Path(name))
    loader = getattr(transformers, auto_class)
    found = _fetch(
        owner,
        name,
        lambda offline: loader.from_pretrained(
            name,
            local_files_only=offline,
            use_safetensors=True,
            trust_remote_code=False,
            dtype="float32",
            output_loading_info=True,
        ),
    )
    model, report = found
    for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        keys = sorted(key for key in map(str, report[problem]) if not key.startswith(beside))
        if keys:
            raise ValueError(
                f"{owner} must hold the weights of its config.json, got {len(keys)} "
                f"{problem.partition('_')[0]} weights in {name}, the first is {keys[0]}; copy the "
                "model again"
            )
    return model.eval()


def build_model(owner: str, config: object, model_class: str):
    """Build a model of transformers in float32, without loading weights.

    Args:
        owner: The argument with the configuration, for error messages.
        config: Contents of config.json.
        model_class: For example ``BertForMaskedLM``.

    Raises:
        ValueError: If transformers is not installed.
    """
    loader = getattr(require_extra("transformers", owner, "text"), model_class)
    return loader(loader.config_class.from_dict(config))


def load_tokenizer(owner: str, name: str):
    """Load the tokenizer of a transformers model.

    Args:
        owner: The argument with the name, for error messages.
        name: See ``load_model``.

    Raises:
        OSError: If a folder has no model.
        ValueError: If transformers is not installed, or the file does not exist.
    """
    loader = require_extra("transformers", owner, "text").AutoTokenizer
    return _fetch(
        owner,
        name,
        lambda offline: loader.from_pretrained(
            name, local_files_only=offline, trust_remote_code=False
        ),
    )


def load_config(owner: str, name: str):
    """Load the configuration of a model of transformers.

    Args:
        owner: The argument with the name, for error messages.
        name: See ``load_model``.

    Raises:
        OSError: If a folder has no model.
        ValueError: If transformers is not installed, or the file does not exist.
    """
    loader = require_extra("transformers", owner, "text").AutoConfig
    return _fetch(
        owner,
        name,
        lambda offline: loader.from_pretrained(
            name, local_files_only=offline, trust_remote_code=False
        ),
    )


def _check_name(owner: str, name: str) -> None:
    folder = Path(name)
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise FileNotFoundError(
            f"{owner} must hold a config.json, got none in {name}; give the folder of a model"
        )
    like_a_path = folder.exists() or name.startswith((".", "/", "~")) or name.count("/") > 1
    if like_a_path and not folder.is_dir():
        raise FileNotFoundError(
            f"{owner} must be the folder of a model or a name on the hub, got {name!r}; check the "
            "path"
        )


def _check_weights(owner: str, folder: Path) -> None:
    if folder.is_dir() and not any((folder / weights).is_file() for weights in _WEIGHTS):
        raise FileNotFoundError(
            f"{owner} must hold a model.safetensors, got none in {folder}; pickled weights are not "
            "loaded: convert the model with save_pretrained, which writes safetensors"
        )


def _fetch(owner: str, name: str, load):
    """Load from local files; if that fails for a name on the hub, load from the hub."""
    _check_name(owner, name)
    logging_of = require_extra("transformers", owner, "text").utils.logging
    logging_of.set_verbosity_error()
    logging_of.disable_progress_bar()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    try:
        return load(True)
    except Exception as error:  # damaged files raise errors of many types
        if Path(name).is_dir() or not isinstance(error, OSError):
            raise ValueError(
                f"{owner} must be a valid model, got {name}: {short(error)}; copy the model again"
            ) from error
    reason = why_offline()
    try:
        if reason is None:
            return load(False)
    except Exception as error:  # the libraries that define these errors are not dependencies
        raise _absent(owner, name, short(error)) from error
    raise _absent(owner, name, reason)


def _absent(owner: str, name: str, reason: str) -> ValueError:
    cache = require_extra("huggingface_hub", owner, "text").constants.HF_HUB_CACHE
    return ValueError(
        f"{owner} must be the folder of a model, or a name on the hub that can be reached, got "
        f"{name!r} ({reason}), which is not in {cache} either; download it elsewhere and give its "
        "folder"
    )

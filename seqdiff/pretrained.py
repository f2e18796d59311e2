"""Models of transformers in a folder or on the hub: only safetensors, and no code of their own."""

from __future__ import annotations

import logging
import os
import re
import socket
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from urllib.request import getproxies

import numpy as np
from jaxtyping import Integer

from seqdiff.cells import describe_error
from seqdiff.extras import require_extra
from seqdiff.files import parse_json

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


def short(error: BaseException) -> str:
    """Shorten the message of an error to one line."""
    text = describe_error(error)
    return text if len(text) <= 160 else text[:160] + "..."


_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
_TOKENIZERS = (
    *("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "tokenizer.model"),
    *("spiece.model", "sentencepiece.bpe.model"),
)
_KNOWN = {
    "AutoModelForCausalLM": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "AutoModelForMaskedLM": "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
}
# Parts of checkpoints that a model for language modelling does not have.
_BESIDE = re.compile(r"pooler\.|seq_relationship\.|position_ids$|contact_head\.|mask_predictions\.")
# Tokens of published vocabularies that no text is encoded to, besides the special ones.
_RESERVED = re.compile(r"\[unused\d+\]|<null_\d+>|<unused\d+>|madeupword\d+")
# Characters in the tokens of DNA and protein models, with codes of unknown ones and gaps.
_ALPHABETS = {"base": "ACGTUN", "residue": "ACDEFGHIKLMNPQRSTVWYXBUZOJ.-*"}
# Rows of an embedding beyond the tokenizer's last token, which pad its size to a round number.
_SPARE_ROWS = 128


def load_model(owner: str, name: str, auto_class: str):
    """Load a model of transformers in float32 and eval mode.

    The model is an ``nn.Module`` with a ``config``. Heads of pretraining that the class does not
    use may be in the checkpoint.

    Args:
        owner: The argument with the name, for error messages.
        name: A folder with config.json and safetensors, or a name on the hub. Files in the local
            cache of the hub are used without a request.
        auto_class: For example ``AutoModelForCausalLM``.

    Raises:
        OSError: If a folder has no model, or no safetensors.
        ValueError: If transformers is not installed, the model does not exist, needs code of its
            own or an architecture that this class of transformers lacks, or its weights do not
            match the configuration exactly.
    """
    transformers = require_extra("transformers", owner, "hub")
    loader = getattr(transformers, auto_class)
    check_architecture(owner, name, auto_class)
    _check_weights(owner, Path(name))
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
            ignore_mismatched_sizes=True,  # they are reported, and refused below
        ),
    )
    model, report = found
    for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        keys = sorted(map(str, report[problem]))
        if problem == "unexpected_keys":
            keys = [key for key in keys if not _BESIDE.search(key)]
        if keys:
            raise ValueError(
                f"{owner} must hold the weights of its config.json, got {len(keys)} "
                f"{problem.partition('_')[0]} weights in {name}, the first is {keys[0]}; copy the "
                "model again"
            )
    return model.eval()


def build_model(owner: str, config: Mapping[str, object], auto_class: str):
    """Build a model of transformers in float32, without loading weights.

    Args:
        owner: The argument with the configuration, for error messages.
        config: Contents of config.json.
        auto_class: See ``load_model``.

    Raises:
        ValueError: If transformers is not installed, or this class has no such architecture.
    """
    transformers = require_extra("transformers", owner, "hub")
    loader = getattr(transformers, auto_class)
    _check_fields(owner, "published_shape", config, auto_class)
    built = transformers.CONFIG_MAPPING[config["model_type"]].from_dict(dict(config))
    return loader.from_config(built, dtype="float32")


def load_tokenizer(owner: str, name: str):
    """Load the tokenizer of a transformers model.

    Args:
        owner: The argument with the name, for error messages.
        name: See ``load_model``.

    Raises:
        OSError: If a folder has no model.
        ValueError: If transformers is not installed, the file does not exist, or the tokenizer
            needs code of its own.
    """
    loader = require_extra("transformers", owner, "hub").AutoTokenizer
    folder = Path(name)
    if folder.is_dir() and not any((folder / file).is_file() for file in _TOKENIZERS):
        raise FileNotFoundError(
            f"{owner} must hold a tokenizer, got none of {', '.join(_TOKENIZERS)} in {name}; copy "
            "its files there"
        )
    settings = folder / "tokenizer_config.json"
    if settings.is_file():
        _check_own_code(owner, str(settings), parse_json(settings.read_text(encoding="utf-8")))
    return _fetch(
        owner,
        name,
        lambda offline: loader.from_pretrained(
            name, local_files_only=offline, trust_remote_code=False
        ),
        ("config.json", "tokenizer_config.json"),
    )


class TokenFacts(NamedTuple):
    """What a network must know of its tokenizer.

    Attributes:
        names: The token of each id.
        mask_id: Id of the mask token; ``None`` for a tokenizer without one.
        before: Ids that open a row, such as that of ``[CLS]``.
        after: Ids that close it, such as that of ``[SEP]``.
        reserved: Ids that no text is encoded to: special tokens, that of unknown text included, and
            unused ones.
        unit: What strings are made of: ``base`` or ``residue`` if the other tokens are made of the
            codes of nucleotides or amino acids, else ``byte``.
    """

    names: tuple[str, ...]
    mask_id: int | None
    before: tuple[int, ...]
    after: tuple[int, ...]
    reserved: tuple[int, ...]
    unit: str


def token_facts(owner: str, name: str, tokenizer: Any) -> TokenFacts:
    """Describe a tokenizer of transformers.

    Args:
        owner: The argument with the name, for error messages.
        name: Where it comes from, for error messages.
        tokenizer: The tokenizer.

    Raises:
        ValueError: If ids are missing between 0 and the largest one.
    """
    ids: dict[str, int] = tokenizer.get_vocab()
    names = sorted(ids, key=ids.__getitem__)
    gap = next((place for place, token in enumerate(names) if ids[token] != place), None)
    if gap is not None or not names:
        raise ValueError(
            f"{owner} must have a tokenizer whose ids run from 0 without a gap, got none for {gap} "
            f"in {name}; use the tokenizer that the network was trained with"
        )
    added = tokenizer.added_tokens_decoder.items()
    reserved = {*tokenizer.all_special_ids, *(place for place, token in added if token.special)}
    reserved |= {place for token, place in ids.items() if _RESERVED.fullmatch(token)}
    bare, framed = (
        list(tokenizer("A", add_special_tokens=special).input_ids) for special in (False, True)
    )
    first = next((i for i in range(len(framed)) if framed[i : i + len(bare)] == bare), len(framed))
    return TokenFacts(
        tuple(names),
        tokenizer.mask_token_id,
        tuple(framed[:first]),
        tuple(framed[first + len(bare) :]),
        tuple(sorted(reserved)),
        _unit(name for place, name in enumerate(names) if place not in reserved),
    )


def surface(token: str) -> str:
    """Return the text of a token, without marks of its place in a word."""
    return token.removeprefix("##").strip("▁Ġ")


def _unit(tokens: Iterable[str]) -> str:
    """Return what tokens are made of; codes of nucleotides are codes of residues too."""
    characters = {one for token in tokens for one in surface(token)}
    return next((unit for unit, known in _ALPHABETS.items() if characters <= set(known)), "byte")


def encode_strings(
    tokenizer: Any, facts: TokenFacts, strings: Sequence[str]
) -> list[Integer[np.ndarray, " _"]]:
    """Encode strings without a frame; unknown text gets the id K, the number of tokens.

    Bases and residues may have either case. Names of special tokens are ordinary text
    for tokenizers of the tokenizers library, and unknown tokens for others.

    Args:
        tokenizer: A tokenizer of transformers.
        facts: Facts about it.
        strings: The strings.
    """
    if facts.unit != "byte":
        strings = [string.upper() for string in strings]
    own = {"split_special_tokens": True} if tokenizer.is_fast else {}
    found = tokenizer(list(strings), add_special_tokens=False, **own).input_ids
    size = len(facts.names)
    known = np.arange(size + 1, dtype=np.int32)
    known[list(facts.reserved)] = size
    return [known[np.array(ids, dtype=np.int64)] for ids in found]


def check_num_tokens(owner: str, name: str, facts: TokenFacts, num_tokens: int) -> None:
    """Check that the tokenizer of a model has as many tokens as that of the run.

    Raises:
        ValueError: If it has not.
    """
    if num_tokens != len(facts.names):
        raise ValueError(
            f"{owner} must have as many tokens as data.tokenizer, {num_tokens}, got "
            f"{len(facts.names)} in {name}; use the tokenizer of the checkpoint: "
            "seqdiff.data.HubTokenizer"
        )


def check_sizes(owner: str, name: str, facts: TokenFacts, embeddings: int) -> None:
    """Check that a network has an embedding for each token, and few others.

    Args:
        owner: The argument with the name, for error messages.
        name: Where the network comes from.
        facts: Facts about its tokenizer.
        embeddings: Number of embeddings of the network.

    Raises:
        ValueError: If it has too few, or so many more that the tokenizer is another one.
    """
    size = len(facts.names)
    if not size <= embeddings < size + _SPARE_ROWS:
        raise ValueError(
            f"{owner} must have an embedding for each token of its tokenizer, got {embeddings} "
            f"embeddings for {size} tokens in {name}; use the tokenizer that the network was "
            "trained with"
        )


def check_architecture(owner: str, name: str, auto_class: str) -> None:
    """Read config.json, and check that a class of transformers can build such a model.

    Args:
        owner: The argument with the name, for error messages.
        name: See ``load_model``.
        auto_class: See ``load_model``.

    Raises:
        OSError: If a folder has no model.
        ValueError: See ``load_model``.
    """
    _check_name(owner, name)
    base = require_extra("transformers", owner, "hub").PreTrainedConfig
    fields, _ = _fetch(
        owner, name, lambda offline: base.get_config_dict(name, local_files_only=offline)
    )
    _check_fields(owner, name, fields, auto_class)


def _check_fields(owner: str, name: str, fields: Mapping[str, object], auto_class: str) -> None:
    _check_own_code(owner, f"{name}/config.json", fields)
    module = require_extra("transformers.models.auto.modeling_auto", owner, "hub")
    if fields.get("model_type") not in getattr(module, _KNOWN[auto_class]):
        raise ValueError(
            f"{owner} must be of an architecture that {auto_class} of transformers has, got "
            f"{fields.get('model_type')!r} in {name}; choose another checkpoint, or install a "
            "newer version of transformers"
        )


def _check_own_code(owner: str, place: str, fields: object) -> None:
    """Check that a file does not ask to import code from the folder or the hub."""
    code = fields.get("auto_map") if isinstance(fields, dict) else None
    if code:
        first = next(iter(code.values())) if isinstance(code, dict) else code
        raise ValueError(
            f"{owner} must do without code of its own, which is never run, got auto_map in {place} "
            f"({first}); choose a checkpoint of an architecture that transformers has, or convert "
            "the weights to one"
        )


def _check_name(owner: str, name: str, files: tuple[str, ...] = ("config.json",)) -> None:
    folder = Path(name)
    if folder.is_dir() and not any((folder / file).is_file() for file in files):
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


def _fetch(owner: str, name: str, load, files: tuple[str, ...] = ("config.json",)):
    """Load from local files; if that fails for a name on the hub, load from the hub.

    A folder must hold one of the files.
    """
    _check_name(owner, name, files)
    logging_of = require_extra("transformers", owner, "hub").utils.logging
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
    cache = require_extra("huggingface_hub", owner, "hub").constants.HF_HUB_CACHE
    return ValueError(
        f"{owner} must be the folder of a model, or a name on the hub that can be reached, got "
        f"{name!r} ({reason}), which is not in {cache} either; download it elsewhere and give its "
        "folder"
    )

"""Whether a published network and a run mean the same tokens by the same ids."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import cast

from .base import RunTokens
from .hub_files import read_json

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

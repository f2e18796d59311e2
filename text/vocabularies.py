"""Where the files of a vocabulary are: a folder, the cache, or the hub."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from seqdiff.cache import cache_folder

from .extra import require
from .hub import short, why_offline

Layout = tuple[str, ...]


def local_folder(name: str) -> Path:
    """Say where the files of a vocabulary with a hub name are looked for before the hub is."""
    return cache_folder() / "tokenizers" / name


def find_vocabulary(owner: str, vocabulary: str, layouts: Sequence[Layout]) -> list[Path]:
    """Find the files of a vocabulary.

    Args:
        owner: Who asks, for messages.
        vocabulary: A folder, a file of a layout with one file, or a hub name.
        layouts: Names of files that go together, the first choice first. The last is the hub's.

    Returns:
        The files of the first layout that is there.

    Raises:
        ValueError: If there is none, with the local path that would have been used.
    """
    given = Path(vocabulary).expanduser()
    if given.is_file() and any(len(layout) == 1 for layout in layouts):
        return [given]
    for folder in (given, local_folder(vocabulary)):
        if (found := _complete(folder, layouts)) is not None:
            return found
    choices = " or ".join(" and ".join(layout) for layout in layouts)
    if given.exists() or not _is_hub_name(vocabulary):
        raise ValueError(
            f"{owner}.vocabulary must be a folder with {choices}, got {vocabulary}; "
            "check the path, or give a hub name"
        )
    return _fetch(owner, vocabulary, layouts[-1], choices)


def is_local(vocabulary: str, layouts: Sequence[Layout]) -> bool:
    """Whether a vocabulary is a file, or a folder with the files of a layout."""
    given = Path(vocabulary).expanduser()
    return given.is_file() or _complete(given, layouts) is not None


def _complete(folder: Path, layouts: Sequence[Layout]) -> list[Path] | None:
    for layout in layouts:
        if all((folder / name).is_file() for name in layout):
            return [folder / name for name in layout]
    return None


def _is_hub_name(name: str) -> bool:
    return 1 <= len(name.split("/")) <= 2 and not name.startswith((".", "/", "~")) and bool(name)


def _fetch(owner: str, name: str, layout: Layout, choices: str) -> list[Path]:
    hub = require("huggingface_hub", owner)
    found = [hub.try_to_load_from_cache(name, file) for file in layout]
    if all(isinstance(file, str) for file in found):
        return [Path(file) for file in found]
    reason = why_offline()
    cause = None
    if reason is None:
        try:
            return [Path(hub.hf_hub_download(name, file)) for file in layout]
        except Exception as error:  # of several libraries, none of which we depend on ourselves
            reason, cause = short(error), error
    raise ValueError(
        f"{owner}.vocabulary must be a folder with {choices}, or a name on the hub that can be "
        f"reached, got {name!r} ({reason}); put the files into {local_folder(name)}, or name "
        "another folder"
    ) from cause


def read_text(path: Path) -> str:
    """Read a vocabulary file.

    Raises:
        ValueError: If it is not UTF-8, with the byte offset.
    """
    data = path.read_bytes()
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}: must be UTF-8, got byte 0x{data[error.start]:02x} at offset {error.start}; "
            "fetch it again"
        ) from error

"""Subword tokenizers from published vocabulary files, built with the ``tokenizers`` library."""

from __future__ import annotations

import json
import os
import re
from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Integer

from seqdiff.cells import describe_error
from seqdiff.data import StringTokenizer, digest
from seqdiff.extras import require_extra
from seqdiff.files import cache_folder, parse_json
from seqdiff.pretrained import short, why_offline

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Engine

Layout = tuple[str, ...]


def local_folder(name: str) -> Path:
    """Return the folder in which a vocabulary with a hub name is looked up before the hub."""
    return cache_folder() / "tokenizers" / name


def find_vocabulary(owner: str, vocabulary: str, layouts: Sequence[Layout]) -> list[Path]:
    """Find the files of a vocabulary.

    Args:
        owner: The class that needs the vocabulary, for error messages.
        vocabulary: A folder, a hub name, or, if a layout has a single file, the path of that file.
        layouts: Sets of file names that form a vocabulary, in order of preference. The last one is
            used on the hub.

    Returns:
        The files of the first layout that exists.

    Raises:
        ValueError: If no layout is found; the message gives the local path.
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
            f"{owner}.vocabulary must be a folder with {choices}, got {vocabulary}; check the "
            "path, or give a hub name"
        )
    return _fetch(owner, vocabulary, layouts[-1], choices)


def is_local(vocabulary: str, layouts: Sequence[Layout]) -> bool:
    """Return whether a vocabulary is a file, or a folder with the files of a layout."""
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
    hub = require_extra("huggingface_hub", owner, "text")
    found = [hub.try_to_load_from_cache(name, file) for file in layout]
    if all(isinstance(file, str) for file in found):
        return [Path(file) for file in found]
    reason = why_offline()
    cause = None
    if reason is None:
        try:
            return [Path(hub.hf_hub_download(name, file)) for file in layout]
        except Exception as error:  # the libraries that define these errors are not dependencies
            reason, cause = short(error), error
    raise ValueError(
        f"{owner}.vocabulary must be a folder with {choices}, or a name on the hub that can be "
        f"reached, got {name!r} ({reason}); copy the files into {local_folder(name)}, or give "
        "another folder"
    ) from cause


def read_text(path: Path) -> str:
    """Read a vocabulary file.

    Raises:
        ValueError: If it is not UTF-8; the message gives the byte offset.
    """
    data = path.read_bytes()
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}: must be UTF-8, got byte 0x{data[error.start]:02x} at offset {error.start}; "
            "download it again"
        ) from error


class _Loaded(NamedTuple):
    """The contents of vocabulary files."""

    engine: Engine
    ids: dict[str, int]
    fingerprint: str
    reserved: tuple[int, ...] = ()


class _Published(NamedTuple):
    """Facts about a published vocabulary, known without its files."""

    vocab_size: int
    fingerprint: str
    reserved: tuple[int, ...] = ()


_NO_TEXT = re.compile(r"\[(PAD|MASK|unused\d+)\]")
_GPT2 = _Published(50257, "6dfa8ca809f1702a144725c770c3914be893d76e10f4773c434e1478bfa7e031")
# [PAD], [unused0] to [unused98], then, after [UNK], [CLS] and [SEP], [MASK] and the other unused.
_BERT = _Published(
    30522,
    "387a73c2fadb436694e016e66d32b9e8f391010a2d53c59378ebd04ee20db6fc",
    (*range(100), *range(103, 999)),
)


class SubwordTokenizer(StringTokenizer):
    """Base class of tokenizers with vocabulary files.

    The files are read when they are first needed.

    Args:
        vocabulary: A folder with the files, or a hub name. A hub name is first looked up as
            ``tokenizers/NAME`` in the cache folder.
    """

    known: dict[str, _Published] = {}  # noqa: RUF012  (never changed)
    layouts: tuple[Layout, ...]

    def __init__(self, vocabulary: str) -> None:
        self.vocabulary = vocabulary

    @abstractmethod
    def _load(self) -> _Loaded:
        """Read the files."""

    @cached_property
    def _loaded(self) -> _Loaded:
        # Threads of the library would oversubscribe the cores, and a fork does not copy them.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        loaded = self._load()
        published = self.known.get(self.vocabulary)
        if published is not None and published.fingerprint != loaded.fingerprint:
            raise ValueError(
                f"{type(self).__name__}.vocabulary must be the published {self.vocabulary} with "
                f"{published.vocab_size} tokens, got a different one with {len(loaded.ids)} "
                "tokens; download its files again, or give the path of your own folder"
            )
        return loaded

    def __getstate__(self) -> dict[str, object]:
        """Pickle without the contents of the files."""
        return {name: value for name, value in vars(self).items() if name != "_loaded"}

    @property
    def vocab_size(self) -> int:
        """Number of tokens in the vocabulary, including special tokens."""
        published = self.known.get(self.vocabulary)
        return len(self._loaded.ids) if published is None else published.vocab_size

    @property
    def fingerprint(self) -> str:
        """Digest of the class, the options and the parsed files."""
        published = self.known.get(self.vocabulary)
        return self._loaded.fingerprint if published is None else published.fingerprint

    @classmethod
    def is_path(cls, argument: str, value: str) -> bool:
        """Return whether the value is a path; a folder without the files may be a hub name."""
        return argument == "vocabulary" and is_local(value, cls.layouts)

    @property
    def ids(self) -> dict[str, int]:
        """Ids by the name of the token in the vocabulary files."""
        return self._loaded.ids

    @property
    def reserved_ids(self) -> tuple[int, ...]:
        """Ids that uniform and hybrid noise never draw."""
        published = self.known.get(self.vocabulary)
        return self._loaded.reserved if published is None else published.reserved

    @property
    def frame(self) -> tuple[int, int] | None:
        """Ids of the special tokens that open and close a row.

        Raises:
            ValueError: If the vocabulary has no such token.
        """
        if self.special is None:
            return None
        ids = self.ids
        for name in self.special:
            if name not in ids:
                raise ValueError(
                    f"{type(self).__name__}.vocabulary must have the token {name}, got "
                    f"{self.vocabulary} without it; choose another tokenizer class"
                )
        return ids[self.special[0]], ids[self.special[1]]

    def encode(self, string: str) -> Integer[np.ndarray, " L"]:
        """Encode a string; names of special tokens are encoded as ordinary text."""
        return np.array(self._loaded.engine.encode(string, add_special_tokens=False).ids, np.int32)

    def encode_many(self, strings: Sequence[str]) -> list[Integer[np.ndarray, " _"]]:
        """Encode strings, see ``StringTokenizer``."""
        found = self._loaded.engine.encode_batch_fast(list(strings), add_special_tokens=False)
        return [np.array(one.ids, np.int32) for one in found]

    def _decode(self, ids: Integer[np.ndarray, " L"]) -> str:
        return self._loaded.engine.decode(ids.tolist(), skip_special_tokens=False)


class GPT2Tokenizer(SubwordTokenizer):
    """Byte-level BPE as in GPT-2, lossless for every string.

    The end-of-text token frames a row on both sides and separates documents. Source: Radford
    et al. 2019, Language models are unsupervised multitask learners, section 2.2.

    Args:
        vocabulary: A folder with encoder.json and vocab.bpe, or vocab.json and merges.txt; or a
            hub name. The digest of ``gpt2`` is built in, so runs with it load without its files.
    """

    special = ("<|endoftext|>", "<|endoftext|>")
    known = {"gpt2": _GPT2}  # noqa: RUF012
    layouts = (("encoder.json", "vocab.bpe"), ("vocab.json", "merges.txt"))

    def __init__(self, vocabulary: str = "gpt2") -> None:
        super().__init__(vocabulary)

    def _load(self) -> _Loaded:
        owner = type(self).__name__
        ids_file, merges_file = find_vocabulary(owner, self.vocabulary, self.layouts)
        content = _read_json(ids_file)
        ids = {token: place for token, place in content.items() if isinstance(place, int)}
        if len(ids) < len(content):
            raise ValueError(f"{ids_file}: must map tokens to ids; download the file again")
        lines = read_text(merges_file).splitlines()
        # Only a line that starts with "#version" is a header, because "#" also begins merges.
        lines = lines[1:] if lines and lines[0].startswith("#version") else lines
        merges = [tuple(line.split(" ")) for line in lines if line]
        known = all(len(m) == 2 and all(p in ids for p in (*m, "".join(m))) for m in merges)
        if not known or not merges:
            raise ValueError(
                f"{merges_file}: must list merges of two tokens of {ids_file}, got other lines or "
                "none; use two files of the same vocabulary"
            )
        tokenizers = require_extra("tokenizers", owner, "text")
        engine = tokenizers.Tokenizer(tokenizers.models.BPE(ids, merges))
        engine.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        engine.decoder = tokenizers.decoders.ByteLevel()
        tokens = _dense(ids, ids_file)
        pairs = [" ".join(merge) for merge in merges]
        return _Loaded(engine, ids, digest(["gpt2 bpe", str(len(tokens)), *tokens, *pairs]))


class BertTokenizer(SubwordTokenizer):
    """WordPiece as in BERT; unknown words become ``[UNK]``.

    ``[CLS]`` and ``[SEP]`` frame a row, and ``[SEP]`` separates documents. The mask has the id K.
    The token ``[MASK]`` of the vocabulary is an ordinary token that never occurs in encoded text.
    Source: Devlin et al. 2019, arXiv:1810.04805.

    Args:
        vocabulary: A vocab.txt, a folder with one, or a hub name. The digest of
            ``bert-base-uncased`` is built in, so runs with it load without its file.
        lowercase: Whether to convert to lower case and remove accents, as for uncased
            vocabularies.
    """

    special = ("[CLS]", "[SEP]")
    layouts = (("vocab.txt",),)

    def __init__(self, vocabulary: str = "bert-base-uncased", lowercase: bool = True) -> None:
        super().__init__(vocabulary)
        self.lowercase = lowercase
        self.known = {"bert-base-uncased": _BERT} if lowercase else {}

    def _load(self) -> _Loaded:
        owner = type(self).__name__
        (file,) = find_vocabulary(owner, self.vocabulary, self.layouts)
        tokens = read_text(file).split("\n")
        tokens = tokens[:-1] if tokens[-1] == "" else tokens
        tokens = [token.removesuffix("\r") for token in tokens]
        ids = {token: place for place, token in enumerate(tokens)}
        if len(ids) < len(tokens) or "[UNK]" not in ids:
            raise ValueError(
                f"{file}: must list distinct tokens, one per line, including [UNK], got {len(ids)} "
                f"distinct tokens on {len(tokens)} lines; download the file again"
            )
        tokenizers = require_extra("tokenizers", owner, "text")
        engine = tokenizers.Tokenizer(tokenizers.models.WordPiece(ids, unk_token="[UNK]"))
        engine.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=self.lowercase)
        engine.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
        engine.decoder = tokenizers.decoders.WordPiece(cleanup=False)
        reserved = (place for token, place in ids.items() if _NO_TEXT.fullmatch(token))
        fingerprint = digest(["bert wordpiece", str(self.lowercase), *tokens])
        return _Loaded(engine, ids, fingerprint, tuple(reserved))


class JSONTokenizer(SubwordTokenizer):
    """Any tokenizer that the ``tokenizers`` library has saved as tokenizer.json.

    Args:
        vocabulary: A tokenizer.json, a folder with one, or a hub name.
        bos: Token that opens a row; ``None`` for rows without a frame. On a command line, quote
            ``[CLS]`` twice, as in ``'"[CLS]"'``; otherwise it is parsed as a list.
        eos: Token that closes a row and separates documents.

    Raises:
        ValueError: If only one of ``bos`` and ``eos`` is given.
    """

    layouts = (("tokenizer.json",),)

    def __init__(self, vocabulary: str, bos: str | None = None, eos: str | None = None) -> None:
        super().__init__(vocabulary)
        if (bos is None) != (eos is None):
            raise ValueError(
                f"JSONTokenizer.bos and eos must be given together, got {bos!r} and {eos!r}; "
                "give both or neither"
            )
        self.special = None if bos is None or eos is None else (bos, eos)

    def _load(self) -> _Loaded:
        owner = type(self).__name__
        (file,) = find_vocabulary(owner, self.vocabulary, self.layouts)
        content = _read_json(file)
        # The data module truncates and pads rows.
        content |= {"truncation": None, "padding": None}
        text = json.dumps(content, sort_keys=True, ensure_ascii=False)
        try:
            engine = require_extra("tokenizers", owner, "text").Tokenizer.from_str(text)
        except Exception as error:  # the library raises plain Exception
            raise ValueError(
                f"{file}: must be a tokenizer.json that the tokenizers library can read, got an "
                f"error ({describe_error(error)}); save it again with the newest version of the "
                "library"
            ) from error
        ids = engine.get_vocab(with_added_tokens=True)
        _dense(ids, file)
        held = {*(self.special or ()), getattr(engine.model, "unk_token", None)}
        added = engine.get_added_tokens_decoder().items()
        reserved = (place for place, token in added if token.special and token.content not in held)
        return _Loaded(engine, ids, digest(["tokenizer.json", text]), tuple(reserved))


def _read_json(file: Path) -> dict[str, object]:
    try:
        content = parse_json(read_text(file))
    except ValueError as error:
        raise ValueError(f"{file}: must be JSON, got: {error}; download the file again") from error
    if not isinstance(content, dict):
        raise ValueError(f"{file}: must be a JSON object; download the file again")
    return content


def _dense(ids: dict[str, int], file: Path) -> list[str]:
    """List tokens by id; the ids must run from 0 without a gap."""
    ordered = sorted(ids, key=ids.__getitem__)
    gap = next((i for i, token in enumerate(ordered) if ids[token] != i), None)
    if gap is not None or not ordered:
        raise ValueError(
            f"{file}: ids must run from 0 to {len(ordered) - 1} without a gap, got "
            f"{None if gap is None else ids[ordered[gap]]} instead of {gap}; "
            "use a vocabulary without gaps"
        )
    return ordered

"""The tokenizer of a published model, from its hub folder."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Integer

from seqdiff.data.strings import Ids, StringTokenizer, digest
from seqdiff.files import names_files
from seqdiff.pretrained import (
    TokenFacts,
    encode_strings,
    load_tokenizer,
    surface,
    token_facts,
)

_OWNER = "HubTokenizer.vocabulary"


class _Loaded(NamedTuple):
    """A tokenizer of transformers and facts about it."""

    tokenizer: Any
    facts: TokenFacts
    fingerprint: str


class HubTokenizer(StringTokenizer):
    """The tokenizer of a published model: of text, DNA or proteins.

    Text that has no token, and special tokens, become the id K of the mask: they are context, which
    is not counted. Rows have no frame, because ``seqdiff.backbones.HubBackbone`` puts that of the
    model around them, and documents have no separator. The files are read when they are first
    needed.

    Args:
        vocabulary: A folder with the files of the tokenizer, or a hub name.
    """

    def __init__(self, vocabulary: str) -> None:
        self.vocabulary = vocabulary

    @cached_property
    def _loaded(self) -> _Loaded:
        # Threads of the library would oversubscribe the cores, and a fork does not copy them.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        tokenizer = load_tokenizer(_OWNER, self.vocabulary)
        facts = token_facts(_OWNER, self.vocabulary, tokenizer)
        rules = type(tokenizer).__name__
        if tokenizer.is_fast:
            content = json.loads(tokenizer.backend_tokenizer.to_str())
            content |= {"truncation": None, "padding": None}
            rules = json.dumps(content, sort_keys=True, ensure_ascii=False)
        return _Loaded(tokenizer, facts, digest(["hub", rules, repr(facts.reserved), *facts.names]))

    def __getstate__(self) -> dict[str, object]:
        """Pickle without the contents of the files."""
        return {name: value for name, value in vars(self).items() if name != "_loaded"}

    @classmethod
    def is_path(cls, argument: str, value: str) -> bool:
        """Return whether the value of an argument is a path; see ``seqdiff.run.Located``."""
        return argument == "vocabulary" and names_files(value)

    @property
    def facts(self) -> TokenFacts:
        """Facts about the tokenizer: its tokens, its frame, its unit."""
        return self._loaded.facts

    @property
    def vocab_size(self) -> int:
        """Number of tokens in the vocabulary, including special tokens."""
        return len(self.facts.names)

    @property
    def fingerprint(self) -> str:
        """Digest of the tokens and of the rules that cut text into them."""
        return self._loaded.fingerprint

    @property
    def ids(self) -> dict[str, int]:
        """Ids by the name of the token in the vocabulary files."""
        return {name: place for place, name in enumerate(self.facts.names)}

    @property
    def reserved_ids(self) -> tuple[int, ...]:
        """Ids of special and unused tokens, which are never predicted."""
        return self.facts.reserved

    @property
    def unit(self) -> str:
        """What strings are made of: ``base``, ``residue`` or ``byte``."""
        return self.facts.unit

    def num_units(self, ids: Ids) -> int:
        """Count the bases, residues or bytes of the known tokens.

        Bytes are those of the decoded text, which for vocabularies such as that of uncased BERT
        differs from the original in case and white space.
        """
        array = np.asarray(ids)
        known = self._decode(array[array < self.vocab_size])
        return len(known.encode("utf-8") if self.unit == "byte" else known)

    def encode(self, string: str) -> Integer[np.ndarray, " L"]:
        """Encode a string; unknown text and special tokens get the id K."""
        return self.encode_many([string])[0]

    def encode_many(self, strings: Sequence[str]) -> list[Integer[np.ndarray, " _"]]:
        """Encode strings, see ``StringTokenizer``."""
        return encode_strings(self._loaded.tokenizer, self.facts, strings)

    def save(self, directory: str | Path) -> None:
        """Write the files of the tokenizer into a folder, as transformers does.

        Raises:
            OSError: If the folder cannot be written.
        """
        self._loaded.tokenizer.save_pretrained(directory)

    def _decode(self, ids: Integer[np.ndarray, " L"]) -> str:
        tokenizer, facts = self._loaded.tokenizer, self.facts
        if facts.unit != "byte":
            return "".join(surface(facts.names[i]) for i in ids.tolist())
        return tokenizer.decode(
            ids.tolist(), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )

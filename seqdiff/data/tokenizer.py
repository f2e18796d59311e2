"""The protocol of tokenizers, and optional protocols that the core can use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Integer


@runtime_checkable
class Tokenizer(Protocol):
    """Maps between a domain's strings and ids ``0..K-1``; ``K`` is the mask."""

    @property
    def vocab_size(self) -> int:
        """K, the number of real symbols; the mask id is ``vocab_size``."""
        ...

    @property
    def fingerprint(self) -> str:
        """A digest that changes whenever any string would encode differently."""
        ...

    def encode(self, string: str) -> Integer[np.ndarray, " L"]:
        """Encode; symbols that stand for an unknown token become the mask id."""
        ...

    def decode(self, ids: Sequence[int] | Integer[np.ndarray, " L"]) -> str:
        """Decode ids in ``0..K``."""
        ...


@runtime_checkable
class VocabularyTokenizer(Tokenizer, Protocol):
    """A tokenizer whose tokens have names, as in a vocabulary, that differ from their strings."""

    @property
    def ids(self) -> Mapping[str, int]:
        """The id of each token, by its name in the vocabulary's files."""
        ...


@runtime_checkable
class ConstraintTokenizer(Tokenizer, Protocol):
    """A tokenizer whose strings can also say which symbols a position may take.

    Templates and motifs are such strings. DNA has the IUPAC code for it: R is A or G, N is any.
    """

    def allowed(self, string: str) -> Bool[np.ndarray, "L K"]:
        """Mark the symbols that each position of a pattern may take; at least one.

        Raises:
            ValueError: If the string is no pattern; the message names the place.
        """
        ...


@runtime_checkable
class StrandTokenizer(Tokenizer, Protocol):
    """A tokenizer of sequences that have a reverse complement."""

    @property
    def complement(self) -> Sequence[int]:
        """The id in ``0..K-1`` of each symbol read on the other strand: its own inverse."""
        ...


@runtime_checkable
class ReservingTokenizer(Tokenizer, Protocol):
    """A tokenizer with symbols that no sequence holds, such as a padding token of a vocabulary."""

    @property
    def reserved_ids(self) -> Sequence[int]:
        """Their ids; uniform and hybrid noise never draws them."""
        ...


@runtime_checkable
class CountingTokenizer(Tokenizer, Protocol):
    """A tokenizer whose tokens stand for several units of a string, such as bytes or bases.

    Likelihoods in bits per unit compare models with different tokens.
    """

    @property
    def unit(self) -> str:
        """Name of a unit, for example ``base``."""
        ...

    def num_units(self, ids: Sequence[int] | Integer[np.ndarray, " L"]) -> int:
        """Count the units of the known tokens among ids in ``0..K``."""
        ...


def token_names(tokenizer: Tokenizer) -> list[str]:
    """List the tokens by id: their names in a vocabulary, or else what each decodes to."""
    if isinstance(tokenizer, VocabularyTokenizer):
        ids = tokenizer.ids
        return sorted(ids, key=ids.__getitem__)
    return [tokenizer.decode([place]) for place in range(tokenizer.vocab_size)]

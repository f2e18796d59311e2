"""What the core asks of a tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Integer


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
        """Encode; symbols that are unknown rather than wrong become the mask id."""
        ...

    def decode(self, ids: Sequence[int] | Integer[np.ndarray, " L"]) -> str:
        """Decode ids in ``0..K``."""
        ...

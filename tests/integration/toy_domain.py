"""A third domain, as a user would write it: two-letter words over a ring of symbols.

Row ``i`` of a split starts at a symbol that depends on ``i`` and steps around the ring; every ninth
row has an unknown symbol. The module imports the core and no other domain.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int, Int64, Integer
from torch import Tensor, nn

from seqdiff.backbones import Backbone
from seqdiff.blocks import cut, join
from seqdiff.data.datamodule import SequenceDataModule, Split
from seqdiff.data.dataset import Examples, SequenceDataset, Signals
from seqdiff.data.reader import Record
from seqdiff.data.tokenizer import Tokenizer
from seqdiff.likelihood import RowNats
from seqdiff.types import Inputs, Signal
from tests.block_worlds import RecomputingCache

ALPHABET = "uvwxyz"


class RingTokenizer:
    """Single lower-case letters; a dash is unknown."""

    @property
    def vocab_size(self) -> int:
        return len(ALPHABET)

    @property
    def fingerprint(self) -> str:
        return f"ring-{ALPHABET}"

    def encode(self, string: str) -> Int64[np.ndarray, " L"]:
        return np.array([(ALPHABET + "-").index(symbol) for symbol in string], dtype=np.int64)

    def allowed(self, string: str) -> Bool[np.ndarray, "L K"]:
        """A capital allows its letter and the next one of the ring, a dash allows all."""
        rows = np.zeros((len(string), len(ALPHABET)), dtype=bool)
        for row, symbol in zip(rows, string, strict=True):
            if symbol == "-":
                row[:] = True
            elif (first := ALPHABET.find(symbol.lower())) < 0:
                raise ValueError(f"a ring must hold {ALPHABET}, capitals or -, got {symbol!r}")
            else:
                row[[first, (first + symbol.isupper()) % len(ALPHABET)]] = True
        return rows

    def decode(self, ids: Sequence[int] | Integer[np.ndarray, " L"]) -> str:
        return "".join((ALPHABET + "-")[int(i)] for i in ids)


class RingSet(SequenceDataset):
    def __init__(self, size: int, length: int, offset: int) -> None:
        self.size, self.length, self.offset = size, length, offset

    def __len__(self) -> int:
        return self.size

    def rows(
        self, indices: Int64[np.ndarray, " B"]
    ) -> tuple[Int64[np.ndarray, "B L"], Bool[np.ndarray, "B L"]]:
        start = (indices * 7 + self.offset) % len(ALPHABET)
        tokens = (start[:, None] + np.arange(self.length) * (1 + indices[:, None] % 2)) % 6
        known = np.ones_like(tokens, dtype=bool)
        known[indices % 9 == 0, 1] = False
        return np.where(known, tokens, len(ALPHABET)), known

    def augment(self, rows: Examples, uniform: Float64[np.ndarray, " B"]) -> Examples:
        flip = (uniform < 0.5)[:, None]
        return rows._replace(
            tokens=np.where(flip, rows.tokens[:, ::-1], rows.tokens),
            loss_mask=np.where(flip, rows.loss_mask[:, ::-1], rows.loss_mask),
        )


class ToyData(SequenceDataModule):
    num_train = 48

    def __init__(
        self,
        *,
        length: int = 12,
        batch_size: int = 8,
        eval_batch_size: int | None = None,
        num_workers: int = 0,
    ) -> None:
        super().__init__(
            RingTokenizer(),
            batch_size=batch_size,
            eval_batch_size=eval_batch_size,
            num_workers=num_workers,
        )
        self.length = self.context_length = length

    def dataset(self, split: Split) -> SequenceDataset:
        sizes: dict[str, int] = {"train": self.num_train, "valid": 13, "test": 11}
        return RingSet(sizes[split], self.length, offset=list(sizes).index(split))

    def baselines(self, split: Split) -> dict[str, RowNats]:
        counted = self.dataset(split).rows(np.arange(len(self.dataset(split))))[1].sum(axis=1)
        return {"uniform": RowNats(counted * np.log(len(ALPHABET)), counted)}


Values = Literal["usual", "constant", "unknown", "infinite"]


class MeasuredSet(SequenceDataset):
    """Rows, or positions, with a level: a symbol is one of u, v, w with chance sigmoid(2 level).

    The second value, ``other``, says nothing and is often unknown.
    """

    def __init__(
        self, size: int, length: int, seed: int, *, tracks: bool, ragged: bool, values: Values
    ) -> None:
        random = np.random.default_rng(seed)
        shape = (size, length if tracks else 1)
        level = random.uniform(-2, 2, shape)
        low = random.random((size, length)) < 1 / (1 + np.exp(-2 * level))
        self.tokens = np.where(low, 0, 3) + random.integers(3, size=low.shape)
        other = np.where(random.random(shape) < 0.25, np.nan, random.normal(5, 2, shape))
        wrong = {"constant": 1.0, "unknown": np.nan, "infinite": np.inf}
        other = other if values == "usual" else np.full(shape, wrong[values])
        signal = np.stack((level, other), axis=-1).astype(np.float32)
        self.signal = signal if tracks else signal[:, 0]
        self.pads = np.arange(length) >= (6 + np.arange(size) % (length - 5))[:, None]
        self.ragged = ragged

    def __len__(self) -> int:
        return len(self.tokens)

    def rows(
        self, indices: Int64[np.ndarray, " B"]
    ) -> tuple[Int64[np.ndarray, "B L"], Bool[np.ndarray, "B L"]]:
        known = ~self.pads[indices] if self.ragged else np.ones_like(self.pads[indices])
        return np.where(known, self.tokens[indices], len(ALPHABET)), known

    def signals(self, indices: Int64[np.ndarray, " B"]) -> Signals:
        return self.signal[indices]

    def padding(self, indices: Int64[np.ndarray, " B"]) -> Bool[np.ndarray, "B L"] | None:
        return self.pads[indices] if self.ragged else None


class MeasuredData(ToyData):
    """Data with measured values, of rows or of positions."""

    def __init__(
        self,
        *,
        length: int = 12,
        batch_size: int = 16,
        eval_batch_size: int | None = None,
        num_workers: int = 0,
        tracks: bool = False,
        ragged: bool = False,
        values: Values = "usual",
    ) -> None:
        super().__init__(
            length=length,
            batch_size=batch_size,
            eval_batch_size=eval_batch_size,
            num_workers=num_workers,
        )
        self.signals, self.signal_tracks = ["level", "other"], tracks
        self.ragged, self.values = ragged, values

    def dataset(self, split: Split) -> SequenceDataset:
        sizes: dict[str, int] = {"train": 300, "valid": 13, "test": 40}
        return MeasuredSet(
            sizes[split],
            self.length,
            list(sizes).index(split),
            tracks=self.signal_tracks,
            ragged=self.ragged,
            values=self.values,
        )


class ToyNet(Backbone):
    """Reads two neighbours on either side."""

    num_layers = 1

    def __init__(self, *, num_embeddings: int, num_logits: int, width: int = 16) -> None:
        super().__init__()
        self.width, self.num_logits = width, num_logits
        self.embedding = nn.Embedding(num_embeddings, width)
        self.mix = nn.Conv1d(width, width, 5, padding=2)
        self.norm = nn.LayerNorm(width)
        self.scores = nn.Linear(width, num_logits)

    def embed(self, inputs: Inputs) -> Float[Tensor, "B L D"]:
        return self.embedding(inputs.tokens)

    def body(
        self, h: Float[Tensor, "B L D"], inputs: Inputs, layer: int | None = None
    ) -> Float[Tensor, "B L D"]:
        return h if layer == 0 else torch.relu(self.mix(h.mT).mT)

    def head(
        self, h: Float[Tensor, "B L D"], inputs: Inputs, where: Bool[Tensor, "B L"] | None = None
    ) -> Float[Tensor, "*positions K"]:
        return self.scores(self.norm(h if where is None else h[where]))


class ToyBlockNet(ToyNet):
    """Also reads the last clean token before a block."""

    reads_blocks = True

    def block_logits(
        self,
        inputs: Inputs,
        x0: Int[Tensor, "B L"],
        block_size: int,
        where: Bool[Tensor, "B L"] | None = None,
    ) -> Float[Tensor, "*positions K"]:
        x_t = inputs.tokens
        mask, length = self.embedding.num_embeddings - 1, x_t.shape[1]
        own = self.mix(self.embedding(cut(x_t, block_size, fill=mask)).mT).mT
        last = nn.functional.pad(x0, (1, 0), value=mask)[:, :length:block_size]
        before = self.embedding(last).flatten(0, 1)[:, None]
        logits = join(self.scores(self.norm(torch.relu(own + before))), length)
        return logits if where is None else logits[where]

    def block_cache(
        self,
        batch_size: int,
        block_size: int,
        *,
        window: int | None = None,
        label: Int[Tensor, " B"] | None = None,
        signal: Signal | None = None,
    ) -> RecomputingCache:
        nothing = torch.empty((batch_size, 0), dtype=torch.int64)
        return RecomputingCache(self, block_size, nothing)


class DropoutNet(ToyNet):
    """Draws its own noise."""

    def __init__(self, *, num_embeddings: int, num_logits: int) -> None:
        super().__init__(num_embeddings=num_embeddings, num_logits=num_logits)
        self.norm = nn.Sequential(nn.Dropout(0.5), nn.LayerNorm(16))


class TiedNet(ToyNet):
    """Uses the same vectors for input and output symbols."""

    def __init__(self, *, num_embeddings: int, num_logits: int, width: int = 16) -> None:
        super().__init__(num_embeddings=num_embeddings, num_logits=num_logits, width=width)
        self.scores = nn.Linear(width, num_embeddings)
        self.scores.weight = self.embedding.weight

    def head(
        self, h: Float[Tensor, "B L D"], inputs: Inputs, where: Bool[Tensor, "B L"] | None = None
    ) -> Float[Tensor, "*positions K"]:
        return super().head(h, inputs, where)[..., :-1]


class NetWithASpare(ToyNet):
    """Has an unused parameter."""

    def __init__(self, *, num_embeddings: int, num_logits: int) -> None:
        super().__init__(num_embeddings=num_embeddings, num_logits=num_logits)
        self.spare = nn.Parameter(torch.zeros(2, 3))


class NotABackbone:
    pass


def write_ring(path: Path, sequences: list[str], names: list[str]) -> None:
    """Write a line ``name sequence`` for each sequence: a sample writer of the domain."""
    lines = [f"{name} {s}\n" for name, s in zip(names, sequences, strict=True)]
    path.write_text("".join(lines))


def read_rings(path: Path) -> list[tuple[str, str]]:
    """Read the files of ``write_ring``, with patterns: a template reader of the domain."""
    return [(name, s) for name, s in map(str.split, path.read_text().splitlines())]


@dataclass(frozen=True, kw_only=True)
class RingReader:
    """Reads the files of ``write_ring``; a ring may be read in both directions.

    Attributes:
        ring: File of 'name sequence' lines.
        both_ways: Average both readings.
    """

    ring: Path | None = None
    both_ways: bool = False
    suffixes: ClassVar = ("ring",)

    def read(self, files: Sequence[Path], tokenizer: Tokenizer) -> list[Record]:
        records = []
        for line in (line for path in files for line in path.read_text().splitlines()):
            name, sequence = line.split()
            ids = tokenizer.encode(sequence)
            records.append(Record(name, (ids, ids[::-1]) if self.both_ways else (ids,)))
        return records

"""Predictions of a network for given sequences: hidden states, and tokens that are unknown."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float, Float32, Int64, Integer

from seqdiff.backbones import Backbone, require_layer
from seqdiff.cells import say
from seqdiff.data import StrandTokenizer
from seqdiff.run.directory import Trained
from seqdiff.run.engine import Engine, Shard
from seqdiff.types import Inputs

if TYPE_CHECKING:
    import pandas as pd

_CHANGE = re.compile(r"([A-Za-z])(\d+)([A-Za-z])")


def check_readable(
    owner: str, run: Trained, rows: Mapping[str, np.ndarray], *, pooled: bool
) -> None:
    """Check that a network can read sequences, before slow work, and warn about extrapolation.

    Args:
        owner: Name of the caller, for the messages.
        run: The run.
        rows: Ids of each sequence, by name.
        pooled: Whether states are averaged over known positions.

    Raises:
        ValueError: If the network reads vectors, or a sequence is too long or has no known position
            to average over.
    """
    if run.denoiser.reads_embeddings:
        raise ValueError(
            f"{owner}.run must have a network that reads tokens, got {run.directory} of the "
            f"process {run.process.name}, which reads noisy vectors; train another process"
        )
    most, unit = run.max_length, run.datamodule.token_name
    for name, ids in rows.items():
        if most is not None and len(ids) > most:
            raise ValueError(
                f"record {name!r}: {owner} must be given at most {most:,} {unit}s, all that the "
                f"network of {run.directory} takes, got {len(ids):,}; cut the record"
            )
        if pooled and (ids == run.process.unknown_id).all():
            raise ValueError(
                f"record {name!r}: {owner} must be given a known {unit} to average over, got "
                f"{len(ids):,} unknown ones; remove the record"
            )
    learnt, longest = run.datamodule.context_length, max(rows, key=lambda name: len(rows[name]))
    if learnt is not None and len(rows[longest]) > learnt:
        say(
            f"seqdiff: warning: hidden states extrapolate where a record has more than the "
            f"{learnt:,} {unit}s of the rows that {run.directory} was trained on; the longest, "
            f"{longest!r}, has {len(rows[longest]):,}",
            error=True,
        )


def equal_lengths(lengths: Sequence[int], batch_size: int) -> Iterator[list[int]]:
    """Divide the numbers of sequences into batches of equal length, so that none is padded.

    Args:
        lengths: Tokens of each sequence.
        batch_size: Most sequences of a batch.
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    for _, group in groupby(order, key=lengths.__getitem__):
        alike = list(group)
        for first in range(0, len(alike), batch_size):
            yield alike[first : first + batch_size]


def embed(
    run: Trained,
    rows: Sequence[np.ndarray],
    *,
    layer: int | None,
    pooled: bool,
    batch_size: int,
    engine: Engine | None = None,
) -> list[np.ndarray]:
    """Compute one vector for each sequence, or one for each position, with a progress bar.

    Args:
        run: The run.
        rows: Ids of each sequence.
        layer: Number of layers after which states are taken; ``None`` for the input of the head.
        pooled: Whether states are averaged over known positions.
        batch_size: Maximum number of rows of a network call.
        engine: Where to compute; by default in this process.

    Returns:
        The vectors of each sequence, ``[D]`` or ``[L, D]``.

    Raises:
        ValueError: If there is no such layer.
    """
    require_layer("embed", layer, run.denoiser.backbone.num_layers)
    batches = list(equal_lengths([len(row) for row in rows], batch_size))
    shards = (Shard(len(numbers), np.stack([rows[n] for n in numbers])) for numbers in batches)
    work = partial(_embed, layer=layer, pooled=pooled)
    parts = (engine or Engine()).map("embedding", work, run, shards, len(rows))
    vectors: dict[int, np.ndarray] = {}
    for numbers, part in zip(batches, parts, strict=True):
        vectors |= zip(numbers, part["vectors"], strict=True)
    return [vectors[number] for number in range(len(rows))]


def _embed(
    run: Trained,
    batch: Integer[np.ndarray, "B L"],
    progress: Callable[[int], object],
    *,
    layer: int | None,
    pooled: bool,
) -> dict[str, np.ndarray]:
    """Return the vectors of some rows of equal length."""
    tokenizer = run.tokenizer
    complement = tokenizer.complement if isinstance(tokenizer, StrandTokenizer) else None
    found = states(run.denoiser.backbone, batch, complement, layer)
    progress(len(batch))
    if pooled:
        known = batch != run.process.unknown_id
        found = np.stack(
            [each[where].mean(axis=0) for each, where in zip(found, known, strict=True)]
        )
    return {"vectors": found}


@torch.no_grad()
def states(
    backbone: Backbone,
    rows: Integer[np.ndarray, "B L"],
    complement: Sequence[int] | None,
    layer: int | None = None,
) -> Float32[np.ndarray, "B L D"]:
    """Compute one vector for each position; for sequences with two strands, the mean over both.

    A network that reads both strands itself, such as Caduceus-PS, is called once. Any other network
    is also called on the reverse complement, and the order of its states is reversed.

    Args:
        backbone: The network, in eval mode.
        rows: Ids in ``0..K``.
        complement: The id of each symbol on the other strand; ``None`` for one strand.
        layer: See ``Backbone.hidden``.

    Raises:
        FloatingPointError: If a state is NaN or infinite.
        ValueError: If there is no such layer.
    """
    device = next(backbone.parameters()).device
    sides = [rows]
    if complement is not None and backbone.strands == 1:
        exchange = np.array([*complement, len(complement)])
        sides.append(exchange[rows[:, ::-1]])
    tokens = [torch.from_numpy(ids.astype(np.int64)).to(device) for ids in sides]
    here, *there = [backbone.hidden(Inputs(ids), layer) for ids in tokens]
    if not all(bool(found.isfinite().all()) for found in (here, *there)):
        raise FloatingPointError(
            "embed.backbone must give finite states, got NaN or inf; the weights are damaged or "
            "too large: use another checkpoint"
        )
    if there:
        here = (here + there[0].flip(1)) / 2
    elif backbone.strands == 2:
        first, second = here.chunk(2, dim=-1)
        here = (first + second) / 2
    return here.float().cpu().numpy()


def masked_marginals(
    run: Trained, pairs: Sequence[tuple[str, str]], *, batch_size: int = 32
) -> list[float]:
    """Compare the likelihoods of two strings where they differ, given the tokens that they share.

    The tokens between the longest common beginning and the longest common end are masked, and the
    score is log p(these tokens of the second string) - log p(those of the first), each summed over
    its tokens from one network call. If both strings have as many of them, this is the
    masked-marginal score of Meier et al. 2021, "Language models enable zero-shot prediction of the
    effects of mutations on protein function", equation 1.

    Args:
        run: A run of masked diffusion.
        pairs: Pairs of strings, such as wild type and mutant.
        batch_size: Maximum number of rows of a network call.

    Returns:
        Nats for each pair; 0 for equal strings.

    Raises:
        ValueError: If the process is not masked diffusion, a string is too long for the network, or
            only one string of a pair has a symbol that the model does not know.
    """
    model = run.denoiser
    if not model.any_order:
        raise ValueError(
            f"substitutions.run must be masked diffusion, got the {model.description}, which does "
            "not predict unknown tokens from all known ones"
        )
    unknown, sums = run.process.unknown_id, np.zeros((len(pairs), 2))
    lost = np.zeros((len(pairs), 2), int)
    calls: dict[bytes, list[tuple[int, int, np.ndarray]]] = {}  # masked row -> what it is asked
    for number, pair in enumerate(pairs):
        first, second = (np.asarray(run.tokenizer.encode(text), dtype=np.int64) for text in pair)
        start, end = _differing(first, second)
        for side, ids in enumerate((first, second)):
            middle = ids[start : len(ids) - end].copy()
            if run.max_length is not None and len(ids) > run.max_length:
                raise ValueError(
                    f"substitutions must be given at most {run.max_length:,} "
                    f"{run.datamodule.token_name}s, got {len(ids):,} in pair {number}; cut it"
                )
            row = ids.copy()
            row[start : len(ids) - end] = unknown
            calls.setdefault(row.tobytes(), []).append((2 * number + side, start, middle))
            lost[number, side] = (middle == unknown).sum()
        if lost[number, 0] != lost[number, 1]:
            raise ValueError(
                f"substitutions must replace known symbols by known ones, got {pair[1]!r} instead "
                f"of {pair[0]!r} in pair {number}, of which one has a symbol that the model does "
                "not know; correct it"
            )
    rows = [np.frombuffer(row, np.int64) for row in calls]
    asked = list(calls.values())
    device = next(model.parameters()).device
    for numbers in equal_lengths([len(row) for row in rows], batch_size):
        tokens = torch.from_numpy(np.stack([rows[n] for n in numbers])).to(device)
        with torch.no_grad():
            log_probs = model.log_probs(Inputs(tokens)).double().cpu().numpy()
        for found, number in zip(log_probs, numbers, strict=True):
            for place, start, middle in asked[number]:
                known = np.flatnonzero(middle != unknown)
                sums.flat[place] = found[start + known, middle[known]].sum()
    return (sums[:, 1] - sums[:, 0]).tolist()


def substitute(sequence: str, change: str) -> str:
    """Apply substitutions to a sequence.

    Args:
        sequence: The sequence.
        change: See ``Run.substitutions``.

    Raises:
        ValueError: If it is not of this form, or the sequence has another symbol there.
    """
    symbols = list(sequence)
    for part in change.split(":"):
        found = _CHANGE.fullmatch(part)
        if found is None:
            raise ValueError(
                f"substitutions.changes must be a symbol, a position from 1 and the new symbol, "
                f"such as M182T, got {part!r}; correct it"
            )
        old, place, new = found[1], int(found[2]), found[3]
        there = sequence[place - 1] if 0 < place <= len(sequence) else None
        if there is None or there.upper() != old.upper():
            raise ValueError(
                f"substitutions.changes must fit the sequence of {len(sequence):,} symbols, got "
                f"{part} where it has {there or 'none'}; count positions from 1"
            )
        symbols[place - 1] = new
    return "".join(symbols)


def _differing(first: np.ndarray, second: np.ndarray) -> tuple[int, int]:
    """Return the numbers of equal tokens at the beginning and at the end of two rows."""
    most = min(len(first), len(second))
    same = first[:most] == second[:most]
    start = most if same.all() else int(np.argmin(same))
    left = most - start
    same = first[len(first) - left :][::-1] == second[len(second) - left :][::-1]
    return start, left if same.all() else int(np.argmin(same))


@dataclass(frozen=True, eq=False)
class FillTable:
    """p(token | known tokens) at every unknown position.

    Attributes:
        positions: The unknown positions, from 0.
        symbols: Symbol of each column.
        probabilities: One row for each position; a row sums to 1.
    """

    positions: Int64[np.ndarray, " n"]
    symbols: list[str]
    probabilities: Float[np.ndarray, "n K"]

    def to_pandas(self) -> pd.DataFrame:
        """Return a data frame with a row for each position and a column for each symbol."""
        import pandas as pd

        return pd.DataFrame(
            self.probabilities,
            index=pd.Index(self.positions, name="position"),
            columns=pd.Index(self.symbols),
        )

    def __repr__(self) -> str:
        """Format the table, with the 8 most likely symbols if there are more."""
        lines = []
        for position, row in zip(self.positions, self.probabilities, strict=True):
            columns = range(len(row)) if len(row) <= 8 else np.argsort(-row)[:8]
            cells = "  ".join(f"{self.symbols[k]!r} {row[k]:.3f}" for k in columns)
            lines.append(f"{position:>8}  {cells}")
        return "\n".join(["position  probabilities", *lines])


def fill_table(run: Trained, template: str) -> FillTable:
    """Predict all unknown positions by one network call.

    Raises:
        ValueError: If the process is not masked diffusion, no symbol is unknown, or the template is
            too long for the network.
    """
    model = run.denoiser
    if not model.any_order:
        raise ValueError(
            "Run.fill_probabilities must be asked of masked diffusion, got the "
            f"{model.description}, which does not predict unknown tokens from all known ones"
        )
    ids = run.tokenizer.encode(template)
    unknown = ids == run.process.unknown_id
    if not unknown.any():
        raise ValueError(
            f"Run.fill_probabilities.template must have an unknown symbol, got {template!r}"
        )
    if run.max_length is not None and len(ids) > run.max_length:
        raise ValueError(
            f"Run.fill_probabilities.template must have at most {run.max_length:,} tokens, got "
            f"{len(ids):,}"
        )
    device = next(model.parameters()).device
    tokens = torch.from_numpy(ids.astype(np.int64))[None].to(device)
    where = torch.from_numpy(unknown)[None].to(device)
    with torch.no_grad():
        log_probs = model.log_probs(Inputs(tokens), where)
    symbols = [run.tokenizer.decode(np.array([k])) for k in range(run.tokenizer.vocab_size)]
    return FillTable(np.flatnonzero(unknown), symbols, log_probs.double().exp().cpu().numpy())

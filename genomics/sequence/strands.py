"""What a model says of DNA, read on both strands."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float64, UInt8

from genomics.sequence.alphabet import (
    BASES,
    MASK_ID,
    complement,
    reads_backwards,
    reverse_complement,
)
from seqdiff.denoiser import Denoiser
from seqdiff.process import Absorbing, Blockwise, LeftToRight
from seqdiff.types import Batch, Inputs

STRANDS = 2
_COMPLEMENT = complement(np.arange(len(BASES)))


def device_of(denoiser: Denoiser) -> torch.device:
    """Find where a model is; one without parameters is everywhere, so on the CPU."""
    parameter = next(denoiser.parameters(), None)
    return torch.device("cpu") if parameter is None else parameter.device


def both_strands(
    rows: Sequence[UInt8[np.ndarray, " L"]], contents: Sequence[UInt8[np.ndarray, " L"]]
) -> Batch:
    """Make a batch of each row and of its reverse complement, one after the other.

    Noise is a function of the content alone, whichever strand it is given on, and falls on the same
    letters of both; the strands have noise of their own.

    Args:
        rows: Ids ``0..4``, equally long.
        contents: What the noise of each row follows from; as long as the rows.
    """
    tokens, index, mirrored = [], [], []
    for row, content in zip(rows, contents, strict=True):
        backwards = reads_backwards(content)
        first = reverse_complement(content) if backwards else content
        digest = hashlib.blake2b(first.tobytes(), digest_size=8)
        for opposite in (False, True):
            salted = digest.copy()
            salted.update(bytes([opposite != backwards]))
            tokens.append(reverse_complement(row) if opposite else row)
            index.append(int.from_bytes(salted.digest(), "little") >> 1)  # as int64, not negative
            mirrored.append(opposite != backwards)
    ids = torch.from_numpy(np.stack(tokens).astype(np.int64))
    return Batch(ids, ids != MASK_ID, torch.tensor(index), mirrored=torch.tensor(mirrored))


def hides(denoiser: Denoiser) -> bool:
    """Whether a base can be hidden from a model: whether the only noise of its process is masks."""
    return isinstance(denoiser.process, Absorbing | Blockwise | LeftToRight)


@torch.no_grad()
def masked_log_probs(
    denoiser: Denoiser,
    rows: UInt8[np.ndarray, "B L"],
    hidden: Bool[np.ndarray, "B L"],
) -> Float64[np.ndarray, "N 4"]:
    """Hide positions and give the log-probability of each base there, the mean of both strands.

    An autoregressive model says it given what is before the position on either strand, one of block
    diffusion given the blocks before and the position's own.

    Args:
        denoiser: In eval mode.
        rows: Ids ``0..4``.
        hidden: Positions to hide, all those of a row at once; at least one a row.

    Returns:
        In nats, in the order of ``hidden.nonzero()``, in the order of ``BASES``.

    Raises:
        ValueError: If the model's noise has no mask, so that a base cannot be hidden from it.
    """
    process = denoiser.process
    if not hides(denoiser):
        raise ValueError(
            "masked_log_probs.denoiser must be of a process with masks alone, got the "
            f"{denoiser.description}; likelihood_ratios takes every process"
        )
    device = device_of(denoiser)
    laws = []
    for opposite in (False, True):
        ids = reverse_complement(rows) if opposite else rows
        where = torch.from_numpy(np.ascontiguousarray(hidden[:, ::-1] if opposite else hidden))
        x0 = torch.from_numpy(ids.astype(np.int64))
        share = where.sum(dim=-1).double() / ((x0 != MASK_ID) | where).sum(dim=-1)
        t = process.schedule.inverse(1 - share) if isinstance(process, Absorbing) else None
        x_t = x0.masked_fill(where, MASK_ID)
        inputs = Inputs(x_t, t).to(device)
        law = torch.zeros(*ids.shape, len(BASES), dtype=torch.float64)
        law[where] = denoiser.log_probs(inputs, where.to(device)).double().cpu()
        laws.append(law.numpy()[:, ::-1][..., _COMPLEMENT] if opposite else law.numpy())
    return ((laws[0] + laws[1]) / STRANDS)[hidden]

"""Predictions of a model on both strands."""

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
    """Return the device of the parameters, or the CPU if there are none."""
    parameter = next(denoiser.parameters(), None)
    return torch.device("cpu") if parameter is None else parameter.device


def both_strands(
    rows: Sequence[UInt8[np.ndarray, " L"]], contents: Sequence[UInt8[np.ndarray, " L"]]
) -> Batch:
    """Make a batch of each row followed by its reverse complement.

    The noise depends only on the content: it falls on the same bases, whichever strand the content
    is given on. A row and its reverse complement get different noise.

    Args:
        rows: Ids ``0..4`` of equal length.
        contents: Ids of the same length that determine the noise of each row.
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
            index.append(int.from_bytes(salted.digest(), "little") >> 1)  # fits a signed int64
            mirrored.append(opposite != backwards)
    ids = torch.from_numpy(np.stack(tokens).astype(np.int64))
    return Batch(ids, ids != MASK_ID, torch.tensor(index), mirrored=torch.tensor(mirrored))


def can_mask(denoiser: Denoiser) -> bool:
    """Return whether masks are the only noise of the process, so that a base can be masked."""
    return isinstance(denoiser.process, Absorbing | Blockwise | LeftToRight)


@torch.no_grad()
def masked_log_probs(
    denoiser: Denoiser,
    rows: UInt8[np.ndarray, "B L"],
    masked: Bool[np.ndarray, "B L"],
) -> Float64[np.ndarray, "N 4"]:
    """Mask positions and return the log-probability of each base there, averaged over strands.

    An autoregressive model conditions on the preceding bases of either strand, a block diffusion
    model on the preceding blocks and the position's own block. A network that reads both strands
    with the same weights predicts the same on either, so it is evaluated on one.

    Args:
        denoiser: The model in eval mode.
        rows: Ids ``0..4``.
        masked: Positions to mask together, at least one per row.

    Returns:
        Nats, in the order of ``masked.nonzero()`` and of ``BASES``.

    Raises:
        ValueError: If the process has other noise than masks.
    """
    process = denoiser.process
    if not can_mask(denoiser):
        raise ValueError(
            "masked_log_probs.denoiser must be of a process whose only noise is masks, got the "
            f"{denoiser.description}; likelihood_ratios supports every process"
        )
    device = device_of(denoiser)
    log_probs = []
    for opposite in (False,) if _reads_strands_alike(denoiser) else (False, True):
        ids = reverse_complement(rows) if opposite else rows
        where = torch.from_numpy(np.ascontiguousarray(masked[:, ::-1] if opposite else masked))
        x0 = torch.from_numpy(ids.astype(np.int64))
        fraction = where.sum(dim=-1).double() / ((x0 != MASK_ID) | where).sum(dim=-1)
        t = process.schedule.inverse(1 - fraction) if isinstance(process, Absorbing) else None
        inputs = Inputs(x0.masked_fill(where, MASK_ID), t).to(device)
        found = torch.zeros(*ids.shape, len(BASES), dtype=torch.float64)
        found[where] = denoiser.log_probs(inputs, where.to(device)).double().cpu()
        log_probs.append(found.numpy()[:, ::-1][..., _COMPLEMENT] if opposite else found.numpy())
    return np.mean(log_probs, axis=0)[masked]


def _reads_strands_alike(denoiser: Denoiser) -> bool:
    """Return whether both strands have the same distributions."""
    experts = denoiser.experts
    counted = experts is None or experts.complement is not None  # on both strands
    return denoiser.backbone.strands == STRANDS and counted

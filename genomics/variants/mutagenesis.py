"""In-silico mutagenesis: what a model says of every base at every position."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxtyping import Float64, UInt8

from genomics.sequence import BASES, MASK_ID, masked_log_probs
from seqdiff.denoiser import Denoiser


def mutation_effects(
    denoiser: Denoiser,
    ids: UInt8[np.ndarray, " L"],
    *,
    window: int,
    batch_size: int = 32,
    progress: Callable[[int], object] | None = None,
) -> Float64[np.ndarray, "L 4"]:
    """Mask each base in turn and compare every base with the one that is there.

    Args:
        denoiser: In eval mode.
        ids: The sequence, ids ``0..4``.
        window: Most bases around a position that the network is shown; near the ends of a longer
            sequence the window is moved inside.
        batch_size: Windows of a network call.
        progress: Told of so many further positions.

    Returns:
        log p(base) - log p(reference) in nats, the mean of both strands, in the order of ``BASES``:
        0 for the reference itself, NaN where it is unknown.
    """
    size = min(window, len(ids))
    effects = np.full((len(ids), len(BASES)), np.nan)
    known = (ids != MASK_ID).nonzero()[0]
    for first in range(0, len(known), batch_size):
        places = known[first : first + batch_size]
        starts = np.clip(places - (size - 1) // 2, 0, len(ids) - size)
        rows = ids[starts[:, None] + np.arange(size)]
        hidden = np.arange(size) == (places - starts)[:, None]
        law = masked_log_probs(denoiser, rows, hidden)
        effects[places] = law - law[np.arange(len(places)), ids[places]][:, None]
        if progress is not None:
            progress(len(places))
    return effects

"""Ancestral sampling that asks the network again only about rows that have changed."""

from __future__ import annotations

from dataclasses import dataclass

from seqdiff.samplers.ancestral import AncestralSampler
from seqdiff.samplers.canvas import Canvas


@dataclass(frozen=True)
class CachedAncestralSampler(AncestralSampler):
    """The same samples as ancestral, bit for bit, evaluating a row only after it has changed.

    For networks that ignore time, as ours do. It takes at most as many evaluations a row as there
    are masks, however fine the grid, and keeps one prediction for each mask. Source: Sahoo et al.
    2024, arXiv:2406.07524, and Ou et al. 2024, arXiv:2406.03736; in the former's code the whole
    batch shares one cache.
    """

    def fill(self, canvas: Canvas) -> None:
        """See ``Sampler``."""
        canvas.remember()
        super().fill(canvas)

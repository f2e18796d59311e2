"""The numbers of a report as JSON."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Int64

from .curves import Curves
from .measures import Measured
from .page import About


def numbers(about: About, seed: int, measured: Measured, curves: Curves) -> dict[str, object]:
    """Lay out every number of the page; what there is no number for is null.

    Args:
        about: What was compared.
        seed: Of all draws.
        measured: The numbers.
        curves: Of the training.
    """
    motifs = measured.motifs
    return {
        "about": {**about.facts, "held_out": about.held_out, "seed": seed},
        "measures": [
            {
                "section": found.section,
                "name": found.name,
                "unit": found.unit,
                "note": found.note,
                "values": {name: _number(value) for name, value in found.values.items()},
            }
            for found in measured.measures
        ],
        "lengths": {name: _tally(found) for name, found in measured.lengths.items()},
        "gc": {name: [_number(v) for v in found] for name, found in measured.gc.items()},
        "longest_match": {name: found.tolist() for name, found in measured.longest.items()},
        "spectra": {
            name: {str(k): found.tolist() for k, found in enumerate(spectra, start=1)}
            for name, spectra in measured.spectra.items()
        },
        "motifs": None
        if motifs is None
        else {
            "names": motifs.names,
            "hits_per_kilobase": {n: v.tolist() for n, v in motifs.per_kilobase.items()},
            "log2_enrichment": {n: v.tolist() for n, v in motifs.enrichment.items()},
        },
        "training": {
            "split": curves.split,
            "floors_bits_per_base": curves.floors,
            "curves_bits_per_base": {
                name: {"step": steps, "bits": [_number(bit) for bit in bits]}
                for name, (steps, bits) in curves.bits.items()
            },
        },
    }


def _tally(lengths: Int64[np.ndarray, " n"]) -> dict[str, int]:
    """How many there are of each length."""
    values, counts = np.unique(lengths, return_counts=True)
    return dict(zip(map(str, values.tolist()), counts.tolist(), strict=True))


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None

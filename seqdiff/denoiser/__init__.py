"""Denoisers: a backbone, a process and a parameterization behind one call."""

from seqdiff.denoiser.certainty import (
    confidence,
    even_count,
    margin,
    negative_entropy,
    rank_by_certainty,
)
from seqdiff.denoiser.discrete import (
    Adjust,
    Denoiser,
    Masked,
    Needs,
    Prefix,
    check_label,
    usual_parameterization,
)
from seqdiff.denoiser.gaussian import GaussianDenoiser, Level, NoisyEmbeddings
from seqdiff.denoiser.token_schedules import ByContextDenoiser, BySymbolDenoiser

__all__ = [
    "Adjust",
    "ByContextDenoiser",
    "BySymbolDenoiser",
    "Denoiser",
    "GaussianDenoiser",
    "Level",
    "Masked",
    "Needs",
    "NoisyEmbeddings",
    "Prefix",
    "check_label",
    "confidence",
    "even_count",
    "margin",
    "negative_entropy",
    "rank_by_certainty",
    "usual_parameterization",
]

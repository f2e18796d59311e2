"""Denoisers: a backbone, a process and a parameterization behind one call."""

from seqdiff.denoiser.by_symbol import BySymbolDenoiser
from seqdiff.denoiser.discrete import (
    Adjust,
    Denoiser,
    Needs,
    Prefix,
    check_label,
    usual_parameterization,
)
from seqdiff.denoiser.gaussian import GaussianDenoiser, Level, NoisyEmbeddings

__all__ = [
    "Adjust",
    "BySymbolDenoiser",
    "Denoiser",
    "GaussianDenoiser",
    "Level",
    "Needs",
    "NoisyEmbeddings",
    "Prefix",
    "check_label",
    "usual_parameterization",
]

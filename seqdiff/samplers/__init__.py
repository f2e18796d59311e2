"""Samplers: objects that draw sequences from a denoiser and a process."""

from seqdiff.samplers.ancestral import AncestralSampler
from seqdiff.samplers.protocol import Sampler

__all__ = ["AncestralSampler", "Sampler"]

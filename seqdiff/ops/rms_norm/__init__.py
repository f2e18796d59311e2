"""RMSNorm: a CPU kernel and the call that chooses it."""

from seqdiff.ops.rms_norm.dispatch import rms_norm

__all__ = ["rms_norm"]

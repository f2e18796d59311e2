"""RMSNorm: the function, and a CPU kernel that it uses where it can."""

from seqdiff.ops.rms_norm.dispatch import rms_norm

__all__ = ["rms_norm"]

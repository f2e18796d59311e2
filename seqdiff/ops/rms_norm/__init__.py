"""RMSNorm: a CPU kernel and the call that chooses it."""

from seqdiff.ops.rms_norm.cpu_kernels import norm_backward, norm_forward
from seqdiff.ops.rms_norm.dispatch import rms_norm

__all__ = ["norm_backward", "norm_forward", "rms_norm"]

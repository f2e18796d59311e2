"""The scalar-decay scan of Mamba-2 (state-space duality), as matrix products over chunks."""

from seqdiff.ops.ssd.dispatch import BACKENDS, ssd

__all__ = ["BACKENDS", "ssd"]

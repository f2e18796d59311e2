"""Matrix product with a weight, in blocks of rows on the CPU."""

from seqdiff.ops.linear.dispatch import linear

__all__ = ["linear"]

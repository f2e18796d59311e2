"""Matrix product with a weight, by oneDNN on the CPU."""

from seqdiff.ops.linear.dispatch import Linear, linear

__all__ = ["Linear", "linear"]

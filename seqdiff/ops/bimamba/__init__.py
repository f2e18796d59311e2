"""Mamba in both directions, over whole rows or token blocks, as fused operators on the CPU."""

from seqdiff.ops.bimamba.blocks import Borders, mamba_borders, mamba_from, mamba_through, no_borders
from seqdiff.ops.bimamba.directions import mamba_both_ways, mamba_direction
from seqdiff.ops.bimamba.inputs import Direction

__all__ = [
    "Borders",
    "Direction",
    "mamba_borders",
    "mamba_both_ways",
    "mamba_direction",
    "mamba_from",
    "mamba_through",
    "no_borders",
]

"""Mamba in both directions and over rows cut into blocks, as fused operators."""

from seqdiff.ops.bimamba.blocks import Borders, mamba_borders, mamba_from, mamba_through, no_borders
from seqdiff.ops.bimamba.cpu_block_conv import block_conv_backward, block_conv_forward
from seqdiff.ops.bimamba.cpu_block_scan import block_scan_backward, block_scan_forward
from seqdiff.ops.bimamba.directions import Direction, mamba_both_ways, mamba_direction

__all__ = [
    "Borders",
    "Direction",
    "block_conv_backward",
    "block_conv_forward",
    "block_scan_backward",
    "block_scan_forward",
    "mamba_borders",
    "mamba_both_ways",
    "mamba_direction",
    "mamba_from",
    "mamba_through",
    "no_borders",
]

"""Mamba in both directions and over rows cut into blocks, as fused operators."""

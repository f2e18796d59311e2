"""Caduceus: configuration, network, block diffusion, autoregressive variant and hub format."""

from seqdiff.backbones.caduceus.block_diffusion import BlockMamba
from seqdiff.backbones.caduceus.config import CaduceusConfig
from seqdiff.backbones.caduceus.network import AutoregressiveMamba, Caduceus

__all__ = ["AutoregressiveMamba", "BlockMamba", "Caduceus", "CaduceusConfig"]

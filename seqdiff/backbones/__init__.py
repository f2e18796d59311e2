"""Networks that score every position of a row, behind one base class."""

from seqdiff.backbones.base import (
    Backbone,
    BlockCache,
    PublishedBackbone,
    RunTokens,
    TokenizedBackbone,
)
from seqdiff.backbones.caduceus.autoregressive import AutoregressiveMamba
from seqdiff.backbones.caduceus.block_diffusion import BlockMamba
from seqdiff.backbones.caduceus.network import Caduceus
from seqdiff.backbones.transformer.autoregressive import AutoregressiveTransformer
from seqdiff.backbones.transformer.network import Transformer
from seqdiff.backbones.transformer.published import PublishedTransformer

__all__ = [
    "AutoregressiveMamba",
    "AutoregressiveTransformer",
    "Backbone",
    "BlockCache",
    "BlockMamba",
    "Caduceus",
    "PublishedBackbone",
    "PublishedTransformer",
    "RunTokens",
    "TokenizedBackbone",
    "Transformer",
]

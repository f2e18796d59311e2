"""Networks that score every position of a row, behind one base class."""

from .autoregressive import AutoregressiveTransformer
from .autoregressive_mamba import AutoregressiveMamba
from .base import Backbone, BlockCache, PublishedBackbone, RunTokens, TokenizedBackbone
from .block_mamba import BlockMamba
from .caduceus import Caduceus
from .published_transformer import PublishedTransformer
from .transformer import Transformer

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

"""Networks that score every position of a row, behind one base class."""

from seqdiff.backbones.base import (
    Backbone,
    BlockCache,
    PublishedBackbone,
    RunTokens,
    TokenizedBackbone,
)
from seqdiff.backbones.caduceus import AutoregressiveMamba, BlockMamba, Caduceus
from seqdiff.backbones.hub import CONFIG_FILE, WEIGHTS_FILE, check_tokens, first_broken, read_json
from seqdiff.backbones.layers import require_layer
from seqdiff.backbones.transformer import (
    AutoregressiveTransformer,
    PublishedTransformer,
    Transformer,
)

__all__ = [
    "CONFIG_FILE",
    "WEIGHTS_FILE",
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
    "check_tokens",
    "first_broken",
    "read_json",
    "require_layer",
]

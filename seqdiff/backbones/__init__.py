"""Networks that emit K logits a position, behind one protocol."""

from .autoregressive import AutoregressiveTransformer
from .block_mamba import BlockMamba
from .caduceus import Caduceus
from .protocol import (
    Backbone,
    BlockBackbone,
    BlockCache,
    BoundedBackbone,
    LabelledBackbone,
    TimeConditionedBackbone,
)
from .published_transformer import PublishedTransformer
from .transformer import Transformer

__all__ = [
    "AutoregressiveTransformer",
    "Backbone",
    "BlockBackbone",
    "BlockCache",
    "BlockMamba",
    "BoundedBackbone",
    "Caduceus",
    "LabelledBackbone",
    "PublishedTransformer",
    "TimeConditionedBackbone",
    "Transformer",
]

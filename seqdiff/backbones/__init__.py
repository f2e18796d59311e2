"""Networks that score every position of a row, behind one base class."""

from seqdiff.backbones.adapters import (
    AdapterConfig,
    add_adapter,
    base_weights,
    check_adaptable,
    has_adapter,
    merge_adapter,
    published_weights,
    without_base,
)
from seqdiff.backbones.base import (
    Backbone,
    BlockCache,
    PartialCache,
    PublishedBackbone,
    RunTokens,
    ScheduledBackbone,
    TokenizedBackbone,
    score_rows,
)
from seqdiff.backbones.caduceus import AutoregressiveMamba, BlockMamba, Caduceus
from seqdiff.backbones.causal_lm import HubCausalBackbone
from seqdiff.backbones.hub import CONFIG_FILE, WEIGHTS_FILE, check_tokens, first_broken, read_json
from seqdiff.backbones.layers import require_layer
from seqdiff.backbones.masked_lm import HubBackbone, HubNetwork
from seqdiff.backbones.transformer import (
    AutoregressiveTransformer,
    PublishedTransformer,
    Transformer,
)

__all__ = [
    "CONFIG_FILE",
    "WEIGHTS_FILE",
    "AdapterConfig",
    "AutoregressiveMamba",
    "AutoregressiveTransformer",
    "Backbone",
    "BlockCache",
    "BlockMamba",
    "Caduceus",
    "HubBackbone",
    "HubCausalBackbone",
    "HubNetwork",
    "PartialCache",
    "PublishedBackbone",
    "PublishedTransformer",
    "RunTokens",
    "ScheduledBackbone",
    "TokenizedBackbone",
    "Transformer",
    "add_adapter",
    "base_weights",
    "check_adaptable",
    "check_tokens",
    "first_broken",
    "has_adapter",
    "merge_adapter",
    "published_weights",
    "read_json",
    "require_layer",
    "score_rows",
    "without_base",
]

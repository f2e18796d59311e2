"""The transformers of MDLM and BD3-LM: layers, networks, block diffusion, cache, hub format."""

from seqdiff.backbones.transformer.block_diffusion import (
    Pass,
    dense_pass,
    flex_pass,
    plain_pass,
    structured_pass,
)
from seqdiff.backbones.transformer.config import TransformerShape
from seqdiff.backbones.transformer.network import (
    AutoregressiveTransformer,
    PublishedTransformer,
    Transformer,
)
from seqdiff.backbones.transformer.packing import Layout, Packed, Padded, attended_keys, lay_out

__all__ = [
    "AutoregressiveTransformer",
    "Layout",
    "Packed",
    "Padded",
    "Pass",
    "PublishedTransformer",
    "Transformer",
    "TransformerShape",
    "attended_keys",
    "dense_pass",
    "flex_pass",
    "lay_out",
    "plain_pass",
    "structured_pass",
]

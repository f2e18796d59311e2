"""The transformer of MDLM and BD3-LM: configuration, layers, block passes, cache and hub format."""

from seqdiff.backbones.transformer.autoregressive import AutoregressiveTransformer
from seqdiff.backbones.transformer.block_attention import attended_keys
from seqdiff.backbones.transformer.block_pass import (
    Pass,
    dense_pass,
    flex_pass,
    plain_pass,
    structured_pass,
)
from seqdiff.backbones.transformer.config import TransformerShape
from seqdiff.backbones.transformer.network import Transformer
from seqdiff.backbones.transformer.packing import Layout, Packed, Padded, lay_out
from seqdiff.backbones.transformer.published import PublishedTransformer

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

"""Low-rank adapters of published networks, by the peft library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from seqdiff.backbones.base import Backbone
from seqdiff.backbones.masked_lm import HubNetwork
from seqdiff.extras import require_extra

_OWNER = "RunConfig.adapter"
# How peft names the weights of an adapter, and those below it.
_ADDED, _BELOW = ".lora_", ".base_layer."
_NETWORK = "backbone.network."


@dataclass(frozen=True)
class AdapterConfig:
    """Small matrices that are trained in place of the weights of a published network.

    Every chosen linear layer W x becomes W x + alpha / rank B A x, where only A and B are trained.
    Source: Hu et al. 2022, "LoRA: low-rank adaptation of large language models", arXiv:2106.09685.

    Attributes:
        kind: ``lora``.
        rank: Rows of A and columns of B.
        alpha: Scale of the sum; null means twice the rank.
        dropout: Probability with which training drops an entry of x before A.
        targets: Ends of the names of the linear layers, such as ``[query, value]``; null means all
            of the encoder.

    Raises:
        ValueError: If a number is out of range.
    """

    kind: Literal["lora"] = "lora"
    rank: int = 8
    alpha: float | None = None
    dropout: float = 0.0
    targets: list[str] | None = None

    def __post_init__(self) -> None:
        """Check the numbers."""
        if self.rank < 1:
            raise ValueError(f"{_OWNER}.rank must be at least 1, got {self.rank}; 8 is usual")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"{_OWNER}.dropout must be in [0, 1), got {self.dropout}; 0 is usual")


def check_adaptable(backbone: Backbone) -> None:
    """Check that a network can have adapters.

    Raises:
        ValueError: If it is not a network of transformers.
    """
    if not isinstance(backbone, HubNetwork):
        raise ValueError(
            f"{_OWNER} must be null for a {type(backbone).__name__}, whose layers are not those of "
            "transformers; choose seqdiff.backbones.HubBackbone, or leave --adapter out"
        )


def add_adapter(backbone: Backbone, config: AdapterConfig) -> None:
    """Add adapters to a network in place, and freeze its other weights.

    The outputs do not change, because B begins with zeros. A is drawn from the default generator.

    Args:
        backbone: A network of transformers.
        config: Which layers, and the rank.

    Raises:
        ValueError: If peft is not installed, or no linear layer has one of the names.
    """
    check_adaptable(backbone)
    assert isinstance(backbone, HubNetwork)
    peft = require_extra("peft", _OWNER, "hub")
    chosen = layers = backbone.adaptable_layers
    if config.targets is not None:
        ends = tuple(f".{target}" for target in config.targets)
        chosen = [name for name in layers if name.endswith(ends)]
    if not chosen:
        known = ", ".join(sorted({name.split(".")[-1] for name in layers}))
        raise ValueError(
            f"{_OWNER}.targets must be ends of names of linear layers, got {config.targets} for a "
            f"{type(backbone.network).__name__}; choose from {known}"
        )
    lora = peft.LoraConfig(
        r=config.rank,
        lora_alpha=2 * config.rank if config.alpha is None else config.alpha,
        lora_dropout=config.dropout,
        target_modules=chosen,
        fan_in_fan_out=backbone.transposed,
    )
    peft.inject_adapter_in_model(lora, backbone.network)


def merge_adapter(backbone: Backbone) -> None:
    """Add the adapters of a network to its weights in place, and remove them.

    Raises:
        ValueError: If a merged weight is not finite.
    """
    tuners: Any = require_extra("peft.tuners.tuners_utils", _OWNER, "hub")
    found = [n for n, one in backbone.named_modules() if isinstance(one, tuners.BaseTunerLayer)]
    for name in found:
        layer: Any = backbone.get_submodule(name)
        layer.merge(safe_merge=True)
        parent, _, child = name.rpartition(".")
        setattr(backbone.get_submodule(parent), child, layer.get_base_layer())
    backbone.requires_grad_(True)


def has_adapter(module: nn.Module) -> bool:
    """Return whether a module has adapters."""
    return any(_ADDED in name for name, _ in module.named_parameters())


def published_weights(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of the network of transformers by their names without adapters.

    Args:
        weights: State of a denoiser, with adapters or without.
    """
    return {name.replace(_BELOW, "."): w for name, w in weights.items() if _is_base(name)}


def base_weights(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of a denoiser that stay as they were published; none without adapters."""
    if not any(_ADDED in name for name in weights):
        return {}
    return {name: weight for name, weight in weights.items() if _is_base(name)}


def without_base(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights that a run with adapters saves; all weights without adapters."""
    base = base_weights(weights)
    return {name: weight for name, weight in weights.items() if name not in base}


def _is_base(name: str) -> bool:
    return name.startswith(_NETWORK) and _ADDED not in name

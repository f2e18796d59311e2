"""The fields of a published MDLM's or BD3-LM's config.json."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import cast

from .hub_files import WITHOUT_EFFECT, check_fields, listed, read_json
from .layers import require_positive
from .transformer_config import TransformerConfig

_FIELDS: dict[str, tuple[type, ...]] = {
    "model_type": (str,),
    "vocab_size": (int,),
    "model_length": (int,),
    "hidden_dim": (int,),
    "cond_dim": (int,),
    "n_blocks": (int,),
    "n_heads": (int,),
    "dropout": (float, int),
    "time_conditioning": (bool,),
}
_BLOCK_FIELDS: dict[str, tuple[type, ...]] = {
    "block_size": (int,),
    "cross_attn": (bool,),
    "adaln": (bool,),
    "attn_backend": (str,),
    "causal": (bool,),
    "var_min": (bool,),
    "sampling_eps_min": (float, int),
    "sampling_eps_max": (float, int),
}
_ONLY_SUPPORTED = {"adaln": True, "causal": False}
_ARCHITECTURES = {"mdlm": "MDLM", "bd3lm": "BD3LM"}


@dataclass(frozen=True)
class BlockDiffusionFields:
    """What a BD3-LM says of itself beyond the network. Nothing here changes what is computed.

    Source: Arriola et al. 2025, arXiv:2503.09573.

    Attributes:
        block_size: Tokens of a block.
        cross_attn: Whether it was trained on [x_t ; x0].
        attn_backend: The published code's kernel.
        var_min: Whether the noise it was trained on was chosen for a small variance.
        sampling_eps_min: Least share of masked tokens it was trained on.
        sampling_eps_max: Largest share of masked tokens it was trained on.
    """

    block_size: int
    cross_attn: bool = True
    attn_backend: str = "sdpa"
    var_min: bool = True
    sampling_eps_min: float = 1e-3
    sampling_eps_max: float = 1.0


def parse_config(path: Path) -> tuple[TransformerConfig, BlockDiffusionFields | None]:
    """Read config.json; every id is both embedded and scored.

    Args:
        path: The file.

    Returns:
        The network's shape and, of a BD3-LM, the other fields.

    Raises:
        ValueError: If it is not JSON, or a field is missing, unknown, of the wrong type, or asks
            for what ``Transformer`` does not do.
    """
    found = cast(dict, read_json(path))
    kind = found.get("model_type")
    if kind not in _ARCHITECTURES:
        raise ValueError(
            f"{path} model_type must be one of {listed(list(_ARCHITECTURES))}, got {kind!r}; "
            "give the folder of a published MDLM or BD3-LM"
        )
    required = _FIELDS | (_BLOCK_FIELDS if kind == "bd3lm" else {})
    check_fields(str(path), f"a {_ARCHITECTURES[kind]}", found, required, {}, WITHOUT_EFFECT)
    for name, supported in _ONLY_SUPPORTED.items():
        if found.get(name, supported) != supported:
            raise ValueError(
                f"{path} has {name}={found[name]!r}, but Transformer supports only {supported!r}"
            )
    config = TransformerConfig(
        d_model=found["hidden_dim"],
        n_layer=found["n_blocks"],
        n_heads=found["n_heads"],
        dropout=float(found["dropout"]),
        max_length=found["model_length"],
        num_embeddings=found["vocab_size"],
        num_logits=found["vocab_size"],
        cond_dim=found["cond_dim"],
        time_conditioned=found["time_conditioning"],
    )
    if kind == "mdlm":
        return config, None
    require_positive("Transformer", "block_size", found["block_size"])
    return config, BlockDiffusionFields(
        **{field.name: found[field.name] for field in fields(BlockDiffusionFields)}
    )


def format_config(config: TransformerConfig, block_fields: BlockDiffusionFields | None) -> str:
    """Describe a network as the text of config.json, where every embedded id is scored.

    Args:
        config: The network.
        block_fields: What makes it a BD3-LM; None for an MDLM.
    """
    kind = "mdlm" if block_fields is None else "bd3lm"
    described: dict[str, object] = {
        "architectures": [_ARCHITECTURES[kind]],
        "model_type": kind,
        "vocab_size": config.num_embeddings,
        "model_length": config.max_length,
        "hidden_dim": config.d_model,
        "cond_dim": config.cond_dim,
        "n_blocks": config.n_layer,
        "n_heads": config.n_heads,
        "dropout": config.dropout,
        "time_conditioning": config.time_conditioned,
    }
    if block_fields is not None:
        described |= _ONLY_SUPPORTED | asdict(block_fields)
    return json.dumps(described, indent=2) + "\n"

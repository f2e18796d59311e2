"""The published MDLM and BD3-LM formats: config.json and model.safetensors in one folder.

The format has these peculiarities. The names of tensors have the prefix ``backbone.``. The rotary
frequencies may be stored, although they follow from the width. The head scores the whole vocabulary
including the mask. A BD3-LM whose ``var_min`` is true also stores, without the prefix, the interval
of mask fractions that it was trained on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from seqdiff.backbones.hub import (
    CONFIG_FILE,
    WITHOUT_EFFECT,
    check_fields,
    existing,
    listed,
    read_json,
    read_tensors,
    require_names,
    require_shape,
    write_folder,
)
from seqdiff.backbones.layers import require_positive
from seqdiff.backbones.transformer.config import TransformerConfig
from seqdiff.backbones.transformer.layers import rotary_frequencies

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
FREQUENCIES = "backbone.rotary_emb.inv_freq"
_FRACTIONS = ("sampling_eps_min", "sampling_eps_max")
_WHAT = "MDLM or BD3-LM"


@dataclass(frozen=True)
class BlockDiffusionFields:
    """Additional fields of a BD3-LM's config.json, which do not change what the network computes.

    Source: Arriola et al. 2025, arXiv:2503.09573.

    Attributes:
        block_size: Number of tokens in a block.
        cross_attn: Whether the network was trained on x_t and x0 side by side.
        attn_backend: Attention kernel of the published code.
        var_min: Whether the mask fractions in training were chosen to reduce the variance.
        sampling_eps_min: Smallest fraction of masked tokens in training.
        sampling_eps_max: Largest fraction of masked tokens in training.
    """

    block_size: int
    cross_attn: bool = True
    attn_backend: str = "sdpa"
    var_min: bool = True
    sampling_eps_min: float = 1e-3
    sampling_eps_max: float = 1.0


def read_config(
    directory: str | Path,
) -> tuple[TransformerConfig, BlockDiffusionFields | None]:
    """Read config.json; every id is both embedded and scored.

    Returns:
        The configuration, and the additional fields of a BD3-LM or ``None`` for an MDLM.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If it is not JSON, or a field is missing, unknown, of the wrong type, or has a
            value that ``Transformer`` does not support.
    """
    path = existing(directory, CONFIG_FILE, _WHAT)
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


def read_weights(
    directory: str | Path,
    config: TransformerConfig,
    block_fields: BlockDiffusionFields | None,
    like: Mapping[str, Tensor],
) -> tuple[dict[str, Tensor], BlockDiffusionFields | None]:
    """Read model.safetensors into the state dict of a ``Transformer`` of this configuration.

    Args:
        directory: Folder of the file.
        config: What ``read_config`` found there.
        block_fields: What ``read_config`` found there.
        like: A state dict of the network, which determines names, shapes and dtypes.

    Returns:
        The state dict, and ``block_fields`` with the mask fractions that the file stores.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If it is damaged, or a tensor is missing, unexpected or of the wrong shape.
    """
    path, stored = read_tensors(directory, _WHAT)
    frequencies = stored.pop(FREQUENCIES, None)
    block_fields = _take_fractions(path, block_fields, stored)
    names = {name: hub_name(name) for name in like}
    missing = [hub for hub in names.values() if hub not in stored]
    unexpected = sorted(stored.keys() - set(names.values()))
    require_names(path, missing, unexpected)
    for name, hub in names.items():
        require_shape(path, hub, like[name].shape, stored[hub])
    if frequencies is not None:
        expected = rotary_frequencies(config.d_model // config.n_heads)
        require_shape(path, FREQUENCIES, expected.shape, frequencies)
        # The tolerance allows for frequencies in bfloat16.
        if not torch.allclose(frequencies.float(), expected, rtol=1e-2, atol=0):
            raise ValueError(
                f"{path} {FREQUENCIES} must be those of base 10000, which alone is supported, got "
                f"{frequencies.tolist()[:3]}"
            )
    state = {name: stored[hub].to(like[name].dtype, copy=True) for name, hub in names.items()}
    return state, block_fields


def _take_fractions(
    path: Path, block_fields: BlockDiffusionFields | None, stored: dict[str, Tensor]
) -> BlockDiffusionFields | None:
    """Remove the mask fractions from ``stored``; they override config.json if they differ."""
    if block_fields is None or not block_fields.var_min:
        return block_fields
    for name in _FRACTIONS:
        fraction = stored.pop(name, None)
        if fraction is not None:
            require_shape(path, name, (), fraction)
            if not math.isclose(float(fraction), getattr(block_fields, name), rel_tol=1e-2):
                block_fields = replace(block_fields, **{name: float(fraction)})
    return block_fields


def write_hub(
    directory: str | Path,
    config: TransformerConfig,
    block_fields: BlockDiffusionFields | None,
    state: Mapping[str, Tensor],
) -> None:
    """Write config.json and model.safetensors, each atomically.

    Args:
        directory: Folder, created if it does not exist; files of these names are replaced.
        config: Configuration of the network. In the format, every embedded id is also scored; the
            weights of ids that the network does not score are zeros.
        block_fields: Additional fields of a BD3-LM; ``None`` for an MDLM.
        state: State dict of a ``Transformer`` of this configuration.

    Raises:
        OSError: If the folder cannot be written.
    """
    tensors = {FREQUENCIES: rotary_frequencies(config.d_model // config.n_heads)}
    if block_fields is not None and block_fields.var_min:
        tensors |= {name: torch.tensor(getattr(block_fields, name)) for name in _FRACTIONS}
    unscored = config.num_embeddings - config.num_logits
    for name, tensor in state.items():
        value = tensor.detach().cpu()
        if name.startswith("head.linear."):
            value = torch.cat((value, value.new_zeros((unscored, *value.shape[1:]))))
        tensors[hub_name(name)] = value.contiguous().clone()
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
    write_folder(directory, described, tensors)


def hub_name(name: str) -> str:
    """Return the published name of a parameter.

    Args:
        name: A key of ``Transformer.state_dict()``.
    """
    if name == "embedding.weight":
        return "backbone.vocab_embed.embedding"
    hub = name.replace("modulation.", "adaLN_modulation.")
    if hub.startswith("head."):
        hub = "output_layer." + hub.removeprefix("head.").replace("norm.", "norm_final.")
    return f"backbone.{hub}"

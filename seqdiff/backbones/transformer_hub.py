"""The published MDLM and BD3-LM formats: config.json and model.safetensors in one folder.

Facts of the format: every tensor lies behind the prefix ``backbone.``; the rotary frequencies may
be stored, though they follow from the width; the head scores the whole vocabulary, mask included. A
BD3-LM whose ``var_min`` is true holds, without the prefix, the shares of masks it was trained on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from ..files import write_bytes
from .hub_files import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    existing,
    load_tensors,
    require_names,
    require_shape,
)
from .rotary import rotary_frequencies
from .transformer_config import TransformerConfig
from .transformer_hub_config import BlockDiffusionFields, format_config, parse_config

FREQUENCIES = "backbone.rotary_emb.inv_freq"
_SHARES = ("sampling_eps_min", "sampling_eps_max")
_WHAT = "MDLM or BD3-LM"


def read_config(directory: str | Path) -> tuple[TransformerConfig, BlockDiffusionFields | None]:
    """Read config.json; see ``parse_config``.

    Args:
        directory: Folder of the file.

    Raises:
        FileNotFoundError: If the file is not there.
        ValueError: See ``parse_config``.
    """
    return parse_config(existing(directory, CONFIG_FILE, _WHAT))


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
        block_fields: The same.
        like: The state dict to fill; gives names, shapes and dtypes.

    Returns:
        The state dict, and the fields with the shares of masks that the file holds.

    Raises:
        FileNotFoundError: If the file is not there.
        ValueError: If it is damaged, or a tensor is missing, unexpected or of the wrong shape.
    """
    path = existing(directory, WEIGHTS_FILE, _WHAT)
    stored = load_tensors(path)
    frequencies = stored.pop(FREQUENCIES, None)
    block_fields = _take_shares(path, block_fields, stored)
    names = {name: hub_name(name) for name in like}
    missing = [hub for hub in names.values() if hub not in stored]
    unexpected = sorted(stored.keys() - set(names.values()))
    require_names(path, missing, unexpected)
    for name, hub in names.items():
        require_shape(path, hub, like[name].shape, stored[hub])
    if frequencies is not None:
        expected = rotary_frequencies(config.d_model // config.n_heads)
        require_shape(path, FREQUENCIES, expected.shape, frequencies)
        if not torch.allclose(frequencies.float(), expected, rtol=1e-2, atol=0):  # as in bfloat16
            raise ValueError(
                f"{path} {FREQUENCIES} must be those of base 10000, which alone is supported, got "
                f"{frequencies.tolist()[:3]}"
            )
    state = {name: stored[hub].to(like[name].dtype, copy=True) for name, hub in names.items()}
    return state, block_fields


def _take_shares(
    path: Path, block_fields: BlockDiffusionFields | None, stored: dict[str, Tensor]
) -> BlockDiffusionFields | None:
    """Take out the shares of masks, which prevail over config.json where they differ."""
    if block_fields is None or not block_fields.var_min:
        return block_fields
    for name in _SHARES:
        share = stored.pop(name, None)
        if share is not None:
            require_shape(path, name, (), share)
            if not math.isclose(float(share), getattr(block_fields, name), rel_tol=1e-2):
                block_fields = replace(block_fields, **{name: float(share)})
    return block_fields


def write_hub(
    directory: str | Path,
    config: TransformerConfig,
    block_fields: BlockDiffusionFields | None,
    state: Mapping[str, Tensor],
) -> None:
    """Write config.json and model.safetensors, each complete or not at all.

    Args:
        directory: Folder, made if it is not there; files of these names are replaced.
        config: What to describe. The format scores every embedded id; those that the network does
            not score get zeros.
        block_fields: What makes it a BD3-LM; None for an MDLM.
        state: State dict of a ``Transformer`` of this configuration.

    Raises:
        OSError: If the folder cannot be written.
    """
    tensors = {FREQUENCIES: rotary_frequencies(config.d_model // config.n_heads)}
    if block_fields is not None and block_fields.var_min:
        tensors |= {name: torch.tensor(getattr(block_fields, name)) for name in _SHARES}
    unscored = config.num_embeddings - config.num_logits
    for name, tensor in state.items():
        value = tensor.detach().cpu()
        if name.startswith("head.linear."):
            value = torch.cat((value, value.new_zeros((unscored, *value.shape[1:]))))
        tensors[hub_name(name)] = value.contiguous().clone()
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    write_bytes(folder / WEIGHTS_FILE, save(tensors, metadata={"format": "pt"}))
    write_bytes(folder / CONFIG_FILE, format_config(config, block_fields).encode())


def hub_name(name: str) -> str:
    """The published name of one of our parameters.

    Args:
        name: A key of ``Transformer.state_dict()``.
    """
    if name == "embedding.weight":
        return "backbone.vocab_embed.embedding"
    hub = name.replace("modulation.", "adaLN_modulation.")
    if hub.startswith("head."):
        hub = "output_layer." + hub.removeprefix("head.").replace("norm.", "norm_final.")
    return f"backbone.{hub}"

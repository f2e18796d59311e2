"""The published Caduceus format: config.json and model.safetensors in one folder.

Facts of the format: the two strands of a ``ps`` row are one vector of twice the width; its norms
sit one module deeper unless they are fused with the addition before them, and fused ones swap the
strands before each block; tensors that share storage may be written once, under any of their names.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from ..files import write_bytes
from .caduceus_config import CaduceusConfig
from .caduceus_hub_config import format_config, parse_config
from .hub_files import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    existing,
    load_tensors,
    require_names,
    require_shape,
)


def read_config(directory: str | Path) -> CaduceusConfig:
    """Read config.json; every id is both embedded and scored.

    Args:
        directory: Folder of the file.

    Raises:
        FileNotFoundError: If the file is not there.
        ValueError: If it is not JSON, or a field is missing, unknown, of the wrong type, or asks
            for what ``Caduceus`` does not do.
    """
    return parse_config(existing(directory, CONFIG_FILE, "Caduceus"))


def read_weights(
    directory: str | Path, config: CaduceusConfig, like: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Read model.safetensors into the state dict of a ``Caduceus`` of this configuration.

    Args:
        directory: Folder of the file.
        config: What ``read_config`` found there.
        like: The state dict to fill; gives names, shapes and dtypes.

    Raises:
        FileNotFoundError: If the file is not there.
        ValueError: If it is damaged, a tensor is missing, unexpected or of the wrong shape, or
            tensors that should be tied differ.
    """
    path = existing(directory, WEIGHTS_FILE, "Caduceus")
    stored = load_tensors(path)
    aliases = {name: hub_names(name, config) for name in like}
    maps = _complement_names(config)
    missing = [hub[0] for hub in aliases.values() if stored.keys().isdisjoint(hub)]
    missing += [name for name in maps if name not in stored]
    expected = {name for hub in aliases.values() for name in hub}.union(maps)
    unexpected = [name for name in stored if name not in expected]
    require_names(path, missing, unexpected)
    for name in maps:
        if tuple(stored[name].tolist()) != config.complement:
            raise ValueError(f"{path} has a {name} other than complement_map in {CONFIG_FILE}")
    return {name: _one(path, stored, hub, like[name]) for name, hub in aliases.items()}


def write_hub(directory: str | Path, config: CaduceusConfig, state: Mapping[str, Tensor]) -> None:
    """Write config.json and model.safetensors, each complete or not at all.

    Args:
        directory: Folder, made if it is not there; files of these names are replaced.
        config: What to describe. The format scores every embedded id.
        state: State dict of a ``Caduceus`` of this configuration.

    Raises:
        OSError: If the folder cannot be written.
    """
    tensors: dict[str, Tensor] = {}
    for name, tensor in state.items():
        for hub in hub_names(name, config):
            value = tensor.detach().cpu()
            tensors[hub] = (value[:, None] if name.endswith("conv_weight") else value).clone()
    for name in _complement_names(config):
        tensors[name] = torch.tensor(config.complement)
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    write_bytes(folder / WEIGHTS_FILE, save(tensors, metadata={"format": "pt"}))
    write_bytes(folder / CONFIG_FILE, format_config(config).encode())


def hub_names(name: str, config: CaduceusConfig) -> tuple[str, ...]:
    """All published names of one of our parameters; several where it is tied.

    Args:
        name: A key of ``Caduceus.state_dict()``.
        config: Decides the nesting.
    """
    ps = config.variant == "ps"
    if name == "embedding.weight":
        embedding, head = ("embedding.weight", "lm_head.weight") if ps else ("weight", "weight")
        return f"caduceus.backbone.embeddings.word_embeddings.{embedding}", f"lm_head.{head}"
    norm_wrap = "submodule." if ps and not config.swap_strands else ""
    parts = name.split(".")
    if parts[0] == "norm":
        return (f"caduceus.backbone.norm_f.{norm_wrap}{parts[1]}",)
    block = f"caduceus.backbone.layers.{parts[1]}"
    if parts[2] == "norm":
        return (f"{block}.norm.{norm_wrap}{parts[3]}",)
    mixer = f"{block}.mixer.submodule" if ps else f"{block}.mixer"
    module, rest = parts[3], ".".join(parts[4:])
    if module in ("fwd", "rev"):
        return (f"{mixer}.mamba_{module}.{rest.replace('conv_', 'conv1d.')}",)
    projection = f"{module.removesuffix('_rev')}.{rest}"
    if config.tied:
        return tuple(f"{mixer}.mamba_{side}.{projection}" for side in ("fwd", "rev"))
    return (f"{mixer}.mamba_{'rev' if module.endswith('_rev') else 'fwd'}.{projection}",)


def _complement_names(config: CaduceusConfig) -> tuple[str, ...]:
    if config.variant == "ph":
        return ()
    embeddings = "caduceus.backbone.embeddings.word_embeddings"
    return f"{embeddings}.complement_map", "lm_head.complement_map"


def _one(path: Path, stored: Mapping[str, Tensor], hub: tuple[str, ...], like: Tensor) -> Tensor:
    """The stored tensor behind one of our names, whichever of its aliases were written."""
    present = [name for name in hub if name in stored]
    first = stored[present[0]]
    shape = like.shape
    if present[0].endswith("conv1d.weight"):  # stored with a middle axis of one
        shape = torch.Size((like.shape[0], 1, like.shape[1]))
    for name in present:
        require_shape(path, name, shape, stored[name])
        if not torch.equal(stored[name], first):
            raise ValueError(f"{path} {name} must equal {present[0]}, with which it is tied")
    return first.reshape(like.shape).to(like.dtype)

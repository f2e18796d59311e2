"""The published Caduceus format: config.json and model.safetensors in one folder.

The format has these peculiarities. In a ``ps`` network, the two strands of a row are one vector of
twice the width. Its norms are one module deeper than in ``ph``, unless they are fused with the
preceding addition; networks with fused norms swap the strands before each block. Tensors that share
storage may be written only once, under any of their names.

Networks with the mixer of Mamba-2 (PlantCAD2; Zhai et al. 2025, doi:10.1101/2025.08.27.672609) have
the same names, but the fields of the layers and norms are one level deeper, in ``layer_cfg`` and
``norm_cfg``. The flat form with ``"layer": "Mamba2"`` in ``ssm_cfg``, as mamba_ssm writes it, is
read as well.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from seqdiff.backbones.caduceus.config import CaduceusConfig
from seqdiff.backbones.hub import (
    CONFIG_FILE,
    WITHOUT_EFFECT,
    check_fields,
    existing,
    read_json,
    read_tensors,
    require_names,
    require_shape,
    write_folder,
)
from seqdiff.backbones.layers import require_positive
from seqdiff.backbones.mamba import Combine, MambaConfig

_FIELDS: dict[str, tuple[type, ...]] = {
    "d_model": (int,),
    "n_layer": (int,),
    "vocab_size": (int,),
    "pad_vocab_size_multiple": (int,),
    "rms_norm": (bool,),
    "norm_epsilon": (float, int),
    "fused_add_norm": (bool,),
    "bidirectional": (bool,),
    "bidirectional_strategy": (str, type(None)),
    "bidirectional_weight_tie": (bool,),
    "rcps": (bool,),
}
_OPTIONAL: dict[str, tuple[type, ...]] = {
    "model_type": (str,),
    "tie_word_embeddings": (bool,),
    "complement_map": (dict, type(None)),
    "ssm_cfg": (dict, type(None)),
}
_SSM_FIELDS: dict[str, tuple[type, ...]] = {
    "d_state": (int,),
    "d_conv": (int,),
    "expand": (int,),
    "dt_rank": (int, str),
    "dt_min": (float, int),
    "dt_max": (float, int),
    "dt_init_floor": (float, int),
    "conv_bias": (bool,),
    "bias": (bool,),
}
_SSD_FIELDS: dict[str, tuple[type, ...]] = {
    **{name: kinds for name, kinds in _SSM_FIELDS.items() if name != "dt_rank"},
    "headdim": (int,),
}
# mamba_ssm's defaults for Mamba2, where they differ from ours.
_SSD_DEFAULTS = {"d_state": 128, "headdim": 64}
_SSD_FIXED: dict[str, object] = {
    "ngroups": 1,
    "rmsnorm": True,
    "norm_before_gate": False,
    "D_has_hdim": False,
    "d_ssm": None,
    "dt_limit": [0.0, math.inf],
}
# These fields have no effect. Most only determine the initial weights, which the file replaces.
# The residual stream is in float32 whenever the weights are. The fast path gives the same results.
_WITHOUT_EFFECT = WITHOUT_EFFECT | {
    "initializer_cfg", "residual_in_fp32", "gradient_checkpointing_stride"
}  # fmt: skip
_SSM_WITHOUT_EFFECT = {"dt_init", "dt_scale", "use_fast_path"}
_SSD_WITHOUT_EFFECT = {"A_init_range", "conv_init", "chunk_size", "use_mem_eff_path"}


def read_config(directory: str | Path) -> CaduceusConfig:
    """Read config.json; every id is both embedded and scored.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If it is not JSON, or a field is missing, unknown, of the wrong type, or has a
            value that ``Caduceus`` does not support.
    """
    path = existing(directory, CONFIG_FILE, "Caduceus")
    fields = _flat(path, cast(dict, read_json(path)))
    check_fields(str(path), "a Caduceus", fields, _FIELDS, _OPTIONAL, _WITHOUT_EFFECT)
    for name, required in (
        ("model_type", "caduceus"), ("bidirectional", True), ("tie_word_embeddings", True)
    ):  # fmt: skip
        if fields.get(name, required) != required:
            raise ValueError(
                f"{path} has {name}={fields[name]!r}, but Caduceus supports only {required!r}"
            )
    vocab_size = _padded(fields["vocab_size"], fields["pad_vocab_size_multiple"])
    return CaduceusConfig(
        d_model=fields["d_model"],
        n_layer=fields["n_layer"],
        num_embeddings=vocab_size,
        num_logits=vocab_size,
        complement=_complement(path, fields.get("complement_map"), vocab_size),
        variant="ps" if fields["rcps"] else "ph",
        tied=fields["bidirectional_weight_tie"],
        combine=cast(Combine, fields["bidirectional_strategy"] or "add"),
        norm="rms" if fields["rms_norm"] else "layer",
        norm_eps=float(fields["norm_epsilon"]),
        swap_strands=fields["rcps"] and fields["fused_add_norm"],
        mamba=_mamba_config(path, fields.get("ssm_cfg") or {}),
    )


def _flat(path: Path, fields: Mapping[str, object]) -> dict:
    """Move the fields of ``layer_cfg`` and ``norm_cfg`` to the top, with the layer in ``ssm_cfg``.

    These parts also hold every general field of the transformers library, which has no effect.
    """
    if "layer_cfg" not in fields:
        return dict(fields)
    layer, norm = fields["layer_cfg"], fields.get("norm_cfg")
    mamba = layer.get("mamba_cfg") if isinstance(layer, dict) else None
    ssm = mamba.get("ssm_cfg") or {} if isinstance(mamba, dict) else None
    if not isinstance(layer, dict) or not isinstance(mamba, dict) or not isinstance(norm, dict):
        raise ValueError(
            f"{path} must have objects layer_cfg, layer_cfg.mamba_cfg and norm_cfg, got "
            f"layer_cfg={layer!r} and norm_cfg={norm!r}; download it again"
        )
    if not isinstance(ssm, dict):
        raise ValueError(
            f"{path} layer_cfg.mamba_cfg ssm_cfg must be dict or null, got {ssm!r}; download it "
            "again"
        )
    for owner, name, value, supported in (
        ("layer_cfg", "mode", layer.get("mode", "mamba-only"), ("mamba-only",)),
        ("layer_cfg.mamba_cfg", "version", mamba.get("version"), ("v1", "v2")),
        ("layer_cfg.mamba_cfg", "mlp_cfg", mamba.get("mlp_cfg"), (None,)),
    ):
        if value not in supported:
            choices = " or ".join(map(repr, supported))
            raise ValueError(
                f"{path} {owner} has {name}={value!r}, but Caduceus supports only {choices}"
            )
    moved = {
        name: norm[name] for name in ("fused_add_norm", "rms_norm", "norm_epsilon") if name in norm
    }
    kind = "Mamba2" if mamba["version"] == "v2" else "Mamba1"
    others = {k: v for k, v in fields.items() if k not in ("layer_cfg", "norm_cfg")}
    return {**others, **moved, "ssm_cfg": {**ssm, "layer": kind}}


def _mamba_config(path: Path, ssm: Mapping[str, object]) -> MambaConfig:
    layer = ssm.get("layer", "Mamba1")
    ssm = {name: value for name, value in ssm.items() if name != "layer"}
    if layer == "Mamba1":
        kinds, ignored = _SSM_FIELDS, _SSM_WITHOUT_EFFECT
        default = MambaConfig()
    elif layer == "Mamba2":
        kinds, ignored = _SSD_FIELDS, _SSD_WITHOUT_EFFECT
        default = replace(MambaConfig(mixer="ssd"), **_SSD_DEFAULTS)
        for name, supported in _SSD_FIXED.items():
            if ssm.get(name, supported) != supported:
                raise ValueError(
                    f"{path} ssm_cfg has {name}={ssm[name]!r}, but Caduceus supports only "
                    f"{supported!r}"
                )
        ssm = {name: value for name, value in ssm.items() if name not in _SSD_FIXED}
    else:
        raise ValueError(
            f"{path} ssm_cfg has layer={layer!r}, but Caduceus supports only 'Mamba1' and 'Mamba2'"
        )
    check_fields(f"{path} ssm_cfg", "a Caduceus", ssm, {}, kinds, ignored)
    used = {name: value for name, value in ssm.items() if name in kinds}
    floats = {k: float(cast(float, v)) for k, v in used.items() if float in kinds[k]}
    return replace(default, **{**used, **floats})


def _padded(vocab_size: int, multiple: int) -> int:
    require_positive("Caduceus", "pad_vocab_size_multiple", multiple)
    return -(-vocab_size // multiple) * multiple


def _complement(
    path: Path, mapping: Mapping[str, object] | None, vocab_size: int
) -> tuple[int, ...] | None:
    """Read the complement of every id; the ids that pad the vocabulary are their own complements.

    The keys of the mapping are the ids as strings, in any order.
    """
    if mapping is None:
        return None
    numbers = {int(k): v for k, v in mapping.items() if k.isdecimal()}
    values = [v for _, v in sorted(numbers.items()) if isinstance(v, int)]
    if sorted(numbers) != list(range(len(mapping))) or len(values) != len(mapping):
        raise ValueError(
            f"{path} complement_map must map each id 0..{len(mapping) - 1} to an id, got {mapping}"
        )
    return (*values, *range(len(values), vocab_size))


def read_weights(
    directory: str | Path, config: CaduceusConfig, like: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Read model.safetensors into the state dict of a ``Caduceus`` of this configuration.

    Args:
        directory: Folder of the file.
        config: What ``read_config`` found there.
        like: A state dict of the network, which determines names, shapes and dtypes.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If it is damaged, a tensor is missing, unexpected or of the wrong shape, or
            tensors that should be tied differ.
    """
    path, stored = read_tensors(directory, "Caduceus")
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
    """Write config.json and model.safetensors, each atomically.

    Args:
        directory: Folder, created if it does not exist; files of these names are replaced.
        config: Configuration of the network. In the format, every embedded id is also scored.
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
    complement = config.complement
    fields = {
        "architectures": ["CaduceusForMaskedLM"],
        "model_type": "caduceus",
        "d_model": config.d_model,
        "n_layer": config.n_layer,
        "vocab_size": config.num_embeddings,
        "pad_vocab_size_multiple": 1,
        "residual_in_fp32": True,
        "bidirectional": True,
        "bidirectional_strategy": config.combine,
        "bidirectional_weight_tie": config.tied,
        "rcps": config.variant == "ps",
        "complement_map": None if complement is None else dict(enumerate(complement)),
    }
    write_folder(directory, {**fields, **_mixer_and_norm_fields(config)}, tensors)


def _mixer_and_norm_fields(config: CaduceusConfig) -> dict[str, object]:
    norm = {
        "rms_norm": config.norm == "rms",
        "norm_epsilon": config.norm_eps,
        "fused_add_norm": config.swap_strands,
    }
    kinds = _SSM_FIELDS if config.mamba.mixer == "mamba" else _SSD_FIELDS
    ssm = {name: getattr(config.mamba, name) for name in kinds}
    if config.mamba.mixer == "mamba":
        return {"ssm_cfg": ssm, **norm}
    mamba = {"version": "v2", "ssm_cfg": ssm, "mlp_cfg": None}
    return {"layer_cfg": {"mode": "mamba-only", "mamba_cfg": mamba}, "norm_cfg": norm}


def hub_names(name: str, config: CaduceusConfig) -> tuple[str, ...]:
    """List the published names of a parameter; a tied one has several.

    Args:
        name: A key of ``Caduceus.state_dict()``.
        config: Configuration of the network, which determines how modules are nested.
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
    """Return the stored tensor of a parameter, which must be the same under all stored names."""
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

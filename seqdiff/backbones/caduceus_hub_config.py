"""The fields of a published Caduceus's config.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

from .caduceus_config import CaduceusConfig
from .hub_files import WITHOUT_EFFECT, check_fields, read_json
from .layers import require_positive
from .mamba import Combine, MambaConfig

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
# These shape only the initial weights that the file replaces. The residual stream is in float32
# whenever the weights are, and the fast path computes the same function.
_WITHOUT_EFFECT = WITHOUT_EFFECT | {"initializer_cfg", "residual_in_fp32"}
_SSM_WITHOUT_EFFECT = {"dt_init", "dt_scale", "use_fast_path"}


def parse_config(path: Path) -> CaduceusConfig:
    """Read config.json; every id is both embedded and scored.

    Args:
        path: The file.

    Raises:
        ValueError: If it is not JSON, or a field is missing, unknown, of the wrong type, or asks
            for what ``Caduceus`` does not do.
    """
    fields = cast(dict, read_json(path))
    check_fields(str(path), "a Caduceus", fields, _FIELDS, _OPTIONAL, _WITHOUT_EFFECT)
    ssm = fields.get("ssm_cfg") or {}
    check_fields(f"{path} ssm_cfg", "a Caduceus", ssm, {}, _SSM_FIELDS, _SSM_WITHOUT_EFFECT)
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
        mamba=_mamba_config(ssm),
    )


def format_config(config: CaduceusConfig) -> str:
    """Describe a network as the text of config.json, where every embedded id is scored.

    Args:
        config: The network.
    """
    mamba = config.mamba
    complement = config.complement
    fields = {
        "architectures": ["CaduceusForMaskedLM"],
        "model_type": "caduceus",
        "d_model": config.d_model,
        "n_layer": config.n_layer,
        "vocab_size": config.num_embeddings,
        "pad_vocab_size_multiple": 1,
        "ssm_cfg": {name: getattr(mamba, name) for name in _SSM_FIELDS},
        "rms_norm": config.norm == "rms",
        "norm_epsilon": config.norm_eps,
        "residual_in_fp32": True,
        "fused_add_norm": config.swap_strands,
        "bidirectional": True,
        "bidirectional_strategy": config.combine,
        "bidirectional_weight_tie": config.tied,
        "rcps": config.variant == "ps",
        "complement_map": None if complement is None else dict(enumerate(complement)),
    }
    return json.dumps(fields, indent=2) + "\n"


def _mamba_config(ssm: Mapping[str, object]) -> MambaConfig:
    used = {name: value for name, value in ssm.items() if name in _SSM_FIELDS}
    floats = {k: float(cast(float, v)) for k, v in used.items() if float in _SSM_FIELDS[k]}
    return replace(MambaConfig(), **{**used, **floats})


def _padded(vocab_size: int, multiple: int) -> int:
    require_positive("Caduceus", "pad_vocab_size_multiple", multiple)
    return -(-vocab_size // multiple) * multiple


def _complement(
    path: Path, mapping: Mapping[str, object] | None, vocab_size: int
) -> tuple[int, ...] | None:
    """Read a map whose keys are numbers as strings, in any order; padding is its own complement."""
    if mapping is None:
        return None
    numbers = {int(k): v for k, v in mapping.items() if k.isdecimal()}
    values = [v for _, v in sorted(numbers.items()) if isinstance(v, int)]
    if sorted(numbers) != list(range(len(mapping))) or len(values) != len(mapping):
        raise ValueError(
            f"{path} complement_map must map each id 0..{len(mapping) - 1} to an id, got {mapping}"
        )
    return (*values, *range(len(values), vocab_size))

"""Published Caduceus folders: written files are read back, and mismatches are reported."""

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from seqdiff.backbones import Caduceus
from seqdiff.backbones.caduceus.hub import hub_names, read_config
from seqdiff.types import Inputs

COMPLEMENT = (0, 1, 2, 6, 5, 4, 3, 7)
BLOCK = "caduceus.backbone.layers.1."
TOKENS = torch.arange(8).repeat(2, 2)


def build(**options: object) -> Caduceus:
    torch.manual_seed(0)
    sizes = {"num_embeddings": 8, "num_logits": 8, "complement": COMPLEMENT, "d_state": 4}
    return Caduceus(6, 2, **{**sizes, **options})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    build(variant="ps").to_hub(tmp_path)
    return tmp_path


def edit_config(folder: Path, **fields: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def edit_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def assert_refused(folder: Path, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        Caduceus.from_hub(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("mixer", "tied", "combine", "norm", "biases", "strands"),
    list(
        product(
            ["mamba", "ssd"],
            [True, False],
            ["add", "ew_multiply"],
            ["rms", "layer"],
            [(True, False), (False, True)],
            [("ph", False), ("ps", False), ("ps", True)],
        )
    ),
)
def test_round_trip(
    tmp_path: Path,
    mixer: str,
    tied: bool,
    combine: str,
    norm: str,
    biases: tuple[bool, bool],
    strands: tuple[str, bool],
) -> None:
    model = build(
        mixer=mixer,
        tied=tied,
        combine=combine,
        norm=norm,
        conv_bias=biases[0],
        bias=biases[1],
        variant=strands[0],
        swap_strands=strands[1],
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.to_hub(tmp_path / "new")
    again = Caduceus.from_hub(tmp_path / "new")
    assert again.config == model.config
    assert torch.equal(again(Inputs(TOKENS)), model(Inputs(TOKENS)))
    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == [
        "config.json",
        "model.safetensors",
    ]


def test_a_head_that_scores_fewer_ids_reads_back_with_all(tmp_path: Path) -> None:
    model = build(num_logits=7)
    model.to_hub(tmp_path)
    torch.testing.assert_close(
        Caduceus.from_hub(tmp_path)(Inputs(TOKENS))[..., :7], model(Inputs(TOKENS))
    )


@pytest.mark.parametrize(
    ("variant", "swap", "name", "published"),
    [
        ("ph", False, "layers.1.norm.weight", BLOCK + "norm.weight"),
        ("ps", False, "layers.1.norm.weight", BLOCK + "norm.submodule.weight"),
        ("ps", True, "layers.1.norm.weight", BLOCK + "norm.weight"),
        ("ps", False, "norm.bias", "caduceus.backbone.norm_f.submodule.bias"),
        ("ps", True, "norm.bias", "caduceus.backbone.norm_f.bias"),
        ("ph", False, "layers.1.mixer.fwd.conv_bias", BLOCK + "mixer.mamba_fwd.conv1d.bias"),
        ("ps", True, "layers.1.mixer.rev.A_log", BLOCK + "mixer.submodule.mamba_rev.A_log"),
    ],
)
def test_published_names(variant: str, swap: bool, name: str, published: str) -> None:
    config = build(variant=variant, swap_strands=swap, norm="layer").config
    assert hub_names(name, config) == (published,)


def test_names_of_what_is_tied() -> None:
    name, sides = "layers.1.mixer.out_proj.weight", ("fwd", "rev")
    published = tuple(f"{BLOCK}mixer.mamba_{side}.out_proj.weight" for side in sides)
    assert hub_names(name, build().config) == published
    untied = build(tied=False).config
    assert hub_names(name, untied) == published[:1]
    assert hub_names("layers.1.mixer.out_proj_rev.weight", untied) == published[1:]
    embeddings = "caduceus.backbone.embeddings.word_embeddings"
    assert hub_names("embedding.weight", untied) == (f"{embeddings}.weight", "lm_head.weight")


def test_fields_of_other_software_and_of_initialisation_change_nothing(folder: Path) -> None:
    wanted = Caduceus.from_hub(folder)(Inputs(TOKENS))
    ssm = json.loads((folder / "config.json").read_text())["ssm_cfg"]
    edit_config(
        folder,
        transformers_version="4.38.1",
        torch_dtype="float32",
        residual_in_fp32=False,
        initializer_cfg={"initializer_range": 0.02},
        ssm_cfg={**ssm, "dt_init": "random", "dt_scale": 1.0, "use_fast_path": True},
    )
    assert torch.equal(Caduceus.from_hub(folder)(Inputs(TOKENS)), wanted)


def test_a_missing_folder_or_file(folder: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere.config\.json does not exist; give the"):
        Caduceus.from_hub(folder / "nowhere")
    (folder / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"model\.safetensors does not exist"):
        Caduceus.from_hub(folder)


def test_damaged_files(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-5])
    assert_refused(folder, "is not a complete safetensors file .*download it again")
    (folder / "config.json").write_text('{"d_model": 6,')
    assert_refused(folder, "is not valid JSON")
    (folder / "config.json").write_text("[]")
    assert_refused(folder, "must hold a JSON object, got a list")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"use_mamba2": True}, "fields that are not supported use_mamba2"),
        ({"ssm_cfg": {"headdim": 64}}, "ssm_cfg .*not supported headdim"),
        (
            {"ssm_cfg": {"layer": "Mamba3"}},
            "ssm_cfg has layer='Mamba3', but .* 'Mamba1' and 'Mamba2'",
        ),
        ({"ssm_cfg": {"layer": "Mamba2", "dt_rank": 4}}, "ssm_cfg .*not supported dt_rank"),
        ({"ssm_cfg": {"layer": "Mamba2", "headdim": 64}}, "inner width .* = 12, got 64; 12 does"),
        ({"bidirectional": False}, "has bidirectional=False, but Caduceus supports only True"),
        ({"tie_word_embeddings": False}, "has tie_word_embeddings=False"),
        ({"model_type": "mamba"}, "has model_type='mamba'"),
        ({"d_model": "6"}, "d_model must be int, got '6'"),
        ({"rcps": 1}, "rcps must be bool, got 1"),
        ({"n_layer": True}, "n_layer must be int, got True"),
        ({"ssm_cfg": {"d_state": None}}, "d_state must be int, got None"),
        ({"bidirectional_strategy": "mean"}, "combine must be one of add, ew_multiply"),
        ({"pad_vocab_size_multiple": 0}, "pad_vocab_size_multiple must be an integer of at least"),
        ({"complement_map": {"0": 0, "2": 1}}, "complement_map must map each id 0..1 to an id"),
        ({"complement_map": {"a": 0}}, "complement_map must map each id 0..0 to an id"),
        ({"complement_map": None}, "complement is needed"),
        ({"complement_map": {}}, "complement_map in config.json"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_a_config_that_does_not_fit(folder: Path, fields: dict[str, object], message: str) -> None:
    edit_config(folder, **fields)
    assert_refused(folder, message)


def test_a_config_with_fields_missing(folder: Path) -> None:
    (folder / "config.json").write_text('{"d_model": 6, "rcps": true}')
    assert_refused(folder, "missing fields n_layer, vocab_size, .*; .* not supported none")


def test_tensors_missing_unexpected_misshapen_or_untied(folder: Path) -> None:
    mixer = BLOCK + "mixer.submodule."

    def rename(tensors: dict[str, torch.Tensor]) -> None:
        tensors["score.weight"] = tensors.pop(mixer + "mamba_fwd.A_log")

    edit_weights(folder, rename)
    assert_refused(folder, rf"missing {mixer}mamba_fwd\.A_log; unexpected score\.weight")
    build(variant="ps").to_hub(folder)
    edit_weights(folder, lambda t: t.update({mixer + "mamba_rev.D": torch.ones(3)}))
    assert_refused(folder, r"mamba_rev\.D must have shape \(12,\) by config.json, got \(3,\)")
    build(variant="ps").to_hub(folder)
    edit_weights(folder, lambda t: t[mixer + "mamba_rev.in_proj.weight"].zero_())
    assert_refused(folder, r"mamba_rev\.in_proj\.weight must equal .*mamba_fwd.*tied")
    build(variant="ps").to_hub(folder)
    edit_weights(folder, lambda t: t["lm_head.complement_map"].zero_())
    assert_refused(folder, r"lm_head\.complement_map other than complement_map in config\.json")


def test_weights_of_the_other_convention_do_not_load(folder: Path) -> None:
    edit_config(folder, fused_add_norm=True)
    assert_refused(folder, r"missing .*norm\.weight.*; unexpected .*norm\.submodule\.weight")


def test_a_failed_write_leaves_the_old_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def full(path: Path, content: bytes) -> int:
        with path.open("wb") as file:
            file.write(content[: len(content) // 2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        build(variant="ps", tied=False).to_hub(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


# Networks with the mixer of Mamba-2, in the format of PlantCAD2


def general_fields() -> dict[str, object]:
    """Some of the fields that the transformers library adds to every part of a configuration."""
    return {"add_cross_attention": False, "bad_words_ids": None, "model_type": "", "top_k": 50}


def plantcad_config(**ssm: object) -> dict:
    """The fields of config.json as PlantCAD2 has them, for a network of width 8 and 2 layers."""
    mamba = {"version": "v2", "ssm_cfg": {"d_state": 4, "headdim": 8, **ssm}, "mlp_cfg": None}
    return {
        "architectures": ["CaduceusForMaskedLM"],
        "auto_map": {"AutoConfig": "configuration_caduceus.CaduceusConfig"},
        "model_type": "caduceus",
        "d_model": 8,
        "n_layer": 2,
        "vocab_size": 7,
        "pad_vocab_size_multiple": 8,
        "complement_map": {str(i): c for i, c in enumerate(COMPLEMENT[:7])},
        "rcps": True,
        "bidirectional": True,
        "bidirectional_strategy": "add",
        "bidirectional_weight_tie": True,
        "gradient_checkpointing_stride": 1,
        "initializer_cfg": {"initializer_range": 0.02, **general_fields()},
        "layer_cfg": {
            "mode": "mamba-only", "mamba_cfg": {**mamba, **general_fields()}, **general_fields()
        },
        "norm_cfg": {
            "fused_add_norm": True, "rms_norm": True, "norm_epsilon": 1e-5, **general_fields()
        },
        "residual_in_fp32": True,
        "torch_dtype": "float32",
        "transformers_version": "4.49.0",
    }  # fmt: skip


def plantcad_weights() -> dict[str, torch.Tensor]:
    """Weights by the names of the Caduceus folders and of mamba_ssm's Mamba2; 16 channels."""
    torch.manual_seed(1)
    embedding = torch.randn(8, 8)
    complement = torch.tensor(COMPLEMENT)
    backbone = "caduceus.backbone."
    tensors = {
        f"{backbone}embeddings.word_embeddings.embedding.weight": embedding,
        f"{backbone}embeddings.word_embeddings.complement_map": complement,
        "lm_head.lm_head.weight": embedding,
        "lm_head.complement_map": complement,
        f"{backbone}norm_f.weight": torch.rand(8) + 0.5,
    }
    for layer in range(2):
        block = f"{backbone}layers.{layer}."
        tensors[f"{block}norm.weight"] = torch.rand(8) + 0.5
        tied = {"in_proj.weight": torch.randn(42, 8), "out_proj.weight": torch.randn(8, 16)}
        for side in ("fwd", "rev"):
            own = {
                "conv1d.weight": torch.randn(24, 1, 4),
                "conv1d.bias": torch.randn(24),
                "dt_bias": torch.randn(2) - 2,
                "A_log": torch.randn(2),
                "D": torch.randn(2),
                "norm.weight": torch.rand(16) + 0.5,
            }
            mixer = f"{block}mixer.submodule.mamba_{side}."
            tensors |= {mixer + name: tensor for name, tensor in {**own, **tied}.items()}
    return {name: tensor.clone() for name, tensor in tensors.items()}


@pytest.fixture
def plantcad(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(plantcad_config()))
    save_file(plantcad_weights(), tmp_path / "model.safetensors")
    return tmp_path


def test_a_plantcad_folder_loads_every_weight(plantcad: Path) -> None:
    model = Caduceus.from_hub(plantcad)
    config = model.config
    assert (config.mamba.mixer, config.mamba.headdim, config.mamba.d_state) == ("ssd", 8, 4)
    assert config.variant == "ps" and config.tied and config.swap_strands
    stored, unread = plantcad_weights(), set(plantcad_weights())
    for name, parameter in model.state_dict().items():
        for hub in hub_names(name, config):
            assert torch.equal(parameter.flatten(), stored[hub].flatten()), hub
            unread.remove(hub)
    assert all(name.endswith("complement_map") for name in unread) and len(unread) == 2
    twin = Caduceus.of(config, backend="reference")
    twin.load_state_dict(model.state_dict())
    tokens = TOKENS % 7
    torch.testing.assert_close(model(Inputs(tokens)), twin(Inputs(tokens)), atol=1e-4, rtol=1e-4)
    complement = torch.tensor(COMPLEMENT)
    turned = model(Inputs(complement[tokens.flip(1)])).flip(1)[..., complement]
    torch.testing.assert_close(turned, model(Inputs(tokens)), atol=1e-4, rtol=1e-4)
    model.to_hub(plantcad / "again")
    assert json.loads((plantcad / "again" / "config.json").read_text())["layer_cfg"]["mamba_cfg"]
    written = load_file(plantcad / "again" / "model.safetensors")
    assert written.keys() == stored.keys()
    assert all(torch.equal(written[name], tensor) for name, tensor in stored.items())


def test_the_flat_form_is_the_same_network(plantcad: Path) -> None:
    wanted = Caduceus.from_hub(plantcad)
    fields = plantcad_config()
    ssm = fields.pop("layer_cfg")["mamba_cfg"]["ssm_cfg"]
    norm = {k: v for k, v in fields.pop("norm_cfg").items() if k not in general_fields()}
    flat = {**fields, **norm, "ssm_cfg": {"layer": "Mamba2", "chunk_size": 256, **ssm}}
    (plantcad / "config.json").write_text(json.dumps(flat))
    found = Caduceus.from_hub(plantcad)
    assert found.config == wanted.config
    assert torch.equal(found(Inputs(TOKENS)), wanted(Inputs(TOKENS)))
    (plantcad / "config.json").write_text(
        json.dumps({**flat, "ssm_cfg": {**flat["ssm_cfg"], "layer": "Mamba1"}})
    )
    assert_refused(plantcad, "fields that are not supported chunk_size, headdim")


def test_sizes_that_a_folder_leaves_out_are_those_of_mamba_ssm(tmp_path: Path) -> None:
    fields = plantcad_config()
    fields["d_model"], fields["layer_cfg"]["mamba_cfg"]["ssm_cfg"] = 32, None
    (tmp_path / "config.json").write_text(json.dumps(fields))
    mamba = read_config(tmp_path).mamba
    assert (mamba.d_state, mamba.headdim, mamba.expand, mamba.d_conv) == (128, 64, 2, 4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t, b: t.pop(f"{b}mamba_rev.norm.weight"), r"missing .*mamba_rev\.norm\.weight;"),
        (lambda t, b: t.pop(f"{b}mamba_fwd.dt_bias"), r"missing .*mamba_fwd\.dt_bias;"),
        (
            lambda t, b: t.update({f"{b}mamba_fwd.x_proj.weight": torch.ones(2)}),
            r"missing none; unexpected .*mamba_fwd\.x_proj\.weight",
        ),
        (
            lambda t, b: t.update({f"{b}mamba_fwd.A_log": torch.ones(16, 4)}),
            r"mamba_fwd\.A_log must have shape \(2,\) by config.json, got \(16, 4\)",
        ),
        (
            lambda t, b: t.update({f"{b}mamba_fwd.conv1d.weight": torch.ones(16, 1, 4)}),
            r"conv1d\.weight must have shape \(24, 1, 4\)",
        ),
        (
            lambda t, b: t.update({f"{b}mamba_rev.in_proj.weight": torch.ones(42, 8)}),
            r"mamba_rev\.in_proj\.weight must equal .*mamba_fwd.*tied",
        ),
    ],
    ids=["missing norm", "missing dt_bias", "unexpected", "A_log", "conv1d", "untied"],
)
def test_plantcad_weights_that_do_not_fit(plantcad: Path, change, message: str) -> None:
    block = "caduceus.backbone.layers.1.mixer.submodule."
    edit_weights(plantcad, lambda tensors: change(tensors, block))
    assert_refused(plantcad, message)


@pytest.mark.parametrize(
    ("ssm", "message"),
    [
        ({"ngroups": 2}, "ssm_cfg has ngroups=2, but Caduceus supports only 1"),
        ({"norm_before_gate": True}, "ssm_cfg has norm_before_gate=True, but .* only False"),
        ({"rmsnorm": False}, "ssm_cfg has rmsnorm=False"),
        ({"D_has_hdim": True}, "ssm_cfg has D_has_hdim=True"),
        ({"dt_limit": [0.0, 0.1]}, r"ssm_cfg has dt_limit=\[0\.0, 0\.1\]"),
        (
            {"headdim": 5},
            r"Mamba\.headdim must divide the inner width expand \* d_model = 16, got 5",
        ),
        ({"d_state": "4"}, "ssm_cfg d_state must be int, got '4'"),
    ],
)
def test_other_mixers_of_mamba2_are_not_read(plantcad: Path, ssm: dict, message: str) -> None:
    (plantcad / "config.json").write_text(json.dumps(plantcad_config(**ssm)))
    assert_refused(plantcad, message)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("layer_cfg", "mode"), "hybrid", "layer_cfg has mode='hybrid', but .* 'mamba-only'"),
        (("layer_cfg", "mamba_cfg", "mlp_cfg"), {"hidden_features": 8}, "mamba_cfg has mlp_cfg={"),
        (("layer_cfg", "mamba_cfg", "version"), None, "version=None, but .* 'v1' or 'v2'"),
        (
            ("layer_cfg", "mamba_cfg"),
            None,
            "must have objects layer_cfg, layer_cfg.mamba_cfg and n",
        ),
        (("layer_cfg", "mamba_cfg", "ssm_cfg"), [4], r"ssm_cfg must be dict or null, got \[4\]"),
        (("norm_cfg",), [], "must have objects layer_cfg, layer_cfg.mamba_cfg and norm_cfg"),
        (("norm_cfg", "rms_norm"), 1, "rms_norm must be bool, got 1"),
    ],
)
def test_a_plantcad_config_that_does_not_fit(
    plantcad: Path, path: tuple[str, ...], value: object, message: str
) -> None:
    fields = plantcad_config()
    part = fields
    for name in path[:-1]:
        part = part[name]
    part[path[-1]] = value
    (plantcad / "config.json").write_text(json.dumps(fields))
    assert_refused(plantcad, message)

"""Published Caduceus folders: written files are read back, and mismatches are reported."""

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from seqdiff.backbones import Caduceus
from seqdiff.backbones.caduceus.hub import hub_names
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
    ("tied", "combine", "norm", "biases", "strands"),
    list(
        product(
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
    tied: bool,
    combine: str,
    norm: str,
    biases: tuple[bool, bool],
    strands: tuple[str, bool],
) -> None:
    model = build(
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

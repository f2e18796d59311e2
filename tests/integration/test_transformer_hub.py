"""Published MDLM and BD3-LM folders: written files are read back, and mismatches are reported."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from seqdiff.backbones import Transformer
from seqdiff.backbones.transformer.hub import BlockDiffusionFields
from seqdiff.backbones.transformer.packing import Padded
from seqdiff.types import Inputs
from tests.small_transformers import K, build, draw_tokens

TOKENS = draw_tokens(2, 7)
SIGMA = torch.tensor([0.5, 1.0])
BLOCK = "backbone.blocks.1."
BOTH = ("weight", "bias")
PUBLISHED = {
    *(f"{BLOCK}{n}.weight" for n in ("norm1", "attn_qkv", "attn_out", "norm2")),
    *(f"{BLOCK}{n}.{k}" for n in ("mlp.0", "mlp.2", "adaLN_modulation") for k in BOTH),
    *(f"backbone.sigma_map.mlp.{n}.{k}" for n in (0, 2) for k in BOTH),
    "backbone.output_layer.norm_final.weight",
    *(f"backbone.output_layer.linear.{k}" for k in BOTH),
    *(f"backbone.output_layer.adaLN_modulation.{k}" for k in BOTH),
    "backbone.vocab_embed.embedding",
    "backbone.rotary_emb.inv_freq",
}


def hub(**options: object) -> Transformer:
    return build(**{"num_logits": K + 1, **options}).float()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    hub().to_hub(tmp_path)
    return tmp_path


def edit_config(folder: Path, **fields: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def edit_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def assert_refused(folder: Path, message: str, kind: type[Exception] = ValueError) -> None:
    with pytest.raises(kind, match=message) as caught:
        Transformer.from_hub(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("timed", [True, False])
@pytest.mark.parametrize("block", [None, BlockDiffusionFields(4, False, "flex", False, 0.3, 0.8)])
def test_round_trip(tmp_path: Path, timed: bool, block: BlockDiffusionFields | None) -> None:
    model = hub(time_conditioned=timed, dropout=0.25)
    model.block_fields = block
    model.to_hub(tmp_path / "new")
    again = Transformer.from_hub(tmp_path / "new")
    assert (again.config, again.block_fields) == (model.config, block)
    assert not again.training, "published logits are those without dropout"
    assert torch.equal(again(Inputs(TOKENS, sigma=SIGMA)), model(Inputs(TOKENS, sigma=SIGMA)))
    assert all(p.requires_grad and not p.is_meta for p in again.parameters())
    kind = json.loads((tmp_path / "new" / "config.json").read_text())["model_type"]
    assert kind == ("mdlm" if block is None else "bd3lm")
    names = {path.name for path in (tmp_path / "new").iterdir()}
    assert names == {"config.json", "model.safetensors"}


def test_names_are_the_published_ones(folder: Path) -> None:
    names = set(load_file(folder / "model.safetensors"))
    assert {n for n in names if "blocks.0." not in n and "blocks.2." not in n} == PUBLISHED
    assert len(names) == len(PUBLISHED) + 2 * sum(n.startswith(BLOCK) for n in PUBLISHED)


def test_the_parts_of_the_projection_are_queries_keys_and_values(folder: Path) -> None:
    """Without values, attention adds nothing; without queries, it is a mean of values."""
    rows = load_file(folder / "model.safetensors")[BLOCK + "attn_qkv.weight"]
    assert rows.shape == (36, 12)
    model = Transformer.from_hub(folder)
    h, places = torch.randn(1, 5, 12), torch.arange(5)
    with torch.no_grad():
        model.blocks[1].attn_qkv.weight[:12] = 0
        mixed = model.blocks[1].attend(h, model._rotary(places), Padded(places))
        wanted = (h @ rows[24:].T).mean(1, keepdim=True) @ model.blocks[1].attn_out.weight.T
    torch.testing.assert_close(mixed, wanted.expand_as(mixed))


def test_a_mask_that_is_not_scored_reads_back_with_the_score_zero(tmp_path: Path) -> None:
    model = hub(num_logits=K)
    model.to_hub(tmp_path)
    again = Transformer.from_hub(tmp_path)(Inputs(TOKENS))
    torch.testing.assert_close(again[..., :K], model(Inputs(TOKENS)))
    assert again.shape[-1] == K + 1 and not again[..., K].any()


def test_half_precision_and_left_out_frequencies_are_read(folder: Path) -> None:
    wanted = Transformer.from_hub(folder)(Inputs(TOKENS))
    edit_weights(folder, lambda tensors: tensors.pop("backbone.rotary_emb.inv_freq"))
    assert torch.equal(Transformer.from_hub(folder)(Inputs(TOKENS)), wanted)
    hub().to_hub(folder)
    edit_weights(folder, lambda t: t.update({k: v.bfloat16() for k, v in t.items()}))
    model = Transformer.from_hub(folder)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    rounded = hub()
    with torch.no_grad():
        for parameter in rounded.parameters():
            parameter.copy_(parameter.bfloat16())
    assert torch.equal(model(Inputs(TOKENS)), rounded(Inputs(TOKENS)))


def test_fields_of_other_software_change_nothing(folder: Path) -> None:
    wanted = Transformer.from_hub(folder)(Inputs(TOKENS))
    edit_config(folder, transformers_version="4.38.1", torch_dtype="float32", return_dict=False)
    edit_config(folder, auto_map={"AutoConfig": "configuration_mdlm.MDLMConfig"})
    assert torch.equal(Transformer.from_hub(folder)(Inputs(TOKENS)), wanted)


def test_missing_files(folder: Path) -> None:
    said = r"nowhere.config\.json does not exist; give the folder of a published MDLM or BD3-LM"
    assert_refused(folder / "nowhere", said, FileNotFoundError)
    weights = folder / "model.safetensors"
    weights.unlink()
    assert_refused(folder, r"model\.safetensors does not exist; give", FileNotFoundError)
    (folder / "pytorch_model.bin").write_bytes(b"\x80")
    said = r"does not exist, only pytorch_model\.bin, which is not read since unpickling can run"
    assert_refused(folder, said, FileNotFoundError)


def test_damaged_files(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-5])
    assert_refused(folder, "is not a complete safetensors file .*download it again")
    (folder / "config.json").write_text('{"model_type": "mdlm",')
    assert_refused(folder, "is not valid JSON")
    (folder / "config.json").write_text("[]")
    assert_refused(folder, "must hold a JSON object, got a list")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model_type": "gpt2"}, "model_type must be one of mdlm, bd3lm, got 'gpt2'; give the fol"),
        ({"model_type": "bd3lm"}, "not describe a BD3LM: missing fields block_size, cross_attn, a"),
        ({"block_size": 4}, "not describe a MDLM: .*fields that are not supported block_size"),
        ({"rope_theta": 1e6}, "fields that are not supported rope_theta"),
        ({"hidden_dim": "12"}, "hidden_dim must be int, got '12'"),
        ({"n_blocks": True}, "n_blocks must be int, got True"),
        ({"dropout": None}, "dropout must be float or int, got None"),
        ({"time_conditioning": 0}, "time_conditioning must be bool, got 0"),
        ({"n_heads": 5}, "d_model must be a multiple of 2 . n_heads = 10"),
        ({"model_length": 0}, "max_length must be an integer of at least 1, got 0"),
        ({"n_blocks": 4}, r"does not fit its config\.json: missing backbone\.blocks\.3\.norm1\.we"),
        ({"n_blocks": 2}, r"missing none; unexpected backbone\.blocks\.2\.adaLN_modulation\.bias"),
        ({"hidden_dim": 16}, r"must have shape \(5, 16\) by config\.json, got \(5, 12\)"),
        ({"vocab_size": 6}, r"vocab_embed\.embedding must have shape \(6, 12\) by config"),
        ({"cond_dim": 7}, r"must have shape \(7, 256\) by config\.json, got \(6, 256\)"),
        ({"n_heads": 3}, r"inv_freq must have shape \(2,\) by config\.json, got \(3,\)"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_a_config_that_does_not_fit(folder: Path, fields: dict[str, object], message: str) -> None:
    edit_config(folder, **fields)
    assert_refused(folder, message)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"causal": True}, "has causal=True, but Transformer supports only False"),
        ({"adaln": False}, "has adaln=False, but Transformer supports only True"),
        ({"block_size": 0}, "block_size must be an integer of at least 1, got 0"),
        ({"var_min": None}, "var_min must be bool, got None"),
    ],
)
def test_a_block_config_that_does_not_fit(
    tmp_path: Path, fields: dict[str, object], message: str
) -> None:
    model = hub()
    model.block_fields = BlockDiffusionFields(4)
    model.to_hub(tmp_path)
    edit_config(tmp_path, **fields)
    assert_refused(tmp_path, message)


def test_tensors_missing_unexpected_or_of_another_rotation(folder: Path) -> None:
    def rename(tensors: dict[str, torch.Tensor]) -> None:
        tensors["score.weight"] = tensors.pop(BLOCK + "attn_out.weight")

    edit_weights(folder, rename)
    assert_refused(folder, rf"missing {BLOCK}attn_out\.weight; unexpected score\.weight")
    hub().to_hub(folder)
    weights = load_file(folder / "model.safetensors")
    bare = {name.removeprefix("backbone."): tensor for name, tensor in weights.items()}
    save_file(bare, folder / "model.safetensors")
    assert_refused(folder, r"missing backbone\.vocab_embed\.embedding.*; unexpected blocks\.0")
    hub().to_hub(folder)
    edit_weights(folder, lambda t: t["backbone.rotary_emb.inv_freq"].mul_(0.5))
    assert_refused(folder, "inv_freq must be those of base 10000, which alone is supported, got")


SHARES = {"sampling_eps_min": 0.3, "sampling_eps_max": 0.8}


def test_shares_of_masks_are_kept_where_the_noise_was_chosen(tmp_path: Path) -> None:
    model = hub()
    model.block_fields = BlockDiffusionFields(4, var_min=True, **SHARES)
    model.to_hub(tmp_path)
    written = load_file(tmp_path / "model.safetensors")
    assert {n: float(t) for n, t in written.items() if n in SHARES} == pytest.approx(SHARES)
    assert all(written[name].shape == () for name in SHARES)
    edit_weights(tmp_path, lambda tensors: tensors["sampling_eps_min"].fill_(0.5))
    again = Transformer.from_hub(tmp_path)
    assert again.block_fields == BlockDiffusionFields(4, True, "sdpa", True, 0.5, 0.8)
    assert torch.equal(again(Inputs(TOKENS, sigma=SIGMA)), model(Inputs(TOKENS, sigma=SIGMA)))
    edit_weights(tmp_path, lambda tensors: [tensors.pop(name) for name in SHARES])
    assert Transformer.from_hub(tmp_path).block_fields == model.block_fields
    edit_weights(tmp_path, lambda tensors: tensors.update(sampling_eps_max=torch.ones(2)))
    assert_refused(tmp_path, r"sampling_eps_max must have shape \(\) by config\.json, got \(2,\)")
    edit_weights(tmp_path, lambda tensors: tensors.update(sampling_eps_max=torch.tensor(1.0)))
    edit_config(tmp_path, var_min=False)
    assert_refused(tmp_path, "missing none; unexpected sampling_eps_max$")
    model.block_fields = None
    model.to_hub(tmp_path)
    assert not SHARES.keys() & load_file(tmp_path / "model.safetensors").keys()
    edit_weights(tmp_path, lambda tensors: tensors.update(sampling_eps_max=torch.tensor(1.0)))
    assert_refused(tmp_path, "missing none; unexpected sampling_eps_max$")


def test_classes_have_no_place_in_the_format(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^Transformer\.to_hub must be given a network without"):
        hub(num_classes=2).to_hub(tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_failed_write_leaves_the_old_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def full(path: Path, content: bytes) -> int:
        with path.open("wb") as file:
            file.write(content[: len(content) // 2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        hub(seed=1).to_hub(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before

"""Weights with a NaN, an infinity, huge values or another type: no command writes a result."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from seqdiff.backbones import first_broken, hub
from seqdiff.training.weights import check_weights, encode_weights

COMMANDS = {
    "sample": "sample RUN --num 2 --length 12 --out out.fa",
    "score": "score RUN a.fa --out out.tsv",
    "variants": "variants RUN --vcf a.vcf --fasta a.fa --out out.tsv",
    "ism": "ism RUN --fasta a.fa --out out.npz",
    "embed": "embed RUN --fasta a.fa --out out.npz",
    "evaluate": "evaluate RUN --json out.json",
}


def change(path: Path, edit: Callable[[Tensor], Tensor]) -> str:
    """Change the largest matrix of a file of weights, and return its name."""
    with safe_open(path, "pt") as opened:
        metadata = opened.metadata()
    weights = load_file(path)
    name = max(weights, key=lambda name: weights[name].numel())
    weights[name] = edit(weights[name])
    save_file(weights, path, metadata=metadata)
    return name


def put(value: float) -> Callable[[Tensor], Tensor]:
    def edit(weight: Tensor) -> Tensor:
        weight = weight.clone()
        weight.view(-1)[weight.numel() // 2] = value
        return weight

    return edit


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("damage", ["nan", "huge", "large"])
def test_no_command_writes_a_result(
    folder: Path, command: str, damage: str, fails, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A NaN and a huge number are found when weights are read, smaller ones in a result."""
    path = folder / "RUN" / "model.safetensors"
    if damage == "large":
        monkeypatch.setattr(hub, "_LARGEST_WEIGHT", float("inf"))
        name = change(path, lambda weight: weight * 1e38)
    else:
        name = change(path, put(float("nan") if damage == "nan" else 1e30))
    before = sorted(folder.rglob("*"))
    message = fails(COMMANDS[command].split())
    assert sorted(folder.rglob("*")) == before
    if damage == "large":
        assert "must give finite" in message
    else:
        got = "1 NaN or inf" if damage == "nan" else "1 beyond ±1e+09"
        wanted = f"{Path('RUN/model.safetensors')} must hold finite numbers of usual size, got "
        assert wanted + got in message and name in message


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (put(float("inf")), "must hold finite numbers of usual size, got 1 NaN or inf of "),
        (put(-float("inf")), "must hold finite numbers of usual size, got 1 NaN or inf of "),
        (put(-2e9), "must hold finite numbers of usual size, got 1 beyond ±1e+09 of "),
        (lambda weight: weight.to(torch.int32), "of torch.int32, not torch.float32"),
        (lambda weight: weight.to(torch.bool), "of torch.bool, not torch.float32"),
    ],
)
@pytest.mark.parametrize("words", ["score RUN a.fa", "train RUN/run.yaml --start_from RUN"])
def test_what_weights_hold(folder: Path, edit, said: str, words: str, fails) -> None:
    """Both where a run is opened and where another one starts from it."""
    change(folder / "RUN" / "model.safetensors", edit)
    output = ["--output=new"] if words.startswith("train") else []
    assert said in fails([*words.split(), *output])
    assert not (folder / "new").exists()


@pytest.mark.parametrize("value", [torch.nan, 1e30])
@pytest.mark.parametrize("part", ["state_dict", "average", "exp_avg"])
def test_checkpoints_with_a_nan_do_not_resume(folder: Path, part: str, value: float, fails) -> None:
    """In the weights, in their average and in the optimizer's moments."""
    path = folder / "RUN" / "last.ckpt"
    content = torch.load(path, weights_only=True)
    if part == "state_dict":
        tensors = content["state_dict"]
    elif part == "average":
        tensors = {k: v for k, v in content["callbacks"]["EMA"].items() if k.startswith("average.")}
    else:
        tensors = content["optimizer_states"][0]["state"][0]
    name = next(name for name in reversed(tensors) if tensors[name].numel() > 1)
    tensors[name].view(-1)[0] = value
    torch.save(content, path)
    message = fails(["train", "--resume", "RUN", "--trainer.max_steps=2"])
    got = "1 beyond ±1e+09" if value == 1e30 else "1 NaN or inf"
    assert f"got {got} of {tensors[name].numel():,} in " in message


def test_other_numbers_of_a_checkpoint_are_checked(folder: Path, fails) -> None:
    path = folder / "RUN" / "last.ckpt"
    content = torch.load(path, weights_only=True)
    content["callbacks"]["EMA"]["num_updates"].fill_(-5)
    torch.save(content, path)
    resume = ["train", "--resume", "RUN", "--trainer.max_steps=2"]
    assert "must hold callbacks.EMA.num_updates of at least 0, got less" in fails(resume)
    content["callbacks"]["EMA"]["num_updates"].fill_(1)
    states = content["optimizer_states"][0]["state"]
    number = next(n for n, state in states.items() if "exp_avg_sq" in state)  # others are Muon's
    states[number]["exp_avg_sq"].view(-1)[0] = -1
    torch.save(content, path)
    assert f"must hold optimizer_states.0.state.{number}.exp_avg_sq of at least 0" in fails(resume)


def test_averages_with_a_nan_are_not_exported() -> None:
    """Parameters are checked elsewhere; their average may overflow alone."""
    weights = {"a": torch.ones(3), "b": torch.tensor([1.0, torch.inf])}
    with pytest.raises(FloatingPointError, match="got 1 NaN or inf of 2 in b; nothing was export"):
        encode_weights(weights, "tokens", "model")
    assert encode_weights({"a": weights["a"]}, "tokens", "model")


def test_integers_and_other_precisions() -> None:
    """Half-precision weights load; integer tensors have their own type."""
    expected = {"a": torch.zeros(2), "n": torch.tensor(0)}
    check_weights("file", expected, {"a": torch.zeros(2).bfloat16(), "n": torch.tensor(1)})
    with pytest.raises(ValueError, match=r"got n of torch\.int32, not torch\.int64"):
        check_weights("file", expected, {"a": torch.zeros(2), "n": torch.tensor(1).int()})
    assert first_broken({"n": torch.tensor(1), "other": "text", "a": torch.zeros(2)}) is None

"""The noise of samples is determined by the seed, the weights and the tokenizer of a run."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from seqdiff.cli.app import main
from seqdiff.denoiser.discrete import Denoiser
from seqdiff.run import load, loading
from seqdiff.training.weights import encode_weights, weights_digest
from tests.integration.conftest import override

NUM, LENGTH = 400, 12


def samples(run: Path, out: Path, *flags: str) -> np.ndarray:
    command = ["sample", str(run), f"--num={NUM}", f"--length={LENGTH}", "--seed=1"]
    assert main(override([*command, "--out", str(out)], *flags)) == 0
    return np.array([list(line.split()[1]) for line in out.read_text().splitlines()])


@pytest.fixture
def nearly(trained: Path, tmp_path: Path) -> Path:
    """The same run with a change of weights that is too small to change its samples."""
    copy = tmp_path / "nearly"
    shutil.copytree(trained, copy)
    path, run = copy / "model.safetensors", load(trained)
    weights = {name: weight * (1 + 1e-5) for name, weight in load_file(path).items()}
    path.write_bytes(encode_weights(weights, run.tokenizer.fingerprint, run.denoiser.description))
    return copy


@pytest.mark.usefixtures("toy_writer")
def test_two_models_have_independent_noise_at_one_seed(
    trained: Path, nearly: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many letters agree as between different sequences, which share no noise.

    The standard error of the agreement is that of the means of 400 sequences, and the false-alarm
    rate is below 1e-6. In the broken twin, whose noise depends on the seed only, nearly all letters
    agree.
    """
    first, second = samples(trained, tmp_path / "a.ring"), samples(nearly, tmp_path / "b.ring")
    agreement = (first == second).mean(axis=1)
    shifted = [(first == np.roll(second, shift, axis=0)).mean() for shift in range(1, NUM)]
    error = agreement.std(ddof=1) / np.sqrt(NUM)
    assert abs(agreement.mean() - np.mean(shifted)) < 5 * error
    assert np.mean(shifted) < 0.5
    with monkeypatch.context() as patch:
        patch.setattr(loading, "weights_digest", lambda weights: "")
        first, second = samples(trained, tmp_path / "a.ring"), samples(nearly, tmp_path / "b.ring")
        assert (first == second).mean() > 0.95


@pytest.mark.usefixtures("toy_writer")
def test_a_run_draws_the_same_wherever_it_lies(trained: Path, tmp_path: Path) -> None:
    first = samples(trained, tmp_path / "a.ring")
    assert (samples(trained, tmp_path / "b.ring", "--batch_size=7") == first).all()
    shutil.copytree(trained, tmp_path / "copy")
    assert (samples(tmp_path / "copy", tmp_path / "c.ring") == first).all()
    path = tmp_path / "copy" / "model.safetensors"
    run = load(trained)
    rewritten = encode_weights(
        dict(reversed(load_file(path).items())),
        run.tokenizer.fingerprint,
        run.denoiser.description,
    )
    path.write_bytes(rewritten)
    assert (samples(tmp_path / "copy", tmp_path / "d.ring") == first).all()
    assert (samples(trained, tmp_path / "e.ring", "--seed=2") != first).any()


def test_what_the_seeds_follow_from(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = load(trained)
    seeds = run.row_seeds(8, 3)
    assert len(set(seeds.tolist())) == 8
    assert torch.equal(run.row_seeds(5, 3), seeds[:5]), "more sequences begin with the same"
    wrapped = Denoiser(run.denoiser.backbone, run.process)
    assert torch.equal(replace(run, denoiser=wrapped).row_seeds(8, 3), seeds), "as guidance does"
    others = [run.row_seeds(8, 4), replace(run, digest="other").row_seeds(8, 3)]
    monkeypatch.setattr(type(run.tokenizer), "fingerprint", "other")
    others.append(run.row_seeds(8, 3))
    for other in others:
        assert not set(other.tolist()) & set(seeds.tolist())


def test_a_digest_is_of_names_types_shapes_and_values() -> None:
    weights = {"a": torch.arange(6.0), "b": torch.tensor(1, dtype=torch.bfloat16)}
    digest = weights_digest(weights)
    assert weights_digest(dict(reversed(list(weights.items())))) == digest
    for name, changed in (
        ("a", weights["a"].reshape(2, 3)),
        ("a", weights["a"].view(torch.int32)),
        ("a", weights["a"] + torch.tensor([0, 0, 0, 0, 0, 1e-6])),
        ("b", torch.tensor(1.0)),
    ):
        assert weights_digest({**weights, name: changed}) != digest
    assert weights_digest({"a": weights["a"], "c": weights["b"]}) != digest

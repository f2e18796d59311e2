"""The published losses, to 1e-8 in float64."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from seqdiff.losses import d3pm_nelbo, discrete_nelbo, nelbo, score_entropy
from seqdiff.parameterization import subs_log_probs
from seqdiff.process import MaskedDiffusion
from seqdiff.schedules import Linear, LogLinear
from seqdiff.score_parameterization import d3pm_log_probs, sedd_log_score, subs_log_score


@dataclass
class Published:
    tensors: dict[str, Tensor]
    num_steps: int
    schedule: LogLinear
    process: MaskedDiffusion

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    @property
    def s(self) -> Tensor:
        return self["t"] - 1 / self.num_steps

    @property
    def sigma(self) -> Tensor:
        return self.schedule.sigma(self["t"])


@pytest.fixture(scope="module")
def published(golden: Path) -> Published:
    with safe_open(golden / "mdlm_losses.safetensors", "pt") as file:
        config = json.loads(file.metadata()["config"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}
    process = MaskedDiffusion(config["vocab_size"] - 1, Linear())
    return Published(tensors, config["T"], LogLinear(config["loglinear_eps"]), process)


def assert_close(ours: Tensor, theirs: Tensor, rtol: float = 0.0) -> None:
    """Compare where theirs is finite: it writes -1e6 where ours is -inf."""
    finite = theirs > -1e5
    torch.testing.assert_close(ours[finite], theirs[finite], atol=1e-8, rtol=rtol)
    assert (ours[~finite] == -torch.inf).all()


def subs(published: Published) -> Tensor:
    return subs_log_probs(published["logits"][..., :-1], published["xt"])


def test_loglinear_noise(published: Published) -> None:
    assert_close(published.sigma, published["sigma_loglinear"])
    assert_close(published.schedule.dsigma(published["t"]), published["dsigma_loglinear"])


def test_subs_log_probs(published: Published) -> None:
    assert_close(subs(published), published["subs_log_probs"][..., :-1])


def test_continuous_nelbo(published: Published) -> None:
    terms = nelbo(
        subs(published), published["x0"], published["xt"], published["t"], published.schedule
    )
    assert_close(terms, published["subs_continuous_nelbo_terms"])


def test_discrete_nelbo(published: Published) -> None:
    x0, x_t, t = published["x0"], published["xt"], published["t"]
    terms = discrete_nelbo(subs(published), x0, x_t, published.s, t, published.process)
    assert_close(published.num_steps * terms, published["d3pm_loss_subs_T20"])


def test_d3pm(published: Published) -> None:
    log_probs = d3pm_log_probs(published["logits"])
    assert_close(log_probs, published["d3pm_log_probs"])
    x0, x_t, t = published["x0"], published["xt"], published["t"]
    terms = d3pm_nelbo(log_probs, x0, x_t, published.s, t, published.process)
    assert_close(published.num_steps * terms, published["d3pm_loss_d3pm_T20"])


def test_sedd(published: Published) -> None:
    log_score = sedd_log_score(published["logits"], published["xt"], published.sigma)
    assert_close(log_score, published["sedd_log_score"])
    entropy = score_entropy(log_score, published["x0"], published["xt"], published.sigma)
    rounded = published["sedd_score_entropy"]
    assert torch.equal(rounded, rounded.float().double()), "published through float32"
    assert_close(entropy, rounded, rtol=1e-7)


def test_subs_score(published: Published) -> None:
    log_score = subs_log_score(subs(published), published["xt"], published.sigma)
    assert_close(log_score.exp(), published["subs_score"])


def test_broken_twins_miss(published: Published) -> None:
    x0, x_t, t = published["x0"], published["xt"], published["t"]
    grid = published.process.schedule.alpha
    wrong_step = nelbo(subs(published), x0, x_t, 1 - grid(published.s), published.schedule)
    with pytest.raises(AssertionError):
        assert_close(wrong_step, published["subs_continuous_nelbo_terms"])
    squared = d3pm_nelbo(
        2 * d3pm_log_probs(published["logits"]), x0, x_t, published.s, t, published.process
    )
    with pytest.raises(AssertionError):
        assert_close(published.num_steps * squared, published["d3pm_loss_d3pm_T20"])

"""The published losses, to 1e-8 in float64."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from seqdiff.losses import ctmc_nelbo, discrete_kl, mask_column_kl, score_entropy
from seqdiff.parameterization import MaskColumn, Score, Subs, scores_from_distribution
from seqdiff.process import Absorbing
from seqdiff.schedules import Linear, LogLinear


class Unfinished(Absorbing):
    """The published process keeps a thousandth of the data at t = 1, which our processes refuse."""

    def __post_init__(self) -> None:
        pass


@dataclass
class Published:
    tensors: dict[str, Tensor]
    num_steps: int
    noisy: Absorbing  # of the continuous-time losses
    process: Absorbing  # of the losses of T steps

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    @property
    def t(self) -> Tensor:
        """The time of every position."""
        return self["t"][:, None].expand(self["xt"].shape)

    @property
    def s(self) -> Tensor:
        return self.t - 1 / self.num_steps

    def at_masks(self, term: Callable[..., Tensor], *rows: Tensor) -> Tensor:
        """A loss of masked positions, computed from the input at every position; 0 elsewhere."""
        masked = self["xt"] == self.process.mask_id
        terms = term(*(row[masked] for row in rows))
        return torch.zeros(masked.shape, dtype=terms.dtype).masked_scatter(masked, terms)


@pytest.fixture(scope="module")
def published(golden: Path) -> Published:
    with safe_open(golden / "mdlm_losses.safetensors", "pt") as file:
        config = json.loads(file.metadata()["config"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}
    size = config["vocab_size"] - 1
    noisy = Unfinished(size, LogLinear(config["loglinear_eps"]))
    return Published(tensors, config["T"], noisy, Absorbing(size, Linear()))


def assert_close(ours: Tensor, theirs: Tensor, rtol: float = 0.0) -> None:
    """Compare finite values; theirs are -1e6 where ours are -inf."""
    finite = theirs > -1e5
    torch.testing.assert_close(ours[finite], theirs[finite], atol=1e-8, rtol=rtol)
    assert (ours[~finite] == -torch.inf).all()


def subs(published: Published) -> Tensor:
    return Subs().read(published["logits"][..., :-1], published["xt"], None, published.process)


def mask_column(published: Published) -> Tensor:
    return MaskColumn().read(published["logits"], published["xt"], None, published.process)


def test_loglinear_noise(published: Published) -> None:
    assert_close(published.noisy.sigma(published["t"]), published["sigma_loglinear"])
    assert_close(published.noisy.schedule.dsigma(published["t"]), published["dsigma_loglinear"])


def test_subs_log_probs(published: Published) -> None:
    assert_close(subs(published), published["subs_log_probs"][..., :-1])


def test_continuous_nelbo(published: Published) -> None:
    rows = (subs(published), published["x0"], published["xt"], published.t)
    density = partial(ctmc_nelbo, process=published.noisy)
    assert_close(published.at_masks(density, *rows), published["subs_continuous_nelbo_terms"])
    assert_close(density(*rows), published["subs_continuous_nelbo_terms"])

    def weighted(log_probs: Tensor, x0: Tensor, t: Tensor) -> Tensor:
        at_x0 = log_probs.gather(-1, x0[:, None])[:, 0]
        return -at_x0 * published.noisy.schedule.nelbo_weight(t)

    terms = published.at_masks(weighted, rows[0], published["x0"], published.t)
    assert_close(terms, published["subs_continuous_nelbo_terms"])


def test_discrete_nelbo(published: Published) -> None:
    x0, x_t, s, t = published["x0"], published["xt"], published.s, published.t
    general = partial(discrete_kl, process=published.process)
    terms = published.at_masks(general, subs(published), x0, x_t, s, t)
    assert_close(published.num_steps * terms, published["d3pm_loss_subs_T20"])
    closed = partial(mask_column_kl, process=published.process)
    terms = published.at_masks(closed, subs(published), x0, s, t)
    assert_close(published.num_steps * terms, published["d3pm_loss_subs_T20"])


def test_d3pm(published: Published) -> None:
    log_probs = mask_column(published)
    assert_close(log_probs, published["d3pm_log_probs"])
    closed = partial(mask_column_kl, process=published.process)
    terms = published.at_masks(closed, log_probs, published["x0"], published.s, published.t)
    assert_close(published.num_steps * terms, published["d3pm_loss_d3pm_T20"])


def test_sedd(published: Published) -> None:
    x0, x_t, t = published["x0"], published["xt"], published.t
    log_score = Score().read(published["logits"], x_t, t, published.noisy)
    assert_close(log_score, published["sedd_log_score"])
    entropy = partial(score_entropy, process=published.noisy)
    terms = published.at_masks(entropy, log_score, x0, x_t, t)
    rounded = published["sedd_score_entropy"]
    assert torch.equal(rounded, rounded.float().double()), "published through float32"
    assert_close(terms / published.noisy.schedule.dsigma(t), rounded, rtol=1e-7)


def test_subs_score(published: Published) -> None:
    log_score = scores_from_distribution(
        subs(published), published["xt"], published.t, published.noisy
    )
    assert_close(log_score.exp(), published["subs_score"])


def test_broken_twins_miss(published: Published) -> None:
    x0, x_t, s, t = published["x0"], published["xt"], published.s, published.t
    density = partial(ctmc_nelbo, process=published.noisy)
    wrong_step = published.at_masks(density, subs(published), x0, x_t, s)
    with pytest.raises(AssertionError):
        assert_close(wrong_step, published["subs_continuous_nelbo_terms"])
    closed = partial(mask_column_kl, process=published.process)
    squared = published.at_masks(closed, 2 * mask_column(published), x0, s, t)
    with pytest.raises(AssertionError):
        assert_close(published.num_steps * squared, published["d3pm_loss_d3pm_T20"])

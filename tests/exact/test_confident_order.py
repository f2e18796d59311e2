"""The likelihood of samples that are unmasked where the model is most certain, by enumeration.

The denoiser is a table of arbitrary conditionals, which agree with no joint distribution, so the
orders of different rows matter.
"""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from seqdiff.denoiser import confidence, rank_by_certainty
from seqdiff.likelihood import ConfidentOrder, FixedOrder, contrast, evaluate, orders
from seqdiff.samplers import ConfidenceSampler, EntropySampler, MarginSampler
from seqdiff.schedules import CosineSquared
from seqdiff.types import Batch, Inputs
from tests import distributions
from tests.enumeration import distance, joint_distribution, outcomes
from tests.exact.test_adaptive_distributions import confidence as top
from tests.exact.test_adaptive_distributions import margin, negentropy, order_rule
from tests.oracles import Joint, LookupBackbone, OracleBackbone, all_sequences, masked_model

K, L = 3, 4
EXACT = 1e-10
ROWS = all_sequences(K, L)
KINDS = {
    "confidence": (top, ConfidenceSampler),
    "margin": (margin, MarginSampler),
    "entropy": (negentropy, EntropySampler),
}
# Tokens per step, and the sizes of the steps of a row of four.
STEPS = {1: [1, 1, 1, 1], 2: [2, 2], 3: [2, 2], 4: [4], 9: [4]}


class TimedLookup(LookupBackbone):
    """Arbitrary conditionals that depend on the noise level too."""

    time_conditioned = True

    def logits(self, inputs: Inputs) -> Tensor:
        assert inputs.sigma is not None
        return super().logits(inputs) * (1 + inputs.sigma.clamp_max(3))[:, None, None]


def lookup():
    return masked_model(LookupBackbone(K, L, seed=2))


def batch_of(rows: Tensor, loss_mask: Tensor | None = None) -> Batch:
    everywhere = torch.ones_like(rows, dtype=torch.bool)
    return Batch(rows, everywhere if loss_mask is None else loss_mask, torch.arange(len(rows)))


def probabilities(estimator: ConfidentOrder, denoiser=None, **options) -> Tensor:
    found = evaluate(denoiser or lookup(), [batch_of(ROWS)], estimator=estimator, **options)
    return torch.from_numpy(np.exp(-found.nats))


@pytest.mark.parametrize("tokens_per_step", STEPS)
@pytest.mark.parametrize("certainty", KINDS)
def test_it_is_the_distribution_of_the_rule(certainty, tokens_per_step: int) -> None:
    """The rule is written independently; the sampler of the same name follows it too."""
    measure, _ = KINDS[certainty]
    found = probabilities(ConfidentOrder(certainty, tokens_per_step))
    assert float(found.sum()) == pytest.approx(1, abs=EXACT)
    table = distributions.table(lookup(), K, L)
    rule = order_rule(measure, STEPS[tokens_per_step], L)
    right = distributions.chosen_order((K,) * L, table, K, rule)
    assert distance(joint_distribution(found, K, L), right) < EXACT
    if tokens_per_step < L:
        ordered = evaluate(lookup(), [batch_of(ROWS)], estimator=FixedOrder())
        left_to_right = torch.from_numpy(np.exp(-ordered.nats))
        assert distance(joint_distribution(left_to_right, K, L), right) > 1e-2, "another order"


@pytest.mark.parametrize("tokens_per_step", [1, 3])
@pytest.mark.parametrize("certainty", KINDS)
def test_it_is_the_distribution_of_the_sampler(certainty, tokens_per_step: int) -> None:
    """The network is told the noise level, which must be that of the sampler at every step."""
    denoiser = masked_model(TimedLookup(K, L, seed=2), CosineSquared())
    steps = -(-L // tokens_per_step)
    drawn = outcomes(KINDS[certainty][1](steps), denoiser, torch.full((L,), K))
    found = probabilities(ConfidentOrder(certainty, tokens_per_step), denoiser)
    assert distance(joint_distribution(found, K, L), drawn.distribution) < EXACT
    untold = probabilities(ConfidentOrder(certainty, tokens_per_step))
    assert distance(joint_distribution(untold, K, L), drawn.distribution) > 1e-2


@pytest.mark.parametrize("tokens_per_step", [1, 2])
def test_a_rule_that_peeks_at_the_true_token_is_no_distribution(
    tokens_per_step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken: the position whose true token is most likely comes first."""
    seen: list[Tensor] = []

    def remembered(log_probs: Tensor) -> Tensor:
        seen.append(log_probs)
        return confidence(log_probs)

    def peeking(masked: Tensor, certainty: Tensor) -> tuple[Tensor, Tensor]:
        true = seen.pop().gather(-1, ROWS[masked][:, None])[:, 0]
        return rank_by_certainty(masked, true)

    monkeypatch.setitem(orders._CERTAINTIES, "confidence", remembered)
    monkeypatch.setattr(orders, "rank_by_certainty", peeking)
    total = float(probabilities(ConfidentOrder("confidence", tokens_per_step)).sum())
    assert total > 1.05


def test_equally_certain_positions_are_unmasked_from_left_to_right() -> None:
    """All four conditionals of the first step hold the same numbers, in different order."""
    network = LookupBackbone(K, L, seed=2)
    blank = network.base**L - 1
    logits = torch.tensor([1.0, 0.5, -1.0], dtype=torch.float64)
    network.table[blank] = torch.stack([logits.roll(shift) for shift in range(L)])
    denoiser = masked_model(network)
    table = distributions.table(denoiser, K, L)
    for certainty, (measure, _) in KINDS.items():
        right = distributions.chosen_order((K,) * L, table, K, order_rule(measure, [1] * L, L))
        # the table's numbers differ in the last bit, the rule's in none
        first = [[math.exp(v) for v in row] for row in network.table[blank].tolist()]
        assert len({max(row) for row in first}) == 1
        found = probabilities(ConfidentOrder(certainty), denoiser)
        assert distance(joint_distribution(found, K, L), right) < EXACT


def test_on_an_oracle_every_order_is_the_likelihood() -> None:
    joint = Joint.random(K, L, seed=4)
    found = probabilities(ConfidentOrder(), masked_model(OracleBackbone(joint)))
    torch.testing.assert_close(found, joint.probs, rtol=0, atol=1e-12)
    halves = probabilities(ConfidentOrder("confidence", 2), masked_model(OracleBackbone(joint)))
    assert float((halves - joint.probs).abs().max()) > 1e-3, "two at a time are independent"
    assert float(halves.sum()) == pytest.approx(1, abs=EXACT)


def test_positions_that_do_not_count_are_given() -> None:
    """Given each pair of symbols there, the probabilities of the others add up to 1."""
    loss_mask = torch.tensor([True, False, True, False]).expand_as(ROWS)
    found = evaluate(lookup(), [batch_of(ROWS, loss_mask)], estimator=ConfidentOrder())
    chances = torch.from_numpy(np.exp(-found.nats))
    for given in itertools.product(range(K), repeat=2):
        same = (ROWS[:, [1, 3]] == torch.tensor(given)).all(dim=-1)
        assert float(chances[same].sum()) == pytest.approx(1, abs=EXACT)
    assert (found.nfe == 2).all() and (found.num_tokens == 2).all()


def test_rows_do_not_depend_on_the_batch() -> None:
    """Rows of different numbers of tokens, one at a time, in threes and together."""
    loss_mask = torch.ones_like(ROWS, dtype=torch.bool)
    loss_mask[::2, 1] = loss_mask[::3, 3] = False
    batch, estimator = batch_of(ROWS, loss_mask), ConfidentOrder("margin", 2)
    together = evaluate(lookup(), [batch], estimator=estimator)
    for rows_per_call in (1, 3):
        apart = evaluate(lookup(), [batch], estimator=estimator, rows_per_call=rows_per_call)
        np.testing.assert_allclose(apart.nats, together.nats, rtol=0, atol=1e-12)
    assert (together.nfe == np.ceil(together.num_tokens / 2)).all()
    assert (together.standard_error == 0).all() and np.isinf(together.degrees).all()


def test_the_cost_is_that_of_the_network() -> None:
    denoiser = lookup()
    evaluate(denoiser, [batch_of(ROWS[:5])], estimator=ConfidentOrder("entropy", 3))
    assert denoiser.backbone.rows_seen == [5, 5]
    with pytest.raises(ValueError, match=r"max_nfe must be at least 4, what one pass of Confident"):
        probabilities(ConfidentOrder(), max_nfe=3)
    wanted = probabilities(ConfidentOrder(), target_se=1e-6, max_nfe=4)
    assert torch.equal(wanted, probabilities(ConfidentOrder()))


def test_a_difference_is_that_of_both_rows() -> None:
    first, second = batch_of(ROWS[:8]), batch_of(ROWS[8:16])
    second = replace(second, index=first.index)
    found = contrast(lookup(), first, second, estimator=ConfidentOrder("margin", 2))
    nats = [
        evaluate(lookup(), [one], estimator=ConfidentOrder("margin", 2)) for one in (first, second)
    ]
    np.testing.assert_allclose(found.nats, nats[0].nats - nats[1].nats, rtol=0, atol=1e-12)
    assert (found.nfe == 4).all() and (found.standard_error == 0).all()


def test_what_does_not_fit_raises() -> None:
    with pytest.raises(ValueError, match=r"tokens_per_step must be at least 1, got 0; 1 is usual"):
        ConfidentOrder("confidence", 0)
    # bypasses the type checker that watches constructors in tests
    made = ConfidentOrder()
    object.__setattr__(made, "certainty", "luck")
    with pytest.raises(ValueError, match=r"must be one of confidence, margin, entropy, got 'luck'"):
        made.__post_init__()

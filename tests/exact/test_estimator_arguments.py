"""Invalid arguments of the likelihood estimators: one line, before any network call."""

import math
from dataclasses import replace

import pytest
import torch

from seqdiff.likelihood import (
    BernoulliTime,
    Estimator,
    ExactK,
    FixedOrder,
    ImportanceWeightedOrders,
    Likelihood,
    RandomOrderChain,
    StratifiedK,
    check_budget,
    evaluate,
)
from seqdiff.types import Batch
from tests.oracles import LookupBackbone, masked_model

K, L = 3, 4
BATCH = Batch(torch.ones(2, L).long(), torch.ones(2, L, dtype=torch.bool), torch.arange(2))


def ask(estimator: Estimator, **arguments) -> Likelihood:
    denoiser = masked_model(LookupBackbone(K, L, seed=7))
    return evaluate(denoiser, [BATCH], estimator=estimator, **arguments)


def unknown_convention() -> None:
    """Bypasses the type checker that watches constructors while tests run."""
    made = BernoulliTime()
    object.__setattr__(made, "convention", "sedd")
    made.__post_init__()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: BernoulliTime(1), r"BernoulliTime.evaluations must be at least 2, got 1; a stand"),
        (unknown_convention, "must be one of exact, mdlm, got 'sedd'"),
        (lambda: ExactK(0), "ExactK.evaluations must be at least 2, got 0"),
        (lambda: StratifiedK(3), "StratifiedK.evaluations must be even and at least 2, got 3"),
        (lambda: RandomOrderChain(1), "RandomOrderChain.orders must be at least 2, got 1"),
        (lambda: FixedOrder([0, 2]), r"FixedOrder.order must hold each of 0..1 once, got \[0, 2\]"),
        (lambda: ImportanceWeightedOrders(0), "Orders.orders must be at least 1, got 0"),
        (lambda: ImportanceWeightedOrders(2, 1), "Orders.repeats must be at least 2, got 1"),
        (lambda: ask(FixedOrder([1, 0])), r"must be as long as the sequences \(4\), got 2 pos"),
        (lambda: ask(ExactK(), target_se=0.0), "target_se must be above 0 nats and f.*, got 0.0;"),
        (lambda: ask(ExactK(), target_se=math.nan), "above 0 nats and finite, got nan; leave it"),
        (
            lambda: ask(ExactK(), target_se=math.inf),
            "^evaluate.target_se .* finite, got inf; leave",
        ),
        (lambda: ask(ExactK(), max_nfe=31), r"max_nfe must be at least 32, .* got 31; raise"),
        (lambda: ask(RandomOrderChain(2), max_nfe=7), r"must be at least 8, .* for 4 tokens, go"),
        (lambda: ask(ExactK()).interval(1.0), "Likelihood.level must be between 0 and 1, got 1.0"),
        (lambda: ask(ExactK()).interval(math.nan), "must be between 0 and 1, got nan"),
        (lambda: ask(ExactK(), rows_per_call=0), "rows_per_call must be at least 1, got 0"),
        (lambda: ask(ExactK(), evaluations=8), "must be left out if an estimator is given"),
        (
            lambda: check_budget(FixedOrder(), num_tokens=9, target_se=None, max_nfe=8),
            r"at least 9, what one pass of FixedOrder\(order=None\) takes for 9 tokens, got 8",
        ),
    ],
)
def test_bad_arguments_are_refused_in_one_line(make, said: str) -> None:
    with pytest.raises(ValueError, match=said) as refused:
        make()
    assert "\n" not in str(refused.value)


def test_a_budget_too_small_is_refused_before_any_network_call() -> None:
    """Also if a later batch takes more, or the first batch has nothing to count."""
    denoiser = masked_model(LookupBackbone(K, L, seed=7))
    short, none = (replace(BATCH, loss_mask=BATCH.loss_mask.clone()) for _ in range(2))
    short.loss_mask[:, 1:], none.loss_mask[:] = False, False
    for batches in ([BATCH], [short, BATCH], [none, short, BATCH]):
        with pytest.raises(ValueError, match=r"evaluate.max_nfe must be at least 8, .* 4 tokens"):
            evaluate(denoiser, batches, estimator=RandomOrderChain(2), max_nfe=7)
        assert denoiser.backbone.rows_seen == []


def test_an_unknown_symbol_never_counts() -> None:
    denoiser = masked_model(LookupBackbone(K, L, seed=7))
    unknown = Batch(torch.full((1, L), K), torch.ones(1, L, dtype=torch.bool), torch.arange(1))
    with pytest.raises(ValueError, match=rf"must hold ids below {K} where loss_mask is True"):
        evaluate(denoiser, [unknown])
    assert denoiser.backbone.rows_seen == []

"""The stratified-k estimator against the enumerated bound.

False-alarm rates are 1e-6 for each mean (4.9 standard errors) and for the coverage band.
"""

import math

import numpy as np
import pytest
import torch
from scipy.stats import binom, norm, t

from seqdiff.likelihood import Likelihood, StratifiedK, evaluate, masks
from seqdiff.likelihood.estimator import Query
from seqdiff.schedules import Cosine, Linear, NoiseSchedule
from seqdiff.types import Batch
from tests.oracles import (
    Joint,
    LookupBackbone,
    OracleBackbone,
    UniformBackbone,
    enumerated_nelbo,
    masked_model,
)

K, L, ROWS = 3, 4, 4000
X0 = torch.tensor([2, 0, 1, 1])
SIGMAS = float(norm.isf(0.5e-6))


def rows(loss_mask: torch.Tensor | None = None, x0: torch.Tensor = X0) -> list[Batch]:
    mask = torch.ones(ROWS, L, dtype=torch.bool) if loss_mask is None else loss_mask
    whole = Batch(x0.expand(ROWS, L), mask.expand(ROWS, L), torch.arange(ROWS))
    return [
        Batch(whole.tokens[i : i + 999], whole.loss_mask[i : i + 999], whole.index[i : i + 999])
        for i in range(0, ROWS, 999)
    ]


def z_score(nats: np.ndarray, exact: float) -> float:
    return float((nats.mean() - exact) / (nats.std(ddof=1) / math.sqrt(len(nats))))


@pytest.mark.parametrize("evaluations", [2, 8, 10])
def test_estimates_are_unbiased_on_an_arbitrary_denoiser(evaluations: int) -> None:
    denoiser = masked_model(LookupBackbone(K, L, seed=7))
    result = evaluate(denoiser, rows(), evaluations=evaluations)
    assert abs(z_score(result.nats, enumerated_nelbo(denoiser, X0))) < SIGMAS


def halved(query: Query) -> Query:
    """Broken: all draws have the same weight, as if half of the tokens were masked in each."""
    return query._replace(weight=torch.full_like(query.weight, L / 2))


def test_broken_estimators_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken twins: a collater that never masks exactly one token, and a mean over masked tokens
    only.
    """
    denoiser = masked_model(LookupBackbone(K, L, seed=7))
    exact = enumerated_nelbo(denoiser, X0)
    right = masks._count_at
    with monkeypatch.context() as patch:
        patch.setattr(masks, "_count_at", lambda *a: right(*a).clamp_min(2))
        broken = evaluate(denoiser, rows(), evaluations=8)
    assert abs(z_score(broken.nats, exact)) > 2 * SIGMAS
    with monkeypatch.context() as patch:
        query = StratifiedK.query
        patch.setattr(StratifiedK, "query", lambda *a, **k: halved(query(*a, **k)))
        broken = evaluate(denoiser, rows(), evaluations=8)
    assert abs(z_score(broken.nats, exact)) > 2 * SIGMAS


def test_standard_error_of_a_sequence_is_unbiased() -> None:
    denoiser = masked_model(LookupBackbone(K, L, seed=7))
    result = evaluate(denoiser, rows(), evaluations=8)
    claimed, seen = (result.standard_error**2).mean(), result.nats.var(ddof=1)
    noise = (result.standard_error**2).std() / math.sqrt(ROWS) + seen * math.sqrt(2 / ROWS)
    assert claimed == pytest.approx(seen, abs=SIGMAS * noise)
    assert abs(claimed / 2 - seen) > SIGMAS * noise, "an error off by sqrt 2 must not pass"


def test_interval_over_sequences_covers_the_truth() -> None:
    """200 sets of 20 sequences: coverage of the 95% interval lies in the binomial 1e-6 band around
    93%.
    """
    denoiser = masked_model(LookupBackbone(K, L, seed=7))
    exact = enumerated_nelbo(denoiser, X0) / L
    result = evaluate(denoiser, rows(), evaluations=2)
    covered = 0
    for nats, errors in zip(
        result.nats.reshape(200, 20), result.standard_error.reshape(200, 20), strict=False
    ):
        part = Likelihood(nats, np.full(20, L), errors, np.full(20, 2), np.full(20, 1.0))
        half = t.isf(0.025, part.nats_per_token_degrees) * part.nats_per_token_error
        covered += abs(part.nats_per_token - exact) < half
    assert binom.isf(1 - 1e-6, 200, 0.90) <= covered <= 200


def test_oracle_gives_the_likelihood() -> None:
    joint = Joint.random(K, L, seed=4)
    result = evaluate(masked_model(OracleBackbone(joint)), rows())
    code = int((X0 * K ** torch.arange(L - 1, -1, -1)).sum())
    assert abs(z_score(result.nats, -math.log(joint.probs[code]))) < SIGMAS


@pytest.mark.parametrize("schedule", [Linear(), Cosine()])
def test_uniform_predictor_is_exact_without_any_noise(schedule: NoiseSchedule) -> None:
    result = evaluate(masked_model(UniformBackbone(K), schedule), rows(), evaluations=4)
    np.testing.assert_allclose(result.nats, L * math.log(K), rtol=1e-12)
    np.testing.assert_allclose(result.standard_error, 0, atol=1e-12)
    assert result.perplexity == pytest.approx(K)
    assert result.bits_per_token == pytest.approx(math.log2(K))


def test_context_is_given_and_never_counted() -> None:
    """With the first two positions as context the estimate is that of -log p(x3 x4 | x1 x2)."""
    joint = Joint.random(K, L, seed=4)
    mask = torch.tensor([False, False, True, True])
    result = evaluate(masked_model(OracleBackbone(joint)), rows(mask))
    table = joint.probs.view(K, K, K, K)
    a, b, c, d = X0.tolist()
    exact = -math.log(table[a, b, c, d] / table[a, b].sum())
    assert abs(z_score(result.nats, exact)) < SIGMAS
    assert (result.num_tokens == 2).all()


def test_unknown_symbols_and_empty_rows() -> None:
    x0 = torch.tensor([2, K, 1, K])
    mask = x0 != K
    batches = [
        *rows(mask, x0),
        Batch(x0[None], torch.zeros(1, L, dtype=torch.bool), torch.tensor([9])),
    ]
    result = evaluate(masked_model(UniformBackbone(K)), batches, evaluations=2)
    assert len(result.nats) == ROWS and (result.num_tokens == 2).all()
    with pytest.raises(ValueError, match="at least one position with loss_mask True"):
        evaluate(masked_model(UniformBackbone(K)), batches[-1:])


def test_the_result_does_not_depend_on_batches() -> None:
    denoiser = masked_model(LookupBackbone(K, L, seed=7))
    parts = rows()
    whole = Batch(
        torch.cat([b.tokens for b in parts]),
        torch.cat([b.loss_mask for b in parts]),
        torch.cat([b.index for b in parts]),
    )
    one = evaluate(denoiser, [whole], evaluations=4)
    many = evaluate(denoiser, parts, evaluations=4)
    np.testing.assert_array_equal(one.nats, many.nats)


@pytest.mark.parametrize("evaluations", [0, 3, -2])
def test_bad_number_of_evaluations(evaluations: int) -> None:
    with pytest.raises(ValueError, match="must be even and at least 2"):
        evaluate(masked_model(UniformBackbone(K)), rows(), evaluations=evaluations)

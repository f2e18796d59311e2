"""Generative perplexity against GPT-2 written in float64, and details that are easy to lose."""

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from tokenizers.processors import TemplateProcessing

from tests.text.pretrained.tiny_gpt2 import BOS, CONTEXT, LONG, by_hand
from text.evaluation import perplexity as module
from text.evaluation.judge import Judge
from text.evaluation.perplexity import generative_perplexity, unigram_entropy, windows


def run(judge: Judge, samples: list[np.ndarray], batch_size: int, **changed):
    options = {"vocab_size": judge.vocab_size, "bos": judge.bos, "context": judge.context}
    return generative_perplexity(
        judge.network, samples, batch_size=batch_size, **{**options, **changed}
    )


def test_the_folder_says_what_the_model_needs(judge: Judge) -> None:
    assert (judge.context, judge.bos, judge.bos_name) == (CONTEXT, 0, BOS)
    samples = judge.encode(LONG)
    assert [len(s) for s in samples[:1]] == [6] and len(samples[-1]) > CONTEXT
    assert judge.encode([f"a{BOS}dog"])[0].tolist().count(0) == 1, "what it spells it is"


def test_nothing_is_added_to_a_text_by_its_tokenizer(judge: Judge) -> None:
    """A tokenizer may add tokens around every text; only our start token is allowed."""
    tokenizer = copy.deepcopy(judge.tokenizer)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{BOS} $A {BOS}", special_tokens=[(BOS, 0)]
    )
    assert tokenizer("a dog").input_ids[0] == 0
    framing = replace(judge, tokenizer=tokenizer)
    assert framing.encode(["a dog"])[0].tolist() == judge.encode(["a dog"])[0].tolist()


@pytest.mark.parametrize("batch_size", [1, 2, 3, 100])
def test_every_token_counts_once_whatever_the_batch(judge: Judge, batch_size: int) -> None:
    """Five samples of different lengths, two longer than the context, with a partial last batch.

    The expected numbers are computed in float64.
    """
    samples = judge.encode(LONG)
    found = run(judge, samples, batch_size)
    expected = by_hand(judge.network, samples, 0)
    assert found.likelihood.num_tokens.tolist() == [len(s) for s in samples]
    np.testing.assert_allclose(found.likelihood.nats, expected, rtol=2e-5)
    total = sum(map(len, samples))
    assert found.perplexity == pytest.approx(math.exp(expected.sum() / total), rel=1e-4)
    assert found.likelihood.nfe.tolist()[:2] == [1, 1] and found.likelihood.nfe[-1] >= 2


def test_in_float64_batches_agree_to_the_last_digits(judge: Judge) -> None:
    double = Judge(judge.network.double(), judge.tokenizer, judge.vocab_size, CONTEXT, 0, BOS)
    try:
        samples = judge.encode(LONG)
        together, alone = run(double, samples, 3), run(double, samples, 1)
        np.testing.assert_allclose(together.likelihood.nats, alone.likelihood.nats, rtol=1e-12)
        np.testing.assert_allclose(
            together.likelihood.nats, by_hand(judge.network, samples, 0), rtol=1e-11
        )
    finally:
        judge.network.float()


def test_broken_twins_would_be_found(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken twins: drop the last batch, count padding, count overlaps twice, shift by one."""
    samples = judge.encode(LONG)
    right, expected = module._score, by_hand(judge.network, samples, 0)

    def dropped(model, rows, parts):
        return right(model, rows, parts) if len(parts) == 3 else [0.0] * len(parts)

    def counted(model, rows, parts):
        width = max(part.end - part.start for part in parts)
        zeros = [torch.cat((row, torch.zeros(width, dtype=torch.int64))) for row in rows]
        return right(model, zeros, [part._replace(end=part.start + width) for part in parts])

    def twice(model, rows, parts):
        return right(model, rows, [part._replace(first=part.start + 1) for part in parts])

    def shifted(model, rows, parts):
        moved = [torch.cat((row[:1], row[2:], row[-1:])) for row in rows]
        return right(model, moved, parts)

    for broken in (dropped, counted, twice, shifted):
        monkeypatch.setattr(module, "_score", broken)
        found = run(judge, samples, 3)
        assert np.abs(found.likelihood.nats - expected).max() > 0.5, broken.__name__


def test_without_a_bos_token_the_first_token_is_given(judge: Judge) -> None:
    samples = judge.encode(LONG)
    found = run(judge, samples, 2, bos=None)
    assert found.likelihood.num_tokens.tolist() == [len(s) - 1 for s in samples]
    np.testing.assert_allclose(found.likelihood.nats, by_hand(judge.network, samples), rtol=2e-5)
    single = run(judge, [np.array([5]), np.array([5, 6])], 2, bos=None)
    assert len(single.likelihood.nats) == 1 and len(single.entropy) == 2
    with pytest.raises(ValueError, match="must hold a token to predict, got only samples"):
        run(judge, [np.array([5])], 2, bos=None)


@pytest.mark.parametrize("context", [2, 3, 8, None])
def test_windows_predict_each_token_once_from_at_least_half_a_context(context: int | None) -> None:
    lengths = [0, 1, 2, 7, 8, 9, 31]
    parts = windows(lengths, context)
    for sample, length in enumerate(lengths):
        mine = [part for part in parts if part.sample == sample]
        told = [place for part in mine for place in range(part.first, part.end)]
        assert told == list(range(1, length))
        for part in mine:
            assert part.start < part.first and (context is None or part.end - part.start <= context)
            assert part.start == 0 or part.first - part.start >= context // 2
    with pytest.raises(ValueError, match=r"windows.context must be at least 2, got 1"):
        windows([3], 1)


def test_entropy_is_that_of_the_tokens_of_a_sample(judge: Judge) -> None:
    assert unigram_entropy(np.array([3, 3, 3])) == 0
    assert unigram_entropy(np.arange(8)) == pytest.approx(math.log(8))
    expected = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert unigram_entropy(np.array([1, 1, 2, 1])) == pytest.approx(expected)
    found = run(judge, [np.full(9, 7), np.arange(9)], 2)
    assert found.entropy.tolist() == pytest.approx([0, math.log(9)])
    pooled = unigram_entropy(np.concatenate((np.full(9, 7), np.arange(9))))
    assert found.entropy.mean() != pytest.approx(pooled, rel=0.1), "not that of all samples pooled"


def test_errors_are_over_samples(judge: Judge) -> None:
    """To first order, against the spread of the perplexity over 2,000 draws of 200 samples."""
    rng = np.random.default_rng(0)
    samples = [rng.integers(0, 40, rng.integers(2, 9)) for _ in range(200)]
    found = run(judge, samples, 50)
    nats, tokens = found.likelihood.nats, found.likelihood.num_tokens
    chosen = rng.integers(0, 200, (2000, 200))
    again = np.exp(nats[chosen].sum(1) / tokens[chosen].sum(1))
    assert found.perplexity_error == pytest.approx(again.std(), rel=0.1)
    assert found.perplexity_error != pytest.approx(again.std() * math.sqrt(200), rel=0.1)
    spread = found.entropy[chosen].mean(axis=1).std()
    assert found.entropy_error == pytest.approx(spread, rel=0.1)
    alone = run(judge, samples[:1], 1)
    assert alone.entropy_error == alone.perplexity_error == math.inf


def test_ids_of_another_tokenizer_and_empty_samples_are_refused(judge: Judge) -> None:
    with pytest.raises(ValueError, match=r"must hold ids in 0..279, got 0..280 in sample 1; use"):
        run(judge, [np.array([1]), np.array([0, 280])], 2)
    with pytest.raises(
        ValueError, match=r"must hold at least one token each, got none in sample 0"
    ):
        run(judge, [np.array([], dtype=np.int64)], 2)

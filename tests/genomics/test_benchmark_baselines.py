"""Baselines learn what they can learn and no more; k-mers are counted as by hand."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from genomics.finetune import baselines
from genomics.finetune.baselines import KMERS, STRENGTHS, BenchmarkCNN, run_baseline
from genomics.finetune.goals import Goal
from genomics.finetune.labelled import Labelled, LabelledTask
from genomics.finetune.protocol import Baseline
from genomics.finetune.runs import hold_out
from genomics.sequence.alphabet import MASK_ID, encode
from genomics.sequence.kmers import count_kmers_of_each, kmer_fractions


def task(kind: str, seed: int = 0) -> LabelledTask:
    """Two classes that differ only in the majority, the length or a motif."""
    rng = np.random.default_rng(seed)

    def part(num: int) -> Labelled:
        labels = (rng.random(num) < (0.75 if kind == "majority" else 0.5)).astype(np.int64)
        made = []
        for label in labels:
            width = 70 + 20 * int(label) if kind == "length" else 80
            ids = rng.integers(0, 4, width, dtype=np.uint8)
            if kind == "motif" and label:
                place = int(rng.integers(0, width - 24))
                ids[place : place + 24] = encode("GATTACA" * 3 + "GAT")
            made.append(ids)
        return Labelled(tuple(made), labels)

    return LabelledTask(kind, ("a", "b"), part(600), None, part(400))


def run(name: Baseline, made: LabelledTask, epochs: int = 1, length: int = 100) -> dict:
    return run_baseline(
        name,
        made,
        np.zeros(len(made.test), dtype=bool),
        length=length,
        epochs=epochs,
        seed=0,
        device=torch.device("cpu"),
    )


def accuracy(name: Baseline, kind: str, epochs: int = 1) -> float:
    return run(name, task(kind), epochs)["test"]["accuracy"]


def test_the_majority_is_the_share_of_the_commonest_class() -> None:
    assert accuracy("majority", "majority") == task("majority").test.labels.mean()


@pytest.mark.parametrize(
    ("name", "learns", "cannot"),
    [("length", "length", "motif"), ("kmer", "motif", "length"), ("cnn", "motif", "majority")],
)
def test_a_baseline_learns_its_own_kind(name: Baseline, learns: str, cannot: str) -> None:
    """At chance, the accuracy on 400 rows is .5 +- .025: .63 is five standard errors away."""
    assert accuracy(name, learns, epochs=8) > 0.85
    if cannot == "majority":
        assert accuracy(name, cannot, epochs=8) < 0.75 + 0.11
    else:
        assert accuracy(name, cannot) < 0.63


def test_length_and_penalty_of_kmers_are_chosen_on_the_validation_part() -> None:
    """All sixteen pairs computed by hand: the best one, and the first of equal ones."""
    made = task("motif")
    rng = np.random.default_rng(1)
    hard = [ids.copy() for ids in made.train.ids]
    for ids in hard:
        ids[rng.random(len(ids)) < 0.55] = 0
    made = LabelledTask(
        "motif", ("a", "b"), Labelled(tuple(hard), made.train.labels), None, made.test
    )
    train, valid = hold_out(made, 0)
    scores: dict[tuple[int, float], float] = {}
    for k in KMERS:
        parts = [kmer_fractions(part.ids, k).toarray() for part in (train, valid)]
        scale = parts[0].std(axis=0)
        learned, held = (part / np.where(scale == 0, 1, scale) for part in parts)
        for strength in STRENGTHS:
            model = LogisticRegression(C=strength, max_iter=300).fit(learned, train.labels)
            scores[k, strength] = float(model.score(held, valid.labels))
    best = max(scores, key=lambda choice: scores[choice])
    found = run("kmer", made)
    assert (found["k"], found["C"]) == best != (KMERS[0], STRENGTHS[0])
    assert found["valid_accuracy"] == [scores[best]] and len(set(scores.values())) > 4


def test_the_majority_is_that_of_train() -> None:
    """Three quarters of train are of class 1, three quarters of validation and test of class 0."""
    made = task("majority")
    other = Labelled(made.test.ids, 1 - made.test.labels)
    found = run("majority", LabelledTask("m", ("a", "b"), made.train, other, other))
    assert found["test"]["accuracy"] == other.labels.mean() < 0.3
    assert found["valid_accuracy"] == [other.labels.mean()]


def test_the_network_is_fitted_as_published_and_chosen_on_validation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Adam, 1e-3, 64 rows per step; the model chosen is the best on reversed validation labels."""
    made, seen = task("motif"), []
    real = baselines.fit_goal

    def fit(
        model: torch.nn.Module, optimiser: tuple, epochs: int, goal: Goal, **options: object
    ) -> object:
        rows = [len(labels) for *_, labels in options["one_pass"]()]  # pyright: ignore
        seen.append((type(optimiser[0]), optimiser[0].param_groups[0]["lr"], epochs, rows[0]))
        return real(model, optimiser, epochs, goal, **options)  # pyright: ignore

    monkeypatch.setattr(baselines, "fit_goal", fit)
    wrong = Labelled(made.test.ids[:200], 1 - made.test.labels[:200])
    found = run("cnn", LabelledTask("m", ("a", "b"), made.train, wrong, made.test), epochs=6)
    assert seen == [(torch.optim.Adam, 1e-3, 6, 64)]
    assert found["valid_accuracy"][-1] < 0.3
    assert found["epoch"] == 1 + int(np.argmax(found["valid_accuracy"]))
    assert found["train_seconds"] > 0 and "train_seconds" not in run("kmer", made)


def test_padding_is_no_unknown_base() -> None:
    """Padding has its own embedding, and the letters below it are not read."""
    torch.manual_seed(0)
    model = BenchmarkCNN(64, 2).eval()
    tokens = torch.randint(4, (1, 64))
    tokens[:, 30:] = MASK_ID
    padding = torch.arange(64)[None] >= 30
    padded, unknown = model(tokens, padding), model(tokens, torch.zeros_like(padding))
    assert (padded - unknown).abs().max() > 1e-4
    torch.testing.assert_close(model(tokens.masked_fill(padding, 2), padding), padded)


@pytest.mark.parametrize("k", [-1, 0, 13])
def test_words_of_no_length_or_too_long_are_refused(k: int) -> None:
    with pytest.raises(ValueError, match=rf"count_kmers_of_each\.k must be in 1\.\.12, got {k};"):
        count_kmers_of_each([encode("ACGT")], k)
    assert count_kmers_of_each([encode("A" * 12)], 12).shape == (1, 4**12)


def test_kmers_by_hand() -> None:
    counts = count_kmers_of_each(
        [encode("ACAC"), encode("A"), encode("ANCA"), encode("TTT")], 2
    ).toarray()
    assert counts.shape == (4, 16)
    assert {int(c): int(counts[0, c]) for c in counts[0].nonzero()[0]} == {1: 2, 4: 1}
    assert counts[1].sum() == 0
    assert {int(c): int(counts[2, c]) for c in counts[2].nonzero()[0]} == {4: 1}
    assert {int(c): int(counts[3, c]) for c in counts[3].nonzero()[0]} == {15: 2}


@pytest.mark.parametrize("k", [1, 3, 6])
def test_kmers_by_a_loop(k: int) -> None:
    rng = np.random.default_rng(k)
    rows = [rng.integers(0, 5, int(n), dtype=np.uint8) for n in rng.integers(1, 30, 20)]
    found = count_kmers_of_each(rows, k).toarray()
    expected = np.zeros_like(found)
    for place, ids in enumerate(rows):
        for first in range(len(ids) - k + 1):
            word = ids[first : first + k]
            if (word < 4).all():
                expected[place, int("".join(map(str, word)), 4)] += 1
    np.testing.assert_array_equal(found, expected)
    shares = kmer_fractions(rows, k).toarray().sum(axis=1)
    np.testing.assert_allclose(shares, expected.any(axis=1), atol=1e-6)


def test_the_network_has_the_published_layers() -> None:
    """Parameters by hand for 200 bases: 200, 96, 44, 18 positions before the dense layers."""
    model = BenchmarkCNN(200, 2)
    convolutions = (100 * 8 + 1) * 16 + (16 * 8 + 1) * 8 + (8 * 8 + 1) * 4 + 2 * (16 + 8 + 4)
    dense = (4 * 18 + 1) * 512 + 513 * 2
    found = sum(p.numel() for p in model.parameters())
    assert found == 6 * 100 + convolutions + dense

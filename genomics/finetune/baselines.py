"""Baselines: the most frequent class or the mean, the length, k-mers, and a small CNN."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from genomics.baselines import KmerRidge
from genomics.finetune.goals import Goal, Values, build_goal
from genomics.finetune.labelled import Labelled, LabelledTask
from genomics.finetune.protocol import Baseline
from genomics.finetune.runs import fit_goal, hold_out, predict, record, shuffled
from genomics.sequence import MASK_ID, kmer_fractions
from seqdiff.extras import require_extra
from seqdiff.training import Advance, check_finite

KMERS = (3, 4, 5, 6)
STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1)  # C of scikit-learn: inverse penalties
CNN_BATCH, CNN_LR = 64, 1e-3
_BINS = 32
_MIN_WIDTH = 64  # below it, three convolutions of width 8 with pooling have no output


class BenchmarkCNN(nn.Module):
    """The baseline network of Gresova et al. 2023, BMC Genomic Data 24:25, as described there.

    An embedding with 100 channels; three blocks of a convolution of width 8 (16, 8 and 4 channels),
    batch norm, ReLU and max pooling by 2; a linear layer with 512 channels, and the output layer.
    All rows have the same width, and padding has an embedding of its own.

    Args:
        width: Number of positions of a row.
        num_classes: Number of classes, or of values.
    """

    def __init__(self, width: int, num_classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(MASK_ID + 2, 100)
        layers: list[nn.Module] = []
        for before, after in ((100, 16), (16, 8), (8, 4)):
            layers += [nn.Conv1d(before, after, 8), nn.BatchNorm1d(after), nn.ReLU()]
            layers.append(nn.MaxPool1d(2))
            width = (width - 7) // 2
        self.convolutions = nn.Sequential(*layers)
        self.dense = nn.Sequential(
            nn.Flatten(), nn.Linear(4 * width, 512), nn.ReLU(), nn.Linear(512, num_classes)
        )

    def forward(
        self, tokens: Int[Tensor, "B L"], padding: Bool[Tensor, "B L"]
    ) -> Float[Tensor, "B C"]:
        """Compute the logits of the classes.

        Args:
            tokens: Ids.
            padding: True at padding.
        """
        x = self.embedding(tokens.masked_fill(padding, MASK_ID + 1))
        return self.dense(self.convolutions(x.transpose(1, 2)))


def run_baseline(
    name: Baseline,
    task: LabelledTask,
    seen: Bool[np.ndarray, " n"],
    *,
    length: int,
    epochs: int,
    seed: int,
    device: torch.device,
    progress: Advance | None = None,
) -> dict[str, object]:
    """Train a baseline on the part of the training set that backbones use, and evaluate it.

    Args:
        name: Name of the baseline.
        task: The task.
        seen: True for test rows that occur in training.
        length: Maximum number of bases that the CNN reads; the other baselines read all.
        epochs: Epochs of the CNN.
        seed: Seed of the split and of the CNN.
        device: Device of the CNN.
        progress: Called with the number of sequences after each step of the CNN.

    Returns:
        The content of a line of results.jsonl, without its key.

    Raises:
        DivergedError: If the network's scores are no longer finite.
        ValueError: If a class is missing from the training part, a value does not vary in it, or
            scikit-learn is not installed.
    """
    train, valid = hold_out(task, seed)
    goal = build_goal(task, train)
    started = time.perf_counter()
    if name == "cnn":
        options = {"length": length, "epochs": epochs, "seed": seed, "device": device}
        found, predictions = _cnn(task, goal, train, valid, progress=progress, **options)
    elif isinstance(goal, Values):
        rule = {"majority": _mean, "length": _mean_of_length, "kmer": _kmer_ridge}[name]
        found, predictions = rule(train, valid, task.test, goal)
    else:
        rule = {"majority": _majority, "length": _length, "kmer": _kmer}[name]
        found, predictions = rule(train, valid, task.test, goal.num_outputs)
    return {
        **found,
        **goal.measure_both(task.test.labels, predictions, seen),
        "num_train": len(train),
        "seconds": round(time.perf_counter() - started, 2),
    }


Answer = tuple[dict[str, object], Float[np.ndarray, "n C"]]


def _majority(train: Labelled, valid: Labelled, test: Labelled, num_classes: int) -> Answer:
    fractions = np.bincount(train.labels, minlength=num_classes) / len(train)
    accuracy = float((valid.labels == fractions.argmax()).mean())
    return {"valid_accuracy": [accuracy]}, np.tile(fractions, (len(test), 1))


def _length(train: Labelled, valid: Labelled, test: Labelled, num_classes: int) -> Answer:
    """Logistic regression on which of 32 equally full bins the length falls in."""
    features = _bins(train)
    model = _logistic().fit(features(train), train.labels)
    accuracy = float(model.score(features(valid), valid.labels))
    return {"valid_accuracy": [accuracy]}, model.predict_proba(features(test))


def _bins(train: Labelled) -> Callable[[Labelled], Float[np.ndarray, "n bins"]]:
    """Return a function that marks in which of 32 equally full bins of train the length falls."""
    edges = np.unique(np.quantile(train.lengths, np.linspace(0, 1, _BINS + 1)[1:-1]))
    return lambda data: np.eye(len(edges) + 1)[np.digitize(data.lengths, edges)]


def _mean(train: Labelled, valid: Labelled, test: Labelled, goal: Values) -> Answer:
    del train  # the goal knows the mean
    score = goal.score(valid.labels, np.tile(goal.mean, (len(valid), 1)))
    return {f"valid_{goal.metric}": [score]}, np.tile(goal.mean, (len(test), 1))


def _mean_of_length(train: Labelled, valid: Labelled, test: Labelled, goal: Values) -> Answer:
    """Mean of the training rows in the same of 32 equally full bins of the length."""
    features = _bins(train)
    learned, known = features(train), ~np.isnan(train.labels)
    counts = learned.T @ known
    sums = learned.T @ np.where(known, train.labels, 0.0)
    means = np.where(counts > 0, sums / np.maximum(counts, 1), goal.mean)
    score = goal.score(valid.labels, features(valid) @ means)
    return {f"valid_{goal.metric}": [score]}, features(test) @ means


def _kmer_ridge(train: Labelled, valid: Labelled, test: Labelled, goal: Values) -> Answer:
    """Ridge regression on the counts of k-mers; the penalty is chosen on the validation part."""
    require_extra("sklearn", "finetune", "genomics")
    values = (part.labels.astype(np.float64) for part in (train, valid))
    model = KmerRidge.fit(train.ids, next(values), valid.ids, next(values))
    score = goal.score(valid.labels, model.predict(valid.ids))
    return {f"valid_{goal.metric}": [score], "alpha": list(model.alphas)}, model.predict(test.ids)


def _kmer(train: Labelled, valid: Labelled, test: Labelled, num_classes: int) -> Answer:
    """Logistic regression on scaled fractions of k-mers.

    The length of the k-mers and the penalty are chosen on the validation part; of equal choices,
    the shortest k-mers and then the strongest penalty.
    """
    preprocessing = require_extra("sklearn.preprocessing", "finetune", "genomics")
    best: tuple[float, int, float, np.ndarray] | None = None
    for k in KMERS:
        scaler = preprocessing.StandardScaler(with_mean=False)
        learned = scaler.fit_transform(kmer_fractions(train.ids, k))
        held = scaler.transform(kmer_fractions(valid.ids, k))
        asked = scaler.transform(kmer_fractions(test.ids, k))
        for strength in STRENGTHS:
            model = _logistic(strength).fit(learned, train.labels)
            accuracy = float(model.score(held, valid.labels))
            if best is None or accuracy > best[0]:
                best = (accuracy, k, strength, model.predict_proba(asked))
    assert best is not None
    return {"valid_accuracy": [best[0]], "k": best[1], "C": best[2]}, best[3]


def _logistic(strength: float = 0.01):
    linear = require_extra("sklearn.linear_model", "finetune", "genomics")
    return linear.LogisticRegression(C=strength, max_iter=300)


def _cnn(
    task: LabelledTask,
    goal: Goal,
    train: Labelled,
    valid: Labelled,
    *,
    length: int,
    epochs: int,
    seed: int,
    device: torch.device,
    progress: Advance | None,
) -> Answer:
    """Train the CNN by Adam with lr 1e-3 on batches of 64, as published; keep the best epoch."""
    longest = int(max(train.lengths.max(), valid.lengths.max(), task.test.lengths.max()))
    width = max(min(length, longest), _MIN_WIDTH)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        model = BenchmarkCNN(width, goal.num_outputs).to(device)
        adam = torch.optim.Adam(model.parameters(), lr=CNN_LR)
        fitted = fit_goal(
            model,
            (adam, torch.optim.lr_scheduler.LambdaLR(adam, lambda _: 1.0)),
            epochs,
            goal,
            one_pass=shuffled(train, seed, CNN_BATCH, length, width),
            valid_predictions=lambda: predict(model, goal, valid, length, width),
            valid_labels=valid.labels,
            progress=progress,
        )
        found = predict(model, goal, task.test, length, width)
    check_finite(found, fitted.epoch)
    return {**record(fitted, goal), "train_seconds": fitted.train_seconds}, found

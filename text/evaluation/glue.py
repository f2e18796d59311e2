"""Fine-tune a BERT encoder on a GLUE task, and choose the epoch and the learning rate."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
from jaxtyping import Float, Float64, Int, Int64
from torch import Tensor, nn

from seqdiff.extras import require_extra
from seqdiff.training import (
    Advance,
    Cell,
    Optimiser,
    Sheet,
    best_epoch,
    check_finite,
    choose,
    diverged,
    fit,
    weights_digest,
)
from text.evaluation.glue_tasks import Example, Task

METRICS = ("accuracy", "matthews", "f1")


def measure(truth: Int64[np.ndarray, " n"], found: Int64[np.ndarray, " n"]) -> dict[str, float]:
    """Compute all metrics with scikit-learn, in percent; F1 is for class 1."""
    metrics = require_extra("sklearn.metrics", "glue", "text")
    return {
        "accuracy": 100 * float(metrics.accuracy_score(truth, found)),
        "matthews": 100 * float(metrics.matthews_corrcoef(truth, found)),
        "f1": 100 * float(metrics.f1_score(truth, found, zero_division=0.0)),
    }


@dataclass(frozen=True)
class Encoded:
    """Examples as ids.

    Attributes:
        tokens: Ids of each example, with ``[CLS]`` first and ``[SEP]`` after each sentence.
        segments: 0 for the first sentence, 1 for the second.
        labels: Classes.
    """

    tokens: list[list[int]]
    segments: list[list[int]]
    labels: Int64[np.ndarray, " n"]


def encode(tokenizer: Callable, examples: Sequence[Example], max_length: int) -> Encoded:
    """Tokenize sentences or pairs. The longer sentence of a pair is truncated first.

    Args:
        tokenizer: A tokenizer of transformers.
        examples: Examples to encode.
        max_length: Maximum number of tokens per example.
    """
    seconds = [example.second for example in examples]
    found = tokenizer(
        [example.first for example in examples],
        None if seconds[0] is None else seconds,
        truncation="longest_first",
        max_length=max_length,
        return_token_type_ids=True,
    )
    labels = np.array([example.label for example in examples])
    return Encoded(found.input_ids, found.token_type_ids, labels)


class Classifier(nn.Module):
    """An encoder of transformers with a new pooler over ``[CLS]``, dropout and a linear layer.

    The pooler is new because a checkpoint trained as a masked language model has none. Source:
    Devlin et al. 2019, arXiv:1810.04805, section 4.1.
    """

    def __init__(self, encoder: nn.Module, width: int, *, num_classes: int = 2) -> None:
        """Put a new head on an encoder.

        Args:
            encoder: Such as ``BertModel`` of transformers.
            width: Size of its hidden states.
            num_classes: Number of classes.
        """
        super().__init__()
        self.encoder = encoder
        self.pooler = nn.Linear(width, width)
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(width, num_classes)
        for layer in (self.pooler, self.head):
            nn.init.normal_(layer.weight, std=0.02)
            nn.init.zeros_(layer.bias)

    def forward(
        self, tokens: Int[Tensor, "B L"], segments: Int[Tensor, "B L"], real: Int[Tensor, "B L"]
    ) -> Float[Tensor, "B C"]:
        """Compute logits of the classes; ``real`` is 1 at positions that are not padding."""
        several = getattr(self.encoder.config, "type_vocab_size", 0) > 1
        kinds = {"token_type_ids": segments} if several else {}
        states = self.encoder(input_ids=tokens, attention_mask=real, **kinds)
        pooled = torch.tanh(self.pooler(states.last_hidden_state[:, 0]))
        return self.head(self.dropout(pooled))


def _batches(data: Encoded, order: np.ndarray, size: int) -> Iterator[tuple[Tensor, ...]]:
    """Yield all rows in batches, padded to the longest row of the batch."""
    for first in range(0, len(order), size):
        chosen = order[first : first + size]
        width = max(len(data.tokens[i]) for i in chosen)
        tokens, segments, real = torch.zeros((3, len(chosen), width), dtype=torch.int64)
        for place, i in enumerate(chosen):
            length = len(data.tokens[i])
            tokens[place, :length] = torch.tensor(data.tokens[i])
            segments[place, :length] = torch.tensor(data.segments[i])
            real[place, :length] = 1
        yield tokens, segments, real, torch.from_numpy(data.labels[chosen])


@torch.no_grad()
def predict(model: Classifier, data: Encoded, batch_size: int) -> Float[np.ndarray, "n C"]:
    """Compute the logits of every example."""
    model.eval()
    device = next(model.parameters()).device
    parts = [
        model(*(x.to(device) for x in inputs)).float().cpu()
        for *inputs, _ in _batches(data, np.arange(len(data.labels)), batch_size)
    ]
    return torch.cat(parts).numpy()


@dataclass(frozen=True)
class Recipe:
    """Hyperparameters of fine-tuning.

    The optimizer is AdamW. The learning rate increases linearly over the first 6% of the steps and
    then decreases linearly to 0.

    Attributes:
        lr: Peak learning rate.
        epochs: Passes over the training examples; the result is that of the best epoch on dev.
        batch_size: Examples per step.
        seed: Seed of the head, the order of the examples and dropout.
        weight_decay: Weight decay of AdamW.
        clip: Maximum norm of the gradients.
    """

    lr: float
    epochs: int = 3
    batch_size: int = 32
    seed: int = 0
    weight_decay: float = 0.01
    clip: float = 1.0

    def optimiser(self, model: nn.Module, rows: int) -> Optimiser:
        """Build the optimizer and the learning rate scheduler.

        Args:
            model: The classifier.
            rows: Number of training examples.
        """
        steps = self.epochs * -(-rows // self.batch_size)
        warm = max(1, round(0.06 * steps))
        adam = torch.optim.AdamW(model.parameters(), lr=self.lr, weight_decay=self.weight_decay)
        rate = torch.optim.lr_scheduler.LambdaLR(
            adam, lambda step: min((step + 1) / warm, (steps - step) / max(1, steps - warm))
        )
        return adam, rate


def fine_tune(
    encoder: nn.Module,
    width: int,
    train: Encoded,
    dev: Encoded,
    *,
    recipe: Recipe,
    metric: str = "accuracy",
    progress: Advance | None = None,
) -> list[dict[str, float]]:
    """Fine-tune a copy of an encoder.

    Args:
        encoder: The encoder, which is not changed.
        width: Size of its hidden states.
        train: Examples to train on.
        dev: Examples to evaluate on.
        recipe: Hyperparameters.
        metric: Metric by which epochs are compared.
        progress: Called with the number of examples after each step.

    Returns:
        The metrics on dev after each epoch.

    Raises:
        DivergedError: If a score is not finite.
    """
    device = next(encoder.parameters()).device
    shuffle = np.random.default_rng(recipe.seed)

    def validate(epochs: int) -> dict[str, float]:
        scores = predict(model, dev, recipe.batch_size)
        check_finite(scores, epochs)
        return measure(dev.labels, scores.argmax(axis=-1))

    def one_pass() -> Iterator[tuple[Tensor, ...]]:
        return _batches(train, shuffle.permutation(len(train.labels)), recipe.batch_size)

    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(recipe.seed)
        model = Classifier(copy.deepcopy(encoder), width).to(device)
        optimiser = recipe.optimiser(model, len(train.labels))
        options = {"one_pass": one_pass, "validate": validate, "progress": progress}
        return fit(
            model, optimiser, recipe.epochs, metric=metric, clip=recipe.clip, **options
        ).metrics


def cells(
    encoder: nn.Module,
    width: int,
    task: Task,
    parts: Sequence[Encoded],
    recipes: Sequence[Recipe],
) -> list[Cell]:
    """List the fine-tuning runs of a task.

    Args:
        encoder: The encoder.
        width: Size of its hidden states.
        task: The task.
        parts: Training and dev examples.
        recipes: Hyperparameters of each run.
    """
    weights = {name: weight.cpu() for name, weight in encoder.state_dict().items()}
    content = repr([(part.tokens, part.segments, part.labels.tolist()) for part in parts])
    on = {
        "task": task.name,
        "data": hashlib.sha256(content.encode()).hexdigest()[:16],
        "weights": weights_digest(weights)[:16],
    }

    def cell(recipe: Recipe) -> Cell:
        def run(progress: Advance) -> dict[str, object]:
            options = {"recipe": recipe, "metric": task.metric, "progress": progress}
            return {"dev": fine_tune(encoder, width, *parts, **options)}

        return Cell({**on, **asdict(recipe)}, recipe.epochs * len(parts[0].labels), run)

    return [cell(recipe) for recipe in recipes]


@dataclass(frozen=True)
class Outcome:
    """Results of all seeds with one learning rate.

    Attributes:
        lr: The learning rate.
        values: The task's metric of each seed's best epoch on dev.
        others: The other metrics at those epochs, averaged over seeds.
        epochs: The best epoch of each seed, counted from 1.
    """

    lr: float
    values: Float64[np.ndarray, " seeds"]
    others: dict[str, float]
    epochs: list[int]

    @property
    def mean(self) -> float:
        """Mean of the metric over seeds."""
        return float(self.values.mean())

    @property
    def standard_error(self) -> float | None:
        """Standard error of the mean over seeds; ``None`` for a single seed."""
        n = len(self.values)
        return None if n < 2 else float(self.values.std(ddof=1) / np.sqrt(n))


def summarise(task: Task, lr: float, runs: Sequence[list[dict[str, float]]]) -> Outcome:
    """Choose the best epoch of each seed by the task's metric; ties go to the first epoch.

    Args:
        task: The task.
        lr: The learning rate of all runs.
        runs: Results of ``fine_tune``, one for each seed.
    """
    epochs = [best_epoch(run, task.metric) for run in runs]
    rows = [run[epoch - 1] for run, epoch in zip(runs, epochs, strict=True)]
    others = {m: float(np.mean([row[m] for row in rows])) for m in METRICS if m != task.metric}
    values = np.array([row[task.metric] for row in rows])
    return Outcome(lr, values, others, epochs)


def build_table(
    task: Task, by_rate: Mapping[float, Sequence[dict]], title: str, dev_size: int
) -> tuple[Sheet, list[dict[str, object]], list[str]]:
    """Build a table with a row for each learning rate and the published number.

    Args:
        task: The task.
        by_rate: Results of the seeds for each learning rate.
        title: Title above the table.
        dev_size: Number of dev examples.

    Returns:
        The table, its rows for JSON, and the notes below it.
    """
    best = choose(by_rate, lambda result: max(epoch[task.metric] for epoch in result["dev"]))
    others = [name for name in METRICS if name != task.metric]
    rows, records = [], []
    for lr, found in by_rate.items():
        if diverged(found):
            rows.append([f"{lr:g}", "diverged", *[""] * (len(others) + 3)])
            records.append({"lr": lr, "diverged": True})
            continue
        outcome = summarise(task, lr, [result["dev"] for result in found])
        error = outcome.standard_error
        rows.append(
            [
                f"{lr:g}{' *' if lr == best else ''}",
                f"{outcome.mean:.2f}",
                "" if error is None else f"{error:.2f}",
                str(len(outcome.values)),
                *(f"{outcome.others[name]:.2f}" for name in others),
                " ".join(map(str, outcome.epochs)),
            ]
        )
        records.append(
            {
                "lr": lr,
                "chosen": lr == best,
                task.metric: outcome.mean,
                "standard_error": error,
                **outcome.others,
                "epochs": outcome.epochs,
            }
        )
    rows.append(["published MDLM", f"{task.published:.2f}", *[""] * (len(others) + 3)])
    headings = ("lr", task.metric, "± SE", "seeds", *others, "best epochs")
    notes = [
        f"The table shows {task.metric} on dev, times 100, at the best epoch of each seed. ± SE is "
        "the standard error over seeds. Epoch and learning rate (*) are chosen on dev, so the best "
        "result is biased upwards. The published model was trained for 5,000 steps on C4."
    ]
    if dev_size != task.dev_size:
        notes.append(
            f"This dev set has {dev_size:,} examples and the published one has {task.dev_size:,}, "
            "so the published number is NOT comparable."
        )
    return Sheet(title, headings, rows), records, notes

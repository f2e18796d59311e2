"""A classifier on top of a backbone, the padded batches that it reads, and its metrics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Int64, UInt8
from torch import Tensor, nn

from genomics.finetune.labelled import Labelled
from genomics.finetune.protocol import Conjoin, Pooling
from genomics.sequence import MASK_ID
from seqdiff.backbones import Backbone
from seqdiff.extras import require_extra
from seqdiff.samplers import read_back
from seqdiff.types import Inputs


def crop(ids: UInt8[np.ndarray, " L"], length: int) -> UInt8[np.ndarray, " l"]:
    """Keep the middle of what is longer; of an odd number of bases too many, one more goes last."""
    first = max(0, len(ids) - length) // 2
    return ids[first : first + length]


def pad(
    data: Labelled, rows: Int64[np.ndarray, " B"], length: int, *, width: int | None = None
) -> tuple[Tensor, Tensor]:
    """Put rows into one batch, cropped to ``length`` and padded after their ends.

    Args:
        data: Sequences.
        rows: Which.
        length: Most bases of a row.
        width: Of the batch; by default, as its longest row.

    Returns:
        Ids ``[B, L]`` and True where there is no base, ``[B, L]``.
    """
    cut = [crop(data.ids[row], length) for row in rows]
    width = max(len(ids) for ids in cut) if width is None else width
    tokens = np.full((len(cut), width), MASK_ID, dtype=np.int64)
    padding = np.ones((len(cut), width), dtype=bool)
    for place, ids in enumerate(cut):
        tokens[place, : len(ids)] = ids
        padding[place, : len(ids)] = False
    return torch.from_numpy(tokens), torch.from_numpy(padding)


def batches(
    data: Labelled,
    order: Int64[np.ndarray, " n"],
    size: int,
    length: int,
    *,
    width: int | None = None,
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield ids, padding and labels, with no row left out.

    Args:
        data: Sequences.
        order: Rows in the order in which they are seen.
        size: Rows of a batch; the last may have fewer.
        length: See ``pad``.
        width: See ``pad``.
    """
    for first in range(0, len(order), size):
        rows = order[first : first + size]
        yield *pad(data, rows, length, width=width), torch.from_numpy(data.labels[rows])


@dataclass(frozen=True)
class Scores:
    """Metrics of one set of rows; ``None`` where one is not defined.

    Attributes:
        num: Rows.
        accuracy: Fraction of rows whose most likely class is correct.
        matthews: Correlation of classes and predictions, in [-1, 1].
        auroc: Area under the ROC curve; for more than two classes, the mean over one against the
            rest.
    """

    num: int
    accuracy: float | None
    matthews: float | None
    auroc: float | None

    def record(self) -> dict[str, float | int | None]:
        """Give what JSON holds."""
        return asdict(self)


def measure(truth: Int64[np.ndarray, " n"], probs: Float[np.ndarray, "n C"]) -> Scores:
    """Compute the metrics by scikit-learn.

    Args:
        truth: Classes.
        probs: Probability of each class.
    """
    metrics = require_extra("sklearn.metrics", "finetune", "genomics")
    if len(truth) == 0:
        return Scores(0, None, None, None)
    found = probs.argmax(axis=1)
    accuracy = float(metrics.accuracy_score(truth, found))
    classes = np.arange(probs.shape[1])
    if len(np.unique(truth)) < len(classes):
        return Scores(len(truth), accuracy, None, None)
    matthews = float(metrics.matthews_corrcoef(truth, found))
    if len(classes) == 2:
        return Scores(
            len(truth), accuracy, matthews, float(metrics.roc_auc_score(truth, probs[:, 1]))
        )
    area = np.mean([metrics.roc_auc_score(truth == c, probs[:, c]) for c in classes])
    return Scores(len(truth), accuracy, matthews, float(area))


def measure_both(
    truth: Int64[np.ndarray, " n"], probs: Float[np.ndarray, "n C"], seen: Bool[np.ndarray, " n"]
) -> dict[str, dict[str, float | int | None]]:
    """Measure on a whole test set, and on its rows that training has not seen.

    Args:
        truth: Classes.
        probs: Probability of each class.
        seen: From ``genomics.finetune.labelled.seen_in_task``.
    """
    return {
        "test": measure(truth, probs).record(),
        "unseen": measure(truth[~seen], probs[~seen]).record(),
    }


class SequenceClassifier(nn.Module):
    """Scores classes by the mean state, on one strand or averaged over both.

    A network that reads both strands (Caduceus-PS) gives two states, which share the head and whose
    scores are averaged, so that a sequence and its reverse complement have the same scores, in
    training too. Any other network reads one strand, unless it is conjoined: then it is run on both
    and their scores are averaged, at test or in training too. Source: Schiff et al. 2024,
    arXiv:2403.03234, section 4.

    Attributes:
        backbone: The network.
        head: Of the classes.
        conjoin: When one strand's network is run on both.
        pooling: Over real positions alone, or as published code does: padding is read as unknown
            bases, and pooled with the rest.
    """

    def __init__(
        self,
        backbone: Backbone,
        num_classes: int,
        *,
        complement: Sequence[int],
        conjoin: Conjoin = "none",
        pooling: Pooling = "real",
    ) -> None:
        """Put a new head on a network.

        Args:
            backbone: The network.
            num_classes: Classes to tell apart.
            complement: The id of each base on the other strand.
            conjoin: See the class; ``none`` for a network that reads both strands.
            pooling: See the class.

        Raises:
            ValueError: If a network that reads both strands is to be conjoined.
        """
        super().__init__()
        if backbone.strands == 2 and conjoin != "none":
            raise ValueError(
                f"SequenceClassifier.conjoin must be none for a network that reads both strands, "
                f"got {conjoin}; its scores are averaged over them as it is"
            )
        self.backbone = backbone
        self.conjoin: Conjoin = conjoin
        self.pooling: Pooling = pooling
        self.complement: Tensor
        device = next(backbone.parameters()).device
        with_mask = torch.tensor([*complement, len(complement)], device=device)
        self.register_buffer("complement", with_mask, persistent=False)
        self.head = nn.Linear(backbone.width, num_classes, device=device)

    def forward(
        self, tokens: Int[Tensor, "B L"], padding: Bool[Tensor, "B L"]
    ) -> Float[Tensor, "B C"]:
        """Score the classes.

        Args:
            tokens: Ids, the mask where a base is unknown.
            padding: True where there is no base; every row has at least one.
        """
        both = self.conjoin == "train" or (self.conjoin == "test" and not self.training)
        return self.score(self.pool(tokens, padding, both=both))

    def pool(
        self, tokens: Int[Tensor, "B L"], padding: Bool[Tensor, "B L"], *, both: bool
    ) -> Float[Tensor, "B S D"]:
        """Average the states over positions, for each strand that is read.

        Args:
            tokens: See ``forward``.
            padding: See ``forward``.
            both: Whether to run the network on the other strand too.
        """
        if self.pooling == "padded":
            padding = torch.zeros_like(padding)
        if both:
            other = read_back(tokens, self.complement, padding)
            rows = torch.cat((tokens, other)), torch.cat((padding, padding))
            return torch.cat(self.pool(*rows, both=False).chunk(2), dim=1)
        inputs = Inputs(tokens, padding=padding if padding.any() else None)
        states = self.backbone.hidden(inputs)
        states = states.unflatten(-1, (self.backbone.strands, -1))
        real = (~padding)[..., None, None]
        return states.masked_fill(~real, 0).sum(dim=1) / real.sum(dim=1)

    def score(self, pooled: Float[Tensor, "B S D"]) -> Float[Tensor, "B C"]:
        """Score the classes by pooled states: the mean of the strands' scores.

        Args:
            pooled: From ``pool``.
        """
        return self.head(pooled).mean(dim=1)

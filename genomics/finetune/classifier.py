"""A classifier or regression on top of a backbone, its padded batches, and metrics of classes."""

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
    """Keep the middle of a longer sequence; an odd excess cuts one more base at the end."""
    first = max(0, len(ids) - length) // 2
    return ids[first : first + length]


def pad(
    data: Labelled, rows: Int64[np.ndarray, " B"], length: int, *, width: int | None = None
) -> tuple[Tensor, Tensor]:
    """Build a batch of rows, cropped to ``length`` and padded on the right.

    Args:
        data: Sequences.
        rows: Indices of the rows.
        length: Maximum number of bases of a row.
        width: Width of the batch; default: that of its longest row.

    Returns:
        Ids ``[B, L]``, and the padding ``[B, L]``, which is True where there is no base.
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
    """Yield ids, padding and labels of all rows, in batches.

    Args:
        data: Sequences.
        order: Indices of the rows, in order.
        size: Rows per batch; the last batch may have fewer.
        length: See ``pad``.
        width: See ``pad``.
    """
    for first in range(0, len(order), size):
        rows = order[first : first + size]
        yield *pad(data, rows, length, width=width), torch.from_numpy(data.labels[rows])


@dataclass(frozen=True)
class Scores:
    """Metrics of a set of rows; an undefined metric is ``None``.

    Attributes:
        num: Number of rows.
        accuracy: Fraction of rows whose most likely class is correct.
        matthews: Matthews correlation coefficient, in [-1, 1].
        auroc: Area under the ROC curve; for more than two classes, the mean of one-vs-rest.
    """

    num: int
    accuracy: float | None
    matthews: float | None
    auroc: float | None

    def record(self) -> dict[str, float | int | None]:
        """Return the metrics for JSON."""
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


class SequenceClassifier(nn.Module):
    """Classifies sequences by their mean hidden state, on one strand or averaged over both.

    For regression, the logits of the classes are standardised values instead.

    A network that reads both strands (Caduceus-PS) returns two states. The head is applied to each
    and the logits are averaged, so a sequence and its reverse complement have the same logits. Any
    other network reads one strand, unless it is conjoined: then it runs on both strands and the
    logits are averaged, at test time only or also in training. Source: Schiff et al. 2024,
    arXiv:2403.03234, section 4.

    Attributes:
        backbone: The network.
        head: The output layer.
        conjoin: When a network of one strand runs on both strands: ``none``, ``test`` or ``train``.
        pooling: ``real`` averages over real positions. ``padded`` follows published code: padding
            is read as unknown bases, and the average includes it.
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
            num_classes: Number of classes, or of values.
            complement: The id of each base on the other strand.
            conjoin: See the class; ``none`` for a network that reads both strands.
            pooling: See the class.

        Raises:
            ValueError: If a network reads both strands and ``conjoin`` is not ``none``.
        """
        super().__init__()
        if backbone.strands == 2 and conjoin != "none":
            raise ValueError(
                f"SequenceClassifier.conjoin must be none for a network that reads both strands, "
                f"got {conjoin}; its scores are averages over both strands already"
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
        """Compute the logits of the classes.

        Args:
            tokens: Ids; unknown bases are the mask.
            padding: True at padding; every row has at least one base.
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
        """Compute the logits from pooled states, averaged over strands.

        Args:
            pooled: The result of ``pool``.
        """
        return self.head(pooled).mean(dim=1)

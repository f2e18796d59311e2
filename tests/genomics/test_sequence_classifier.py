"""Pooling over real positions, both strands, batches, and the metrics."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from genomics.finetune.classifier import (
    SequenceClassifier,
    batches,
    crop,
    measure,
    pad,
)
from genomics.finetune.goals import Classes
from genomics.finetune.labelled import Labelled
from genomics.finetune.protocol import Conjoin, Pooling
from genomics.sequence.alphabet import DNATokenizer, encode
from seqdiff.backbones import Backbone, Caduceus
from seqdiff.types import Inputs
from tests.oracles import TableBackbone

COMPLEMENT = DNATokenizer().complement
DNA = torch.tensor([*COMPLEMENT, 4])


class Counting(TableBackbone):
    """A network of one strand whose state at a position is the one-hot letter times the
    position.
    """

    width = 5

    def __init__(self) -> None:
        super().__init__(4)
        self.scale = nn.Parameter(torch.ones(()))

    def logits(self, inputs: Inputs) -> Tensor:
        raise AssertionError("nobody asks for logits")

    def embed(self, inputs: Inputs) -> Tensor:
        tokens = inputs.tokens
        place = torch.arange(1, tokens.shape[1] + 1)[None, :, None]
        return self.scale * nn.functional.one_hot(tokens, 5) * place


def classifier(
    conjoin: Conjoin = "none", backbone: Backbone | None = None, pooling: Pooling = "real"
) -> SequenceClassifier:
    torch.manual_seed(0)
    network = Counting() if backbone is None else backbone
    model = SequenceClassifier(
        network,
        3,
        complement=COMPLEMENT,
        conjoin=conjoin,
        pooling=pooling,
    )
    return model.double().eval()


def caduceus(variant: str) -> Caduceus:
    torch.manual_seed(1)
    model = Caduceus(
        10,
        2,
        num_embeddings=5,
        num_logits=4,
        complement=DNA.tolist(),
        variant=variant,  # pyright: ignore[reportArgumentType]
        backend="reference",
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def rows(*sequences: str) -> Labelled:
    labels = np.arange(len(sequences), dtype=np.int64) % 2
    return Labelled(tuple(map(encode, sequences)), labels)


def both(*sequences: str) -> tuple[Tensor, Tensor]:
    return pad(rows(*sequences), np.arange(len(sequences)), 1000)


# Batches


def test_longer_rows_are_cut_to_their_middle() -> None:
    assert crop(np.arange(7, dtype=np.uint8), 4).tolist() == [1, 2, 3, 4]
    assert crop(np.arange(6, dtype=np.uint8), 2).tolist() == [2, 3]
    assert crop(np.arange(2, dtype=np.uint8), 4).tolist() == [0, 1]


def test_rows_of_two_bases_and_more_are_padded_after_their_end() -> None:
    tokens, padding = pad(rows("AC", "ACGTN"), np.array([0, 1]), 4)
    assert tokens.tolist() == [[0, 1, 4, 4], [0, 1, 2, 3]]
    assert padding.tolist() == [[False, False, True, True], [False] * 4]


def test_every_row_is_seen_once_and_with_its_label() -> None:
    data = rows("AA", "CCC", "G", "TTTT", "AC")
    found = list(batches(data, np.array([4, 2, 0, 1, 3]), 2, 10))
    assert [len(labels) for *_, labels in found] == [2, 2, 1]
    assert torch.cat([labels for *_, labels in found]).tolist() == [0, 0, 0, 1, 1]
    assert found[0][0].tolist() == [[0, 1], [2, 4]]


# Pooling


def test_the_mean_is_over_real_positions() -> None:
    tokens, padding = both("ACA", "C")
    pooled = classifier().pool(tokens, padding, both=False)
    assert pooled[0, 0].tolist() == [4 / 3, 2 / 3, 0, 0, 0]
    assert pooled[1, 0].tolist() == [0, 1, 0, 0, 0]
    twin = Counting().hidden(Inputs(tokens)).mean(dim=1)
    assert twin[1].tolist() != pooled[1, 0].tolist(), "a mean over padding too must fail"


@pytest.mark.parametrize("variant", ["ph", "ps"])
@pytest.mark.parametrize("conjoin", ["none", "test"])
def test_scores_do_not_depend_on_padding(variant: str, conjoin: Conjoin) -> None:
    conjoin = "none" if variant == "ps" else conjoin
    model = classifier(conjoin, caduceus(variant))
    alone = [model(*both(text))[0] for text in ("ACGTTGC", "GA", "TTTNA")]
    together = model(*both("ACGTTGC", "GA", "TTTNA"))
    torch.testing.assert_close(torch.stack(alone), together, atol=1e-9, rtol=0)
    tokens, _ = both("ACGTTGC", "GA", "TTTNA")
    twin = model.head(
        model.backbone.hidden(Inputs(tokens)).unflatten(-1, (model.backbone.strands, -1))
    )
    assert (twin.mean(dim=(1, 2)) - together)[1:].abs().max() > 1e-3, "padding that is pooled"


def test_pooled_padding_is_read_as_unknown_bases() -> None:
    """As published: whole rows with their padding; the other strand is that of the whole row."""
    tokens, padding = both("ACA", "C")
    pooled = classifier("test", pooling="padded").pool(tokens, padding, both=True)
    assert pooled[1, 0].tolist() == pytest.approx([0, 1 / 3, 0, 0, 5 / 3])
    assert pooled[1, 1].tolist() == pytest.approx([0, 0, 1, 0, 1]), "NNG: padding comes first"


# Strands


def turn(tokens: Tensor) -> Tensor:
    return DNA[tokens.flip(1)]


@pytest.mark.parametrize("training", [False, True])
def test_both_strands_score_alike_where_they_should(training: bool) -> None:
    tokens, padding = both("ACGTTGC", "GATTACA")

    def differs(variant: str, conjoin: Conjoin) -> bool:
        model = classifier(conjoin, caduceus(variant)).train(training)
        gap = (model(tokens, padding) - model(turn(tokens), padding)).abs().max().item()
        assert gap < 1e-9 or gap > 1e-4
        return gap > 1e-4

    assert not differs("ps", "none")
    assert not differs("ph", "train")
    assert differs("ph", "test") == training
    assert differs("ph", "none")


def test_the_other_strand_of_a_padded_row_is_read_where_it_is_real() -> None:
    """``GGA`` read in reverse is ``TCC``; padding stays at the end."""
    tokens, padding = both("GGA", "ACGTA")
    pooled = classifier("test").pool(tokens, padding, both=True)
    assert pooled[0, 1].tolist() == [0, 5 / 3, 0, 1 / 3, 0]


def test_ps_cannot_be_conjoined() -> None:
    with pytest.raises(ValueError, match=r"SequenceClassifier\.conjoin must be none"):
        classifier("train", caduceus("ps"))


# Metrics


def test_metrics_of_two_classes_by_hand() -> None:
    """Predictions 1 0 1 1 for 1 0 0 1: TP 2, TN 1, FP 1, FN 0; three of four pairs are in order."""
    probs = np.array([[0.1, 0.9], [0.8, 0.2], [0.3, 0.7], [0.4, 0.6]])
    found = measure(np.array([1, 0, 0, 1]), probs)
    assert found.num == 4 and found.accuracy == 0.75
    assert found.matthews == pytest.approx(2 / np.sqrt(3 * 2 * 2 * 1))
    assert found.auroc == 0.75


def test_metrics_of_three_classes_by_hand() -> None:
    truth = np.array([0, 1, 2])
    probs = np.array([[0.5, 0.3, 0.2], [0.6, 0.3, 0.1], [0.1, 0.4, 0.5]])
    found = measure(truth, probs)
    assert found.accuracy == pytest.approx(2 / 3)
    # Class 0: 0.5 against 0.6 and 0.1; class 1: 0.3 against 0.3 (a tie) and 0.4; class 2: all.
    assert found.auroc == pytest.approx((0.5 + 0.25 + 1) / 3)
    # (c s - sum p t) / sqrt((s^2 - sum p^2)(s^2 - sum t^2)), c = 2, s = 3, p = 2 0 1, t = 1 1 1.
    assert found.matthews == pytest.approx((6 - 3) / np.sqrt((9 - 5) * (9 - 3)))


def test_what_is_not_defined_is_none() -> None:
    probs = np.array([[0.9, 0.1], [0.2, 0.8]])
    one_class = measure(np.array([1, 1]), probs)
    assert (one_class.accuracy, one_class.matthews, one_class.auroc) == (0.5, None, None)
    assert measure(np.array([], dtype=np.int64), probs[:0]).accuracy is None


def test_the_unseen_rows_are_measured_apart() -> None:
    probs = np.array([[0.9, 0.1], [0.2, 0.8], [0.9, 0.1], [0.1, 0.9]])
    found = Classes(2).measure_both(
        np.array([0, 1, 1, 0]), probs, np.array([False, False, True, True])
    )
    assert found["test"]["accuracy"] == 0.5
    assert found["unseen"] == {"num": 2, "accuracy": 1.0, "matthews": 1.0, "auroc": 1.0}

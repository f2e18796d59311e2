"""Single runs learn what can be learned, on the parts and strands of the plan."""

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from genomics.finetune.classifier import SequenceClassifier, pad
from genomics.finetune.labelled import LabelledTask
from genomics.finetune.protocol import Conjoin, Strategy
from genomics.finetune.runs import (
    Plan,
    Pooled,
    Recipe,
    fit_probe,
    pool_task,
    run_backbone,
    split_rows,
)
from genomics.sequence.alphabet import DNATokenizer
from seqdiff.training import DivergedError
from seqdiff.types import Inputs
from tests.genomics.toy_tasks import draw, flipped, network, small, toy, unseen


def plan(
    strategy: Strategy = "full", conjoin: Conjoin = "none", *, epochs: int = 1, seed: int = 0
) -> Plan:
    recipe = Recipe(0.01 if strategy == "full" else 0.1, 32, epochs)
    return Plan(recipe, strategy, conjoin, 64, "real", seed)


def auroc(task: LabelledTask, variant: str, strategy: Strategy, conjoin: Conjoin) -> float:
    found = run_backbone(network(variant), task, unseen(task), plan(strategy, conjoin, epochs=4))
    return found["test"]["auroc"]  # pyright: ignore[reportIndexIssue]


@pytest.mark.parametrize(
    ("variant", "strategy", "conjoin"),
    [
        ("ph", "full", "none"),
        pytest.param("ph", "full", "test", marks=pytest.mark.slow),
        pytest.param("ph", "full", "train", marks=pytest.mark.slow),
        pytest.param("ps", "full", "none", marks=pytest.mark.slow),
        pytest.param("ph", "probe", "test", marks=pytest.mark.slow),
    ],
)
def test_what_can_be_learned_is(variant: str, strategy: Strategy, conjoin: Conjoin) -> None:
    """With shuffled labels, 300 rows at chance give .5 +- .034, so .68 is five standard errors
    away.
    """
    assert auroc(toy(), variant, strategy, conjoin) > 0.95
    assert 0.32 < auroc(toy(shuffle=True), variant, strategy, conjoin) < 0.68


@pytest.mark.parametrize("strategy", get_args(Strategy))
def test_the_epoch_is_chosen_on_validation(strategy: Strategy) -> None:
    """All labels of the test set are reversed, which validation must not use."""
    task = LabelledTask("t", ("a", "b"), draw(300, 1), draw(60, 2), flipped(draw(60, 3)))
    found = run_backbone(network(), task, unseen(task), plan(strategy, epochs=4))
    accuracies, test = found["valid_accuracy"], found["test"]
    assert isinstance(accuracies, list) and isinstance(test, dict)
    assert max(accuracies) > 0.85 and test["accuracy"] < 0.3
    assert found["epoch"] == int(np.argmax(accuracies)) + 1 and found["num_train"] == 300


@pytest.mark.parametrize("strategy", get_args(Strategy))
def test_pooled_padding_fills_rows_up_to_the_length(strategy: Strategy) -> None:
    """Every batch of the network has a width of 64 and no padding left."""
    backbone, seen = network(), set()
    backbone.embedding.register_forward_hook(
        lambda module, inputs, output: seen.add(output.shape[1])
    )
    inner = backbone.hidden

    def hidden(inputs: Inputs, layer: int | None = None) -> Tensor:
        assert inputs.padding is None
        return inner(inputs, layer)

    backbone.hidden = hidden
    task = small()
    run_backbone(backbone, task, unseen(task), replace(plan(strategy, "test"), pooling="padded"))
    assert seen == {64}


def test_results_follow_from_the_seed() -> None:
    task = toy(shuffle=True)

    def result(seed: int) -> dict[str, object]:
        found = run_backbone(network(), task, unseen(task), plan(seed=seed))
        return found | {"seconds": 0, "train_seconds": 0}

    first = result(0)
    assert result(0) == first
    assert result(1)["test"] != first["test"], "seeds that make no difference"


def test_each_seed_has_a_head_of_its_own() -> None:
    heads = []

    def pool(model: SequenceClassifier, task: LabelledTask, plan: Plan) -> Pooled:
        heads.append(model.head.weight.detach().clone())
        return pool_task(model, task, plan)

    task = small(valid=True)
    for seed in (0, 1, 0):
        run_backbone(network(), task, unseen(task), plan("probe", seed=seed), pool=pool)
    assert torch.equal(heads[0], heads[2]) and not torch.equal(heads[0], heads[1])


def test_the_speed_is_said_only_where_the_network_learns() -> None:
    """A probe reads each sequence once, whatever the number of epochs."""
    task = small()
    full = run_backbone(network(), task, unseen(task), plan("full"))
    seconds, whole = full["train_seconds"], full["seconds"]
    assert isinstance(seconds, float) and isinstance(whole, float) and 0 < seconds <= whole + 0.01
    assert "train_seconds" not in run_backbone(network(), task, unseen(task), plan("probe"))


@pytest.mark.parametrize("strategy", get_args(Strategy))
def test_test_scores_that_are_not_finite_are_a_divergence(strategy: Strategy) -> None:
    """Validation is finite; the state of one test row, the only one of 21 bases, is not."""
    backbone, task = network(), small()
    long = [ids for ids in (*task.train.ids, *task.test.ids) if len(ids) == 21]
    rows = [n for n, ids in enumerate(task.train.ids) if len(ids) != 21]
    train = task.train.select(np.array(rows))
    assert long and any(len(ids) == 21 for ids in task.test.ids)
    inner = backbone.hidden

    def hidden(inputs: Inputs, layer: int | None = None) -> Tensor:
        states = inner(inputs, layer)
        if inputs.padding is None:
            return states
        odd = (~inputs.padding).sum(dim=1) == 21
        return states.masked_fill(odd[:, None, None], torch.nan)

    backbone.hidden = hidden
    with pytest.raises(DivergedError) as raised:
        run_backbone(backbone, replace(task, train=train), unseen(task), plan(strategy))
    assert raised.value.epochs == 1


# Probes


def test_a_probe_leaves_the_network_alone() -> None:
    backbone, task = network(), small()
    before = {name: p.clone() for name, p in backbone.state_dict().items()}
    run_backbone(backbone, task, unseen(task), plan("probe"))
    for name, p in backbone.state_dict().items():
        torch.testing.assert_close(p, before[name], atol=0, rtol=0)


@pytest.mark.parametrize("conjoin", ["none", "test", "train"])
def test_states_are_those_of_each_row_alone(conjoin: Conjoin) -> None:
    task, both = small(valid=True), conjoin != "none"
    model = SequenceClassifier(
        network(), 2, complement=DNATokenizer().complement, conjoin=conjoin
    ).eval()
    found = pool_task(model, task, plan("probe", conjoin))
    assert task.valid is not None and found.valid is not None
    for states, data in ((found.train, task.train), (found.valid, task.valid)):
        assert states.shape == (len(data), 1 + both, 8)
        for row in (0, 7, 19):
            alone = model.pool(*pad(data, np.array([row]), 64), both=both)
            torch.testing.assert_close(states[row], alone[0], atol=1e-5, rtol=1e-5)
    assert len(found.test) == len(task.test)


def two_strands(task: LabelledTask, *, other: float) -> Pooled:
    """In training the given strand's states determine the class, and those of the other strand do
    not.
    """
    assert task.valid is not None

    def states(labels: np.ndarray) -> Tensor:
        return (2.0 * torch.from_numpy(labels)[:, None, None] - 1).float().repeat(1, 2, 1)

    train, valid, test = (states(part.labels) for part in (task.train, task.valid, task.test))
    train[:, 1] = other
    test[:, 1] *= -1
    return Pooled(train, valid, test)


def test_conjoined_at_test_a_probe_learns_from_one_strand() -> None:
    task = small(valid=True)
    pooled = two_strands(task, other=torch.nan)
    at_test = replace(plan("probe", "test"), recipe=Recipe(0.5, 8, 20))
    fitted, probs = fit_probe(nn.Linear(1, 2), pooled, task, at_test, None)
    assert fitted.metrics[-1]["accuracy"] == 1.0
    np.testing.assert_allclose(probs, np.broadcast_to(probs[0], probs.shape), atol=1e-6)
    with pytest.raises(DivergedError):
        fit_probe(nn.Linear(1, 2), pooled, task, plan("probe", "train"), None)


def test_a_probe_holds_out_what_the_whole_network_does() -> None:
    """States are one-hot row numbers, so the weights show which rows were used."""
    task = small()
    train = torch.eye(60)[:, None, :]
    pooled = Pooled(train, None, torch.zeros(30, 1, 60))
    head = nn.Linear(60, 2)
    nn.init.zeros_(head.weight)
    fit_probe(head, pooled, task, plan("probe", epochs=1, seed=3), None)
    moved = head.weight.detach().abs().sum(dim=0) > 0
    assert np.flatnonzero(moved.numpy()).tolist() == split_rows(task, 3)[0].tolist()

"""Splits, learning rate, order of batches, and choice of the epoch."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from genomics.finetune.goals import Classes
from genomics.finetune.labelled import Labelled, LabelledTask
from genomics.finetune.runs import Recipe, fit_goal, hold_out, record, shuffled
from seqdiff.training import DivergedError, Fitted, finetuning
from tests.genomics.toy_tasks import draw, toy

TRUTH, GOAL = np.array([0, 1, 0, 1]), Classes(2)


def answers(right: int) -> np.ndarray:
    """Probabilities with that many of four rows correct."""
    told = np.where(np.arange(4) < right, TRUTH, 1 - TRUTH)
    return np.eye(2, dtype=np.float32)[told]


class Script:
    """A validation part with prepared accuracies, which records the weights that it evaluates."""

    def __init__(self, *told: np.ndarray) -> None:
        torch.manual_seed(0)
        self.model, self.told = nn.Linear(3, 2), iter(told)
        self.weights: list[Tensor] = []

    def valid_probs(self) -> np.ndarray:
        self.weights.append(self.model.weight.detach().clone())
        return next(self.told)

    def fit(self, epochs: int) -> Fitted:
        sgd = torch.optim.SGD(self.model.parameters(), lr=1.0)
        rate = torch.optim.lr_scheduler.LambdaLR(sgd, lambda _: 1.0)
        batch = torch.ones(1, 3), torch.zeros(1, dtype=torch.int64)
        return fit_goal(
            self.model,
            (sgd, rate),
            epochs,
            GOAL,
            one_pass=lambda: [batch],
            valid_predictions=self.valid_probs,
            valid_labels=TRUTH,
        )


def test_the_first_of_the_best_epochs_stays() -> None:
    """Three of four rows are correct after epochs 2 and 3; then it gets worse."""
    script = Script(*map(answers, (2, 3, 3, 1)))
    fitted = script.fit(4)
    assert record(fitted, GOAL) == {"epoch": 2, "valid_accuracy": [0.5, 0.75, 0.75, 0.25]}
    assert torch.equal(script.model.weight, script.weights[1])
    for other in (0, 2, 3):
        assert not torch.equal(script.weights[other], script.weights[1])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_network_that_is_not_finite_says_after_how_many_epochs(bad: float) -> None:
    broken = answers(4)
    broken[3, 1] = bad
    with pytest.raises(DivergedError) as raised:
        Script(answers(3), answers(2), broken).fit(3)
    assert raised.value.epochs == 2


def test_the_seconds_are_those_of_learning_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that advances 1 s in a training pass and 100 s in a prediction."""
    now = [0.0]
    monkeypatch.setattr(finetuning.time, "perf_counter", lambda: now[0])
    script = Script(*map(answers, (2, 3)))

    def learn(*args: object, **options: object) -> None:
        now[0] += 1

    monkeypatch.setattr(finetuning, "learn_pass", learn)
    real = script.valid_probs

    def slow() -> np.ndarray:
        now[0] += 100
        return real()

    script.valid_probs = slow
    assert script.fit(2).train_seconds == 2


def test_every_pass_has_an_order_of_its_own() -> None:
    data = draw(50, 0)
    numbered = Labelled(data.ids, np.arange(50))

    def passes(seed: int) -> Iterator[list[int]]:
        one_pass = shuffled(numbered, seed, 16, 64)
        for _ in range(2):
            found = list(one_pass())
            assert [len(labels) for *_, labels in found] == [16, 16, 16, 2]
            yield torch.cat([labels for *_, labels in found]).tolist()

    first, second = passes(0)
    assert sorted(first) == sorted(second) == list(range(50))
    assert first != list(range(50)) and first != second
    assert [first, second] == list(passes(0)) and first != next(passes(1))


def test_the_splits_are_nine_to_one_and_of_their_own() -> None:
    task = toy()
    parts = [hold_out(task, seed) for seed in range(3)]
    assert [(len(train), len(valid)) for train, valid in parts] == [(450, 50)] * 3
    for train, valid in parts:
        together = sorted(ids.tobytes() for ids in (*train.ids, *valid.ids))
        assert together == sorted(ids.tobytes() for ids in task.train.ids)
    assert len({b"".join(ids.tobytes() for ids in valid.ids) for _, valid in parts}) == 3


def rare() -> LabelledTask:
    """One of twenty training sequences is of class 1; two are held out."""
    train = Labelled(draw(20, 0).ids, np.eye(20, dtype=np.int64)[7])
    return LabelledTask("rare", ("a", "b"), train, None, draw(20, 1))


def test_a_training_part_without_a_class_is_refused() -> None:
    held = [7 in np.random.default_rng(seed).permutation(20)[18:] for seed in range(40)]
    assert 0 < sum(held) < 40
    for seed, without in enumerate(held):
        if without:
            with pytest.raises(ValueError, match=r"the 90% of train .* must hold every class"):
                hold_out(rare(), seed)
        else:
            assert hold_out(rare(), seed)[0].labels.sum() == 1


def test_the_rate_warms_up_for_a_hundredth_and_ends_at_nothing() -> None:
    model = torch.nn.Linear(2, 2)
    adam, rate = Recipe(1.0, 10, 10).optimiser(model, 1000)
    rates = []
    for _ in range(1000):
        rates.append(adam.param_groups[0]["lr"])
        adam.step()
        rate.step()
    assert np.argmax(rates) in (9, 10) and rates[0] == pytest.approx(0.1)
    assert rates[-1] < 1e-4 and rates[505] == pytest.approx(0.5, abs=0.01)
    assert [group["weight_decay"] for group in adam.param_groups] == [0.1, 0.0]

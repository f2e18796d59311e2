"""BERT's objective against its enumerated expectation and the distributions of its choices.

The false-alarm rate of each mean is 1e-6 (4.9 standard errors). The broken twins are off by more
than twice that, so each is caught with a probability above 0.999.
"""

import itertools
import math
from dataclasses import dataclass, replace

import pytest
import torch
from scipy.stats import norm

from seqdiff.denoiser.discrete import Denoiser
from seqdiff.objectives import MaskedLM, WeightedMLM, cross_entropy, validation_objective
from seqdiff.process import Absorbing
from seqdiff.rng import CounterNoise
from seqdiff.schedules import Linear
from seqdiff.types import Batch, Inputs
from tests.oracles import LookupBackbone, UniformBackbone
from tests.statistics import pearson, power

K, ROWS = 3, 30_000
PROCESS = Absorbing(K, Linear())
SIGMAS = float(norm.isf(0.5e-6))
HALF = MaskedLM(fraction=0.5)


class Watching(Denoiser):
    """A denoiser that records its inputs."""

    def __init__(self, length: int, process: Absorbing = PROCESS) -> None:
        size = process.vocab_size
        short = length <= 5
        network = LookupBackbone(size, length, seed=7) if short else UniformBackbone(size)
        super().__init__(network, process)
        self.shown: list[torch.Tensor] = []
        self.times: list[torch.Tensor] = []

    def nats(self, inputs, x0, where):
        self.shown.append(inputs.tokens)
        self.times.append(inputs.t)
        return super().nats(inputs, x0, where)


def batch(x0: torch.Tensor, loss_mask: torch.Tensor | None = None, rows: int = ROWS) -> Batch:
    known = (x0 < K) if loss_mask is None else loss_mask
    return Batch(x0.repeat(rows, 1), known.repeat(rows, 1), torch.arange(rows))


def run(objective: MaskedLM, rows: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """The terms of the objective, and the network's inputs."""
    watching = Watching(rows.tokens.shape[1])
    terms = objective.terms(watching, rows, CounterNoise(11))
    return terms, watching.shown[0]


def expectation(objective: MaskedLM, x0: torch.Tensor, count: int) -> float:
    """Enumerate every choice of ``count`` positions and every replacement at them."""
    length = len(x0)
    fates = [(objective.mask_probability, K)]
    fates += [(objective.random_probability / K, symbol) for symbol in range(K)]
    fates += [(1 - objective.mask_probability - objective.random_probability, -1)]
    network = Watching(length)
    total = 0.0
    subsets = list(itertools.combinations(range(length), count))
    for chosen in subsets:
        for ways in itertools.product(fates, repeat=count):
            shown = x0.clone()
            for place, (_, symbol) in zip(chosen, ways, strict=True):
                shown[place] = x0[place] if symbol < 0 else symbol
            distribution = network.backbone(Inputs(shown[None]))[0].log_softmax(dim=-1)
            chance = math.prod(p for p, _ in ways) / len(subsets)
            cost = -sum(float(distribution[place, x0[place]]) for place in chosen)
            total += chance * cost * length / count
    return total


def z_score(objective: MaskedLM, x0: torch.Tensor, count: int) -> float:
    rows = run(objective, batch(x0))[0].sum(dim=-1)
    exact = expectation(replace(HALF, fraction=objective.fraction), x0, count)
    return float((rows.mean() - exact) / (rows.std() / math.sqrt(ROWS)))


X0 = torch.tensor([2, 0, 1, 1])


@pytest.mark.parametrize(("fraction", "count"), [(0.15, 1), (0.5, 2)])
def test_the_loss_is_its_expectation(fraction: float, count: int) -> None:
    assert abs(z_score(MaskedLM(fraction), X0, count)) < SIGMAS


class OffByOne(Absorbing):
    """Broken: replacements are drawn from all ids including the mask."""

    mask_id = unknown_id = K


@dataclass(frozen=True)
class OnlyMasked(MaskedLM):
    """Broken: SUBS copies chosen tokens that stay visible, at no cost."""

    def terms(self, denoiser, batch, noise):
        copying = Watching(batch.tokens.shape[1])
        copying.shown, real = denoiser.shown, copying.nats
        copying.nats = lambda given, x0, where: real(given, x0, where & (given.tokens == K))
        return super().terms(copying, batch, noise)


@dataclass(frozen=True)
class OverAll(MaskedLM):
    """Broken: the mean over all positions instead of the chosen ones."""

    def terms(self, denoiser, batch, noise):
        return super().terms(denoiser, batch, noise) * self.fraction


@dataclass(frozen=True)
class FirstSymbol(MaskedLM):
    """Broken: every replacement is the same symbol."""

    def _disguise(self, process, batch, noise):
        shown = super()._disguise(process, batch, noise)
        return torch.where((shown != batch.tokens) & (shown != process.mask_id), 0, shown)


@pytest.mark.parametrize(
    "broken",
    [
        OnlyMasked(0.5),
        OverAll(0.5),
        replace(HALF, mask_probability=1.0, random_probability=0.0),
    ],
    ids=["only masked", "over all", "100/0/0"],
)
def test_broken_losses_are_caught(broken: MaskedLM) -> None:
    assert abs(z_score(broken, X0, 2)) > 2 * SIGMAS


@pytest.mark.parametrize(("n", "count"), [(1, 1), (3, 1), (9, 1), (10, 2), (20, 3), (200, 30)])
def test_every_sequence_has_its_own_exact_number(n: int, count: int) -> None:
    """BERT's rule: 15% of the tokens and at least one; the batch does not change a sequence's
    number.
    """
    tokens, mask = torch.full((2, 200), 1), torch.zeros(2, 200, dtype=torch.bool)
    mask[0, :n], mask[1, :40] = True, True
    rows = Batch(tokens, mask, torch.arange(2))
    chosen = (run(MaskedLM(), rows)[0] > 0).sum(dim=-1)
    assert chosen.tolist() == [count, 6]


def test_a_collater_that_never_masks_one_token_would_be_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = cross_entropy.permutation_rank
    monkeypatch.setattr(cross_entropy, "permutation_rank", lambda *a: (real(*a) - 1).clamp_min(0))
    with pytest.raises(AssertionError):
        test_every_sequence_has_its_own_exact_number(9, 1)
    assert abs(z_score(MaskedLM(), X0, 1)) > 2 * SIGMAS


LAW = torch.tensor([0.1 / 3, 0.1 / 3 + 0.1, 0.1 / 3, 0.8], dtype=torch.float64)


def shown_counts(objective: MaskedLM, process: Absorbing = PROCESS) -> torch.Tensor:
    """Count how a chosen symbol 1 is shown: as any of the K symbols, or as the mask."""
    watching = Watching(1, process)
    rows = batch(torch.tensor([1]))
    objective.terms(watching, rows, CounterNoise(3))
    return torch.bincount(watching.shown[0][:, 0], minlength=K + 1).double()


def test_eighty_ten_ten_from_real_symbols_only() -> None:
    """30,000 draws; the power against each twin, computed below, is above 0.999."""
    statistic, threshold = pearson(shown_counts(MaskedLM()), LAW)
    assert statistic < threshold
    with_mask = torch.tensor([0.025, 0.125, 0.025, 0.825], dtype=torch.float64)
    always_first = torch.tensor([0.1, 0.1, 0.0, 0.8], dtype=torch.float64)
    never_kept = torch.tensor([0.2 / 3, 0.2 / 3, 0.2 / 3, 0.8], dtype=torch.float64)
    for wrong in (with_mask, always_first, never_kept):
        assert power(wrong, LAW, ROWS) > 0.999
    for broken in (
        shown_counts(MaskedLM(), OffByOne(K + 1, Linear())),
        shown_counts(FirstSymbol()),
        shown_counts(MaskedLM(random_probability=0.2)),
    ):
        statistic, threshold = pearson(broken, LAW)
        assert statistic > threshold


def test_positions_are_chosen_alike() -> None:
    """Each of 4 positions is the chosen one in a quarter of the rows."""
    chosen = (run(MaskedLM(), batch(X0))[0] > 0).sum(dim=0).double()
    distribution = torch.full((4,), 0.25, dtype=torch.float64)
    statistic, threshold = pearson(chosen, distribution)
    assert statistic < threshold
    assert power(torch.tensor([0.28, 0.24, 0.24, 0.24]), distribution, ROWS) > 0.999, (
        "a twin's distribution"
    )


def test_context_and_unknown_symbols_never_count_and_stay() -> None:
    tokens, mask = torch.tensor([2, 0, K, 1]), torch.tensor([True, False, False, True])
    terms, shown = run(MaskedLM(), batch(tokens, mask))
    assert bool((terms[:, 1:3] == 0).all()) and bool((terms[:, [0, 3]] > 0).any(dim=0).all())
    assert bool((shown[:, 1] == 0).all()) and bool((shown[:, 2] == K).all())
    assert bool((shown[terms == 0] == tokens.repeat(ROWS, 1)[terms == 0]).all())
    empty, _ = run(MaskedLM(), batch(torch.full((4,), K), rows=9))
    assert bool((empty == 0).all())


def test_terms_do_not_depend_on_how_rows_are_batched() -> None:
    whole = batch(X0, rows=70)
    parts = [
        MaskedLM().terms(
            Watching(4), Batch(whole.tokens[p], whole.loss_mask[p], p), CounterNoise(11)
        )
        for p in whole.index.split(7)
    ]
    assert torch.equal(torch.cat(parts), run(MaskedLM(), whole)[0])
    longer, mask = torch.cat((X0, X0)), torch.arange(8) < 4
    padded = batch(longer, mask, rows=70)
    assert torch.equal(run(MaskedLM(), padded)[1][:, :4], run(MaskedLM(), whole)[1])


def test_the_time_is_the_fraction_of_masks_and_validation_the_bound() -> None:
    watching = Watching(4)
    HALF.terms(watching, batch(X0, rows=50), CounterNoise(0))
    fraction = (watching.shown[0] == K).sum(dim=-1) / 4
    assert set(fraction.tolist()) == {0.0, 0.25, 0.5}
    torch.testing.assert_close(watching.times[0], fraction)
    assert validation_objective(HALF, watching) == WeightedMLM()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"fraction": 0.0}, r"MaskedLM.fraction must be in \(0, 1\], got 0.0"),
        ({"fraction": 1.5}, r"got 1.5; 0.15 is usual"),
        ({"mask_probability": 0.95}, "add up to 1 at most, got 0.95 and 0.1"),
        ({"random_probability": -0.1}, "must be at least 0"),
    ],
)
def test_bad_probabilities(options: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        MaskedLM(**options)


def test_unknown_symbols_cost_nothing_though_they_be_chosen() -> None:
    """All positions are chosen; unknown ones have no correct symbol and are not scored."""
    x0 = torch.tensor([[0, K, 2, K]])
    rows = batch(x0, torch.ones_like(x0, dtype=torch.bool), rows=50)
    terms, _ = run(MaskedLM(fraction=1.0), rows)
    unknown = (x0 == K).expand_as(terms)
    assert not terms[unknown].any() and bool((terms[~unknown] > 0).all())

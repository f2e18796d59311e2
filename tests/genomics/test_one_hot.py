"""The one-hot adapter, and its use as a sampler's classifier or reward, against enumeration."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from genomics.sequence.alphabet import encode
from genomics.sequence.one_hot import (
    OneHotOracle,
    OracleClassifier,
    OracleReward,
    RelaxedOracleClassifier,
    to_one_hot,
)
from seqdiff.samplers import (
    ExactClassifierBased,
    FirstHittingSampler,
    FirstOrderClassifierBased,
    SMCSampler,
)
from tests.enumeration import distance, outcomes
from tests.guided_worlds import one_at_a_time
from tests.oracles import Joint, OracleBackbone, all_sequences, masked_model

JOINT = Joint.random(4, 2, seed=2)
WORLD = masked_model(OracleBackbone(JOINT))


class Conv(nn.Module):
    """A small oracle in the usual layout: [B, 4, L] to [B, tasks, 1], one logit each."""

    def __init__(self, tasks: int = 1) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weight = torch.randn(tasks, 4, 2, dtype=torch.float64, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        return F.conv1d(x.double(), 2 * self.weight)


def logits(tokens: Tensor) -> Tensor:
    """The same by looking up letters; a mask adds nothing."""
    table = torch.cat((2 * Conv().weight, torch.zeros(1, 1, 2)), dim=1)
    return table[0, tokens[:, 0], 0] + table[0, tokens[:, 1], 1]


def test_letters_by_hand() -> None:
    tokens = torch.from_numpy(encode("ACGTN")).long()[None]
    want = torch.tensor([[1, 0, 0, 0, 0], [0, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 1, 0]])
    assert torch.equal(to_one_hot(tokens), want[None].float())
    assert to_one_hot(tokens, torch.int8).dtype == torch.int8


@pytest.mark.parametrize("ids", [(0, 5), (-1, 4)])
def test_what_is_no_base(ids: tuple[int, int]) -> None:
    said = rf"to_one_hot.tokens must lie in 0\.\.4, got {ids[0]}\.\.{ids[1]}"
    with pytest.raises(ValueError, match=said):
        to_one_hot(torch.tensor([ids]))


def test_a_reward_keeps_no_graph_and_a_relaxed_classifier_does() -> None:
    network = nn.Conv1d(4, 1, 2)
    rows = all_sequences(4, 2)
    assert not OracleReward(OneHotOracle(network))(rows).requires_grad
    relaxed = RelaxedOracleClassifier(OneHotOracle(network))
    assert relaxed(F.one_hot(rows, 5).float()).requires_grad


def wanted() -> dict[tuple[int, ...], float]:
    """The product p(x) p(wanted | x_t), which guidance by the oracle of masked rows draws from."""
    direct = ExactClassifierBased(WORLD, lambda x, t=None, padding=None: F.logsigmoid(logits(x)))
    return one_at_a_time(direct, 4, 2)


def test_an_oracle_as_classifier_draws_the_distribution_it_defines() -> None:
    guided = ExactClassifierBased(WORLD, OracleClassifier(OneHotOracle(Conv())))
    found = one_at_a_time(guided, 4, 2)
    assert distance(found, wanted()) < 1e-6, "the oracle reads float32"
    double = OneHotOracle(Conv(), dtype=torch.float64)
    assert (
        distance(
            one_at_a_time(ExactClassifierBased(WORLD, OracleClassifier(double)), 4, 2), wanted()
        )
        < 1e-12
    )

    class Transposed(Conv):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.flip(1))

    twin = ExactClassifierBased(WORLD, OracleClassifier(OneHotOracle(Transposed())))
    assert distance(one_at_a_time(twin, 4, 2), wanted()) > 0.05, "the twin with TGCA for ACGT"


def test_to_first_order_a_linear_oracle_is_exact() -> None:
    """log p(wanted) is linear in the channels, so both kinds of guidance are equal."""
    oracle = OneHotOracle(Conv(), dtype=torch.float64)
    exact = ExactClassifierBased(WORLD, OracleClassifier(oracle, lambda x: x))
    first = FirstOrderClassifierBased(WORLD, RelaxedOracleClassifier(oracle, lambda x: x))
    distributions = [one_at_a_time(guided, 4, 2) for guided in (exact, first)]
    assert distance(*distributions) < 1e-12
    assert distance(distributions[0], one_at_a_time(WORLD, 4, 2)) > 0.05, "it does steer"


def test_both_classifiers_agree_and_padding_is_n() -> None:
    oracle = OneHotOracle(Conv(), dtype=torch.float64)
    rows = all_sequences(5, 2)
    padding = torch.zeros_like(rows, dtype=torch.bool)
    padding[::2, 1] = True
    exact = OracleClassifier(oracle)(rows, None, padding)
    relaxed = RelaxedOracleClassifier(oracle)(F.one_hot(rows, 5).double(), None, padding)
    torch.testing.assert_close(exact, relaxed, rtol=0, atol=1e-12)
    torch.testing.assert_close(exact, F.logsigmoid(logits(rows.masked_fill(padding, 4))))


def test_an_oracle_as_reward_tilts_smc() -> None:
    """All outcomes of two particles, against the same reward written out."""
    arguments = {"num_particles": 2, "resampling": "multinomial", "ess_threshold": 1.0}
    start = torch.full((1,), 4)
    world = masked_model(OracleBackbone(Joint.random(4, 1, seed=1)))

    class OneBase(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x[:, 1] * 2.0 - x[:, 3]

    def reward(tokens: Tensor) -> Tensor:
        return torch.tensor([0.0, 2.0, 0.0, -1.0, 0.0])[tokens[:, 0]]

    distributions = [
        outcomes(SMCSampler(reward=each, **arguments), world, start).distribution
        for each in (OracleReward(OneHotOracle(OneBase())), reward)
    ]
    assert distance(*distributions) < 1e-6
    plain = outcomes(FirstHittingSampler(), world, start).distribution
    assert distance(distributions[0], plain) > 0.05, "it does tilt"


def test_one_of_several_outputs_is_chosen_by_number() -> None:
    rows = to_one_hot(all_sequences(4, 2))
    both = Conv(2)(rows).flatten(1)
    assert torch.equal(OneHotOracle(Conv(2), task=1)(rows), both[:, 1])
    for oracle, message in (
        (OneHotOracle(Conv(2)), r"one number per row, got shape \(16, 2, 1\) for 16 rows"),
        (OneHotOracle(Conv(2), task=2), r"a number 2 per row, got shape \(16, 2, 1\)"),
        (OneHotOracle(lambda x: x.sum()[None]), r"got shape \(1,\) for 16 rows"),
    ):
        with pytest.raises(ValueError, match=message):
            oracle(rows)

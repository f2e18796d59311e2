"""Known answers of the generator, and draws that float32 would get wrong."""

import math

import pytest
import torch

from seqdiff.rng import MASK_STREAM, TIME_STREAM, CounterNoise, categorical, philox

# Published known-answer vectors of Philox4x32-10: (counter, key) -> output.
KNOWN = [
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_philox_known_answers(counter: list[int], key: list[int], expected: list[int]) -> None:
    words = philox(tuple(torch.tensor([c]) for c in counter), (key[0], key[1]))
    assert [int(word) for word in words] == expected


def test_noise_depends_on_every_coordinate_and_on_nothing_else() -> None:
    noise, index = CounterNoise(3), torch.tensor([5, 9, 2**33 + 5])
    whole = noise.uniform(index, 7, stream=MASK_STREAM)
    alone = noise.uniform(index[1:2], 4, stream=MASK_STREAM)
    assert torch.equal(whole[1:2, :4], alone)
    assert len(whole.flatten().unique()) == 21
    assert not torch.equal(whole, noise.uniform(index, 7, stream=TIME_STREAM))
    assert not torch.equal(whole, CounterNoise(4).uniform(index, 7, stream=MASK_STREAM))


def test_noise_is_uniform_to_second_order() -> None:
    """n = 1e6: five standard errors of the mean, the variance and the lag-1 correlation."""
    u = CounterNoise(0).uniform(torch.arange(1000), 1000, stream=MASK_STREAM)
    assert 0 < u.min() < 1e-5 and 1 - 1e-5 < u.max() < 1
    assert float(u.mean()) == pytest.approx(0.5, abs=5 * math.sqrt(1 / 12e6))
    assert float(u.var()) == pytest.approx(1 / 12, abs=5 * math.sqrt(1 / 180e6))
    for a, b in ((u[:, 1:], u[:, :-1]), (u[1:], u[:-1])):
        assert abs(float(((a - 0.5) * (b - 0.5)).mean() * 12)) < 5e-3


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_seed_must_fit(seed: int) -> None:
    with pytest.raises(ValueError, match=r"CounterNoise.seed must be in \[0, 2\^32\)"):
        CounterNoise(seed)


def test_single_values_are_those_of_the_rows() -> None:
    noise, index = CounterNoise(3), torch.tensor([5, 9, 2**62 + 1])
    whole = noise.uniform(index, 6, stream=7)
    rows, positions = torch.tensor([2, 0, 1, 2]), torch.tensor([0, 5, 2, 3])
    single = noise.uniform_at(index[rows], positions, stream=7)
    assert torch.equal(single, whole[rows, positions])


def test_draws_have_the_distribution_of_their_cells() -> None:
    """Probabilities in 1/8: the centres of a grid of 1/1024 give 128, 0, 384, ... to a letter."""
    eighths = torch.tensor([1, 0, 3, 2, 0, 2])
    log_probs = (eighths / 8).double().log()
    noise = (torch.arange(1024, dtype=torch.float64) + 0.5) / 1024
    drawn = categorical(log_probs.expand(1024, -1), noise)
    assert torch.equal(drawn.bincount(minlength=6), eighths * 128)


def test_rare_letters_win_exactly_as_often_as_they_should() -> None:
    """A last letter of probability 1e-9 wins iff u > 1 - 1e-9; in float32 it takes a whole ulp."""
    log_probs = torch.tensor([1 - 1e-9, 1e-9], dtype=torch.float64).log()

    def wins(u: float) -> bool:
        return bool(categorical(log_probs, torch.tensor(u, dtype=torch.float64)))

    def wins_in_float32(u: float) -> bool:
        steps = log_probs.float().exp().cumsum(-1)
        return bool(torch.searchsorted(steps, torch.tensor(u).float() * steps[-1], right=True))

    assert wins(1 - 0.9e-9) and not wins(1 - 1.1e-9)
    assert wins_in_float32(1 - 1.1e-9), "the float32 twin rounds u to 1"


@pytest.mark.parametrize("u", [2**-54, 0.5, 1 - 2**-53, 1.0])
def test_impossible_letters_are_never_drawn(u: float) -> None:
    log_probs = torch.tensor([-math.inf, 0.0, -math.inf, -40.0, -math.inf])
    drawn = categorical(log_probs, torch.tensor(u, dtype=torch.float64))
    assert int(drawn) in (1, 3)

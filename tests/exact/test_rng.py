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


def test_rare_letters_win_exactly_as_often_as_they_should() -> None:
    """A letter of probability 1e-9 wins against u = 1/2 iff its own u > 1 - ln 2 * 1e-9."""
    log_probs = torch.tensor([1 - 1e-9, 1e-9]).double().log()
    edge = math.log(2) * 1e-9

    def wins(u: float, dtype: torch.dtype) -> bool:
        noise = torch.tensor([0.5, u], dtype=torch.float64).to(dtype)
        if dtype == torch.float64:
            return bool(categorical(log_probs, noise))
        return bool((log_probs.to(dtype) - (-noise.log()).log()).argmax())

    assert wins(1 - 0.9 * edge, torch.float64)
    assert not wins(1 - 1.1 * edge, torch.float64)
    assert wins(1 - 1.1 * edge, torch.float32), "the float32 twin rounds u to 1"


def test_impossible_letters_are_never_drawn() -> None:
    log_probs = torch.tensor([-math.inf, 0.0]).expand(3, 2)
    noise = torch.tensor([[1 - 2**-53, 2**-54]], dtype=torch.float64).expand(3, 2)
    assert categorical(log_probs, noise).tolist() == [1, 1, 1]

"""The synthetic data module: different windows in each split, and the truth beside the
baselines.
"""

import math

import numpy as np
import pytest

from genomics.data.sources import MarkovGenome, entropy_rate
from genomics.data.synthetic import ConsensusMotif, SyntheticDataModule, SyntheticGenome


def module(**changes: int) -> SyntheticDataModule:
    settings = {"num_train": 64, "num_valid": 16, "num_test": 32, "batch_size": 8, **changes}
    return SyntheticDataModule(32, **settings)


def test_splits_are_different_windows_of_one_source() -> None:
    """The splits have the same size, so that a seed used twice would give equal windows."""
    data = module(num_train=32, num_valid=32)
    tokens = {split: data.dataset(split).tokens for split in ("train", "valid", "test")}
    windows = [row.tobytes() for rows in tokens.values() for row in rows]
    assert len(set(windows)) == len(windows) == 96
    again = module(num_train=64, num_valid=16)
    assert {split: len(again.dataset(split)) for split in tokens} == again.sizes
    np.testing.assert_array_equal(again.dataset("test").tokens, tokens["test"])
    assert not np.array_equal(module(data_seed=1).dataset("test").tokens, tokens["test"])


def test_batches_carry_the_windows_and_count_every_base() -> None:
    data = module()
    batch = next(iter(data.evaluation_loader("test")))
    np.testing.assert_array_equal(batch.tokens.numpy(), data.dataset("test").tokens[:8])
    assert bool(batch.loss_mask.all())
    assert next(iter(data.training_loader())).tokens.shape == (8, 32)


def test_source_nats_are_the_truth_window_for_window() -> None:
    data = module()
    expected = -data.source.log_prob(data.dataset("test").tokens)
    np.testing.assert_allclose(data.source_nats("test"), expected)
    uniform = SyntheticDataModule(
        32, genome=SyntheticGenome(order=0, concentration=1e9, motifs=()), batch_size=8, num_test=4
    )
    np.testing.assert_allclose(uniform.source_nats("test"), 32 * math.log(4), rtol=1e-4)


def test_no_baseline_beats_the_truth_of_the_default_genome() -> None:
    data = SyntheticDataModule(128, num_train=16384, num_test=512, batch_size=8)
    named = data.baselines("test")
    truth = named.pop("source on these windows")
    estimate = data.source_entropy()
    assert abs(truth.nats_per_token - estimate.nats_per_token) < 5 * truth.nats_per_token_error
    chains, [(name, interpolated)] = list(named.items())[:9], list(named.items())[9:]
    assert [name for name, _ in chains] == [f"Markov order {order}" for order in range(9)]
    assert name.startswith("interpolated Markov, order ")
    least = min(found.nats_per_token for _, found in chains)
    assert truth.nats_per_token + 0.02 * math.log(2) < interpolated.nats_per_token < least
    for found in named.values():
        gap = found.minus(truth)
        assert gap.nats_per_token > 10 * gap.nats_per_token_error
    assert estimate.bits_per_token_error < 1e-3
    assert entropy_rate(data.source, num=128).bits_per_token < estimate.bits_per_token


def test_default_genome_is_nearly_the_same_on_both_strands() -> None:
    source = SyntheticGenome().source()
    rows = source.sample(512, 128, seed=0)
    excess = (source.log_prob(rows) - source.log_prob(3 - rows[:, ::-1])).mean() / 128
    assert 0 < excess < 0.005 * math.log(2)
    background = MarkovGenome(source.transitions)
    np.testing.assert_allclose(
        background.log_prob(rows), background.log_prob(3 - rows[:, ::-1]), rtol=1e-10
    )


def test_errors_say_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"num_test must be at least 1, got 0; set data.num_test"):
        module(num_test=0)
    with pytest.raises(ValueError, match=r"IUPAC codes, got 'XYZ'"):
        SyntheticGenome(motifs=(ConsensusMotif("XYZ", 0.1),)).source()


def test_the_interpolated_chain_is_chosen_on_validation_alone() -> None:
    """Broken twin: chooses on the split that is scored, here windows with a single base."""

    def chosen(*poor: str) -> str:
        data = module()
        for split in ("valid", "test"):
            if split in poor:
                data.dataset(split).tokens[:] = 0
        return list(data.baselines("test"))[-1]

    assert chosen() == chosen("test") != chosen("valid")

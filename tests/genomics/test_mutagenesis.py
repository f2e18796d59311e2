"""In-silico mutagenesis, against enumeration and against the scores of variants."""

import numpy as np
import pytest
import torch

from genomics.io.genome import Genome
from genomics.io.vcf import Variant
from genomics.sequence.alphabet import BASES, encode, reverse_complement
from genomics.variants.effects import allele_windows, masked_marginals, mutation_effects
from tests.oracles import Joint, LookupBackbone, OracleBackbone, masked_model


def test_effects_are_ratios_of_the_joint_distribution() -> None:
    joint = Joint.random(4, 5, seed=4)
    ids = encode("ACGTA")
    found = mutation_effects(masked_model(OracleBackbone(joint)), ids, window=5, batch_size=2)

    def log_prob(row: np.ndarray) -> float:
        return float(
            joint.probs[(joint.sequences == torch.from_numpy(row.astype(int))).all(1)].log()
        )

    want = np.empty((5, 4))
    for place in range(5):
        for base in range(4):
            mutant = ids.copy()
            mutant[place] = base
            want[place, base] = (log_prob(mutant) - log_prob(ids)) / 2
            mutant, wild = reverse_complement(mutant), reverse_complement(ids)
            want[place, base] += (log_prob(mutant) - log_prob(wild)) / 2
    np.testing.assert_allclose(found, want, rtol=0, atol=1e-12)
    assert np.abs(found[:, ::-1] - want).max() > 0.1, "the twin in the order TGCA"


@pytest.mark.parametrize("window", [4, 5])
def test_windows_of_a_longer_sequence_are_those_of_variants(window: int) -> None:
    """The scores of ``variants`` one by one, including the ends; N has no effect to report."""
    model = masked_model(LookupBackbone(4, window, seed=3))
    letters = "ACGTTGNAACGT"
    ids, told = encode(letters), []
    found = mutation_effects(
        model, ids, window=window, batch_size=4, progress=lambda n: told.append(n)
    )
    genome = Genome.from_records({"c": ids})
    for place, ref in enumerate(letters):
        if ref == "N":
            assert np.isnan(found[place]).all()
            continue
        for base, alt in enumerate(BASES):
            if alt == ref:
                assert found[place, base] == 0
                continue
            pair = allele_windows(Variant(1, "c", place + 1, ".", ref, alt), genome, window)
            assert masked_marginals(model, [pair])[0] == pytest.approx(
                found[place, base], abs=1e-12
            )
    assert sum(told) == 11


def test_a_sequence_without_a_known_base() -> None:
    model = masked_model(LookupBackbone(4, 3, seed=3))
    assert np.isnan(mutation_effects(model, encode("NNN"), window=5)).all()

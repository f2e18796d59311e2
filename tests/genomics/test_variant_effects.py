"""Scores of variants on both strands, against enumerated distributions."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from genomics.io.genome import Genome
from genomics.io.vcf import Variant
from genomics.sequence import strands
from genomics.sequence.alphabet import decode, encode, reverse_complement
from genomics.sequence.strands import both_strands, masked_log_probs
from genomics.variants.effects import (
    AlleleWindows,
    allele_windows,
    likelihood_ratios,
    masked_marginals,
)
from seqdiff.denoiser.discrete import Denoiser
from seqdiff.likelihood import ChainRule, FixedOrder, StratifiedK
from seqdiff.process import LeftToRight
from tests.causal_worlds import CausalLookup
from tests.oracles import Joint, LookupBackbone, OracleBackbone, TableBackbone, masked_model

W = 5
JOINT = Joint.random(4, W, seed=1)
ORACLE = masked_model(OracleBackbone(JOINT))
GENOME = Genome.from_records({"c": encode("ACGTTGCAAC")})
SNV, ENDS, SITES = (
    Variant(1, "c", 5, ".", "T", "G"),
    [Variant(1, "c", 1, ".", "A", "C"), Variant(1, "c", 10, ".", "C", "T")],
    [Variant(1, "c", 5, ".", "TG", "CA"), Variant(1, "c", 4, ".", "TTG", "CTA")],
)
INDELS = [Variant(1, "c", 5, ".", "TG", "T"), Variant(1, "c", 5, ".", "T", "TAC")]


def windows(variant: Variant) -> AlleleWindows:
    return allele_windows(variant, GENOME, W)


def log_prob(ids: np.ndarray) -> float:
    rows = (JOINT.sequences == torch.from_numpy(ids.astype(np.int64))).all(dim=-1)
    return float(JOINT.probs[rows].log())


def ratio(pair: AlleleWindows, *, both: bool = True) -> float:
    """log p(alt) - log p(ref) from the table, the mean of both strands."""
    plus = log_prob(pair.alt) - log_prob(pair.ref)
    minus = log_prob(reverse_complement(pair.alt)) - log_prob(reverse_complement(pair.ref))
    return (plus + minus) / 2 if both else plus


@pytest.mark.parametrize("variant", [SNV, *ENDS, *SITES, *INDELS])
def test_the_likelihood_ratio_is_that_of_the_joint_distribution(variant: Variant) -> None:
    pair = windows(variant)
    (found,) = likelihood_ratios(ORACLE, [pair], estimator=FixedOrder())
    assert abs(found.nats - ratio(pair)) < 1e-12
    assert found.standard_error == 0 and found.low == found.high == found.nats
    assert abs(found.nats - ratio(pair, both=False)) > 0.01, "the twin that forgets a strand"


def test_an_autoregressive_model_needs_no_draws() -> None:
    network = CausalLookup(4, W, seed=2)
    table = Joint(4, W, network.distribution())
    pair = windows(SNV)
    (found,) = likelihood_ratios(Denoiser(network, LeftToRight(4)), [pair], estimator=ChainRule())

    def distribution(ids: np.ndarray) -> float:
        rows = (table.sequences == torch.from_numpy(ids.astype(np.int64))).all(dim=-1)
        return float(table.probs[rows].log())

    flipped = [reverse_complement(ids) for ids in (pair.alt, pair.ref)]
    want = (
        distribution(pair.alt)
        - distribution(pair.ref)
        + distribution(flipped[0])
        - distribution(flipped[1])
    ) / 2
    assert abs(found.nats - want) < 1e-12 and found.standard_error == 0


@pytest.mark.parametrize("variant", [SNV, *ENDS])
def test_for_a_joint_distribution_a_masked_base_tells_the_whole_ratio(variant: Variant) -> None:
    """p(x_i = alt | rest) / p(x_i = ref | rest) is the ratio of both windows."""
    pair = windows(variant)
    (found,) = masked_marginals(ORACLE, [pair])
    assert found is not None and abs(found - ratio(pair)) < 1e-12


@pytest.mark.parametrize("variant", SITES)
def test_changed_bases_are_hidden_together(variant: Variant) -> None:
    pair = windows(variant)
    assert pair.changed is not None
    places = pair.changed.nonzero()[0].tolist()

    def marginal(ids: np.ndarray, ref: np.ndarray, hidden: list[int]) -> float:
        rest = torch.ones(W, dtype=torch.bool)
        rest[hidden] = False
        row = torch.from_numpy(ids.astype(np.int64))
        agrees = (JOINT.sequences[:, rest] == row[rest]).all(dim=-1)
        total = 0.0
        for place in hidden:
            distribution = [
                JOINT.probs[agrees & (JOINT.sequences[:, place] == k)].sum() for k in range(4)
            ]
            total += float(distribution[ids[place]].log() - distribution[ref[place]].log())
        return total

    plus = marginal(pair.alt, pair.ref, places)
    flipped = [W - 1 - place for place in places]
    minus = marginal(reverse_complement(pair.alt), reverse_complement(pair.ref), flipped)
    (found,) = masked_marginals(ORACLE, [pair])
    assert found is not None and abs(found - (plus + minus) / 2) < 1e-12


def test_sites_that_share_a_window_near_an_end_keep_their_own_distributions() -> None:
    pairs = [windows(v) for v in (ENDS[0], Variant(1, "c", 2, ".", "C", "A"))]
    assert (pairs[0].ref == pairs[1].ref).all()
    together = masked_marginals(ORACLE, pairs)
    assert together == [pytest.approx(ratio(pair), abs=1e-12) for pair in pairs]


def test_alternatives_at_a_site_share_the_evaluations_of_its_reference() -> None:
    """Four windows on two strands at 8 evaluations; repeating REF for each ALT would take six."""
    model = LookupBackbone(4, W, seed=4)
    pairs = [windows(Variant(1, "c", 5, ".", "T", alt)) for alt in "ACG"]
    arguments = {"estimator": StratifiedK(8), "batch_size": 6}
    together = likelihood_ratios(masked_model(model), pairs, **arguments)
    assert sum(model.rows_seen) == 4 * 2 * 8
    model.rows_seen.clear()
    alone = [likelihood_ratios(masked_model(model), [p], **arguments)[0] for p in pairs]
    assert sum(model.rows_seen) == 6 * 2 * 8
    assert together == alone, "to the bit"
    model.rows_seen.clear()
    masked_marginals(masked_model(model), pairs)
    assert sum(model.rows_seen) == 2, "one mask on two strands"


def test_no_position_holds_both_alleles_of_an_indel() -> None:
    found = masked_marginals(ORACLE, [windows(v) for v in (INDELS[0], SNV, INDELS[1])])
    assert found[0] is None and found[2] is None and found[1] is not None


def test_scores_do_not_depend_on_company_or_batches() -> None:
    pairs = [windows(v) for v in (SNV, *INDELS, *ENDS)]
    pairs.append(allele_windows(SNV, GENOME, 3))
    short = masked_model(ShortOrLong())
    arguments = {"estimator": StratifiedK(4), "seed": 3}
    together = likelihood_ratios(short, pairs, **arguments, batch_size=7)
    alone = [likelihood_ratios(short, [pair], **arguments)[0] for pair in pairs]
    np.testing.assert_allclose(together, alone, rtol=0, atol=1e-12)
    marginals = masked_marginals(short, pairs, batch_size=1)
    assert marginals == [masked_marginals(short, [pair])[0] for pair in pairs]


class ShortOrLong(TableBackbone):
    """Tables for windows of 3 and of 5."""

    def __init__(self) -> None:
        super().__init__(4)
        self.tables = {length: LookupBackbone(4, length, seed=4) for length in (3, W)}

    def logits(self, inputs):
        return self.tables[inputs.tokens.shape[1]](inputs)


def opposite(pair: AlleleWindows) -> AlleleWindows:
    changed = None if pair.changed is None else pair.changed[::-1].copy()
    return AlleleWindows(reverse_complement(pair.ref), reverse_complement(pair.alt), changed)


def test_a_variant_scores_alike_on_either_strand() -> None:
    """For a model that is not equivariant, with the same draws."""
    model = masked_model(LookupBackbone(4, W, seed=5))
    for pair in (windows(SNV), windows(ENDS[1]), windows(INDELS[0])):
        arguments = {"estimator": StratifiedK(4)}
        here = likelihood_ratios(model, [pair], **arguments)[0]
        there = likelihood_ratios(model, [opposite(pair)], **arguments)[0]
        np.testing.assert_allclose(there, here, rtol=0, atol=1e-12)
    pair = windows(SNV)
    marginals = [masked_marginals(model, [p])[0] for p in (pair, opposite(pair))]
    assert marginals[0] == pytest.approx(marginals[1], abs=1e-12)


def test_the_twin_whose_complement_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = windows(SNV)
    monkeypatch.setattr(strands, "_COMPLEMENT", np.arange(4))
    (broken,) = masked_marginals(ORACLE, [pair])
    assert broken is not None and abs(broken - ratio(pair)) > 0.01


def test_noise_follows_from_the_content_of_either_strand() -> None:
    row = encode("ACGTA")
    here, there = (both_strands([ids], [ids]) for ids in (row, reverse_complement(row)))
    assert here.tokens.tolist() == there.tokens.flip(0).tolist()
    assert here.index.tolist() == there.index.flip(0).tolist()
    assert here.mirrored is not None and there.mirrored is not None
    assert here.mirrored.tolist() == there.mirrored.flip(0).tolist() == [False, True]
    assert len(set(here.index.tolist())) == 2, "strands have draws of their own"
    other = both_strands([encode("ACGTC")], [encode("ACGTC")])
    assert set(other.index.tolist()).isdisjoint(here.index.tolist())
    assert [decode(ids.numpy()) for ids in here.tokens] == ["ACGTA", "TACGT"]


def test_masks_share_positions_between_the_alleles_and_unknown_bases_stay_unknown() -> None:
    pair = replace(windows(SNV), ref=encode("ANGTA"), alt=encode("ANGCA"))
    seen: list[torch.Tensor] = []

    class Watching(LookupBackbone):
        def logits(self, inputs):
            seen.append(inputs.tokens)
            return super().logits(inputs)

    likelihood_ratios(
        masked_model(Watching(4, W, 6)), [pair], estimator=StratifiedK(4), batch_size=64
    )
    (tokens,) = seen
    first, second = tokens.chunk(2)
    assert torch.equal(first == 4, second == 4) and len(tokens) == 16
    assert (first[:4, 1] == 4).all() and (first[4:, 3] == 4).all()


def test_the_time_is_that_of_the_hidden_share_of_known_bases() -> None:
    """For a linear schedule it is the fraction itself; unknown bases of the genome do not count."""
    times: list[torch.Tensor] = []

    class Timed(LookupBackbone):
        def logits(self, inputs):
            assert inputs.t is not None
            times.append(inputs.t)
            return super().logits(inputs)

    rows = np.stack([encode("ANGTA"), encode("ACGTA"), encode("NNGTA")])
    hidden = np.zeros_like(rows, dtype=bool)
    hidden[0, 2] = hidden[1, [0, 1]] = hidden[2, [1, 2]] = True
    masked_log_probs(masked_model(Timed(4, W, 6)), rows, hidden)
    want = torch.tensor([1 / 4, 2 / 5, 2 / 4], dtype=torch.float64)
    assert len(times) == 2
    for found in times:
        torch.testing.assert_close(found.double(), want, rtol=0, atol=1e-6)


def test_masked_log_probs_are_in_the_order_of_the_positions() -> None:
    rows = np.stack([encode("ACGTA"), encode("GGTCA")])
    hidden = np.zeros_like(rows, dtype=bool)
    hidden[0, [1, 3]] = hidden[1, 0] = True
    together = masked_log_probs(ORACLE, rows, hidden)
    alone = [masked_log_probs(ORACLE, rows[i : i + 1], hidden[i : i + 1]) for i in (0, 1)]
    np.testing.assert_allclose(together, np.concatenate(alone), rtol=0, atol=1e-12)
    assert together.shape == (3, 4)

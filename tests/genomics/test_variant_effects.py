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
    share_windows,
    shared_marginals,
)
from seqdiff.backbones import Caduceus
from seqdiff.denoiser.discrete import Denoiser
from seqdiff.experts import ExpertsConfig, NGramExperts
from seqdiff.likelihood import ChainRule, FixedOrder, StratifiedK
from seqdiff.process import LeftToRight
from seqdiff.types import Inputs
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

    (found,) = masked_marginals(ORACLE, [pair])
    assert found is not None and abs(found - marginal(pair, places)) < 1e-12


def marginal(pair: AlleleWindows, hidden: list[int]) -> float:
    """The gain of the changed bases from the table, with some bases hidden; both strands."""
    total = 0.0
    for opposite in (False, True):
        alt, ref = (reverse_complement(i) if opposite else i for i in (pair.alt, pair.ref))
        places = [W - 1 - place for place in hidden] if opposite else hidden
        rest = torch.ones(W, dtype=torch.bool)
        rest[places] = False
        row = torch.from_numpy(ref.astype(np.int64))
        agrees = (JOINT.sequences[:, rest] == row[rest]).all(dim=-1)
        for place in np.flatnonzero(alt != ref).tolist():
            distribution = [
                JOINT.probs[agrees & (JOINT.sequences[:, place] == k)].sum() for k in range(4)
            ]
            total += float(distribution[alt[place]].log() - distribution[ref[place]].log()) / 2
    return total


def test_variants_in_a_shared_window_are_masked_together() -> None:
    """Bases 5 and 6 share the window from base 4; base 7 is more than half a window away from 5."""
    sites = [("C", 7, "A"), ("T", 5, "G"), ("G", 6, "C"), ("T", 5, "A")]
    here = [Variant(1, "c", at, ".", ref, alt) for ref, at, alt in sites]
    shared = share_windows(here, GENOME, W, spacing=1)
    assert [decode(window.ref) for window in shared] == ["TTGCA", "TGCAA"]
    found = shared_marginals(ORACLE, shared)
    assert found[0] == masked_marginals(ORACLE, [windows(here[0])])[0]
    for number, alt in ((1, "TGGCA"), (2, "TTCCA"), (3, "TAGCA")):
        pair = AlleleWindows(encode("TTGCA"), encode(alt), None)
        assert abs(found[number] - marginal(pair, [1, 2])) < 1e-12
        assert abs(found[number] - ratio(pair)) > 0.01, "the twin that masks one base"


@pytest.mark.parametrize(("spacing", "count"), [(1, 10), (3, 30), (19, 114)])
def test_saturation_takes_few_windows(spacing: int, count: int) -> None:
    """100 bases of two chromosomes; a window of 40 takes sites within 20 bases."""
    ids = np.random.default_rng(0).integers(0, 4, 200, dtype=np.uint8)
    genome = Genome.from_records({"c": ids[:100], "d": ids[100:]})
    here = [
        Variant(1, chrom, at + 1, ".", ref, alt)
        for at in range(100)
        for chrom in "dc"
        for ref in decode(genome.record(chrom)[at : at + 1])
        for alt in "ACGT"
        if alt != ref
    ]
    shared = share_windows(here, genome, 40, spacing)
    assert len(shared) == count
    assert sorted(n for window in shared for n in window.variants) == list(range(600))
    for window in shared:
        places = window.masked.nonzero()[0]
        assert (np.diff(places) >= spacing).all() and np.ptp(places) < 20
        assert len({here[n].chrom for n in window.variants}) == 1 and len(window.ref) == 40
        for n, changed, alt in zip(window.variants, window.changed, window.alts, strict=True):
            assert decode(window.ref[places[changed]]) == here[n].ref
            assert decode(alt) == here[n].alt


@pytest.mark.parametrize(
    ("variant", "counts", "calls"),
    [("ps", None, 1), ("ph", None, 2), ("ps", (3, 2, 1, 0), 1), ("ps", "one strand", 2)],
)
def test_an_equivariant_model_reads_a_row_once(
    variant: str, counts: str | tuple[int, ...] | None, calls: int
) -> None:
    """The mean of both strands takes no second pass; other networks and experts need it."""
    draws = np.random.default_rng(0)
    rows = draws.integers(0, 4, (3, 9), dtype=np.uint8)
    masked = np.arange(9) == np.array([[2], [4], [8]])
    torch.manual_seed(0)
    sizes = {"num_embeddings": 5, "num_logits": 4, "complement": (3, 2, 1, 0, 4)}
    network = Caduceus(8, 2, variant=variant, **sizes).double()
    experts = None
    if counts is not None:
        pairs = None if counts == "one strand" else counts
        experts = NGramExperts(4, ExpertsConfig(3), pairs)
        counted = draws.integers(0, 3, (200, 9))
        experts.count(200, lambda part: (counted[part], counted[part] < 4))
        experts.gates.fill_(0.5)
    model = Denoiser(network, masked_model(network).process, experts=experts).eval()
    seen: list[int] = []
    network.register_forward_hook(lambda *_: seen.append(1))
    found = masked_log_probs(model, rows, masked)
    assert len(seen) == calls
    plus, minus = strand(model, rows, masked), strand(model, rows, masked, opposite=True)
    exact = 1e-12 if experts is None else 1e-6  # the tables are in float32
    np.testing.assert_allclose(found, (plus + minus) / 2, rtol=0, atol=exact)
    assert calls == 1 or np.abs(found - plus).max() > 1e-3, "the twin of one strand"


def strand(
    model: Denoiser, rows: np.ndarray, masked: np.ndarray, *, opposite: bool = False
) -> np.ndarray:
    """Log-probabilities of the masked base of each row, from one strand."""
    tokens = np.where(masked, 4, rows)
    if opposite:
        tokens, masked = reverse_complement(tokens), masked[:, ::-1]
    with torch.no_grad():
        found = model.log_probs(Inputs(torch.from_numpy(tokens.astype(np.int64))))
    found = found.numpy()[masked]
    return found[:, ::-1] if opposite else found


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

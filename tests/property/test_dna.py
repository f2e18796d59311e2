"""Laws of the DNA alphabet, of FASTA round trips and of interval algebra, against bit maps."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from genomics.data.splits import drop_leaks, split_by_fraction
from genomics.io.fasta import read_encoded, write_fasta
from genomics.sequence.alphabet import decode, encode, reverse_complement
from genomics.sequence.intervals import Regions, extended_windows, merge, overlaps, tile
from seqdiff.data.dataset import SPLITS

CHROMS, SIZE = 3, 60

dna = st.text("ACGTN", max_size=200)
intervals = st.lists(
    st.tuples(st.integers(0, CHROMS - 1), st.integers(0, SIZE - 1), st.integers(1, 25)).map(
        lambda row: (row[0], row[1], min(SIZE, row[1] + row[2]))
    ),
    max_size=12,
)


def regions(rows):
    return Regions(*np.array(rows, dtype=np.int64).reshape(-1, 3).T.copy())


def bitmap(found):
    bits = np.zeros((CHROMS, SIZE), dtype=bool)
    for chrom, start, end in zip(found.chrom, found.start, found.end, strict=True):
        bits[chrom, start:end] = True
    return bits


@given(dna)
def test_decode_undoes_encode(text):
    assert decode(encode(text)) == text
    assert decode(encode(text.lower())) == text


@given(dna)
def test_reverse_complement_is_an_involution_and_agrees_with_biopython(text):
    from Bio.Seq import reverse_complement as reference

    turned = reverse_complement(encode(text))
    assert decode(reverse_complement(turned)) == text
    assert decode(turned) == reference(text)


@given(dna, dna)
def test_reverse_complement_turns_concatenation_around(left, right):
    both = reverse_complement(encode(left + right))
    assert decode(both) == "".join(decode(reverse_complement(encode(t))) for t in (right, left))


@given(st.lists(dna.filter(bool), min_size=1, max_size=5), st.integers(1, 80))
def test_written_fasta_reads_back(tmp_path_factory, sequences, width):
    path = tmp_path_factory.mktemp("fasta") / "x.fa"
    names = [f"r{i}" for i in range(len(sequences))]
    write_fasta(path, names, sequences, width=width)
    assert [(name, decode(list(ids))) for name, ids in read_encoded(path)] == list(
        zip(names, sequences, strict=True)
    )


@given(intervals)
def test_merge_covers_the_same_bases_with_gaps_between(rows):
    merged = merge(regions(rows))
    assert np.array_equal(bitmap(merged), bitmap(regions(rows)))
    same = merged.chrom[1:] == merged.chrom[:-1]
    assert (merged.start[1:] > merged.end[:-1])[same].all()
    assert (np.diff(merged.chrom) >= 0).all()


@given(intervals, intervals)
def test_overlaps_agrees_with_a_bit_map(rows, others):
    bits = bitmap(regions(others))
    assert overlaps(regions(rows), regions(others)).tolist() == [
        bool(bits[chrom, start:end].any()) for chrom, start, end in rows
    ]


@given(intervals, st.integers(1, 20), st.integers(1, 20), st.sampled_from(["shift", "drop", "pad"]))
def test_windows_stay_inside_and_miss_only_what_the_policy_allows(rows, length, stride, off_end):
    for row in rows:
        region = regions([row])
        windows = tile(region, length, stride, off_end)
        assert ((windows.start >= row[1]) & (windows.end <= row[2])).all()
        sizes = windows.end - windows.start
        assert (
            (sizes == length).all() if off_end != "pad" else ((0 < sizes) & (sizes <= length)).all()
        )
        assert len(np.unique(windows.start)) == len(windows)
        if stride <= length and (
            off_end == "pad" or (off_end == "shift" and row[2] - row[1] >= length)
        ):
            assert np.array_equal(bitmap(windows), bitmap(region))


def leaks(windows):
    train = windows["train"]
    bits = bitmap(windows["valid"]) | bitmap(windows["test"])
    rows = zip(train.chrom, train.start, train.end, strict=True)
    return [bool(bits[chrom, start:end].any()) for chrom, start, end in rows]


@given(intervals, intervals, intervals)
def test_dropping_leaks_drops_them_and_nothing_else(train, valid, test):
    lengths = np.full(CHROMS, SIZE)
    rows = dict(zip(SPLITS, (train, valid, test), strict=True))
    windows = {s: extended_windows(regions(r), lengths, 4, 16) for s, r in rows.items()}
    found = leaks(windows)
    kept = drop_leaks(windows["train"], [windows["valid"], windows["test"]])
    assert not any(leaks({**windows, "train": kept}))
    assert len(kept) == found.count(False)


@settings(max_examples=60)
@given(
    intervals,
    st.integers(1, 9),
    st.integers(1, 9),
    st.integers(0, 99),
    st.tuples(st.floats(0, 0.5), st.floats(0, 0.5)),
    st.sampled_from(["shift", "drop", "pad"]),
)
def test_fractions_share_no_base(rows, length, stride, seed, shares, off_end):
    parts = split_by_fraction(regions(rows), (1 - sum(shares), *shares), length, seed)
    given = dict(zip(SPLITS, (1 - sum(shares), *shares), strict=True))
    assert set(parts) == {split for split in SPLITS if given[split] > 0}
    maps = [bitmap(part).astype(int) for part in parts.values()]
    assert np.array_equal(sum(maps), bitmap(regions(rows)).astype(int))
    windows = {s: tile(part, length, stride, off_end) for s, part in parts.items()}
    nothing = tile(regions([]), length, stride, off_end)
    assert not any(leaks({**dict.fromkeys(SPLITS, nothing), **windows}))

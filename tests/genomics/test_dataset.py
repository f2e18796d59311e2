import pickle

import numpy as np
import pytest

from genomics.data.windows import WindowDataset
from genomics.io.genome import Genome, load_genome
from genomics.sequence.alphabet import decode, encode
from genomics.sequence.intervals import Regions, Windows, tile
from seqdiff.data.dataset import EvaluationSet, Examples, TrainingStream

GENOME = {"a": "AACCGGTTNN", "b": "NNNNNNNNACGT", "c": "GAT"}


def dataset(length, stride, off_end="shift", reverse_complement=False):
    genome = Genome.from_records({name: encode(text) for name, text in GENOME.items()})
    windows = tile(Regions.whole(genome.lengths), length, stride, off_end)
    return WindowDataset(genome, windows, reverse_complement=reverse_complement)


def texts(data):
    tokens, _ = data.rows(np.arange(len(data)))
    return [decode(row) for row in tokens]


def test_windows_of_all_n_are_left_out():
    assert texts(dataset(4, 4, "drop")) == ["AACC", "GGTT", "ACGT"]
    assert texts(dataset(4, 4, "shift")) == ["AACC", "GGTT", "TTNN", "ACGT"]
    assert texts(dataset(4, 4, "pad")) == ["AACC", "GGTT", "ACGT", "GATN"]


def test_a_window_that_only_starts_with_n_stays():
    assert texts(dataset(5, 5, "shift")) == ["AACCG", "GTTNN", "NNNAC", "NACGT"]


def test_padding_never_shows_the_next_chromosome():
    assert texts(dataset(12, 12, "pad")) == ["AACCGGTTNNNN", "NNNNNNNNACGT", "GATNNNNNNNNN"]


def test_rows_follow_the_indices_and_mark_what_is_known():
    data = dataset(4, 4, "shift")
    tokens, loss_mask = data.rows(np.array([2, 0, 2]))
    assert [decode(row) for row in tokens] == ["TTNN", "AACC", "TTNN"]
    assert loss_mask.tolist() == [
        [True, True, False, False],
        [True] * 4,
        [True, True, False, False],
    ]


def test_the_windows_that_are_left_can_be_asked_for():
    windows = dataset(4, 4, "pad").windows
    assert windows.chrom.tolist() == [0, 0, 1, 2]
    assert windows.start.tolist() == [0, 4, 8, 0]
    assert windows.end.tolist() == [4, 8, 12, 3]


def test_augmentation_reads_the_other_strand_below_one_half():
    data = dataset(4, 4, "shift", reverse_complement=True)
    tokens, loss_mask = data.rows(np.array([0, 2, 2]))
    before = tokens.copy()
    found = data.augment(Examples(tokens, loss_mask), np.array([0.49, 0.01, 0.5]))
    turned, mask = found.tokens, found.loss_mask
    assert [decode(row) for row in turned] == ["GGTT", "NNAA", "TTNN"]
    assert mask.tolist() == [[True] * 4, [False, False, True, True], [True, True, False, False]]
    assert np.array_equal(tokens, before)  # inputs are not changed


def test_augmentation_is_off_by_default():
    data = dataset(4, 4)
    tokens, loss_mask = data.rows(np.array([0, 1]))
    assert np.array_equal(data.augment(Examples(tokens, loss_mask), np.zeros(2)).tokens, tokens)


def test_the_stream_holds_both_strands_and_evaluation_only_one():
    data = dataset(4, 4, "drop", reverse_complement=True)
    batch = TrainingStream(data, 0).__getitems__(list(range(300)))
    seen = {decode(row) for row in batch.tokens.numpy()}
    assert seen == {"AACC", "GGTT", "ACGT"}  # AACC and GGTT are reverse complements
    plain = EvaluationSet(data).__getitems__([0, 1, 2])
    assert [decode(row) for row in plain.tokens.numpy()] == ["AACC", "GGTT", "ACGT"]


def test_half_the_stream_is_turned():
    """One fair coin per row: 134 is 6 standard deviations of 2,000; never or always fails."""
    genome = Genome.from_records({"a": encode("AAAAAAAA")})
    windows = tile(Regions.whole(genome.lengths), 4, 4, "drop")
    data = WindowDataset(genome, windows, reverse_complement=True)
    tokens = TrainingStream(data, 3).__getitems__(list(range(2000))).tokens
    assert abs(int((tokens[:, 0] == 3).sum()) - 1000) < 134
    assert bool((tokens == tokens[:, :1]).all())


@pytest.mark.parametrize("chunk", [1, 7, 1 << 20])
def test_the_search_for_unknown_windows_may_go_in_parts(monkeypatch, chunk):
    monkeypatch.setattr("genomics.data.windows._CHUNK_BASES", chunk)
    assert texts(dataset(4, 2, "drop")) == ["AACC", "CCGG", "GGTT", "TTNN", "NNAC", "ACGT"]


def test_a_worker_receives_a_path_not_the_genome(fasta):
    genome = load_genome(fasta(">a\n" + "ACGT" * 100_000 + "\n"))
    data = WindowDataset(genome, tile(Regions.whole(genome.lengths), 1000, 1000, "shift"))
    packed = pickle.dumps(data)
    assert len(packed) < 10_000
    assert np.array_equal(pickle.loads(packed).rows(np.arange(9))[0], data.rows(np.arange(9))[0])


def test_an_empty_set_of_windows():
    genome = Genome.from_records({"a": encode("NNNN")})
    nothing = np.zeros(0, dtype=np.int64)
    assert len(WindowDataset(genome, Windows(nothing, nothing, nothing, 4))) == 0
    assert len(WindowDataset(genome, tile(Regions.whole(genome.lengths), 2, 2, "drop"))) == 0

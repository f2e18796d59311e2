"""The sets of a report: their content, and where real windows are cut."""

import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from genomics.data.synthetic import SyntheticDataModule
from genomics.data.windows import WindowDataset
from genomics.io.fasta import write_fasta
from genomics.io.genome import Genome, load_genome
from genomics.report import sets
from genomics.report.sets import RealWindows, build_sets, cut_windows
from genomics.sequence.alphabet import decode, encode, reverse_complement
from genomics.sequence.intervals import Windows
from genomics.sequence.kmers import join
from tests.genomics.report_oracles import words


def random_rows(num: int, length: int, seed: int = 0) -> list[np.ndarray]:
    return list(np.random.default_rng(seed).integers(0, 4, (num, length)).astype(np.uint8))


class Data(SyntheticDataModule):
    """Trains on the first bases of each record of a genome, in overlapping windows of 50."""

    def __init__(self, genome: Genome, most: int, last: int = 50) -> None:
        super().__init__()
        self.genome, self.most, self.last = genome, most, last

    def dataset(self, split):
        del split
        start = np.arange(0, self.most - 49, 25)
        chrom, start = (a.ravel() for a in np.meshgrid(range(len(self.genome.names)), start))
        end = start + 50
        end[-1] = start[-1] + self.last
        return WindowDataset(self.genome, Windows(chrom, start, end, 50))


def saved(path: Path, **records: np.ndarray) -> Genome:
    write_fasta(path, list(records), [decode(row) for row in records.values()])
    return load_genome(path)


def all_windows(cut: RealWindows) -> list[np.ndarray]:
    return [*cut.first, *cut.second]


def cut(genome: Genome, data: Data, num: int = 12, length: int = 30) -> RealWindows:
    trained = data.dataset("train")
    training = join([data.genome.ids[: data.most]])
    generator = np.random.default_rng(0)
    return cut_windows(genome, [length] * num, trained, training, generator, "g.fa")


def test_what_each_set_is(tmp_path: Path) -> None:
    genome = saved(tmp_path / "g.fa", g=random_rows(1, 3000)[0])
    samples = random_rows(10, 30) + [row[:25] for row in random_rows(2, 30, 1)]
    sets = build_sets(samples, genome, Data(genome, 2000), 2, 0)
    assert list(sets.others) == [
        *("samples", "real vs real", "dinucleotide shuffle", "Markov order 2")
    ]
    assert sets.others["samples"] is samples and sets.held_out
    for rows in (sets.real, *sets.others.values()):
        assert [len(row) for row in rows] == [len(row) for row in samples]
    assert decode(sets.training) == decode(genome.ids[:2000]) + "N", "each base once"
    assert set(sets.training_lengths) == {50} and len(sets.training_lengths) == 79
    pairs = list(zip(sets.others["real vs real"], sets.others["dinucleotide shuffle"], strict=True))
    for row, shuffled in pairs:
        for k in (1, 2):
            assert words([decode(row)], k) == words([decode(shuffled)], k)
    assert sum((row != shuffled).any() for row, shuffled in pairs) > 6
    short = Data(genome, 2000, last=40)
    found = build_sets(samples, genome, short, 2, 0).training_lengths
    assert Counter(found.tolist()) == {50: 78, 40: 1}, "a window at the end may be shorter"


def test_the_chain_has_the_order_and_both_strands(tmp_path: Path) -> None:
    """Trained on AACAACAAC..., a chain of order 2 repeats AAC or, equally often, GTT.

    Each letter differs with probability below 3 * (1/2) / 600; each row is either with 1/2.
    """
    trained = saved(tmp_path / "t.fa", t=encode("AAC" * 700))
    reference = saved(tmp_path / "g.fa", g=random_rows(1, 3000)[0])
    samples = random_rows(40, 30)
    sets = build_sets(samples, reference, Data(trained, 2050), 2, 0)
    drawn = [decode(row) for row in sets.others["Markov order 2"]]
    found = words(drawn, 3)
    forward = sum(found[word] for word in ("AAC", "ACA", "CAA"))
    backward = sum(found[word] for word in ("GTT", "TTG", "TGT"))
    assert forward + backward > 0.9 * found.total()
    assert min(forward, backward) > 0.2 * found.total()


def test_windows_lie_in_records_and_hold_no_unknown_base(tmp_path: Path) -> None:
    """A record of 70 bases has room for two windows of 30; more would cross record ends."""
    records = {f"r{i}": row for i, row in enumerate(random_rows(60, 70))}
    for row in itertools.islice(records.values(), 20):
        row[35] = 4
    genome = saved(tmp_path / "g.fa", **records)
    trained = saved(tmp_path / "t.fa", t=random_rows(1, 500, 9)[0])
    texts = [decode(row) for row in records.values()]
    found = all_windows(cut(genome, Data(trained, 400), num=40))
    for row in found:
        assert any(decode(row) in text for text in texts)
        assert "N" not in decode(row)
    assert sum(decode(row) in text for row in found for text in texts[:20]) > 10


def places_of(cut: RealWindows, genome: Genome) -> np.ndarray:
    text = genome.ids.tobytes()
    assert all(text.count(row.tobytes()) == 1 for row in all_windows(cut))
    return np.sort([text.find(row.tobytes()) for row in all_windows(cut)])


def test_of_the_same_file_windows_come_from_where_no_training_window_lies(tmp_path: Path) -> None:
    """Even where the window repeats training sequence, as real repeats do."""
    row = random_rows(1, 3000)[0]
    row[2000:] = row[:1000]
    row[2000::25] ^= 1
    row[2100:2200] = row[100:200]
    genome = saved(tmp_path / "g.fa", g=row)
    found = cut(genome, Data(genome, 2000), num=16)
    assert found.held_out and "outside all training windows" in found.origin
    starts = np.sort([genome.ids.tobytes().rfind(row.tobytes()) for row in all_windows(found)])
    assert starts.min() >= 2000 and (np.diff(starts) >= 30).all()
    everywhere = cut(genome, Data(genome, 2900))
    assert not everywhere.held_out and "24 share 20 consecutive bases" in everywhere.origin


@pytest.mark.parametrize("flipped", [False, True])
@pytest.mark.parametrize("length", [30, 120])
def test_of_another_file_windows_share_no_long_stretch(
    tmp_path: Path, flipped: bool, length: int
) -> None:
    """The training sequence under another name, on either strand, within new sequence."""
    old, new = random_rows(2, 4000)
    trained = saved(tmp_path / "t.fa", t=old)
    strand = reverse_complement(old) if flipped else old
    genome = saved(tmp_path / "g.fa", renamed=strand, new=new)
    found = cut(genome, Data(trained, 4000), num=12, length=length)
    assert found.held_out and "left out" in found.origin
    assert places_of(found, genome).min() >= 4000
    renamed = saved(tmp_path / "r.fa", renamed=strand)
    found = cut(renamed, Data(trained, 4000), num=12, length=length)
    assert not found.held_out
    assert f"24 of 24 share {20 if length == 30 else 50} consecutive bases" in found.origin


def test_of_another_genome_all_windows_are_new(tmp_path: Path) -> None:
    trained = saved(tmp_path / "t.fa", t=random_rows(1, 4000)[0])
    genome = saved(tmp_path / "g.fa", t=random_rows(1, 1500, 5)[0])
    found = cut(genome, Data(trained, 4000), num=20)
    assert found.held_out and "0 windows that did were left out" in found.origin


def test_few_new_windows_are_found_among_many(tmp_path: Path, monkeypatch) -> None:
    """24 of 424 positions, looked up in groups of 24, 24, 48, 96, ... until all are found."""
    old, new = random_rows(1, 12_000)[0], random_rows(1, 800, 6)[0]
    trained = saved(tmp_path / "t.fa", t=old)
    genome = saved(tmp_path / "g.fa", a=old, b=new)
    sizes = []
    real = sets.shares_word
    monkeypatch.setattr(
        sets, "shares_word", lambda rows, *rest: (sizes.append(len(rows)), real(rows, *rest))[1]
    )
    found = cut(genome, Data(trained, 12_000), num=12)
    assert found.held_out and places_of(found, genome).min() >= 12_000
    assert sizes[:4] == [24, 24, 48, 96]


def test_genomes_in_memory_have_no_file_in_common() -> None:
    genome = Genome.from_records({"a": random_rows(1, 2000)[0]})
    other = Genome.from_records({"a": random_rows(1, 2000, 1)[0]})
    assert "left out" in cut(genome, Data(other, 2000)).origin
    assert not cut(genome, Data(genome, 2000)).held_out


def test_no_room(tmp_path: Path) -> None:
    genome = saved(tmp_path / "g.fa", g=random_rows(1, 500)[0])
    message = r"^g\.fa: a reference must have room for twice 12 windows of 30 bases without N, got"
    with pytest.raises(ValueError, match=message):
        cut(genome, Data(genome, 100), num=12)

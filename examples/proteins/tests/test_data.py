"""Rows of proteins: cut, padded, dealt into splits; and the baselines, counted by hand."""

import math
from collections import Counter
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from seqdiff_proteins import AlignedProteins, Proteins
from seqdiff_proteins.data import ProteinRows, read_proteins

from seqdiff.data import Examples

SPLITS = ("train", "valid", "test")


def _texts(data: Proteins, split: str) -> list[str]:
    rows = data.dataset(split)
    return [
        data.tokenizer.decode(ids[:length])
        for ids, length in zip(rows.tokens, rows.lengths, strict=True)
    ]


def test_long_proteins_are_cut_and_short_ones_padded(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text(
        "sequence\tsplit\nACDEFGHIKLM\ttrain\nMXK\ttrain\nACDE\tvalid\nA\ttest\n\ttrain\n"
    )
    data = Proteins(str(path), 4)
    assert _texts(data, "train") == ["ACDE", "FGHI", "KLM", "MXK"], "every residue, in order"
    batch = Examples.read(data.dataset("train"), np.array([2, 3, 0]))
    assert batch.padding is not None
    assert batch.padding.tolist() == [[False] * 3 + [True]] * 2 + [[False] * 4]
    assert batch.loss_mask.astype(int).tolist() == [[1, 1, 1, 0], [1, 0, 1, 0], [1, 1, 1, 1]]
    assert (batch.tokens[batch.padding] == data.tokenizer.vocab_size).all()
    assert data.dataset("valid").padding(np.array([0])) is None
    assert data.context_length == 4 and data.token_name == "residue"


def test_splits_follow_from_the_sequence(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    rows = ["".join(random.choice(list("ACDEFG"), 9)) for _ in range(2000)]
    path, other = tmp_path / "a.fa", tmp_path / "b.fa"
    path.write_text("".join(f">{i}\n{row}\n" for i, row in enumerate(rows)))
    other.write_text("".join(f">x{i}\n{row.lower()}\n" for i, row in enumerate(rows[::-1][:500])))
    data, less = (Proteins(str(file), 9, split=(0.5, 0.2, 0.3)) for file in (path, other))
    found = [_texts(data, split) for split in SPLITS]
    for part, fraction in zip(found, (0.5, 0.2, 0.3), strict=True):
        assert abs(len(part) / 2000 - fraction) < 4 * math.sqrt(fraction * (1 - fraction) / 2000)
    assert Counter(chain(*found)) == Counter(rows)
    for part, split in zip(found, SPLITS, strict=True):
        assert set(_texts(less, split)) <= set(part), "whatever the order, the names and the case"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", "sequence\tsplit\nACDE\ttrain\nACDE\tdev\n", "2: the split must be one of"),
        ("a.tsv", "protein\nACDE\n", "must have a column sequence, got protein"),
        ("a.csv", "sequence,split\nACDE,train\n", "the valid split must have a protein"),
        ("a.fa", ">one\nAC1\n", "one: a protein must hold"),
        ("a.fa", ">one\nACD\n", "one: a row of the alignment must have 4 columns, got 3"),
        ("none.fa", None, "existing FASTA file"),
        ("none.tsv", None, "existing file"),
    ],
)
def test_broken_data_is_explained(
    tmp_path: Path, name: str, content: str | None, message: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        AlignedProteins(str(path), 4).dataset("train")


def test_arguments_are_checked() -> None:
    with pytest.raises(ValueError, match=r"Proteins\.length must be at least 1, got 0"):
        Proteins("a.fa", 0)
    with pytest.raises(ValueError, match="split"):
        Proteins("a.fa", 4, split=(0.9, 0.2, 0.1))


def test_baselines_are_frequencies_with_half_a_count(tmp_path: Path) -> None:
    """Every probability again, by counting letters."""
    path = tmp_path / "a.tsv"
    path.write_text(
        "sequence\tsplit\nAC-\ttrain\nAXC\ttrain\nDC-\ttrain\nA-X\tvalid\nACC\ttest\nXWA\ttest\n"
    )
    data = AlignedProteins(str(path), 3)
    found = data.baselines("test")
    train, symbols = ["AC-", "AXC", "DC-"], len(data.tokenizer.symbols)

    def nats(letters: str, symbol: str) -> float:
        known = letters.replace("X", "")
        return -math.log((known.count(symbol) + 0.5) / (len(known) + 0.5 * symbols))

    whole, columns = "".join(train), ["".join(column) for column in zip(*train, strict=True)]
    unigram = [sum(nats(whole, s) for s in row) for row in ("ACC", "WA")]
    profile = [sum(map(nats, columns, "ACC")), nats(columns[1], "W") + nats(columns[2], "A")]
    assert found["unigram"].nats == pytest.approx(unigram)
    assert found["site profile"].nats == pytest.approx(profile)
    for rows in found.values():
        assert rows.num_tokens.tolist() == [3, 2], "X is not counted"
    padded = Proteins(str(path), 3)
    path.write_text("sequence\tsplit\nAC\ttrain\nA\tvalid\nCA\ttest\nC\ttest\n")
    unigram = padded.baselines("test")["unigram"]
    one = math.log((2 + 22 / 2) / 1.5)  # A and C once each, and half a count of 22 symbols
    assert unigram.nats == pytest.approx([2 * one, one])
    assert unigram.num_tokens.tolist() == [2, 1]


def test_baselines_of_the_beta_lactamases(proteins: Path) -> None:
    """The nats a residue that the data's description states."""
    data = AlignedProteins(str(proteins / "pf13354_beta_lactamase_202.tsv.gz"), 202)
    assert [len(data.dataset(split)) for split in SPLITS] == [4023, 484, 521]
    found = data.baselines("test")
    assert found["site profile"].nats_per_token == pytest.approx(2.05, abs=0.005)
    assert found["unigram"].nats_per_token == pytest.approx(2.88, abs=0.005)
    assert found["unigram"].num_tokens.sum() == 521 * 202


def test_real_proteins_of_all_lengths(proteins: Path) -> None:
    path = proteins / "prodigal_proteome_2100.tsv.gz"
    data = Proteins(str(path), 256)
    residues = sum(len(protein.sequence) for protein in read_proteins(path))
    parts: list[ProteinRows] = [data.dataset(split) for split in SPLITS]
    assert sum(int(part.lengths.sum()) for part in parts) == residues == 680484
    counted = sum(int(part.rows(np.arange(len(part)))[1].sum()) for part in parts)
    assert counted == residues - 4190, "all but X"

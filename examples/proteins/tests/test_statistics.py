"""Statistics against other programs and against loops."""

import numpy as np
import pytest
from scipy.spatial.distance import jensenshannon
from seqdiff_proteins import AlignedProteins, statistics
from seqdiff_proteins.variants import align, correlations


def test_covariances_are_those_of_a_loop() -> None:
    tokens = np.random.default_rng(0).integers(0, 4, (50, 7))  # 3 is unknown
    found = statistics.covariance(tokens, 3)
    for i, j, a, b in ((0, 6, 1, 2), (2, 2, 0, 0), (1, 3, 2, 0)):
        one, other = tokens[:, i] == a, tokens[:, j] == b
        together = (one & other).mean() - one.mean() * other.mean()
        assert found[i, a, j, b] == pytest.approx(together, abs=1e-6)
    far = statistics.distant(found, near=5)
    assert len(far) == 3 * 9, "columns 0 and 5, 0 and 6, 1 and 6"
    assert far[9:18].reshape(3, 3) == pytest.approx(found[0, :, 6])


def test_shuffles_keep_what_they_should() -> None:
    random = np.random.default_rng(0)
    tokens = np.repeat(random.integers(0, 4, (300, 1)), 8, axis=1)  # all columns are equal
    mixed = statistics.shuffle_columns(tokens, random)
    assert (np.sort(mixed, axis=0) == np.sort(tokens, axis=0)).all()
    pairs = [statistics.distant(statistics.covariance(t, 4)) for t in (tokens, mixed)]
    assert np.abs(pairs[1]).mean() < 0.2 * np.abs(pairs[0]).mean(), "columns are independent"
    (residues,) = statistics.shuffle_residues([tokens[0]], random)
    assert sorted(residues) == tokens[0].tolist()


def test_words_and_divergence() -> None:
    counts = statistics.count_words([np.array([0, 1, 2, 3, 0, 1]), np.array([2])], 2, 3)
    assert counts.reshape(3, 3).tolist() == [[0, 2, 0], [0, 0, 1], [0, 0, 0]], "3 is unknown"
    one, other = np.array([1, 5, 0, 2]), np.array([3, 0, 0, 9])
    reference = jensenshannon(one, other, base=2) ** 2
    assert statistics.divergence(one, other) == pytest.approx(reference)


def test_jackknife_errors() -> None:
    """Of a mean they are the usual ones, and of a divergence the spread of repeated draws."""
    random = np.random.default_rng(0)
    values = random.normal(size=10)
    leave_out = [np.delete(values, i).mean() for i in range(10)]
    assert statistics.jackknife_error(leave_out) == pytest.approx(values.std(ddof=1) / 10**0.5)
    wanted = np.array([40, 30, 20, 10])
    found, errors = [], []
    for _ in range(300):
        groups = random.multinomial(60, [0.1, 0.2, 0.3, 0.4], size=10)
        found.append(statistics.divergence(groups.sum(axis=0), wanted))
        parts = [np.delete(groups, i, axis=0).sum(axis=0) for i in range(10)]
        errors.append(
            statistics.jackknife_error([statistics.divergence(part, wanted) for part in parts])
        )
    assert np.mean(errors) == pytest.approx(np.std(found), rel=0.2)


def test_the_nearest_training_row() -> None:
    train = np.array([[0, 1, 2, 3], [0, 0, 0, 0]])
    rows = np.array([[0, 1, 2, 0], [3, 0, 3, 3]])
    assert statistics.nearest_identity(rows, train).tolist() == [0.75, 0.25]


def test_a_protein_is_written_as_a_row_of_the_alignment(tmp_path) -> None:
    """The columns that a person would choose: one residue more, one less, and both ends free."""
    rows = ["ACDEFGHIKL-MNPQRSTVW", "WVTSRQPNM-LKIHGFEDCA"]
    path = tmp_path / "a.tsv"
    lines = [f"{row}\t{split}" for row in rows for split in ("train", "valid", "test")]
    path.write_text("\n".join(["sequence\tsplit", *lines]))
    data = AlignedProteins(str(path), 20)
    row, columns = align("YYYACDEFGHWIKLMNPQSTVWYY", data)
    assert row == "ACDEFGHIKL-MNPQ-STVW"
    assert 10 not in columns and 0 not in columns, "the insertion and the end have no column"
    assert [columns[place] for place in (3, 9, 11, 14, 18)] == [0, 6, 7, 11, 16]
    row, columns = align("ACD" + "W" * 30 + "EFGHIKLMNPQRSTVW", data)
    assert row[3:] == "EFGHIKL-MNPQRSTVW"
    assert 0 not in columns, "a free end costs less than a gap of 30"
    with pytest.raises(ValueError, match="shares no 5 residues in a row"):
        align("YYYYYYYYYY", data)


def test_errors_of_correlations_are_over_residues() -> None:
    """Ten copies of every mutant of a residue must not make a correlation more certain."""
    random = np.random.default_rng(0)
    truth = random.normal(size=100)
    scores = {"blosum62": random.normal(size=100), "masked_marginal": truth}
    measured, sites = truth + random.normal(size=100), np.arange(100)
    once = correlations(scores, measured, sites, np.ones(100, bool), seed=0)
    many = {name: np.repeat(values, 10) for name, values in scores.items()}
    copied = correlations(
        many, np.repeat(measured, 10), np.repeat(sites, 10), np.ones(1000, bool), 0
    )
    for (name, value, error), (same, other, likewise) in zip(once, copied, strict=True):
        assert name == same and other == pytest.approx(value, abs=0.02)
        assert likewise == pytest.approx(error, rel=0.1)
    names = [name for name, _, _ in once]
    assert names == ["blosum62", "masked_marginal", "model - blosum62"]
    assert once[2][1] == pytest.approx(once[1][1] - once[0][1])

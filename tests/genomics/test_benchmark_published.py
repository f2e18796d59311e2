"""The published accuracies, checked by sums of the printed tables and by facts about the data.

The tables are in Schiff et al. 2024, arXiv:2403.03234 (CNN, HyenaDNA, Caduceus), and Sahoo et al.
2024, arXiv:2406.07524, table 7 (the others). The sums are of the printed numbers, in thousandths.
"""

from collections.abc import Mapping

import pytest

from genomics.finetune.protocol import COLUMNS, published, published_length

# By data set: sum of the printed row; fraction of the most frequent class of the official test set,
# and shortest and longest sequence (Gresova et al. 2023, BMC Genomic Data 24:25).
DATA = {
    "dummy_mouse_enhancers_ensembl": (6_939, 0.5, 331, 4776),
    "demo_coding_vs_intergenomic_seqs": (8_165, 0.5, 200, 200),
    "demo_human_or_worm": (8_695, 0.5, 200, 200),
    "human_enhancers_cohn": (6_626, 0.5, 500, 500),
    "human_enhancers_ensembl": (7_838, 0.5, 2, 573),
    "human_ensembl_regulatory": (7_785, 0.37, 71, 802),
    "human_ocr_ensembl": (7_213, 0.5, 71, 593),
    "human_nontata_promoters": (8_367, 0.544, 251, 251),
}
COLUMN_SUMS = dict(
    zip(COLUMNS, (6_426, 6_822, 6_928, 6_952, 6_810, 6_967, 6_875, 6_897, 6_951), strict=True)
)
Table = Mapping[str, Mapping[str, float]]


def problems(table: Table) -> list[str]:
    """List contradictions with the printed tables or the data."""
    found = []
    for name, (total, majority, *_) in DATA.items():
        if sum(round(1000 * accuracy) for accuracy in table[name].values()) != total:
            found.append(f"the row of {name}")
        found += [
            f"{name}, {m}: below the majority" for m, a in table[name].items() if a < majority
        ]
    for method, total in COLUMN_SUMS.items():
        if sum(round(1000 * row[method]) for row in table.values()) != total:
            found.append(f"the column of {method}")
    if max(table["human_ensembl_regulatory"].values()) >= 0.915:
        found.append("the length alone has .915 on human_ensembl_regulatory, above all networks")
    return found


def there() -> dict[str, dict[str, float]]:
    return {name: published(name) for name in DATA}


def test_the_numbers_are_those_of_the_printed_tables() -> None:
    assert problems(there()) == []
    assert all(tuple(row) == COLUMNS for row in there().values())


def test_a_wrong_digit_and_swapped_numbers_would_be_found() -> None:
    names = list(DATA)
    for place, name in enumerate(names):
        for column, method in enumerate(COLUMNS):
            wrong = there()
            wrong[name][method] += 0.001
            assert problems(wrong)
            for other_name, other in ((names[place - 1], method), (name, COLUMNS[column - 1])):
                swapped = there()
                a, b = swapped[name][method], swapped[other_name][other]
                swapped[name][method], swapped[other_name][other] = b, a
                assert bool(problems(swapped)) == (a != b)


@pytest.mark.parametrize("name", DATA)
def test_rows_are_read_whole_where_all_have_one_length(name: str) -> None:
    _, _, shortest, longest = DATA[name]
    length = published_length(name)
    assert length is not None
    if shortest == longest:
        assert length == longest
    else:
        assert shortest < length and length.bit_count() == 1, "a power of two"


def test_names() -> None:
    assert published("test_human_ocr_ensembl") == published("human_ocr_ensembl"), "a part of it"
    assert published("prom_core_all") == {} and published_length("prom_core_all") is None
    assert published("drosophila_enhancers_stark") == {}

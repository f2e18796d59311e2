"""The table of published numbers, row by row as printed."""

import pytest

from genomics.finetune.protocol import COLUMNS, published, published_length

HEAD = "CNN HyenaDNA Caduceus-Ph Caduceus-PS Mamba AR Caduceus MLM Plaid SEDD MDLM"
TABLE = """
dummy_mouse_enhancers_ensembl     1024 .715 .780 .754 .793 .763 .810 .745 .784 .795
demo_coding_vs_intergenomic_seqs   200 .892 .904 .915 .910 .897 .913 .908 .913 .913
demo_human_or_worm                 200 .942 .964 .973 .968 .967 .970 .971 .970 .970
human_enhancers_cohn               500 .702 .729 .747 .745 .734 .737 .743 .746 .743
human_enhancers_ensembl            512 .744 .849 .893 .900 .856 .907 .885 .905 .899
human_ensembl_regulatory           512 .872 .869 .872 .873 .861 .874 .868 .828 .868
human_ocr_ensembl                  512 .698 .783 .828 .818 .806 .821 .820 .816 .823
human_nontata_promoters            251 .861 .944 .946 .945 .926 .935 .935 .935 .940
"""
ROWS = [line.split() for line in TABLE.strip().splitlines()]


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_every_number_is_the_printed_one(row: list[str]) -> None:
    name, length, *accuracies = row
    assert published_length(name) == int(length)
    assert list(published(name).values()) == [float(accuracy) for accuracy in accuracies]
    assert published(f"test_{name}") == published(name), "a part of it by another name"


def test_the_columns_and_what_is_not_there() -> None:
    assert " ".join(COLUMNS) == HEAD and tuple(published("demo_human_or_worm")) == COLUMNS
    assert published("prom_core_all") == {} and published_length("prom_core_all") is None
    assert published("drosophila_enhancers_stark") == {}

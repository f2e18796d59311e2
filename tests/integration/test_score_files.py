"""Files of ``seqdiff score``: long records, expensive ones, existing output."""

from pathlib import Path

import pytest
import torch

from seqdiff.cli.app import main
from tests.integration.test_score import read, score
from tests.integration.toy_domain import ToyNet, write_ring


@pytest.mark.usefixtures("toy_writer")
def test_a_budget_too_small_for_the_longest_record_is_refused_before_the_network(
    trained: Path, rings: Path, tmp_path: Path, fails, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forward(self, inputs, where=None):
        pytest.fail("the network was called")

    monkeypatch.setattr(ToyNet, "forward", forward)
    flags = ("--estimator", "random-order-chain", "--max_nfe", "15")
    message = fails(score(trained, rings, tmp_path / "a.tsv", *flags))
    assert "record 'one': " in message, "the longest"
    assert "score.max_nfe must be at least 64" in message and "for 8 tokens, got 15" in message


@pytest.mark.usefixtures("toy_writer")
def test_a_record_too_long_for_the_network_is_refused_before_the_network(
    trained: Path, rings: Path, tmp_path: Path, fails, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "a.tsv"
    calls: list[int] = []
    forward = ToyNet.forward

    def counted(self, inputs, where=None):
        calls.append(inputs.tokens.shape[1])
        return forward(self, inputs, where)

    monkeypatch.setattr(ToyNet, "forward", counted)
    monkeypatch.setattr(ToyNet, "max_length", 7, raising=False)
    message = fails(score(trained, rings, out))
    said = "score must be given at most 7 tokens, all that the network of"
    assert f"record 'five': {said}" in message and "got 8; cut the record" in message
    assert not calls and not out.exists()
    monkeypatch.setattr(ToyNet, "max_length", 8)
    assert main(score(trained, rings, out)) == 0
    assert max(calls) == 8


@pytest.mark.usefixtures("toy_writer")
def test_records_beyond_the_training_rows_are_scored_and_said(
    trained: Path, tmp_path: Path, capsys
) -> None:
    """The run was trained on rows of 12 symbols."""
    source, out = tmp_path / "a.ring", tmp_path / "a.tsv"
    for lengths, warned in (((12, 3), False), ((13, 12, 20), True)):
        names = [f"r{number}" for number in range(len(lengths))]
        write_ring(source, [("uvwxy" * 4)[:length] for length in lengths], names)
        capsys.readouterr()
        assert main(score(trained, source, out, "--both_ways")) == 0
        lines = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
        assert len(lines) == warned and len(read(out)) == len(lengths)
    assert "where a record has more than the 12 tokens of the rows that" in lines[0]
    assert lines[0].endswith("was trained on: 2, the longest 'r2' with 20")


@pytest.mark.usefixtures("toy_writer")
@pytest.mark.parametrize("linked", [False, True])
def test_what_is_read_is_never_written_over(
    trained: Path, rings: Path, tmp_path: Path, fails, linked: bool
) -> None:
    before, out = rings.read_text(), rings
    if linked:
        out = tmp_path / "link.ring"
        out.symlink_to(rings)
    message = fails(score(trained, rings, out))
    assert f"score.out must end in .tsv or .parquet, got {out}; rename it" in message
    command = ["sample", str(trained), f"--infill={rings}", "--num=1", "--seed=1", f"--out={out}"]
    message = fails(command)
    assert f"sample.out must be another file than --infill, got {out}; rename one" in message
    assert rings.read_text() == before
    assert main([*command[:-1], f"--out={tmp_path / 'other.ring'}"]) == 0, "the twin"


@pytest.mark.usefixtures("toy_writer")
def test_an_old_table_survives_a_failure(
    trained: Path, rings: Path, tmp_path: Path, fails, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "a.tsv"
    out.write_text("precious")

    def forward(self, inputs, where=None):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(ToyNet, "forward", forward)
    assert "memory is too small" in fails(score(trained, rings, out))
    assert out.read_text() == "precious"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.ring", "a.tsv"]

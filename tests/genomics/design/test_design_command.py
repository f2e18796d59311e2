"""``seqdiff design`` on a small run, with the GC content as oracle, and what it refuses."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from Bio import SeqIO
from Bio.Restriction import RestrictionBatch
from Bio.Seq import Seq

import seqdiff
from genomics.commands import design as command
from genomics.data.tables import TableDataset
from genomics.design import Candidates, Choice, Constraints, Oracle, choose, saturate
from genomics.design.designs import distances_between, rate
from seqdiff.cli.app import main
from tests.genomics.design.test_constraints import levenshtein, other


class GCOracle:
    """Predicts the logit of the GC content, as the table of the run has it, and the length."""

    columns = ("length", "gc")

    def __init__(self, shift: float = 0.0) -> None:
        self.shift, self.asked = shift, 0

    def predict(self, sequences: list[str]) -> np.ndarray:
        self.asked += len(sequences)
        share = np.array([(s.count("G") + s.count("C") + 0.5) / (len(s) + 1) for s in sequences])
        value = np.log(share / (1 - share)) + self.shift
        return np.stack([np.array(list(map(len, sequences))), value], axis=1).astype(np.float32)


@pytest.fixture
def oracles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Flags of an oracle and of a judge that is off by 1."""

    def opened(oracle: Path | None, judge: Path | None, device: object, *, allow: bool):
        return (
            None if oracle is None else GCOracle(),
            None if judge is None else GCOracle(1.0 if judge.name == "judge" else 0.0),
        )

    monkeypatch.setattr(command, "open_oracles", opened)
    for name in ("oracle", "judge"):
        (tmp_path / name).mkdir()
    return [f"--oracle={tmp_path / 'oracle'}", f"--judge={tmp_path / 'judge'}"]


@pytest.fixture
def fails(capsys: pytest.CaptureFixture[str]) -> Callable[[list[str]], str]:
    def run(arguments: list[str]) -> str:
        capsys.readouterr()
        assert main(arguments) == 2
        return capsys.readouterr().err.splitlines()[-1]

    return run


def read(folder: Path) -> list[dict[str, str]]:
    with (folder / "designs.tsv").open(newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    fasta = {r.id: str(r.seq) for r in SeqIO.parse(folder / "designs.fa", "fasta")}
    assert fasta == {row["name"]: row["sequence"] for row in rows}
    return rows


def test_designs_hold_every_constraint_and_come_close_to_what_is_wanted(
    gc_run: Path, gc_table: Path, oracles: list[str], tmp_path: Path, capsys
) -> None:
    out = tmp_path / "a" / "out"
    flags = ["--signal=gc=0.8", "--num=6", "--candidates=80", "--gc", "0.5", "0.9", "--seed=3"]
    flags += ["--homopolymer=4", "--avoid-sites=EcoRI,HinfI", "--avoid=TATA", "--avoid=GCGC"]
    flags += ["--motif=TGAC@3", "--motif=RRY", "--min-distance=5", "--max-distance=12"]
    assert main(["design", str(gc_run), f"--out={out}", *flags, *oracles]) == 0
    said = capsys.readouterr().out.splitlines()[-1]
    rows = read(out)
    assert len(rows) == 6 and said.startswith(f"{out}: 6 designs of 80 candidates, of which")
    with gc_table.open(newline="") as file:
        known = {r["name"]: r["sequence"] for r in csv.DictReader(file, delimiter="\t")}
    data = seqdiff.load(gc_run).datamodule.dataset("train")
    assert isinstance(data, TableDataset)
    training = set(data.table.names)
    for row in rows:
        sequence = row["sequence"]
        gc = (sequence.count("G") + sequence.count("C")) / 24
        assert len(sequence) == 24 and 0.5 <= gc <= 0.9
        assert float(row["gc"]) == pytest.approx(gc, abs=1e-5)
        assert not re.search(r"(.)\1{4}", sequence)
        assert not any(RestrictionBatch(["EcoRI", "HinfI"]).search(Seq(sequence)).values())
        for word in ("TATA", "GCGC"):
            assert word not in sequence and word not in other(sequence)
        assert sequence[3:7] == "TGAC" and re.search("[AG][AG][CT]", sequence)
        assert int(row["motif_RRY"]) == len(re.findall("(?=[AG][AG][CT])", sequence))
        assert 5 <= int(row["distance"]) <= 12 and row["nearest"] in training
        near = known[row["nearest"]]
        exact = min(levenshtein(sequence, near), levenshtein(other(sequence), near))
        assert exact == int(row["distance"])
        value = float(GCOracle().predict([sequence])[0, 1])
        assert float(row["predicted_gc"]) == pytest.approx(value, abs=1e-4)
        assert float(row["judged_gc"]) == pytest.approx(value + 1, abs=1e-4)
        assert float(row["wanted_gc"]) == pytest.approx(0.8) and row["wanted_noise"] == ""
    gaps = [abs(float(row["predicted_gc"]) - 0.8) for row in rows]
    assert gaps == sorted(gaps), "the best comes first"
    for i, first in enumerate(rows):
        for second in rows[:i]:
            a, b = first["sequence"], second["sequence"]
            assert min(levenshtein(a, b), levenshtein(other(a), b)) >= 2
    page = (out / "design.html").read_text()
    for heading in ("Predicted against wanted", "Diversity", "Nearest training", "best design"):
        assert heading in page
    assert "took no part in the choice" in page and 'class="warn"' not in page
    assert page.count("data:image/svg+xml") >= 7 and "<script" not in page


def test_the_same_seed_gives_the_same_files(
    gc_run: Path, oracles: list[str], tmp_path: Path
) -> None:
    flags = ["--signal=gc=0.8", "--num=3", "--candidates=12", oracles[0]]
    contents = []
    for name, seed, batch in (("a", 1, 12), ("a", 1, 5), ("b", 2, 12)):
        out = tmp_path / name
        more = [f"--seed={seed}", f"--batch-size={batch}", f"--out={out}"]
        assert main(["design", str(gc_run), *flags, *more]) == 0
        contents.append((out / "designs.tsv").read_bytes())
        assert "its predictions are too good. Add --judge" in (out / "design.html").read_text()
    assert contents[0] == contents[1] != contents[2]


def test_every_row_of_a_file_gets_designs(gc_run: Path, oracles: list[str], tmp_path: Path) -> None:
    wanted = tmp_path / "wanted.tsv"
    wanted.write_text("name\tgc\nlow\t-1.5\nhigh\t1.5\n")
    out = tmp_path / "out"
    flags = [f"--signal-file={wanted}", "--num=3", "--candidates=30", "--spread=0", *oracles]
    assert main(["design", str(gc_run), f"--out={out}", *flags]) == 0
    rows = read(out)
    assert [row["target"] for row in rows] == ["low"] * 3 + ["high"] * 3
    assert {row["name"].rpartition("_")[0] for row in rows} == {"low", "high"}
    for row in rows:
        goal = {"low": -1.5, "high": 1.5}[row["target"]]
        assert float(row["wanted_gc"]) == goal
        assert float(row["predicted_gc"]) == pytest.approx(goal, abs=0.6)


def test_templates_and_other_training_sequences(gc_run: Path, tmp_path: Path, capsys) -> None:
    templates, known = tmp_path / "t.fa", tmp_path / "known.fa"
    templates.write_text(">one\nACGTNNNNNNRR\n>two\nNNNNNNTTNNNN\n")
    known.write_text(">k1\nACGTACGTACAA\n>k2\nGGGGGGTTGGGG\n")
    out = tmp_path / "out"
    flags = [f"--infill={templates}", f"--training={known}", "--num=2", "--candidates=8"]
    flags += ["--min-distance=1", "--select=determinantal", f"--out={out}"]
    assert main(["design", str(gc_run), *flags]) == 0
    rows = read(out)
    assert [row["target"] for row in rows] == ["one", "one", "two", "two"]
    for row in rows:
        pattern = {"one": "ACGT......[AG][AG]", "two": "......TT...."}[row["target"]]
        assert re.fullmatch(pattern, row["sequence"])
        assert row["nearest"] in ("k1", "k2") and int(row["distance"]) >= 1
    assert "Predicted against wanted" not in (out / "design.html").read_text()


def test_the_greatest_prediction_is_taken(gc_run: Path, oracles: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    flags = ["--maximise=gc", "--num=30", "--candidates=30", "--spread=0", oracles[0]]
    assert main(["design", str(gc_run), f"--out={out}", *flags]) == 0
    found = [float(row["predicted_gc"]) for row in read(out)]
    assert found == sorted(found, reverse=True) and found[0] > found[-1]


def test_sampling_avoids_words_from_python_and_the_command_line(
    gc_run: Path, tmp_path: Path, fails
) -> None:
    out = tmp_path / "a.fa"
    common = ["sample", str(gc_run), "--num=30", "--seed=4", f"--out={out}"]
    assert main([*common, "--avoid=ACG", "--avoid=SSSS"]) == 0
    written = [str(r.seq) for r in SeqIO.parse(out, "fasta")]
    never = re.compile("ACG|CGT|[CG]{4}")
    assert not any(map(never.search, written))
    run = seqdiff.load(gc_run)
    assert run.sample(30, seed=4, avoid=["ACG", "SSSS"]) == written
    free = run.sample(30, seed=4)
    assert sum(map(bool, map(never.search, free))) > 6, "61% of the table's rows have such a word"
    assert run.infill("ACNNACNN", 5, seed=1, avoid=["ACG"]) != []
    out.unlink()
    said = "got the word TGAC for sample_0 at position 2;"
    assert said in fails([*common, "--motif=TGAC@2", "--avoid=TGAC"])
    said = "got the word GTCA on the other strand for sample_0 at position 2;"
    assert said in fails([*common, "--motif=TGAC@2", "--avoid=GTCA"])
    template = tmp_path / "t.fa"
    template.write_text(">x\nNNNACGNN\n")
    said = "got the word ACG for x_0 at position 3; change the template or the motif there"
    assert said in fails([*common, f"--infill={template}", "--avoid=ACG"])
    assert "sample.avoid AXG: sequence: 'X' at offset 1" in fails([*common, "--avoid=AXG"])
    assert not out.exists()


def test_an_error_is_one_line_without_a_seed(gc_run: Path, capsys) -> None:
    for flags in (["--motif=TGAC", "--avoid=TGAC"], ["--label=what"], ["--guidance=2"]):
        capsys.readouterr()
        assert main(["sample", str(gc_run), "--num=2", *flags]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
    assert main(["sample", str(gc_run), "--num=2"]) == 0
    assert capsys.readouterr().err.startswith("seqdiff: seed ")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--num=0"], "design.num must be at least 1, got 0"),
        (["--num=30", "--candidates=20"], "design.candidates must be at least num = 30, got 20"),
        (["--spread=-1"], "design.spread must be at least 0, got -1"),
        (["--gc", "0.6", "0.4"], "design.gc must be a least and a greatest fraction in [0, 1]"),
        (["--avoid-sites=EcoRi"], "restriction enzyme, got 'EcoRi'; did you mean EcoRI?"),
        (["--maximise=gc"], "design.maximise must come with an oracle, got 'gc' without"),
        (["--oracle=none"], "design.oracle must be the folder of an oracle, got none"),
        (["--training=none.fa"], "design.training must be an existing file, got none.fa"),
        (["--signal=what=1"], "design.signal must name signals of the run (gc, noise), got"),
        (["--signal=gc"], "design.signal must be NAME=VALUE with a finite number, got 'gc'"),
        (["--signal=gc=1", "--signal-file=W"], "design.signal must be left out with --signal-file"),
        (["--infill=T", "--length=9"], "design.length must be left out with --infill, got 9"),
        (["--infill=T", "--motif=ACG"], "design.motif must be left out with --infill"),
        (
            ["--motif=GAATTC", "--avoid-sites=EcoRI"],
            "must leave a way to fill every sequence, got the word GAATTC (EcoRI) for design_0 at",
        ),
        (
            ["--motif=ACG@2", "--motif=TTT@3"],
            "sample.motif TTT@3 must allow a symbol in common with ACG@2 at position 3",
        ),
        (
            ["--infill=T", "--avoid=ACGT"],
            "must leave a way to fill every sequence, got the word ACGT for one_0 at position 0",
        ),
        (
            ["--gc", "0.99", "1", "--motif=AT@0", "--min-distance=2"],
            "design.candidates must hold a sequence that passes every filter, got none of 20; "
            "failed: gc 20; loosen one of these, or raise --candidates",
        ),
        (
            ["--min-distance=24"],
            "got none of 20; failed: none; of the other 20: min_distance 20; loosen",
        ),
    ],
)
def test_what_cannot_be_designed_is_one_line(
    gc_run: Path, tmp_path: Path, fails, flags: list[str], said: str
) -> None:
    (tmp_path / "T").write_text(">one\nACGTNNNNNNRR\n")
    (tmp_path / "W").write_text("name\tgc\na\t1\n")
    flags = [re.sub("=([TW])$", rf"={tmp_path}/\1", flag) for flag in flags]
    out = tmp_path / "out"
    size = [] if any("--candidates" in f or "--num" in f for f in flags) else ["--num=2"]
    more = [] if any("--candidates" in f for f in flags) else ["--candidates=20"]
    assert said in fails(["design", str(gc_run), f"--out={out}", *flags, *size, *more])
    assert not out.exists()


def test_an_oracle_does_not_judge_its_own_choice(
    gc_run: Path, oracles: list[str], tmp_path: Path, fails
) -> None:
    out = tmp_path / "out"
    judge = oracles[0].replace("--oracle", "--judge")
    flags = ["design", str(gc_run), f"--out={out}", "--num=2", "--candidates=6"]
    flags += ["--signal=gc=1", oracles[0], judge]
    assert "design.judge must be another oracle than the one that ranks" in fails(flags)
    assert not out.exists()
    assert main([*flags, "--allow-same-judge"]) == 0
    assert "The judge also chose the designs" in (out / "design.html").read_text()
    said = "design.maximise must be one of the oracle's values, length, gc, got 'expr'"
    assert said in fails([*flags, "--allow-same-judge", "--maximise=expr"])


def test_oracles_of_disjoint_halves_rank_and_judge(
    gc_run: Path, gc_table: Path, tmp_path: Path, fails
) -> None:
    for part in ("a", "b"):
        train = ["oracle", "train", str(gc_table), "--signals", "[gc]", f"--part={part}"]
        small = ["--epochs=1", "--members=1"]
        assert main([*train, *small, f"--out={tmp_path / part}"]) == 0
    flags = ["design", str(gc_run), "--signal=gc=1", "--num=2", "--candidates=6"]
    flags += [f"--oracle={tmp_path / 'a'}", f"--out={tmp_path / 'out'}"]
    assert main([*flags, f"--judge={tmp_path / 'b'}"]) == 0
    oracles = {
        kind: Oracle.load(tmp_path / part) for kind, part in (("predicted", "a"), ("judged", "b"))
    }
    for row in read(tmp_path / "out"):
        for kind, oracle in oracles.items():
            value = float(oracle.predict([row["sequence"]])[0, 0])
            assert float(row[f"{kind}_gc"]) == pytest.approx(value, abs=1e-4)
    copy = tmp_path / "copy"
    oracles["predicted"].save(copy)
    assert "judge must be another oracle than the one that guided" in fails(
        [*flags, f"--judge={copy}"]
    )


def test_distances_need_training_sequences_before_drawing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails
) -> None:
    monkeypatch.chdir(tmp_path)  # without the table of the packaged model
    monkeypatch.setattr(seqdiff.Run, "draw", lambda *_, **__: pytest.fail("drew candidates"))
    flags = ["design", "ecoli-promoters", "--num=1", "--candidates=1", "--min-distance=5"]
    assert "must come with training sequences, got none; add --training FILE" in fails(flags)


def test_distances_need_training_sequences() -> None:
    names, targets = ["a", "b"], np.zeros(2, dtype=np.int64)
    none = np.zeros((1, 0))
    candidates = Candidates(names, ["ACGT", "ACGA"], targets, ["x"], [], none, none[0])
    choice = Choice(constraints=Constraints(max_distance=3))
    with pytest.raises(ValueError, match=r"must come with training sequences, got none; add"):
        choose(candidates, choice)
    found = choose(candidates, Choice(constraints=Constraints(), num=2, spread=0))
    assert found.chosen.tolist() == [0, 1] and found.nearest is None and found.best == 0


def test_copies_count_once() -> None:
    target, none = np.array([0, 0, 1, 0]), np.zeros((2, 0))
    sequences = ["ACGT", "ACGT", "ACGT", "TTTT"]
    candidates = Candidates(list("abcd"), sequences, target, ["x", "y"], [], none, none[0])
    found = choose(candidates, Choice(constraints=Constraints(), num=3, spread=0))
    assert found.chosen.tolist() == [0, 3, 2] and found.failures == "copies 1"


def test_designs_differ_in_a_tenth_of_their_bases_by_default() -> None:
    """The second sequence is one base off the first, and the third is two off."""
    sequences = ["ACGTTGCAACCATTGCAGAC", "ACGTTGCAACCATTGCAGAA", "TCGTTGCAACCATTGCAGAA"]
    none, target = np.zeros((1, 0)), np.zeros(3, dtype=np.int64)
    candidates = Candidates(list("abc"), sequences, target, ["x"], [], none, none[0])
    found = choose(candidates, Choice(constraints=Constraints(), num=3))
    assert found.chosen.tolist() == [0, 2]
    assert distances_between(sequences).tolist() == [1, 2, 1]


def test_every_target_has_its_number_of_designs_and_the_best_is_of_any() -> None:
    sequences = ["AAAAAC", "AAAATC", "AAATTC", "GGGGGC", "GGGGTC", "GGGTTC"]
    none, target = np.zeros((2, 0)), np.repeat(np.arange(2), 3)
    candidates = Candidates(list("abcdef"), sequences, target, ["x", "y"], [], none, none[0])
    choice = Choice(constraints=Constraints(), num=2, spread=0, maximise="gc")
    found = choose(candidates, choice, GCOracle())
    assert found.chosen.tolist() == [0, 1, 3, 4] and found.best == 2


def test_quality_by_hand() -> None:
    predicted = np.array([[1.0, 5.0], [2.0, 3.0]])
    goals = np.array([[4.0, np.nan, 1.0], [3.0, 0.0, np.nan]])
    scale = np.array([2.0, 1.0, 0.5])
    plain = Choice(constraints=Constraints())
    found = rate(plain, goals, scale, ["b", "x", "a"], predicted, ["a", "b"])
    first = np.sqrt(((1 - 1) / 0.5) ** 2 / 2 + ((5 - 4) / 2) ** 2 / 2)
    assert found == pytest.approx([-first, -abs(3 - 3) / 2])
    most = Choice(constraints=Constraints(), maximise="b")
    assert rate(most, goals, scale, ["b"], predicted, ["a", "b"]).tolist() == [5.0, 3.0]
    assert rate(plain, goals, scale, ["x"], predicted, ["a", "b"]).tolist() == [0.0, 0.0]


def test_saturation_predicts_every_substitution() -> None:
    class Count:
        columns = ("x", "a")

        def predict(self, sequences: list[str]) -> np.ndarray:
            weights = [[i * (s[i] == "A") for i in range(len(s))] for s in sequences]
            return np.stack([np.zeros(len(sequences)), np.sum(weights, axis=1)], axis=1)

    value, effects = saturate(Count(), "CAGA", "a")
    assert value == 4
    expected = [[0, 0, 0, 0], [0, -1, -1, -1], [2, 0, 0, 0], [0, -3, -3, -3]]
    assert effects.tolist() == expected

"""The benchmark of designs at small size."""

import json
from argparse import Namespace
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from benchmarks import design
from benchmarks.design import Data, floors, measure, prepare
from genomics.design import Oracle, OracleTraining

LENGTH = 24


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """700 random rows whose value is about the number of G and C."""
    source = np.random.default_rng(0)
    lines = ["name\tsequence\tlevel\tkin"]
    for number in range(700):
        text = "".join(source.choice(list("ACGT"), LENGTH))
        value = sum(map(text.count, "GC")) + source.normal()
        lines.append(f"s{number}\t{text}\t{value:.3f}\t{number // 2}")
    path = tmp_path_factory.mktemp("design") / "level.tsv"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def prepared(table: Path) -> tuple[Namespace, Data]:
    options = Namespace(
        table=table, signal="level", group="kin", split=None, clip=None, num=30,
        work=table.parent / "work",
    )  # fmt: skip
    options.work.mkdir()
    short = partial(OracleTraining, members=1, epochs=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(design, "OracleTraining", short)
        return options, prepare(options)


def test_generator_and_judge_share_no_row(prepared) -> None:
    options, data = prepared
    judge = Oracle.load(options.work / "judge")
    written = data.table.read_text().splitlines()
    header = written[0].split("\t")
    rows = [dict(zip(header, line.split("\t"), strict=True)) for line in written[1:]]
    used = {row["kin"] for row in rows if row["split"] != "test"}
    everything = [line.split("\t") for line in options.table.read_text().splitlines()[1:]]
    left = [text for _, text, _, kin in everything if kin not in {row["kin"] for row in rows}]
    assert judge.config.num_seen == len(left)
    assert {row["sequence"] for row in rows if row["split"] == "train"} == set(data.training[0])
    asked = {row["kin"] for row in rows if row["split"] == "test"}
    assert not used & asked
    assert not set(data.wanted[0]) & set(data.others[0])


def test_floors(prepared) -> None:
    _, data = prepared
    found = floors(data)
    assert found["real test rows"] == data.wanted[0]
    values = dict(zip(*data.training, strict=True))
    for text, wanted in zip(found["nearest training row"], data.wanted[1], strict=True):
        assert abs(values[text] - wanted) == np.abs(data.training[1] - wanted).min()
    for text, real in zip(found["dinucleotide shuffle"], data.wanted[0], strict=True):
        assert sorted(pairwise(text)) == sorted(pairwise(real))
    markov = found["Markov chain by 10 intervals"]
    content = [sum(map(text.count, "GC")) for text in markov]
    assert np.corrcoef(content, data.wanted[1])[0, 1] > 0.4, "chains of strong rows are rich in GC"


def test_measures(prepared) -> None:
    options, data = prepared
    judge = Oracle.load(options.work / "judge")
    real = measure(data, judge, data.wanted[0])
    predicted = judge.predict(data.wanted[0])[:, 0]
    assert real["pearson"][0] == pytest.approx(np.corrcoef(predicted, data.wanted[1])[0, 1])
    assert real["mse"][0] == pytest.approx(((predicted - data.wanted[1]) ** 2).mean())
    assert real["ks"] == 0
    again = replace(data, others=data.wanted)
    assert measure(again, judge, data.wanted[0])["js_distance_6"] == 0
    copied = measure(data, judge, data.training[0][:30])
    assert copied["novelty"] == 0 and copied["copies"] == 30
    same = measure(data, judge, ["A" * LENGTH] * 30)
    assert same["diversity"] == 0 and same["auroc_4mers"] > 0.9


def test_peers_must_be_installed(table: Path, monkeypatch, capsys, tmp_path: Path) -> None:
    monkeypatch.setattr(design, "find_spec", lambda name: None)
    with pytest.raises(SystemExit) as stopped:
        design.main([str(table), "--signal", "level", "--work", str(tmp_path / "work")])
    assert stopped.value.code == 2
    assert "pip install d3-dna==0.1.3" in capsys.readouterr().err
    assert not (tmp_path / "work").exists()


def test_results_of_other_options_are_refused(table: Path, tmp_path: Path, capsys) -> None:
    given = Namespace(
        table=table, signal="level", group="kin", split=None, clip=None, minutes=1.0, num=30,
        ours=[], peer_rate=3e-4, work=tmp_path / "work",
    )  # fmt: skip
    design.check_same(given)
    design.check_same(given)
    given.num = 40
    with pytest.raises(SystemExit) as stopped:
        design.check_same(given)
    assert stopped.value.code == 2
    said = f"design.num must be 30, which {given.work} was made with, got 40"
    assert said in capsys.readouterr().err


@pytest.mark.slow
def test_runs_and_records(prepared, capsys) -> None:
    options, _ = prepared
    path = options.work / "figures.json"
    small = ["--ours", "backbone.d_model=8", "backbone.n_layer=1"]
    arguments = [str(options.table), "--signal", "level", "--group", "kin", "--num", "30"]
    arguments += ["--work", str(options.work), "--minutes", "0.01", "--models", "seqdiff-0"]
    design.main([*arguments, "--guidance", "1", "--json", str(path), *small])
    assert "seqdiff-0, guidance 1" in capsys.readouterr().out
    results = json.loads(path.read_text())["results"]
    found = results["sets"]["seqdiff-0, guidance 1"]
    best = results["top"]
    assert best["best training rows"]["measured"] > best["best training rows"]["asked"]
    assert best["seqdiff-0, guidance 1"]["sequences"] == 6
    assert found["training"]["steps"] * 32 == found["training"]["sequences"]
    assert (options.work / "seqdiff-0-guidance-1.fa").read_text().count(">") == 30

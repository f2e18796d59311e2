"""``seqdiff score``."""

import csv
import hashlib
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.progress import Progress
from scipy.stats import t

from genomics.io.fasta import write_fasta
from seqdiff.cli.app import main
from seqdiff.likelihood import FixedOrder, evaluate
from seqdiff.run import engine, load
from seqdiff.types import Batch
from tests.integration.toy_domain import ALPHABET, ToyNet

FASTA_CONFIG = Path(__file__).parents[2] / "configs" / "experiment" / "genomics" / "demo.yaml"


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def scored(path: Path) -> list[dict[str, str]]:
    """The lines of records with a known symbol."""
    return [row for row in read(path) if row["counted"] != "0"]


def noise_index(content: np.ndarray, reading: int) -> int:
    """63 bits of a digest of the content and the number of the reading."""
    digest = hashlib.blake2b(content.astype("<i8").tobytes() + bytes([reading]), digest_size=8)
    return int.from_bytes(digest.digest(), "little") >> 1


@pytest.fixture(scope="module")
def dna_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small equivariant Caduceus after one step, with an embedding large enough to matter."""
    run = tmp_path_factory.mktemp("dna") / "run"
    sizes = ["--data.length=16", "--data.num_train=32", "--backbone.variant=ps"]
    sizes += ["--backbone.complement=[3,2,1,0,4]", "--trainer.max_steps=1"]
    sizes += ["--trainer.enable_progress_bar=false", "--backbone.d_model=8"]
    assert main(["train", str(FASTA_CONFIG), f"--output={run}", *sizes]) == 0
    return run


def score(run: Path, source: Path, out: Path, *flags: str) -> list[str]:
    kind = "--ring" if source.suffix == ".ring" else "--fasta"
    own = {kind: str(source), "--out": str(out)}
    kept = [word for key, value in own.items() if key not in flags for word in (key, value)]
    return ["score", str(run), *kept, *flags]


@pytest.mark.usefixtures("toy_writer")
def test_scores_of_a_domain_from_outside(
    trained: Path, rings: Path, tmp_path: Path, capsys
) -> None:
    """Each line equals ``evaluate`` on that sequence alone, in the order of the file."""
    out = tmp_path / "scores.tsv"
    assert main(score(trained, rings, out, "--estimator", "fixed-order")) == 0
    said = capsys.readouterr().out
    assert f"{out}: 5 records" in said and "exact, left to right, by fixed-order" in said
    table = read(out)
    assert list(table[0])[:5] == ["record", "length", "nats", "bits/token", "standard_error"]
    assert [row["record"] for row in table] == ["one", "two", "three", "four", "five"]
    assert [row["length"] for row in table] == ["8", "5", "8", "2", "8"]
    assert [row["counted"] for row in table] == ["8", "5", "6", "0", "8"]
    estimates = ("nats", "bits/token", "standard_error", "low", "high")
    assert [table[3][key] for key in estimates] == ["NA"] * 5 and table[3]["nfe"] == "0"
    run = load(trained)
    for number, row in enumerate(table):
        ids = torch.from_numpy(
            run.tokenizer.encode(rings.read_text().splitlines()[number].split()[1])
        )
        if row["record"] == "four":
            continue
        alone = Batch(ids[None], ids[None] != len(ALPHABET), torch.tensor([number]))
        result = evaluate(run.denoiser, [alone], estimator=FixedOrder())
        assert float(row["nats"]) == pytest.approx(result.nats[0], abs=2e-6)
        bits = result.nats[0] / math.log(2) / int(row["counted"])
        assert float(row["bits/token"]) == pytest.approx(bits, abs=2e-6)
        assert int(row["nfe"]) == int(row["counted"])
        assert row["low"] == row["nats"] == row["high"], "an exact likelihood has no error"
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.usefixtures("toy_writer")
def test_scores_are_a_function_of_the_seed_and_not_of_the_batch(
    trained: Path, rings: Path, tmp_path: Path
) -> None:
    tables = []
    for place, flags in enumerate((("1", "0"), ("64", "0"), ("64", "1"))):
        out = tmp_path / f"{place}.tsv"
        assert main(score(trained, rings, out, "--batch_size", flags[0], "--seed", flags[1])) == 0
        tables.append([float(row["nats"]) for row in scored(out)])
    assert tables[0] == pytest.approx(tables[1], abs=1e-5)
    assert max(abs(a - b) for a, b in zip(tables[1], tables[2], strict=True)) > 1e-2


@pytest.mark.usefixtures("toy_writer")
def test_target_and_budget_reach_the_estimator(trained: Path, rings: Path, tmp_path: Path) -> None:
    out = tmp_path / "scores.tsv"
    for flags, most in ((("--target_se", "0.05"), 10**6), (("--max_nfe", "50"), 50)):
        assert main(score(trained, rings, out, *flags)) == 0
        table = [row for row in read(out) if row["counted"] != "0"]
        assert all(int(row["nfe"]) <= most for row in table)
        if most == 50:
            assert {row["nfe"] for row in table} == {"32"}
        else:
            errors = [float(row["standard_error"]) for row in table]
            assert 0 < sum(error**2 for error in errors) / len(errors) < (1.5 * 0.05) ** 2


@pytest.mark.usefixtures("toy_writer")
def test_readings_are_averaged_with_independent_errors(
    trained: Path, rings: Path, tmp_path: Path
) -> None:
    out = tmp_path / "scores.tsv"
    assert main(score(trained, rings, out)) == 0
    one_way = read(out)
    assert main(score(trained, rings, out, "--both_ways")) == 0
    both = read(out)
    run = load(trained)
    lines = [line.split()[1] for line in rings.read_text().splitlines()]
    for number in (0, 1, 2, 4):
        forward = run.tokenizer.encode(lines[number])
        ids = torch.from_numpy(forward[::-1].copy())[None]
        back = Batch(ids, ids != len(ALPHABET), torch.tensor([noise_index(forward, 1)]))
        result = evaluate(run.denoiser, [back])
        forth = {key: float(one_way[number][key]) for key in ("nats", "standard_error")}
        mean = (forth["nats"] + result.nats[0]) / 2
        error = math.hypot(forth["standard_error"], result.standard_error[0]) / 2
        assert float(both[number]["nats"]) == pytest.approx(mean, abs=1e-5)
        assert float(both[number]["standard_error"]) == pytest.approx(error, abs=1e-5)
        low, high = float(both[number]["low"]), float(both[number]["high"])
        assert (low + high) / 2 == pytest.approx(mean, abs=1e-5)
        assert t.isf(0.025, 32) <= (high - low) / 2 / error <= t.isf(0.025, 1) + 1e-3
        assert int(both[number]["nfe"]) == 2 * int(one_way[number]["nfe"])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "the FASTA file is empty"),
        ("ACGT\n", "its first line does not start with '>'"),
        (">a\nACGU\n", "record 'a': 'U' at offset 3"),
        (">a\nACGT\n>a\nAC\n", "two records are named 'a'"),
        (">a\nNNN\n", "score.records must hold a known symbol, got 1 without any"),
    ],
)
def test_bad_fasta_leaves_no_table(
    dna_run: Path, tmp_path: Path, fails: Callable[[list[str]], str], content: str, said: str
) -> None:
    source = tmp_path / "bad.fa"
    source.write_text(content)
    assert said in fails(score(dna_run, source, tmp_path / "a.tsv"))
    assert list(tmp_path.iterdir()) == [source]


def test_dna_is_not_scored_by_a_model_of_something_else(
    trained: Path, tmp_path: Path, fails
) -> None:
    write_fasta(tmp_path / "a.fa", ["a"], ["ACGT"])
    message = fails(score(trained, tmp_path / "a.fa", tmp_path / "a.tsv"))
    assert (
        "score.fasta must be scored by a model of DNA or proteins, got a run whose tokenizer is"
        in message
    )
    assert not (tmp_path / "a.tsv").exists()


@pytest.mark.usefixtures("toy_writer")
@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--batch_size", "0"), "score.batch_size must be at least 1, got 0"),
        (("--seed", "-1"), "score.seed must be in [0, 2^32), got -1"),
        (("--out", "nowhere/a.tsv"), "score.out must lie in an existing folder, got nowhere/a.tsv"),
        (("--ring", "no.ring"), "score.ring must be an existing file, got no.ring; check the path"),
        (("--estimator", "guess"), 'Invalid value "guess" for --estimator'),
        (("--convention", "sedd"), 'Invalid value "sedd" for --convention'),
        (("--evaluations", "7"), "score.evaluations must be even and at least 2, got 7"),
        (("--orders", "2"), "score.orders must go with one of random-order-chain, importance-"),
        (
            ("--estimator", "fixed-order", "--evaluations", "8"),
            "score.evaluations must go with one of bernoulli-time, exact-k, stratified-k, "
            "time-integral, discrete-steps, gaussian-integral, got it with fixed-order",
        ),
        (
            ("--tokens-per-step", "2"),
            "score.tokens_per_step must go with one of confident-order, got it with no "
            "--estimator; name one, or leave out --tokens-per-step",
        ),
        (
            ("--estimator", "confident-order", "--tokens-per-step", "0"),
            "ConfidentOrder.tokens_per_step must be at least 1, got 0",
        ),
        (
            ("--estimator", "exact-k", "--convention", "mdlm"),
            "score.convention mdlm must go with the estimator bernoulli-time",
        ),
        (("--estimator", "random-order-chain", "--orders", "1"), "RandomOrderChain.orders must be"),
        (("--target_se", "0"), "score.target_se must be above 0 nats and finite, got 0.0; leave"),
        (("--target_se", "nan"), "score.target_se must be above 0 nats and finite, got nan"),
        (("--target_se", "inf"), "score.target_se must be above 0 nats and finite, got inf"),
        (("--max_nfe", "31"), "score.max_nfe must be at least 32"),
        (("--device", "meta"), "--device must be usable, got 'meta'"),
    ],
)
def test_bad_arguments_are_refused_before_the_run_is_opened(
    tmp_path: Path, rings: Path, fails, flags: tuple[str, ...], said: str
) -> None:
    before = list(tmp_path.iterdir())
    assert said in fails(score(tmp_path / "no-run", rings, tmp_path / "a.tsv", *flags))
    assert list(tmp_path.iterdir()) == before
    shared = flags[0] not in ("--batch_size", "--out", "--ring", "--seed")
    if shared:
        message = said.replace("score.", "evaluate.")
        assert message in fails(["evaluate", str(tmp_path / "no-run"), *flags])


@pytest.mark.usefixtures("toy_writer")
def test_good_arguments_get_as_far_as_the_run(tmp_path: Path, rings: Path, fails) -> None:
    """With valid arguments the missing run is the only error."""
    assert "must hold run.yaml" in fails(score(tmp_path / "no-run", rings, tmp_path / "a.tsv"))
    said = "score must be given files after RUN, or by one of --ring, got no file"
    assert said in fails(["score", "run", "--out", "a.tsv"])


@pytest.mark.usefixtures("toy_writer")
@pytest.mark.parametrize("flags", [(), ("--target_se", "0.2")], ids=["one stage", "two stages"])
def test_the_bar_moves_with_every_network_call(
    trained: Path,
    rings: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    flags: tuple[str, ...],
) -> None:
    """A long record takes many calls and would otherwise look stuck."""
    shown: list[float] = []

    class Bar(Progress):
        def update(self, task_id, *, completed: float, **fields) -> None:
            shown.append(completed)

    calls: list[int] = []
    forward = ToyNet.forward

    def counted(self, inputs, where=None):
        calls.append(len(inputs.tokens))
        return forward(self, inputs, where)

    monkeypatch.setattr(engine, "progress", Bar)
    monkeypatch.setattr(ToyNet, "forward", counted)
    assert main(score(trained, rings, tmp_path / "a.tsv", "--batch_size", "2", *flags)) == 0
    assert shown[-1] == 4, "the record of unknown symbols is not run"
    assert len(shown) >= len(calls) > 4 * 8
    assert shown == sorted(shown) and shown[0] < 0.2

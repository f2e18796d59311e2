"""Regression by the harness of fine-tuning: values in the units of the table, gaps ignored."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.metrics import r2_score

from genomics.baselines import KmerRidge
from genomics.baselines.ridge import ALPHAS, count_short_kmers
from genomics.finetune.baselines import run_baseline
from genomics.finetune.goals import Classes, Values, build_goal
from genomics.finetune.labelled import Labelled, LabelledTask
from genomics.finetune.protocol import Baseline, Strategy
from genomics.finetune.runs import Plan, Recipe, hold_out, run_backbone, split_rows
from genomics.finetune.table import VALUE_HEADINGS, build_tables, summarise
from genomics.finetune.tasks import load_regression
from genomics.sequence import decode, reverse_complement
from seqdiff.cli.app import main
from seqdiff.training import Cell, Ledger, run_cells
from tests.genomics.toy_tasks import network, run_config, unseen

COLUMNS = ("gc", "less")


def rows(num: int, seed: int, *, shuffle: bool = False, width: int = 70) -> Labelled:
    """The number of G and C in units of 1/10, and -7 times it; each value lacks in a third."""
    rng = np.random.default_rng(seed)
    ids = []
    for fraction in rng.uniform(0.1, 0.9, num):
        law = np.array([1 - fraction, fraction, fraction, 1 - fraction]) / 2
        length = width + int(rng.integers(0, 11))
        ids.append(rng.choice(4, length, p=law).astype(np.uint8))
    count = np.array([((x == 1) | (x == 2)).sum() for x in ids]) / 10
    values = np.stack((count + 100, -7 * count), axis=1)
    if shuffle:
        values = rng.permutation(values)
    lacking = rng.integers(0, 3, num)
    values[lacking == 0, 0] = values[lacking == 1, 1] = np.nan
    return Labelled(tuple(ids), values)


def task(*, shuffle: bool = False, num: int = 600, width: int = 70) -> LabelledTask:
    train, valid, test = (
        rows(n, seed, shuffle=shuffle, width=width)
        for seed, n in enumerate((num, num // 4, num // 2))
    )
    return LabelledTask("t", (), train, valid, test, columns=COLUMNS)


# Loss and metrics


def values_goal() -> Values:
    return Values(COLUMNS, np.array([100.0, -20.0]), np.array([2.0, 10.0]))


def gaps(num: int) -> np.ndarray:
    truth = np.random.default_rng(0).normal((100, -20), (2, 10), (num, 2))
    truth[::3, 0] = truth[1::3, 1] = np.nan
    return truth


def test_the_loss_is_the_squared_error_of_known_standardised_values() -> None:
    truth, outputs = gaps(8), torch.randn(8, 2, generator=torch.Generator().manual_seed(0))
    errors = [
        (float(outputs[row, column]) - (truth[row, column] - mean) / std) ** 2
        for row in range(8)
        for column, (mean, std) in enumerate(((100, 2), (-20, 10)))
        if truth[row, column] == truth[row, column]
    ]
    assert len(errors) == 10
    outputs.requires_grad_()
    loss = values_goal().loss(outputs, torch.from_numpy(truth))
    assert loss.item() == pytest.approx(np.mean(errors), rel=1e-5)
    loss.backward()
    assert outputs.grad is not None
    assert torch.equal(outputs.grad == 0, torch.from_numpy(np.isnan(truth)))


def test_outputs_are_read_in_the_units_of_the_table() -> None:
    read = values_goal().read(torch.tensor([[0.0, 0.0], [1.0, -2.0]]))
    assert read.tolist() == [[100.0, -20.0], [102.0, -40.0]]
    train = Labelled((np.zeros(3, dtype=np.uint8),) * 3, np.array([[1.0], [np.nan], [5.0]]))
    goal = build_goal(LabelledTask("t", (), train, None, train, columns=("x",)), train)
    assert isinstance(goal, Values) and (goal.mean, goal.std) == ([3.0], [2.0])
    assert isinstance(build_goal(LabelledTask("t", ("a", "b"), train, None, train), train), Classes)


def test_metrics_are_those_of_scipy_on_known_rows() -> None:
    truth = gaps(40)
    found = truth + np.random.default_rng(1).normal(0, (1, 20), truth.shape)
    found = np.where(np.isnan(truth), 1e6, found)
    measured = values_goal().measure(truth, found)
    assert measured["num"] == 40
    for place, name in enumerate(COLUMNS):
        known = ~np.isnan(truth[:, place])
        pair = truth[known, place], found[known, place]
        assert measured["columns"][name] == pytest.approx(
            {
                "num": known.sum(),
                "pearson": stats.pearsonr(*pair)[0],
                "spearman": stats.spearmanr(*pair)[0],
                "mse": np.mean((pair[0] - pair[1]) ** 2),
            }
        )
    for metric in ("pearson", "spearman", "mse"):
        each = [measured["columns"][name][metric] for name in COLUMNS]
        assert measured[metric] == pytest.approx(np.mean(each))
    score = [
        r2_score(truth[known, place], found[known, place])
        for place in range(2)
        for known in [~np.isnan(truth[:, place])]
    ]
    assert values_goal().score(truth, found) == pytest.approx(np.mean(score))


def test_a_constant_has_an_error_but_no_correlation() -> None:
    truth = gaps(10)
    measured = values_goal().measure(truth, np.tile([100.0, -20.0], (10, 1)))
    assert measured["pearson"] is None and measured["spearman"] is None
    assert measured["mse"] == pytest.approx(
        np.nanmean((truth - [100.0, -20.0]) ** 2, axis=0).mean()
    )
    nothing = values_goal().measure(truth[:0], truth[:0])
    assert (nothing["num"], nothing["mse"]) == (0, None)


# Runs


def run(strategy: Strategy, made: LabelledTask, *, valid: bool = True, epochs: int) -> dict:
    recipe = Recipe(0.02 if strategy == "full" else 0.1, 32, epochs)
    plan = Plan(recipe, strategy, "test", 80, "real", 0)
    made = made if valid else replace(made, valid=None)
    return run_backbone(network(), made, unseen(made), plan)


@pytest.mark.parametrize("strategy", ["full", "probe"])
def test_what_can_be_learned_is(strategy: Strategy) -> None:
    """With shuffled values, about 200 known rows give correlations of 0 +- .07."""
    made = task(width=25)
    found = run(strategy, made, valid=strategy == "full", epochs=5)
    columns = found["test"]["columns"]
    assert min(columns[name]["pearson"] for name in COLUMNS) > 0.9
    for place, name in enumerate(COLUMNS):
        assert columns[name]["mse"] < 0.3 * np.nanvar(made.test.labels[:, place])
    assert found["test"] == found["unseen"]
    assert found["epoch"] == int(np.argmax(found["valid_r2"])) + 1 and len(found["valid_r2"]) == 5
    shuffled = run(strategy, task(shuffle=True, width=25), epochs=2)["test"]["columns"]
    assert max(abs(shuffled[name]["pearson"]) for name in COLUMNS) < 0.4


@pytest.mark.parametrize(
    ("train", "said"),
    [
        (rows(30, 0).labels * [1, np.nan], "t: train must hold two different values of less, got"),
        (rows(30, 0).labels * [0, 1], "t: train must hold two different values of gc, got fewer"),
    ],
)
def test_a_part_in_which_a_value_does_not_vary(train: np.ndarray, said: str) -> None:
    made = replace(task(num=60), train=Labelled(rows(30, 0).ids, train))
    with pytest.raises(ValueError, match=f"{said}.* drop the column from --signals"):
        hold_out(made, 0)
    with pytest.raises(ValueError, match="the 90% of train that are used for training must hold"):
        split_rows(replace(made, valid=None), 0)


def baseline(name: Baseline, made: LabelledTask, epochs: int = 1) -> dict:
    options = {"length": 100, "epochs": epochs, "seed": 0, "device": torch.device("cpu")}
    return run_baseline(name, made, np.zeros(len(made.test), dtype=bool), **options)  # pyright: ignore


def test_the_first_baseline_is_the_mean_of_train() -> None:
    made = task(num=100)
    found = baseline("majority", made)
    mean = np.nanmean(made.train.labels, axis=0)
    assert found["test"]["pearson"] is None
    expected = np.nanmean((made.test.labels - mean) ** 2, axis=0).mean()
    assert found["test"]["mse"] == pytest.approx(expected)
    assert found["valid_r2"][0] < 0.05


def test_the_length_is_a_baseline() -> None:
    """A value that is the length has 11 bins; the mean of each is exact."""
    made = task(num=400)

    def measured(part: Labelled) -> Labelled:
        return Labelled(part.ids, np.stack((part.lengths, part.lengths % 2), axis=1) * 1.0)

    assert made.valid is not None
    by_length = replace(
        made, train=measured(made.train), valid=measured(made.valid), test=measured(made.test)
    )
    found = baseline("length", by_length)
    assert found["test"]["mse"] == pytest.approx(0, abs=1e-20)
    made = task(shuffle=True, num=400)
    constant = baseline("majority", made)["test"]["mse"]
    assert baseline("length", made)["test"]["mse"] > 0.8 * constant


def test_kmers_and_the_network_are_baselines() -> None:
    found = baseline("kmer", task())
    assert found["test"]["pearson"] > 0.95 and set(found["alpha"]) <= set(ALPHAS)
    assert baseline("kmer", task(shuffle=True))["test"]["pearson"] < 0.4
    found = baseline("cnn", task(), epochs=6)
    assert found["test"]["pearson"] > 0.8 and found["train_seconds"] > 0
    assert found["test"]["mse"] < 0.6 * np.nanvar(task().test.labels, axis=0).mean()


def test_the_ridge_regression_is_the_closed_form() -> None:
    train, valid = rows(160, 0), rows(60, 1)
    model = KmerRidge.fit(train.ids, train.labels, valid.ids, valid.labels)
    features, held = count_short_kmers(train.ids), count_short_kmers(valid.ids)
    assert features.shape == (160, 4 + 16 + 64 + 256 + 1024)
    assert (features[:, :4].sum(axis=1) == train.lengths).all()
    assert (features[:, -1024:].sum(axis=1) == train.lengths - 4).all()
    for column in range(2):
        known, asked = (~np.isnan(part.labels[:, column]) for part in (train, valid))
        y, errors, found = train.labels[known, column], [], []
        x = features[known] - features[known].mean(axis=0)
        for alpha in ALPHAS:
            weight = x.T @ np.linalg.solve(x @ x.T + alpha * np.eye(len(x)), y - y.mean())
            found.append(y.mean() + (held - features[known].mean(axis=0)) @ weight)
            errors.append(np.mean((found[-1][asked] - valid.labels[asked, column]) ** 2))
        best = int(np.argmin(errors))
        assert model.alphas[column] == ALPHAS[best]
        np.testing.assert_allclose(model.predict(valid.ids)[:, column], found[best], rtol=1e-6)


# Tables


def cell(seed: int, pearson: float, *, method: str = "kmer", diverges: bool = False) -> Cell:
    key: dict[str, object] = {"task": "human_nontata_promoters", "method": method, "seed": seed}
    measured = {
        "num": 40,
        "pearson": pearson,
        "spearman": pearson - 0.1,
        "mse": 20.25,
        "columns": {},
    }
    result = {"valid_r2": [pearson], "test": measured, "unseen": measured, "num_train": 9}
    return Cell(key | {"columns": ["x"]}, 0, lambda _: {"diverged": 1} if diverges else result)


def test_values_have_columns_of_their_own() -> None:
    ledger = Ledger(None)
    todo = [cell(0, 0.5), cell(1, 0.7), cell(0, 0.0, method="majority", diverges=True)]
    run_cells(todo, ledger)
    lines = summarise(todo, ledger)
    assert [line.method for line in lines] == ["k-mer ridge", "mean"], "and nothing published"
    assert lines[0].test == pytest.approx({"pearson": 0.6, "spearman": 0.5, "mse": 20.25})
    assert lines[0].spread == pytest.approx(0.2)
    (sheet,) = (table for table in build_tables(lines) if "40 test rows" in table.title)
    assert list(sheet.headings) == list(VALUE_HEADINGS)
    numbers = [".600", ".200", ".500", "20.250"]
    assert list(sheet.rows[0]) == ["k-mer ridge", *numbers, *numbers, "", "2", ""]


# Files and the command


def write(path: Path, part: Labelled, splits: list[str] | None = None) -> Path:
    columns = ["dna", *COLUMNS, "family", *(["split"] if splits else [])]
    lines = ["\t".join(columns)]
    for number, (ids, values) in enumerate(zip(part.ids, part.labels, strict=True)):
        if np.isnan(values).all():
            continue
        cells = [decode(ids), *("NA" if np.isnan(x) else repr(float(x)) for x in values)]
        lines.append("\t".join([*cells, f"f{number // 5}", *([splits[number]] if splits else [])]))
    path.write_text("\n".join(lines) + "\n")
    return path


def test_the_column_split_divides_a_table(tmp_path: Path) -> None:
    part, splits = rows(60, 0), ["train"] * 40 + ["valid"] * 8 + ["test"] * 12
    path = write(tmp_path / "a.tsv", part, splits)
    made = load_regression(path, COLUMNS, sequence_column="dna")
    assert (made.name, made.columns, made.classes) == ("a", COLUMNS, ())
    assert made.valid is not None
    assert [len(x) for x in (made.train, made.valid, made.test)] == [40, 8, 12]
    np.testing.assert_array_equal(made.test.labels, part.labels[48:])
    assert decode(made.test.ids[0]) == decode(part.ids[48])
    without = write(tmp_path / "b.tsv", part, [s.replace("valid", "train") for s in splits])
    assert load_regression(without, COLUMNS, sequence_column="dna").valid is None
    untested = write(tmp_path / "c.tsv", part, [s.replace("test", "valid") for s in splits])
    with pytest.raises(ValueError, match=r"c\.tsv: the test split must hold a row, got none of 60"):
        load_regression(untested, COLUMNS, sequence_column="dna")
    assert replace(made, columns=("x", "y")).fingerprint != made.fingerprint


def test_groups_and_strands_are_not_divided(tmp_path: Path) -> None:
    part = rows(200, 0)
    made = load_regression(
        write(tmp_path / "a.tsv", part), COLUMNS, sequence_column="dna", group="family"
    )
    number = {ids.tobytes(): n // 5 for n, ids in enumerate(part.ids)}
    assert made.valid is not None
    families = [
        {number[ids.tobytes()] for ids in x.ids} for x in (made.train, made.valid, made.test)
    ]
    assert sum(map(len, families)) == 40 == len(set.union(*families)) and min(map(len, families))
    assert made.note == "split 80/10/10 by a hash of each family"
    single = load_regression(tmp_path / "a.tsv", COLUMNS, sequence_column="dna")
    turned = Labelled(tuple(reverse_complement(ids) for ids in part.ids), part.labels)
    flipped = load_regression(write(tmp_path / "b.tsv", turned), COLUMNS, sequence_column="dna")
    assert [decode(reverse_complement(ids)) for ids in flipped.test.ids] == [
        decode(ids) for ids in single.test.ids
    ]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write(tmp_path / "made.tsv", rows(300, 0))


def options(table: Path, out: Path) -> list[str]:
    small = ["--epochs", "1", "--seeds", "1", "--batch-size", "64", "--lr", "0.01"]
    asked = ["--task", "regression", "--sequence-column", "dna", "--device", "cpu"]
    return ["--data", str(table), "--out", str(out), *small, *asked]


def test_the_command_tabulates_a_regression(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(json.dumps(run_config(tmp_path)))
    assert main(["train", str(config)]) == 0
    out = tmp_path / "out"
    command = ["finetune", str(tmp_path / "tiny"), *options(table, out)]
    assert main([*command, "--signals", "[gc, less]", "--group", "family"]) == 0
    assert "MSE is in squared units" in capsys.readouterr().out
    found = json.loads((out / "table.json").read_text())
    assert [row["method"] for row in found["rows"]] == [
        "mean",
        "length only",
        "k-mer ridge",
        "CNN",
        "tiny, full, RC at test",
    ]
    assert all(set(row["test"]) == {"pearson", "spearman", "mse"} for row in found["rows"])
    assert "| k-mer ridge |" in (out / "table.md").read_text()
    lines = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    assert all(line["key"]["columns"] == list(COLUMNS) for line in lines)
    assert set(lines[-1]["result"]["test"]["columns"]) == set(COLUMNS)
    assert main([*command, "--signals", "gc", "less", "--group", "family"]) == 0
    assert len((out / "results.jsonl").read_text().splitlines()) == len(lines), "nothing again"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "finetune.signals must be names of columns, got ''"),
        (["--signals", "up"], "must have a column 'up', got the columns dna, gc, less"),
        (["--signals", "gc", "--fasta", "g.fa"], "got regression with --fasta g.fa; leave it out"),
        (["--signals", "gc", "--label-column", "y"], "got regression with --label-column y"),
        (["--signals", "gc", "--data", "."], "finetune.data must be a table for --task regression"),
        (["--task", "classification", "--signals", "gc"], "classification with --signals gc"),
        (["--task", "classification", "--group", "family"], "classification with --group family"),
    ],
)
def test_options_that_do_not_go_together(
    words: list[str], said: str, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = options(table, tmp_path / "out")
    for flag in ("--task", "--data"):
        if flag in words:
            place = base.index(flag)
            base = base[:place] + base[place + 2 :]
    assert main(["finetune", *base, *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert not (tmp_path / "out").exists()

"""Oracles: what they predict, how they are kept, what may judge what."""

import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats

from genomics.design.oracle import (
    CommandOracle,
    Oracle,
    OracleConfig,
    check_judge,
    digest_sequences,
    opposite_strand,
    shared_sequences,
)
from genomics.design.oracle_training import (
    OracleTraining,
    evaluate_oracle,
    measure_predictions,
    rows_of_part,
    train_oracle,
)
from genomics.finetune import masked_mse
from genomics.io import SequenceTable, read_table, split_rows
from genomics.sequence import OracleClassifier, OracleReward, decode, encode, reverse_complement
from genomics.sequence.one_hot import RelaxedOracleClassifier, to_one_hot
from seqdiff.cli.app import main

MOTIF, LENGTH = "TATAATGC", 40


def random_dna(count: int, rng: np.random.Generator, length: int = LENGTH) -> list[str]:
    return [decode(row) for row in rng.integers(0, 4, (count, length))]


def flipped(sequence: str) -> str:
    return decode(reverse_complement(encode(sequence)))


def motif_rows(count: int, seed: int) -> tuple[list[str], np.ndarray]:
    """Sequences, and how many copies of the motif (0 to 2) each was given."""
    rng = np.random.default_rng(seed)
    copies = rng.integers(0, 3, count)
    rows = []
    for sequence, number in zip(random_dna(count, rng), copies, strict=True):
        first, second = rng.integers(0, 12), rng.integers(20, 32)
        for start in (first, second)[:number]:
            sequence = sequence[:start] + MOTIF + sequence[start + len(MOTIF) :]
        rows.append(sequence)
    return rows, copies.astype(np.float64)


def table_of(
    sequences: list[str], values: np.ndarray, *, groups: list[str] | None = None
) -> SequenceTable:
    values = values.reshape(len(sequences), -1)
    names = [str(number) for number in range(len(sequences))]
    columns = tuple(f"y{place}" for place in range(values.shape[1]))
    rows = np.arange(len(sequences)) + 2
    return SequenceTable(Path("t.tsv"), names, sequences, values, columns, None, groups, None, rows)


def motif_table(count: int = 900) -> SequenceTable:
    return table_of(*motif_rows(count, 0))


def parts(count: int = 900) -> dict[str, np.ndarray]:
    return {"train": np.arange(count - 150), "valid": np.arange(count - 150, count)}


QUICK = OracleTraining(members=1, epochs=4)


@pytest.fixture(scope="module")
def trained() -> Oracle:
    """Learns the number of motifs; tests only read it."""
    training = replace(QUICK, mask_inputs=True, members=2)
    return train_oracle(motif_table(), parts(), training)  # pyright: ignore[reportArgumentType]


def untrained(seed: int = 0, **changes: object) -> Oracle:
    """An oracle of two values with random weights, statistics of batch norm included."""
    config = OracleConfig(
        columns=("first", "second"),
        length=LENGTH,
        network="conv",
        width=8,
        depth=2,
        members=2,
        strands="one",
        mask_inputs=True,
        num_seen=3,
        source={},
        fit={},
    )
    torch.manual_seed(seed)
    oracle = Oracle(replace(config, **changes))  # pyright: ignore[reportArgumentType]
    for module in oracle.modules():
        if isinstance(module, torch.nn.BatchNorm1d):
            module.running_mean.uniform_(-1, 1)  # pyright: ignore[reportOptionalMemberAccess]
            module.running_var.uniform_(0.5, 2)  # pyright: ignore[reportOptionalMemberAccess]
    oracle.mean.copy_(torch.tensor([3.0, -1.0]))
    oracle.std.copy_(torch.tensor([2.0, 0.5]))
    oracle.residual_sd.uniform_(0.5, 2)
    return oracle.requires_grad_(False)


# Metrics


def test_metrics_are_those_of_scipy() -> None:
    rng = np.random.default_rng(3)
    truth = rng.integers(0, 6, 60).astype(float)  # with ties
    found = truth + rng.normal(size=60)
    measured = measure_predictions(truth, {"a": found, "b": -found}, seed=5)
    drawn = np.random.default_rng(5).integers(0, 60, (1000, 60))
    for name, sign in (("a", 1), ("b", -1)):
        for metric, rule in (("pearson", stats.pearsonr), ("spearman", stats.spearmanr)):
            interval = measured[name][metric]
            assert interval.value == pytest.approx(rule(truth, sign * found)[0], abs=1e-12)
            resampled = [rule(truth[rows], sign * found[rows])[0] for rows in drawn]
            ends = np.percentile(resampled, (2.5, 97.5))
            assert (interval.low, interval.high) == pytest.approx(tuple(ends), abs=1e-12)
    squares = (truth - found) ** 2
    assert measured["a"]["mse"].value == pytest.approx(squares.mean(), abs=1e-12)
    ends = np.percentile(squares[drawn].mean(axis=1), (2.5, 97.5))
    assert measured["a"]["mse"][1:] == pytest.approx(tuple(ends), abs=1e-12)


def test_a_constant_has_no_correlation() -> None:
    found = measure_predictions(np.array([1.0, 2.0, 4.0]), {"mean": np.full(3, 2.0)})["mean"]
    assert found["pearson"] == found["spearman"] == (None, None, None)
    assert found["mse"].value == pytest.approx(5 / 3)
    with pytest.raises(ValueError, match="truth must have at least 2 values, got 1"):
        measure_predictions(np.ones(1), {"mean": np.ones(1)})


def test_the_loss_ignores_missing_values() -> None:
    rng = np.random.default_rng(0)
    prediction, target = rng.normal(size=(2, 7, 3))
    target[rng.random((7, 3)) < 0.4] = np.nan
    errors = [
        (p - y) ** 2 for p, y in zip(prediction.ravel(), target.ravel(), strict=True) if y == y
    ]
    inputs = torch.from_numpy(prediction).requires_grad_()
    loss = masked_mse(inputs, torch.from_numpy(target))
    assert loss.item() == pytest.approx(np.mean(errors), abs=1e-12)
    assert np.mean(errors) != pytest.approx(np.nan_to_num(prediction - target).var(), rel=0.1)
    loss.backward()
    assert inputs.grad is not None and inputs.grad.isfinite().all()
    assert torch.equal(inputs.grad == 0, torch.from_numpy(np.isnan(target)))
    assert masked_mse(inputs, torch.full((7, 3), torch.nan).double()).item() == 0


# Training


def test_it_learns_to_count_a_motif(trained: Oracle) -> None:
    sequences, copies = motif_rows(300, 1)
    evaluation = evaluate_oracle(trained, sequences, copies[:, None])
    found = evaluation.metrics["y0"]
    assert found["oracle"]["pearson"].value > 0.85  # pyright: ignore[reportOptionalOperand]
    assert found["mean"]["mse"].value == pytest.approx(
        ((copies - trained.mean[0].item()) ** 2).mean()
    )
    assert evaluation.num_rows == 300 and evaluation.known == {"y0": 300}
    assert evaluation.num_seen == 0
    again = evaluate_oracle(
        trained, [flipped(s) for s in motif_table().sequences[:5]], copies[:5, None]
    )
    assert again.num_seen == 5


def test_shuffled_values_are_not_learned() -> None:
    """The broken twin of the test above, with values of other rows."""
    table = motif_table()
    np.random.default_rng(0).shuffle(table.values)
    oracle = train_oracle(table, parts(), QUICK)  # pyright: ignore[reportArgumentType]
    sequences, copies = motif_rows(300, 1)
    found = evaluate_oracle(oracle, sequences, copies[:, None]).metrics["y0"]["oracle"]
    assert abs(found["pearson"].value or 0.0) < 0.4


def test_predictions_have_the_units_of_the_table() -> None:
    table, other = motif_table(300), motif_table(300)
    other.values[:] = 40 * other.values - 700
    quick = OracleTraining(members=1, epochs=1)
    rows = parts(300)
    first, second = (
        train_oracle(each, rows, quick)  # pyright: ignore[reportArgumentType]
        for each in (table, other)
    )
    sequences = table.sequences[:20]
    np.testing.assert_allclose(
        second.predict(sequences), 40 * first.predict(sequences) - 700, rtol=0, atol=1e-2
    )
    assert float(first.mean[0]) == table.values[rows["train"]].mean()
    assert float(first.std[0]) == table.values[rows["train"]].std()
    errors = (
        second.predict([other.sequences[i] for i in rows["valid"]]) - other.values[rows["valid"]]
    )
    np.testing.assert_allclose(
        second.residual_sd.numpy(), [[np.sqrt((errors**2).mean())]], rtol=1e-6
    )


@pytest.mark.parametrize("network", ["conv", pytest.param("caduceus", marks=pytest.mark.slow)])
def test_two_values_with_gaps_and_lengths(network: str) -> None:
    """Each row lacks one of the values; the same seed gives the same weights."""
    sequences, copies = motif_rows(200, 0)
    sequences = [s[: 30 + i % 11] for i, s in enumerate(sequences)]
    values = np.stack((copies, -copies), axis=1)
    values[np.arange(200), np.arange(200) % 2] = np.nan
    quick = OracleTraining(network=network, members=1, epochs=1, strands="both")  # pyright: ignore
    table = table_of(sequences, values)
    rows = parts(200)
    oracle, again = (
        train_oracle(table, rows, quick)  # pyright: ignore[reportArgumentType]
        for _ in range(2)
    )
    assert oracle.digest == again.digest
    found = oracle.predict(sequences)
    assert found.shape == (200, 2) and np.isfinite(found).all()
    np.testing.assert_array_equal(oracle.predict([flipped(s) for s in sequences]), found)
    different = train_oracle(table, rows, replace(quick, seed=1))  # pyright: ignore
    assert different.digest != oracle.digest


def test_training_stops_when_validation_no_longer_improves() -> None:
    table = motif_table(200)
    np.random.default_rng(0).shuffle(table.values)
    counted = []
    training = OracleTraining(members=1, epochs=40, patience=2)
    oracle = train_oracle(table, parts(200), training, progress=counted.append)  # pyright: ignore
    fit = oracle.config.fit["members"][0]  # pyright: ignore[reportIndexIssue]
    losses = fit["losses"]
    assert len(losses) == int(np.argmin(losses)) + 3 < 40
    assert (fit["epoch"], fit["loss"]) == (int(np.argmin(losses)) + 1, min(losses))
    assert sum(counted) == 40 * 50
    kept = oracle.predict([table.sequences[i] for i in range(50, 200)])
    valid = ((kept - table.values[50:]) ** 2).mean() / table.values[:50].var()
    assert valid == pytest.approx(min(losses), rel=1e-4)


def test_masked_rows_have_larger_residuals(trained: Oracle) -> None:
    sd = trained.residual_sd[:, 0].numpy()
    assert sd.shape == (11,) and sd[0] < 0.7 * sd[-1]
    held = motif_table()
    unknown = trained.predict(["N" * LENGTH])[0, 0]
    expected = np.sqrt(np.mean((unknown - held.values[750:]) ** 2))
    assert sd[-1] == pytest.approx(expected, rel=1e-5)
    errors = trained.predict(held.sequences[750:]) - held.values[750:]
    assert sd[0] == pytest.approx(np.sqrt((errors**2).mean()), rel=1e-5)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ({"train": np.arange(20)}, "the valid split must hold a row, got none of 20"),
        (
            {"train": np.arange(15), "valid": np.arange(15, 16)},
            "y0 must have two different values in the valid split, got fewer in 1 rows",
        ),
    ],
)
def test_rows_that_cannot_be_learned(rows: dict[str, np.ndarray], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        train_oracle(motif_table(20), rows, QUICK)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("name", ["members", "epochs", "patience"])
def test_counts_are_at_least_one(name: str) -> None:
    with pytest.raises(ValueError, match=f"oracle.{name} must be at least 1, got 0"):
        OracleTraining(**{name: 0})  # pyright: ignore[reportArgumentType]


# Predictions


@pytest.mark.parametrize("network", ["conv", "caduceus"])
def test_both_strands_have_the_same_prediction(network: str) -> None:
    sequences = random_dna(6, np.random.default_rng(0))
    sequences = [*sequences, sequences[0][:23], "NN" + sequences[1][:20], sequences[2][:11] + "N"]
    others = [flipped(sequence) for sequence in sequences]
    both = untrained(strands="both", network=network)
    np.testing.assert_array_equal(both.predict(sequences), both.predict(others))
    one = untrained(network=network)
    assert not np.allclose(one.predict(sequences), one.predict(others))
    found = (one.predict(sequences) + one.predict(others)) / 2
    np.testing.assert_allclose(both.predict(sequences), found, atol=1e-5)


def test_the_other_strand_by_hand() -> None:
    rows = to_one_hot(torch.from_numpy(np.stack([encode("ACCNT"), encode("GANNN")])).long())
    padding = torch.tensor([[False] * 5, [False, False, True, True, True]])
    wanted = to_one_hot(torch.from_numpy(np.stack([encode("ANGGT"), encode("TCNNN")])).long())
    assert torch.equal(opposite_strand(rows, padding), wanted)


@pytest.mark.parametrize("network", ["conv", "caduceus"])
def test_predictions_do_not_depend_on_the_batch(network: str) -> None:
    oracle = untrained(network=network)
    sequences = [s[: 10 + i] for i, s in enumerate(random_dna(9, np.random.default_rng(0)))]
    found = oracle.predict(sequences)
    np.testing.assert_allclose(oracle.predict(sequences, batch_size=1), found, atol=1e-6)
    each = oracle.predict(sequences, members=True)
    assert each.shape == (2, 9, 2) and not np.allclose(each[0], each[1])
    np.testing.assert_array_equal(each.mean(axis=0), found)
    ids = torch.from_numpy(encode(sequences[0])).long()[None]
    np.testing.assert_allclose(oracle(to_one_hot(ids))[0], found[0], atol=1e-6)


@pytest.mark.parametrize("network", ["conv", "caduceus"])
def test_gradients_are_those_of_finite_differences(network: str) -> None:
    oracle = untrained(network=network).double()
    ids = torch.from_numpy(encode(random_dna(1, np.random.default_rng(0))[0])).long()[None]
    one_hot = to_one_hot(ids, torch.float32).requires_grad_()
    oracle.float()(one_hot)[0, 1].backward()
    step = torch.zeros_like(one_hot)
    step[0, 2, 7], step[0, 0, 7] = 1e-2, -1e-2
    with torch.no_grad():
        difference = (oracle(one_hot + step) - oracle(one_hot - step))[0, 1] / 2e-2
    assert one_hot.grad is not None
    slope = one_hot.grad[0, 2, 7] - one_hot.grad[0, 0, 7]
    assert float(difference) == pytest.approx(float(slope), rel=0.05, abs=1e-3)


@pytest.mark.parametrize(
    ("sequence", "said"),
    [
        (
            "A" * (LENGTH + 1),
            "must have 1 to 40 bases each, as those of training, got 41 in number 1",
        ),
        ("", "must have 1 to 40 bases each, as those of training, got 0 in number 1"),
        ("AXC", "Oracle.sequences, number 1: 'X' at offset 1"),
    ],
)
def test_sequences_that_do_not_fit(sequence: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        untrained().predict(["ACGT", sequence])


def test_long_rows_do_not_fit() -> None:
    with pytest.raises(ValueError, match=r"one_hot must have at most 40 positions.* got 41"):
        untrained()(torch.zeros(1, 4, LENGTH + 1))


# Guidance


def test_rewards_are_the_prediction_or_its_distance_to_a_target() -> None:
    oracle = untrained()
    tokens = torch.from_numpy(np.random.default_rng(0).integers(0, 5, (6, LENGTH)))
    found = oracle.predict([decode(row) for row in tokens.numpy()])[:, 1]
    plain = oracle.reward("second")
    assert isinstance(plain, OracleReward)
    np.testing.assert_allclose(plain(tokens), found, atol=1e-6)
    wanted = -((found - 0.3) ** 2) / (2 * 0.7**2)
    np.testing.assert_allclose(oracle.reward("second", 0.3, 0.7)(tokens), wanted, atol=1e-5)
    sd = float(oracle.residual_sd[0, 1])
    wanted = -((found - 0.3) ** 2) / (2 * sd**2)
    np.testing.assert_allclose(oracle.reward("second", 0.3)(tokens), wanted, atol=1e-5)
    with pytest.raises(ValueError, match="signal must be one of first, second, got 'third'"):
        oracle.reward("third")
    with pytest.raises(ValueError, match=r"scale must be above 0 and finite, got 0.0"):
        oracle.reward("first", 1.0, 0.0)


def test_the_classifier_is_a_normal_density_of_the_unknown_fraction() -> None:
    oracle = untrained()
    tokens = torch.from_numpy(np.random.default_rng(0).integers(0, 4, (4, LENGTH)))
    for row, count in enumerate((0, 10, 22, LENGTH)):
        tokens[row, :count] = 4
    found = oracle.predict([decode(row) for row in tokens.numpy()])[:, 0]
    table = oracle.residual_sd[:, 0].numpy()
    sd = [table[0], (table[2] + table[3]) / 2, (table[5] + table[6]) / 2, table[10]]
    wanted = stats.norm.logpdf(2.0, found, sd)
    classifier = oracle.classifier("first", 2.0)
    assert isinstance(classifier, OracleClassifier)
    np.testing.assert_allclose(classifier(tokens), wanted, atol=1e-5)
    relaxed = RelaxedOracleClassifier(oracle.likelihood("first", 2.0), lambda x: x)
    one_hot = F.one_hot(tokens, 5).float().requires_grad_()
    np.testing.assert_allclose(relaxed(one_hot).detach(), wanted, atol=1e-5)
    relaxed(one_hot).sum().backward()
    assert one_hot.grad is not None and one_hot.grad.abs().max() > 0
    clean = untrained(mask_inputs=False)
    with pytest.raises(ValueError, match=r"trained on masked rows.* train it with --mask-inputs"):
        clean.classifier("first", 2.0)


# Files


def test_saving_keeps_every_bit(trained: Oracle, tmp_path: Path) -> None:
    trained.save(tmp_path / "o")
    loaded = Oracle.load(tmp_path / "o")
    assert loaded.config == trained.config and loaded.digest == trained.digest
    sequences = random_dna(5, np.random.default_rng(0))
    np.testing.assert_array_equal(loaded.predict(sequences), trained.predict(sequences))
    np.testing.assert_array_equal(loaded.predict_kmers(sequences), trained.predict_kmers(sequences))
    assert not loaded.training and not any(p.requires_grad for p in loaded.parameters())
    before = {path.name: path.read_bytes() for path in (tmp_path / "o").iterdir()}
    loaded.save(tmp_path / "o")
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "o").iterdir()}
    assert before.keys() == {"oracle.json", "model.safetensors"}


def test_damaged_files(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"oracle must be a folder with oracle.json, got"):
        Oracle.load(tmp_path)
    for name, seed in (("a", 0), ("b", 1)):
        untrained(seed).save(tmp_path / name)
    (tmp_path / "a" / "model.safetensors").write_bytes(
        (tmp_path / "b" / "model.safetensors").read_bytes()
    )
    with pytest.raises(ValueError, match=r"must have the digest of oracle.json, got another one"):
        Oracle.load(tmp_path / "a")
    path = tmp_path / "b" / "oracle.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"width": 9}))
    with pytest.raises(ValueError, match=r"model.safetensors must fit oracle.json, got"):
        Oracle.load(tmp_path / "b")
    path.write_text(json.dumps(content | {"format": 2}))
    with pytest.raises(ValueError, match="must have the format 1, got 2"):
        Oracle.load(tmp_path / "b")
    path.write_text(path.read_text()[:-9])
    with pytest.raises(ValueError, match=r"oracle.json must describe an oracle, got: "):
        Oracle.load(tmp_path / "b")


# Judges


def test_parts_are_disjoint_halves_whichever_strand_is_given() -> None:
    sequences = random_dna(400, np.random.default_rng(0))
    table, other = (
        table_of(s, np.zeros(400)) for s in (sequences, [flipped(s) for s in sequences])
    )
    rows = np.arange(400)
    first, second = (rows_of_part(table, rows, part) for part in ("a", "b"))
    assert sorted([*first, *second]) == list(rows) and 150 < len(first) < 250
    np.testing.assert_array_equal(rows_of_part(other, rows, "a"), first)
    fewer = rows_of_part(table, rows[::2], "b")
    assert set(fewer) == set(second) & set(rows[::2].tolist())


def test_parts_keep_groups_together() -> None:
    sequences = random_dna(60, np.random.default_rng(0))
    table = table_of(sequences, np.zeros(60), groups=[str(i // 3) for i in range(60)])
    chosen = set(rows_of_part(table, np.arange(60), "a").tolist())
    assert 0 < len(chosen) < 60
    assert all(len({row in chosen for row in range(i, i + 3)}) == 1 for i in range(0, 60, 3))
    copied = [flipped(sequences[40]), *sequences[1:]]
    apart = table_of(copied, np.zeros(60), groups=[str(i) for i in range(60)])
    both = [
        i
        for i in range(60)
        if (i in rows_of_part(table_of(copied, np.zeros(60)), np.arange(60), "a"))
    ]
    assert (0 in both) == (40 in both), "without groups, copies stay together"
    found = None
    for shift in range(20):  # some names of groups separate the copies
        apart = table_of(copied, np.zeros(60), groups=[f"{shift}-{i}" for i in range(60)])
        try:
            rows_of_part(apart, np.arange(60), "a")
        except ValueError as error:
            found = str(error)
            break
    assert found is not None
    assert found.startswith("t.tsv: a sequence must lie in one part, on either strand, got row 2")


def test_digests_are_of_sequences_on_either_strand() -> None:
    sequences = random_dna(5, np.random.default_rng(0))
    digests = digest_sequences(sequences)
    assert len(digests) == 5 and (np.diff(digests) > 0).all()
    np.testing.assert_array_equal(digest_sequences([flipped(s) for s in sequences[::-1]]), digests)
    assert len(np.intersect1d(digest_sequences(sequences[1:3]), digests)) == 2
    assert len(digest_sequences([sequences[0], flipped(sequences[0])])) == 1


def test_who_may_judge() -> None:
    guide, judge, same = untrained(0), untrained(1), untrained(0)
    guide.seen.copy_(torch.tensor([1, 2, 3]))
    judge.seen.copy_(torch.tensor([3, 4, 5]))
    same.residual_sd.copy_(guide.residual_sd)
    same.seen.copy_(guide.seen)
    assert shared_sequences(judge, guide) == 1
    with pytest.raises(
        ValueError, match=r"judge must be trained on other sequences.*got 1 of 3 in"
    ):
        check_judge(judge, guide)
    for one in (guide, same):
        with pytest.raises(
            ValueError, match="another oracle than the one that guided, got the same"
        ):
            check_judge(one, guide)
    check_judge(guide, guide, allow=True)
    judge.seen.copy_(torch.tensor([4, 5, 6]))
    check_judge(judge, guide)
    command = CommandOracle("some command")
    check_judge(command, guide)
    check_judge(command, CommandOracle("another command"))
    with pytest.raises(ValueError, match="got the same one"):
        check_judge(CommandOracle("some command"), command)


def test_oracles_of_two_parts_share_nothing() -> None:
    table = motif_table(300)
    rows = parts(300)
    oracles = []
    for part in ("a", "b"):
        some = {name: rows_of_part(table, each, part) for name, each in rows.items()}  # pyright: ignore
        quick = OracleTraining(members=1, epochs=1)
        oracles.append(train_oracle(table, some, quick))  # pyright: ignore[reportArgumentType]
    check_judge(*oracles)
    assert sum(oracle.config.num_seen for oracle in oracles) == 300
    whole = train_oracle(table, rows, OracleTraining(members=1, epochs=1))  # pyright: ignore
    assert shared_sequences(whole, oracles[0]) == oracles[0].config.num_seen


# Commands as oracles

COUNT = """
import sys
for line in sys.stdin:
    if not line.startswith(">"):
        print(line.count("G") / 2)
"""


def python(code: str) -> CommandOracle:
    return CommandOracle(shlex.join([sys.executable, "-c", code]), "guanine")


def test_a_command_predicts() -> None:
    oracle = python(COUNT)
    assert oracle.columns == ("guanine",)
    np.testing.assert_array_equal(oracle.predict(["GGAG", "C", "TG"]), [[1.5], [0.0], [0.5]])


@pytest.mark.parametrize(
    ("oracle", "said"),
    [
        (python("print(1)"), "must write one line for each of 2 sequences, got 1"),
        (python("print(1); print('high')"), "a finite number a line, got 'high' in line 2"),
        (python("print('nan'); print(1)"), "a finite number a line, got 'nan' in line 1"),
        (python("raise SystemExit('no model')"), "exit code 0, got 1 and: no model"),
        (CommandOracle("no-such-program --x"), "a command that can be run, got: No such file"),
        (CommandOracle("'open"), "a command that can be run, got: No closing quotation"),
        (CommandOracle(""), "a command that can be run, got: "),
    ],
)
def test_commands_that_do_not_predict(oracle: CommandOracle, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        oracle.predict(["ACGT", "TTTT"])


# Command line


@pytest.fixture(scope="module")
def table_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("table") / "t.tsv"
    sequences, copies = motif_rows(300, 0)
    lines = [
        f"{s}\t{y}\t{'NA' if i % 3 else -y}\n"
        for i, (s, y) in enumerate(zip(sequences, copies, strict=True))
    ]
    path.write_text("sequence\tup\tdown\n" + "".join(lines))
    return path


@pytest.fixture(scope="module")
def folder(table_file: Path) -> Path:
    out = table_file.parent / "oracle"
    words = ["oracle", "train", str(table_file), "--signals", "[up, down]", "--out", str(out)]
    assert main([*words, "--members=1", "--epochs=2", "--clip", "-1.5", "1.5", "--part=b"]) == 0
    return out


def test_the_commands_are_the_functions(
    table_file: Path, folder: Path, tmp_path: Path, capsys
) -> None:
    oracle = Oracle.load(folder)
    assert oracle.columns == ("up", "down") and oracle.config.source["part"] == "b"
    assert oracle.config.source["clip"] == [-1.5, 1.5]
    out = tmp_path / "e.json"
    assert main(["oracle", "evaluate", str(folder), str(table_file), "--json", str(out)]) == 0
    assert "k-mer ridge" in capsys.readouterr().out
    content = json.loads(out.read_text())
    table = read_table(table_file, signals=("up", "down"))
    table.values[:] = table.values.clip(-1.5, 1.5)
    chosen = table.select(split_rows(table)["test"])
    assert content["num_rows"] == len(chosen) and content["num_seen"] == 0
    wanted = evaluate_oracle(oracle, chosen.sequences, chosen.values)
    for signal, models in wanted.metrics.items():
        found = content["signals"][signal]
        assert found.pop("num_values") == wanted.known[signal]
        assert found == {
            model: {name: interval._asdict() for name, interval in metrics.items()}
            for model, metrics in models.items()
        }


def test_rows_of_training_are_pointed_out(table_file: Path, folder: Path, capsys) -> None:
    words = ["oracle", "evaluate", str(folder), str(table_file), "--split"]
    assert main([*words, "all"]) == 0
    seen = Oracle.load(folder).config.num_seen
    assert f"{seen} of these 300 sequences were used in training" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--signals", "up"], "oracle.out must be a folder without an oracle or a run, got"),
        (["--signals", "up", "--out", "{new}", "--clip", "2", "1"], "oracle.clip must be a lower"),
        (
            ["--signals", "[]", "--out", "{new}"],
            "oracle.signals must be names of columns, got '[]'",
        ),
        (["--signals", "left", "--out", "{new}"], "must have a column 'left', got the columns"),
        (
            ["--signals", "up", "--out", "{new}", "--members", "0"],
            "oracle.members must be at least",
        ),
        (["--signals", "up", "--out", "{new}", "--seed", "-1"], "oracle.seed must be in"),
        (["--signals", "up", "--out", "{new}", "--split", "1", "0", "0"], "valid split must hold"),
    ],
)
def test_options_that_do_not_fit(
    words: list[str], said: str, table_file: Path, folder: Path, tmp_path: Path, capsys
) -> None:
    new = tmp_path / "new"
    words = [word.format(new=new) for word in words]
    if "--out" not in words:
        words += ["--out", str(folder)]
    assert main(["oracle", "train", str(table_file), *words]) == 2
    assert said in capsys.readouterr().err.splitlines()[-1]
    assert not new.exists()


def test_evaluation_without_a_table_or_rows(folder: Path, tmp_path: Path, capsys) -> None:
    missing = tmp_path / "none.tsv"
    assert main(["oracle", "evaluate", str(folder), str(missing)]) == 2
    assert "oracle.table must be an existing file, got" in capsys.readouterr().err
    table = tmp_path / "t.tsv"
    table.write_text("sequence\tup\tdown\tsplit\nACGT\t1\t0\ttrain\nAAAA\t0\t1\ttrain\n")
    assert main(["oracle", "evaluate", str(folder), str(table)]) == 2
    assert "oracle.split must be a split with rows, got 'test'" in capsys.readouterr().err


def test_an_oracle_does_not_replace_the_weights_of_a_run(
    table_file: Path, tmp_path: Path, capsys
) -> None:
    (tmp_path / "run.yaml").write_text("preset: bd3lm\n")
    flags = ["oracle", "train", str(table_file), "--signals", "up", "--out", str(tmp_path)]
    assert main([*flags, "--epochs", "1", "--members", "1"]) == 2
    assert "must be a folder without an oracle or a run, got" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["run.yaml"]


def test_tracks_are_not_predicted(tmp_path: Path, capsys) -> None:
    rng = np.random.default_rng(0)
    one_hot = np.eye(4)[rng.integers(0, 4, (60, 12))]
    table, out = tmp_path / "tracks.npz", tmp_path / "new"
    np.savez(table, X=one_hot, y=rng.normal(size=(60, 12, 1)))
    assert main(["oracle", "train", str(table), "--signals", "up", "--out", str(out)]) == 2
    said = capsys.readouterr().err
    assert (
        "must hold one value of each signal for a sequence, got a value for each position" in said
    )
    assert len(said.splitlines()) == 1
    assert not out.exists()

"""What each position contributes to a score, in Python and as a track."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from genomics.io import open_track, write_fasta
from genomics.sequence import decode, encode, reverse_complement
from seqdiff.cli.app import main
from seqdiff.run import Run, load
from seqdiff.types import Inputs

CONFIG = Path(__file__).parents[2] / "configs" / "experiment" / "genomics" / "fasta.yaml"
SEQUENCES = ["uvwxyzuv", "uwyuw", "zz-yyxx-", "uvwxyzvu"]
FOUR = {"evaluations": 4}
WAYS = {
    "stratified-k": FOUR,
    "exact-k": FOUR,
    "bernoulli-time": FOUR,
    "random-order-chain": {"orders": 2},
    "fixed-order": {},
    "confident-order": {"tokens_per_step": 2},
    "time-integral": FOUR,
    "discrete-steps": FOUR | {"steps": 10},
    "two stages": FOUR | {"target_se": 0.2, "max_nfe": 200},
    "several passes": FOUR | {"max_nfe": 12},
}


@pytest.mark.parametrize("way", WAYS)
def test_positions_sum_to_the_score(way: str, trained: Path) -> None:
    run, options = load(trained), WAYS[way]
    if way[-5:] not in ("tages", "asses"):
        options = {"estimator": way, **options}
    plain = run.score(SEQUENCES, seed=3, batch_size=3, **options)
    scores = run.score(SEQUENCES, seed=3, batch_size=3, by_position=True, **options)
    for before, score, sequence in zip(plain, scores, SEQUENCES, strict=True):
        assert before.by_position is None and score.by_position is not None
        assert score.nats == pytest.approx(before.nats, rel=1e-9)
        assert score.standard_error == pytest.approx(before.standard_error, rel=1e-6)
        known = np.array([symbol != "-" for symbol in sequence])
        assert np.array_equal(~np.isnan(score.by_position), known)
        assert np.nansum(score.by_position) == pytest.approx(score.nats, rel=1e-9)
    if way == "two stages":
        assert scores[0].nfe > 32, "more than the first stage"


def _chain(run: Run, sequence: str) -> list[float]:
    """-log p of each token given those before, from the network itself."""
    tokens, costs = torch.from_numpy(run.tokenizer.encode(sequence)), []
    for place in range(len(tokens)):
        x_t = tokens.clone()
        x_t[place:] = run.process.unknown_id
        log_probs = run.denoiser.log_probs(Inputs(x_t[None]))[0, place]
        costs.append(-float(log_probs[tokens[place]]))
    return costs


@torch.no_grad()
def test_a_fixed_order_gives_the_terms_of_the_chain_rule(trained: Path) -> None:
    run = load(trained)
    scores = run.score(SEQUENCES[:2], estimator="fixed-order", by_position=True)
    for score, sequence in zip(scores, SEQUENCES, strict=False):
        assert score.by_position == pytest.approx(_chain(run, sequence), rel=1e-5)


def test_a_logarithm_of_a_mean_has_no_terms(trained: Path, fails, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="estimator must add up terms of positions"):
        load(trained).score(["uv"], estimator="importance-weighted-orders", by_position=True)
    write_fasta(tmp_path / "a.fa", ["a"], ["ACGT"])
    command = ["score", "ecoli-promoters", str(tmp_path / "a.fa"), "--tracks"]
    flags = ["--estimator", "importance-weighted-orders"]
    line = fails([*command, str(tmp_path / "a.bw"), *flags])
    assert "score.estimator must add up terms of positions" in line
    assert "score.tracks must end in .bw" in fails([*command, str(tmp_path / "a.txt")])
    line = fails([*command, str(tmp_path / "none" / "a.bw")])
    assert line.startswith("seqdiff: error: score.tracks must lie in an existing folder"), line
    (tmp_path / "a.txt").write_text("ACGT\n")
    command = ["score", "ecoli-promoters", str(tmp_path / "a.txt"), "--tracks"]
    line = fails([*command, str(tmp_path / "a.bw")])
    assert "score.tracks must go with files that have tracks, such as FASTA, got --text" in line


def test_tracks_of_both_strands_lie_along_the_record(tmp_path: Path) -> None:
    """Of the first record the strand that sorts first is the record itself, of the other not."""
    records = {"one": "ACGTTGCANTTGACA", "two": "TTTGACCATANGCTAGA"}
    write_fasta(tmp_path / "a.fa", records, records.values())
    made = ["train", str(CONFIG), "--output", str(tmp_path / "run"), "--experts=null"]
    flags = ["--data.fasta", str(tmp_path / "a.fa"), "--trainer.max_steps=0"]
    assert main([*made, *flags, "--backbone.d_model=12", "--backbone.n_layer=1"]) == 0
    order = ["--estimator", "fixed-order"]
    command = ["score", str(tmp_path / "run"), str(tmp_path / "a.fa"), *order]
    paths = [tmp_path / name for name in ("a.bedGraph", "a.bw")]
    for path in paths:
        assert main([*command, "--rc", "mean", "--tracks", str(path)]) == 0
    run = load(tmp_path / "run")
    lengths = {name: len(text) for name, text in records.items()}
    tracks = [open_track(path, lengths, list(lengths)) for path in paths]
    scores = run.score(tmp_path / "a.fa", estimator="fixed-order", rc="mean")
    for score, (name, text) in zip(scores, records.items(), strict=True):
        strands = [text, decode(reverse_complement(encode(text)))]
        there, back = run.score(strands, estimator="fixed-order", by_position=True)
        expected = (there.by_position + back.by_position[::-1]) / 2
        assert np.isnan(expected[text.index("N")]) and np.isnan(expected).sum() == 1
        for track in tracks:
            found = track.values(name, 0, len(text))
            np.testing.assert_allclose(found, expected, rtol=1e-5)
            assert math.isclose(np.nansum(found.astype(float)), score.nats, rel_tol=1e-5)


@pytest.mark.parametrize("suffix", ["bedGraph", "bw"])
def test_tracks_of_intervals_lie_along_the_genome(suffix: str, tmp_path: Path, fails) -> None:
    """Also on the other strand, and the genome's order is not that of the intervals."""
    genome = {"two": "TTTGACCATANGCTAGA", "one": "ACGTTGCANTTGACA"}
    write_fasta(tmp_path / "g.fa", genome, genome.values())
    rows = ["one\t2\t9\tgene\t0\t-", "two\t10\t11", "one\t10\t15", "two\t1\t7\tx\t0\t+"]
    (tmp_path / "a.bed").write_text("\n".join(rows) + "\n")
    out = tmp_path / f"a.{suffix}"
    command = ["score", "ecoli-promoters", str(tmp_path / "g.fa"), "--evaluations", "4"]
    command += ["--bed", str(tmp_path / "a.bed"), "--tracks", str(out)]
    assert main(command) == 0
    run = load("ecoli-promoters")
    expected = {name: np.full(len(text), np.nan) for name, text in genome.items()}
    for name, start, end, strand in (("one", 2, 9, -1), ("one", 10, 15, 1), ("two", 1, 7, 1)):
        text = genome[name][start:end]
        read = decode(reverse_complement(encode(text))) if strand < 0 else text
        write_fasta(tmp_path / "one.fa", ["read"], [read])
        (score,) = run.score(tmp_path / "one.fa", evaluations=4, by_position=True)
        expected[name][start:end] = score.by_position[::strand]
    assert np.isnan(expected["one"]).sum() == 15 - 11, "the bases outside, and N"
    lengths = {name: len(text) for name, text in genome.items()}
    track = open_track(out, lengths, list(lengths))
    for name, values in expected.items():
        np.testing.assert_allclose(track.values(name, 0, lengths[name]), values, rtol=1e-5)
    with (tmp_path / "a.bed").open("a") as file:
        file.write("one\t8\t10\n")
    line = fails(command)
    assert "do not overlap for --tracks, got gene::one:2-9(-) and one:8-10 in" in line

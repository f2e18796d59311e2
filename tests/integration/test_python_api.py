"""``import seqdiff`` gives the same results as the commands, without Lightning."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import seqdiff
from genomics.sequence import DNATokenizer
from seqdiff.backbones import Caduceus, Transformer
from seqdiff.cli.app import commands, main
from seqdiff.samplers import AncestralSampler
from seqdiff.types import Inputs


def _imported(code: str) -> set[str]:
    """Modules that a new process has imported after running some code, by ``-X importtime``."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", code], capture_output=True, text=True, check=True
    )
    return set(re.findall(r"\|\s+([\w.]+)$", done.stderr, flags=re.MULTILINE))


def test_importing_and_loading_need_no_lightning(trained: Path) -> None:
    found = _imported("import seqdiff")
    assert "seqdiff" in found
    assert not found & {"torch", "numpy", "lightning", "jsonargparse", "numba"}
    code = "import seqdiff; seqdiff.trust_code('tests'); "
    found = _imported(f"{code}seqdiff.load({str(trained)!r}).sample(1, length=4, seed=0)")
    assert {"torch", "jsonargparse"} <= found
    assert not {name for name in found if name.startswith("lightning.pytorch")}


def test_sampling_is_what_the_command_does(
    trained: Path, tmp_path: Path, toy_writer: None, capsys
) -> None:
    run = seqdiff.load(trained)
    out = tmp_path / "a.ring"
    command = ["sample", str(trained), "--num=3", "--seed=5", f"--out={out}", "--length=9"]
    assert main([*command, "--sampler=ancestral", "--num-steps=4"]) == 0
    written = out.read_text().split()[1::2]
    options = {"length": 9, "seed": 5}
    assert run.sample(3, sampler="ancestral", num_steps=4, **options) == written
    assert run.sample(3, sampler=AncestralSampler(4), **options) == written
    assert run.sample(3, sampler="ancestral", num_steps=4, batch_size=1, **options) == written
    assert run.sample(3, **options) != written
    capsys.readouterr()
    drawn = run.sample(2)
    (seed,) = re.findall(r"seqdiff: seed (\d+)", capsys.readouterr().err)
    assert [len(row) for row in drawn] == [12, 12], "the length of the training rows"
    assert run.sample(2, seed=int(seed)) == drawn


def test_bare_sample_prints_ten_sequences(trained: Path, toy_writer: None, capsys) -> None:
    run = seqdiff.load(trained)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(run.datamodule), "file_suffix", "ring")
        assert main(["sample", str(trained)]) == 0
    shown = capsys.readouterr()
    (seed,) = re.findall(r"seqdiff: seed (\d+)", shown.err)
    assert shown.out.split()[1::2] == run.sample(10, seed=int(seed))


def test_scores_are_what_the_command_writes(
    trained: Path, tmp_path: Path, toy_writer: None, rings: Path
) -> None:
    out = tmp_path / "s.tsv"
    assert main(["score", str(trained), str(rings), f"--out={out}", "--max_nfe=64"]) == 0
    rows = [line.split() for line in rings.read_text().splitlines()]
    found = seqdiff.load(trained).score(
        [sequence for _, sequence in rows], names=[name for name, _ in rows], max_nfe=64
    )
    assert found.to_tsv() == out.read_text()
    assert len(found) == 5 and found[3].nats is None and "NA" in repr(found)
    table = found.to_pandas()
    assert list(table.columns) == out.read_text().split("\n")[0].split("\t")
    assert table["nats"][0] == found[0].nats


def test_infilling_keeps_what_is_given(trained: Path) -> None:
    run = seqdiff.load(trained)
    rows = run.infill(["uv--yz", "--"], 3, seed=1)
    assert len(rows) == 6 and all(row[:2] == "uv" and row[4:] == "yz" for row in rows[:3])
    assert all(len(row) == 2 and set(row) <= set("uvwxyz") for row in rows[3:])


def test_probabilities_are_the_networks(trained: Path) -> None:
    run = seqdiff.load(trained)
    found = run.fill_probabilities("uv--yz")
    tokens = torch.tensor([[0, 1, 6, 6, 4, 5]])
    exact = run.denoiser.log_probs(Inputs(tokens))[0, 2:4].exp()
    np.testing.assert_allclose(found.probabilities, exact.detach().numpy(), rtol=1e-5)
    assert found.positions.tolist() == [2, 3] and found.symbols == list("uvwxyz")
    assert found.to_pandas().loc[3, "u"] == found.probabilities[1, 0]
    with pytest.raises(ValueError, match="must have an unknown symbol, got 'uv'"):
        run.fill_probabilities("uv")


def test_embeddings_are_means_over_known_positions(trained: Path) -> None:
    run = seqdiff.load(trained)
    found = run.embed(["uvw", "uv-w", "xyz"])
    hidden = run.denoiser.backbone.hidden(Inputs(torch.tensor([[0, 1, 6, 2]])))[0]
    expected = hidden[[0, 1, 3]].mean(dim=0).detach().numpy()
    np.testing.assert_allclose(found[1], expected, rtol=1e-5)
    assert found.shape == (3, run.denoiser.backbone.width)
    with pytest.raises(ValueError, match="record '1': embed must be given a known token"):
        run.embed(["uv", "--"])


@pytest.mark.usefixtures("unchecked")
def test_any_iterable_of_strings_is_a_list(trained: Path) -> None:
    run, rows = seqdiff.load(trained), ["uvw", "xyz"]
    scores = [row.nats for row in run.score(rows)]
    assert [row.nats for row in run.score(np.array(rows))] == scores
    assert [row.nats for row in run.score(iter(rows))] == scores
    np.testing.assert_array_equal(run.embed(iter(rows)), run.embed(rows))


def test_long_sequences_are_embedded_with_a_warning(trained: Path, capsys) -> None:
    run = seqdiff.load(trained)
    assert run.embed(["uvw" * 4]).shape[0] == 1, "rows of training have 12 symbols"
    assert "extrapolate" not in capsys.readouterr().err
    run.embed(["uvw" * 5, "uvw"])
    assert "more than the 12" in (said := capsys.readouterr().err) and "'0', has 15" in said


def test_unpooled_embeddings_keep_every_position(trained: Path) -> None:
    run = seqdiff.load(trained)
    whole, pooled = run.embed(["uvw", "uv-w"], pooling="none"), run.embed(["uvw"])
    assert [matrix.shape[0] for matrix in whole] == [3, 4]
    np.testing.assert_allclose(whole[0].mean(axis=0), pooled[0], rtol=1e-5)


def test_a_trace_is_what_the_command_writes(trained: Path, tmp_path: Path) -> None:
    run, (ours, theirs) = seqdiff.load(trained), (tmp_path / "a.npz", tmp_path / "b.npz")
    run.sample(2, length=6, seed=3, trace=ours)
    command = ["sample", str(trained), "--num=2", "--length=6", "--seed=3", f"--trace={theirs}"]
    assert main(command) == 0
    assert ours.read_bytes() == theirs.read_bytes()
    with pytest.raises(ValueError, match=r"sample.trace must end in .npz, got .*a.txt"):
        run.sample(2, length=6, seed=3, trace=tmp_path / "a.txt")


def test_options_of_dna_are_arguments(tmp_path: Path) -> None:
    config = tmp_path / "demo.yaml"
    shipped = Path(__file__).parents[2] / "configs" / "experiment" / "genomics" / "demo.yaml"
    small = "backbone: {init_args: {d_model: 16, n_layer: 1}}"
    config.write_text(f"base: {shipped}\ntrainer: {{max_steps: 0}}\n{small}\n")
    run = seqdiff.train(config, "--output", str(tmp_path / "run"))
    fasta = tmp_path / "a.fa"
    fasta.write_text(">a\nACGTTGCA\n>b\nAACCNGGT\n")
    both = run.score(fasta, rc="mean", seed=1)
    assert main(["score", str(run.directory), str(fasta), "--rc=mean", "--seed=1"]) == 0
    plain = run.score(fasta, seed=1)
    assert [line.record for line in both] == ["a", "b"]
    assert [line.nats for line in both] != [line.nats for line in plain]
    straight, mean = (run.sample(8, seed=2, rc_consistent=flag) for flag in (False, True))
    assert straight == run.sample(8, seed=2) != mean
    placed = run.sample(3, seed=2, motif=["ACGT@2"])
    assert all(sequence[2:6] == "ACGT" for sequence in placed)
    with pytest.raises(ValueError, match=r"sample.motif must be left out with --infill"):
        run.infill("ACGTNN", seed=2, motif=["ACGT"])
    with pytest.raises(ValueError, match="score has no option rc; choose from estimator"):
        run.score(["ACGT"], rc="mean")


def test_every_command_is_in_the_table_of_calls() -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "python.md").read_text()
    table = page.split("## Calls for all commands")[1].split("\n\n")[1]
    assert all(f"`{name}`" in table for name in commands())


def test_evaluation_is_what_the_command_writes(trained: Path, tmp_path: Path) -> None:
    import json

    out = tmp_path / "e.json"
    assert main(["evaluate", str(trained), f"--json={out}", "--evaluations=4"]) == 0
    found = seqdiff.load(trained).evaluate(evaluations=4)
    assert json.loads(json.dumps(found.content())) == json.loads(out.read_text())
    assert "model, upper bound" in repr(found)


def test_wrong_arguments_are_named(trained: Path) -> None:
    run = seqdiff.load(trained)
    with pytest.raises(ValueError, match=r"sample.sampler ancestral has no option num_step"):
        run.sample(1, length=4, seed=0, sampler="ancestral", num_step=3)
    with pytest.raises(ValueError, match="must be set on the sampler that was given"):
        run.sample(1, length=4, seed=0, sampler=AncestralSampler(4), temperature=0.5)
    assert run.to("cpu") is run and "ToyNet" in repr(run)


@pytest.mark.parametrize(
    ("method", "arguments", "options", "said"),
    [
        ("sample", [0], {}, "sample.num must be at least 1, got 0"),
        ("sample", [2], {"length": 0}, "sample.length must be at least 1, got 0"),
        ("sample", [2], {"seed": -1}, r"sample.seed must be in \[0, 2\^32\), got -1"),
        ("sample", [2], {"batch_size": 0}, "sample.batch_size must be at least 1"),
        ("sample", [2], {"motifs": "AC"}, "sample.motifs must be a list, got the string 'AC'"),
        ("sample", [2], {"heat": 1}, "first_hitting has no option heat; choose from temperature"),
        ("score", ["AC"], {}, "score.sequences must be a list, got the string 'AC'"),
        ("score", [["AC"]], {"passes": 2}, "score has no option passes; choose from estimator"),
        ("evaluate", [], {"seed": 2**32}, r"evaluate.seed must be in \[0, 2\^32\)"),
        ("embed", ["AC"], {}, "embed.sequences must be a list, got the string 'AC'"),
        ("embed", [[]], {}, "embed.sequences must hold a string, got an empty list"),
        ("to", ["xpu:99"], {}, "Run.to.device must be available, got xpu:99"),
    ],
)
def test_wrong_arguments_are_one_line(
    trained: Path, method: str, arguments: list, options: dict, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        getattr(seqdiff.load(trained), method)(*arguments, **options)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("method", "arguments", "options", "said"),
    [
        ("sample", [2.5], {}, "sample.num must be an integer, got 2.5"),
        ("sample", ["3"], {}, "sample.num must be an integer, got '3'"),
        ("sample", [2], {"length": 10.4}, "sample.length must be an integer, got 10.4"),
        ("sample", [2], {"seed": 1.5}, "sample.seed must be an integer, got 1.5"),
        ("score", [[1, 2]], {}, "score.sequences must be text, got 1"),
        ("score", [None], {}, "score.sequences must be a list of strings, got None"),
        ("score", [["uv"]], {"names": []}, "score.names must hold one name per sequence: 1, got 0"),
        ("score", [[]], {}, "score.sequences must hold a string, got an empty list"),
        ("infill", [5, 2], {}, "infill.templates must be a list of strings, got 5"),
        ("fill_probabilities", [7], {}, "fill_probabilities.template must be text, got 7"),
        ("embed", [["uv"]], {"pooling": "max"}, "embed.pooling must be mean or none, got 'max'"),
        ("variance", [], {"batches": 1}, "variance.batches must be at least 2, got 1"),
    ],
)
def test_wrong_types_are_one_line(
    trained: Path, method: str, arguments: list, options: dict, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        getattr(seqdiff.load(trained), method)(*arguments, **options)


def test_a_published_caduceus_is_a_run(tmp_path: Path) -> None:
    complement = (0, 1, 2, 3, 4, 5, 6, 10, 9, 8, 7, 11, 12, 13, 14, 15)
    network = Caduceus(
        8, 1, variant="ps", d_state=4, num_embeddings=16, num_logits=16, complement=complement
    )
    network.to_hub(tmp_path / "hub")
    run = seqdiff.load(tmp_path / "hub")
    assert run.tokenizer.fingerprint == DNATokenizer().fingerprint
    (row,) = run.infill("ACGTNNNNACGT", seed=0)
    assert re.fullmatch("ACGT[ACGT]{4}ACGT", row)
    hub_ids = torch.tensor([[7, 8, 3, 10]])
    exact = network.eval()(Inputs(hub_ids))[0, 2, 7:11].softmax(dim=-1)
    found = run.fill_probabilities("ACNT").probabilities[0]
    np.testing.assert_allclose(found, exact.detach().numpy(), rtol=1e-4)
    with pytest.raises(ValueError, match="must have a test split, got a published network without"):
        run.evaluate()
    with pytest.raises(ValueError, match="whose training rows differ in length"):
        run.sample(1, seed=0)


def test_a_published_mdlm_needs_a_known_vocabulary(tmp_path: Path) -> None:
    Transformer(8, 1, 2, num_embeddings=12, num_logits=11).to_hub(tmp_path / "hub")
    with pytest.raises(ValueError, match="vocab_size must be 50258 or 30523"):
        seqdiff.load(tmp_path / "hub")
    (tmp_path / "hub" / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(ValueError, match=r"HubBackbone.checkpoint must be .*, got 'gpt2' in"):
        seqdiff.load(tmp_path / "hub")


def test_training_from_python(config: Path, tmp_path: Path) -> None:
    run = seqdiff.train(config, "--trainer.max_steps", "2", "--output", str(tmp_path / "r"))
    assert run.directory == tmp_path / "r"
    longer = seqdiff.resume(run.directory, "--trainer.max_steps", "3")
    assert longer.digest != run.digest

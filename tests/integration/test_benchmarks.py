"""Every benchmark runs at small size, and does not time two sides with different results."""

import argparse
import json
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import (
    caduceus_step,
    common,
    device,
    loader,
    long_context,
    muon,
    prepare_genome,
    profiling,
    sampling,
    scan,
    transformer_step,
    transformer_training,
    two_pass,
)
from benchmarks.training_step import TrainingStep, make_network
from seqdiff.backbones import Transformer
from seqdiff.backbones.transformer import layers as transformer_layers
from seqdiff.samplers import named_samplers
from seqdiff.samplers.canvas import Memory
from seqdiff.training import optim
from seqdiff.types import Inputs

ROOT = Path(__file__).parents[2]
SCAN = ["--pairs", "1", "--batch", "1", "--channels", "3", "--length", "8", "--states", "2"]
STEP = ["--pairs", "2", "--shape", "6x1x16", "6x2x8", "--batch", "2"]
GENOME = ["--bases", "720", "14000", "--stages", "encode"]
LOADER = ["--pairs", "1", "--length", "20", "--bases", "3000", "--batch", "3", "5"]
SAMPLING = [
    *("--rows", "8", "--length", "12", "--steps", "60", "--width", "6", "--layers", "2"),
    *("--pairs", "2"),
]
TRANSFORMER = [
    *("--pairs", "2", "--shape", "8x1x2x16", "8x2x1x12", "--vocabulary", "7", "--batch", "3"),
    *("--product", "16"),
]
LONG = [
    *("--pairs", "1", "--width", "6", "--layers", "1", "--lengths", "16", "32"),
    *("--memory-lengths", "64", "--parallel-length", "64"),
]


@pytest.mark.parametrize(
    ("benchmark", "arguments", "rows"),
    [(scan, SCAN, 4), (caduceus_step, STEP, 4), (loader, LOADER, 2)],
    ids=["scan", "caduceus_step", "loader"],
)
def test_runs_and_records(benchmark, arguments, rows, tmp_path, capsys) -> None:
    path = tmp_path / "new" / "figures.json"
    benchmark.main([*arguments, "--json", str(path)])
    assert "x (" in capsys.readouterr().out, "a ratio and its range over pairs"
    record = json.loads(path.read_text())
    assert {"benchmark", "date", "machine", "settings", "results"} == record.keys()
    assert {"device", "versions"} <= record["machine"].keys()
    assert {"torch", "python"} <= record["machine"]["versions"].keys()
    assert len(record["results"]) == rows


@pytest.mark.slow
def test_sampling_runs_and_records(tmp_path, capsys) -> None:
    path = tmp_path / "figures.json"
    sampling.main([*SAMPLING, "--json", str(path)])
    shown = capsys.readouterr().out
    assert (
        "0 of 8 rows differ" in shown and "first_hitting: 12 evaluations, asked at most 12" in shown
    )
    record = json.loads(path.read_text())
    by_name = {row["sampler"]: row for row in record["results"]}
    plain, cached = by_name["ancestral"], by_name["cached_ancestral"]
    assert plain["evaluations"] > 3 * cached["evaluations"]
    assert all(0 < row["share_outside_the_network"] < 1 for row in by_name.values())
    ours = {name for name, cls in named_samplers().items() if cls.__module__.startswith("seqdiff.")}
    others = {"left_to_right", "block", "gibbs", "gaussian"}
    assert {name.partition(",")[0] for name in by_name} == ours - others
    assert all(f"{name}: not measured" in shown for name in others)
    assert all(len(row["seconds_a_sequence"]) == 2 for row in by_name.values())


@pytest.mark.slow
def test_sampling_refuses_a_cache_that_forgets_to_look(monkeypatch, capsys) -> None:
    right = Memory.stale
    monkeypatch.setattr(
        Memory, "stale", lambda self, x: right(self, x) & (self.tokens < 0).any(dim=-1)
    )
    with pytest.raises(SystemExit, match="more than rounding explains; nothing is reported"):
        sampling.main(SAMPLING)
    assert "evaluations" not in capsys.readouterr().out


def test_long_context_runs_and_records(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(common, "RESULTS", tmp_path)
    monkeypatch.setattr(
        long_context, "step_memory", lambda side, *shape: 640 if side == "ours" else 6400
    )
    long_context.main([*LONG, "--json", str(tmp_path)])
    assert "1/10.0" in capsys.readouterr().out
    (path,) = tmp_path.glob("long_context-*.json")
    results = json.loads(path.read_text())["results"]
    assert [row["length"] for row in results["time"]] == [16, 32]
    assert [row["parallel_scan_ratio"] for row in results["memory"]] == [10]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_transformer_step_runs_and_records(dtype, tmp_path, capsys) -> None:
    path = tmp_path / "figures.json"
    transformer_step.main([*TRANSFORMER, "--dtype", dtype, "--json", str(path)])
    assert f"{dtype}, not compiled, vocabulary 7" in capsys.readouterr().out
    first, second = json.loads(path.read_text())["results"]
    assert (first["shape"], second["shape"]) == ("8x1x2x16", "8x2x1x12")
    assert first["tokens_per_second"] == pytest.approx(48 / first["seconds"])
    share = first["flops_per_second"] / first["product_flops_per_second"]
    low, high = min(first["share_of_each_pair"]), max(first["share_of_each_pair"])
    assert len(first["share_of_each_pair"]) == 2 and 0 < low <= high
    assert low / 2 < share < 2 * high


def test_transformer_step_refuses_a_wrong_kernel(monkeypatch, capsys) -> None:
    """Positions are lost in single precision only."""
    right = transformer_layers.rotate

    def forgetful(x, table):
        return x if x.dtype == torch.float32 else right(x, table)

    monkeypatch.setattr(transformer_layers, "rotate", forgetful)
    assert "float32 on cpu and float64" in _refuses(transformer_step, TRANSFORMER, capsys)


def test_transformer_step_moves_the_weights_with_dropout() -> None:
    network = transformer_training.make_network(transformer_training.Shape(8, 1, 2, 6), 5, 0.1)
    before = {name: weight.clone() for name, weight in network.named_parameters()}
    step = transformer_training.TransformerStep(
        network, 2, 6, device="cpu", dtype=torch.float32, compiled=False
    )
    assert step.loss() != step.loss(), "dropout acts"
    step()
    assert all(not torch.equal(before[n], w) for n, w in network.named_parameters())


def test_flops_of_a_transformer_step_by_counting() -> None:
    """Against PyTorch's count for a forward pass, minus the products of the condition.

    The body and the head embed the condition separately.
    """
    shape = transformer_training.Shape(16, 3, 2, 10)
    network = transformer_training.make_network(shape, 7, 0.0)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        network(Inputs(torch.zeros((4, 10), dtype=torch.int64)))
    condition = 2 * (2 * (256 * 128 + 128 * 128) + 128 * (3 * 6 + 2) * 16)
    counted = 3 * (counter.get_total_flops() - condition)
    assert transformer_training.matrix_flops(network.config, 40, 10, scored=40) == counted
    fewer = transformer_training.matrix_flops(network.config, 40, 10, scored=15)
    assert counted - fewer == 6 * 25 * 16 * 7


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells")
def test_memory_is_that_of_a_process_of_its_own() -> None:
    """The parallel scan allocates several tensors of all states, 16 by 16 floats per position."""
    command = [sys.executable, "-m", "benchmarks.peak_memory", "two-pass", "8", "1", "1", "4096"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(done.stdout) > 4 * (4096 * 16 * 16 * 4)


def test_profile_names_the_matrix_products(capsys) -> None:
    record = profiling.profile_step(TrainingStep(make_network(6, 1), 1, 16), "cpu")
    assert 0 < record["share_of_matrix_products"] < 1
    assert len(record["ops"]) == 10
    assert "matrix products take" in capsys.readouterr().out


def _refuses(benchmark, arguments, capsys) -> str:
    capsys.readouterr()
    with pytest.raises(SystemExit, match="nothing was timed") as refused:
        benchmark.main(arguments)
    assert "over pairs" not in capsys.readouterr().out
    return str(refused.value)


def test_scan_refuses_a_broken_twin(monkeypatch, capsys) -> None:
    right = scan.parallel_scan
    monkeypatch.setattr(scan, "parallel_scan", lambda *v: right(*v[:-1], 1.01 * v[-1]))
    assert "differ in y" in _refuses(scan, SCAN, capsys)


def test_muon_runs_and_refuses_another_polynomial(monkeypatch, tmp_path, capsys) -> None:
    small = {"small": Transformer(8, 1, 2, num_embeddings=5, num_logits=4)}
    monkeypatch.setattr(muon, "networks", lambda: small)
    path = tmp_path / "figures.json"
    muon.main(["--pairs", "2", "--json", str(path)])
    assert "x (" in capsys.readouterr().out
    (row,) = json.loads(path.read_text())["results"]
    assert row["matrices"] == 4 and len(row["ratio_of_each_pair"]) == 2
    right = optim._orthogonalized
    monkeypatch.setattr(optim, "_orthogonalized", lambda matrix, c, n: right(matrix, c, n - 1))
    with pytest.raises(SystemExit, match="a step of Muon: the two sides differ in 0"):
        muon.main(["--pairs", "1"])


def test_step_refuses_a_twin_that_forgets_to_flip_back(monkeypatch, capsys) -> None:
    def forgetful(self, x, padding=None, *, mirrored=False):
        return self.fwd(x) + self.rev(x.flip(1))

    monkeypatch.setattr(two_pass.TwoPass, "forward", forgetful)
    _refuses(caduceus_step, STEP, capsys)
    _refuses(long_context, LONG, capsys)


def test_step_refuses_a_twin_with_a_wrong_gradient(monkeypatch, capsys) -> None:
    """The loss is the same, but the gradient of the second pass is not propagated."""

    def stopped(self, x, padding=None, *, mirrored=False):
        return self.fwd(x) + self.rev(x.detach().flip(1)).flip(1)

    monkeypatch.setattr(two_pass.TwoPass, "forward", stopped)
    assert "differ in" in _refuses(caduceus_step, STEP, capsys)


def test_loader_refuses_a_twin_that_does_not_complement(monkeypatch, capsys) -> None:
    monkeypatch.setattr(loader, "COMPLEMENT", {letter: letter for letter in "ACGT"})
    assert "differ in tokens" in _refuses(loader, LOADER, capsys)


def test_long_context_refuses_a_scan_that_loses_its_state(monkeypatch, capsys) -> None:
    def forgetful(*values, return_last_state, initial_state):
        return scan.our_scan(*values), None

    monkeypatch.setattr(long_context, "selective_scan", forgetful)
    assert "pieces" in _refuses(long_context, LONG, capsys)


def test_not_a_number_is_a_difference() -> None:
    broken = {"y": torch.tensor([1.0, torch.nan])}
    with pytest.raises(SystemExit, match="differ in y by nan"):
        common.require_same("two", {"y": torch.ones(2)}, broken, 1.0)
    with pytest.raises(SystemExit, match="only one side has z"):
        common.require_same("two", {"y": torch.ones(2)}, {**broken, "z": torch.ones(2)}, 1.0)


def test_a_ratio_is_taken_within_each_pair() -> None:
    """A machine that slows down by half between pairs does not change the ratios."""
    ratio = common.Ratio(ours=[1.0, 2.0, 1.0], theirs=[10.0, 20.0, 12.0])
    assert ratio.pairs == [10.0, 10.0, 12.0]
    assert str(ratio) == "10.00x (10.00 to 12.00)"


def test_sides_take_turns() -> None:
    calls: list[str] = []
    sides = [common.Side("a", lambda: calls.append("a"), calls=2)]
    sides.append(common.Side("b", lambda: calls.append("b")))
    seconds = common.interleave(sides, 3)
    assert "".join(calls) == "ab" + "aab" + "baa" + "aab"
    assert {name: len(measured) for name, measured in seconds.items()} == {"a": 3, "b": 3}


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what is missing where it is missing")
def test_cuda_is_refused_in_one_line_without_a_device(capsys) -> None:
    with pytest.raises(SystemExit, match=r"^2$"):
        caduceus_step.main(["--device", "cuda"])
    said = capsys.readouterr().err
    assert said == "caduceus_step: --device cuda needs a CUDA device, and PyTorch sees none\n"
    with pytest.raises(SystemExit, match=r"^2$"):
        transformer_step.main(["--device", "cuda"])
    said = capsys.readouterr().err
    assert said == "transformer_step: --device cuda needs a CUDA device, and PyTorch sees none\n"


def test_layers_of_mamba_ssm_take_our_weights(monkeypatch) -> None:
    """A replacement with the constructor arguments and parameter names of mamba_ssm.Mamba."""

    def stand_in(d_model, d_state, d_conv, expand, dt_rank, bias, conv_bias):
        assert (d_model, d_state, d_conv, expand, dt_rank) == (6, 16, 4, 2, 1)
        assert (bias, conv_bias) == (False, True)
        return two_pass.mambapy_layer(make_network(6, 1).config)

    monkeypatch.setitem(sys.modules, "mamba_ssm", types.SimpleNamespace(Mamba=stand_in))
    network = make_network(6, 1)
    twin = two_pass.two_pass_twin(network, two_pass.mamba_ssm_layer)
    ours, theirs = (TrainingStep(n, 2, 16).numbers() for n in (network, twin))
    assert len(ours) == 1 + sum(1 for _ in network.parameters())
    assert common.require_same("a step", ours, theirs, 1e-4) < 1e-4


def test_cuda_names_the_missing_module(monkeypatch, capsys) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setitem(sys.modules, "mamba_ssm", None)
    with pytest.raises(SystemExit, match=r"^2$"):
        caduceus_step.require_kernels(["mamba_ssm"])
    said = capsys.readouterr().err
    assert re.fullmatch(r"caduceus_step: mamba_ssm cannot .*--sides triton\n", said)


def test_bad_options_are_named(capsys) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="at least 1, got 0"):
        common.positive("0")
    for main, arguments, said in (
        (caduceus_step.main, ["--shape", "118x4"], "as in 118x4x1024"),
        (transformer_step.main, ["--shape", "768x12x12"], "as in 768x12x12x1024"),
        (transformer_step.main, ["--shape", "7x1x2x4"], "a width that 2 * heads divide"),
        (caduceus_step.main, ["--sides", "triton"], "on cpu are ours, two-pass"),
        (long_context.main, ["--lengths", "3", "8"], "3 does not"),
    ):
        with pytest.raises(SystemExit, match=r"^2$"):
            main(arguments)
        assert said in capsys.readouterr().err


def test_least_bytes_of_a_layer_by_hand() -> None:
    """Width 16: inner 32, rank 1, states 16; see the docstring for what is counted."""
    config = make_network(16, 1).config
    around = 5 * 16 + (16 + 64) + 3 * 32 + (32 + 16)
    direction = 2 * 32 + (32 + 33) + (1 + 32) + (4 * 32 + 32)
    assert profiling.least_bytes(config, tokens=7, width=4) == 3 * 7 * 4 * (around + 2 * direction)


def test_the_preparation_of_a_genome_is_measured_in_processes_of_its_own(tmp_path, capsys) -> None:
    path = tmp_path / "figures.json"
    prepare_genome.main([*GENOME, "--folder", str(tmp_path), "--json", str(path)])
    assert "largest peak" in capsys.readouterr().out
    results = json.loads(path.read_text())["results"]
    assert [row["bases"] for row in results] == [720, 13_680]
    for row in results:
        assert row["bases_per_second"] == pytest.approx(row["bases"] / row["seconds"])
        assert 50e6 < row["peak_bytes"] < 1e9
    assert [left.name for left in tmp_path.iterdir()] == ["figures.json"]


def test_a_failed_stage_is_reported(tmp_path) -> None:
    with pytest.raises(SystemExit, match=r"prepare_genome: encode: .*none\.fa: no such file"):
        prepare_genome.measure("encode", tmp_path / "none.fa")


@pytest.mark.slow
def test_a_rehearsal_of_a_day_on_a_device_runs_every_part(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.device", "--rehearse", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    parts = json.loads((tmp_path / "device.json").read_text())["parts"]
    assert [part["part"] for part in parts] == [
        *("tests", *device.BENCHMARKS, "train", "evaluate"),
    ]
    assert all(part["ended"] == "passed" for part in parts)
    for part in parts:
        page = (tmp_path / f"{part['part']}.txt").read_text()
        assert page.startswith(f"$ {part['command'][0]}") and page.count("\n") > 1
        if part["part"] in (*device.BENCHMARKS, "evaluate"):
            assert json.loads((tmp_path / f"{part['part']}.json").read_text())


def test_a_part_that_fails_does_not_stop_the_next(tmp_path, monkeypatch, capsys) -> None:
    good, late, bad = (sys.executable, "-c", "print(1)"), "import time; time.sleep(60)", "exit(3)"
    found = [
        device.Part("bad", (sys.executable, "-c", bad), 60),
        device.Part("late", (sys.executable, "-c", late), 1),
        device.Part("good", good, 60),
    ]
    monkeypatch.setattr(device, "parts", lambda options: found)
    with pytest.raises(SystemExit, match=r"^1$"):
        device.main(["--rehearse", "--out", str(tmp_path)])
    parts = json.loads((tmp_path / "device.json").read_text())["parts"]
    ended = [part["ended"] for part in parts]
    assert ended == ["failed with exit code 3", "stopped after 1 s", "passed"]
    assert "device: bad, late failed; see the .txt of each in" in capsys.readouterr().out
    with pytest.raises(SystemExit, match=r"^2$"):
        device.main(["--rehearse", "--out", str(tmp_path), "--parts", "wrong"])
    assert "device.parts must be among bad, late, good, got wrong" in capsys.readouterr().err
    with pytest.raises(SystemExit, match=r"^2$"):
        device.main(["--rehearse", "--out", str(tmp_path), "--fasta", "none.fa"])
    assert "device.fasta must be a file, got none.fa; check the path" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what is missing where it is missing")
def test_a_day_on_a_device_needs_one(tmp_path, capsys) -> None:
    with pytest.raises(SystemExit, match=r"^2$"):
        device.main(["--out", str(tmp_path / "out")])
    said = capsys.readouterr().err
    assert said.startswith("device: PyTorch sees no CUDA device") and said.count("\n") == 1
    assert not (tmp_path / "out").exists()

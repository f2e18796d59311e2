"""Several processes on one machine give the result of one process on the same global batch."""

import csv
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import pytest
import torch
from safetensors.torch import load_file
from torch.utils._pytree import tree_flatten, tree_unflatten

from seqdiff.backbones import Transformer
from seqdiff.cli.app import main
from seqdiff.types import Inputs
from tests.integration.conftest import write_config

ROOT = Path(__file__).parents[2]
FLAGS = ["--trainer.max_steps", "5", "--trainer.val_check_interval", "5"]


def _losses(run: Path, name: str) -> list[float]:
    with (run / "metrics.csv").open(newline="") as file:
        return [float(row["value"]) for row in csv.DictReader(file) if row["name"] == name]


def _train(*arguments: str, devices: int = 1, strategy: str = "ddp") -> None:
    """Train on a global batch of 8 rows, with a process for each device."""
    command = [sys.executable, "-m", "seqdiff.cli", "--trust-code=tests", "train", *arguments]
    command += ["--trainer.devices", str(devices), "--data.init_args.batch_size", str(8 // devices)]
    command += ["--trainer.strategy", strategy if devices > 1 else "auto"]
    if devices == 1:
        assert main(command[4:]) == 0
        return
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert f"MEMBER: {devices}/{devices}" in done.stderr
    assert "sync_dist" not in done.stderr, "the advice does not apply"


def _assert_equal(wanted: object, found: object, where: str = "") -> None:
    """Compare parts of checkpoints, and tensors up to rounding."""
    if isinstance(wanted, torch.Tensor):
        assert isinstance(found, torch.Tensor), where
        torch.testing.assert_close(
            found, wanted, rtol=2e-4, atol=2e-6, msg=lambda text: f"{where}: {text}"
        )
    elif isinstance(wanted, dict):
        assert isinstance(found, dict) and wanted.keys() == found.keys(), where
        for key, value in wanted.items():
            _assert_equal(value, found[key], f"{where}.{key}")
    elif isinstance(wanted, list):
        assert isinstance(found, list) and len(wanted) == len(found), where
        for number, value in enumerate(wanted):
            _assert_equal(value, found[number], f"{where}.{number}")
    else:
        assert wanted == found, where


def _assert_same_run(wanted: Path, found: Path) -> None:
    """Compare losses, weights, averages and the optimizer's states."""
    for name in ("train/nats_per_token", "val/nats_per_token"):
        assert _losses(found, name) == pytest.approx(_losses(wanted, name), rel=1e-5)
    one, two = (load_file(run / "model.safetensors") for run in (wanted, found))
    _assert_equal(one, two, "weights")
    one, two = (torch.load(run / "last.ckpt", weights_only=True) for run in (wanted, found))
    for key in ("state_dict", "optimizer_states", "lr_schedulers", "global_step", "ToyData"):
        _assert_equal(one[key], two[key], key)
    _assert_equal(one["callbacks"]["EMA"], two["callbacks"]["EMA"], "average")


ELASTIC = ["--trainer.val_check_interval", "3", "--trainer.gradient_clip_val", "0.5"]
ELASTIC += ["--backbone=seqdiff.backbones.Transformer", "--backbone.dropout=0"]
ELASTIC += ["--backbone.d_model=16", "--backbone.n_layer=2", "--backbone.n_heads=2"]
ELASTIC += ["--backbone.cond_dim=8", "--optim.muon_lr=0.002"]


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 12 steps, two epochs, on one device."""
    folder = tmp_path_factory.mktemp("straight")
    _train(str(write_config(folder)), *ELASTIC, "--trainer.max_steps=12")
    return folder / "run"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "stages"),
    [("ddp", [(3, 1), (6, 2), (9, 4), (12, 1)]), ("fsdp", [(3, 2), (6, 1), (9, 2), (12, 4)])],
)
def test_a_run_goes_on_with_another_number_of_devices(
    strategy: str,
    stages: list[tuple[int, int]],
    straight: Path,
    config: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The result is that of a run on one device, and single processes open it after each stage.

    Rows with unknown symbols give the parts of a batch different numbers of tokens. The broken
    twin below, which averages the means of the processes, gives other weights.
    """
    run = tmp_path / "run"
    for steps, devices in stages:
        begin = [str(config), *ELASTIC] if steps == 3 else ["--resume", str(run)]
        _train(*begin, f"--trainer.max_steps={steps}", devices=devices, strategy=strategy)
        checkpoint = torch.load(run / "last.ckpt", weights_only=True)
        assert checkpoint["ToyData"] == {"position": 8 * steps}
        capsys.readouterr()
        assert main(["evaluate", str(run)]) == 0
        assert "bits" in capsys.readouterr().out
    _assert_same_run(straight, run)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_all_devices_train_the_same_block_size(strategy: str, config: Path, tmp_path: Path) -> None:
    """Two cycles of three sizes: with sizes that differ between devices the weights would too."""
    one, two = tmp_path / "one", tmp_path / "two"
    sizes = ["--block_size=[1,4,12]", "--objective=seqdiff.objectives.WeightedMLM"]
    flags = [str(config), *ELASTIC, *sizes, "--trainer.max_steps=6"]
    _train(*flags, f"--output={one}")
    _train(*flags, f"--output={two}", devices=2, strategy=strategy)
    _assert_same_run(one, two)


NETS = {
    "Transformer": ELASTIC[4:],
    "AutoregressiveTransformer": ["--preset=ar", "--backbone.dropout=0", *ELASTIC[6:9]],
    "Caduceus": ["--backbone.d_model=8", "--backbone.n_layer=2", "--backbone.d_state=4"],
    "AutoregressiveMamba": ["--preset=ar", "--backbone.d_model=8", "--backbone.n_layer=2"],
    "BlockMamba": ["--backbone.d_model=8", "--backbone.n_layer=2", "--backbone.d_state=4"],
    "tests.integration.toy_domain.TiedNet": [],
    "tests.integration.toy_domain.NetWithASpare": [],
}
BLOCKS = ["--block_size=4", "--objective=BlockNELBO", "--objective.search_batches=null"]
NETS["Transformer, blocks of 4"] = [*NETS["Transformer"], *BLOCKS]
NETS["BlockMamba, blocks of 4"] = [*NETS["BlockMamba"], *BLOCKS]


@pytest.mark.parametrize(
    "net", [pytest.param(n, marks=() if n == "Caduceus" else pytest.mark.slow) for n in NETS]
)
def test_every_network_can_be_sharded(net: str, config: Path, tmp_path: Path) -> None:
    """Over one device, in this process; a part that is not gathered when it is used is an error."""
    plain, sharded = tmp_path / "plain", tmp_path / "sharded"
    name = net.partition(",")[0]
    flags = [f"--backbone={name}", *NETS[net], "--trainer.val_check_interval=2"]
    for run, more in ((plain, []), (sharded, ["--trainer.strategy=fsdp"])):
        start = ["train", str(config), *flags, *more, f"--output={run}"]
        with mock.patch.dict(os.environ):  # Lightning names the process group there.
            assert main([*start, "--trainer.max_steps=2"]) == 0
            assert main(["train", "--resume", str(run), "--trainer.max_steps=4"]) == 0
    assert not torch.distributed.is_initialized()
    _assert_same_run(plain, sharded)


def test_layers_of_block_diffusion_may_get_copies_of_their_arguments() -> None:
    """FSDP2 of PyTorch 2.10 flattens the arguments of a layer and builds them again."""
    network = Transformer(16, 3, 2, cond_dim=8, num_embeddings=7, num_logits=6).eval()
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    x0 = torch.arange(24).reshape(2, 12) % 6
    inputs = Inputs(x0.masked_fill(torch.rand(x0.shape) < 0.5, 6))
    wanted = network.block_logits(inputs, x0, 4)
    for layer in network.blocks:
        layer.register_forward_pre_hook(
            lambda _, arguments: tree_unflatten(*tree_flatten(arguments))
        )
    torch.testing.assert_close(network.block_logits(inputs, x0, 4), wanted, rtol=0, atol=0)


@pytest.mark.slow
def test_no_process_group_outlives_the_training(config: Path, tmp_path: Path) -> None:
    """Otherwise its threads sometimes abort the interpreter at exit, with code -6."""
    command = ["--trust-code=tests", "train", str(config), *FLAGS, "--trainer.strategy", "ddp"]
    lines = [
        "import torch",
        "from seqdiff.cli.app import main",
        f"assert main({[*command, '--output', str(tmp_path / 'run')]}) == 0",
        "assert not torch.distributed.is_initialized()",
    ]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "GLOBAL_RANK: 0" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("dead", [0, 1])
def test_the_end_of_another_process_is_one_line(config: Path, tmp_path: Path, dead: int) -> None:
    """With processes that are started as torchrun does; the other one ends within seconds."""
    run = tmp_path / "run"
    command = [sys.executable, "-m", "seqdiff.cli", "--trust-code=tests"]
    command += ["train", str(config), "--output", str(run)]
    command += ["--trainer.max_steps", "999999999", "--checkpoint_every_n_steps", "10"]
    command += ["--trainer.devices", "2", "--trainer.strategy", "ddp"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    processes = [
        subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **shared, "OMP_NUM_THREADS": "1", "LOCAL_RANK": rank, "RANK": rank},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in ("0", "1")
    ]
    try:
        while not (run / "last.ckpt").exists() and all(p.poll() is None for p in processes):
            time.sleep(0.1)
        processes[dead].kill()
        lines = processes[1 - dead].communicate(timeout=60)[1].splitlines()
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    said = "seqdiff: error: a distributed run must keep all its processes, got the end of another "
    where = f"seqdiff: metrics: {run / 'metrics.csv'}; tensorboard --logdir {run}"
    first = [where] if dead == 1 else []
    assert [line for line in lines if "Initializing distributed" not in line] == [*first, lines[-1]]
    assert lines[-1].startswith(said) and "GLHF" not in lines[-1]
    resume = f"seqdiff train --resume {run} --trust-code tests"
    assert lines[-1].endswith(f"see what it printed, then continue: {resume}")
    assert processes[1 - dead].returncode == 2


@pytest.mark.parametrize("group", [True, False])
def test_a_process_group_left_behind_does_not_meet_the_end_of_the_interpreter(
    group: bool, tmp_path: Path
) -> None:
    """Threads of a broken group abort the interpreter in about one of eight runs."""
    start = f"init_process_group('gloo', init_method={(tmp_path / 'store').as_uri()!r}, "
    lines = [
        "import atexit, sys",
        "from torch.distributed import init_process_group",
        "from seqdiff.cli.app import run",
        "class Last:",
        "    def __del__(self): print('the interpreter ends')",
        "last = Last()",
        f"{start}rank=0, world_size=1)" if group else "",
        f"sys.argv = ['seqdiff', 'evaluate', {str(tmp_path / 'absent')!r}]",
        "code = run()",
        "atexit.register(print, 'code', code)",
        "atexit.register(sys.stderr.write, 'no newline')",
        "sys.exit(code)",
    ]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)],
        cwd=ROOT,
        env={key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    *_, error, last = done.stderr.splitlines()
    assert done.returncode == 2 and "absent" in error and last == "no newline"
    assert done.stdout.splitlines() == ["code 2"] + ["the interpreter ends"] * (not group)


def test_averaging_each_process_own_mean_is_another_gradient(config: Path) -> None:
    """Broken twin: its difference exceeds the tolerance above by far."""
    from seqdiff.run.config import instantiate, parse_run

    data = instantiate(parse_run(config)).data
    counts = []
    for step in range(5):
        batches = [next(iter(data.training_loader(start=8 * step + 4 * r))) for r in range(2)]
        counts.append([int(batch.loss_mask[:4].sum()) for batch in batches])
    assert any(abs(a - b) / (a + b) > 1e-3 for a, b in counts)

"""What training logs, and where: TensorBoard, Weights & Biases and MLflow, without a network."""

import csv
import errno
import json
import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import Logger, TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from seqdiff.cli.app import main
from seqdiff.run import drawing, load
from seqdiff.training.loggers import SERVICES_NAME, Board, Services

_VALIDATING = ["--trainer.val_check_interval", "2"]


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the settings of whoever runs the tests."""
    for name in ("WANDB_PROJECT", "WANDB_API_KEY", "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")


def _train(config: Path, run: Path, logger: str, *flags: str) -> dict[str, float]:
    """Train four steps; return the last value of each metric of metrics.csv."""
    options = ["--trainer.logger", logger, "--trainer.max_steps", "4", *_VALIDATING, *flags]
    assert main(["train", str(config), *options, "--output", str(run)]) == 0
    with (run / "metrics.csv").open(newline="") as file:
        return {row["name"]: float(row["value"]) for row in csv.DictReader(file)}


def test_samples_go_to_tensorboard_and_do_not_change_the_training(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain, shown = tmp_path / "plain", tmp_path / "shown"
    _train(config, plain, "csv")
    assert not (plain / "tensorboard").exists()
    assert f"seqdiff: metrics: {plain / 'metrics.csv'}\n" in capsys.readouterr().err
    _train(config, shown, "[tensorboard]", "--checkpoint_every_n_steps", "2")
    said = f"metrics: {shown / 'metrics.csv'}; tensorboard --logdir {shown}\n"
    assert said in capsys.readouterr().err
    assert (plain / "model.safetensors").read_bytes() == (shown / "model.safetensors").read_bytes()
    events = EventAccumulator(str(shown / "tensorboard"))
    events.Reload()
    texts = events.Tensors("samples/text_summary")
    assert [event.step for event in texts] == [2, 4]
    drawn = load(shown).sample(4, seed=7)
    found = texts[-1].tensor_proto.string_val[0].decode()
    assert [line.strip() for line in found.splitlines()] == drawn
    assert texts[0].tensor_proto.string_val[0].decode() != found
    pictures = events.Images("drawing")
    assert [event.step for event in pictures] == [2, 4] and pictures[0].width > 100


def test_no_samples_where_the_length_or_a_condition_is_unknown(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = load(trained)
    needing = replace(opened, config=replace(opened.config, label_dropout=0.0))
    monkeypatch.setattr(drawing, "load_trained", lambda directory: needing)
    monkeypatch.setattr(drawing, "_LONGEST_SHOWN", 5)
    samples = drawing.draw_samples(trained, seed=7)
    assert samples is not None and [len(text) for text in samples.texts] == [5] * 4
    opened.datamodule.labels = ["rich"]
    assert drawing.draw_samples(trained, seed=7) is None, "it cannot do without a label"
    opened.datamodule.labels, opened.datamodule.context_length = None, None
    assert drawing.draw_samples(trained, seed=7) is None


@pytest.mark.slow
def test_wandb_offline(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed")
    run = tmp_path / "run"
    monkeypatch.setenv("WANDB_PROJECT", "rings-of-letters")
    metrics = _train(config, run, "wandb")
    assert main(["train", "--resume", str(run), "--trainer.max_steps", "6"]) == 0
    number = json.loads((run / "loggers.json").read_text())["wandb"]
    folders = sorted((run / "wandb").glob("offline-run-*"))
    assert [folder.name.rpartition("-")[2] for folder in folders] == [number] * 2
    first = (folders[0] / f"run-{number}.wandb").read_bytes()
    assert b"val/bits_per_token" in first and repr(metrics["val/bits_per_token"]).encode() in first
    assert b"toy_domain.ToyNet" in first, "the configuration"
    assert b"rings-of-letters" in first, "the project"
    (table,) = folders[1].rglob("*.table.json")
    assert [row[0] for row in json.loads(table.read_text())["data"]] == load(run).sample(4, seed=7)
    assert len(list(folders[1].rglob("*.png"))) == 1


@pytest.mark.slow
def test_mlflow_in_a_file(config: Path, tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    pytest.importorskip("sqlalchemy", reason="sqlalchemy is not installed")
    run = tmp_path / "run"
    _train(config, run, "mlflow")
    assert main(["train", "--resume", str(run), "--trainer.max_steps", "6"]) == 0
    client = mlflow.MlflowClient(f"sqlite:///{run / 'mlflow.db'}")
    number = json.loads((run / "loggers.json").read_text())["mlflow"]
    found = client.get_run(number)
    assert found.info.run_name == "run" and found.info.status == "FINISHED"
    assert found.data.params["optim/lr"] == "0.02"
    with (run / "metrics.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["name"] == "val/bits_per_token"]
    logged = client.get_metric_history(number, "val/bits_per_token")
    assert [(point.step, point.value) for point in logged] == [
        (int(row["step"]), float(row["value"])) for row in rows
    ]
    text = next((run / "mlartifacts").rglob("samples/6.txt")).read_text()
    assert text.splitlines() == load(run).sample(4, seed=7)
    assert next((run / "mlartifacts").rglob("drawing/6.png")).stat().st_size > 1000
    _train(config, tmp_path / "next", "mlflow")
    assert (tmp_path / "next" / "mlflow.db").exists(), "a run of the same process has its own store"


@pytest.mark.parametrize(
    ("logger", "package"), [("wandb", "wandb"), ("mlflow", "mlflow"), ("mlflow", "sqlalchemy")]
)
def test_a_missing_package_is_one_line_before_anything_is_written(
    logger: str, package: str, config: Path, tmp_path: Path, fails, monkeypatch
) -> None:
    if package == "sqlalchemy":
        pytest.importorskip("mlflow", reason="mlflow is not installed")
    monkeypatch.setitem(sys.modules, package, None)
    line = fails(["train", str(config), "--trainer.logger", logger])
    assert f"trainer.logger {logger} must have the package {package}" in line
    assert line.endswith("run: pip install -e '.[loggers]'")
    assert not (tmp_path / "run").exists()


def test_a_logger_that_does_not_exist(config: Path, fails) -> None:
    assert "tensorbord" in fails(["train", str(config), "--trainer.logger", "tensorbord"])


@pytest.mark.parametrize("content", ['["x"]', '{"wandb": 3}', '{"wandb":'])
def test_a_damaged_file_of_names_is_one_line(
    content: str, config: Path, tmp_path: Path, fails
) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed")
    run = tmp_path / "run"
    _train(config, run, "csv")
    (run / "loggers.json").write_text(content)
    flags = ["--trainer.logger", "wandb", "--trainer.max_steps", "6"]
    line = fails(["train", "--resume", str(run), *flags])
    assert f"{run / 'loggers.json'}: not a file of names by logger; delete it" in line


def test_a_service_that_refuses_is_one_line(
    config: Path, tmp_path: Path, fails, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = pytest.importorskip("wandb", reason="wandb is not installed")

    def refuse(**options: object) -> None:
        raise wandb.errors.UsageError("No API key configured.\nUse `wandb login`.")

    monkeypatch.setattr(wandb, "init", refuse)
    line = fails(["train", str(config), "--trainer.logger", "wandb"])
    assert "trainer.logger wandb must be able to log, got: No API key configured. Use" in line
    assert not (tmp_path / "run" / "last.ckpt").exists()


def test_services_connect_in_the_first_process_only(tmp_path: Path, monkeypatch) -> None:
    services = Services(["wandb"], tmp_path, resumed=False, describe=dict)
    connected: list[str] = []

    def connect(name: str, number: str | None) -> tuple[Logger, str]:
        connected.append(name)
        return Mock(spec=Logger), "a1"

    monkeypatch.setattr(services, "_connect", connect)
    for first in (False, True):
        trainer = Mock(spec=Trainer, is_global_zero=first, loggers=[])
        services.on_train_start(trainer, Mock(spec=LightningModule))
        assert connected == ["wandb"] * first and len(trainer.loggers) == first
        assert (tmp_path / SERVICES_NAME).exists() == first


def test_tensorboard_raises_no_second_error_after_a_failure(tmp_path: Path, monkeypatch) -> None:
    def full(self: TensorBoardLogger, status: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(TensorBoardLogger, "finalize", full)
    board = Board(tmp_path, name="", version="tensorboard")
    board.finalize("failed")
    with pytest.raises(OSError, match=r"tensorboard must be writable, got: No space left"):
        board.finalize("success")

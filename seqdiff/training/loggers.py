"""Where training logs: its own file of metrics, TensorBoard, Weights & Biases and MLflow."""

from __future__ import annotations

import csv
import io
import json
import os
import secrets
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import Logger, MLFlowLogger, TensorBoardLogger, WandbLogger

from seqdiff.cells import say
from seqdiff.extras import require_extra
from seqdiff.files import append_text, parse_json, replacing, write_bytes
from seqdiff.trace import Samples
from seqdiff.training.config import LoggerName
from seqdiff.training.sharding import is_first_process
from seqdiff.training.weights import METRICS_HEADER, METRICS_NAME, rows_before

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

SERVICES_NAME = "loggers.json"  # the names that services gave to a run
_PROJECT = "seqdiff"


class MetricsFile(Logger):
    """Appends ``step,name,value`` rows to a CSV file at every log step.

    Lightning's CSVLogger rewrites the file, has one column per metric, and cannot drop rows.
    """

    def __init__(self, path: Path, *, first_step: int, every: int) -> None:
        """Open or continue a file; a warning names the steps whose rows are missing.

        Args:
            path: The file; it is not opened for writing before the first row.
            first_step: Rows from this step on are dropped; a run that stopped after its last
                checkpoint leaves such rows.
            every: Steps between two rows.

        Raises:
            ValueError: If the file is no metrics file.
        """
        super().__init__()
        self.path = path
        self._kept = rows_before(first_step, path) if first_step > 0 and path.exists() else []
        last = max((int(row[0]) for row in self._kept), default=-1)
        if last + every < first_step and is_first_process():
            say(
                f"seqdiff: warning: {path} has no rows of steps {last + 1} to {first_step - 1}; "
                "they were lost, and the training goes on without them",
                error=True,
            )
        self._ready = False

    @property
    def name(self) -> str:
        """Name of the logger."""
        return "csv"

    @property
    def version(self) -> str:
        """Empty, since there are no versions."""
        return ""

    def _prepare(self) -> None:
        with replacing(self.path) as temporary, temporary.open("w", newline="") as new:
            csv.writer(new).writerows([METRICS_HEADER, *self._kept])
        self._kept, self._ready = [], True

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Append one row per metric.

        Raises:
            OSError: If the disk is full.
        """
        if not self._ready:
            self._prepare()
        rows = io.StringIO(newline="")
        csv.writer(rows).writerows(
            (step, k, repr(float(v))) for k, v in metrics.items() if k != "epoch"
        )
        append_text(self.path, rows.getvalue())

    @rank_zero_only
    def log_hyperparams(self, params: dict[str, object] | Namespace) -> None:
        """Do nothing: the configuration is in run.yaml."""


class Board(TensorBoardLogger):
    """TensorBoard's files, whose errors name their folder."""

    @property
    def experiment(self) -> SummaryWriter:
        """The writer, which is opened when it is first used.

        Raises:
            OSError: If the files cannot be written.
        """
        with self._named():
            return super().experiment

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Pass one point per metric to TensorBoard's thread.

        Raises:
            OSError: If the thread could not write earlier points, for example on a full disk.
        """
        with self._named():
            super().log_metrics(dict(metrics), step)

    @rank_zero_only
    def save(self) -> None:
        """Write what the thread has not written yet.

        Raises:
            OSError: If it cannot be written.
        """
        with self._named():
            super().save()

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Close the files; after an error, which is what the user must see, without another one.

        Raises:
            OSError: If the last points cannot be written.
        """
        with suppress(OSError) if status == "failed" else self._named():
            super().finalize(status)

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OSError(
                error.errno,
                f"{self.log_dir} must be writable, got: {error.strerror or error}; free some space "
                "or use another disk",
            ) from error


class WandbRun(WandbLogger):
    """A run of Weights & Biases that ends with the training, so that another one may begin."""

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """End the run."""
        super().finalize(status)
        self.experiment.finish(exit_code=int(status == "failed"))


class MLflowRun(MLFlowLogger):
    """A run of MLflow, whose errors are named."""

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Send one point per metric.

        Raises:
            ConnectionError: If the store cannot be reached or refuses.
        """
        with _reaching("mlflow"):
            super().log_metrics(metrics, step)


def check_loggers(names: Sequence[LoggerName]) -> None:
    """Check, before slow work, that the packages of loggers are installed.

    Raises:
        ValueError: If one is not; names the command that installs it.
    """
    needed: dict[str, tuple[str, ...]] = {"wandb": ("wandb",), "mlflow": ("mlflow",)}
    if "mlflow" in names and not os.environ.get("MLFLOW_TRACKING_URI"):
        needed["mlflow"] = ("mlflow", "sqlalchemy", "alembic")
    for name in names:
        for package in needed.get(name, ()):
            require_extra(package, f"trainer.logger {name}", "loggers")


def build_loggers(
    names: Sequence[LoggerName], directory: Path, *, first_step: int, every: int
) -> list[Logger]:
    """Build the loggers that write into a run directory; ``Services`` adds the others.

    Args:
        names: Those that the user chose.
        directory: The run directory.
        first_step: First step of a run that is resumed.
        every: Steps between two rows.

    Raises:
        ValueError: If the file of metrics is damaged.
    """
    found: list[Logger] = [
        MetricsFile(directory / METRICS_NAME, first_step=first_step, every=every)
    ]
    if "tensorboard" in names:
        found.append(Board(directory, name="", version="tensorboard", purge_step=first_step))
    return found


def where_to_look(names: Sequence[LoggerName], directory: Path) -> str:
    """Say where the metrics of a run are, and the commands that show them."""
    said = [f"metrics: {directory / METRICS_NAME}"]
    if "tensorboard" in names:
        said.append(f"tensorboard --logdir {directory}")
    if "wandb" in names:
        said.append(f"wandb: its address, or files in {directory / 'wandb'}")
    if "mlflow" in names:
        said.append(f"mlflow ui --backend-store-uri {_store(directory)}")
    return "; ".join(said)


def _store(directory: Path) -> str:
    """Return the address of MLflow's store, by default a file of the run."""
    local = f"sqlite:///{(directory / 'mlflow.db').absolute()}"
    return os.environ.get("MLFLOW_TRACKING_URI") or local


class Services(Callback):
    """Adds the loggers of services in the first process when everything is loaded.

    A resumed run goes on under the name that the service gave to it. The variables of the services
    themselves configure them: ``WANDB_MODE``, ``WANDB_PROJECT``, ``MLFLOW_TRACKING_URI``, ...
    """

    def __init__(
        self,
        names: Sequence[LoggerName],
        directory: Path,
        *,
        resumed: bool,
        describe: Callable[[], dict[str, Any]],
    ) -> None:
        """Choose the services.

        Args:
            names: The loggers that the user chose, of which others are ignored.
            directory: The run directory.
            resumed: Whether the run continues.
            describe: Returns the configuration that services show.
        """
        super().__init__()
        self._names = [name for name in names if name in ("wandb", "mlflow")]
        self._directory, self._resumed, self._describe = directory, resumed, describe

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Connect.

        Raises:
            ConnectionError: If a service cannot be reached or refuses.
            ValueError: If the file with the names of the run is damaged.
        """
        if not self._names or not trainer.is_global_zero:
            return
        path = self._directory / SERVICES_NAME
        known: dict[str, str] = {}
        if self._resumed and path.exists():
            known = _read_names(path)
        for name in self._names:
            logger, number = self._connect(name, known.get(name))
            if name not in known:
                logger.log_hyperparams(self._describe())
            known[name] = number
            trainer.loggers = [*trainer.loggers, logger]
        write_bytes(path, json.dumps(known).encode())

    def _connect(self, name: str, number: str | None) -> tuple[Logger, str]:
        """Open a run of a service, and return it with its name there."""
        title = self._directory.absolute().name
        with _reaching(name):
            if name == "wandb":
                logger = WandbRun(
                    title,
                    save_dir=self._directory,
                    version=number or secrets.token_hex(4),
                    project=os.environ.get("WANDB_PROJECT", _PROJECT),
                )
                return logger, logger.experiment.id
            chosen = os.environ.get("MLFLOW_TRACKING_URI")
            logger = MLflowRun(
                os.environ.get("MLFLOW_EXPERIMENT_NAME", _PROJECT),
                title,
                tracking_uri=_store(self._directory),
                artifact_location=None
                if os.environ.get("MLFLOW_TRACKING_URI")
                else str((self._directory / "mlartifacts").absolute()),
                run_id=number,
            )
            number = logger.run_id
            if chosen is None:  # MLflow sets it, and the next run of this process would go there
                os.environ.pop("MLFLOW_TRACKING_URI", None)
            assert number is not None
            return logger, number


def _read_names(path: Path) -> dict[str, str]:
    """Read the names that services gave to a run.

    Raises:
        ValueError: If the file is damaged.
    """
    with suppress(ValueError):
        found = parse_json(path.read_bytes())
        if isinstance(found, dict) and all(isinstance(name, str) for name in found.values()):
            return found
    raise ValueError(f"{path}: not a file of names by logger; delete it to log to new ones")


@contextmanager
def _reaching(name: str) -> Iterator[None]:
    """Raise the errors of a service, which has its own types, as ``ConnectionError``."""
    try:
        yield
    except Exception as error:
        raise ConnectionError(
            f"trainer.logger {name} must be able to log, got: {error}; correct that, or log "
            "offline, see docs/how-to/loggers.md"
        ) from error


def log_samples(loggers: Sequence[Logger], samples: Samples, step: int) -> None:
    """Send samples to the loggers that show text and pictures.

    Args:
        loggers: The loggers of a Trainer.
        samples: The samples.
        step: Optimizer steps done.
    """
    text = "\n".join(samples.texts)
    for logger in loggers:
        if isinstance(logger, Board):
            indented = "\n".join(f"    {line}" for line in text.splitlines())
            logger.experiment.add_text("samples", indented, step)
            logger.experiment.add_image("drawing", samples.picture, step, dataformats="HWC")
        elif isinstance(logger, WandbRun):
            logger.log_text("samples", ["sequence"], [[line] for line in samples.texts], step=step)
            logger.log_image("drawing", [samples.picture], step)
        elif isinstance(logger, MLflowRun):
            run = logger.run_id
            assert run is not None
            with _reaching("mlflow"):
                logger.experiment.log_text(run, text, f"samples/{step}.txt")
                logger.experiment.log_image(run, samples.picture, f"drawing/{step}.png")

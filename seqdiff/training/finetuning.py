"""Fine-tune networks over a grid of settings, and keep every result in a ledger.

A grid is a list of cells: a task, a network, a setting such as the learning rate, and a seed.
The ledger holds one JSON line for each finished cell; a cell that is in it is not run again. Each
run keeps its best epoch on validation, and ``choose`` takes the setting that is best on validation.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from seqdiff.files import alone, parse_json, write_bytes
from seqdiff.progress import progress as show_progress

if TYPE_CHECKING:
    from rich.table import Table

Batches = Iterable[tuple[Tensor, ...]]
Key = Mapping[str, object]
Optimiser = tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]
Advance = Callable[[int], None]
Loss = Callable[[Tensor, Tensor], Tensor]
Result = dict[str, Any]
Name = TypeVar("Name", bound=Hashable)


class DivergedError(Exception):
    """Raised if the scores of a network are not finite.

    Attributes:
        epochs: Number of epochs after which they were finite.
    """

    def __init__(self, epochs: int) -> None:
        super().__init__(f"diverged after {epochs} epochs")
        self.epochs = epochs


def check_finite(scores: Float[np.ndarray, "n C"], epochs: int) -> None:
    """Check the scores of a network.

    Args:
        scores: Scores of the classes, or predicted values.
        epochs: Number of epochs after which the scores were finite.

    Raises:
        DivergedError: If a score is not finite.
    """
    if not np.isfinite(scores).all():
        raise DivergedError(epochs)


@dataclass(frozen=True)
class Fitted:
    """The course of a fit.

    Attributes:
        epoch: The best epoch on validation, counted from 1; of equal epochs, the first.
        metrics: Metrics on validation after each epoch.
        train_seconds: Seconds of training, without validation.
    """

    epoch: int
    metrics: list[dict[str, float]]
    train_seconds: float


def fit(
    model: nn.Module,
    optimiser: Optimiser,
    epochs: int,
    *,
    one_pass: Callable[[], Batches],
    validate: Callable[[int], dict[str, float]],
    metric: str,
    loss: Loss = F.cross_entropy,
    clip: float | None = None,
    progress: Advance | None = None,
) -> Fitted:
    """Train a network and leave it with the weights of its best epoch.

    Args:
        model: Maps the inputs of a batch to outputs ``[B, C]``, such as the scores of classes.
        optimiser: Optimizer of its parameters, and the scheduler, stepped after each batch.
        epochs: Number of passes.
        one_pass: Yields the batches of the next pass: inputs, and last the labels, ``[B]`` for
            classes.
        validate: Returns the metrics on validation; called with the number of epochs before.
        metric: Metric by which epochs are compared; higher is better.
        loss: Maps the outputs and the labels of a batch to the loss that is minimised.
        clip: Largest gradient norm; ``None`` does not clip.
        progress: Called with the number of rows after each step.

    Raises:
        DivergedError: If ``validate`` raises it.
    """
    metrics: list[dict[str, float]] = []
    best, seconds = copy.deepcopy(model.state_dict()), 0.0
    for epoch in range(epochs):
        started = time.perf_counter()
        learn_pass(model, *optimiser, one_pass(), loss=loss, clip=clip, progress=progress)
        if next(model.parameters()).is_cuda:
            torch.cuda.synchronize()
        seconds += time.perf_counter() - started
        found = validate(epoch)
        if found[metric] > max((before[metric] for before in metrics), default=-np.inf):
            best = copy.deepcopy(model.state_dict())
        metrics.append(found)
    model.load_state_dict(best)
    return Fitted(best_epoch(metrics, metric), metrics, seconds)


def best_epoch(metrics: Sequence[Mapping[str, float]], metric: str) -> int:
    """Return the epoch with the highest metric, counted from 1; of equal epochs, the first."""
    return int(np.argmax([found[metric] for found in metrics])) + 1


def learn_pass(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    rate: torch.optim.lr_scheduler.LRScheduler,
    batches: Batches,
    *,
    loss: Loss = F.cross_entropy,
    clip: float | None = None,
    progress: Advance | None = None,
) -> None:
    """Train a network on each batch once; see ``fit``."""
    model.train()
    device = next(model.parameters()).device
    for *inputs, labels in batches:
        error = loss(model(*(x.to(device) for x in inputs)), labels.to(device))
        optimizer.zero_grad()
        error.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        rate.step()
        if progress is not None:
            progress(len(labels))


class Cell(NamedTuple):
    """A run of a grid.

    Attributes:
        key: All values on which the result depends.
        cost: Number of sequences that a network processes in training.
        run: Runs the cell, and calls its argument with the number of sequences after each step.
    """

    key: dict[str, object]
    cost: int
    run: Callable[[Advance], Result]


class Ledger:
    """Finished cells of a grid, one JSON line each.

    Several processes may write to the same file: each adds its line under a file lock. The
    file is replaced as a whole, so a process that is killed leaves no incomplete line.
    """

    def __init__(self, path: Path | None) -> None:
        """Read the finished cells.

        Args:
            path: The file, created if it does not exist; ``None`` keeps results in memory.

        Raises:
            ValueError: If a line is not a cell; the message begins with file and line.
        """
        self.path = path
        self._cells = self._read()

    def find(self, key: Key) -> Result | None:
        """Return the result of a cell, or ``None`` if it is not finished."""
        return self._cells.get(_spell(key))

    def add(self, key: Key, result: Mapping[str, object]) -> None:
        """Save the result of a cell.

        Args:
            key: Key of the cell.
            result: The result; JSON must be able to represent it.

        Raises:
            OSError: If the file cannot be written.
            ValueError: If another process has left a line that is not a cell.
        """
        if self.path is None:
            self._cells[_spell(key)] = dict(result)
            return
        with alone(self.path.with_name(f"{self.path.name}.lock")):
            self._cells = {**self._read(), _spell(key): dict(result)}
            lines = (
                json.dumps({"key": json.loads(spelt), "result": found})
                for spelt, found in self._cells.items()
            )
            write_bytes(self.path, "".join(f"{line}\n" for line in lines).encode())

    def _read(self) -> dict[str, Result]:
        there = self.path is not None and self.path.exists()
        return dict(_lines(self.path)) if self.path is not None and there else {}


def _lines(path: Path) -> Iterator[tuple[str, Result]]:
    text = path.read_bytes().decode("utf-8", "replace")
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            cell = parse_json(line)
            yield _spell(cell["key"]), dict(cell["result"])
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(
                f"{path}:{number}: must be a finished cell as JSON, got {line[:40]!r}; "
                "choose another --out, or remove the line"
            ) from error


def _spell(key: Key) -> str:
    return json.dumps(key, sort_keys=True)


def run_cells(todo: Sequence[Cell], ledger: Ledger) -> list[Result]:
    """Run the cells that are not finished, with a progress bar, and save each result at once.

    The result of a run that diverges is ``{"diverged": epochs}``.

    Args:
        todo: The cells.
        ledger: The finished cells, to which results are added.

    Returns:
        The result of each cell, in order.

    Raises:
        ValueError: If a run raises it; earlier results are kept.
        OSError: If the ledger cannot be written.
    """
    missing = [cell for cell in todo if ledger.find(cell.key) is None]
    with show_progress() as bar:
        row = bar.add_task("fine-tuning", total=sum(cell.cost for cell in missing))
        for cell in missing:
            if ledger.find(cell.key) is not None:
                continue  # the same cell twice
            try:
                result = cell.run(lambda count: bar.advance(row, count))
            except DivergedError as error:
                result = {"diverged": error.epochs}
            ledger.add(cell.key, result)
    return [result for cell in todo if (result := ledger.find(cell.key)) is not None]


def choose(runs: Mapping[Name, Sequence[Result]], score: Callable[[Result], float]) -> Name | None:
    """Choose the setting with the highest mean score on validation; of equal ones, the first.

    Args:
        runs: Results of each setting, one for each seed.
        score: Score of a result on validation.

    Returns:
        The setting; ``None`` if a seed diverged in all of them.
    """
    finite = [name for name, found in runs.items() if not diverged(found)]
    return max(
        finite,
        key=lambda name: float(np.mean([score(found) for found in runs[name]])),
        default=None,
    )


def diverged(runs: Iterable[Result]) -> bool:
    """Return whether at least one run diverged."""
    return any("diverged" in result for result in runs)


def check_converged(owner: str, results: Sequence[Result], where: str = "") -> None:
    """Check that not every run diverged.

    Args:
        owner: Name of the learning rate, for the message.
        results: Results of all runs.
        where: Text that is added to the message.

    Raises:
        ValueError: If every run diverged.
    """
    if results and all("diverged" in result for result in results):
        raise ValueError(
            f"{owner} must keep a network finite, got {len(results)} runs that all diverged; "
            f"lower it{where}"
        )


@dataclass(frozen=True)
class Sheet:
    """A table of results.

    Attributes:
        title: Title above the table.
        headings: Headings of the columns; the first column is left-aligned.
        rows: Cells as text.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]

    def to_rich(self) -> Table:
        """Lay out the table for a terminal."""
        from rich import box
        from rich.table import Table

        table = Table(title=self.title, title_justify="left", box=box.SIMPLE, padding=0)
        for place, heading in enumerate(self.headings):
            justify = "left" if place == 0 else "right"
            width = max(len(row[place]) for row in self.rows)
            table.add_column(heading, justify=justify, overflow="fold", min_width=place and width)
        for row in self.rows:
            table.add_row(*row)
        return table

    def to_markdown(self) -> str:
        """Lay out the table as Markdown."""
        rule = ["---", *["---:"] * (len(self.headings) - 1)]
        lines = [f"| {' | '.join(row)} |" for row in (self.headings, rule, *self.rows)]
        return f"**{self.title}**\n\n" + "\n".join(lines)


def write_tables(
    folder: Path, sheets: Sequence[Sheet], rows: Sequence[object], notes: Sequence[str]
) -> None:
    """Write ``table.md`` and ``table.json``.

    Args:
        folder: The folder.
        sheets: Tables for Markdown.
        rows: Rows for JSON.
        notes: Text below the tables.

    Raises:
        OSError: If a file cannot be written.
    """
    markdown = "\n\n".join([*(sheet.to_markdown() for sheet in sheets), *notes]) + "\n"
    content = json.dumps({"rows": rows, "notes": list(notes)}, indent=1) + "\n"
    write_bytes(folder / "table.json", content.encode())
    write_bytes(folder / "table.md", markdown.encode())

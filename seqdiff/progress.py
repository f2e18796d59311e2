"""Progress on standard error: bars, or lines where it is no terminal."""

from __future__ import annotations

import sys
import time
from datetime import timedelta
from importlib.util import find_spec
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, ProgressColumn, TaskID

_SECONDS = 30.0  # between two lines


class Bar(Progress):
    """A bar on standard error that disappears after an error, so that its one line stands alone.

    In a notebook the bar is a widget. Without ipywidgets, or if standard error is no terminal, as
    in a batch job, a line every 30 seconds takes the place of the bar.

    Args:
        columns: Columns of rich.
        disable: Show nothing.
        early: Write the first line at the first update; by default after 30 seconds, so that short
            commands write none.
    """

    def __init__(
        self, *columns: str | ProgressColumn, disable: bool = False, early: bool = False
    ) -> None:
        console = Console(stderr=True)
        widget = console.is_jupyter and find_spec("ipywidgets") is not None
        self._lines = not (disable or widget or (console.is_terminal and not console.is_jupyter))
        self._due = 0.0 if early else time.monotonic() + _SECONDS
        self._said = ""
        super().__init__(
            *columns,
            console=console,
            disable=disable or self._lines,
            speed_estimate_period=20 * _SECONDS if self._lines else _SECONDS,
        )

    def update(self, task_id: TaskID, **changes: Any) -> None:
        """Change a task, and write a line if one is due."""
        super().update(task_id, **changes)
        if self._lines and time.monotonic() >= self._due:
            self._write(task_id)

    def advance(self, task_id: TaskID, advance: float | int = 1) -> None:
        """Advance a task, and write a line if one is due."""
        super().advance(task_id, advance)
        if self._lines and time.monotonic() >= self._due:
            self._write(task_id)

    def stop(self) -> None:
        """Stop the bar; if there were lines, write a last one for each task."""
        super().stop()
        if self._said:
            for task in self.tasks:
                self._write(task.id)

    def _write(self, task_id: TaskID) -> None:
        self._due = time.monotonic() + _SECONDS
        task = self._tasks[task_id]
        parts = [f"{task.description}: {task.completed:,.0f}"]
        parts[0] += "" if task.total is None else f" of {task.total:,.0f}"
        if task.fields.get("metrics"):
            parts.append(task.fields["metrics"])
        if task.time_remaining and not task.finished:
            parts.append(f"{timedelta(seconds=round(task.time_remaining))} left")
        line = "  ".join(parts)
        if line != self._said:
            print(line, file=sys.stderr, flush=True)
            self._said = line

    def discard(self) -> None:
        """Remove the bar."""
        self.live.transient = True
        self.live.stop()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        """Stop, or discard the bar after an error."""
        if exc_type is None:
            self.stop()
        else:
            self.discard()


def progress() -> Bar:
    """Make a bar with counts and times."""
    return Bar(*Bar.get_default_columns(), MofNCompleteColumn())

"""Progress bars on standard error that disappear after an error."""

from __future__ import annotations

from importlib.util import find_spec
from types import TracebackType

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, ProgressColumn


class Bar(Progress):
    """A bar on standard error that disappears after an error, so that its one line stands alone.

    In a notebook the bar is a widget; without ipywidgets there is none.

    Args:
        columns: Columns of rich.
        disable: Show nothing.
    """

    def __init__(self, *columns: str | ProgressColumn, disable: bool = False) -> None:
        console = Console(stderr=True)
        missing = console.is_jupyter and find_spec("ipywidgets") is None
        super().__init__(*columns, console=console, disable=disable or missing)

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

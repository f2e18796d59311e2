"""Progress bars that an error takes away."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import Progress, ProgressColumn


class Bar(Progress):
    """A bar on standard error that an error takes away, so that its one line stands alone.

    Args:
        columns: What it shows.
        disable: Show nothing.
    """

    def __init__(self, *columns: str | ProgressColumn, disable: bool = False) -> None:
        super().__init__(*columns, console=Console(stderr=True), disable=disable)

    def discard(self) -> None:
        """Take the bar away."""
        self.live.transient = True
        self.live.stop()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        """Stop, or discard after an error."""
        if exc_type is None:
            self.stop()
        else:
            self.discard()

"""Jobs of the page: threads that take turns step by step, report events, and can be stopped."""

from __future__ import annotations

import secrets
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from seqdiff.cells import describe_error
from seqdiff.run import Engine, Shard

if TYPE_CHECKING:
    import numpy as np

_MOST = 16  # unfinished jobs
_EXPECTED = (ValueError, TypeError, OSError, ArithmeticError)

Event = dict[str, Any]


class Stopped(Exception):
    """The user has stopped the job."""


class Turns:
    """Lets one thread at a time use the network, in the order in which they ask."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._last = self._serving = 0

    def __enter__(self) -> None:
        """Wait for a turn."""
        with self._condition:
            ticket, self._last = self._last, self._last + 1
            self._condition.wait_for(lambda: self._serving == ticket)

    def __exit__(self, *_: object) -> None:
        """End the turn."""
        with self._condition:
            self._serving += 1
            self._condition.notify_all()

    def give_way(self) -> None:
        """Let every thread that is waiting have a turn first."""
        self.__exit__()
        self.__enter__()


class Job:
    """A function that runs in a thread of its own.

    Attributes:
        key: Names the job in addresses of the page.
        events: What it has reported; the last one is done, stopped or error.
        finished: Whether the last event is there.
    """

    def __init__(self, turns: Turns, work: Callable[[Job], Event]) -> None:
        """Start the job.

        Args:
            turns: The jobs that use the same network.
            work: Called with the job; returns the content of the last event.
        """
        self.key = secrets.token_urlsafe(8)
        self.events: list[Event] = []
        self._stop = threading.Event()
        self._turns = turns
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._thread.start()

    @property
    def finished(self) -> bool:
        """Whether the last event is there."""
        return bool(self.events) and self.events[-1]["kind"] in ("done", "stopped", "error")

    def stop(self) -> None:
        """End the job after its present step."""
        self._stop.set()

    def wait(self) -> None:
        """Wait until the job has ended."""
        self._thread.join()

    def step(self) -> None:
        """Let other jobs have a turn; to be called between steps.

        Raises:
            Stopped: If the user has stopped the job.
        """
        self._turns.give_way()
        if self._stop.is_set():
            raise Stopped

    def _run(self, work: Callable[[Job], Event]) -> None:
        try:
            with self._turns:
                last = {"kind": "done", **work(self)}
        except Stopped:
            last = {"kind": "stopped"}
        except Exception as error:
            if not isinstance(error, _EXPECTED):
                traceback.print_exc(file=sys.stderr)
            last = {"kind": "error", "error": describe(error)}
        self.events.append(last)


def describe(error: Exception) -> str:
    """Describe an error in one line."""
    return " ".join(str(error).split()) or describe_error(error)


class Jobs:
    """The jobs that are not yet finished, or whose events have not been read to the end.

    Attributes:
        turns: Those of the network that all jobs use.
        closed: Whether ``stop`` was called.
    """

    def __init__(self) -> None:
        self.turns, self.closed = Turns(), False
        self._known: dict[str, Job] = {}
        self._running: list[Job] = []

    def start(self, work: Callable[[Job], Event]) -> Job:
        """Start a job.

        Raises:
            ValueError: If there are too many.
        """
        self._running = [job for job in self._running if not job.finished]
        if len(self._running) >= _MOST:
            raise ValueError(f"playground must have at most {_MOST} jobs at a time; stop one")
        job = Job(self.turns, work)
        self._known[job.key] = job
        self._running.append(job)
        return job

    def find(self, key: str) -> Job:
        """Find a job.

        Raises:
            ValueError: If there is none.
        """
        if key not in self._known:
            raise ValueError(f"playground has no job {key!r}; start it again")
        return self._known[key]

    @contextmanager
    def reading(self, key: str) -> Iterator[Job]:
        """Read the events of a job, which is stopped and forgotten afterwards.

        Raises:
            ValueError: If there is none.
        """
        job = self.find(key)
        try:
            yield job
        finally:
            job.stop()
            self._known.pop(key, None)

    def stop(self) -> None:
        """Stop all jobs."""
        self.closed = True
        for job in self._running:
            job.stop()

    def wait(self) -> None:
        """Wait until all jobs have ended; Python must not exit while one is in a kernel."""
        for job in self._running:
            job.wait()


class JobEngine(Engine):
    """Computes the shards of a job: reports the percentage done, without a progress bar."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self._job = job

    def map(
        self,
        title: str,
        work: Callable[[Any, Any, Callable[[float], None]], dict[str, np.ndarray]],
        run: Any,
        shards: Iterable[Shard],
        total: int,
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yield the result of each shard, see ``Engine.map``."""
        done, told = 0, -1

        def show(rows: float) -> None:
            nonlocal told
            self._job.step()
            percent = round(100 * (done + rows) / total)
            if percent != told:
                self._job.events.append({"kind": "progress", "percent": percent})
                told = percent

        for shard in shards:
            result = work(run, shard.content, show)
            done += shard.rows
            show(0)
            yield result

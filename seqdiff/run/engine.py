"""Engines compute the shards of a command, in this process or on workers of Ray.

A command divides its rows into shards of whole batches, and an engine calls one function on each of
them. Batches, noise and the number of threads are those of a single process, so results are equal
to the last bit whatever the number of workers, of failures and of interruptions. Importing this
module imports nothing slow.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from weakref import WeakSet

from seqdiff.cells import describe_error, say
from seqdiff.checks import check_count
from seqdiff.extras import require_extra
from seqdiff.files import check_folder, parse_json, replacing, write_bytes
from seqdiff.progress import progress

if TYPE_CHECKING:
    import numpy as np
    import torch

    from seqdiff.run.directory import Trained

    Arrays = dict[str, np.ndarray]
    Work = Callable[[Any, Any, Callable[[float], None]], Arrays]

MANIFEST = "manifest.json"
_MOST_DEATHS = 3
_SECONDS_BETWEEN_SAVES = 10.0
_SECONDS_TO_ANSWER = 10


class Shard(NamedTuple):
    """A part of the work.

    Attributes:
        rows: Number of its rows, for the progress bar.
        content: The argument of the work. Ray needs to pickle it.
    """

    rows: int
    content: Any


class FinishedShards:
    """Finished shards in files beside the output, from which the same command continues."""

    def __init__(
        self, command: str, folder: Path, manifest: Callable[[], Mapping[str, str]]
    ) -> None:
        """Find what an interrupted command left.

        Args:
            command: Name of the command, for messages.
            folder: Folder of the files; it may be missing.
            manifest: Describes the work; called if there are files to compare or to write.

        Raises:
            ValueError: If finished shards are those of other work.
        """
        self.command, self.folder = command, folder
        self._manifest = cache(manifest)
        self._places: dict[int, Path] = {}
        self._open = lru_cache(1)(_load)
        if (folder / MANIFEST).is_file():
            _compare(command, folder, self._manifest())
            for path in folder.glob("*.npz"):
                self._places |= dict.fromkeys(_numbers(path), path)

    def has(self, number: int) -> bool:
        """Tell whether a shard is finished."""
        return number in self._places

    def has_any(self) -> bool:
        """Tell whether any shard is finished."""
        return bool(self._places)

    def read(self, number: int) -> Arrays:
        """Read a finished shard."""
        return self._open(self._places[number])[number]

    def save(self, results: Mapping[int, Arrays]) -> None:
        """Write a file with the results of some shards, and before the first one the manifest."""
        import numpy as np

        if not (self.folder / MANIFEST).is_file():
            self.folder.mkdir(parents=True, exist_ok=True)
            content = json.dumps(self._manifest(), indent=1).encode()
            write_bytes(self.folder / MANIFEST, content)
        arrays = {
            f"{number}/{name}": value
            for number, result in results.items()
            for name, value in result.items()
        }
        path = self.folder / f"{min(results):08}.npz"
        with replacing(path) as temporary:
            np.savez(temporary, **arrays)  # pyright: ignore[reportArgumentType]
        self._places |= dict.fromkeys(results, path)

    def remove(self) -> None:
        """Remove all files."""
        if self.folder.is_dir():
            shutil.rmtree(self.folder)


def _numbers(path: Path) -> set[int]:
    """List the numbers of the shards in a file."""
    import numpy as np

    with np.load(path, allow_pickle=False) as arrays:
        return {int(key.partition("/")[0]) for key in arrays.files}


def _load(path: Path) -> dict[int, Arrays]:
    """Read the results of a file by the numbers of their shards."""
    import numpy as np

    found: dict[int, Arrays] = {}
    with np.load(path, allow_pickle=False) as arrays:
        for key, value in arrays.items():
            number, _, name = key.partition("/")
            found.setdefault(int(number), {})[name] = value
    return found


class Engine:
    """Computes shards in this process.

    With ``finished`` it writes shards to files every ten seconds and when it is interrupted, so
    that short commands leave none. They are removed when the context ends without an error.
    """

    def __init__(self, finished: FinishedShards | None = None) -> None:
        """Begin with the first shard.

        Args:
            finished: Finished shards.
        """
        self._finished, self._next = finished, 0
        self._computed, self._seconds = 0, 0.0
        self._unsaved: dict[int, Arrays] = {}
        self._begun: WeakSet[Generator[Arrays]] = WeakSet()  # they refer to the engine
        self._due = time.monotonic() + _SECONDS_BETWEEN_SAVES

    def map(
        self, title: str, work: Work, run: Trained, shards: Iterable[Shard], total: int
    ) -> Iterator[Arrays]:
        """Compute the result of each shard, in order, under a progress bar with the rate.

        The end of the context ends the iterator too, and so removes the bar and stops the workers,
        if an error or a signal came while the caller was using a result.

        Args:
            title: Title of the bar.
            work: Called with the run, the content of a shard, and a function that takes the number
                of the shard's rows done so far. Its result is arrays by name.
            run: The model.
            shards: The shards, which do not depend on the engine.
            total: Number of rows of all shards.
        """
        results = self._compute(title, work, run, shards, total)
        self._begun.add(results)
        return results

    def _compute(
        self, title: str, work: Work, run: Trained, shards: Iterable[Shard], total: int
    ) -> Generator[Arrays]:
        """Yield what ``map`` returns."""
        with progress() as bar:
            task, done, found, began = bar.add_task(title, total=total), 0, 0, time.monotonic()

            def show(rows: int | float) -> None:
                rate = (done + rows - found) / max(time.monotonic() - began, 1e-9)
                bar.update(task, completed=done + rows, description=f"{title}, {rate:,.1f}/s")

            for shard in shards:
                number, self._next = self._next, self._next + 1
                if self._finished is not None and self._finished.has(number):
                    result = self._finished.read(number)
                    found += shard.rows
                else:
                    started = time.monotonic()
                    result = work(run, shard.content, show)
                    self._count(shard.rows, time.monotonic() - started)
                    self._keep(number, result)
                done += shard.rows
                show(0)
                yield result

    @property
    def rate(self) -> float:
        """Rows computed per second; rows of shards that were found finished do not count."""
        return self._computed / max(self._seconds, 1e-9)

    def _count(self, rows: int, seconds: float) -> None:
        """Add to what ``rate`` is computed from."""
        self._computed += rows
        self._seconds += seconds

    def _keep(self, number: int, result: Arrays) -> None:
        """Remember a result, and write those of the last ten seconds if it is time."""
        if self._finished is None:
            return
        self._unsaved[number] = result
        if time.monotonic() >= self._due:
            self._save()

    def _save(self) -> None:
        if self._finished is not None and self._unsaved:
            self._finished.save(self._unsaved)
        self._unsaved = {}
        self._due = time.monotonic() + _SECONDS_BETWEEN_SAVES

    def _end(self) -> None:
        """End the iterators of ``map``."""
        with ExitStack() as stack:
            for results in self._begun:
                stack.callback(results.close)

    def device_type(self, run: Trained) -> str:
        """Return the type of the device that computes."""
        return next(run.denoiser.parameters()).device.type

    def __enter__(self) -> Engine:
        """Begin."""
        return self

    def __exit__(self, *error: object) -> None:
        """Remove the finished shards after success, and keep them after an interruption.

        Raises:
            KeyboardInterrupt: With a hint, after an interruption.
        """
        try:
            self._end()
        finally:
            if error[0] is KeyboardInterrupt and self._finished is not None:
                self._save()
                if self._finished.has_any():
                    raise KeyboardInterrupt("to continue, repeat the command") from None
        if self._finished is not None and not isinstance(error[1], OSError | KeyboardInterrupt):
            self._finished.remove()


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Where a command computes.

    Attributes:
        engine: local computes in this process; ray on workers of Ray, with the same results.
        address: Cluster of Ray, HOST:PORT, or auto for the one of this machine; default: workers on
            this machine only.
        num_workers: Workers of Ray; default: one for every OMP_NUM_THREADS cores.
    """

    engine: Literal["local", "ray"] = "local"
    address: str | None = None
    num_workers: int | None = None

    def check(self, command: str, out: Path | None, seed: int | None = 0) -> None:
        """Check the options before slow work.

        Args:
            command: Name of the command, for messages.
            out: The file that it writes.
            seed: Its seed; ``None`` for one that is drawn.

        Raises:
            ValueError: If options contradict each other, or Ray is not installed.
            OSError: If the folder of finished shards cannot be written.
        """
        if self.engine == "local":
            for name in ("address", "num_workers"):
                if (value := getattr(self, name)) is not None:
                    raise ValueError(
                        f"{command}.{name} must go with --engine ray, got {value} without; add it"
                    )
            return
        if self.num_workers is not None:
            check_count(f"{command}.num_workers", self.num_workers)
        if out is None:
            raise ValueError(
                f"{command}.out must be given with --engine ray, which keeps finished shards "
                "beside it, got none; add --out"
            )
        if seed is None:
            raise ValueError(
                f"{command}.seed must be given with --engine ray, so that the same command "
                "continues finished shards, got none; add --seed 0"
            )
        require_extra("ray", f"{command} --engine ray", "ray")
        check_folder(f"{command}.out", _folder(out))

    def place(self, command: str, device: str | None) -> torch.device:
        """Choose the device that a run is loaded on: with Ray the CPU, until it is on a worker.

        Args:
            command: Name of the command, for messages.
            device: Name in torch; ``None`` chooses a GPU if there is one.

        Raises:
            ValueError: If there is no such device.
        """
        import torch

        from seqdiff.run.directory import choose_device

        if self.engine == "local":
            return choose_device(device)
        if device not in (None, "cpu", "cuda"):
            raise ValueError(
                f"{command}.device must be cpu or cuda with --engine ray, got {device!r}; Ray "
                "gives each worker a GPU of its own"
            )
        return torch.device("cpu")

    def start(
        self,
        command: str,
        run: Trained,
        out: Path | None,
        device: str | None,
        files: Mapping[str, Path | Sequence[Path] | None],
        options: Mapping[str, object],
    ) -> Engine:
        """Build the engine, a context, and find what an interrupted command finished.

        Args:
            command: Name of the command.
            run: The run.
            out: The file that the command writes, or its parts.
            device: The device of the command.
            files: Input files by their options, which may have several.
            options: All options on which results depend.

        Raises:
            ValueError: If finished shards are those of another command.
        """
        if out is None:
            return Engine()
        import torch

        from seqdiff.run.directory import choose_device

        device, threads = device or choose_device(None).type, torch.get_num_threads()

        def manifest() -> dict[str, str]:
            about = {
                **options,
                "command": command,
                "version": version("seqdiff"),
                "model": run.digest,
                "device": device,
                "threads": threads,
                **{name: _digest(path) for name, path in files.items() if path is not None},
            }
            return {name: str(value) for name, value in about.items()}

        finished = FinishedShards(command, _folder(out), manifest)
        if self.engine == "local":
            return Engine(finished)
        return RayEngine(finished, device, threads, self.address, self.num_workers)


def _folder(out: Path) -> Path:
    return out.with_name(out.name.replace("*", "") + ".shards")


def _digest(path: Path | Sequence[Path]) -> str:
    """Hash a file, the files of a folder, or several of them."""
    import hashlib

    if not isinstance(path, Path):
        return " ".join(map(_digest, path))
    if path.is_dir():
        return " ".join(f"{file.name} {_digest(file)}" for file in sorted(path.iterdir()))
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "blake2b").hexdigest()[:40]


def _compare(command: str, folder: Path, about: Mapping[str, str]) -> None:
    """Compare the description of the work with that of finished shards.

    Raises:
        ValueError: If finished shards are those of other work.
    """
    path = folder / MANIFEST
    try:
        found = dict(parse_json(path.read_bytes()))
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"{path} must describe the command that began {folder}, got: {error}; start again: "
            f"rm -r {folder}"
        ) from error
    for name in [*about, *found]:
        if found.get(name) != about.get(name):
            raise ValueError(
                f"{command}.out must be continued by the command that began it, got the "
                f"{name} {about.get(name)}, and {found.get(name)} in {path}; repeat that "
                f"command, or start again: rm -r {folder}"
            )


@dataclass
class RayEngine(Engine):
    """Computes shards on workers of Ray, and keeps each finished one in a file.

    A worker that dies is replaced, and its shard is computed again. The folder is removed when the
    context ends without an error.

    Attributes:
        finished: Finished shards.
        device: ``cpu``, or ``cuda`` for a GPU for each worker.
        threads: Threads of each worker.
        address: Address of a cluster; ``None`` starts workers on this machine.
        num_workers: Number of workers.
    """

    finished: FinishedShards
    device: str
    threads: int
    address: str | None
    num_workers: int | None

    def __post_init__(self) -> None:
        """Begin with the first shard."""
        super().__init__(self.finished)
        self._owns_ray = False
        self._on_term: Any = signal.SIG_DFL

    def device_type(self, run: Trained) -> str:
        """Return the type of the device of the workers."""
        return self.device

    def _compute(
        self, title: str, work: Work, run: Trained, shards: Iterable[Shard], total: int
    ) -> Generator[Arrays]:
        """Yield the result of each shard, in order; see ``Engine.map``.

        Raises:
            ChildProcessError: If workers die again and again.
            ConnectionError: If there is no cluster at the address.
        """
        with _Status(title, total) as status:
            crew = _Crew(self, work, run, status)
            try:
                first = self._next
                for shard in shards:
                    number, self._next = self._next, self._next + 1
                    if self.finished.has(number):
                        status.finish(shard.rows, computed=False)
                    else:
                        crew.submit(number, shard)
                    while first < self._next and self.finished.has(first):
                        yield self.finished.read(first)
                        first += 1
                while first < self._next:
                    while not self.finished.has(first):
                        crew.wait()
                    yield self.finished.read(first)
                    first += 1
            finally:
                crew.stop()
                self._count(*status.computed)

    def connect(self) -> tuple[Any, int]:
        """Connect to the cluster, or start one on this machine.

        Returns:
            The module of Ray, and the number of workers.

        Raises:
            ConnectionError: If there is no cluster at the address.
        """
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        ray: Any = require_extra("ray", f"{self.finished.command} --engine ray", "ray")
        workers = self.num_workers
        if not ray.is_initialized():
            before = signal.getsignal(signal.SIGTERM)
            quiet = {"log_to_driver": False, "logging_level": "ERROR"}
            if self.address is None:
                cores = os.cpu_count() or 1
                workers = workers or max(1, cores // self.threads)
                if workers * self.threads > cores:
                    say(
                        f"seqdiff: warning: {workers} workers of {self.threads} threads on "
                        f"{cores} cores slow each other down; set OMP_NUM_THREADS=1",
                        error=True,
                    )
                slots = workers * self.threads
                ray.init("local", num_cpus=slots, include_dashboard=False, **quiet)
            else:
                try:
                    _knock(self.address)
                    ray.init(self.address, **quiet)
                except (OSError, RuntimeError) as error:
                    raise ConnectionError(
                        f"{self.finished.command}.address must be a running cluster of Ray, got "
                        f"{self.address} ({describe_error(error)}); start one, and if it asks "
                        "for a token, set RAY_AUTH_MODE=token"
                    ) from error
            self._owns_ray = True
            # Ray's own handler aborts the process; batch systems send SIGTERM at the time limit.
            self._on_term = before
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, signal.default_int_handler)
        if workers is None:
            found = ray.cluster_resources()
            slots = (
                found.get("GPU", 0)
                if self.device == "cuda"
                else found.get("CPU", 0) // self.threads
            )
            workers = max(1, int(slots))
        return ray, workers

    def __exit__(self, *error: object) -> None:
        """Disconnect from Ray; after success remove the finished shards.

        Raises:
            KeyboardInterrupt: With a hint, after an interruption.
        """
        try:
            self._end()  # without workers of this session, Ray would start another to stop them
        finally:
            try:
                self._disconnect()
            finally:
                if error[0] is KeyboardInterrupt:
                    raise KeyboardInterrupt("to continue, repeat the command") from None
        if error[0] is None:
            self.finished.remove()

    def _disconnect(self) -> None:
        """Shut down Ray if this engine started it, and restore the handler of SIGTERM."""
        if not self._owns_ray:
            return
        try:
            require_extra("ray", self.finished.command, "ray").shutdown()
        finally:
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, self._on_term)


def _knock(address: str) -> None:
    """Raise ``OSError`` if nobody listens at HOST:PORT, where Ray would wait for minutes."""
    import socket

    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=_SECONDS_TO_ANSWER).close()


class _Worker:
    """An actor, which holds the model."""

    def prepare(self, work: Work, run: Trained, device: str, threads: int, expected: str) -> None:
        """Take the work and the model.

        Raises:
            ValueError: If the worker has another version of seqdiff.
        """
        import torch

        if version("seqdiff") != expected:
            raise ValueError(
                f"engine.address must be a cluster whose nodes have seqdiff {expected}, got "
                f"{version('seqdiff')} on one; install the same version everywhere"
            )
        torch.set_num_threads(threads)
        run.denoiser.to(device)
        self._work, self._run = work, run

    def compute(self, content: object) -> Arrays:
        """Compute a shard."""
        return self._work(self._run, content, lambda rows: None)


class _Crew:
    """The workers of one call of ``map``, started with the first unfinished shard."""

    def __init__(self, engine: RayEngine, work: Work, run: Trained, status: _Status) -> None:
        self._engine, self._given, self._status = engine, (work, run), status
        self._ray: Any = None
        self._idle: list[Any] = []
        self._waiting: list[tuple[int, Shard]] = []
        # Each running task, with its worker, and its shard unless it is ``prepare``.
        self._running: dict[Any, tuple[Any, tuple[int, Shard] | None]] = {}
        self._deaths: dict[int | None, int] = {}

    def submit(self, number: int, shard: Shard) -> None:
        """Give a shard to a worker, as soon as there is an idle one."""
        if self._ray is None:
            self._start()
        self._waiting.append((number, shard))
        self._assign()
        while self._waiting:
            self.wait()

    def wait(self) -> None:
        """Wait until a task has ended, and save its result.

        Raises:
            ChildProcessError: If workers die again and again.
            Exception: The error of the work.
        """
        ray = self._ray
        ended, _ = ray.wait(list(self._running), num_returns=1, timeout=1)
        self._status.show(len(self._running) + len(self._idle) - self._unready)
        for task in ended:
            worker, job = self._running.pop(task)
            try:
                result = ray.get(task)
            except ray.exceptions.RayTaskError as error:
                raise error.cause from None
            except ray.exceptions.RayError as error:
                self._replace(worker, job, error)
                continue
            if job is not None:
                self._engine.finished.save({job[0]: result})
                self._status.finish(job[1].rows)
            self._deaths.pop(None if job is None else job[0], None)
            self._idle.append(worker)
        self._assign()

    def stop(self) -> None:
        """Stop the workers."""
        for worker in [*self._idle, *(worker for worker, _ in self._running.values())]:
            self._ray.kill(worker)

    @property
    def _unready(self) -> int:
        return sum(job is None for _, job in self._running.values())

    def _start(self) -> None:
        ray, number = self._engine.connect()
        self._ray = ray
        gpus = 1 if self._engine.device == "cuda" else 0
        self._kind = ray.remote(num_cpus=self._engine.threads, num_gpus=gpus)(_Worker)
        self._stored = [ray.put(value) for value in self._given]
        for _ in range(number):
            self._hire()

    def _hire(self) -> None:
        worker = self._kind.remote()
        engine = self._engine
        about = (engine.device, engine.threads, version("seqdiff"))
        self._running[worker.prepare.remote(*self._stored, *about)] = worker, None

    def _assign(self) -> None:
        while self._idle and self._waiting:
            worker, job = self._idle.pop(), self._waiting.pop(0)
            self._running[worker.compute.remote(job[1].content)] = worker, job

    def _replace(self, worker: Any, job: tuple[int, Shard] | None, error: Exception) -> None:
        """Start another worker in place of a dead one, and queue its shard again."""
        number = None if job is None else job[0]
        self._deaths[number] = self._deaths.get(number, 0) + 1
        if self._deaths[number] == _MOST_DEATHS:
            what = "before its first shard" if number is None else f"on shard {number}"
            raise ChildProcessError(
                f"{self._engine.finished.command} --engine ray must have workers that live, got "
                f"{_MOST_DEATHS} deaths {what} ({str(error).splitlines()[0]}); if the memory is "
                "too small, lower --num-workers or --batch-size"
            )
        again = "" if number is None else f"; shard {number} is computed again"
        say(f"seqdiff: warning: a worker died and is replaced{again}", error=True)
        self._ray.kill(worker)
        if job is not None:
            self._waiting.insert(0, job)
        self._hire()


class _Status:
    """A progress bar with the workers, the shards done and the rate."""

    def __init__(self, title: str, total: int) -> None:
        self._title = title
        self._shards = self._done = self._computed = 0
        self._workers = 0
        self._began = time.monotonic()
        self._bar = progress()
        self._task = self._bar.add_task(title, total=total)

    def __enter__(self) -> _Status:
        """Show the bar."""
        self._bar.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        """Show the last counts, or remove the bar after an error."""
        self._show()
        self._bar.__exit__(*error)

    def finish(self, rows: int, *, computed: bool = True) -> None:
        """Count a shard that was computed, or found."""
        self._shards += 1
        self._done += rows
        self._computed += rows if computed else 0

    @property
    def computed(self) -> tuple[int, float]:
        """Rows that were computed, and the seconds since the start."""
        return self._computed, time.monotonic() - self._began

    def show(self, workers: int) -> None:
        """Show the counts, with the number of workers that are ready."""
        self._workers = workers
        self._show()

    def _show(self) -> None:
        rate = self._computed / (time.monotonic() - self._began)
        text = f"{self._title}: {self._workers} workers, {self._shards} shards, {rate:.1f}/s"
        self._bar.update(self._task, completed=self._done, description=text)

"""Checks shapes at every annotated call while tests run, and finds golden files and real data."""

import functools
import gc
import importlib.metadata
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import jaxtyping
import pytest
import torch
from hypothesis import settings

from tests import shape_checker

# Without a device the Triton kernels run in its interpreter, which must be selected before anything
# imports Triton.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

# The suite starts hundreds of commands, and each looks through all installed packages. Tests that
# install something replace the function where it is used.
importlib.metadata.entry_points = functools.cache(importlib.metadata.entry_points)

# Imports allocate millions of objects that live until the end, which the collector need not visit.
gc.disable()

# Deadlines depend on the load of the machine, and the first example compiles kernels.
settings.register_profile("seqdiff", deadline=None)
settings.load_profile("seqdiff")

# Numba compiles the function itself, so a kernel wrapped by the shape checker would not compile.
_KERNELS = ("cpu", "triton", "suffix_kernels")


def _checked_modules() -> list[str]:
    root = Path(__file__).parents[1]
    files = [
        f for package in ("seqdiff", "genomics", "text") for f in (root / package).rglob("*.py")
    ]
    plain = [
        f
        for f in files
        if f.name != "__init__.py"
        and not f.name.startswith(_KERNELS)
        and f.parent.name != "cpu_simd"
    ]
    return [".".join(f.relative_to(root).with_suffix("").parts) for f in plain]


shape_checker.install(_checked_modules())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the tutorials, which take longest and run in one worker."""
    items.sort(key=lambda item: "test_tutorials" not in item.nodeid)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_sessionfinish() -> None:
    gc.unfreeze()  # else extension modules report leaks at exit


@pytest.fixture(scope="session", autouse=True)
def _signals() -> None:
    """Receive signals that a shell makes its background jobs ignore; some tests send them."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="session", autouse=True)
def own_code() -> None:
    """Allow runs of the tests to name classes of the tests."""
    import seqdiff

    seqdiff.trust_code("tests")


@pytest.fixture(autouse=True)
def _trust_nothing_else(own_code: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what other tests trusted, because printed commands repeat it."""
    from seqdiff.run import trust

    monkeypatch.setattr(trust, "_trusted", {"tests"})


@pytest.fixture(scope="session")
def golden() -> Path:
    """The folder with the outputs of the published networks."""
    return Path(__file__).parent / "golden"


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder with real DNA and text."""
    value = os.environ.get("SEQDIFF_DATA")
    if value is None:
        pytest.skip("SEQDIFF_DATA is not set")
    return Path(value)


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Disable the shape checker, as for users."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)

"""A tiny GPT-2 in a folder, shared by tests that only read it."""

from pathlib import Path

import pytest

from tests.integration.conftest import fails, trained  # noqa: F401  (fixtures)
from tests.text.pretrained.tiny_gpt2 import save_gpt2
from text.evaluation.judge import Judge


@pytest.fixture(scope="session")
def gpt2_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_gpt2(tmp_path_factory.mktemp("gpt2"))


@pytest.fixture(scope="session")
def judge(gpt2_folder: Path) -> Judge:
    return Judge.load("test.model", str(gpt2_folder))

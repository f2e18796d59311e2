"""The optional libraries are imported only where they are used."""

import subprocess
import sys

import pytest

CODE = """
import sys
import seqdiff.data.datamodule  # Lightning brings some of them along where they are installed
before = set(sys.modules)
import text.corpora.datamodule, text.corpora.samples
import text.corpora.published, text.tokenizers.subwords
extra = {"tokenizers", "datasets", "pyarrow", "transformers", "huggingface_hub"}
print(sorted(extra & (set(sys.modules) - before)))
"""
FAST = """
import sys
import text.corpora.documents, text.corpora.samples
print(sorted({"torch", "numpy"} & set(sys.modules)))
"""


def run(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.mark.slow
def test_text_needs_no_extra_to_be_imported() -> None:
    assert run(CODE) == "[]"
    eager = CODE.replace(
        "import text.corpora.datamodule", "import datasets, text.corpora.datamodule"
    )
    assert "'datasets'" in run(eager)


def test_the_command_line_stays_fast() -> None:
    assert run(FAST) == "[]"

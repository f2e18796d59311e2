"""Tokenise a corpus in a process of its own, for ``benchmarks.tokenising``.

The process holds what a command of seqdiff holds before it reads data: processes that it starts
import its main module again, and one that brings PyTorch along would measure that. Run as
``python -m benchmarks.prepare_corpus CORPUS VOCABULARY PROCESSES``; the cache is ``SEQDIFF_CACHE``.
"""

from __future__ import annotations

import sys
from pathlib import Path

from text.corpora import Files, Reading, prepare
from text.tokenizers import ByteTokenizer, GPT2Tokenizer

BYTES = "none"


def main(corpus: str, vocabulary: str, processes: str) -> None:
    """Prepare the lines of a file; the vocabulary is GPT-2's in a folder, or none for bytes."""
    tokenizer = ByteTokenizer() if vocabulary == BYTES else GPT2Tokenizer(vocabulary)
    prepare(Files((Path(corpus),), Reading("line")), tokenizer, num_processes=int(processes))


if __name__ == "__main__":
    main(*sys.argv[1:])

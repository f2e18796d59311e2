"""Tokenises a corpus in a separate process, for ``benchmarks.tokenising``.

The process imports only what a seqdiff command imports before it reads data, because the worker
processes import its main module again, and importing PyTorch would dominate the time. Run as
``python -m benchmarks.prepare_corpus CORPUS VOCABULARY PROCESSES``; ``SEQDIFF_CACHE`` is the cache.
"""

from __future__ import annotations

import sys
from pathlib import Path

from text.corpora import Files, Reading, prepare
from text.tokenizers import ByteTokenizer, GPT2Tokenizer

BYTES = "none"


def main(corpus: str, vocabulary: str, processes: str) -> None:
    """Tokenise the lines of a file with a folder's GPT-2 vocabulary, or as bytes."""
    tokenizer = ByteTokenizer() if vocabulary == BYTES else GPT2Tokenizer(vocabulary)
    prepare(Files((Path(corpus),), Reading("line")), tokenizer, num_processes=int(processes))


if __name__ == "__main__":
    main(*sys.argv[1:])

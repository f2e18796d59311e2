"""``--trace``: keep what a sampler does, for ``sample``; what is slow is imported when needed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from seqdiff.files import check_apart, check_parent

if TYPE_CHECKING:
    from seqdiff.data.tokenizer import Tokenizer
    from seqdiff.samplers import Recorder, Sampler


def check_trace(path: Path, out: Path) -> None:
    """Refuse, before slow work, a file that a trace cannot be written to.

    Args:
        path: Where the trace goes.
        out: Where the sequences go.

    Raises:
        OSError: If it cannot be written.
        ValueError: If its suffix is another than npz, or both are one file.
    """
    if path.suffix != ".npz":
        raise ValueError(f"sample.trace must end in .npz, got {path}; rename it")
    check_apart("sample.trace", path, {"--out": out})
    check_parent("sample.trace", path)


def save_trace(
    path: Path, recorder: Recorder, sampler: Sampler, names: list[str], tokenizer: Tokenizer
) -> None:
    """Write what a recorder kept.

    Args:
        path: Where to.
        recorder: Saw all sequences.
        sampler: What drew them.
        names: Of the sequences.
        tokenizer: Says what each id decodes to.

    Raises:
        OSError: If the file cannot be written.
    """
    import numpy as np

    from seqdiff.samplers.protocol import sampler_name
    from seqdiff.trace import write_trace

    symbols = [tokenizer.decode(np.array([i])) for i in range(tokenizer.vocab_size + 1)]
    name = sampler_name(type(sampler))
    write_trace(path, recorder.trace(sampler=name, names=names, symbols=symbols))

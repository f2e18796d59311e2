"""The corpora of the papers: their location, splits and detokenizers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from seqdiff.data import Split
from seqdiff.extras import require_extra
from seqdiff.files import cache_folder
from seqdiff.pretrained import short, why_offline
from text.corpora.documents import Edges, mend_edges

if TYPE_CHECKING:
    from datasets import Dataset

_ROWS = 1024
# The branch of a data set on the hub that has its parquet files instead of a loading script.
_CONVERTED = "refs/convert/parquet"


@dataclass(frozen=True)
class Slice:
    """Part of a split, as a Python slice of its documents.

    Attributes:
        split: Split on the hub.
        first: Start of the slice; negative counts from the end.
        last: End of the slice, exclusive; ``None`` is the end of the split.
    """

    split: Split
    first: int | None = None
    last: int | None = None


@dataclass(frozen=True)
class Published:
    """A corpus on the hub.

    Attributes:
        hub: Name on the hub.
        config: Name of its configuration on the hub.
        splits: Names of its splits on the hub.
        column: Column that holds the text.
        edges: How to normalise white space at the start and end of a document, see
            ``documents.mend_edges``. The result has the white space of a row on the hub, so that
            copies in all file formats have the same text.
        detokenizer: Name of its detokenizer.
        slices: Our splits that are slices of splits on the hub.
        revision: Revision on the hub.
        zero_shot: Split that published zero-shot perplexities refer to.
    """

    hub: str
    config: str
    splits: dict[Split, str]
    column: str = "text"
    edges: Edges = "kept"
    detokenizer: str = "none"
    slices: dict[Split, Slice] = field(default_factory=dict)
    revision: str = "main"
    zero_shot: Split = "valid"

    def slice(self, split: Split) -> Slice | None:
        """Return the documents that make up a split; ``None`` if there is no such split."""
        if split in self.slices:
            return self.slices[split]
        return Slice(split) if split in self.splits else None


_THREE: dict[Split, str] = {"train": "train", "valid": "validation", "test": "test"}
_TWO: dict[Split, str] = {"train": "train", "test": "test"}

PUBLISHED: dict[str, Published] = {
    "lm1b": Published(
        "billion-word-benchmark/lm1b",
        "plain_text",
        _TWO,
        edges="trimmed",
        detokenizer="lm1b",
        revision=_CONVERTED,
        zero_shot="test",
    ),
    # The last 100,000 documents are for validation (Sahoo et al. 2024, arXiv:2406.07524,
    # appendix D).
    "openwebtext": Published(
        "Skylion007/openwebtext",
        "plain_text",
        {"train": "train"},
        slices={"train": Slice("train", None, -100_000), "valid": Slice("train", -100_000, None)},
    ),
    "text8": Published("afmck/text8", "default", _THREE),
    "wikitext-2": Published(
        "Salesforce/wikitext", "wikitext-2-raw-v1", _THREE, edges="line", detokenizer="wikitext"
    ),
    "wikitext-103": Published(
        "Salesforce/wikitext", "wikitext-103-raw-v1", _THREE, edges="line", detokenizer="wikitext"
    ),
    "ptb": Published(
        "ptb-text-only/ptb_text_only",
        "penn_treebank",
        _THREE,
        column="sentence",
        edges="trimmed",
        detokenizer="ptb",
        revision=_CONVERTED,
    ),
    "lambada": Published(
        "EleutherAI/lambada_openai",
        "default",
        {"test": "test"},
        edges="trimmed",
        detokenizer="lambada",
        zero_shot="test",
    ),
    "ag_news": Published("fancyzhx/ag_news", "default", _TWO, edges="trimmed", zero_shot="test"),
    **{
        name: Published(
            "armanc/scientific_papers",
            name,
            _THREE,
            column="article",
            edges="trimmed",
            detokenizer="scientific_papers",
            revision=_CONVERTED,
        )
        for name in ("arxiv", "pubmed")
    },
}


def local_copy(name: str) -> Path:
    """Return the folder in which a copy of a published corpus is looked up before the hub."""
    return cache_folder() / "corpora" / name


def load_from_hub(name: str, split: Split) -> Dataset:
    """Open a split through ``datasets``, which downloads it once.

    Args:
        name: Key of ``PUBLISHED``.
        split: One of its ``splits``.

    Raises:
        ValueError: If there is no local copy and the hub cannot be reached (the message gives
            the local path), or the column does not exist.
    """
    facts, place = PUBLISHED[name], local_copy(name)
    datasets = require_extra("datasets", f"corpus {name}", "text")
    reason = None if Path(facts.hub).is_dir() else why_offline()
    datasets.disable_progress_bars()
    try:
        with _only_what_is_here(name) if reason else nullcontext():
            opened = datasets.load_dataset(
                facts.hub, facts.config, split=facts.splits[split], revision=facts.revision
            )
    except Exception as error:  # the libraries that define these errors are not dependencies
        raise ValueError(
            f"data.{split}: cannot load the corpus {name!r} ({facts.hub}) from the hub "
            f"({reason or short(error)}); copy {split}*.jsonl, .parquet or .txt into {place}"
        ) from error
    if facts.column not in opened.column_names:
        raise ValueError(
            f"{facts.hub} must have the column {facts.column!r}, got "
            f"{', '.join(opened.column_names)}; copy {split}*.jsonl into {place}"
        )
    return opened


def hub_documents(opened: Dataset, column: str, edges: Edges) -> Iterator[str]:
    """Stream the documents of an opened split, except those without a visible character."""
    texts = opened.select_columns([column])
    for first in range(0, len(texts), _ROWS):
        for text in texts[first : first + _ROWS][column]:
            if text and text.strip():
                yield mend_edges(text, edges)


@contextmanager
def _only_what_is_here(owner: str) -> Iterator[None]:
    """Keep the clients of the hub offline, as if HF_HUB_OFFLINE had been set before import."""
    places = [
        require_extra("huggingface_hub.constants", owner, "text"),
        require_extra("datasets.config", owner, "text"),
    ]
    before = [place.HF_HUB_OFFLINE for place in places]
    try:
        for place in places:
            vars(place)["HF_HUB_OFFLINE"] = True
        yield
    finally:
        for place, value in zip(places, before, strict=True):
            vars(place)["HF_HUB_OFFLINE"] = value

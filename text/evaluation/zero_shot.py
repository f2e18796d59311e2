"""The seven test sets with published zero-shot perplexities, as a ``seqdiff.data.Suite``.

Source of the sets and the numbers: Sahoo et al. 2024, arXiv:2406.07524, section 5.1. The models
were trained on OpenWebText, so none of the sets is in their training data.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from seqdiff.data import MissingSet, SequenceDataModule, Split, SuiteSet, UnfitSet
from seqdiff.pretrained import short, why_offline
from text.corpora import (
    DETOKENIZERS,
    PUBLISHED,
    SUFFIXES,
    DocumentRows,
    Files,
    Layout,
    Part,
    Reading,
    TextDataModule,
    UnspellableError,
    WrappedRows,
    load_from_hub,
    local_copy,
    prepare,
    published_part,
)
from text.tokenizers import GPT2Tokenizer

MODELS = ("AR", "SEDD", "MDLM")
_LENGTH = 1024


@dataclass(frozen=True)
class _Set:
    """A set, the corpora that have its text, and its published perplexities.

    If no corpus has a local copy, the first one is downloaded.
    """

    name: str
    corpora: tuple[str, ...]
    perplexities: tuple[float, float, float]

    @property
    def published(self) -> dict[str, float]:
        """Published perplexity of each model."""
        return dict(zip(MODELS, self.perplexities, strict=True))

    @property
    def split(self) -> Split:
        """Split that the published perplexities refer to."""
        return PUBLISHED[self.corpora[0]].zero_shot

    def spellings(self, split: Split) -> list[str]:
        """List the names, without suffixes, that a copy of a split may have."""
        words = ("valid", "validation") if split == "valid" else (split,)
        names = dict.fromkeys((*self.corpora, self.name))
        return [f"{name}{join}{word}" for word in words for name in names for join in "._-"]


SETS = (
    _Set("ptb", ("ptb",), (82.05, 100.09, 95.26)),
    # WikiText-2 and WikiText-103 have the same validation and test articles.
    _Set("wikitext", ("wikitext-103", "wikitext-2"), (25.75, 34.28, 32.83)),
    _Set("lm1b", ("lm1b",), (51.25, 68.20, 67.01)),
    _Set("lambada", ("lambada",), (51.28, 49.86, 47.52)),
    _Set("ag_news", ("ag_news",), (52.09, 62.09, 61.15)),
    _Set("pubmed", ("pubmed",), (49.01, 44.53, 41.89)),
    _Set("arxiv", ("arxiv",), (41.73, 38.48, 37.37)),
)


class ZeroShot:
    """The suite of zero-shot perplexities, see ``seqdiff.data.Suite``.

    Documents are detokenized by the rules of their corpora. They are cut into rows in the same way
    as the training data of the run.
    """

    models = MODELS
    unit = "byte"

    def find(
        self, data: SequenceDataModule, folder: Path | None
    ) -> tuple[list[SuiteSet | UnfitSet], list[MissingSet]]:
        """Tokenize the available sets; sets that cannot be encoded are reported and skipped.

        Args:
            data: Data module of the run.
            folder: Folder with copies such as ``ptb.valid.txt`` or ``lambada_test.jsonl.gz``. In a
                .txt file, each line is a document. If ``None``, sets are read from the cache folder
                or the hub.

        Raises:
            ValueError: If the data is not text, a set has two copies, or a copy is invalid.
        """
        checked = _text(data)
        found: list[SuiteSet | UnfitSet] = []
        missing: list[MissingSet] = []
        for wanted in SETS:
            at_hand = _from_folder(wanted, folder) if folder else _from_corpora(wanted)
            if isinstance(at_hand, MissingSet):
                missing.append(at_hand)
                continue
            try:
                found.append(_open(wanted, *at_hand, checked))
            except UnspellableError as error:
                _, origin = at_hand
                found.append(UnfitSet(wanted.name, origin, str(error), wanted.published))
        return found, missing

    def notes(self, data: SequenceDataModule) -> tuple[str, ...]:
        """Describe how rows are cut, which tokens count, and which numbers are not comparable."""
        text = _text(data)
        published = (
            f"{', '.join(MODELS)}: published perplexities per GPT-2 token of models trained on "
            f"OpenWebText, on wrapped rows of {_LENGTH:,} tokens; AR is exact, SEDD is a bound, "
            "and MDLM uses the convention mdlm"
        )
        return (*text.counting, published, *_differences(text), _EDGES, _BYTES)


_EDGES = (
    "documents are trimmed (in WikiText they keep their line break) and then detokenized; empty "
    "documents are left out"
)
_BYTES = (
    "bits/byte is relative to the bytes of the detokenized text; BOS, EOS and separators add bits "
    "but no bytes; it is empty for sets whose documents were cut or have text without a token"
)


def _differences(data: TextDataModule) -> tuple[str, ...]:
    if data.tokenizer.fingerprint != GPT2Tokenizer().fingerprint:
        return (
            f"this run uses {data.token_name}s by {type(data.tokenizer).__name__} instead of GPT-2 "
            "tokens, so its perplexity is NOT comparable with the published ones; compare runs by "
            "bits/byte",
        )
    if not data.wrap or data.length != _LENGTH:
        return ("this run's rows differ from the published ones, which affects the perplexity",)
    return ()


def _text(data: SequenceDataModule) -> TextDataModule:
    if isinstance(data, TextDataModule):
        return data
    raise ValueError(
        f"evaluate.suite zero_shot requires a run on text, got a run on {type(data).__name__}; "
        "choose another run"
    )


def _from_folder(wanted: _Set, folder: Path) -> tuple[Part, str] | MissingSet:
    """Find a copy of the published split or else of the other held-out split, and its origin."""
    facts = PUBLISHED[wanted.corpora[0]]
    files = [path for path in sorted(folder.iterdir()) if path.is_file()]
    other: Split = "test" if wanted.split == "valid" else "valid"
    bare = list(dict.fromkeys((wanted.name, *wanted.corpora)))
    for spellings, remark in (
        (wanted.spellings(wanted.split), ""),
        (bare, ""),
        (
            wanted.spellings(other),
            f", split {other}; the published numbers are for split {wanted.split}",
        ),
    ):
        copies = [path for path in files if _stem(path) in spellings]
        if len(copies) > 1:
            raise ValueError(
                f"evaluate.suite_folder must hold one copy of {wanted.name}, got "
                f"{' and '.join(path.name for path in copies)} in {folder}; remove the others"
            )
        if copies:
            files_of = Files((copies[0],), Reading("line", facts.column, facts.edges))
            return Part(files_of, facts.detokenizer), f"{copies[0]}{remark}"
    return MissingSet(wanted.name, str(folder / f"{wanted.name}.{wanted.split}.txt"))


def _stem(path: Path) -> str | None:
    """Return the name without the suffix of its format; ``None`` if the format is unknown."""
    kinds = "|".join(re.escape(suffix) for suffix in SUFFIXES)
    match = re.fullmatch(rf"(.+)(?:{kinds})(?:\.gz)?", path.name)
    return None if match is None else match[1]


def _from_corpora(wanted: _Set) -> tuple[Part, str] | MissingSet:
    """Find a set in the cache folder or on the hub, and its origin."""
    parts = [published_part(wanted.split, name, Reading()) for name in wanted.corpora]
    for part in parts:
        if isinstance(part.source, Files):
            return part, part.source.name
    name = wanted.corpora[0]
    try:
        load_from_hub(name, wanted.split)
    except ValueError as error:
        place = str(local_copy(name) / f"{wanted.split}.jsonl")
        unreachable = why_offline() if error.__cause__ else None
        return MissingSet(wanted.name, place, unreachable or short(error.__cause__ or error))
    return parts[0], f"{PUBLISHED[name].hub} on the hub, split {wanted.split}"


def _open(wanted: _Set, part: Part, origin: str, data: TextDataModule) -> SuiteSet:
    """Tokenize a set and cut rows."""
    store = prepare(
        part.source,
        data.tokenizer,
        detokenizer=part.detokenizer,
        num_processes=data.num_processes,
    )
    documents, layout = np.arange(len(store)), Layout.of(data.tokenizer, data.length)
    if data.wrap:
        rows = WrappedRows(store, documents, layout, keep_tail=True)
        cut = 0
    else:
        split = data.long_documents == "split"
        rows = DocumentRows(store, documents, layout, split=split)
        cut = 0 if split else int((store.lengths > layout.body).sum())
        origin += f", {cut:,} documents cut" * bool(cut)
    mend = DETOKENIZERS[part.detokenizer]
    size = 0 if cut else sum(len(mend(text).encode()) for text in part.source.documents())
    lost = cut > 0 or any(
        (store.read(place, 0, int(store.lengths[place])) == layout.pad).any()
        for place in range(len(store))
    )
    return SuiteSet(
        name=wanted.name,
        origin=origin,
        dataset=rows,
        num_documents=len(documents),
        units_per_token=None if lost else size / rows.num_counted,
        published=wanted.published,
    )


suite = ZeroShot()

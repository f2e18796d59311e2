"""Rows against a naive twin that joins lists of documents and cuts them."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from text.corpora.documents import Reading
from text.corpora.preparation import prepare
from text.corpora.rows import DocumentRows, Layout, WrappedRows, describe_rows
from text.corpora.shards import TokenStore
from text.corpora.sources import find_part
from text.tokenizers.characters import ByteTokenizer, StringTokenizer, Text8Tokenizer
from text.tokenizers.subwords import BertTokenizer, JSONTokenizer

PAD = 99


class Store(TokenStore):
    """Documents in memory, with the interface that rows need."""

    def __init__(self, documents: list[list[int]]) -> None:
        self.documents = documents
        self.lengths = np.array([len(d) for d in documents])

    def read(self, document: int, first: int, last: int) -> np.ndarray:
        assert 0 <= first <= last <= len(self.documents[document])
        return np.array(self.documents[document][first:last], dtype=np.uint8)


def by_hand(documents, layout: Layout, keep_tail: bool):
    stream = []
    for document in documents:
        stream += document + ([] if layout.separator is None else [layout.separator])
    rows, held = [], []
    for first in range(0, len(stream), layout.body):
        body = stream[first : first + layout.body]
        if len(body) < layout.body and not keep_tail:
            break
        row = body if layout.frame is None else [layout.frame[0], *body, layout.frame[1]]
        held.append([True] * len(row) + [False] * (layout.length - len(row)))
        rows.append(row + [layout.pad] * (layout.length - len(row)))
    return rows, held


DOCUMENTS = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=12), min_size=1, max_size=8)
LAYOUTS = st.builds(
    Layout,
    length=st.integers(3, 9),
    frame=st.sampled_from([None, (50, 51)]),
    separator=st.sampled_from([None, 51]),
    pad=st.just(PAD),
)


@given(documents=DOCUMENTS, layout=LAYOUTS, keep_tail=st.booleans(), data=st.data())
def test_wrapped_rows(documents, layout, keep_tail, data) -> None:
    order = np.array(data.draw(st.permutations(range(len(documents)))))
    found = WrappedRows(Store(documents), order, layout, keep_tail=keep_tail)
    rows, held = by_hand([documents[i] for i in order], layout, keep_tail)
    assert len(found) == len(rows)
    assert found.num_counted == sum(map(sum, held))
    if not rows:
        return
    some = np.array(data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=5)))
    tokens, loss_mask = found.rows(some)
    assert tokens.tolist() == [rows[i] for i in some]
    assert loss_mask.tolist() == [held[i] for i in some]
    padding = found.padding(some)
    full = all(all(held[i]) for i in some)
    assert (padding is None) == full and (full or (padding == ~loss_mask).all())


@given(documents=DOCUMENTS, layout=LAYOUTS, data=st.data())
def test_a_document_a_row(documents, layout, data) -> None:
    order = np.array(data.draw(st.permutations(range(len(documents)))))
    found = DocumentRows(Store(documents), order, layout)
    tokens, loss_mask = found.rows(np.arange(len(order)))
    for row, mask, place in zip(tokens.tolist(), loss_mask.tolist(), order, strict=True):
        body = documents[place][: layout.body]
        whole = body if layout.frame is None else [50, *body, 51]
        assert row == whole + [PAD] * (layout.length - len(whole))
        assert mask == [True] * len(whole) + [False] * (layout.length - len(whole))
    assert (found.padding(np.arange(len(order))) == ~loss_mask).all()
    assert found.num_counted == loss_mask.sum()


@given(documents=DOCUMENTS, layout=LAYOUTS, data=st.data())
def test_a_long_document_in_as_many_rows_as_it_takes(documents, layout, data) -> None:
    order = np.array(data.draw(st.permutations(range(len(documents)))))
    found = DocumentRows(Store(documents), order, layout, split=True)
    rows = []
    for place in order:
        for first in range(0, len(documents[place]), layout.body):
            body = documents[place][first : first + layout.body]
            whole = body if layout.frame is None else [50, *body, 51]
            rows.append(whole + [PAD] * (layout.length - len(whole)))
    assert len(found) == len(rows)
    some = np.array(data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=5)))
    tokens, loss_mask = found.rows(some)
    assert tokens.tolist() == [rows[i] for i in some]
    assert loss_mask.tolist() == [[t != PAD for t in rows[i]] for i in some]
    assert (found.padding(some) == ~loss_mask).all()
    assert found.num_counted == sum(t != PAD for row in rows for t in row)
    truncated = DocumentRows(Store(documents), order, layout)
    longer = any(len(document) > layout.body for document in documents)
    assert (truncated.num_counted < found.num_counted) == longer, "the twin that loses text"


def test_an_epoch_lays_whole_documents_in_another_order() -> None:
    documents = [[i] * (1 + i % 4) for i in range(40)]
    layout = Layout(5, None, 77, PAD)
    rows = WrappedRows(Store(documents), np.arange(40), layout, keep_tail=True)
    streams = []
    for seed, number in ((0, 0), (0, 1), (1, 0)):
        epoch = rows.epoch(seed, number)
        assert len(epoch) == len(rows)
        flat = ids(epoch)
        assert flat == ids(rows.epoch(seed, number))
        assert flat == [t for i in epoch.documents for t in [*documents[i], 77]]
        assert sorted(epoch.documents.tolist()) == list(range(40))
        streams.append(flat)
    streams.append(ids(rows))
    assert len({tuple(stream) for stream in streams}) == 4
    assert ids(rows)[:5] == [0, 77, 1, 1, 77]


def ids(rows: WrappedRows) -> list[int]:
    return [t for t in rows.rows(np.arange(len(rows)))[0].ravel().tolist() if t != PAD]


@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), Text8Tokenizer()])
def test_rows_of_a_store_across_shards_and_processes(write, monkeypatch, tokenizer) -> None:
    monkeypatch.setattr("text.corpora.preparation._SHARD_CHARACTERS", 40)
    lines = ["abc " * (1 + i % 5) + "end" for i in range(30)]
    part = find_part("train", str(write("a.txt", "\n".join(lines))), Reading(), None)
    store = prepare(part.source, tokenizer, num_processes=1)
    layout = Layout.of(tokenizer, 16)
    rows = WrappedRows(store, np.arange(30), layout, keep_tail=True)
    separator = "\n" if isinstance(tokenizer, ByteTokenizer) else " "
    stream = separator.join(lines) + separator
    packed = pickle.dumps(rows)
    for found in (rows, pickle.loads(packed)):
        tokens, held = found.rows(np.arange(len(rows)))
        assert tokenizer.decode(tokens[held]) == stream
        assert (tokens[~held] == tokenizer.vocab_size).all()


@pytest.mark.parametrize(
    ("tokenizer", "wrap", "split", "rows", "counts"),
    [
        (
            BertTokenizer(),
            True,
            False,
            "rows of 1,024 tokens are cut from concatenated documents, each followed by the "
            "separator [SEP]",
            "all positions count, including separators; the BOS and EOS tokens of a row, [CLS] and "
            "[SEP], count",
        ),
        (
            BertTokenizer(),
            False,
            False,
            "each row has one document, with at most 1,024 tokens",
            "padding is neither attended to nor counted; the BOS and EOS tokens of a row, [CLS] "
            "and [SEP], count",
        ),
        (
            ByteTokenizer(),
            False,
            True,
            "each row has one document or a piece of one, with at most 1,024 tokens",
            "padding is neither attended to nor counted; rows have no BOS and EOS tokens",
        ),
        (
            JSONTokenizer("unread"),
            True,
            False,
            "rows of 1,024 tokens are cut from concatenated documents",
            "all positions count; rows have no BOS and EOS tokens",
        ),
    ],
)
def test_what_is_said_of_rows(
    tokenizer: StringTokenizer, wrap: bool, split: bool, rows: str, counts: str
) -> None:
    assert describe_rows(tokenizer, 1024, wrap=wrap, split=split) == (rows, counts)


def test_a_frame_without_names_is_said_to_count() -> None:
    class Framed(ByteTokenizer):
        @property
        def frame(self) -> tuple[int, int]:
            return 1, 2

    _, counts = describe_rows(Framed(), 8, wrap=True, split=False)
    assert counts.endswith("; the BOS and EOS tokens of a row count")

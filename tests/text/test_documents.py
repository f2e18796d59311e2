import gzip
import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from text.corpora.documents import Reading, kind, read_documents, read_named


def read(path: Path, document="line", field="text") -> list[str]:
    return list(read_documents(path, Reading(document, field)))


TXT = "\ufeffone é\n\n  \nzwei\ndrei\r\n\nend"


@pytest.mark.parametrize("packed", [False, True])
def test_units_of_a_text_file(write, packed: bool) -> None:
    content = TXT.encode()
    path = write("a.txt.gz", gzip.compress(content)) if packed else write("a.txt", content)
    assert read(path) == ["one é", "zwei", "drei", "end"]
    assert read(path, "paragraph") == ["one é", "zwei\ndrei", "end"]
    assert read(path, "file") == [TXT.removeprefix("\ufeff")]


def test_gzip_is_told_by_its_content(write) -> None:
    assert read(write("a.txt", gzip.compress(b"packed"))) == ["packed"]
    assert read(write("b.txt.gz", b"plain")) == ["plain"]


def test_jsonl(write) -> None:
    path = write(
        "a.jsonl", b'{"text": "a\\nb"}\n\n{"n": 1, "text": " "}\n{"text": "\\ud834\\udd1e"}'
    )
    assert read(path) == ["a\nb", "𝄞"]
    assert read(write("b.jsonl", b'{"body": "x", "text": 1}'), field="body") == ["x"]


def test_parquet(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    texts = [f"document {i}" for i in range(3000)] + [" "]
    pq.write_table(pa.table({"id": list(range(3001)), "body": texts}), path, row_group_size=700)
    assert read(path, field="body") == texts[:-1]
    with pytest.raises(ValueError, match=r"must have the column 'text', got 'id', 'body'; set the"):
        read(path)
    with pytest.raises(ValueError, match=r"must hold text in column 'id', got int in row 0"):
        read(path, field="id")
    pq.write_table(pa.table({"text": ["a", None]}), path)
    with pytest.raises(ValueError, match="got NoneType in row 1; drop the row"):
        read(path)
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(ValueError, match="the parquet file is damaged"):
        read(path)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "a.jsonl:3: must be a JSON object, got: Expecting .* at column 1; correct the line"),
        ("[1]", "a.jsonl:3: must be a JSON object, got list; correct the line"),
        ("[" * 100_000, "a.jsonl:3: must be a JSON object, got: brackets that are nested too deep"),
        ('{"n": ' + "1" * 5000 + "}", "a.jsonl:3: must be a JSON object, got: Exceeds the limit"),
        (
            '{"body": "x"}',
            "a.jsonl:3: must have text in the field 'text', got the fields 'body'; set",
        ),
        ("{}", "got no fields; set the field"),
        ('{"text": null}', "a.jsonl:3: must have text in the field 'text', got a value"),
        (
            '{"text": "a\\ud834b"}',
            r"a.jsonl:3: must not contain unpaired surrogates, got \\ud834",
        ),
    ],
)
def test_bad_lines_are_named(write, line: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read(write("a.jsonl", f'{{"text": "good"}}\n\n{line}\n'))


@pytest.mark.parametrize("packed", [False, True])
def test_bytes_that_are_not_utf8_are_named_by_their_offset(write, packed: bool) -> None:
    content = b"\xef\xbb\xbfab\n" + "né".encode() + b"\nx\xe9y\n"
    path = write("a.txt", gzip.compress(content) if packed else content)
    offset = content.index(b"\xe9y")
    for document in ("line", "file", "paragraph"):
        with pytest.raises(ValueError, match=f"got byte 0xe9 at offset {offset}") as error:
            read(path, document)
        assert "a.txt: must be UTF-8" in str(error.value) and "(line 3)" in str(error.value)
        assert ("of the uncompressed text" in str(error.value)) == packed
    with pytest.raises(ValueError, match="got byte 0xff at offset 3"):
        read(write("b.txt", b"\xef\xbb\xbf\xff"))


def test_damaged_gzip(write) -> None:
    whole = gzip.compress(os.urandom(5000).hex().encode())
    with pytest.raises(ValueError, match="the gzip file is truncated; download it again"):
        read(write("a.txt.gz", whole[:2000]))
    damaged = whole[:2000] + bytes([whole[2000] ^ 255]) + whole[2001:]
    with pytest.raises(ValueError, match="the gzip file is damaged"):
        read(write("b.txt.gz", damaged))


def test_kinds() -> None:
    assert kind(Path("a.b.jsonl.gz")) == ".jsonl"
    for name in ("a", "a.csv", "a.gz", "a.txt.zip"):
        with pytest.raises(ValueError, match=r"must end in one of .txt, .jsonl, .parquet, .fa"):
            kind(Path(name))


def test_a_record_of_fasta_is_a_document(write) -> None:
    file = write("a.fasta", b">one  two\nMKT\nLA\n\n>b\nGG\n")
    found = [(one.name, one.text) for one in read_named(file, Reading())]
    assert found == [("one two", "MKTLA"), ("b", "GG")]
    with pytest.raises(ValueError, match=r"b.fa:1: must be FASTA, whose first line starts with"):
        list(read_documents(write("b.fa", b"MKT\n"), Reading()))


def test_a_file_is_streamed(write) -> None:
    """The first document is returned before the second is read, which is invalid."""
    stream = read_documents(write("a.txt", b"good\n\xff\n"), Reading())
    assert next(stream) == "good"
    with pytest.raises(ValueError, match="offset 5"):
        next(stream)


def test_names_of_a_jsonl(write) -> None:
    records = [
        {"text": "a", "name": "first\tof two\n", "id": 7},
        {"text": "b", "id": 7},
        {"text": "c", "name": None, "id": "x"},
        {"text": "d", "name": True, "id": 1.5},
        {"text": " ", "name": "blank"},
        {"text": "e", "name": " ", "id": "\ud800"},
        {"text": "f", "name": ["no"]},
    ]
    path = write("a.jsonl", "".join(json.dumps(record) + "\n" for record in records))
    found = [(one.text, one.name) for one in read_named(path, Reading())]
    names = ["first of two", "7", "x", None, "?", None]
    assert found == list(zip("abcdef", names, strict=True))
    assert list(read_documents(path, Reading())) == list("abcdef")
    assert [one.name for one in read_named(path, Reading(field="text"))] == names
    (tmp := path.parent / "b.jsonl").write_text('{"name": "the text", "id": "i"}\n')
    assert list(read_named(tmp, Reading(field="name"))) == [("the text", "i")]
    assert list(read_named(write("a.txt", "x\n"), Reading())) == [("x", None)]

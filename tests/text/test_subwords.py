import json
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Engine

from seqdiff.cli.app import main
from seqdiff.pretrained import why_offline
from seqdiff.run import load
from text.corpora.preparation import prepare
from text.corpora.sources import Source
from text.tokenizers.subwords import BertTokenizer, GPT2Tokenizer, JSONTokenizer


@pytest.fixture(scope="module")
def gpt2(real_data: Path) -> GPT2Tokenizer:
    return GPT2Tokenizer(str(real_data / "tokenizers" / "gpt2"))


@pytest.fixture(scope="module")
def bert(real_data: Path) -> BertTokenizer:
    return BertTokenizer(str(real_data / "tokenizers" / "bert-base-uncased"))


def test_published_gpt2_encodings(gpt2: GPT2Tokenizer) -> None:
    assert gpt2.vocab_size == 50257
    assert gpt2.encode("Hello world").tolist() == [15496, 995]
    assert gpt2.encode("Hello, world!").tolist() == [15496, 11, 995, 0]
    assert gpt2.encode("").tolist() == []
    assert gpt2.frame == (50256, 50256) and gpt2.separator == 50256
    assert (
        gpt2.decode([15496, 50257, 995, 50256])
        == "Hello\N{REPLACEMENT CHARACTER} world<|endoftext|>"
    )


def test_text_that_spells_a_special_token_is_text(gpt2, bert) -> None:
    assert 50256 not in gpt2.encode("<|endoftext|>")
    assert gpt2.decode(gpt2.encode("<|endoftext|>")) == "<|endoftext|>"
    assert not set(bert.encode("[MASK] [SEP] [CLS] [PAD]").tolist()) & {0, 101, 102, 103}


@example("  two  blanks\n\n\t and 'quotes' don't 123 456\r\n")
@example("naïve 𝄞 日本語 \u200b\x00")
@given(string=st.text())
def test_gpt2_round_trip(gpt2: GPT2Tokenizer, string: str) -> None:
    ids = gpt2.encode(string)
    assert gpt2.decode(ids) == string
    assert ids.size == 0 or 0 <= ids.min() <= ids.max() < 50256


def test_published_bert_encodings(bert: BertTokenizer) -> None:
    assert bert.vocab_size == 30522
    assert bert.frame == (101, 102) and bert.separator == 102
    assert bert.encode("hello world").tolist() == [7592, 2088]
    assert bert.encode("Héllo WORLD").tolist() == [7592, 2088]
    # The example in the BERT repository's README, with its published pieces.
    pieces = bert.encode("unaffable").tolist()
    words = (Path(bert.vocabulary) / "vocab.txt").read_text().splitlines()
    assert [words[i] for i in pieces] == ["una", "##ffa", "##ble"]
    assert bert.encode("\N{SNOWMAN WITHOUT SNOW}").tolist() == [100]
    assert bert.decode(bert.encode("embeddings , yes .")) == "embeddings , yes ."


def test_many_are_encoded_as_one_by_one(gpt2, bert) -> None:
    texts = ["", "Hello world", " a\n", "naïve ☃"]
    for tokenizer in (gpt2, bert):
        together = tokenizer.encode_many(texts)
        apart = [tokenizer.encode(text) for text in texts]
        assert all(np.array_equal(a, b) for a, b in zip(together, apart, strict=True))


def test_published_vocabularies_are_known_without_their_files(gpt2, bert, cache) -> None:
    for here, named in ((gpt2, GPT2Tokenizer()), (bert, BertTokenizer())):
        assert (named.vocab_size, named.fingerprint) == (here.vocab_size, here.fingerprint)
        with pytest.raises(ValueError, match=r"HF_HUB_OFFLINE is set\); copy the files into ") as e:
            named.encode("a")
        assert f"{cache / 'tokenizers' / named.vocabulary}, or give another folder" in str(e.value)
        target = cache / "tokenizers" / named.vocabulary
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(here.vocabulary)
        assert np.array_equal(named.encode("hello"), here.encode("hello"))


def test_without_a_network_the_name_is_not_found_either(monkeypatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("HF_ENDPOINT", "https://nowhere.invalid")
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    assert why_offline() == "no network: nowhere.invalid cannot be resolved"
    with pytest.raises(ValueError, match=r"no network: nowhere.invalid cannot be resolved"):
        JSONTokenizer("somebody/something").encode("a")


def small_bpe(folder: Path, merges=("h e", "he y"), ids=None) -> str:
    folder.mkdir(exist_ok=True)
    tokens = ["h", "e", "y", "he", "hey", "<|endoftext|>"]
    ids = ids or {token: place for place, token in enumerate(tokens)}
    (folder / "vocab.json").write_text(json.dumps(ids))
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]))
    return str(folder)


def test_any_change_of_the_files_changes_the_fingerprint(tmp_path: Path) -> None:
    first = GPT2Tokenizer(small_bpe(tmp_path / "a"))
    assert first.vocab_size == 6 and first.encode("heyhe").tolist() == [4, 3]
    fewer = GPT2Tokenizer(small_bpe(tmp_path / "b", merges=("h e",)))
    assert fewer.encode("hey").tolist() == [3, 2]
    tokens = ["e", "h", "y", "he", "hey", "<|endoftext|>"]
    swapped = GPT2Tokenizer(
        small_bpe(tmp_path / "c", ids={token: place for place, token in enumerate(tokens)})
    )
    copy = GPT2Tokenizer(small_bpe(tmp_path / "d"))
    assert copy.fingerprint == first.fingerprint
    assert len({first.fingerprint, fewer.fingerprint, swapped.fingerprint}) == 3
    vocab = tmp_path / "vocab.txt"
    vocab.write_text("[UNK]\n[CLS]\n[SEP]\nabc\n")
    lower, cased = BertTokenizer(str(vocab)), BertTokenizer(str(vocab), lowercase=False)
    assert lower.encode("ABC").tolist() == [3] and cased.encode("ABC").tolist() == [0]
    assert lower.fingerprint != cased.fingerprint


def test_entries_that_no_text_holds_are_reserved(tmp_path: Path, bert: BertTokenizer) -> None:
    """Uniform noise must not draw them; [UNK] and the tokens that frame a text do occur
    in texts.
    """
    names = {place: name for name, place in bert.ids.items()}
    reserved = {names[place] for place in bert.reserved_ids}
    unused = {name for name in bert.ids if name.startswith("[unused")}
    assert reserved == {"[PAD]", "[MASK]", *unused} and len(unused) == 994
    assert BertTokenizer().reserved_ids == bert.reserved_ids, "known without the files"
    vocab = tmp_path / "vocab.txt"
    vocab.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n[unused0]\nabc\n")
    assert BertTokenizer(str(vocab)).reserved_ids == (0, 4, 5)


def test_noise_of_a_run_does_not_draw_reserved_entries(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\n")
    (tmp_path / "t.txt").write_text("a b\n" * 50)
    for preset, states in (("udlm", {1, 2, 3, 5, 6}), ("gidd", {1, 2, 3, 5, 6, 7})):
        (tmp_path / "c.yaml").write_text(
            "data: {class_path: text.corpora.TextDataModule, init_args: {"
            f"train: {tmp_path / 't.txt'}, length: 8, "
            "tokenizer: {class_path: text.tokenizers.BertTokenizer, init_args: {vocabulary: "
            f"{tmp_path / 'vocab.txt'}}}}}}}}}\n"
            "backbone: {class_path: seqdiff.backbones.Transformer, init_args: "
            "{d_model: 8, n_layer: 1, n_heads: 1}}\n"
            f"output: {tmp_path / preset}\n"
        )
        command = ["train", str(tmp_path / "c.yaml"), "--preset", preset, "--trainer.max_steps=0"]
        assert main(command) == 0
        process = load(tmp_path / preset).process
        noise = torch.rand(100, 100, generator=torch.Generator().manual_seed(0)).double()
        late = torch.full((100,), 0.9)
        drawn = process.corrupt(torch.full((100, 100), 5), late, noise=noise)
        assert set(drawn.flatten().tolist()) == states


@pytest.mark.parametrize(
    ("merges", "ids", "said"),
    [
        (("h x",), None, "must list merges of two tokens of .*use two files of the same vocab"),
        (("h e y",), None, "must list merges of two tokens"),
        ((), None, "must list merges of two tokens"),
        (("h e",), {"h": 0, "e": 1, "he": 3}, "from 0 to 2 without a gap, got 3 instead of 2"),
        (("h e",), {"h": 0, "e": 1, "he": "2"}, "must map tokens to ids; download the file again"),
    ],
)
def test_files_that_do_not_fit_together(tmp_path: Path, merges, ids, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        GPT2Tokenizer(small_bpe(tmp_path / "v", merges, ids)).encode("h")


def test_other_bad_vocabularies(tmp_path: Path) -> None:
    folder = Path(small_bpe(tmp_path / "v"))
    with pytest.raises(
        ValueError, match=r"must be a folder with vocab.txt, got .*; check the path"
    ):
        BertTokenizer(str(folder)).encode("a")
    with pytest.raises(ValueError, match=r"must be a folder with encoder.json and .*, got /no"):
        GPT2Tokenizer("/no/such").encode("a")
    (folder / "vocab.json").write_text("{")
    with pytest.raises(ValueError, match=r"vocab.json: must be JSON, got: Expecting"):
        GPT2Tokenizer(str(folder)).encode("a")
    (folder / "vocab.json").write_text("[]")
    with pytest.raises(ValueError, match=r"vocab.json: must be a JSON object"):
        GPT2Tokenizer(str(folder)).encode("a")
    (folder / "vocab.txt").write_bytes(b"[UNK]\nab\xff\n")
    with pytest.raises(ValueError, match=r"must be UTF-8, got byte 0xff at offset 8; download"):
        BertTokenizer(str(folder)).encode("a")
    (folder / "vocab.txt").write_text("a\nb\na\n")
    with pytest.raises(
        ValueError, match=r"distinct tokens, one per line, including \[UNK\], got 2"
    ):
        BertTokenizer(str(folder)).encode("a")
    (folder / "vocab.txt").write_text("[UNK]\nb\n")
    with pytest.raises(ValueError, match=r"must have the token \[CLS\], got"):
        _ = BertTokenizer(str(folder)).frame


def test_another_vocabulary_under_a_published_name(cache: Path) -> None:
    (cache / "tokenizers").mkdir(parents=True)
    small_bpe(cache / "tokenizers" / "gpt2")
    with pytest.raises(
        ValueError, match="the published gpt2 with 50257 tokens, got a different one with 6"
    ):
        GPT2Tokenizer("gpt2").encode("h")


class Unread(Source):
    """A corpus that must not be read."""

    @property
    def name(self) -> str:
        return "unread"

    def documents(self) -> Iterator[str]:
        raise AssertionError("tokenised before the special tokens were looked for")

    def identity(self, folder: Path) -> list[str]:
        return ["unread"]


def test_tokenizer_json(bert: BertTokenizer, tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    bert.encode("")
    bert._loaded.engine.save(str(file))
    same = JSONTokenizer(str(file), bos="[CLS]", eos="[SEP]")
    assert np.array_equal(same.encode("hello world"), [7592, 2088])
    assert same.frame == (101, 102) and same.vocab_size == 30522
    bare = JSONTokenizer(str(tmp_path))
    assert bare.frame is None and bare.separator is None
    assert same.reserved_ids == bare.reserved_ids == ()
    engine = Engine.from_file(str(file))
    engine.add_special_tokens(["[CLS]", "[SEP]", "[UNK]", "[PAD]", "[MASK]"])
    engine.save(str(tmp_path / "special.json"))
    named = JSONTokenizer(str(tmp_path / "special.json"), bos="[CLS]", eos="[SEP]")
    assert named.reserved_ids == (0, 103), "not those that frame a row, nor [UNK]"
    content = json.loads(file.read_text())
    content["normalizer"]["lowercase"] = False
    file.write_text(json.dumps(content))
    other = JSONTokenizer(str(file))
    assert other.fingerprint != same.fingerprint
    file.write_text(json.dumps({"model": {"type": "none"}}))
    with pytest.raises(
        ValueError, match=r"must be a tokenizer.json that the tokenizers library can read, got"
    ):
        JSONTokenizer(str(file)).encode("a")
    bert._loaded.engine.save(str(file))
    framed = JSONTokenizer(str(file), bos="[CLS]", eos="[END]")
    with pytest.raises(ValueError, match=r"must have the token \[END\], got"):
        prepare(Unread(), framed)
    with pytest.raises(ValueError, match=r"bos and eos must be given together, got '\[CLS\]'"):
        JSONTokenizer(str(file), bos="[CLS]")


def test_it_travels_as_a_name(gpt2: GPT2Tokenizer) -> None:
    gpt2.encode("a")
    packed = pickle.dumps(gpt2)
    assert len(packed) < 1000
    assert pickle.loads(packed).encode("Hello world").tolist() == [15496, 995]


def test_the_extra_that_is_not_installed(gpt2: GPT2Tokenizer, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    fresh = GPT2Tokenizer(gpt2.vocabulary)
    with pytest.raises(
        ValueError, match=r"must have the package tokenizers, got none .*; run: "
    ) as e:
        fresh.encode("a")
    assert str(e.value).endswith("run: pip install -e '.[text]'")

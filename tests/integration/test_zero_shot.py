"""The zero-shot suite against separate evaluations of the same files."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from seqdiff.cli.app import main
from seqdiff.likelihood import StratifiedK, evaluate
from seqdiff.run import load
from seqdiff.run import suites as suite_table
from text.corpora.datamodule import TextDataModule
from text.corpora.detokenizers import DETOKENIZERS
from text.corpora.rows import WrappedRows
from text.evaluation import zero_shot
from text.tokenizers.characters import ByteTokenizer
from text.tokenizers.subwords import GPT2Tokenizer

CONFIG = Path(__file__).parents[2] / "configs" / "experiment" / "text" / "bytes.yaml"
PTB = ["the company 's profit rose N N", "it does n't say\\/tell", "aer banknote berlitz N"]
LAMBADA = ["“Yes,” she said, and it was the end of the day", "He looked at it\nand at them"]
QUICK = ["--evaluations", "4", "--seed", "5"]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEQDIFF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copies of two of the seven sets, and a file that is none of them."""
    copies = tmp_path_factory.mktemp("copies")
    (copies / "ptb.valid.txt").write_text("".join(line + "\n" for line in PTB * 4))
    records = [json.dumps({"text": text}) + "\n" for text in LAMBADA * 3]
    (copies / "lambada_test.jsonl").write_text("".join(records))
    (copies / "ptb_valid.csv").write_text("x")
    (copies / "arxiv.train.txt").write_text("x")
    (copies / "pubmed.valid.txt").mkdir()
    return copies


def train(root: Path, copies: Path, *flags: str, net: str = "Transformer") -> Path:
    """A run whose test split is the copy of PTB, detokenised as in the suite."""
    (root / "train.txt").write_text(
        "".join(f"sentence {i} to train on, short\n" for i in range(99))
    )
    config = yaml.safe_load(CONFIG.read_text())
    config["base"] = str(CONFIG.parents[2] / "base.yaml")
    sizes = {"d_model": 16, "n_layer": 1, "n_heads": 2, "max_length": 32}
    config["backbone"] = {"class_path": f"seqdiff.backbones.{net}", "init_args": sizes}
    config["trainer"] = {"max_steps": 20, "accelerator": "cpu", "enable_progress_bar": False}
    config["trainer"]["val_check_interval"] = None
    config["optim"], config["experts"] = {"lr": 0.03, "warmup_steps": 1}, None
    (root / "c.yaml").write_text(yaml.safe_dump(config))
    own = [f"--data.train={root / 'train.txt'}", f"--data.test={copies / 'ptb.valid.txt'}"]
    own += ["--data.detokenizer=ptb", "--data.length=32", "--data.eval_batch_size=3"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SEQDIFF_CACHE", str(root / "cache"))
        command = ["train", str(root / "c.yaml"), f"--output={root / 'run'}", *own, *flags]
        assert main(command) == 0
    return root / "run"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Path:
    return train(tmp_path_factory.mktemp("masked"), folder)


def numbers(run: Path, out: Path, *flags: str) -> dict:
    assert main(["evaluate", str(run), "--json", str(out), *flags]) == 0
    return json.loads(out.read_text())


def suite(run: Path, out: Path, *flags: str) -> dict:
    content = numbers(run, out, "--suite", "zero_shot", *flags)
    return {**content, "sets": {row["name"]: row for row in content["sets"]}}


def model_row(run: Path, out: Path, *flags: str) -> dict:
    return numbers(run, out, *flags)["rows"][0]


def test_numbers_are_those_of_the_same_files_by_other_routes(
    run: Path, folder: Path, tmp_path: Path
) -> None:
    found = suite(run, tmp_path / "s.json", "--suite_folder", str(folder), *QUICK)
    assert list(found["sets"]) == ["ptb", "lambada"]
    ptb, own = found["sets"]["ptb"], model_row(run, tmp_path / "e.json", *QUICK)
    assert ptb["nats_per_token"] == own["nats_per_token"] > 1
    assert ptb["perplexity"] == own["perplexity"] == math.exp(ptb["nats_per_token"])
    error = own["bits_per_token_error"] * math.log(2)
    assert ptb["nats_per_token_error"] == pytest.approx(error, rel=1e-12)
    assert ptb["perplexity_error"] == pytest.approx(ptb["perplexity"] * error, rel=1e-12)
    assert ptb["num_tokens"] == own["num_tokens"] and ptb["evaluations"] == 4

    mended = [DETOKENIZERS["lambada"](text) for text in LAMBADA * 3]
    trained, lambada = load(run), found["sets"]["lambada"]
    (tmp_path / "l.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in mended))
    data = TextDataModule(
        ByteTokenizer(), 32, str(tmp_path / "train.txt"), test=str(tmp_path / "l.jsonl"),
        split=(1.0, 0.0, 0.0), batch_size=5, num_processes=1,
    )  # fmt: skip
    (tmp_path / "train.txt").write_text("x" * 100)
    batches = data.evaluation_loader("test")
    wanted = evaluate(trained.denoiser, batches, estimator=StratifiedK(4), seed=5)
    assert lambada["nats_per_token"] == pytest.approx(wanted.nats_per_token, rel=1e-6)
    size = sum(len(text.encode()) for text in mended)
    assert lambada["num_tokens"] == wanted.num_tokens.sum() == size + len(mended)
    bits = wanted.nats.sum() / math.log(2) / size
    assert lambada["bits_per_unit"] == pytest.approx(bits, rel=1e-6)
    assert ptb["published"] == {"AR": 82.05, "SEDD": 100.09, "MDLM": 95.26}


def test_broken_twins_are_seen(
    run: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken twins: the original text, and a dropped last row."""
    own = model_row(run, tmp_path / "e.json", *QUICK)

    def differs() -> bool:
        found = suite(run, tmp_path / "s.json", "--suite_folder", str(folder), *QUICK)
        return found["sets"]["ptb"]["nats_per_token"] != own["nats_per_token"]

    assert not differs()
    with monkeypatch.context() as patch:
        patch.setitem(DETOKENIZERS, "ptb", DETOKENIZERS["none"])
        patch.setattr("text.corpora.preparation.VERSION", -1)
        assert differs()

    def dropped(*args: object, keep_tail: bool) -> WrappedRows:
        return WrappedRows(*args, keep_tail=False)  # pyright: ignore[reportArgumentType]

    with monkeypatch.context() as patch:
        patch.setattr(zero_shot, "WrappedRows", dropped)
        assert differs()


def test_a_limit_takes_rows_that_are_spread_and_says_so(
    run: Path, folder: Path, tmp_path: Path, capsys
) -> None:
    """Four of ten rows, with the same results as among all rows."""
    flags = ["--suite_folder", str(folder), *QUICK, "--limit", "4"]
    found = suite(run, tmp_path / "s.json", *flags)
    ptb, printed = found["sets"]["ptb"], capsys.readouterr().out
    assert (found["limit"], ptb["num_rows"], ptb["of_rows"]) == (4, 4, 10)
    assert "ptb: 4 of 10 rows, evenly spaced; 12 documents, " in printed
    trained = load(run)
    every = evaluate(
        trained.denoiser,
        trained.datamodule.evaluation_loader("test"),
        estimator=StratifiedK(4),
        seed=5,
    )
    some = [0, 2, 5, 7]
    wanted = every.nats[some].sum() / every.num_tokens[some].sum()
    assert ptb["nats_per_token"] == pytest.approx(wanted, rel=1e-6)
    first = every.nats[:4].sum() / every.num_tokens[:4].sum()
    assert abs(first - wanted) > 1e-3, "the first four would be seen"


def test_the_table_says_what_it_is(run: Path, folder: Path, tmp_path: Path, capsys) -> None:
    suite(run, tmp_path / "s.json", "--suite_folder", str(folder), *QUICK)
    lines = capsys.readouterr().out.splitlines()
    printed = " ".join(" ".join(lines).split())
    assert (
        max(map(len, lines[: lines.index(next(x for x in lines if x.startswith("bits/b")))])) < 81
    )
    for text in (
        "82.05 100.09 95.26", "51.28 49.86 47.52", "AR SEDD MDLM", "upper bound; lower is better",
        "estimator stratified-k, convention exact", "rows of 32 tokens are cut from concatenated",
        "rows have no BOS and EOS", "NOT comparable", f"{folder / 'lambada_test.jsonl'}",
        f"wikitext: missing, would be read from {folder / 'wikitext.valid.txt'}",
        f"pubmed: missing, would be read from {folder / 'pubmed.valid.txt'}",
    ):  # fmt: skip
        assert text in printed, text
    flags = ["--suite_folder", str(folder), "--convention", "mdlm"]
    found = suite(run, tmp_path / "s.json", *flags)
    said = capsys.readouterr()
    assert "as published, not a bound" in said.out
    assert "ptb, as published, not a bound: " in said.err
    assert {row["quantity"] for row in found["sets"].values()} == {"as published, not a bound"}


def test_copies_in_the_cache_folder_need_no_option(
    run: Path, folder: Path, tmp_path: Path, fails: Callable[[list[str]], str]
) -> None:
    cache = tmp_path / "cache" / "corpora"
    said = fails(["evaluate", str(run), "--suite", "zero_shot"])
    assert "evaluate.suite must find at least one of its sets, got none; put a copy of" in said
    assert str(cache / "ptb" / "valid.jsonl") in said and str(cache / "arxiv") in said
    (cache / "ptb").mkdir(parents=True)
    records = [json.dumps({"sentence": text}) + "\n" for text in PTB * 4]
    (cache / "ptb" / "valid-0.jsonl").write_text("".join(records))
    (cache / "wikitext-2").mkdir()
    (cache / "wikitext-2" / "valid.txt").write_text(" = A = \n He said : no \n")
    found = suite(run, tmp_path / "s.json", *QUICK)
    assert list(found["sets"]) == ["ptb", "wikitext"]
    own = model_row(run, tmp_path / "e.json", *QUICK)
    assert found["sets"]["ptb"]["nats_per_token"] == own["nats_per_token"]
    missing = {one["name"]: one["place"] for one in found["missing"]}
    assert missing["lambada"] == str(cache / "lambada" / "test.jsonl")
    assert {one["reason"] for one in found["missing"]} == {"HF_HUB_OFFLINE is set"}
    assert list(missing) == ["lm1b", "lambada", "ag_news", "pubmed", "arxiv"]


def test_the_other_held_out_split_is_named(run: Path, tmp_path: Path) -> None:
    (tmp_path / "wikitext-2.test.txt").write_text(" = A = \n He said : no \n" * 9)
    found = suite(run, tmp_path / "s.json", "--suite_folder", str(tmp_path), *QUICK)
    origin = found["sets"]["wikitext"]["origin"]
    assert origin.endswith(
        "wikitext-2.test.txt, split test; the published numbers are for split valid"
    )
    (tmp_path / "wikitext.txt").write_text(" = A = \n He said : no \n" * 3)
    found = suite(run, tmp_path / "s.json", "--suite_folder", str(tmp_path), *QUICK)
    assert found["sets"]["wikitext"]["origin"] == str(tmp_path / "wikitext.txt")


def test_documents_a_row_are_cut_and_an_autoregressive_run_is_exact(
    folder: Path, tmp_path: Path
) -> None:
    flags = ["--preset=ar", "--data.wrap=false", "--data.long_documents=truncate"]
    run = train(tmp_path, folder, *flags, net="AutoregressiveTransformer")
    found = suite(run, tmp_path / "s.json", "--suite_folder", str(folder))
    own = model_row(run, tmp_path / "e.json")
    ptb, lambada = found["sets"]["ptb"], found["sets"]["lambada"]
    assert found["estimator"] == "chain-rule" and ptb["evaluations"] == 1
    assert ptb["nats_per_token"] == own["nats_per_token"]
    lengths = [len(DETOKENIZERS["ptb"](line).encode()) for line in PTB * 4]
    assert ptb["num_tokens"] == sum(lengths) and max(lengths) <= 32
    assert ptb["bits_per_unit"] == pytest.approx(ptb["nats_per_token"] / math.log(2), rel=1e-12)
    assert lambada["origin"].endswith(", 3 documents cut") and lambada["bits_per_unit"] is None
    assert "each row has one document, with at most 32 tokens" in found["notes"]


def test_a_set_that_the_run_cannot_spell_is_listed_and_the_others_go_on(
    folder: Path, tmp_path: Path, fails: Callable[[list[str]], str], capsys
) -> None:
    """A run on the characters of PTB's training documents only."""
    mended = [DETOKENIZERS["ptb"](line) for line in PTB]
    alphabet = "".join(sorted(set("".join([*mended, "sentence to train on, short 0123456789"]))))
    flags = ["--data.tokenizer=text.tokenizers.CharacterTokenizer"]
    flags.append(f"--data.tokenizer.characters={alphabet}")
    run, copies = train(tmp_path, folder, *flags), tmp_path / "copies"
    copies.mkdir()
    for name in ("ptb.valid.txt", "lambada_test.jsonl"):
        (copies / name).write_bytes((folder / name).read_bytes())
    (copies / "wikitext.valid.txt").write_text(" the <unk> of it \n")
    capsys.readouterr()
    found = suite(run, tmp_path / "s.json", "--suite_folder", str(copies), *QUICK)
    assert list(found["sets"]) == ["ptb"]
    own = model_row(run, tmp_path / "e.json", *QUICK)
    assert found["sets"]["ptb"]["nats_per_token"] == own["nats_per_token"]
    bad, quotes = found["not_evaluable"]
    assert (bad["name"], quotes["name"]) == ("wikitext", "lambada")
    assert bad["origin"] == str(copies / "wikitext.valid.txt")
    said = capsys.readouterr()
    lines = said.out.splitlines()
    (row,) = [words for words in map(str.split, lines) if words[:1] == ["wikitext"]]
    assert row == ["wikitext", *["NA"] * 6, "25.75", "34.28", "32.83"]
    reason = f"wikitext: not evaluable, {copies / 'wikitext.valid.txt'}: document 1: "
    assert [line for line in lines if line.startswith(reason) and "got '<' at offset" in line]
    assert reason in said.err, "before the table"

    (copies / "ptb.valid.txt").unlink()
    out = tmp_path / "none.json"
    command = ["evaluate", str(run), "--suite", "zero_shot", "--suite_folder", str(copies)]
    said = fails([*command, "--json", str(out)])
    assert f"must have a set that {run} can encode, got none: " in said and "got '<'" in said
    assert not out.exists()


def test_a_set_is_reported_before_the_next_is_begun(
    run: Path, folder: Path, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second set fails, and the result of the first has been printed."""
    real = suite_table.evaluate_set

    def interrupted(run, found, *rest, **options):
        if found.name == "lambada":
            raise KeyboardInterrupt
        return real(run, found, *rest, **options)

    monkeypatch.setattr("seqdiff.run.evaluate_set", interrupted)
    command = ["evaluate", str(run), "--suite", "zero_shot", "--suite_folder", str(folder), *QUICK]
    assert main(command) == 130
    own = model_row(run, tmp_path / "e.json", *QUICK)
    said = capsys.readouterr().err
    told = f"{own['num_tokens']} tokens, {own['nats_per_token']:.4f} nats/token, "
    assert f"ptb, upper bound: {told}" in said
    assert f"perplexity {own['perplexity']:.2f} ± {own['perplexity_error']:.2f} SE" in said


@pytest.mark.parametrize("wrap", [True, False])
def test_a_run_like_the_published_ones_is_told_so(wrap: bool) -> None:
    data = TextDataModule(GPT2Tokenizer(), 1024, "x.txt", wrap=wrap)
    differences = zero_shot._differences(data)
    assert differences == () if wrap else "rows differ" in differences[0]


REFUSED = [
    (["--suite", "one_shot"], "evaluate.suite must be one of zero_shot, got 'one_shot'"),
    (["--suite", "zero_shot", "--split", "test"], "evaluate.split must be left out beside a suite"),
    (["--suite", "zero_shot", "--limit", "0"], "evaluate.limit must be at least 1, got 0"),
    (["--suite", "zero_shot", "--suite_folder", "no"], "suite_folder must be an existing folder"),
    (["--limit", "3"], "evaluate.limit must go with a suite, got none"),
    (["--suite_folder", "no"], "evaluate.suite_folder must go with a suite, got none"),
]


@pytest.mark.parametrize(("flags", "message"), REFUSED)
def test_options_that_do_not_go_together(
    run: Path, fails: Callable[[list[str]], str], flags: list[str], message: str
) -> None:
    assert message in fails(["evaluate", str(run), *flags])


@pytest.mark.usefixtures("unchecked")
def test_what_is_no_text_or_not_sound_is_one_line(
    run: Path, trained: Path, folder: Path, tmp_path: Path, fails: Callable[[list[str]], str]
) -> None:
    flags = ["--suite", "zero_shot", "--suite_folder"]
    said = fails(["evaluate", str(trained), *flags, str(folder)])
    assert "zero_shot requires a run on text, got a run on ToyData" in said
    out = tmp_path / "s.json"
    command = ["evaluate", str(run), *flags, str(tmp_path), "--json", str(out)]
    (tmp_path / "ptb.txt").write_bytes(b"good\nb\xe4d\n")
    assert "ptb.txt: must be UTF-8, got byte 0xe4 at offset 6 (line 2)" in fails(command)
    (tmp_path / "ptb.jsonl").write_text("{}\n")
    said = fails(command)
    assert "must hold one copy of ptb, got ptb.jsonl and ptb.txt" in said
    (tmp_path / "ptb.txt").unlink()
    assert "must have text in the field 'sentence'" in fails(command)
    assert not out.exists()


def test_real_copies_are_found(run: Path, real_data: Path, tmp_path: Path) -> None:
    flags = ["--suite_folder", str(real_data / "text"), "--limit", "40", *QUICK]
    found = suite(run, tmp_path / "s.json", *flags)
    assert list(found["sets"]) == ["wikitext", "lambada"]
    assert found["sets"]["lambada"]["num_documents"] == 5153
    for row in found["sets"].values():
        assert 1 < row["bits_per_unit"] / (row["nats_per_token"] / math.log(2)) < 1.02

"""What ``seqdiff generative-perplexity`` prints, and its one-line errors."""

import json
import math
import socket
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from transformers import GPT2Config

from seqdiff import extras
from seqdiff import pretrained as models
from seqdiff.cli.app import main, parse
from tests.text.pretrained.tiny_bert import save_bert
from tests.text.pretrained.tiny_gpt2 import BOS, CONTEXT, LONG, by_hand
from text.commands.generative_perplexity import build_table, conventions
from text.evaluation.judge import Judge
from text.evaluation.perplexity import generative_perplexity, unigram_entropy


@pytest.fixture
def command() -> list[str]:
    return ["generative-perplexity"]


def printed(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("suffix", [".txt", ".jsonl"])
def test_the_command_prints_both_numbers_and_its_conventions(
    gpt2_folder: Path, judge: Judge, tmp_path: Path, command, capsys, monkeypatch, suffix: str
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    path = tmp_path / f"samples{suffix}"
    lines = LONG if suffix == ".txt" else [json.dumps({"text": text}) for text in LONG]
    path.write_text("\n".join(lines) + "\n")
    assert main([*command, str(path), "--model", str(gpt2_folder), "--batch_size", "2"]) == 0
    text = printed(capsys)
    samples = judge.encode(LONG)
    expected = math.exp(by_hand(judge.network, samples, 0).sum() / sum(map(len, samples)))
    shown = float(text.partition("perplexity │")[2].split("│")[0])
    assert shown == pytest.approx(expected, rel=1e-4)
    entropy = np.mean([unigram_entropy(s) for s in samples])
    assert f"unigram entropy, nats │ {entropy:.4f} │" in text
    assert (
        "± SE is the standard error over samples" in text
        and "tokenized by the model's own tokenizer" in text
    )
    assert f"predicted after {BOS}; the model reads windows of 12 tokens, with stride 6" in text
    assert f"5 samples, {sum(map(len, samples))} tokens predicted" in text


def test_what_is_said_without_bos_and_without_limit(judge: Judge) -> None:
    samples = judge.encode(LONG)
    found = generative_perplexity(
        judge.network, samples, vocab_size=280, bos=None, context=CONTEXT, batch_size=9
    )
    _, first, _ = conventions(None, None)
    assert first == "the first token of a sample is not predicted; the model reads whole samples"
    table = build_table(found, "title", ())
    assert list(table.columns[0].cells)[0::2] == ["perplexity", "unigram entropy, nats"]
    assert [column.header for column in table.columns] == ["", "mean", "± SE"]
    total = sum(map(len, samples)) - len(samples)
    assert table.title == f"title: 5 samples, {total} tokens predicted"


def test_samples_that_the_perplexity_leaves_out_are_counted(judge: Judge) -> None:
    """Broken twin: averages a part of the samples and does not say so."""
    samples = [np.array([5]), np.array([5, 6, 7]), np.array([9])]
    found = generative_perplexity(
        judge.network, samples, vocab_size=280, bos=None, context=CONTEXT, batch_size=9
    )
    title = build_table(found, "title", ()).title
    left_out = "2 samples without a predicted token are left out of the perplexity"
    assert title == f"title: 3 samples, 2 tokens predicted; {left_out}"


def test_the_judge_is_gpt2_large_by_default() -> None:
    _, bound = parse(["generative-perplexity", "a.txt"])
    bound.apply_defaults()
    assert bound.arguments["model"] == "openai-community/gpt2-large"


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("no.txt", None, "must be a run directory or a file, got"),
        (
            "a.fa",
            b"x",
            "must end in .txt (a sample per line, or a listing) or .jsonl (a key text),",
        ),
        ("a.txt", b"", "must hold at least one sample, got the empty file"),
        ("a.txt", b"one\n\nthree\n", "must hold a sample on each line, got none in line 2 of"),
        ("a.txt", b"caf\xc3\xa9\nc\xe9\n", "must be UTF-8, got byte 0xe9 at offset 7 of"),
        ("a.txt", b"--- sample_0 ---\nab\n", "must follow each sample, got none after 'sample_0'"),
        ("a.txt", b"--- x ---\nab\n\n--- y ---\n\n\n", "got an empty sample under y in"),
        ("a.jsonl", b'{"text": "a"}\n{"txt": "b"}\n', "got none in line 2 of"),
        ("a.jsonl", b'{"text": "a"\n', "must hold a JSON object on each line, got: Expecting"),
        ("a.txt.gz", b"plain", "must be a gzip file, got"),
    ],
)
def test_bad_samples(tmp_path: Path, command, fails, name, content, said) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    assert said in fails([*command, str(path), "--model", "nowhere"])


@pytest.fixture
def one_sample(tmp_path: Path) -> str:
    path = tmp_path / "a.txt"
    path.write_text("a dog\n")
    return str(path)


def test_weights_must_fit_both_ways(gpt2_folder: Path, tmp_path: Path, command, fails, one_sample):
    for layers, problem in ((3, "12 missing"), (1, "unexpected")):
        other = tmp_path / f"layers{layers}"
        other.mkdir()
        for file in gpt2_folder.iterdir():
            (other / file.name).write_bytes(file.read_bytes())
        config = GPT2Config.from_pretrained(gpt2_folder)
        config.n_layer = layers
        config.save_pretrained(other)
        said = fails([*command, one_sample, "--model", str(other)])
        assert "must hold the weights of its config.json, got" in said and problem in said


def test_nothing_is_unpickled(
    gpt2_folder: Path, tmp_path: Path, command, fails, one_sample
) -> None:
    other = tmp_path / "pickled"
    other.mkdir()
    for file in gpt2_folder.iterdir():
        if file.name != "model.safetensors":
            (other / file.name).write_bytes(file.read_bytes())
    torch.save({}, other / "pytorch_model.bin")
    said = fails([*command, one_sample, "--model", str(other)])
    assert "must hold a model.safetensors, got none in" in said
    assert "pickled weights are not loaded" in said
    (other / "model.safetensors").write_bytes(b"damaged")
    assert "must be a valid model, got" in fails([*command, one_sample, "--model", str(other)])
    (other / "config.json").unlink()
    assert "must hold a config.json, got" in fails([*command, one_sample, "--model", str(other)])


def test_no_code_of_a_model_runs(
    gpt2_folder: Path, tmp_path: Path, command, fails, one_sample
) -> None:
    other = tmp_path / "foreign"
    other.mkdir()
    for file in gpt2_folder.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    config = {"model_type": "foreign", "auto_map": {"AutoConfig": "evil.C", "AutoModel": "evil.M"}}
    (other / "config.json").write_text(json.dumps(config))
    (other / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    said = fails([*command, one_sample, "--model", str(other)])
    assert "must do without code of its own, which is never run, got auto_map in" in said
    assert not (tmp_path / "ran").exists()


def test_a_hub_name_without_network(command, fails, one_sample, monkeypatch) -> None:
    def unreachable(*_: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    for variable in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(socket, "getaddrinfo", unreachable)
    monkeypatch.setattr(models, "getproxies", dict)
    said = fails([*command, one_sample, "--model", "openai-community/no-such-model"])
    assert (
        "got 'openai-community/no-such-model' (no network: huggingface.co cannot be resolved)"
        in said
    )
    assert "hub either; download it elsewhere and give its folder" in said
    said = fails([*command, one_sample, "--model", "./no/such"])
    assert "must be the folder of a model or a name on the hub, got './no/such'; check" in said


def test_a_model_that_looks_ahead_judges_nothing(tmp_path, command, fails, one_sample) -> None:
    """transformers loads BERT as a causal model and only warns."""
    said = fails([*command, one_sample, "--model", str(save_bert(tmp_path / "bert"))])
    assert (
        "must predict each token from earlier tokens only, got" in said and "of type bert" in said
    )


def test_from_the_hub_too_come_safetensors_and_no_code(
    gpt2_folder: Path, command, one_sample, monkeypatch
) -> None:
    """A cached name is read under the same rules as a folder."""
    asked = []
    for name in ("AutoTokenizer", "AutoModelForCausalLM"):
        auto = getattr(transformers, name)

        def load(given, real=auto.from_pretrained, **options):
            assert given == "owner/cached"
            asked.append(options)
            return real(str(gpt2_folder), **options)

        monkeypatch.setattr(auto, "from_pretrained", load)
    read = transformers.PreTrainedConfig.get_config_dict

    def read_fields(given, **options):
        return read(str(gpt2_folder) if given == "owner/cached" else given, **options)

    monkeypatch.setattr(transformers.PreTrainedConfig, "get_config_dict", read_fields)
    assert main([*command, one_sample, "--model", "owner/cached"]) == 0
    assert len(asked) == 2 and asked[1]["use_safetensors"] is True
    for options in asked:
        assert options["trust_remote_code"] is False and options["local_files_only"] is True


def test_without_transformers_one_line_says_how_to_get_it(
    command,
    fails,
    one_sample,
    monkeypatch,
) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(extras, "import_module", missing)
    said = fails([*command, one_sample, "--model", "x"])
    assert "must have the package transformers, got none (No module named 'transformers')" in said
    assert said.endswith("run: pip install -e '.[hub]'")

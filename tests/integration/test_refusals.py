"""Invalid arguments are reported before anything slow: the run that they name does not exist."""

import errno
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from seqdiff.cli.app import main
from tests.integration.toy_domain import ToyNet

GOOD = {"--num": "1", "--length": "3", "--seed": "0"}
SEED = "must be in [0, 2^32), got"
DEVICE = "--device must be usable, got"


def _sample(run: Path, out: Path, flag: str = "", value: str = "") -> list[str]:
    given = {**GOOD, "--out": str(out), **({flag: value} if flag else {})}
    return ["sample", str(run), *(part for pair in given.items() for part in pair)]


@pytest.mark.usefixtures("toy_writer")
@pytest.mark.parametrize(
    ("flag", "value", "said"),
    [
        ("--out", "a.txt", "must end in one of .ring, got a.txt; rename it"),
        ("--out", "nowhere/a.ring", "must lie in an existing folder, got nowhere/a.ring; run: mkd"),
        ("--num", "0", "sample.num must be at least 1, got 0"),
        (
            "--num",
            "many",
            'unable to convert "many" into int; see: seqdiff sample --help',
        ),
        ("--length", "-2", "sample.length must be at least 1, got -2"),
        ("--length", str(10**12), "must fit in the memory of cpu, got 1 of 1,000,000,000,000 tok"),
        ("--length", str(10**30), "lower --length or --batch-size"),
        ("--batch_size", "0", "sample.batch_size must be at least 1, got 0"),
        ("--batch-size", "0", "sample.batch_size must be at least 1, got 0"),
        (
            "--bath_size",
            "0",
            "sample has no option --bath-size, did you mean --batch-size?",
        ),
        ("--num_steps", "0", "FirstHittingSampler.num_steps must be at least 1, got 0"),
        ("--num-steps", "x", "first_hitting: --num-steps must be an integer, got x; its options"),
        ("--top_k", "1.5", "first_hitting: --top-k must be an integer, got 1.5; its options are"),
        ("--top-p", "x", "--top-p must be a number, got x; its options are --num-steps, --temp"),
        ("--eta", "1", "--top-p; see: seqdiff samplers first_hitting, and seqdiff sample --help"),
        ("--sampler", "ancestrall", "sample.sampler must be one of ancestral, "),
        ("--sampler", "no.Sampler", "must be importable, got 'no.Sampler': No module named 'no'"),
        (
            "--sampler",
            "seqdiff.samplers.nope",
            "must be importable, got 'seqdiff.samplers.nope'",
        ),
        (
            "--sampler",
            "torch.nn.Linear",
            "must be a seqdiff.samplers.Sampler, got 'torch",
        ),
        (
            "--sampler",
            "semi_autoregressive",
            "semi_autoregressive must be given --window; see:",
        ),
        (
            "--sampler",
            "semi-autoregressive",
            "sample.sampler semi-autoregressive must be given --window; see",
        ),
        (
            "--temperature",
            "0",
            "FirstHittingSampler.temperature must be above 0 and finite, got 0.0; 1",
        ),
        (
            "--temperature",
            "-0.5",
            "FirstHittingSampler.temperature must be above 0 and finite, got -0.5",
        ),
        ("--top-p", "1.5", "FirstHittingSampler.top_p must be in (0, 1], got 1.5; 1 keeps all"),
        ("--seed", "-1", f"sample.seed {SEED} -1"),
        ("--seed", str(2**70), f"sample.seed {SEED} {2**70}"),
        ("--device", "abacus", f"{DEVICE} 'abacus'"),
        ("--device", "meta", f"{DEVICE} 'meta': it holds no numbers; try cpu"),
        ("--device", "cpu:3", f"{DEVICE} 'cpu:3': there is one cpu; try cpu"),
        ("--device", "cuda:99", f"{DEVICE} 'cuda:99'"),
        ("--device", "", f"{DEVICE} ''"),
    ],
)
def test_bad_sampling(tmp_path: Path, fails, flag: str, value: str, said: str) -> None:
    assert said in fails(_sample(tmp_path / "no-run", tmp_path / "a.ring", flag, value))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("flag", "value", "said"),
    [
        (
            "--evaluations",
            "3",
            "evaluate.evaluations must be even and at least 2, got 3; give 4",
        ),
        ("--evaluations", "0", "got 0; give 2"),
        ("--seed", "-1", f"evaluate.seed {SEED} -1"),
        ("--seed", str(2**32), f"evaluate.seed {SEED} {2**32}"),
        ("--device", "meta", f"{DEVICE} 'meta'"),
        ("--split", "exam", 'Invalid value "exam" for --split. Choose from'),
        ("--json", "nowhere/a.json", "got nowhere/a.json; run: mkdir -p nowhere"),
        ("--json", "/", "evaluate.json must be a file, got the folder /"),
    ],
)
def test_bad_evaluation(tmp_path: Path, fails, flag: str, value: str, said: str) -> None:
    assert said in fails(["evaluate", str(tmp_path / "no-run"), flag, value])


def test_good_arguments_get_as_far_as_the_run(tmp_path: Path, fails, toy_writer: None) -> None:
    """With valid arguments the missing run is the only error."""
    run = tmp_path / "no-run"
    assert "must hold run.yaml" in fails(_sample(run, tmp_path / "a.ring"))
    assert "must hold run.yaml" in fails(["evaluate", str(run), "--json", str(tmp_path / "a.json")])
    assert not list(tmp_path.iterdir()), "what was tried is tidied away"


def test_a_folder_that_takes_no_file(
    tmp_path: Path, fails, toy_writer: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "touch", refuse)
    run, ring, json = tmp_path / "no-run", tmp_path / "a.ring", tmp_path / "a.json"
    said = "Read-only file system; choose another folder"
    assert f"sample.out must be writable, got {ring}: {said}" in fails(_sample(run, ring))
    message = fails(["evaluate", str(run), "--json", str(json)])
    assert f"evaluate.json must be writable, got {json}: {said}" in message


@pytest.mark.parametrize("arguments", [["nonsense"], ["evaluate"], ["sample"], ["--nonsense"]])
def test_usage_errors_are_one_line_too(
    arguments: list[str], fails: Callable[[list[str]], str]
) -> None:
    assert "; see: seqdiff" in fails(arguments)


@pytest.mark.usefixtures("toy_writer")
@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB."),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried\nto"),
        MemoryError("Unable to allocate 7.28 TiB for an array"),
    ],
)
def test_out_of_memory_while_drawing(
    trained: Path, tmp_path: Path, fails, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def forward(self, inputs, where=None):
        raise error

    monkeypatch.setattr(ToyNet, "forward", forward)
    message = fails(_sample(trained, tmp_path / "a.ring"))
    assert "the memory is too small:" in message
    assert message.endswith("lower the batch size or the length, or take a smaller network")
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("toy_writer")
def test_a_mistake_of_ours_is_not_blamed_on_memory(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken twin: reporting every RuntimeError as lack of memory would hide this one."""

    def forward(self, inputs, where=None):
        raise RuntimeError("shapes differ")

    monkeypatch.setattr(ToyNet, "forward", forward)
    with pytest.raises(RuntimeError, match="shapes differ"):
        main(_sample(trained, tmp_path / "a.ring"))


def test_the_list_of_keys_takes_no_flag(fails) -> None:
    assert "train.keys must be alone or go with CONFIG, got --foo" in fails(
        ["train", "--keys", "--foo"]
    )

"""A domain adds commands to the command line, as a package of a user would."""

import errno
import os
import signal
import subprocess
import sys
import time
from importlib import import_module
from inspect import signature
from pathlib import Path

import pytest
import torch

from seqdiff.cli import app
from seqdiff.cli.app import main, parse
from seqdiff.cli.extensions import Command, command_line
from seqdiff.run.config import instantiate, parse_run
from seqdiff.training import trainer
from seqdiff.training.callbacks import EMA, RunCheckpoint
from tests.integration.conftest import Entry

ROOT = Path(__file__).parents[2]


def shout(word: str, /) -> None:
    """Print a word in capitals.

    Args:
        word: The word.
    """
    if word == "nothing":
        raise ValueError("shout.word must be a word,\n got nothing; say something")
    print(word.upper())


def _install(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    command = Command(name, f"{__name__}:shout", "Voices", "say it louder: seqdiff shout ring")
    monkeypatch.setattr(app, "entry_points", lambda group: [Entry("voices", [command])])


def test_a_domain_adds_a_subcommand(monkeypatch: pytest.MonkeyPatch, capsys, fails) -> None:
    _install(monkeypatch, "shout")
    assert isinstance(app.commands()["shout"], Command)
    assert main(["shout", "ring"]) == 0
    assert capsys.readouterr().out == "RING\n"
    message = fails(["shout", "nothing"])
    assert message == "seqdiff: error: shout.word must be a word, got nothing; say something"
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert "say it louder" in shown and "Voices" in shown


def test_a_domain_cannot_take_a_name_of_the_core(monkeypatch: pytest.MonkeyPatch, fails) -> None:
    _install(monkeypatch, "train")
    assert "must not repeat a name, got train from a test" in fails(["--help"])


def test_a_command_may_have_a_name_of_two_words(
    monkeypatch: pytest.MonkeyPatch, capsys, fails
) -> None:
    _install(monkeypatch, "say loud")
    assert main(["say", "loud", "ring"]) == 0
    assert capsys.readouterr().out == "RING\n"
    assert main(["say", "--help"]) == 0
    assert "say loud" in capsys.readouterr().out
    for words, got in ((["say"], "nothing"), (["say", "soft"], "'soft'")):
        assert fails(words) == (
            f"seqdiff: error: seqdiff say must be followed by loud, got {got}; see: seqdiff say "
            "loud --help"
        )
    assert "seqdiff say loud --help" in fails(["say", "loud"])


def test_every_installed_command_keeps_the_contract() -> None:
    for name, command in app.commands().items():
        assert isinstance(command, Command), name
        assert command.name == name and f"seqdiff {name} " in f"{command.help} "
        module, _, function = command.function.partition(":")
        called = getattr(import_module(module), function)
        about = called.__doc__
        assert about and ("Args:" in about) == bool(signature(called).parameters), name


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["sample", "RUN", "--num", "2.7"], "Invalid value for --num: must be an integer, got 2.7"),
        (["sample", "RUN", "--seed=1.5"], "Invalid value for --seed: must be an integer, got 1.5"),
        (["evaluate", "RUN", "--evaluations", "4.0"], "--evaluations: must be an integer"),
    ],
)
def test_fractions_are_not_rounded(words: list[str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse(words)


@pytest.mark.parametrize("spelled", ["--given-labels", "--given_labels"])
def test_options_take_dashes_for_underscores(spelled: str, fails) -> None:
    _, bound = app.parse(
        ["evaluate", "runs/a-b_c", spelled, "--max-nfe=7", "--suite-folder", "a-b"]
    )
    given = bound.arguments
    assert given["given_labels"] and given["estimation"].max_nfe == 7
    assert given["run"] == Path("runs/a-b_c") and given["suite_folder"] == Path("a-b")
    assert "Unknown option: --given-label" in fails(["evaluate", "r", "--given-label"])


@pytest.mark.parametrize(("word", "hint"), [("trian", ", did you mean train?"), ("fly", "")])
def test_an_unknown_command_is_one_line(word: str, hint: str, fails) -> None:
    wanted = f"seqdiff must be given a command, got '{word}'{hint}; see: seqdiff --help"
    assert wanted in fails([word, "x"])


def test_keys_are_listed(capsys) -> None:
    assert main(["train", "--keys"]) == 0
    text = capsys.readouterr().out
    assert "--output (required)\n    The run directory" in text
    assert "--process (default: seqdiff.process.Absorbing)" in text
    for key in ("--optim.lr", "--trainer.strategy", "--ema_decay", "seqdiff.process.Hybrid"):
        assert key in text


def test_the_keys_of_a_file_include_those_of_its_classes(config: Path, capsys) -> None:
    assert main(["train", str(config), "--keys", "--optim.lr", "0.25"]) == 0
    text = capsys.readouterr().out
    assert "--optim.lr (value: 0.25)" in text
    assert "--data.length (value: " in text
    assert "--process.schedule (value: seqdiff.schedules.LogLinear)" in text
    # These follow from the data.
    assert "vocab_size" not in text and "num_logits" not in text


def test_interrupted(config: Path, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is saved, and after; the printed command continues the run."""
    original = RunCheckpoint.on_train_batch_end

    def interrupt(self, trainer, *rest) -> None:
        original(self, trainer, *rest)
        if trainer.global_step == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RunCheckpoint, "on_train_batch_end", interrupt)
        for every, said in (
            ("4", "nothing was saved yet; the same command starts again"),
            ("2", f"to continue: {command_line('train', '--resume', tmp_path / 'run')}"),
        ):
            assert main(["train", str(config), "--checkpoint_every_n_steps", every]) == 130
            assert capsys.readouterr().err.splitlines()[-1] == f"seqdiff: interrupted; {said}"
    assert main(["train", "--resume", str(tmp_path / "run")]) == 0


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_every_command_ends_at_signals(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As at Ctrl-C; a signal that the caller ignores, as nohup does, stays ignored."""
    number = getattr(signal, name)
    done: list[str] = []

    def sent(arguments: list[str]) -> None:
        os.kill(os.getpid(), number)
        done.append("the command went on")
        raise ValueError

    monkeypatch.setattr(app, "parse", sent)
    assert main(["score"]) == 130
    assert capsys.readouterr().err == "seqdiff: interrupted\n" and not done
    assert signal.getsignal(number) == signal.SIG_DFL
    signal.signal(number, signal.SIG_IGN)
    try:
        assert main(["score"]) == 2 and done
    finally:
        signal.signal(number, signal.SIG_DFL)


def test_a_printed_command_trusts_what_this_one_trusts(tmp_path: Path) -> None:
    """Modules of --trust-code, and of classes that were typed."""
    code = f"""
from seqdiff.cli.extensions import command_line
from seqdiff.run import trust_code
trust_code("seqdiff")
assert not command_line("train").endswith(" seqdiff")
trust_code("tests.faults", "benchmarks")
print(command_line("train", "--resume", {str(tmp_path)!r}))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    trusted = "--trust-code benchmarks --trust-code tests"
    assert done.stdout.endswith(f" train --resume {tmp_path} {trusted}\n")


@pytest.mark.slow
def test_stopped_together_with_its_loader_processes(config: Path, tmp_path: Path) -> None:
    """Ctrl-C and a batch system's SIGTERM come to all processes at once; what was done is saved."""
    run = tmp_path / "run"
    command = [sys.executable, "-m", "seqdiff.cli", "--trust-code=tests", "train", str(config)]
    command += ["--trainer.max_steps=999999999", "--data.num_workers=2"]
    for number in (signal.SIGINT, signal.SIGTERM):
        with subprocess.Popen(
            command, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True
        ) as process:
            seen = len((run / "metrics.csv").read_text()) if number == signal.SIGTERM else 0
            while process.poll() is None:
                time.sleep(0.05)
                if (run / "metrics.csv").exists() and (
                    len((run / "metrics.csv").read_text()) > seen + 1000
                ):
                    break
            os.killpg(process.pid, number)
            said = process.communicate(timeout=60)[1].splitlines()
        assert process.returncode == 130, said
        assert said == [
            f"seqdiff: metrics: {run / 'metrics.csv'}; tensorboard --logdir {run}",
            "seqdiff: saving after this step; a second signal stops at once",
            f"seqdiff: interrupted; to continue: {sys.executable} -m seqdiff.cli train --resume "
            f"{run} --trust-code tests",
        ]
        command[5:6] = ["--resume", str(run)]


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_goes_away_is_no_error(unbuffered: str) -> None:
    """As in ``seqdiff samplers | head -1``; other broken pipes are reported."""
    code = "import sys; from seqdiff.cli.app import main; import seqdiff.samplers\n"
    code += "sys.stdin.read(); sys.exit(main(['samplers']))"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    ) as process:
        assert process.stdin and process.stdout and process.stderr
        process.stdout.close()
        process.stdin.close()
        assert (process.wait(timeout=60), process.stderr.read()) == (141, b"")


def test_another_broken_pipe_is_reported(monkeypatch: pytest.MonkeyPatch, fails) -> None:
    def shout(word: str, /) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    _install(monkeypatch, "shout")
    monkeypatch.setitem(globals(), "shout", shout)
    assert fails(["shout", "ring"]) == "seqdiff: error: Broken pipe"


def test_trainer_arguments_reach_lightning_unchanged(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {
        "accelerator": "gpu",
        "devices": [0, 3],
        "num_nodes": 2,
        "strategy": "ddp_find_unused_parameters_true",
        "precision": "bf16-mixed",
        "accumulate_grad_batches": 4,
        "gradient_clip_val": 0.5,
        "max_time": "00:01:00:00",
        "deterministic": True,
        "val_check_interval": 9,
    }
    seen: dict[str, object] = {}

    class Recorder:
        def __init__(self, **arguments: object) -> None:
            seen.update(arguments)

    flags = [f"--trainer.{key}={value}" for key, value in given.items()]
    built = instantiate(parse_run(config, [*flags, "--ema_decay", "null"]))
    monkeypatch.setattr(trainer, "Trainer", Recorder)
    build = getattr(trainer.build_trainer, "__wrapped__", trainer.build_trainer)
    build(built.trainer, tmp_path, ema_decay=0.5, checkpoint_every_n_steps=5, tokenizer="any")
    assert {key: seen[key] for key in given} == given
    assert seen["use_distributed_sampler"] is False
    kinds = [type(callback) for callback in seen["callbacks"]]
    assert {EMA, RunCheckpoint} <= set(kinds)


def test_mixed_precision_keeps_the_loss_in_float32(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from seqdiff.denoiser import discrete
    from seqdiff.denoiser.discrete import Denoiser
    from tests.integration.toy_domain import ToyNet

    seen: dict[str, torch.dtype] = {}
    network, normalise, cost = ToyNet.forward, discrete.log_softmax, Denoiser.nats

    def forward(self, inputs, where=None):
        logits = network(self, inputs, where)
        seen["logits"] = logits.dtype
        return logits

    def log_softmax(logits):
        log_probs = normalise(logits)
        seen["log_probs"] = log_probs.dtype
        return log_probs

    def nats(self, *given):
        terms = cost(self, *given)
        seen["terms"] = terms.dtype
        return terms

    monkeypatch.setattr(ToyNet, "forward", forward)
    monkeypatch.setattr(discrete, "log_softmax", log_softmax)
    monkeypatch.setattr(Denoiser, "nats", nats)
    assert main(["train", str(config), "--trainer.precision", "bf16-mixed"]) == 0
    assert seen == {
        "logits": torch.bfloat16, "log_probs": torch.float32, "terms": torch.float32
    }  # fmt: skip


def test_help_of_a_fresh_process_imports_nothing_slow() -> None:
    code = "import sys; from seqdiff.cli.app import main; import sys\n"
    code += "main(['evaluate', '--help'])\n"
    code += "slow = {'torch', 'lightning', 'numpy', 'jsonargparse', 'numba'} & set(sys.modules)\n"
    code += "sys.exit(', '.join(slow) or 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr.strip() == "", done.stderr
    assert "--evaluations" in done.stdout

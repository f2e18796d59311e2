"""The command line is open: a domain adds subcommands as an outsider would."""

import argparse
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from seqdiff import cli
from seqdiff.cli import main
from seqdiff.commands import Command
from seqdiff.config import instantiate, parse_run
from seqdiff.training import trainer
from seqdiff.training.callbacks import EMA, RunCheckpoint
from tests.integration.conftest import Entry


class Shout:
    help = "say it louder"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("word")

    def run(self, args: argparse.Namespace) -> None:
        if args.word == "nothing":
            raise ValueError("shout.word must be a word,\n got nothing; say something")
        print(args.word.upper())


def _install(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    entries = [Entry(name, Shout())]
    monkeypatch.setattr(cli, "entry_points", lambda group: entries)


def test_a_domain_adds_a_subcommand(monkeypatch: pytest.MonkeyPatch, capsys, fails) -> None:
    _install(monkeypatch, "shout")
    assert isinstance(cli.commands()["shout"], Command)
    assert main(["shout", "ring"]) == 0
    assert capsys.readouterr().out == "RING\n"
    message = fails(["shout", "nothing"])
    assert message == "seqdiff: error: shout.word must be a word, got nothing; say something"
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    assert "say it louder" in capsys.readouterr().out


def test_a_domain_cannot_take_a_name_of_the_core(monkeypatch: pytest.MonkeyPatch, fails) -> None:
    _install(monkeypatch, "train")
    assert "must not repeat a name, got train from a test" in fails(["--help"])


def test_every_installed_command_keeps_the_contract() -> None:
    for name, command in cli.commands().items():
        assert isinstance(command, Command), name
        assert command.help and "\n" not in command.help
        command.add_arguments(argparse.ArgumentParser())


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["evaluate"], ["sample", "run"]])
def test_usage_errors_have_exit_code_2(arguments: list[str], capsys) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert "usage: seqdiff" in capsys.readouterr().err


def test_keys_are_listed(capsys) -> None:
    assert main(["train", "--keys"]) == 0
    text = capsys.readouterr().out
    for key in ("--optim.lr", "--trainer.strategy", "--ema_decay", "seqdiff.schedules.Cosine"):
        assert key in text


def test_interrupted(config: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(self, *args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(RunCheckpoint, "on_train_batch_end", interrupt)
    assert main(["train", str(config)]) == 130
    assert "train --resume RUN goes on" in capsys.readouterr().err.splitlines()[-1]


def test_trainer_arguments_reach_lightning_unchanged(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {
        "accelerator": "gpu",
        "devices": [0, 3],
        "num_nodes": 2,
        "strategy": "fsdp",
        "precision": "bf16-mixed",
        "accumulate_grad_batches": 4,
        "gradient_clip_val": 0.5,
        "max_time": "00:01:00:00",
        "deterministic": True,
        "limit_val_batches": 7,
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
    build(built.trainer, tmp_path, ema_decay=0.5, checkpoint_every_n_steps=5)
    assert {key: seen[key] for key in given} == given
    assert seen["use_distributed_sampler"] is False
    kinds = [type(callback) for callback in seen["callbacks"]]
    assert {EMA, RunCheckpoint} <= set(kinds)


def test_mixed_precision_keeps_the_loss_in_float32(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from seqdiff.training import objectives
    from tests.integration.toy_domain import ToyNet

    seen: dict[str, torch.dtype] = {}
    network, loss = ToyNet.forward, objectives.nelbo

    def forward(self, tokens, t=None, padding=None):
        logits = network(self, tokens, t, padding)
        seen["logits"] = logits.dtype
        return logits

    def nelbo(log_probs, *rest):
        terms = loss(log_probs, *rest)
        seen["log_probs"], seen["terms"] = log_probs.dtype, terms.dtype
        return terms

    monkeypatch.setattr(ToyNet, "forward", forward)
    monkeypatch.setattr(objectives, "nelbo", nelbo)
    assert main(["train", str(config), "--trainer.precision", "bf16-mixed"]) == 0
    assert seen == {
        "logits": torch.bfloat16, "log_probs": torch.float32, "terms": torch.float32
    }  # fmt: skip


def test_help_of_a_fresh_process_imports_nothing_slow() -> None:
    code = "import sys; from seqdiff.cli import main; import sys\n"
    code += "try: main(['evaluate', '--help'])\nexcept SystemExit: pass\n"
    code += "sys.exit(', '.join({'torch', 'lightning', 'numpy', 'rich'} & set(sys.modules)) or 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr.strip() == "", done.stderr
    assert "--evaluations" in done.stdout

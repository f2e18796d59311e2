"""Failures on a user's machine: one line, exit code 2, nothing half-written."""

import errno
import os
import pickle
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from tensorboard.summary.writer.record_writer import RecordWriter

import seqdiff.run.start
from seqdiff.cli.app import main
from seqdiff.files import replacing
from seqdiff.objectives import ContinuousNELBO
from seqdiff.run import Run
from tests.integration.conftest import TOY
from tests.integration.toy_domain import RingTokenizer, ToyNet

ROOT = Path(__file__).parents[2]


def _snapshot(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.fixture
def copied(trained: Path, tmp_path: Path) -> Path:
    """A finished run that a test may change."""
    return Path(shutil.copytree(trained, tmp_path / "copied"))


def _fill_disk(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Refuse to write more than the first byte of one kind of file."""
    original, suffix = Path.write_bytes, Path(name).suffix

    def full(self: Path, content: bytes) -> int:
        if self.suffix == suffix:
            original(self, content[:1])
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(self, content)

    monkeypatch.setattr(Path, "write_bytes", full)


@pytest.mark.parametrize("name", ["last.ckpt", "model.safetensors"])
def test_full_disk_while_saving_keeps_the_last_good_file(
    name: str, config: Path, tmp_path: Path, fails, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    assert main(["train", str(config), "--trainer.max_steps", "2"]) == 0
    before = _snapshot(run)
    _fill_disk(monkeypatch, name)
    message = fails(["train", "--resume", str(run), "--trainer.max_steps", "4"])
    assert f"{run / name} must be writable, got: No space left on device; free " in message
    assert re.search("; free [1-9][0-9,]+ bytes or use another disk$", message)
    assert _snapshot(run).keys() == before.keys()
    assert _snapshot(run)[name] == before[name]
    monkeypatch.undo()
    assert main(["train", "--resume", str(run)]) == 0


def test_full_disk_leaves_no_sample_file(
    trained: Path, tmp_path: Path, fails, monkeypatch: pytest.MonkeyPatch, toy_writer: None
) -> None:
    out = tmp_path / "out" / "a.ring"
    out.parent.mkdir()
    out.write_text("precious")

    def full(self: Path, text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    command = ["sample", str(trained), "--num", "1", "--length", "3", "--seed", "0", "--out"]
    assert "No space left on device" in fails([*command, str(out)])
    assert _snapshot(out.parent) == {"a.ring": b"precious"}


def test_writing_in_place_would_have_destroyed_it(tmp_path: Path) -> None:
    """Broken twin of ``replacing``: writes to the file itself when the disk is full."""
    path = tmp_path / "a.txt"
    path.write_text("precious")
    with pytest.raises(OSError), replacing(path) as temporary:
        temporary.write_text("half")
        raise OSError(errno.ENOSPC, "full")
    assert path.read_text() == "precious"
    with pytest.raises(OSError):
        path.write_text("half")
        raise OSError(errno.ENOSPC, "full")
    assert path.read_text() == "half"


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_full_disk_in_the_thread_of_tensorboard_is_one_line(
    config: Path, tmp_path: Path, fails, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(self, data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(RecordWriter, "write", write)
    before = threading.excepthook
    message = fails(["train", str(config)])
    said = f"{tmp_path / 'run' / 'tensorboard'} must be writable, got: No space left on device; "
    assert said + "free some space or use another disk" in message
    assert threading.excepthook is before


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_stops_with_the_last_good_checkpoint(
    value: float, config: Path, tmp_path: Path, fails, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = ContinuousNELBO.terms

    def poisoned(self, denoiser, batch, noise):
        terms = original(self, denoiser, batch, noise)
        return terms * value if 24 in batch.index else terms

    monkeypatch.setattr(ContinuousNELBO, "terms", poisoned)
    message = fails(["train", str(config), "--checkpoint_every_n_steps", "2"])
    assert "must give a finite loss" in message and "near step 4" in message
    run = tmp_path / "run"
    assert "; lower optim.lr, " in message
    said = f"; {run / 'last.ckpt'} of step 2 is kept; resume it with this change"
    assert message.endswith(said)
    message = fails(["train", str(config), "--output", str(tmp_path / "other")])
    assert message.endswith("; no checkpoint was saved before")
    assert torch.load(run / "last.ckpt", weights_only=True)["global_step"] == 2
    assert all(bool(w.isfinite().all()) for w in load_file(run / "model.safetensors").values())


def test_weights_that_are_not_finite_are_not_saved(
    config: Path, tmp_path: Path, fails, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A finite loss with a gradient that is not finite: that step is not saved."""
    original = ContinuousNELBO.terms

    def poisoned(self, denoiser, batch, noise):
        terms = original(self, denoiser, batch, noise)
        if 24 in batch.index:
            terms = terms + 0 * torch.sqrt(0 * terms)
        return terms

    monkeypatch.setattr(ContinuousNELBO, "terms", poisoned)
    message = fails(["train", str(config), "--checkpoint_every_n_steps", "2"])
    assert "RunCheckpoint must save finite weights" in message and "at step 4" in message
    assert torch.load(tmp_path / "run" / "last.ckpt", weights_only=True)["global_step"] == 2


def test_a_run_is_not_overwritten(trained: Path, config: Path, fails) -> None:
    before = _snapshot(trained)
    message = fails(["train", str(config), "--output", str(trained), "--seed", "9"])
    resume = f"seqdiff train --resume {trained} --trust-code tests, or choose another --output"
    assert "must not hold a run of another configuration" in message and resume in message
    assert _snapshot(trained) == before


def test_weights_alone_are_not_overwritten(copied: Path, config: Path, fails) -> None:
    (copied / "last.ckpt").unlink()
    before = _snapshot(copied)
    message = fails(["train", str(config), "--output", str(copied)])
    assert f"must not hold weights already, got {copied / 'model.safetensors'}" in message
    assert "--resume" not in message and _snapshot(copied) == before
    said = "must exist to resume, got nothing there; start another run from its weights: --start_f"
    assert said in fails(["train", "--resume", str(copied)])


def test_a_run_that_saved_nothing_may_start_again(copied: Path, config: Path) -> None:
    for name in ("last.ckpt", "model.safetensors"):
        (copied / name).unlink()
    assert main(["train", str(config), "--output", str(copied)]) == 0


def test_not_a_run_directory(tmp_path: Path, fails) -> None:
    for command in (["evaluate"], ["train", "--resume"]):
        assert "must hold run.yaml, got none" in fails([*command, str(tmp_path)])


def test_no_weights_yet(copied: Path, fails) -> None:
    (copied / "model.safetensors").unlink()
    assert "train until it is saved" in fails(["evaluate", str(copied)])
    (copied / "last.ckpt").unlink()
    said = "must exist to resume, got nothing there; start it again with the command that started"
    assert said in fails(["train", "--resume", str(copied)])


def _rewrite(copied: Path, change) -> None:
    weights = load_file(copied / "model.safetensors")
    change(weights)
    save_file(weights, copied / "model.safetensors")


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda w: w.pop("backbone.scores.bias"), "1 missing key(s), first backbone.scores.bias"),
        (lambda w: w.update(extra=torch.ones(1)), "1 unexpected key(s), first extra"),
        (
            lambda w: w.update({"backbone.scores.bias": torch.ones(9)}),
            "backbone.scores.bias of shape (9,) where (6,) is needed",
        ),
    ],
)
def test_weights_that_do_not_fit(copied: Path, fails, change, said: str) -> None:
    _rewrite(copied, change)
    assert said in fails(["evaluate", str(copied)])


def test_checkpoint_of_another_network(copied: Path, fails) -> None:
    path = copied / "run.yaml"
    path.write_text(path.read_text().replace("width: 8", "width: 9"))
    assert "must fit the backbone of run.yaml" in fails(["evaluate", str(copied)])
    flags = ["--trainer.max_steps", "99"]
    assert "must fit the backbone" in fails(["train", "--resume", str(copied), *flags])


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--backbone.width", "77"], "backbone.width at 8, got 77"),
        (["--backbone.width=0"], "backbone.width at 8, got 0"),
        (["--backbone", f"{TOY}.NetWithASpare"], f"backbone at {TOY}.ToyNet, got {TOY}.NetWith"),
    ],
)
def test_a_resumed_run_keeps_its_network(copied: Path, fails, flags: list[str], said: str) -> None:
    before = _snapshot(copied)
    message = fails(["train", "--resume", str(copied), "--trainer.max_steps=61", *flags])
    assert f"resume.flags must leave {said}" in message
    assert "since a run keeps its network when it is resumed; drop --backbone" in message
    after = _snapshot(copied)
    assert after.pop(".lock") and before.pop(".lock") and after == before


def test_two_trainings_do_not_mix(copied: Path, config: Path, tmp_path: Path, fails) -> None:
    """Neither a start nor a resumption; only the first process of a distributed run asks."""
    new = tmp_path / "new"
    new.mkdir()
    code = "import sys, time\nfrom contextlib import ExitStack\nfrom pathlib import Path\n"
    code += "from seqdiff.files import owning\nstack = ExitStack()\n"
    code += "for path in sys.argv[1:]:\n    stack.enter_context(owning('a', Path(path)))\n"
    code += "print(flush=True)\ntime.sleep(600)"
    command = [sys.executable, "-c", code, str(copied), str(new)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout and process.stdout.read(1)
            before = [_snapshot(folder) for folder in (copied, new)]
            resume = ["train", "--resume", str(copied), "--trainer.max_steps", "61"]
            for owner, folder, arguments in (
                ("resume.directory", copied, resume),
                ("RunConfig.output", new, ["train", str(config), "--output", str(new)]),
            ):
                said = f"{owner} must not be in use, got {folder}: process {process.pid} on "
                assert said in fails(arguments)
            assert [_snapshot(folder) for folder in (copied, new)] == before
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(seqdiff.run.start, "is_first_process", lambda: False)
                with seqdiff.run.start._alone("resume.directory", copied):
                    pass
        finally:
            process.kill()
    assert main(resume) == 0


def test_truncated_files(copied: Path, fails) -> None:
    for name in ("model.safetensors", "last.ckpt"):
        path = copied / name
        path.write_bytes(path.read_bytes()[:300])
    assert "must be a whole safetensors file" in fails(["evaluate", str(copied)])
    assert "must be a checkpoint of plain tensors" in fails(["train", "--resume", str(copied)])


class _Exploit:
    def __reduce__(self):
        return (print, ("executed",))


def test_a_checkpoint_is_never_unpickled(copied: Path, fails, capsys) -> None:
    """Broken twin: ``torch.load`` without ``weights_only`` runs code from the file."""
    torch.save({"global_step": _Exploit(), "state_dict": {}}, copied / "last.ckpt")
    message = fails(["train", "--resume", str(copied)])
    assert "must be a checkpoint of plain tensors" in message
    assert "executed" not in message + capsys.readouterr().out
    torch.load(copied / "last.ckpt", weights_only=False)
    assert "executed" in capsys.readouterr().out
    assert pickle.loads(pickle.dumps(_Exploit())) is None


def test_another_tokenizer(copied: Path, fails, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RingTokenizer, "fingerprint", "ring-of-another-kind")
    message = fails(["evaluate", str(copied)])
    assert "trained with (ring-uvwxyz), got ring-of-another-kind" in message


def test_backbone_with_other_outputs(config: Path, fails, monkeypatch: pytest.MonkeyPatch) -> None:
    def wider(self, inputs, where):
        return torch.zeros(int(where.sum()), 9, requires_grad=True)

    monkeypatch.setattr(ToyNet, "forward", wider)
    assert "must emit 6 outputs for subs, got 9" in fails(["train", str(config)])


def test_traceback_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEQDIFF_TRACEBACK", "1")
    with pytest.raises(FileNotFoundError):
        main(["evaluate", str(tmp_path)])


def test_run_yaml_trains_the_same_run_again(trained: Path, tmp_path: Path) -> None:
    """run.yaml is complete: training from it reproduces the weights."""
    again = tmp_path / "again"
    command = ["train", str(trained / "run.yaml"), "--output", str(again)]
    assert main(command) == 0
    name = "model.safetensors"
    assert (again / name).read_bytes() == (trained / name).read_bytes()
    saved = [yaml.safe_load((run / "run.yaml").read_text()) for run in (trained, again)]
    assert saved[0].pop("output") != saved[1].pop("output")
    assert saved[0] == saved[1]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--trainer.devices=0"], "TrainerConfig must describe what this machine has"),
        (["--trainer.strategy=nope"], "TrainerConfig must describe what this machine has"),
        (["--trainer.max_time=nonsense"], "TrainerConfig must describe what this machine has"),
    ],
)
def test_what_lightning_refuses_is_one_line(
    config: Path, tmp_path: Path, fails, flags: list[str], message: str
) -> None:
    run = tmp_path / "refused"
    assert message in fails(["train", str(config), "--output", str(run), *flags])
    assert not (run / "run.yaml").exists()


def test_an_impossible_run_directory_is_refused_before_a_network_is_built(
    config: Path, tmp_path: Path, fails, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("seqdiff.run.start.instantiate")
    (tmp_path / "taken").touch()
    message = fails(["train", str(config), f"--output={tmp_path}/taken"])
    assert "RunConfig.output must be a folder" in message


def test_a_refused_resume_leaves_the_run_as_it_was(config: Path, tmp_path: Path, fails) -> None:
    run = tmp_path / "kept"
    assert main(["train", str(config), "--output", str(run)]) == 0
    before = (run / "run.yaml").read_bytes()
    other = tmp_path / "other.yaml"
    other.write_text("output: elsewhere")
    for flags, said in (
        (["--trainer.devices=0"], "must describe what this machine has"),
        (["--output=elsewhere"], f"must leave output at {run}, got elsewhere; copy"),
        (["--outp", "elsewhere"], "--outp elsewhere"),
        (["--config", str(other)], "must be keys that an option can set, got --config"),
        (["--base", str(other)], "must be keys that an option can set, got --base"),
        (["--provenance=null"], "must be keys that an option can set, got --provenance=null"),
        (["--resume", str(run)], "--resume specified multiple times"),
    ):
        message = fails(["train", "--resume", str(run), "--trainer.max_steps=9", *flags])
        assert said in message and "ambiguous" not in message
        assert (run / "run.yaml").read_bytes() == before
    assert main(["train", "--resume", str(run), "--trainer.max_steps=9", f"--output={run}"]) == 0


def test_a_format_is_checked_before_anything_is_drawn(
    trained: Path, tmp_path: Path, fails, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FASTA files hold DNA, and the symbols of the toy domain are u to z."""

    def draw(*arguments: object, **options: object) -> None:
        raise AssertionError("it drew")

    monkeypatch.setattr(Run, "draw", draw)
    message = fails(["sample", str(trained), "--out", str(tmp_path / "some.fa")])
    assert (
        f"sample.out must be a file that can hold the symbols of the run, got {tmp_path}/some.fa"
        in message
    )
    assert "choose another suffix: .fa, " in message
    assert not list(tmp_path.iterdir())

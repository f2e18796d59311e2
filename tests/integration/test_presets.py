"""The systems of the papers by name, on compatible and on incompatible networks."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml

from seqdiff.cli.app import main
from seqdiff.experts import mixture, ngrams
from seqdiff.run import load
from seqdiff.run.presets import PRESETS
from seqdiff.schedules import Polynomial
from seqdiff.training import CHECKPOINT_NAME, WEIGHTS_NAME

TOY = "tests.integration.toy_domain"
NETWORKS = {
    "Transformer": {"d_model": 16, "n_layer": 1, "n_heads": 2, "cond_dim": 8},
    "Caduceus": {"d_model": 8, "n_layer": 1},
    "BlockMamba": {"d_model": 8, "n_layer": 1},
    "AutoregressiveTransformer": {"d_model": 16, "n_layer": 1, "n_heads": 2},
}
# Every pair that trains; for the others the error names what the network lacks.
FIT = {
    "Transformer": set(PRESETS) - {"ar"},
    "Caduceus": set(PRESETS) - {"ar", "bd3lm"},
    "BlockMamba": {"mdlm", "mlm", "bd3lm"},
    "AutoregressiveTransformer": {"mdlm", "mlm", "ar"},
}
LACKS = {"ar": "from the tokens before it", "bd3lm": "must score blocks"}

Fails = Callable[[list[str]], str]


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> None:
    torch.set_num_threads(1)


def configure(folder: Path, network: str, **init_args: object) -> Path:
    path = folder / "toy.yaml"
    content = {
        "output": str(folder / "run"),
        "data": {"class_path": f"{TOY}.ToyData", "init_args": {"length": 6, "batch_size": 4}},
        "backbone": {
            "class_path": f"seqdiff.backbones.{network}",
            "init_args": NETWORKS[network] | init_args,
        },
        "experts": {"order": 2},
        "trainer": {"accelerator": "cpu", "enable_progress_bar": False, "log_every_n_steps": 1},
    }
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.mark.parametrize("network", list(NETWORKS))
def test_a_preset_goes_with_the_networks_that_have_what_it_needs(
    network: str, tmp_path: Path, fails: Fails
) -> None:
    path = configure(tmp_path, network)
    for preset in PRESETS:
        run = tmp_path / preset
        words = ["train", str(path), "--preset", preset, "--trainer.max_steps", "0"]
        words += ["--output", str(run)]
        if preset in FIT[network]:
            assert main(words) == 0
            denoiser = load(run).denoiser
            assert denoiser.backbone.time_conditioned == PRESETS[preset].time_conditioned
            assert denoiser.experts is None, "the papers have none"
        else:
            message = fails(words)
            assert LACKS.get(preset, "must go with a backbone that can be told") in message
            assert network in message
            assert not run.exists(), "before anything is written"


@pytest.fixture(scope="module")
def uniform(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of uniform noise after one step; tests only read it."""
    folder = tmp_path_factory.mktemp("uniform")
    path = configure(folder, "Transformer")
    words = ["--preset", "udlm", "--trainer.max_steps", "1"]
    assert main(["train", str(path), *words]) == 0
    return folder / "run"


@pytest.mark.parametrize(
    ("preset", "flags", "said"),
    [
        ("gidd", ["--process.p_u", "1.5"], "Hybrid.p_u must be in [0, 1), got 1.5"),
        ("d3pm", ["--objective.num_steps", "0"], "DiscreteNELBO.num_steps must be at least 1"),
        (
            "sedd",
            ["--process.schedule", "seqdiff.schedules.Geometric"],
            "Absorbing.schedule must have alpha(0) = 1 and alpha(1) = 0",
        ),
        (
            "udlm",
            ["--objective", "seqdiff.objectives.WeightedMLM"],
            "got WeightedMLM; choose ContinuousNELBO or CrossEntropy or DiscreteNELBO",
        ),
        (
            "udlm",
            ["--block_size", "2"],
            "RunConfig.block_size must be null with the process uniform",
        ),
        (
            "gidd",
            ["--parameterization", "seqdiff.parameterization.Score"],
            "must go with the process absorbing, uniform, got hybrid",
        ),
        (
            "plaid",
            ["--experts.order", "2"],
            "RunConfig.experts must be null with the process gaussian, got order 2",
        ),
        ("nosuch", [], "train.preset must be one of mdlm, bd3lm"),
    ],
)
def test_what_does_not_go_together_is_an_error_in_one_line(
    preset: str, flags: list[str], said: str, tmp_path: Path, fails: Fails
) -> None:
    path = configure(tmp_path, "Transformer")
    message = fails(["train", str(path), "--preset", preset, *flags])
    assert said in message
    assert not (tmp_path / "run").exists()


def test_tables_that_take_too_much_are_shorter(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = configure(tmp_path, "Transformer")
    assert main(["train", str(path), "--trainer.max_steps=1", "--experts.order=1"]) == 0
    experts = load(tmp_path / "run").denoiser.experts
    assert experts is not None
    monkeypatch.setattr(mixture, "_MOST_BYTES", len(experts.get_extra_state()))
    capsys.readouterr()
    again = ["--experts.order=3", f"--output={tmp_path / 'again'}"]
    assert main(["train", str(path), "--trainer.max_steps=1", *again]) == 0
    said = "seqdiff: experts.order is 1 instead of 3: the tables of a higher order are too large"
    assert said in capsys.readouterr().err.splitlines()
    experts = load(tmp_path / "again").denoiser.experts
    assert experts is not None
    assert (experts.order, experts.table_order) == (3, 1)


def test_orders_whose_words_are_too_long_are_shorter(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ngrams, "MOST_ORDER", 1)
    path = configure(tmp_path, "Transformer")
    assert main(["train", str(path), "--trainer.max_steps=1", "--experts.order=3"]) == 0
    said = "experts.order is 1 instead of 3: longer words of 6 symbols do not fit into 63 bits"
    assert f"seqdiff: {said}" in capsys.readouterr().err.splitlines()


def test_flags_change_what_a_preset_says(tmp_path: Path) -> None:
    path = configure(tmp_path, "Transformer")
    flags = ["--process.schedule", "seqdiff.schedules.Polynomial", "--process.schedule.power", "2"]
    flags += ["--trainer.max_steps", "0", "--preset", "sedd"]
    assert main(["train", str(path), *flags]) == 0
    run = load(tmp_path / "run")
    assert run.process.schedule == Polynomial(2.0)
    assert run.denoiser.kind == "score"
    flags = ["--preset", "mdlm", "--experts.order", "1", f"--output={tmp_path / 'mdlm'}"]
    assert main(["train", str(path), "--trainer.max_steps", "1", *flags]) == 0
    experts = load(tmp_path / "mdlm").denoiser.experts
    assert experts is not None
    assert experts.order == 1


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["sample", "--sampler", "first_hitting"], "choose from ancestral, gibbs"),
        (["sample", "--sampler", "ancestral", "--num-steps", "0"], "num_steps must be at least 1"),
        (["evaluate", "--estimator", "stratified-k"], "must be time-integral or discrete-steps"),
        (
            ["evaluate", "--estimator", "discrete-steps", "--steps", "0"],
            "num_steps must be at least 1",
        ),
    ],
)
def test_commands_name_what_fits_a_run(
    uniform: Path, command: list[str], said: str, tmp_path: Path, fails: Fails, toy_writer: None
) -> None:
    out = tmp_path / "drawn.ring"
    drawing = ["--num", "1", "--length", "6", "--seed", "1", "--out", str(out)]
    name, *flags = command
    words = [name, str(uniform), *(drawing if name == "sample" else []), *flags]
    assert said in fails([*words, "--device", "cpu"])
    assert not out.exists()


@pytest.mark.parametrize("kind", ["Full", "Score"])
def test_weights_are_not_read_as_another_kind_of_model(
    kind: str, uniform: Path, tmp_path: Path, fails: Fails
) -> None:
    """Leave-one-out, full and score networks of uniform noise have weights of the same shapes."""
    copy = tmp_path / "run"
    copy.mkdir()
    for file in uniform.iterdir():
        if file.is_file():
            (copy / file.name).write_bytes(file.read_bytes())
    content = yaml.safe_load((copy / "run.yaml").read_text())
    assert content["parameterization"]["class_path"].endswith("LeaveOneOut")
    content["parameterization"] = {"class_path": f"seqdiff.parameterization.{kind}"}
    (copy / "run.yaml").write_text(yaml.safe_dump(content))
    message = fails(["evaluate", str(copy), "--device", "cpu"])
    assert f"{WEIGHTS_NAME} must be of the process uniform with parameterization" in message
    assert "got one of the process uniform with parameterization leave-one-out" in message
    message = fails(["train", "--resume", str(copy), "--trainer.max_steps", "2"])
    assert f"{CHECKPOINT_NAME} must be of the process uniform" in message


def test_weights_of_subs_are_not_read_as_scores(tmp_path: Path, fails: Fails) -> None:
    path, run = configure(tmp_path, "Transformer", time_conditioned=True), tmp_path / "run"
    assert main(["train", str(path), "--preset", "mdlm", "--trainer.max_steps", "0"]) == 0
    content = yaml.safe_load((run / "run.yaml").read_text())
    content["parameterization"] = {"class_path": "seqdiff.parameterization.Score"}
    (run / "run.yaml").write_text(yaml.safe_dump(content))
    said = "must be of the process absorbing with parameterization score"
    assert said in fails(["evaluate", str(run), "--device", "cpu"])

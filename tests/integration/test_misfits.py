"""Incompatible processes, parameterizations, checkpoints and options, from the command line.

Each is a one-line error with exit code 2, before anything is written; the ``fails`` fixture checks
that. A schedule that leaves tokens at t = 1 is allowed, and its cost is counted.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from seqdiff.cli.app import main
from seqdiff.process import Uniform
from seqdiff.run import load
from seqdiff.schedules import Completed, Geometric, LogLinear
from tests.integration.test_presets import configure
from tests.integration.toy_domain import ToyNet

Fails = Callable[[list[str]], str]
HERE = "tests.integration.test_misfits"
UNTRAINED = ["--trainer.max_steps", "0"]


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> None:
    torch.set_num_threads(1)


class SixOutputs(ToyNet):
    """A network with an output for each of six symbols and a time input."""

    def __init__(
        self, *, num_embeddings: int, num_logits: int, time_conditioned: bool = False
    ) -> None:
        del num_logits
        super().__init__(num_embeddings=num_embeddings, num_logits=6)
        self.time_conditioned = time_conditioned


COMPLETED = "wrap it in Completed(...), on the command line --process.schedule Completed --process."


@pytest.mark.parametrize(
    ("preset", "flags", "said"),
    [
        (
            "d3pm",
            ["--backbone", f"{HERE}.SixOutputs"],
            "Denoiser.backbone must emit 7 outputs for mask-column, got 6 from SixOutputs; build",
        ),
        (
            "d3pm",
            ["--backbone.time_conditioned", "false"],
            "must be told the noise level for the parameterization mask-column, got a time-free "
            "Transformer; build it with time_conditioned=True",
        ),
        (
            "udlm",
            ["--backbone.init_args.time_conditioned=false"],
            "must be told the noise level for the process uniform, got a time-free Transformer",
        ),
        ("d3pm", ["--objective.num_steps", "-3"], "num_steps must be at least 1, got -3; use Cont"),
        ("gidd", ["--process.p_u", "-0.1"], "Hybrid.p_u must be in [0, 1), got -0.1; 0.1 is usual"),
        ("gidd", ["--process.p_u", "1"], "Hybrid.p_u must be in [0, 1), got 1.0; 0.1 is usual"),
        (
            "mdlm",
            ["--process.schedule.eps", "1e-3"],
            f"got 1 and 0.001 from LogLinear(eps=0.001); {COMPLETED}schedule.schedule LogLinear",
        ),
        (
            "bd3lm",
            ["--process.schedule", "Geometric"],
            "Absorbing.schedule must have alpha(0) = 1 and alpha(1) = 0, got 0.999 and 2.06115e-09",
        ),
        (
            "gidd",
            ["--process.schedule", "Cosine"],
            "'seqdiff.process.Hybrid': Option 'schedule' is not accepted; choose from p_u",
        ),
        ("plaid", ["--process.schedule", "Cosine"], "Option 'schedule' is not accepted; choose fr"),
        (
            "plaid",
            ["--process.gamma_0", "6", "--process.gamma_1", "-3"],
            "gamma_1 must satisfy gamma_0 < gamma_1, got (6.0, -3.0); -3 and 6 are published",
        ),
        (
            "udlm",
            ["--process.schedule.eps", "1.5"],
            "LogLinear.eps must be in [0, 1), got 1.5; 0 leaves no token visible at t = 1",
        ),
        (
            "udlm",
            ["--parameterization", "Subs"],
            "parameterization subs must go with the process absorbing, blockwise, got uniform; "
            "choose the parameterization Full or LeaveOneOut or Score",
        ),
        (
            "gidd",
            ["--process.vocab_size", "7"],
            "process.init_args.vocab_size must not be set, got 7; drop it, it follows from data",
        ),
    ],
)
def test_systems(preset: str, flags: list[str], said: str, tmp_path: Path, fails: Fails) -> None:
    path = configure(tmp_path, "Transformer")
    assert said in fails(["train", str(path), "--preset", preset, *UNTRAINED, *flags])
    assert not (tmp_path / "run").exists()


def test_a_file_that_names_a_preset_and_no_time_input(tmp_path: Path, fails: Fails) -> None:
    """A flag overrides a file; here the preset decides."""
    path = configure(tmp_path, "Transformer", time_conditioned=False)
    content = path.read_text()
    path.write_text(f"preset: udlm\n{content}")
    said = "must be told the noise level for the process uniform, got a time-free Transformer"
    assert said in fails(["train", str(path), *UNTRAINED])
    path.write_text(content)
    assert main(["train", str(path), "--preset", "udlm", *UNTRAINED]) == 0
    assert load(tmp_path / "run").denoiser.time_conditioned


def test_the_way_out_of_an_incomplete_schedule(tmp_path: Path) -> None:
    flags = ["--process.schedule", "Completed", "--process.schedule.schedule", "Geometric"]
    path = configure(tmp_path, "Transformer")
    assert main(["train", str(path), "--preset", "sedd", *flags, *UNTRAINED]) == 0
    assert load(tmp_path / "run").process.schedule == Completed(Geometric())


@pytest.mark.slow
def test_a_schedule_that_leaves_tokens_at_the_end_is_counted(tmp_path: Path) -> None:
    """alpha(1) = 1/2: a uniform prediction costs log2(6), including the prior."""
    path, out = configure(tmp_path, "Transformer"), tmp_path / "e.json"
    run, eps = tmp_path / "run", ["--process.schedule.eps", "0.5"]
    assert main(["train", str(path), "--preset", "udlm", *eps, *UNTRAINED]) == 0
    command = ["evaluate", str(run), "--device", "cpu", "--json", str(out), "--evaluations", "256"]
    for flags in ([], ["--estimator", "discrete-steps", "--steps", "4"]):
        assert main([*command, *flags]) == 0
        (row, _) = json.loads(out.read_text())["rows"]
        prior = float(Uniform(6, LogLinear(0.5)).prior_kl(torch.tensor(0))) / math.log(2)
        assert prior == pytest.approx(0.6376, abs=1e-4)
        assert 8 * row["bits_per_token_estimator_error"] < prior, "which would be missed"
        assert row["bits_per_token"] == pytest.approx(math.log2(6), abs=prior / 4)


# Commands on runs of every kind


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Untrained runs; tests only read them."""
    found = {}
    for preset in ("mdlm", "bd3lm", "sedd", "udlm", "gidd", "plaid", "ar"):
        folder = tmp_path_factory.mktemp(preset)
        network = "AutoregressiveTransformer" if preset == "ar" else "Transformer"
        path, found[preset] = configure(folder, network), folder / "run"
        size = ["--block_size", "3"] if preset == "bd3lm" else []
        assert main(["train", str(path), "--preset", preset, *size, *UNTRAINED]) == 0
    return found


def samplers(name: str, wrong: str, right: str) -> tuple[str, list[str], str]:
    return name, ["--sampler", wrong], f"choose from {right}"


NOISY = "ancestral, gibbs, predictor_corrector, tau_leaping, tweedie"


@pytest.mark.usefixtures("toy_writer")
@pytest.mark.parametrize(
    ("name", "flags", "said"),
    [
        samplers("udlm", "first_hitting", NOISY),
        samplers("gidd", "remask_cap", NOISY),
        samplers("sedd", "ancestral", "tau_leaping, tweedie"),
        samplers("plaid", "ancestral", "gaussian"),
        samplers("mdlm", "gaussian", "ancestral, cached_ancestral, "),
        samplers("mdlm", "gibbs", "ancestral, cached_ancestral, "),
        samplers("bd3lm", "tweedie", "block"),
        samplers("ar", "block", "left_to_right"),
        ("udlm", ["--num-steps", "0"], "error: AncestralSampler.num_steps must be at least 1, got"),
        ("sedd", ["--num-steps", "0"], "error: TweedieSampler.num_steps must be at least 1, got"),
        ("plaid", ["--num-steps", "0"], "error: GaussianSampler.num_steps must be at least 1, got"),
        ("mdlm", ["--num-steps", "0"], "FirstHittingSampler.num_steps must be at least 1, got 0"),
        (
            "gidd",
            ["--sampler", "predictor_corrector", "--renoise", "2"],
            "PredictorCorrectorSampler.renoise must be in (0, 1], got 2.0; 0.1 is mild",
        ),
    ],
)
def test_sampling(
    name: str, flags: list[str], said: str, runs: dict[str, Path], tmp_path: Path, fails: Fails
) -> None:
    out = tmp_path / "drawn.ring"
    words = ["--num", "1", "--length", "6", "--seed", "1", "--out", str(out), "--device", "cpu"]
    assert said in fails(["sample", str(runs[name]), *words, *flags])
    assert not list(tmp_path.iterdir())


def estimators(name: str, wrong: str, right: str) -> tuple[str, list[str], str]:
    return name, ["--estimator", wrong], f"evaluate.estimator must be {right}"


@pytest.mark.parametrize(
    ("name", "flags", "said"),
    [
        estimators("udlm", "exact-k", "time-integral or discrete-steps"),
        estimators("gidd", "fixed-order", "time-integral or discrete-steps"),
        estimators("sedd", "discrete-steps", "time-integral"),
        estimators("plaid", "time-integral", "gaussian-integral"),
        estimators("mdlm", "gaussian-integral", "bernoulli-time or exact-k or stratified-k or "),
        estimators("bd3lm", "fixed-order", "bernoulli-time or exact-k or stratified-k"),
        estimators("ar", "stratified-k", "chain-rule"),
        (
            "udlm",
            ["--estimator", "discrete-steps", "--steps", "0"],
            "DiscreteSteps.num_steps must be at least 1, got 0; time-integral is the limit of many",
        ),
        (
            "ar",
            ["--evaluations", "4"],
            "evaluate.evaluations must be left out for the process left-to-right with "
            "parameterization leave-one-out, whose estimator chain-rule does not take it, got 4; ",
        ),
        (
            "gidd",
            ["--convention", "mdlm"],
            "evaluate.convention must be left out for the process hybrid with parameterization "
            "leave-one-out, whose estimator time-integral does not take it, got mdlm; leave out",
        ),
    ],
)
def test_evaluation(
    name: str, flags: list[str], said: str, runs: dict[str, Path], tmp_path: Path, fails: Fails
) -> None:
    words = ["evaluate", str(runs[name]), "--device", "cpu", "--json", str(tmp_path / "e.json")]
    assert said in fails([*words, *flags])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("first", "preset", "flags"),
    [
        ("udlm", "udlm", ["--parameterization", "Full"]),
        ("udlm", "sedd_uniform", []),
        ("udlm", "plaid", []),
        ("mdlm", "sedd", []),
    ],
)
def test_weights_of_another_kind_of_prediction_do_not_start_a_run(
    first: str,
    preset: str,
    flags: list[str],
    runs: dict[str, Path],
    tmp_path: Path,
    fails: Fails,
) -> None:
    """Three of them have the same names and shapes, so the kind has to be checked."""
    path = configure(tmp_path, "Transformer")
    words = ["train", str(path), "--preset", preset, *flags, *UNTRAINED]
    message = fails([*words, "--start_from", str(runs[first])])
    assert f"start_from {runs[first]} must be of a model whose outputs mean the same" in message
    written = load(runs[first]).denoiser.description
    assert f"got the {written}; start from a run that has parameterization" in message
    assert not (tmp_path / "run").exists()


def test_weights_of_the_same_kind_of_prediction_start_a_run(
    runs: dict[str, Path], tmp_path: Path
) -> None:
    """Hybrid noise continues from uniform noise: both predict a token from the others."""
    path = configure(tmp_path, "Transformer")
    words = ["train", str(path), "--preset", "gidd", *UNTRAINED]
    assert main([*words, "--start_from", str(runs["udlm"])]) == 0
    then, first = (load(run).denoiser.state_dict() for run in (tmp_path / "run", runs["udlm"]))
    assert all(torch.equal(then[name], first[name]) for name in first)

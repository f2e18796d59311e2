"""A process of a user trains, evaluates and samples without changes to seqdiff."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from torch import Tensor

from seqdiff.cli.app import main
from seqdiff.denoiser.discrete import Denoiser
from seqdiff.losses import ctmc_nelbo, discrete_kl
from seqdiff.run import load
from seqdiff.samplers import AncestralSampler, TauLeapingSampler
from seqdiff.samplers.protocol import fitting_samplers, named_samplers
from seqdiff.training import last_logged
from seqdiff.types import Inputs
from tests.enumeration import distance
from tests.noisy_worlds import Joint, World, chain, every_row, kernel, single_site
from tests.ring_process import Offsets, Ring

Fails = Callable[[list[str]], str]
Term = Callable[[Tensor, Tensor, Tensor], Tensor]
SETTINGS = {
    "data": {
        "class_path": "tests.ring_process.EasyData",
        "init_args": {"length": 8, "batch_size": 16},
    },
    "backbone": {
        "class_path": "seqdiff.backbones.Transformer",
        "init_args": {
            "d_model": 32,
            "n_layer": 1,
            "n_heads": 2,
            "cond_dim": 8,
            "time_conditioned": True,
        },
    },
    "process": {"class_path": "tests.ring_process.Ring", "init_args": {"speed": 5.0}},
    "parameterization": {"class_path": "tests.ring_process.Offsets"},
    "optim": {"lr": 1e-2},
    "ema_decay": None,
    "trainer": {
        "max_steps": 40,
        "val_check_interval": 20,
        "accelerator": "cpu",
        "enable_progress_bar": False,
    },
}
OBJECTIVES = {
    "ContinuousNELBO": {"time_sampler": {"class_path": "seqdiff.objectives.Sobol"}},
    "DiscreteNELBO": {"num_steps": 20},
}


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> None:
    torch.set_num_threads(1)


def configure(folder: Path, **keys: object) -> Path:
    path = folder / "ring.yaml"
    path.write_text(yaml.safe_dump(SETTINGS | {"output": str(folder / "run")} | keys))
    return path


@pytest.mark.parametrize("objective", list(OBJECTIVES))
def test_it_trains_evaluates_and_samples(
    objective: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], toy_writer: None
) -> None:
    chosen = {
        "class_path": f"seqdiff.objectives.{objective}",
        "init_args": OBJECTIVES[objective],
    }
    path, run = configure(tmp_path, objective=chosen), tmp_path / "run"
    assert main(["train", str(path)]) == 0
    logged = last_logged(run / "metrics.csv", "val/nats_per_token")
    assert logged is not None
    assert logged[1] < 0.6 * np.log(6), "it has learned which symbols there are"
    loaded = load(run)
    assert loaded.process == Ring(6, speed=5.0)
    assert loaded.denoiser.parameterization == Offsets()
    kinds = named_samplers()
    ours = [n for n, kind in kinds.items() if kind.__module__.startswith("seqdiff.")]
    assert set(ours) & set(fitting_samplers(loaded.denoiser)) == {"ancestral", "tau_leaping"}
    for estimator in ("time-integral", "discrete-steps"):
        words = ["--estimator", estimator, "--evaluations", "8", "--device", "cpu"]
        assert main(["evaluate", str(run), *words]) == 0
    for sampler in ("ancestral", "tau_leaping"):
        drawn = tmp_path / f"{sampler}.ring"
        words = ["--num", "3", "--length", "8", "--seed", "1", "--out", str(drawn)]
        words += ["--sampler", sampler, "--num-steps", "6", "--device", "cpu"]
        assert main(["sample", str(run), *words]) == 0
        rings = [line.split()[1] for line in drawn.read_text().splitlines()]
        assert [len(ring) for ring in rings] == [8] * 3
        assert set("".join(rings)) <= set("uvwxyz")
    coarse = TauLeapingSampler(6).sample(
        loaded.denoiser, loaded.process.blank((3, 8)), seeds=loaded.row_seeds(3, 1)
    )
    assert coarse.clamped is not None
    scaled = int(coarse.clamped.sum())
    said = capsys.readouterr().out.splitlines()
    assert scaled and f"{scaled} times the probabilities of a token's jumps added up" in said[-1]
    assert not any("scaled down" in line for line in said[:-1]), "ancestral has nothing to scale"


def test_what_it_cannot_have_is_an_error_in_one_line(tmp_path: Path, fails: Fails) -> None:
    path = configure(tmp_path)
    for words, said in (
        (
            ["--objective", "seqdiff.objectives.WeightedMLM"],
            "choose ContinuousNELBO or DiscreteNELBO",
        ),
        (["--parameterization", "null"], "parameterization must be given for the process ring"),
        (["--parameterization", "seqdiff.parameterization.LeaveOneOut"], "got ring"),
        (
            ["--backbone.time_conditioned", "false"],
            "must be told the noise level for the process ring",
        ),
        (["--process.speed", "fast"], "speed"),
    ):
        assert said in fails(["train", str(path), *words])
    assert not (tmp_path / "run").exists()


# The exact model


def exact_ring(joint: Joint, process: Ring, *, full: bool = False) -> Denoiser:
    """The exact leave-one-out model in offsets; ``full`` gives the twin that counts z twice."""

    def answer(z: Tensor, t: Tensor, label: Tensor, process: Ring) -> Tensor:
        table = joint.log_full if full else joint.log_loo
        symbols = (z[..., None] + torch.arange(process.vocab_size)) % process.vocab_size
        return table(z, t, process).gather(-1, symbols)

    return Denoiser(World(answer, process, process.vocab_size), process, Offsets()).eval()


def loo(denoiser: Denoiser, z: Tensor, t: Tensor) -> Tensor:
    return denoiser.log_loo(Inputs(z, t))


def noisy_given(joint: Joint, t: Tensor, process: Ring) -> Tensor:
    """q_t(z | x) of every clean and noisy row at some times: ``[n, rows, rows]``."""
    rows, symbols = joint.rows, torch.arange(joint.size)
    one_hot = process.one_hot(symbols).expand(len(t), -1, -1)
    table = process.log_marginal(one_hot, t[:, None].expand(len(t), joint.size))
    return table[:, rows[:, None], rows[None]].sum(dim=-1).exp()


def expected(joint: Joint, t: Tensor, weight: Tensor, term: Term, process: Ring) -> Tensor:
    """Weighted sum over times of E sum_l term(x, z, t), for every clean row x."""
    rows, chances = joint.rows, noisy_given(joint, t, process)
    z, times = (
        rows.repeat(len(t), 1),
        t.repeat_interleave(len(rows))[:, None].expand(-1, joint.length),
    )
    found = []
    for number, x in enumerate(rows):
        terms = term(x.expand(z.shape), z, times).sum(dim=-1).view(len(t), -1)
        found.append((weight[:, None] * chances[:, number] * terms).sum())
    return torch.stack(found)


def integral(joint: Joint, denoiser: Denoiser) -> Tensor:
    """The continuous bound of every clean row, without its ends; t = u^4."""
    process = denoiser.process
    nodes, weights = np.polynomial.legendre.leggauss(64)
    u, weight = torch.from_numpy((nodes + 1) / 2), torch.from_numpy(weights / 2)
    distribution = loo(
        denoiser, joint.rows.repeat(len(u), 1), (u**4).repeat_interleave(len(joint.rows))
    )

    def term(x: Tensor, z: Tensor, t: Tensor) -> Tensor:
        return ctmc_nelbo(distribution, x, z, t, process)

    return expected(joint, u**4, weight * 4 * u**3, term, process)


@pytest.mark.parametrize(("size", "length"), [(5, 1), (4, 2)])
def test_the_continuous_bound_of_the_exact_model_is_the_likelihood(size: int, length: int) -> None:
    """Up to the cost of both ends: -log p + KL(q_1(. | x) || prior) - KL(q_1(. | x) || p_1)."""
    process, joint = Ring(size, speed=4.0), Joint.random(size, length, seed=1)
    one = torch.ones((), dtype=torch.float64)
    log_q = noisy_given(joint, one[None], process)[0].log()
    log_p = torch.logsumexp(log_q + joint.probs.log()[:, None], dim=0)
    lost = (log_q.exp() * (log_q - log_p)).sum(dim=-1)
    prior = process.prior_kl(joint.rows).sum(dim=-1)
    assert not process.forgets
    assert process.starts_clean
    found = integral(joint, exact_ring(joint, process)) + prior
    wanted = -joint.probs.log() + prior - lost
    assert (found - wanted).abs().max() < 1e-8
    assert lost.min() > 1e-6, "alpha(1) > 0 has a price"
    twin = integral(joint, exact_ring(joint, process, full=True)) + prior
    assert (twin - wanted).abs().max() > 0.05


def steps_bound(joint: Joint, denoiser: Denoiser, num_steps: int) -> float:
    """E_x of the T-step bound, including the prior."""
    process = denoiser.process
    t = torch.linspace(0, 1, num_steps + 1, dtype=torch.float64)[1:]
    rows = joint.rows.repeat(num_steps, 1)
    distribution = loo(denoiser, rows, t.repeat_interleave(len(joint.rows)))

    def term(x: Tensor, z: Tensor, t: Tensor) -> Tensor:
        terms = discrete_kl(distribution, x, z, (t - 1 / num_steps).clamp_min(0), t, process)
        assert terms.min() > -1e-12
        return terms

    inside = expected(joint, t, torch.ones_like(t), term, process)
    return float(joint.probs @ (inside + process.prior_kl(joint.rows).sum(dim=-1)))


def test_gaps_of_chains_fall_with_their_steps() -> None:
    """E[bound] - H - KL(p_1 || prior) is the total correlation lost by parallel steps."""
    process = Ring(4, speed=4.0)
    for length in (1, 2):
        joint = Joint.random(4, length, seed=1)
        log_p = torch.tensor(list(joint.noisy(1.0, process).values())).log()
        least = -float(joint.probs @ joint.probs.log())
        least += float((log_p.exp() * (log_p + length * np.log(4))).sum())
        gaps = [steps_bound(joint, exact_ring(joint, process), n) - least for n in (1, 2, 4, 8)]
        if length == 1:
            assert max(map(abs, gaps)) < 1e-7
        else:
            assert all(a > b > 0 for a, b in pairwise(gaps))
        twin = steps_bound(joint, exact_ring(joint, process, full=True), 8) - least
        assert twin > gaps[-1] + 0.02, "FULL in the place of LOO"


def test_samplers_follow_the_ring() -> None:
    process = Ring(4, speed=4.0)
    one, two = Joint.random(4, 1, seed=1), Joint.random(4, 2, seed=1)
    z = every_row(4, 2)
    found = kernel(AncestralSampler(), exact_ring(two, process), z, 0.3, 0.5)
    assert (found.exp() - single_site(two, z, 0.3, 0.5, process).exp()).abs().max() < 1e-12

    def final(sampler, denoiser: Denoiser, joint: Joint) -> float:
        distribution = chain(sampler, denoiser, joint.length, joint.noisy(1.0, process))[-1]
        return distance(distribution, joint.distribution)

    assert final(AncestralSampler(num_steps=3), exact_ring(one, process), one) < 1e-12
    assert final(AncestralSampler(num_steps=3), exact_ring(one, process, full=True), one) > 0.01
    slow = Ring(4, speed=1.0)
    leaps = []
    for num_steps in (16, 32):
        sampler = TauLeapingSampler(num_steps=num_steps)
        distribution = chain(sampler, exact_ring(one, slow), 1, one.noisy(1.0, slow))[-1]
        leaps.append(distance(distribution, one.distribution))
    assert 1.6 < leaps[0] / leaps[1] < 2.2
    errors = [final(AncestralSampler(num_steps=n), exact_ring(two, process), two) for n in (4, 8)]
    assert 1.5 < errors[0] / errors[1] < 2.5

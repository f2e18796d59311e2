"""The optimum of unweighted cross-entropy, with every noisy row enumerated."""

import pytest
import torch
from jaxtyping import Float64, Int
from torch import Tensor

from seqdiff.denoiser.discrete import Denoiser
from seqdiff.objectives import CrossEntropy, cross_entropy
from seqdiff.objectives.time_sampling import TimeSampler
from seqdiff.parameterization import Full, LeaveOneOut, MaskColumn, Subs
from seqdiff.process import Absorbing, Hybrid, Uniform
from seqdiff.rng import CounterNoise
from seqdiff.types import Batch
from tests.noisy_worlds import Joint, every_row, exact, mislabelled

K, L, TIME = 3, 2, 0.4


class AtOneTime(TimeSampler):
    def sample(
        self, index: Int[Tensor, " B"], *, noise: CounterNoise
    ) -> tuple[Float64[Tensor, " B"], Float64[Tensor, " B"]]:
        t = torch.full(index.shape, TIME, dtype=torch.float64)
        return t, torch.ones_like(t)


@pytest.fixture
def expected(monkeypatch: pytest.MonkeyPatch):
    """The expectation of the objective over clean rows and all their noisy ones."""

    def loss(joint: Joint, denoiser: Denoiser) -> Tensor:
        process = denoiser.process
        noisy, clean = every_row(process.states, L), joint.rows
        x0 = clean.repeat_interleave(len(noisy), dim=0)
        z = noisy.repeat(len(clean), 1)
        times = torch.full(z.shape, TIME, dtype=torch.float64)
        evidence = process.log_likelihood(z, times).gather(-1, x0[..., None]).squeeze(-1)
        chance = joint.probs.repeat_interleave(len(noisy)) * evidence.sum(dim=-1).exp()
        assert float(chance.sum()) == pytest.approx(1.0)
        monkeypatch.setattr(cross_entropy, "corrupted", lambda *_: z)
        batch = Batch(x0, torch.ones_like(x0, dtype=torch.bool), torch.arange(len(x0)))
        terms = CrossEntropy(AtOneTime()).terms(denoiser, batch, CounterNoise(0))
        return chance @ terms.sum(dim=-1).double()

    return loss


@pytest.mark.parametrize("process", [Uniform(K), Hybrid(K, 0.3)], ids=lambda p: p.name)
@pytest.mark.parametrize("kind", [LeaveOneOut(), Full()], ids=lambda kind: kind.name)
def test_the_exact_prediction_is_a_minimum_whatever_the_outputs_mean(
    process, kind, expected
) -> None:
    joint = Joint.random(K, L, seed=1)
    best = float(expected(joint, exact(joint, process, kind)))
    z = every_row(process.states, L)
    t = torch.full((len(z),), TIME, dtype=torch.float64)
    full = joint.log_full(z, t, process).log_softmax(dim=-1)
    entropy = -(full.exp() * full).sum(dim=(1, 2))
    assert best == pytest.approx(float(joint.log_noisy(z, t, process).exp() @ entropy), abs=1e-12)
    shift = torch.zeros(len(z), L, K, dtype=torch.float64, requires_grad=True)
    model = exact(joint, process, kind)
    model.backbone.answer = lambda rows, *_, answer=model.backbone.answer: (
        answer(rows, *_) + shift[(rows * torch.tensor([process.states, 1])).sum(dim=-1)]
    )
    (gradient,) = torch.autograd.grad(expected(joint, model), shift)
    assert gradient.abs().max() < 1e-12
    if isinstance(kind, LeaveOneOut):
        assert float(expected(joint, mislabelled(joint, process))) > best + 1e-2, "FULL as LOO"


@pytest.mark.parametrize("kind", [Subs(), MaskColumn()], ids=lambda kind: kind.name)
def test_masked_tokens_count_twice(kind, expected) -> None:
    joint, process = Joint.random(K, L, seed=1), Absorbing(K)
    found = float(expected(joint, exact(joint, process, kind)))
    z = every_row(K + 1, L)
    t = torch.full((len(z),), TIME, dtype=torch.float64)
    distribution = joint.log_loo(z, t, process).log_softmax(dim=-1)
    entropy = torch.where(z == K, -(distribution.exp() * distribution).sum(dim=-1), 0.0).sum(dim=-1)
    wanted = 2 * float(joint.log_noisy(z, t, process).exp() @ entropy)
    assert found == pytest.approx(wanted, abs=1e-6)

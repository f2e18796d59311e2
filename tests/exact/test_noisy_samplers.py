"""Samplers of uniform, hybrid and score models against enumeration, each with a broken twin."""

import itertools
import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from seqdiff.denoiser.discrete import Denoiser
from seqdiff.parameterization import (
    Full,
    LeaveOneOut,
    MaskColumn,
    Score,
    Subs,
    scores_from_distribution,
)
from seqdiff.process import Absorbing, DiscreteProcess, Hybrid, Uniform
from seqdiff.samplers import (
    AncestralSampler,
    GibbsSampler,
    PredictorCorrectorSampler,
    TauLeapingSampler,
    TweedieSampler,
)
from seqdiff.samplers.decoding import reshape
from seqdiff.samplers.grid import GridSampler
from seqdiff.schedules import Cosine, CosineSquared, Geometric, LogLinear
from tests.enumeration import Distribution, distance
from tests.noisy_worlds import (
    Joint,
    Request,
    World,
    chain,
    ends,
    every_row,
    exact,
    kernel,
    mislabelled,
    push,
    run,
    single_site,
)

K = 3
NOISY = [Uniform(K), Uniform(K, Cosine()), Hybrid(K, 0.3)]
INCOMPLETE = Geometric(0.05, 3.0)
KINDS = [LeaveOneOut(), Full()]
GRIDS = [AncestralSampler, TweedieSampler, TauLeapingSampler]
CORRECTED = [
    *(cls(num_steps=2) for cls in GRIDS),
    PredictorCorrectorSampler(num_steps=2, renoise=0.3),
    GibbsSampler(num_steps=2),
]
SPANS = [(0.0, 0.25), (0.3, 0.5), (0.6, 0.9), (0.75, 1.0)]


def name(thing: object) -> str:
    return getattr(thing, "name", getattr(thing, "__name__", type(thing).__name__))


def at(*t: float) -> Tensor:
    return torch.tensor(t, dtype=torch.float64)


def times(z: Tensor, t: float) -> Tensor:
    return torch.full(z.shape, t, dtype=torch.float64)


def reachable(process: DiscreteProcess, t: float, length: int = 2) -> Tensor:
    """Rows that are possible at a time."""
    return torch.tensor(list(Joint.random(K, length).noisy(t, process)))


# Ancestral


@pytest.mark.parametrize("process", NOISY, ids=["linear", "cosine", "hybrid"])
@pytest.mark.parametrize("kind", KINDS, ids=name)
def test_one_token_has_the_marginal_of_every_time_on_any_grid(process, kind) -> None:
    joint = Joint.random(K, 1, seed=1)
    for num_steps in (1, 2, 5):
        sampler = AncestralSampler(num_steps=num_steps)
        distributions = chain(sampler, exact(joint, process, kind), 1)
        for t, distribution in zip(
            sampler.times(torch.device("cpu")).tolist(), distributions[:-1], strict=True
        ):
            assert distance(distribution, joint.noisy(t, process)) < 1e-12
        assert distance(distributions[-1], joint.distribution) < 1e-12
    twin = chain(AncestralSampler(num_steps=5), mislabelled(joint, process), 1)
    assert distance(twin[-1], joint.distribution) > 0.03, "the evidence of a token counted twice"


@pytest.mark.parametrize(
    ("process", "ratios"),
    [(Uniform(K), (1.9, 2.1)), (Uniform(K, Cosine()), (1.9, 2.1)), (Hybrid(K, 0.3), (1.5, 1.8))],
    ids=["linear", "cosine", "hybrid"],
)
def test_two_tokens_err_in_proportion_to_the_step(process, ratios) -> None:
    """The rates of hybrid noise are unbounded at both ends, so its error falls like log(T) / T."""
    joint = Joint.random(K, 2, seed=1)

    def errors(denoiser: Denoiser, steps: tuple[int, ...]) -> list[float]:
        distributions = [chain(AncestralSampler(num_steps=n), denoiser, 2)[-1] for n in steps]
        return [distance(distribution, joint.distribution) for distribution in distributions]

    found = errors(exact(joint, process), (4, 8, 16))
    assert all(ratios[0] < a / b < ratios[1] for a, b in pairwise(found))
    assert errors(exact(joint, process, Full()), (4,)) == pytest.approx(found[:1], abs=1e-12)
    twin = errors(mislabelled(joint, process), (4, 16))
    assert twin[-1] > 0.9 * twin[0] > 0.1, "more steps do not mend FULL in the place of LOO"


@pytest.mark.parametrize(
    ("process", "kind"),
    [
        (Uniform(2), LeaveOneOut()),
        (Uniform(2), Score()),
        (Uniform(2, INCOMPLETE), Full()),
        (Hybrid(2, 0.3), LeaveOneOut()),
        (Absorbing(2), MaskColumn()),
        (Absorbing(2), Score()),
        (Absorbing(2), Subs(carry_over=False)),
    ],
    ids=lambda thing: name(thing),
)
def test_the_whole_sampler_is_the_chain_of_its_steps(process, kind) -> None:
    """Other tests merge equal rows after a step; this one follows every path of ``fill``."""
    denoiser = exact(Joint.random(2, 2, seed=2), process, kind)
    for cls in GRIDS:
        if kind.kind in cls.needs.kinds:
            sampler = cls(num_steps=2)
            walked = ends(sampler, denoiser, Request.nothing(denoiser, 2))
            merged = chain(sampler, denoiser, 2)[-1]
            assert distance(walked, merged) < 1e-12
            shorter = chain(cls(num_steps=1), denoiser, 2)[-1]
            assert distance(walked, shorter) > 1e-3, "another grid gives another distribution"


# Incomplete schedules


def test_noise_left_at_the_start_and_at_the_end_is_accounted_for() -> None:
    process, joint = Uniform(K, INCOMPLETE), Joint.random(K, 1, seed=1)
    sampler = AncestralSampler(num_steps=3)
    for kind in KINDS:
        denoiser = exact(joint, process, kind)
        distributions = chain(sampler, denoiser, 1, joint.noisy(1.0, process))
        assert distance(distributions[-2], joint.noisy(0.0, process)) < 1e-12
        assert distance(distributions[-1], joint.distribution) < 1e-12
        assert distance(distributions[-2], joint.distribution) > 5e-3, "z_0 is not the clean token"
        # From the prior, which differs from q_1, every grid gives sum_z prior(z) p(x | z_1 = z).
        distributions = chain(sampler, denoiser, 1)
        assert distance(distributions[0], {(v,): 1 / K for v in range(K)}) < 1e-12
        z = torch.arange(K)[:, None]
        wanted = joint.log_full(z, torch.ones(K), process).softmax(dim=-1).mean(dim=(0, 1))
        assert (
            distance(distributions[-1], dict(zip(joint.distribution, wanted.tolist(), strict=True)))
            < 1e-12
        )


def test_the_last_token_is_drawn_given_its_own_noisy_one() -> None:
    process, joint = Uniform(K, INCOMPLETE), Joint.random(K, 2, seed=1)
    denoiser = exact(joint, process)
    distributions = chain(AncestralSampler(num_steps=16), denoiser, 2)
    z = torch.tensor(list(distributions[-2]))
    log_loo = joint.log_loo(z, torch.zeros(len(z)), process).log_softmax(dim=-1)

    def decoded(log_probs: Tensor) -> Distribution:
        rows = joint.rows
        total = torch.zeros(len(rows), dtype=torch.float64)
        for chance, distribution in zip(distributions[-2].values(), log_probs.exp(), strict=True):
            total += chance * distribution[torch.arange(2), rows].prod(dim=-1)
        return {tuple(r): p for r, p in zip(rows.tolist(), total.tolist(), strict=True)}

    full = joint.log_full(z, torch.zeros(len(z)), process).log_softmax(dim=-1)
    assert distance(distributions[-1], decoded(full)) < 1e-12
    one_hot = torch.nn.functional.one_hot(log_loo.argmax(dim=-1), K).double().log()
    error = distance(distributions[-1], joint.distribution)
    for twin in (log_loo, one_hot):
        assert distance(decoded(twin), joint.distribution) > 2 * error, "drawn, or the best, of LOO"


# Tweedie


@pytest.mark.parametrize("process", [*NOISY, Uniform(K, CosineSquared())], ids=name)
def test_tweedie_is_ancestral_for_models_of_the_clean_token(process) -> None:
    joint = Joint.random(K, 2, seed=1)
    for kind, (s, t) in itertools.product(KINDS, SPANS):
        z, denoiser = reachable(process, t), exact(joint, process, kind)
        analytic = kernel(TweedieSampler(), denoiser, z, s, t).exp()
        ancestral = kernel(AncestralSampler(), denoiser, z, s, t).exp()
        assert (analytic - ancestral).abs().max() < 1e-12
        wrong = kernel(AncestralSampler(), mislabelled(joint, process), z, s, t).exp()
        if t < 1:
            assert (analytic - wrong).abs().max() > 5e-3


@pytest.mark.parametrize("process", [Uniform(K), Uniform(K, INCOMPLETE), Absorbing(K)], ids=name)
def test_tweedie_is_the_exact_step_of_a_token_for_exact_scores(process) -> None:
    joint = Joint.random(K, 2, seed=1)
    denoiser = exact(joint, process, Score())

    class FromFull(World):
        """Ratios of q_t(. | FULL), which already uses the token."""

    def from_full(z: Tensor, t: Tensor, label: Tensor, process: DiscreteProcess) -> Tensor:
        log_full = joint.log_full(z, t, process).log_softmax(dim=-1)
        return scores_from_distribution(log_full, z, t[:, None].expand(z.shape), process)

    for s, t in SPANS[:3]:
        z = reachable(process, t)
        wanted = single_site(joint, z, s, t, process).exp()
        found = kernel(TweedieSampler(), denoiser, z, s, t).exp()
        assert (found - wanted).abs().max() < 1e-12
        if isinstance(process, Uniform):
            twin = Denoiser(FromFull(from_full, process, K), process, Score())
            assert (kernel(TweedieSampler(), twin, z, s, t).exp() - wanted).abs().max() > 1e-2
        else:  # the noise level of s instead of t
            level_s, level_t = (process.sigma(at(x)).expm1() for x in (s, t))
            masked = z == K
            unmask = (1 - found[..., K])[masked] * level_t / level_s.clamp_min(1e-9)
            assert (unmask - (1 - wanted[..., K])[masked]).abs().max() > 1e-2


def scaled_scores(joint: Joint, process: Absorbing, scale: float) -> Denoiser:
    """Exact scores times c: sum_y s_y = c r."""

    def answer(z: Tensor, t: Tensor, label: Tensor, process: DiscreteProcess) -> Tensor:
        log_loo = joint.log_loo(z, t, process).log_softmax(dim=-1)
        return torch.nn.functional.pad(log_loo + math.log(scale * K), (0, 1))

    return Denoiser(World(answer, process, K + 1), process, Score()).eval()


@pytest.mark.parametrize("scale", [0.5, 1.0, 1.5])
def test_tweedie_with_masks_is_ancestral_only_if_scores_sum_to_their_ratio(scale) -> None:
    joint, process = Joint.random(K, 2, seed=1), Absorbing(K, Cosine())
    z = torch.tensor([[K, 0], [1, K], [K, K]])
    masked = z == K
    for s, t in SPANS:
        found = kernel(TweedieSampler(), scaled_scores(joint, process, scale), z, s, t).exp()
        distribution = joint.log_loo(z, times(z[:, 0], t), process).softmax(dim=-1)
        u = float(process.unmask_probability(*at(s, t)))
        wanted = (
            scale * u * distribution / max(1.0, scale * u)
        )  # where c u > 1, the mask has mass 0
        assert (found[..., :K] - wanted)[masked].abs().max() < 1e-7
        assert (found[..., K] - max(0.0, 1 - scale * u))[masked].abs().max() < 1e-7
        plain = kernel(AncestralSampler(), exact(joint, process, MaskColumn()), z, s, t).exp()
        same = float((found - plain)[masked].abs().max()) < 1e-7
        assert same == (scale == 1 or (s == 0 and scale > 1))
        if scale > 1 and s == 0:
            assert 1 - scale * u < -0.01, "the released formula gives the mask negative mass"


def test_analytic_steps_from_scores_stay_finite_where_no_signal_is_left() -> None:
    """With cos^2, alpha at the end is below the rounding of the scores, which are all 1 there."""
    process = Uniform(K, CosineSquared())
    for kind in (Score(), LeaveOneOut()):
        denoiser = exact(Joint.random(K, 2, seed=1), process, kind)
        found = kernel(TweedieSampler(), denoiser, every_row(K, 2), 0.75, 1.0).exp()
        assert torch.allclose(found.sum(dim=-1), torch.ones(9, 2).double())
        denoiser.backbone.answer = lambda z, *_: torch.zeros(*z.shape, K, dtype=torch.float64)
        flat = kernel(TweedieSampler(), denoiser, every_row(K, 2), 0.75, 1.0).exp()
        assert (flat - 1 / K).abs().max() < 1e-6, "equal scores are those of the uniform token"


# Tau-leaping


def leap(log_loo: Tensor, z: Tensor, s: float, t: float, process: DiscreteProcess) -> Tensor:
    """A jump to y with probability (t - s) Q_t(y -> z) p_t(y) / p_t(z)."""
    scores = scores_from_distribution(log_loo, z, times(z, t), process).exp()
    rates = process.rate_into(z, times(z, t))
    present = torch.nn.functional.one_hot(z, process.states).bool()
    jumps = ((t - s) * rates * scores).masked_fill(present, 0.0)
    assert jumps.sum(dim=-1).max() < 1, "so short a step that nothing is clamped"
    return torch.where(present, 1 - jumps.sum(dim=-1, keepdim=True), jumps)


@pytest.mark.parametrize("process", [Uniform(K, Cosine()), Hybrid(K, 0.3)], ids=name)
@pytest.mark.parametrize("kind", KINDS, ids=name)
def test_a_leap_is_an_euler_step_of_the_reverse_jumps(process, kind) -> None:
    joint = Joint.random(K, 2, seed=1)
    denoiser = exact(joint, process, kind)
    s, t = 0.5, 0.6
    z = reachable(process, t)
    log_loo = joint.log_loo(z, times(z[:, 0], t), process).log_softmax(dim=-1)
    wanted = leap(log_loo, z, s, t, process)
    found = kernel(TauLeapingSampler(), denoiser, z, s, t).exp()
    assert (found - wanted).abs().max() < 1e-12
    scores = scores_from_distribution(log_loo, z, times(z, t), process).exp()
    present = torch.nn.functional.one_hot(z, process.states).bool()
    jumps = wanted.masked_fill(present, 0.0)
    swapped = process.rate_into(
        torch.arange(process.states), times(torch.arange(process.states), t)
    )
    twin = ((t - s) * swapped[:, 0] * scores).masked_fill(present, 0.0)
    if isinstance(process, Hybrid):
        assert (twin - jumps).abs().max() > 1e-2, "the rate into y, not into z"
    analytic = kernel(TweedieSampler(), denoiser, z, s, t).exp()
    assert (found - analytic).abs().max() > 1e-3


def test_a_leap_with_masks_is_an_euler_step_too() -> None:
    """The last step is analytic; before it a mask is revealed with (t - s) sigma' r, not with u."""
    process = Absorbing(K, Cosine())
    joint = Joint.random(K, 1, seed=1)
    for kind in (Subs(), MaskColumn(), Score()):
        denoiser = exact(joint, process, kind)
        distributions = chain(TauLeapingSampler(num_steps=4), denoiser, 1)
        masked = [distribution.get((K,), 0.0) for distribution in distributions[:-1]]
        wanted = [1.0]
        for t, s in pairwise((1.0, 0.75, 0.5, 0.25)):
            rate = float(process.schedule.nelbo_weight(at(t)))
            wanted.append(wanted[-1] * (1 - (t - s) * rate))
        assert masked == pytest.approx([*wanted, 0.0], abs=1e-8)
        assert distance(distributions[-1], joint.distribution) < 1e-8
        exactly = [1 - float(process.alpha(at(t))) for t in (1.0, 0.75, 0.5, 0.25)]
        assert abs(masked[2] - exactly[2]) > 1e-2, "ancestral keeps the schedule's fraction"


def test_leaps_err_in_proportion_to_the_step_and_meet_tweedie() -> None:
    process, steps = Uniform(2, Cosine()), (8, 16)
    one, two = Joint.random(2, 1, seed=4), Joint.random(2, 2, seed=3)

    def final(cls: type[GridSampler], n: int, joint: Joint, denoiser: Denoiser) -> Distribution:
        return chain(cls(num_steps=n), denoiser, joint.length)[-1]

    for kind in (LeaveOneOut(), Score()):
        denoiser = exact(one, process, kind)
        errors = [
            distance(final(TauLeapingSampler, n, one, denoiser), one.distribution) for n in steps
        ]
        assert all(1.6 < a / b < 2.1 for a, b in pairwise(errors))
    wrong = distance(final(TauLeapingSampler, 16, one, mislabelled(one, process)), one.distribution)
    assert wrong > 10 * errors[-1]
    denoiser = exact(two, process, Score())
    apart = [
        distance(*(final(cls, n, two, denoiser) for cls in (TauLeapingSampler, TweedieSampler)))
        for n in steps
    ]
    assert all(1.6 < a / b < 2.3 for a, b in pairwise(apart))


def test_draws_that_had_to_be_scaled_down_are_counted() -> None:
    process = Uniform(K, CosineSquared())
    joint = Joint.random(K, 3, seed=1)
    denoiser = exact(joint, process)
    x_init = torch.tensor([[K, K, K], [K, 0, K], [K, K, K]])
    padding = torch.tensor([[False] * 3, [False] * 3, [False, True, True]])
    sampler, history = TauLeapingSampler(num_steps=6), []
    found = sampler.sample(
        denoiser,
        x_init,
        seeds=torch.arange(3),
        padding=padding,
        callback=lambda step, x: history.append(x.clone()),
    )
    free = (x_init == K) & ~padding
    wanted = free.sum(dim=-1)  # sigma' is infinite at t = 1: every draw of the first step
    grid = sampler.times(torch.device("cpu")).tolist()
    for z, (t, s) in zip(history[:-2], list(pairwise(grid))[1:-1], strict=True):
        seen = torch.where(padding, K, z)
        log_loo = joint.log_loo(seen, times(z[:, 0], t), process).log_softmax(dim=-1)
        scores = scores_from_distribution(log_loo, z.clamp_max(K - 1), times(z, t), process).exp()
        rate = float(process.schedule.dsigma(at(t))) / K
        wanted = wanted + (((t - s) * rate * (scores.sum(dim=-1) - 1) > 1) & free).sum(dim=-1)
    assert found.clamped.tolist() == wanted.tolist()
    assert wanted[0] > free[0].sum(), "not the first step alone"
    assert (
        AncestralSampler(num_steps=2).sample(denoiser, x_init, seeds=torch.arange(3)).clamped
        is None
    )


# The mask column, and tokens that are not copied


def test_a_mask_column_unmasks_as_the_plug_in_kernel_says() -> None:
    process = Absorbing(K, Cosine())
    logits = torch.tensor([0.3, -0.4, 1.0, 0.7], dtype=torch.float64)
    distribution = logits.softmax(dim=0)
    world = World(lambda z, *_: logits.expand(*z.shape, -1), process, K + 1)
    denoiser = Denoiser(world, process, MaskColumn()).eval()
    z = torch.tensor([[K, 1]])
    for s, t in SPANS[1:]:
        alpha_s, alpha_t = (float(process.alpha(at(x))) for x in (s, t))
        # sum over v of p(v) q(z_s, z_t = m | v), where v itself may be the mask
        opened = distribution[:K] * (alpha_s - alpha_t)
        stays = distribution[:K].sum() * (1 - alpha_s) + distribution[K]
        wanted = torch.cat((opened, stays[None])) / (opened.sum() + stays)
        found = kernel(AncestralSampler(), denoiser, z, s, t).exp()
        assert (found[0, 0] - wanted).abs().max() < 1e-12
        u = (alpha_s - alpha_t) / (1 - alpha_t)
        assert abs(float(found[0, 0, K]) - (1 - u)) > 1e-2, "the mask's mass was not dropped first"
    paths = run(AncestralSampler(num_steps=2), denoiser, Request.nothing(denoiser, 2))
    assert not (paths.tokens == K).any()
    symbols = distribution[:K] / distribution[:K].sum()
    wanted = {
        r: float(symbols[r[0]] * symbols[r[1]]) for r in itertools.product(range(K), repeat=2)
    }
    assert (
        distance(
            ends(AncestralSampler(num_steps=2), denoiser, Request.nothing(denoiser, 2)), wanted
        )
        < 1e-12
    )


@pytest.mark.parametrize("kind", [Subs(carry_over=False), MaskColumn(carry_over=False)], ids=name)
def test_tokens_that_are_not_copied_are_decoded_at_the_end(kind) -> None:
    process = Absorbing(K)
    joint = Joint.random(K, 2, seed=1)
    columns = kind.num_outputs(process)
    slips = torch.eye(K, dtype=torch.float64) * 5 + torch.arange(9.0).view(K, K).sin()

    def answer(z: Tensor, t: Tensor, label: Tensor, process: DiscreteProcess) -> Tensor:
        """A network that does not copy exactly."""
        outputs = joint.log_loo(z, t, process)
        outputs = torch.where((z == K)[..., None], outputs, slips[z.clamp_max(K - 1)])
        return torch.nn.functional.pad(outputs, (0, columns - K), value=-2.0)

    denoiser = Denoiser(World(answer, process, columns), process, kind).eval()
    distributions = chain(AncestralSampler(num_steps=3), denoiser, 2)
    copies = slips.softmax(dim=-1)
    wanted: Distribution = dict.fromkeys(joint.distribution, 0.0)
    for (a, b), chance in distributions[-2].items():
        for x in wanted:
            wanted[x] += chance * float(copies[a, x[0]] * copies[b, x[1]])
    assert distance(distributions[-1], wanted) < 1e-12
    assert distance(distributions[-1], distributions[-2]) > 5e-3, "z_0 left as it was"


# Requests for a row


@pytest.mark.parametrize("process", [Uniform(2), Hybrid(2, 0.3)], ids=name)
@pytest.mark.parametrize("sampler", CORRECTED, ids=name)
def test_given_tokens_stay_and_padding_holds_nothing(process, sampler) -> None:
    joint = Joint.random(2, 2, seed=3)
    denoiser = exact(joint, process)
    request = Request(torch.tensor([1, 2]))
    paths = run(sampler, denoiser, request)
    assert all(int(row[0]) == 1 for history in paths.history for row in history)
    assert (paths.tokens[:, 1] < 2).all()
    other = ends(sampler, denoiser, Request(torch.tensor([0, 2])))
    seen = ends(sampler, denoiser, request)
    shift = sum(p for (_, b), p in seen.items() if b) - sum(p for (_, b), p in other.items() if b)
    assert abs(shift) > 1e-2, "the network sees what is given"
    hidden = Request(torch.tensor([2, 1]), padding=torch.tensor([False, True]))
    padded = ends(sampler, denoiser, hidden)
    alone = Joint(joint.probs.view(2, 2).sum(dim=-1), 2, 1)
    narrow = exact(alone, process)
    shorter = ends(sampler, narrow, Request.nothing(narrow, 1))
    assert distance(padded, {(a, 1): p for (a,), p in shorter.items()}) < 1e-12
    assert distance(padded, seen) > 1e-2


@pytest.mark.parametrize("process", [Uniform(K), Hybrid(K, 0.3)], ids=name)
def test_only_allowed_symbols_are_predicted(process) -> None:
    joint = Joint.random(K, 2, seed=1)
    denoiser = exact(joint, process)
    allowed = torch.tensor([[True, False, True], [False, True, True]])
    request = Request(torch.tensor([K, K]), allowed=allowed)
    for sampler in CORRECTED[:3]:
        for end in run(sampler, denoiser, request).tokens.tolist():
            assert all(bool(allowed[place, symbol]) for place, symbol in enumerate(end))
    for s, t in SPANS[1:3]:
        z = reachable(process, t)
        log_loo = joint.log_loo(z, times(z[:, 0], t), process)
        kept = log_loo.masked_fill(~allowed, -torch.inf).log_softmax(dim=-1)
        wanted = process.log_posterior(kept, z, times(z, s), times(z, t)).exp()
        for sampler in (AncestralSampler(), TweedieSampler()):
            found = kernel(sampler, denoiser, z, s, t, allowed=allowed).exp()
            assert (found - wanted).abs().max() < 1e-12
        start = t - 0.01
        found = kernel(TauLeapingSampler(), denoiser, z, start, t, allowed=allowed).exp()
        assert (found - leap(kept, z, start, t, process)).abs().max() < 1e-12
        late = kernel(AncestralSampler(), denoiser, z, s, t)[..., :K]
        late = late.masked_fill(~allowed, -torch.inf).softmax(dim=-1)
        assert (late - wanted[..., :K]).abs().max() > 1e-2, "the step itself is not restricted"


@pytest.mark.parametrize("process", [Uniform(K), Hybrid(K, 0.3), Absorbing(K)], ids=name)
@pytest.mark.parametrize("options", [{"temperature": 0.5}, {"top_k": 2}, {"top_p": 0.6}], ids=str)
def test_sharpening_goes_through_the_prediction(process, options) -> None:
    joint = Joint.random(K, 2, seed=1)
    denoiser = exact(joint, process, MaskColumn() if isinstance(process, Absorbing) else None)
    s, t = 0.3, 0.5
    z = reachable(process, t)
    place = (z == K) if isinstance(process, Absorbing) else torch.ones_like(z, dtype=torch.bool)
    log_loo = joint.log_loo(z, times(z[:, 0], t), process).log_softmax(dim=-1)
    sharp = reshape(log_loo.view(-1, K), **options).view_as(log_loo)
    wanted = process.log_posterior(sharp, z, times(z, s), times(z, t)).exp()
    for cls in (AncestralSampler, TweedieSampler):
        found = kernel(cls(**options), denoiser, z, s, t).exp()
        assert (found - wanted)[place].abs().max() < 1e-12
    start = t - 0.05
    found = kernel(TauLeapingSampler(**options), denoiser, z, start, t).exp()
    wanted_leap = leap(sharp[place], z[place], start, t, process)
    assert (found[place] - wanted_leap).abs().max() < 1e-12
    twin = kernel(AncestralSampler(), denoiser, z, s, t)
    twin = reshape(twin.view(-1, process.states), **options).view_as(twin).exp()
    assert (twin - wanted)[place].abs().max() > 1e-2, "the step itself is not sharpened"
    if not isinstance(process, Absorbing):
        marginal = process.log_marginal(sharp, times(z, s))
        distribution = {(0, 0): 1.0}
        gibbs, now = GibbsSampler(**options), torch.tensor(s, dtype=torch.float64)
        after = push(
            distribution, denoiser, Request.nothing(denoiser, 2), lambda c: gibbs.correct(c, now, 1)
        )
        log_loo = joint.log_loo(torch.tensor([[0, 0]]), now[None], process)
        sharp = reshape(log_loo.log_softmax(dim=-1)[0], **options)
        marginal = process.log_marginal(sharp, at(s, s)).exp() / 2
        assert after[(0, 1)] == pytest.approx(float(marginal[1, 1]), abs=1e-12)


@pytest.mark.parametrize(
    ("process", "kind"),
    [
        (Uniform(K), LeaveOneOut()),
        (Uniform(K, INCOMPLETE), Score()),
        (Hybrid(K, 0.3), Full()),
        (Absorbing(K), MaskColumn()),
        (Absorbing(K), Subs(carry_over=False)),
    ],
    ids=lambda thing: name(thing),
)
def test_a_sample_does_not_depend_on_the_batch(process, kind) -> None:
    denoiser = exact(Joint.random(K, 3, seed=1), process, kind)
    x_init = torch.tensor([[K, K, K], [K, 1, K], [2, 1, 0], [K, K, 0]])
    padding = torch.tensor([[False] * 3] * 3 + [[False, False, True]])
    seeds = torch.tensor([11, 5, 7, 11])
    for sampler in CORRECTED:
        if not sampler.needs.met_by(denoiser):
            continue
        together = sampler.sample(denoiser, x_init, seeds=seeds, padding=padding)
        assert ((together.tokens == x_init) | (x_init == K)).all()
        assert (together.tokens < K).all()
        for row in (1, 3):
            one = slice(row, row + 1)
            alone = sampler.sample(denoiser, x_init[one], seeds=seeds[one], padding=padding[one])
            assert alone.tokens.tolist() == together.tokens[one].tolist()
            assert alone.nfe.tolist() == together.nfe[one].tolist()
            if together.clamped is not None:
                assert alone.clamped.tolist() == together.clamped[one].tolist()
        others = sampler.sample(denoiser, x_init[:1].expand(8, -1), seeds=torch.arange(8))
        assert len(set(map(tuple, others.tokens.tolist()))) > 1, "seeds matter"


def test_incomplete_schedules_of_masks_are_refused() -> None:
    with pytest.raises(ValueError, match=r"Absorbing.schedule must have alpha\(0\) = 1"):
        Absorbing(K, LogLinear(1e-3))

"""Samplers that step from t = 1 to t = 0 on a grid: one engine, and strategies for its steps.

``GridSampler`` is the engine. A sampler chooses the distribution of a step (``kernel``), a
corrector that follows each step (``correct``), or remasking (``Remasking``).
"""

from __future__ import annotations

import math
from abc import ABC
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Bool, Float64
from torch import Tensor
from typing_extensions import override

from seqdiff.denoiser import Needs
from seqdiff.losses import has_reconstruction
from seqdiff.parameterization import before_the_end
from seqdiff.process import Absorbing, AbsorbingByContext, DiscreteProcess, Hybrid, Uniform
from seqdiff.samplers.canvas import Canvas
from seqdiff.samplers.decoding import Decoding
from seqdiff.samplers.protocol import Sampler, option, require
from seqdiff.schedules import NoiseSchedule


@dataclass(frozen=True)
class GridSampler(Decoding, Sampler, ABC):
    """A sampler of ``num_steps`` equal steps, each of which may change every token to fill.

    Unknown positions start as draws from the prior. Given tokens stay as they are in every step.
    With uniform and hybrid noise that is an approximation, because the model has seen no clean
    tokens among noisy ones. Temperature, top-k and nucleus reshape the prediction of the clean
    token before a step is made from it.

    Attributes:
        num_steps: Equal steps from t = 1 to t = 0.
        keeps_unmask_times: Whether a step unmasks a token with the probability that the process
            gives, if the model predicts the clean token.
        corrector_steps: Calls of ``correct`` after each step but the last.
    """

    draws_from = "in the limit"
    keeps_unmask_times = True
    corrector_steps = 0
    num_steps: int = option(
        128, lambda value: value >= 1, "be at least 1", "the sequence length is a good choice"
    )

    def times(self, device: torch.device) -> Float64[Tensor, " n"]:
        """Return the ``num_steps + 1`` times, from 1 down to 0."""
        return torch.linspace(1, 0, self.num_steps + 1, dtype=torch.float64, device=device)

    @override
    def fill(self, canvas: Canvas) -> None:
        by_schedule = canvas.denoiser.any_order and self.keeps_unmask_times
        if by_schedule and not self.corrector_steps:
            self._fill_at_unmask_times(canvas)
            return
        self._check_truncation(canvas)
        self.start(canvas)
        # The numbering of the first versions, so that a seed still gives the same rows.
        draw = 2 if self.corrector_steps else 1
        for t, s in pairwise(self.times(canvas.x_t.device)):
            self.advance(canvas, s, t, draw)
            draw += 1
            for _ in range(self.corrector_steps if float(s) > 0 else 0):
                self.correct(canvas, s, draw)
                draw += 2
            canvas.end_step()
        self.finish(canvas, draw)

    def _check_truncation(self, canvas: Canvas) -> None:
        """Refuse top-k and nucleus where steps made from them may leave no symbol to draw."""
        if canvas.avoid is None or (canvas.denoiser.any_order and self.keeps_unmask_times):
            return
        for name in ("top_k", "top_p"):
            if getattr(self, name) is not None:
                raise ValueError(
                    f"{type(self).__name__}.{name} must be left out with words to avoid for the "
                    f"{canvas.denoiser.description}, got {getattr(self, name)}; the symbols it "
                    "keeps may all complete one, so use temperature instead"
                )

    def start(self, canvas: Canvas) -> None:
        """Draw z_1 at the positions to fill."""
        where, prior = canvas.free, canvas.process.log_prior(canvas.x_t.device)
        if len(prior) > canvas.unknown_id and float(prior[canvas.unknown_id]) == 0.0:
            return  # all masks, which is what unknown positions hold
        places = int(where.sum())
        canvas.draw(where, prior.expand(places, -1), 0)

    def advance(
        self, canvas: Canvas, s: Float64[Tensor, ""], t: Float64[Tensor, ""], draw: int
    ) -> None:
        """Draw z_s given z_t."""
        if canvas.denoiser.any_order and self.keeps_unmask_times:  # predict what is unmasked only
            masked = canvas.masked
            unmask = canvas.absorbing.unmask_probability(s, t).expand(masked.shape)
            where = canvas.draws.coins(unmask, masked, draw)
            self._draw(canvas, where, canvas.log_probs(where, t.expand(len(masked))), draw)
            return
        process = canvas.process
        where = canvas.masked if process.visible_is_clean else canvas.free
        kernel = self.kernel(canvas, where, s, t)
        if float(s) == 0.0 and process.states > process.vocab_size:
            # A model that predicts masks would leave some.
            symbols = kernel[:, : process.vocab_size].log_softmax(dim=-1)
            kernel = torch.nn.functional.pad(symbols, (0, 1), value=-torch.inf)
        canvas.draw(where, kernel, draw)

    def kernel(
        self,
        canvas: Canvas,
        where: Bool[Tensor, "B L"],
        s: Float64[Tensor, ""],
        t: Float64[Tensor, ""],
    ) -> Float64[Tensor, "N states"]:
        """Return the distribution of z_s given z_t at some positions, by default the posterior."""
        return canvas.reverse(where, s, t, self.shape)

    def correct(self, canvas: Canvas, s: Float64[Tensor, ""], draw: int) -> None:
        """Draw some tokens again at time s; called ``corrector_steps`` times after a step.

        Args:
            canvas: The rows, at time s.
            s: The time, above 0.
            draw: Distinguishes the draws of a position; a call takes two numbers.
        """
        raise NotImplementedError(f"{type(self).__name__} has no corrector")

    def finish(self, canvas: Canvas, draw: int) -> None:
        """Decode z_0 if it still holds noise, or if the model does not copy visible tokens.

        Each clean token is drawn from the distribution given all noisy tokens, including the noisy
        token at its own position, which has information about the clean one.
        """
        if not has_reconstruction(canvas.denoiser):
            return
        where, zero = canvas.free, torch.zeros_like(canvas.nfe, dtype=torch.float64)
        masked = isinstance(canvas.process, Absorbing)
        self._draw(canvas, where, canvas.log_probs(where, zero, own=masked), draw)
        canvas.end_step()

    def _fill_at_unmask_times(self, canvas: Canvas) -> None:
        """Unmask each position in the step that holds its unmask time, drawn before."""
        times = self.times(canvas.x_t.device)
        edges = 1 - canvas.absorbing.schedule.alpha(times)
        unmasked_in = canvas.draws.unmask_steps(edges, canvas.masked)
        for step, t in enumerate(times[:-1], start=1):
            rows = canvas.masked.any(dim=-1)
            where = unmasked_in == step
            self._draw(canvas, where, canvas.log_probs(where, t.expand(len(rows)), rows=rows))
            canvas.end_step()


@dataclass(frozen=True)
class AncestralSampler(GridSampler):
    """The exact posterior step by step, one network evaluation per step; off by O(1/steps).

    ``num_steps`` equal steps from t = 1 to t = 0, each an exact draw from q(z_s | z_t, x0) with the
    prediction instead of x0. With masks, a position is unmasked in the step that holds its
    unmask time, which has probability (alpha_s - alpha_t) / (1 - alpha_t) in every step that finds
    it masked. Source: Sahoo et al. 2024, arXiv:2406.07524; Austin et al. 2021, arXiv:2107.03006.
    """

    needs = Needs((DiscreteProcess, AbsorbingByContext), ("loo", "full", "rates", "step"))


@dataclass(frozen=True)
class CachedAncestralSampler(GridSampler):
    """The same samples as ancestral, bit for bit, evaluating a row only after it has changed.

    For masked diffusion with networks that ignore time, as ours do. A row takes at most as many
    evaluations as it has masks, for any number of steps. The cache holds one prediction per mask.
    Source: Sahoo et al. 2024, arXiv:2406.07524, and Ou et al. 2024, arXiv:2406.03736. The published
    code of the former has one cache for the whole batch.
    """

    @override
    def fill(self, canvas: Canvas) -> None:
        canvas.remember()
        super().fill(canvas)


@dataclass(frozen=True)
class TweedieSampler(GridSampler):
    """The analytic steps of SEDD from scores, one evaluation per step; off by O(1/steps).

    A step at one position is exact if the scores are; positions are drawn independently. Models
    that predict the clean token give scores too, and with those the sampler is ancestral. Source:
    Lou et al. 2024, arXiv:2310.16834, theorem 4.2.
    """

    needs = Needs((Absorbing, Uniform, Hybrid), ("loo", "full", "score", "step"))


@dataclass(frozen=True)
class TauLeapingSampler(GridSampler):
    """Euler steps of the reverse jump process, one evaluation per step; off by O(1/steps).

    In a step a token jumps to y with probability (t - s) Q_t(y -> z) s_y, all tokens at once.
    Probabilities that add up to more than 1 are scaled down; ``SampleOutput.clamped`` counts such
    draws. The last step is the analytic one, so that no noise is left. Source: Campbell et al.
    2022, arXiv:2205.14987; Lou et al. 2024, arXiv:2310.16834, section 4.
    """

    fills_blocks = False
    needs = Needs((DiscreteProcess,))
    keeps_unmask_times = False

    @override
    def kernel(
        self,
        canvas: Canvas,
        where: Bool[Tensor, "B L"],
        s: Float64[Tensor, ""],
        t: Float64[Tensor, ""],
    ) -> Float64[Tensor, "N states"]:
        if float(s) == 0.0:
            return super().kernel(canvas, where, s, t)
        process = canvas.discrete
        scores = canvas.log_scores(where, t, self.shape).exp()
        z, now = canvas.x_t[where], before_the_end(t)
        rates = process.rate_into(z, now.expand(z.shape)) * scores
        present = torch.nn.functional.one_hot(z, process.states).bool()
        jumps = ((now - s) * rates).masked_fill(present, 0.0)
        total = jumps.sum(dim=-1, keepdim=True)
        if canvas.clamped is None:
            canvas.clamped = torch.zeros_like(canvas.nfe)
        canvas.clamped.index_add_(0, where.nonzero()[:, 0], (total[:, 0] > 1).long())
        jumps = jumps / total.clamp_min(1)
        # With words to avoid, the present symbol may be the only one that remains.
        least = 0.0 if canvas.avoid is None else torch.finfo(total.dtype).tiny
        stay = (1 - total).clamp_min(least)
        return torch.where(present, stay, jumps).log()


_CORRECTIONS = ("be at least 1", "without corrector steps, use the ancestral sampler")


@dataclass(frozen=True)
class PredictorCorrectorSampler(GridSampler):
    """Ancestral steps, each followed by noise and its removal; not the model's distribution.

    A corrector step at time s runs the forward process to the time r with alpha_r = (1 - renoise)
    alpha_s, at most 1, and goes back to s by the posterior. Tokens that the independent draws of
    the predictor got wrong are thereby drawn again given the rest. There is no corrector step at
    s = 0, where nothing would follow it. A corrector step adds an error of the order of ``renoise``
    squared, so the distribution tends to the model's own only if ``renoise`` falls as
    ``num_steps`` grows, for example as 1 / num_steps. Source of the idea: Campbell et al. 2022,
    arXiv:2205.14987.

    Attributes:
        num_steps: Predictor steps; more do not help unless ``renoise`` falls with them.
        corrector_steps: Corrector steps after each predictor step but the last.
        renoise: Probability that a corrector step replaces a token by noise, in (0, 1].
    """

    needs = Needs((Absorbing, Uniform, Hybrid), ("loo", "full", "step"))
    draws_from = "another"
    corrector_steps: int = option(1, lambda value: value >= 1, *_CORRECTIONS)
    renoise: float = option(0.1, lambda value: 0 < value <= 1, "be in (0, 1]", "0.1 is mild")

    @override
    def correct(self, canvas: Canvas, s: Float64[Tensor, ""], draw: int) -> None:
        process = canvas.process
        assert isinstance(process, Absorbing | Uniform | Hybrid)  # by ``needs``
        r = process.inverse((1 - self.renoise) * process.alpha(s)).clamp_max(1)
        if isinstance(process, Absorbing):  # a coin decides: no distribution over all states
            stay = (process.alpha(r) / process.alpha(s)).expand(canvas.x_t.shape)
            visible = canvas.free & ~canvas.masked
            canvas.remask(canvas.draws.coins(1 - stay, visible, draw))
        else:
            where = canvas.free
            z = canvas.x_t[where]
            forward = process.log_forward(z, s.expand(z.shape), r.expand(z.shape))
            canvas.draw(where, forward, draw)
        self.advance(canvas, s, r, draw + 1)


@dataclass(frozen=True)
class GibbsSampler(GridSampler):
    """Ancestral steps, each followed by tokens drawn again one at a time given all the others.

    At time s a position is drawn from q_s(. | the prediction without its own token). If the
    prediction is exact, this leaves the distribution of z_s as it is (a Gibbs step), so only errors
    of the predictor are corrected. Each position costs an evaluation. For uniform and hybrid noise,
    where every token is predicted from the others. Source: Zhao et al. 2024, arXiv:2407.21243,
    whose informed correctors choose the positions; here they are uniform.

    Attributes:
        corrector_steps: Positions drawn again after each predictor step but the last.
    """

    needs = Needs((Uniform, Hybrid), ("loo", "full"))
    corrector_steps: int = option(1, lambda value: value >= 1, *_CORRECTIONS)

    @override
    def correct(self, canvas: Canvas, s: Float64[Tensor, ""], draw: int) -> None:
        where = canvas.choose_one(draw)
        log_probs = canvas.marginal(where, s, self.shape)
        canvas.draw(where, log_probs, draw + 1)


def largest_sigma(
    alpha_t: Float64[Tensor, ""], alpha_s: Float64[Tensor, ""]
) -> Float64[Tensor, ""]:
    """The largest remasking probability that leaves the mask rate at s at 1 - alpha_s.

    It is 1 where nothing is visible yet. Source: Wang et al. 2025, arXiv:2503.00307.
    """
    return torch.where(alpha_t > 0, (1 - alpha_s) / alpha_t, 1.0).clamp_max(1.0)


@dataclass(frozen=True)
class Remasking:
    """Steps of ReMDM: remask a visible token with probability sigma, and unmask more to make up.

    A masked token is unmasked with probability (alpha_s - (1 - sigma) alpha_t) / (1 - alpha_t), so
    that a token is masked at time s with probability 1 - alpha_s for any sigma. Tokens that are
    given are never remasked. A step that unmasks nothing in a row evaluates nothing there. Source:
    Wang et al. 2025, arXiv:2503.00307.

    Attributes:
        sigma: Gives the mean probability that a visible token is remasked, from alpha_t and
            alpha_s; at most ``largest_sigma``.
        spread: Distributes the mean over the positions that may be remasked, given those positions
            ``[B, L]`` and the model's probability of each token when it was drawn; by default
            evenly.
        clock: Maps the times of the grid to those of the process; by default they are the same.
    """

    sigma: Callable[[Tensor, Tensor], Tensor]
    spread: Callable[[Tensor, Tensor, Tensor], Tensor] = lambda sigma, shown, _: sigma.expand(
        shown.shape
    )
    clock: Callable[[Tensor, NoiseSchedule], Tensor] = lambda times, _: times

    def fill(self, sampler: GridSampler, canvas: Canvas) -> None:
        """Take all steps of a sampler."""
        schedule = canvas.absorbing.schedule
        times = self.clock(sampler.times(canvas.x_t.device), schedule)
        confidence = torch.zeros(canvas.x_t.shape, dtype=torch.float64, device=times.device)
        for step, (t, s) in enumerate(pairwise(times), start=1):
            alpha_t, alpha_s = schedule.alpha(t), schedule.alpha(s)
            sigma = self.sigma(alpha_t, alpha_s)
            masked = canvas.masked
            shown = canvas.free & ~masked
            unmask = (alpha_s - (1 - sigma) * alpha_t) / (1 - alpha_t)
            where = canvas.draws.coins(unmask.expand(masked.shape), masked, step)
            again = canvas.draws.coins(self.spread(sigma, shown, confidence), shown, step)
            log_probs = canvas.log_probs(where, t.expand(len(masked)))
            sampler._draw(canvas, where, log_probs, step)
            drawn = canvas.x_t[where][:, None]
            confidence[where] = log_probs.gather(-1, drawn).squeeze(-1).exp()
            canvas.remask(again)
            canvas.end_step()


_ETA = (lambda value: 0 <= value <= 1, "be in [0, 1]", "0 never remasks a token")
_FRACTION = (lambda value: 0 < value < 1, "be in (0, 1)")


@dataclass(frozen=True)
class RemaskCapSampler(GridSampler):
    """ReMDM-cap: remasks with probability min(eta, largest possible); not the model's distribution.

    Source: Wang et al. 2025, arXiv:2503.00307.

    Attributes:
        eta: Strength of the remasking, in [0, 1]; at 0 the sampler is ancestral.
    """

    draws_from = "another"
    eta: float = option(0.05, *_ETA)

    @override
    def fill(self, canvas: Canvas) -> None:
        cap = Remasking(lambda t, s: largest_sigma(t, s).clamp_max(self.eta))
        cap.fill(self, canvas)


@dataclass(frozen=True)
class RemaskRescaleSampler(GridSampler):
    """ReMDM-rescale: remasks with eta times the largest probability; not the model's distribution.

    Source: Wang et al. 2025, arXiv:2503.00307.

    Attributes:
        eta: Strength of the remasking, in [0, 1]; at 0 the sampler is ancestral.
    """

    draws_from = "another"
    eta: float = option(0.05, *_ETA)

    @override
    def fill(self, canvas: Canvas) -> None:
        Remasking(lambda t, s: self.eta * largest_sigma(t, s)).fill(self, canvas)


@dataclass(frozen=True)
class RemaskConfSampler(GridSampler):
    """ReMDM-conf: remasks unsure tokens more often than rescale; not the model's distribution.

    The weights are exp(-confidence), as in Wang et al. 2025, arXiv:2503.00307. There they add up to
    1 over the row, here to the number of tokens that may be remasked, so that their mean leaves the
    row's mask rate at 1 - alpha_s. No weight exceeds e, so sigma is limited to 1 / e.

    Attributes:
        eta: Strength of the remasking, in [0, 1]; at 0 the sampler is ancestral.
    """

    draws_from = "another"
    eta: float = option(0.05, *_ETA)

    @override
    def fill(self, canvas: Canvas) -> None:
        most = math.exp(-1)
        rule = Remasking(lambda t, s: (self.eta * largest_sigma(t, s)).clamp_max(most), self.spread)
        rule.fill(self, canvas)

    def spread(
        self,
        sigma: Float64[Tensor, ""],
        shown: Bool[Tensor, "B L"],
        confidence: Float64[Tensor, "B L"],
    ) -> Float64[Tensor, "B L"]:
        """Distribute sigma over visible positions by their confidence, see ``Remasking``."""
        weights = torch.where(shown, torch.exp(-confidence), 0.0)
        total = weights.sum(dim=-1, keepdim=True)
        mean = total / shown.sum(dim=-1, keepdim=True)
        return sigma * weights / torch.where(total > 0, mean, 1.0)


@dataclass(frozen=True)
class RemaskLoopSampler(GridSampler):
    """ReMDM-loop: remasks and redraws at a fixed mask rate; not the model's distribution.

    The grid runs from 1 to 0. Above ``t_on`` it is ancestral sampling until a fraction ``alpha_on``
    of the tokens is visible. From ``t_on`` to ``t_off`` that fraction is kept and tokens are
    remasked with probability min(eta, largest possible). Below ``t_off`` ancestral sampling draws
    the rest. Source: Wang et al. 2025, arXiv:2503.00307.

    Attributes:
        eta: Strength of the remasking, in [0, 1]; at 0 the sampler is ancestral.
        t_on: Grid time at which the loop starts, below 1.
        t_off: Grid time at which it ends, above 0 and below ``t_on``.
        alpha_on: Fraction of visible tokens in the loop, in (0, 1).
    """

    draws_from = "another"
    eta: float = option(0.05, *_ETA)
    t_on: float = 0.55
    t_off: float = option(0.05, *_FRACTION, "0.05 is published")
    alpha_on: float = option(0.9, *_FRACTION, "0.9 is published")

    def __post_init__(self) -> None:
        super().__post_init__()
        ordered = self.t_off < self.t_on < 1
        requirement = f"be above t_off = {self.t_off} and below 1"
        require(self, ordered, "t_on", requirement, "0.55 is published")

    @override
    def fill(self, canvas: Canvas) -> None:
        Remasking(self.sigma, clock=self.clock).fill(self, canvas)

    def clock(self, times: Float64[Tensor, " n"], schedule: NoiseSchedule) -> Float64[Tensor, " n"]:
        """Return the times of the process, which stand still in the loop."""
        held = schedule.inverse(torch.tensor(self.alpha_on, dtype=times.dtype, device=times.device))
        before = held + (1 - held) * (times - self.t_on) / (1 - self.t_on)
        after = held * times / self.t_off
        return torch.where(times > self.t_on, before, torch.where(times < self.t_off, after, held))

    def sigma(
        self, alpha_t: Float64[Tensor, ""], alpha_s: Float64[Tensor, ""]
    ) -> Float64[Tensor, ""]:
        """Return the remasking probability, which is 0 outside of the loop."""
        strength = largest_sigma(alpha_t, alpha_s).clamp_max(self.eta)
        return torch.where(alpha_s == alpha_t, strength, 0.0)

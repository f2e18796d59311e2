"""Samplers that step from t = 1 to t = 0 on a grid: ancestral, Tweedie and tau-leaping."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from seqdiff.denoiser import Needs
from seqdiff.losses import has_reconstruction
from seqdiff.parameterization import before_the_end
from seqdiff.process import Absorbing, DiscreteProcess, Hybrid, Uniform
from seqdiff.samplers.canvas import Canvas, Reshape
from seqdiff.samplers.decoding import DecodingSampler, reshape_law


@dataclass(frozen=True)
class GridSampler(DecodingSampler, ABC):
    """A sampler of ``num_steps`` equal steps.

    Attributes:
        num_steps: Steps from t = 1 to t = 0.
    """

    num_steps: int = 128

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            ValueError: If one is out of its range.
        """
        super().__post_init__()
        self._require(
            self.num_steps >= 1,
            "num_steps",
            "be at least 1",
            "the sequence length is a good choice",
        )

    def times(self, device: torch.device) -> Float64[Tensor, " n"]:
        """The ``num_steps + 1`` times, from 1 down to 0."""
        return torch.linspace(1, 0, self.num_steps + 1, dtype=torch.float64, device=device)

    @property
    def shape(self) -> Reshape | None:
        """How predictions of the clean token are sharpened; ``None`` if they are not."""
        if self.temperature == 1 and self.top_k is None and self.top_p is None:
            return None
        return partial(
            reshape_law, temperature=self.temperature, top_k=self.top_k, top_p=self.top_p
        )


@dataclass(frozen=True)
class NoisySampler(GridSampler, ABC):
    """A sampler whose steps may change every token that is not given.

    Unknown positions start as draws from the prior. Given tokens are put back after every step;
    with uniform and hybrid noise a model has seen no clean tokens among noisy ones, so that this is
    an approximation there, unless it is masked diffusion. Temperature and its like reshape the
    prediction of the clean token before a step is made from it.

    Attributes:
        keeps_unmask_times: Whether a step unmasks a token with the probability that the process
            gives, if the model predicts the clean token.
    """

    draws_from = "in the limit"
    keeps_unmask_times = True

    def fill(self, canvas: Canvas) -> None:
        """See ``Sampler``; every row is evaluated in every step."""
        self.start(canvas)
        for step, (t, s) in enumerate(pairwise(self.times(canvas.x_t.device)), start=1):
            self.advance(canvas, s, t, step)
            canvas.end_step()
        self.finish(canvas, self.num_steps + 1)

    def start(self, canvas: Canvas) -> None:
        """Draw z_1 at the positions that are to be filled."""
        where, prior = canvas.free, canvas.process.log_prior(canvas.x_t.device)
        if len(prior) > canvas.unknown_id and float(prior[canvas.unknown_id]) == 0.0:
            return  # all masks, which is what unknown positions hold
        places = int(where.sum())
        canvas.place(where, canvas.draws.letters(prior.expand(places, -1), where, 0))

    def advance(
        self, canvas: Canvas, s: Float64[Tensor, ""], t: Float64[Tensor, ""], step: int
    ) -> None:
        """Draw z_s given z_t.

        Args:
            canvas: The rows, at time t.
            s: Earlier time.
            t: Present time.
            step: Tells apart the draws of a position.
        """
        if canvas.denoiser.any_order and self.keeps_unmask_times:  # the rest need not be predicted
            masked = canvas.masked
            unmask = canvas.absorbing.unmask_probability(s, t).expand(masked.shape)
            where = canvas.draws.coins(unmask, masked, step)
            self._reveal(canvas, where, canvas.log_probs(where, t.expand(len(masked))), step)
            return
        where = canvas.masked if isinstance(canvas.process, Absorbing) else canvas.free
        kernel = self.kernel(canvas, where, s, t)
        if float(s) == 0.0:
            kernel = without_mask(kernel, canvas.process)
        canvas.place(where, canvas.draws.letters(kernel, where, step))

    @abstractmethod
    def kernel(
        self,
        canvas: Canvas,
        where: Bool[Tensor, "B L"],
        s: Float64[Tensor, ""],
        t: Float64[Tensor, ""],
    ) -> Float64[Tensor, "N states"]:
        """Distribution of z_s given z_t at some positions.

        Args:
            canvas: The rows, at time t.
            where: The positions.
            s: Earlier time.
            t: Present time.
        """

    def finish(self, canvas: Canvas, step: int) -> None:
        """Decode z_0 where it still holds noise, or where the model does not copy tokens.

        The last token is drawn from the distribution given all noisy tokens, the position's own
        among them: leaving that one out would forget what it says.
        """
        if not has_reconstruction(canvas.denoiser):
            return
        where, zero = canvas.free, torch.zeros_like(canvas.nfe, dtype=torch.float64)
        masked = isinstance(canvas.process, Absorbing)
        law = canvas.log_probs(where, zero, own=masked)
        self._reveal(canvas, where, law, step)
        canvas.end_step()


def without_mask(
    kernel: Float64[Tensor, "N states"], process: DiscreteProcess
) -> Float64[Tensor, "N states"]:
    """Leave no mask at t = 0, where a model that predicts masks would leave some."""
    if process.states == process.vocab_size:
        return kernel
    symbols = kernel[:, : process.vocab_size].log_softmax(dim=-1)
    return torch.nn.functional.pad(symbols, (0, 1), value=-torch.inf)


@dataclass(frozen=True)
class AncestralSampler(NoisySampler):
    """The exact posterior step by step, one network evaluation a step; off by O(1/steps).

    ``num_steps`` equal steps from t = 1 to t = 0, each an exact draw from q(z_s | z_t, x0) with the
    prediction in the place of x0. With masks, a position is unmasked in the step that holds its
    unmask time, which has probability (alpha_s - alpha_t) / (1 - alpha_t) in every step that finds
    it masked. Source: Sahoo et al. 2024, arXiv:2406.07524; Austin et al. 2021, arXiv:2107.03006.

    Attributes:
        num_steps: Steps; the distribution tends to the model's own like 1 / num_steps.
    """

    needs = Needs((DiscreteProcess,), ("loo", "full", "step"))

    def kernel(
        self,
        canvas: Canvas,
        where: Bool[Tensor, "B L"],
        s: Float64[Tensor, ""],
        t: Float64[Tensor, ""],
    ) -> Float64[Tensor, "N states"]:
        """See ``NoisySampler`` and ``Denoiser.log_reverse``."""
        return canvas.reverse(where, s, t, self.shape)

    def fill(self, canvas: Canvas) -> None:
        """See ``Sampler``; every row with something to draw is evaluated in every step."""
        if not canvas.denoiser.any_order:
            super().fill(canvas)
            return
        times = self.times(canvas.x_t.device)
        edges = 1 - canvas.absorbing.schedule.alpha(times)
        opens_in = canvas.draws.cells(edges, canvas.masked)
        for step, t in enumerate(times[:-1], start=1):
            rows = canvas.masked.any(dim=-1)
            where = opens_in == step
            self._reveal(canvas, where, canvas.log_probs(where, t.expand(len(rows)), rows=rows))
            canvas.end_step()


@dataclass(frozen=True)
class CachedAncestralSampler(AncestralSampler):
    """The same samples as ancestral, bit for bit, evaluating a row only after it has changed.

    For masked diffusion with networks that ignore time, as ours do. It takes at most as many
    evaluations a row as there are masks, however fine the grid, and keeps one prediction for each
    mask. Source: Sahoo et al. 2024, arXiv:2406.07524, and Ou et al. 2024, arXiv:2406.03736; in the
    former's code the whole batch shares one cache.
    """

    needs = Needs((Absorbing,), any_order=True)

    def fill(self, canvas: Canvas) -> None:
        """See ``Sampler``."""
        canvas.remember()
        super().fill(canvas)


@dataclass(frozen=True)
class TweedieSampler(AncestralSampler):
    """The analytic steps of SEDD from scores, one evaluation a step; off by O(1/steps).

    On one position a step is exact if the scores are; positions are drawn independently. Models
    that predict the clean token give scores too, and then it is ancestral. Source: Lou et al. 2024,
    arXiv:2310.16834, theorem 4.2.

    Attributes:
        num_steps: Steps; the distribution tends to the model's own like 1 / num_steps.
    """

    needs = Needs((Absorbing, Uniform, Hybrid), ("loo", "full", "score", "step"))


@dataclass(frozen=True)
class TauLeapingSampler(NoisySampler):
    """Euler steps of the reverse jump process, one evaluation a step; off by O(1/steps).

    In a step a token jumps to y with probability (t - s) Q_t(y -> z) s_y, all tokens at once. Where
    these add up to more than 1 they are scaled down; ``SampleOutput.clamped`` counts such draws.
    The last step is the analytic one, so that no noise is left. Source: Campbell et al. 2022,
    arXiv:2205.14987; Lou et al. 2024, arXiv:2310.16834, section 4.

    Attributes:
        num_steps: Steps; the distribution tends to the model's own like 1 / num_steps.
    """

    needs = Needs((DiscreteProcess,))
    keeps_unmask_times = False

    def kernel(
        self,
        canvas: Canvas,
        where: Bool[Tensor, "B L"],
        s: Float64[Tensor, ""],
        t: Float64[Tensor, ""],
    ) -> Float64[Tensor, "N states"]:
        """See ``NoisySampler``."""
        if float(s) == 0.0:
            return canvas.reverse(where, s, t, self.shape)
        process = canvas.process
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
        stay = (1 - total).clamp_min(0)
        return torch.where(present, stay, jumps).log()

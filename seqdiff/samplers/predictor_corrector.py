"""Correctors: after each step back in time, draw some tokens anew given the others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import pairwise

from jaxtyping import Float64
from torch import Tensor

from seqdiff.denoiser import Needs
from seqdiff.process import Absorbing, Hybrid, Uniform
from seqdiff.samplers.canvas import Canvas
from seqdiff.samplers.grid import AncestralSampler


@dataclass(frozen=True)
class CorrectorSampler(AncestralSampler, ABC):
    """Ancestral steps, each but the last followed by corrector steps.

    Attributes:
        corrector_steps: Corrector steps after each predictor step but the last.
    """

    corrector_steps: int = 1

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            ValueError: If one is out of its range.
        """
        super().__post_init__()
        self._require(
            self.corrector_steps >= 1, "corrector_steps", "be at least 1", "0 is ancestral"
        )

    def fill(self, canvas: Canvas) -> None:
        """See ``Sampler``."""
        draw = 2
        self.start(canvas)
        for t, s in pairwise(self.times(canvas.x_t.device)):
            self.advance(canvas, s, t, draw)
            draw += 1
            for _ in range(self.corrector_steps if float(s) > 0 else 0):
                self.correct(canvas, s, draw)
                draw += 2
            canvas.end_step()
        self.finish(canvas, draw)

    @abstractmethod
    def correct(self, canvas: Canvas, s: Float64[Tensor, ""], draw: int) -> None:
        """Draw some tokens anew at time s.

        Args:
            canvas: The rows, at time s.
            s: The time, above 0.
            draw: Tells apart the draws of a position; this takes two.
        """


@dataclass(frozen=True)
class PredictorCorrectorSampler(CorrectorSampler):
    """Ancestral steps, each followed by noise and its removal; not the model's distribution.

    A corrector step at time s runs the forward process to the time r with alpha_r = (1 - renoise)
    alpha_s, at most 1, and goes back to s by the posterior: what the independent draws of the
    predictor got wrong is drawn anew given the rest. There is none at s = 0, where it would be the
    last word. A corrector step has an error of its own, of the order of ``renoise`` squared. So the
    distribution tends to the model's own only if ``renoise`` falls as ``num_steps`` grows, for
    example as 1 / num_steps. Source of the idea: Campbell et al. 2022, arXiv:2205.14987.

    Attributes:
        num_steps: Predictor steps; more do not help unless ``renoise`` falls with them.
        renoise: Probability that a corrector step replaces a token by noise, in (0, 1].
    """

    needs = Needs((Absorbing, Uniform, Hybrid), ("loo", "full", "step"))
    draws_from = "another"
    renoise: float = 0.1

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            ValueError: If one is out of its range.
        """
        super().__post_init__()
        self._require(0 < self.renoise <= 1, "renoise", "be in (0, 1]", "0.1 is mild")

    def correct(self, canvas: Canvas, s: Float64[Tensor, ""], draw: int) -> None:
        """See ``CorrectorSampler``."""
        process = canvas.process
        assert isinstance(process, Absorbing | Uniform | Hybrid)  # by ``needs``
        r = process.inverse((1 - self.renoise) * process.alpha(s)).clamp_max(1)
        if isinstance(process, Absorbing):  # a coin decides: no distribution over all states
            stay = (process.alpha(r) / process.alpha(s)).expand(canvas.x_t.shape)
            visible = canvas.free & ~canvas.masked
            canvas.hide(canvas.draws.coins(1 - stay, visible, draw))
        else:
            where = canvas.free
            z = canvas.x_t[where]
            forward = process.log_forward(z, s.expand(z.shape), r.expand(z.shape))
            canvas.place(where, canvas.draws.letters(forward, where, draw))
        self.advance(canvas, s, r, draw + 1)


@dataclass(frozen=True)
class GibbsSampler(CorrectorSampler):
    """Ancestral steps, each followed by tokens drawn anew one at a time given all the others.

    At time s a position is drawn from q_s(. | the prediction without its own token), which leaves
    the distribution of z_s as it is if the prediction is exact (a Gibbs step): only the errors of
    the predictor are corrected. Each costs an evaluation. For uniform and hybrid noise, where every
    token is predicted from the others. Source: Zhao et al. 2024, arXiv:2407.21243, whose informed
    correctors choose the positions; here they are uniform.

    Attributes:
        corrector_steps: Positions drawn anew after each predictor step but the last.
    """

    needs = Needs((Uniform, Hybrid), ("loo", "full"))

    def correct(self, canvas: Canvas, s: Float64[Tensor, ""], draw: int) -> None:
        """See ``CorrectorSampler``: one position of each row."""
        where = canvas.choose_one(draw)
        law = canvas.marginal(where, s, self.shape)
        canvas.place(where, canvas.draws.letters(law, where, draw + 1))

"""Correctors: after each step back in time, draw some tokens anew given the others."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from jaxtyping import Float64
from torch import Tensor

from seqdiff.denoiser import Needs
from seqdiff.process import Absorbing, Hybrid, Uniform
from seqdiff.samplers.canvas import Canvas
from seqdiff.samplers.grid import NoisySampler


@dataclass(frozen=True)
class PredictorCorrectorSampler(NoisySampler):
    """Ancestral steps, each followed by a little noise that is taken back again.

    A corrector step at time s runs the forward process to the time r with alpha_r = (1 - renoise)
    alpha_s and goes back to s by the posterior: what the independent draws of the predictor got
    wrong is drawn anew given the rest. There is none at s = 0, where it would be the last word.
    The distribution tends to the model's own only if ``renoise`` falls as ``num_steps`` grows, for
    a corrector step has an error of its own, of the order of ``renoise`` squared. Source of the
    idea: Campbell et al. 2022, arXiv:2205.14987.

    Attributes:
        corrector_steps: Corrector steps after each predictor step but the last.
        renoise: Probability that a corrector step replaces a token by noise, in (0, 1].
    """

    needs = Needs((Absorbing, Uniform, Hybrid), ("loo", "full"))
    draws_from = "another"
    corrector_steps: int = 1
    renoise: float = 0.1

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            ValueError: If one is out of its range.
        """
        super().__post_init__()
        self._require(
            self.corrector_steps >= 1, "corrector_steps", "be at least 1", "0 is ancestral"
        )
        self._require(0 < self.renoise <= 1, "renoise", "be in (0, 1]", "0.1 is mild")

    def fill(self, canvas: Canvas) -> None:
        """See ``Sampler``."""
        process, draw = canvas.process, 2
        assert isinstance(process, Absorbing | Uniform | Hybrid)  # by ``needs``
        self.start(canvas)
        for t, s in pairwise(self.times(canvas.x_t.device)):
            self.advance(canvas, s, t, draw)
            draw += 1
            if float(s) > 0:
                r = process.inverse((1 - self.renoise) * process.alpha(s))
                for _ in range(self.corrector_steps):
                    where = canvas.free
                    z = canvas.x_t[where]
                    forward = process.log_forward(z, s.expand(z.shape), r.expand(z.shape))
                    canvas.place(where, canvas.draws.letters(forward, where, draw))
                    self.advance(canvas, s, r, draw + 1)
                    draw += 2
            canvas.end_step()
        self.finish(canvas, draw)


@dataclass(frozen=True)
class GibbsSampler(NoisySampler):
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

    def correct(self, canvas: Canvas, s: Float64[Tensor, ""], draw: int) -> None:
        """Draw one position of each row anew at time s.

        Args:
            canvas: The rows, at time s.
            s: The time.
            draw: Tells apart the draws of a position; this takes two.
        """
        where = canvas.choose_one(draw)
        law = canvas.marginal(where, s, self.shape)
        canvas.place(where, canvas.draws.letters(law, where, draw + 1))

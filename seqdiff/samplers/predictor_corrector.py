"""A predictor step forward, then corrector steps that noise a little and denoise again."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count, pairwise

from jaxtyping import Float64
from torch import Tensor

from seqdiff.samplers.canvas import Canvas
from seqdiff.samplers.grid import GridSampler


@dataclass(frozen=True)
class PredictorCorrectorSampler(GridSampler):
    """Ancestral steps, each followed by corrector steps that hide some tokens and redraw them.

    A corrector step at time s hides each drawn token with probability ``renoise``, which is the
    forward process to the time r with alpha_r = (1 - renoise) alpha_s, and goes back to s by the
    posterior. The mask rate at s stays 1 - alpha_s; what the factorised predictor got wrong is
    drawn anew given the rest. Source of the idea: Campbell et al. 2022, arXiv:2205.14987.

    Attributes:
        corrector_steps: Corrector steps after each predictor step.
        renoise: Probability that a corrector step hides a drawn token, in (0, 1].
    """

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
        """See ``Sampler``; a step that reveals nothing in a row evaluates nothing there."""
        schedule, draw = canvas.process.schedule, count()
        for t, s in pairwise(self.times(canvas.x_t.device)):
            self._denoise(canvas, t, s, next(draw))
            alpha_s = schedule.alpha(s)
            r = schedule.inverse((1 - self.renoise) * alpha_s)
            for _ in range(self.corrector_steps):
                shown = canvas.free & ~canvas.masked
                chance = (0 * alpha_s + self.renoise).expand(shown.shape)
                canvas.hide(canvas.draws.coins(chance, shown, next(draw)))
                self._denoise(canvas, r, s, next(draw))
            canvas.end_step()

    def _denoise(
        self, canvas: Canvas, t: Float64[Tensor, ""], s: Float64[Tensor, ""], draw: int
    ) -> None:
        """Go from t back to s by the posterior."""
        masked = canvas.masked
        reveal = canvas.process.reveal_probability(s[None], t[None])
        opened = canvas.draws.coins(reveal.expand(masked.shape), masked, draw)
        law = canvas.law(opened, t.expand(len(masked)))
        self._reveal(canvas, opened, law, draw)

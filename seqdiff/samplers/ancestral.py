"""Ancestral sampling: the exact posterior, step by step."""

from __future__ import annotations

from dataclasses import dataclass

from seqdiff.samplers.canvas import Canvas
from seqdiff.samplers.grid import GridSampler


@dataclass(frozen=True)
class AncestralSampler(GridSampler):
    """The exact posterior step by step, one network evaluation a step; law off by O(1/steps).

    ``num_steps`` equal steps from t = 1 to t = 0, each an exact draw from q(x_s | x_t, x_theta). A
    position is revealed in the step that holds its level, which makes it revealed with probability
    (alpha_s - alpha_t) / (1 - alpha_t) by every step that finds it masked. Source: Sahoo et al.
    2024, arXiv:2406.07524.

    Attributes:
        num_steps: Steps; the law tends to the model's own like 1 / num_steps.
    """

    def fill(self, canvas: Canvas) -> None:
        """See ``Sampler``; every row with masks is evaluated in every step."""
        times = self.times(canvas.x_t.device)
        edges = 1 - canvas.process.schedule.alpha(times)
        opens_in = canvas.draws.cells(edges, canvas.masked)
        for step, t in enumerate(times[:-1], start=1):
            rows = canvas.masked.any(dim=-1)
            where = opens_in == step
            self._reveal(canvas, where, canvas.law(where, t.expand(len(rows)), rows=rows))
            canvas.end_step()

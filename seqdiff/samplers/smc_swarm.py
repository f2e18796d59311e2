"""The particles of sequential Monte Carlo: N rows in the place of each row of a canvas."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from seqdiff.samplers.canvas import Canvas
from seqdiff.samplers.smc_weights import Particles, Weights


@dataclass
class Swarm:
    """N particles for each row of a canvas, as N consecutive rows of a canvas of their own.

    Attributes:
        owner: The canvas.
        canvas: The particles.
        levels: When each position opens; an order of its own for every particle.
        opens_in: The step in which each position opens.
        worth: What each particle was last weighted by, in nats.
        weights: Of the particles.
    """

    owner: Canvas
    canvas: Canvas
    levels: Float64[Tensor, "BN L"]
    opens_in: Int64[Tensor, "BN L"]
    worth: Float64[Tensor, " BN"]
    weights: Weights

    @classmethod
    def spread(cls, canvas: Canvas, count: int) -> Swarm:
        """Put ``count`` copies of each row side by side."""
        rows = torch.arange(len(canvas.x_t), device=canvas.x_t.device).repeat_interleave(count)
        part = replace(
            canvas,
            draws=canvas.draws.copies(count),
            x_t=canvas.x_t[rows],
            free=canvas.free[rows],
            nfe=torch.zeros_like(rows),
            padding=None if canvas.padding is None else canvas.padding[rows],
            allowed=None if canvas.allowed is None else canvas.allowed[rows],
            callback=None,
        )
        weights = Weights.equal(len(canvas.x_t), count, rows.device)
        levels = part.draws.levels(part.masked)
        worth = torch.zeros(len(rows), dtype=torch.float64, device=rows.device)
        return cls(canvas, part, levels, torch.zeros_like(part.x_t), worth, weights)

    @property
    def tokens(self) -> Int64[Tensor, "B N L"]:
        """The particles of each row."""
        return self.canvas.x_t.view(*self.weights.log_weights.shape, self.canvas.x_t.shape[1])

    def start(self, step: int) -> Float64[Tensor, " B"]:
        """Draw a number in (0, 1) for each row, from the noise of a copy that is no particle."""
        rows, last = len(self.owner.x_t), self.weights.log_weights.shape[-1] + step
        draws = self.owner.draws.copies(last + 1)
        where = torch.arange(rows * (last + 1), device=self.worth.device) % (last + 1) == last
        return draws.levels(where[:, None])[where, 0]

    def take(self, origin: Int64[Tensor, " BN"]) -> None:
        """Replace each particle by another, its order of positions included."""
        free = self.canvas.free
        self.canvas.place(free, self.canvas.x_t[origin][free])
        self.levels, self.opens_in = self.levels[origin], self.opens_in[origin]
        self.worth = self.worth[origin]

    def show(self, particle: Int64[Tensor, " B"], step: int) -> None:
        """Write one particle of each row to the owner, as it was after a step.

        A particle that was replaced has the order of its ancestor, so what a step revealed of it or
        of its ancestor is what its order opens in that step.
        """
        first = torch.arange(len(particle), device=particle.device) * self.tokens.shape[1]
        chosen, free = first + particle, self.owner.free
        closed = self.opens_in[chosen] > step
        tokens = self.canvas.x_t[chosen].masked_fill(closed, self.canvas.unknown_id)
        self.owner.place(free, tokens[free])

    def report(self) -> Particles:
        """The particles with their shares."""
        shares = self.weights.shares
        return Particles(self.tokens, shares, self.weights.total)

"""Sequential Monte Carlo: sampling from a model tilted by a reward, without training."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from seqdiff.rng import permutation_rank
from seqdiff.samplers.canvas import Canvas
from seqdiff.samplers.decoding import reshape_law
from seqdiff.samplers.first_hitting import FirstHittingSampler, share_out

_WANTED = "take ids [n, L] and give a tensor with one number a row, [n]"
_FIX = "write a function like lambda ids: (ids == 0).double().mean(dim=-1)"


def reward_name(reward: Callable) -> str:
    """Name a reward for a message, as it would be imported where it can be."""
    name = getattr(reward, "__qualname__", type(reward).__qualname__)
    return f"{getattr(reward, '__module__', None) or '?'}.{name}"


def one_a_row(reward: Callable, rewards: object, rows: int) -> Tensor:
    """Give back what a reward gave, if it is a tensor with one number for each of the rows.

    Raises:
        ValueError: If not; names the reward.
    """
    if isinstance(rewards, Tensor) and rewards.shape == (rows,):
        return rewards
    got = f"a {type(rewards).__name__}"
    if isinstance(rewards, Tensor):
        got = f"shape {tuple(rewards.shape)}"
    raise ValueError(
        f"SMCSampler.reward must {_WANTED}, got {got} from {reward_name(reward)} for {rows} rows; "
        f"{_FIX}"
    )


def try_reward(reward: Callable, row: Int64[Tensor, "1 L"]) -> None:
    """Ask a reward about a row, twice at once, whatever numbers it gives.

    Raises:
        ValueError: If it does not take the row, or does not give a number each; names the reward.
    """
    try:
        given = reward(row.repeat(2, 1))
    except Exception as error:
        said = " ".join(str(error).split())
        raise ValueError(
            f"SMCSampler.reward must {_WANTED}, got {type(error).__name__} from "
            f"{reward_name(reward)}: {said}; {_FIX}"
        ) from error
    one_a_row(reward, given, 2)


@dataclass(frozen=True)
class Particles:
    """Weighted rows that stand for a law.

    Attributes:
        tokens: N rows for each row that was asked for.
        log_weights: Their shares, as logarithms: they add up to 1.
        log_normalizer: Logarithm of an unbiased estimate of the law's normalising constant.
    """

    tokens: Int64[Tensor, "B N L"]
    log_weights: Float64[Tensor, "B N"]
    log_normalizer: Float64[Tensor, " B"]


@dataclass
class Weights:
    """Unnormalised weights since the last resampling, and the mean weights before.

    Attributes:
        log_weights: Of each particle, in nats.
        log_normalizer: Sum of the logarithms of the mean weights at each resampling.
    """

    log_weights: Float64[Tensor, "B N"]
    log_normalizer: Float64[Tensor, " B"]

    @classmethod
    def equal(cls, rows: int, num_particles: int, device: torch.device) -> Weights:
        """Start with weights of 1."""
        zeros = torch.zeros((rows, num_particles), dtype=torch.float64, device=device)
        return cls(zeros, zeros.sum(dim=-1))

    @property
    def shares(self) -> Float64[Tensor, "B N"]:
        """Logarithms of the weights divided by their sum."""
        return self.log_weights.log_softmax(dim=-1)

    @property
    def effective_size(self) -> Float64[Tensor, " B"]:
        """How many equally weighted particles would be as good: (sum w)^2 / sum w^2."""
        return (-(2 * self.shares).logsumexp(dim=-1)).exp()

    @property
    def total(self) -> Float64[Tensor, " B"]:
        """The estimate of the normalising constant so far, as a logarithm."""
        count = self.log_weights.shape[-1]
        return self.log_normalizer + self.log_weights.logsumexp(dim=-1) - math.log(count)

    def settle(self, rows: Tensor) -> None:
        """Move the mean weights of some rows into the normaliser: the rest starts from 1.

        Args:
            rows: True where the particles have been resampled, ``[B]``.
        """
        self.log_normalizer = torch.where(rows, self.total, self.log_normalizer)
        self.log_weights = self.log_weights.masked_fill(rows[:, None], 0.0)


def systematic(
    shares: Float64[Tensor, "B N"], start: Float64[Tensor, " B"]
) -> Int64[Tensor, "B N"]:
    """Choose N particles at N equally spaced places of the line of shares.

    Each particle is chosen N times its share on average, and never a whole time more or less.
    Source: Douc, Cappe and Moulines 2005, arXiv:cs/0507025, and what is cited there.

    Args:
        shares: Logarithms; they add up to 1.
        start: Where the first place lies in its interval, uniform on (0, 1).

    Returns:
        The particle at each place.
    """
    count = shares.shape[-1]
    line = shares.exp().cumsum(dim=-1)
    places = (torch.arange(count, device=shares.device) + start[:, None]) / count * line[:, -1:]
    last = torch.nextafter(line[:, -1:], torch.zeros_like(line[:, -1:]))
    return torch.searchsorted(line, torch.minimum(places, last), right=True)


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


Resampling = Literal["systematic", "multinomial"]


@dataclass(frozen=True, kw_only=True)
class SMCSampler(FirstHittingSampler):
    """First-hitting tilted by any reward: exp(reward / temperature), as particles grow in number.

    N particles a row reveal tokens as first-hitting does. Before each step but the first, each
    particle that still has masks fills them in from the model's prediction, and is weighted by
    ``exp(reward / reward_temperature)`` of such drafts, divided by what it was weighted by before;
    at the end by that of itself. The weights multiply up to those of importance sampling, so drafts
    only guide the search. All drafts of a row are made with the same noise, at every step: they
    differ by what particles have revealed and by nothing else. Particles are resampled where their
    effective number falls below ``ess_threshold`` times N. The sample is one of them, by weight.

    Its law tends to ``p(x) exp(reward(x) / reward_temperature) / Z`` like 1/N, where p is the law
    of ``FirstHittingSampler`` with the same options, and for N = 1 it is p; the estimate of Z is
    unbiased for every N. The cost is N times that of first-hitting, and for each particle
    ``num_drafts`` rewards a step and one at the end; before the first step the reward is tried on
    two rows. All particles of a batch are in memory.

    Source: Del Moral, Doucet and Jasra 2006, https://doi.org/10.1111/j.1467-9868.2006.00553.x; for
    diffusion models Wu et al. 2023, arXiv:2306.17775, and Singhal et al. 2025, arXiv:2501.06848.

    Attributes:
        reward: Scores rows of ids ``[n, L]`` with one number each, ``[n]``; the higher the
            likelier, and ``-inf`` never. Padding holds what it held in ``x_init``.
        reward_temperature: In units of the reward; the lower, the stronger the tilt.
        num_particles: N, for each row.
        ess_threshold: Share of N in [0, 1] below which the effective number is too small; 0 never
            resamples.
        num_drafts: Drafts of a particle at a step, whose ``exp(reward / reward_temperature)`` are
            averaged.
        resampling: ``systematic`` or ``multinomial``, which has more noise.
    """

    draws_from = "another"
    reward: Callable  # without parameters: the command line takes any function, annotated or not
    reward_temperature: float = 1.0
    num_particles: int = 16
    ess_threshold: float = 0.5
    num_drafts: int = 1
    resampling: Resampling = "systematic"

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            ValueError: If one is out of its range.
        """
        super().__post_init__()
        self._require(
            callable(self.reward), "reward", "be a function of ids [n, L]", "give one number a row"
        )
        for name in ("num_particles", "num_drafts"):
            self._require(getattr(self, name) >= 1, name, "be at least 1", "raise it")
        self._require(
            0 < self.reward_temperature < math.inf,
            "reward_temperature",
            "be above 0 and finite",
            "1 tilts by exp(reward)",
        )
        self._require(0 <= self.ess_threshold <= 1, "ess_threshold", "be in [0, 1]", "0.5 is usual")
        choices = get_args(Resampling)
        self._require(
            self.resampling in choices, "resampling", f"be one of {', '.join(choices)}", "choose"
        )

    def fill(self, canvas: Canvas) -> None:
        """See ``Sampler``.

        The callback sees the first particle of each row, and at the end the steps of the sample.
        """
        self.particles(canvas)

    def particles(self, canvas: Canvas) -> Particles:
        """Fill a canvas, and give all particles, of which it holds one.

        Args:
            canvas: From ``Canvas.open``.

        Raises:
            ValueError: If the reward takes no rows of ids or does not give one number a row (before
                the network is called), or gives NaN or infinity, or ``-inf`` for all particles of a
                row.
        """
        self._try_reward(canvas)
        swarm = Swarm.spread(canvas, self.num_particles)
        masked = swarm.canvas.masked
        rank = permutation_rank(1 - swarm.levels, masked)
        swarm.opens_in = share_out(rank, masked.sum(dim=-1), self.num_steps)
        steps = int(swarm.opens_in[masked].max()) + 1 if bool(masked.any()) else 0
        for step in range(steps):
            self._step(swarm, step)
            if step < steps - 1:
                swarm.show(torch.zeros_like(canvas.nfe), step)
                canvas.report(step + 1)
        self._weigh(swarm, torch.ones_like(swarm.worth, dtype=torch.bool), self._worth(swarm))
        self._refuse_extinct(swarm.weights)
        found = swarm.report()
        where = torch.ones_like(found.log_weights[:, :1], dtype=torch.bool)
        chosen = canvas.draws.letters(found.log_weights, where, 0)
        canvas.nfe += swarm.canvas.nfe.view(-1, self.num_particles).sum(dim=-1)
        for step in range(steps):
            swarm.show(chosen, step)
            canvas.report(step + 1)
        return found

    def _step(self, swarm: Swarm, step: int) -> None:
        """Weigh, resample, and reveal what opens in a step."""
        masked = swarm.canvas.masked
        where = masked & (swarm.opens_in == step)
        level = torch.where(where, swarm.levels, 0.0).amax(dim=-1)
        law = swarm.canvas.log_probs(masked, swarm.canvas.absorbing.schedule.inverse(1 - level))
        shaped = reshape_law(law, temperature=self.temperature, top_k=self.top_k, top_p=self.top_p)
        opening = shaped[where[masked]]
        if step > 0:
            unfinished = masked.any(dim=-1)
            self._weigh(swarm, unfinished, self._drafted_worth(swarm, shaped))
            place = torch.full(where.shape, -1, device=where.device)
            place[where] = torch.arange(len(opening), device=where.device)
            place = place[self._resample(swarm, unfinished, step)]
            where, opening = place >= 0, opening[place[place >= 0]]
        swarm.canvas.place(where, swarm.canvas.draws.letters(opening, where, 2 * step))

    def _worth(self, swarm: Swarm, tokens: Int64[Tensor, "n L"] | None = None) -> Tensor:
        """Reward over temperature of rows, by default of all particles as they are."""
        rows = swarm.canvas.x_t if tokens is None else tokens
        if not len(rows):
            return swarm.worth[:0]
        rewards = one_a_row(self.reward, self.reward(rows), len(rows))
        worth = rewards.to(swarm.worth.device, torch.float64) / self.reward_temperature
        bad = worth.isnan() | worth.isposinf()
        if bool(bad.any()):
            row = int(bad.nonzero()[0])
            raise ValueError(
                f"SMCSampler.reward must give numbers, got {float(worth[row])} from "
                f"{reward_name(self.reward)} for {rows[row, :8].tolist()}...; -inf stands for what "
                "must not be, NaN and inf for nothing"
            )
        return worth

    def _try_reward(self, canvas: Canvas) -> None:
        """Ask about a row, whose masks are filled in as allowed, before the network works."""
        first = canvas.x_t[:1].clone()
        masked = canvas.masked[:1]
        first[masked] = 0 if canvas.allowed is None else canvas.allowed[:1][masked].int().argmax(-1)
        if len(first):
            try_reward(self.reward, first)

    def _refuse_extinct(self, weights: Weights) -> None:
        extinct = weights.log_weights.isneginf().all(dim=-1)
        if bool(extinct.any()):
            raise ValueError(
                "SMCSampler.reward must be above -inf for some particle of every row, got -inf for "
                f"all {self.num_particles} of row {int(extinct.nonzero()[0])}; raise num_particles "
                "or num_drafts, or rule letters out by allowed"
            )

    def _drafted_worth(self, swarm: Swarm, law: Float64[Tensor, "N K"]) -> Float64[Tensor, " n"]:
        """Logarithm of the mean tilt of drafts, for the particles that still have masks."""
        masked = swarm.canvas.masked
        unfinished = masked.any(dim=-1)
        draws = swarm.owner.draws.repeated(self.num_particles)
        drafts = []
        for draft in range(self.num_drafts):
            tokens = swarm.canvas.x_t.clone()
            tokens[masked] = draws.letters(law, masked, 1 + draft)
            drafts.append(self._worth(swarm, tokens[unfinished]))
        worth = torch.stack(drafts).logsumexp(dim=0) - math.log(self.num_drafts)
        return self._spare(worth, swarm.worth[unfinished])

    def _spare(
        self, worth: Float64[Tensor, " n"], before: Float64[Tensor, " n"]
    ) -> Float64[Tensor, " n"]:
        """Keep particles alive whose drafts are all impossible, since they may yet end well.

        Any positive number leaves the measure unbiased. By Laplace's rule d failures leave a chance
        of 1 / (d + 2), here of the row's least; without any success, all stay what they were.
        """
        rows = worth.view(-1, self.num_particles)
        possible = rows.isfinite()
        least = torch.where(possible, rows, torch.inf).amin(dim=-1, keepdim=True)
        spared = torch.where(
            least.isfinite(), least - math.log(self.num_drafts + 2), before.view_as(rows)
        )
        return torch.where(possible, rows, spared).flatten()

    def _weigh(self, swarm: Swarm, which: Tensor, worth: Tensor) -> None:
        """Multiply weights by what particles are worth now over what they were."""
        before = swarm.worth.clone()
        swarm.worth[which] = worth
        gain = (swarm.worth - before).view_as(swarm.weights.log_weights)
        swarm.weights.log_weights = swarm.weights.log_weights + gain

    def _resample(
        self, swarm: Swarm, unfinished: Bool[Tensor, " BN"], step: int
    ) -> Int64[Tensor, " BN"]:
        """Replace the particles of the rows that need it; give whence each particle comes."""
        weights, count = swarm.weights, self.num_particles
        shares = weights.shares
        rows = weights.effective_size < self.ess_threshold * count
        rows &= unfinished.view(-1, count).any(dim=-1)
        chosen = torch.arange(count, device=rows.device).repeat(len(rows), 1)
        if self.resampling == "systematic":
            chosen[rows] = systematic(shares, swarm.start(step))[rows]
        else:
            where = rows.repeat_interleave(count)[:, None]
            law = shares[rows].repeat_interleave(count, dim=0)
            chosen[rows] = swarm.canvas.draws.letters(law, where, 2 * step + 1).view(-1, count)
        weights.settle(rows)
        origin = (chosen + count * torch.arange(len(rows), device=rows.device)[:, None]).flatten()
        swarm.take(origin)
        return origin

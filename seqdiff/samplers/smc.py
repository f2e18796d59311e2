"""Sequential Monte Carlo: sampling from a model tilted by a reward, without training."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor
from typing_extensions import override

from seqdiff.cells import describe_error
from seqdiff.denoiser import Needs
from seqdiff.process import Absorbing, Blockwise
from seqdiff.samplers.block import Growth, real_tokens
from seqdiff.samplers.canvas import Canvas
from seqdiff.samplers.first_hitting import (
    FirstHittingSampler,
    count_steps,
    draw_queue,
    step_time,
)
from seqdiff.samplers.protocol import option, require

_WANTED = "take ids [n, L] and give a tensor with one number per row, [n]"
_FIX = "write a function like lambda ids: (ids == 0).double().mean(dim=-1)"


@dataclass(frozen=True)
class Particles:
    """Weighted rows that represent a distribution.

    Attributes:
        tokens: N rows for each row that was asked for.
        log_weights: Logarithms of their normalised weights.
        log_normalizer: Logarithm of an unbiased estimate of the normalising constant.
    """

    tokens: Int64[Tensor, "B N L"]
    log_weights: Float64[Tensor, "B N"]
    log_normalizer: Float64[Tensor, " B"]


@dataclass
class Weights:
    """Unnormalised weights since the last resampling, and the mean weights before.

    Attributes:
        log_weights: Logarithm of the weight of each particle, in nats.
        log_normalizer: Sum of the logarithms of the mean weights at each resampling.
    """

    log_weights: Float64[Tensor, "B N"]
    log_normalizer: Float64[Tensor, " B"]

    @property
    def normalised(self) -> Float64[Tensor, "B N"]:
        """Logarithms of the weights divided by their sum."""
        return self.log_weights.log_softmax(dim=-1)

    @property
    def effective_size(self) -> Float64[Tensor, " B"]:
        """Number of equally weighted particles that would be as good: (sum w)^2 / sum w^2."""
        return (-(2 * self.normalised).logsumexp(dim=-1)).exp()

    @property
    def total(self) -> Float64[Tensor, " B"]:
        """Logarithm of the estimate of the normalising constant so far."""
        count = self.log_weights.shape[-1]
        return self.log_normalizer + self.log_weights.logsumexp(dim=-1) - math.log(count)

    def settle(self, rows: Tensor) -> None:
        """Move the mean weights of resampled rows ``[B]`` into the normaliser; restart from 1."""
        self.log_normalizer = torch.where(rows, self.total, self.log_normalizer)
        self.log_weights = self.log_weights.masked_fill(rows[:, None], 0.0)


def systematic(
    log_weights: Float64[Tensor, "B N"], start: Float64[Tensor, " B"]
) -> Int64[Tensor, "B N"]:
    """Choose N particles at N equally spaced places of the cumulative weights.

    On average each particle is chosen N times its weight, and never differs from that by 1 or more.
    Source: Douc, Cappe and Moulines 2005, arXiv:cs/0507025, and the references there.

    Args:
        log_weights: Logarithms of normalised weights.
        start: Position of the first place in its interval, uniform on (0, 1).

    Returns:
        The particle at each place.
    """
    count = log_weights.shape[-1]
    line = log_weights.exp().cumsum(dim=-1)
    places = (torch.arange(count, device=line.device) + start[:, None]) / count * line[:, -1:]
    last = torch.nextafter(line[:, -1:], torch.zeros_like(line[:, -1:]))
    return torch.searchsorted(line, torch.minimum(places, last), right=True)


@dataclass
class Swarm:
    """N particles for each row of a canvas, as N consecutive rows of a canvas of their own.

    Attributes:
        owner: The canvas.
        canvas: The particles.
        times: The unmask time of each position; every particle has its own order. Not used for
            block diffusion.
        unmasked_in: The step in which each position is unmasked, from 0.
        worth: Logarithm of the last tilt of each particle, in nats.
        weights: Weights of the particles.
    """

    owner: Canvas
    canvas: Canvas
    times: Float64[Tensor, "BN L"]
    unmasked_in: Int64[Tensor, "BN L"]
    worth: Float64[Tensor, " BN"]
    weights: Weights

    @classmethod
    def spread(cls, canvas: Canvas, count: int) -> Swarm:
        """Put ``count`` copies of each row side by side."""
        part = _copies(canvas, 0, count)
        times = torch.zeros(part.x_t.shape, dtype=torch.float64, device=part.x_t.device)
        zeros = times.new_zeros((len(canvas.x_t), count))
        weights = Weights(zeros, zeros.sum(dim=-1))
        unmasked_in = torch.full_like(part.x_t, -1)
        return cls(canvas, part, times, unmasked_in, zeros.flatten().clone(), weights)

    @property
    def tokens(self) -> Int64[Tensor, "B N L"]:
        """The particles of each row."""
        return self.canvas.x_t.view(*self.weights.log_weights.shape, self.canvas.x_t.shape[1])

    def start(self, step: int) -> Float64[Tensor, " B"]:
        """Draw a number in (0, 1) for each row, from the noise of a copy that is no particle."""
        rows, last = len(self.owner.x_t), self.weights.log_weights.shape[-1] + step
        draws = self.owner.draws.copies(last + 1)
        where = torch.arange(rows * (last + 1), device=self.worth.device) % (last + 1) == last
        return draws.unmask_times(where[:, None])[where, 0]

    def weigh(self, which: Bool[Tensor, " BN"], worth: Float64[Tensor, " n"]) -> None:
        """Multiply weights by the ratio of the new to the old worth of some particles."""
        before = self.worth.clone()
        self.worth[which] = worth
        gain = (self.worth - before).view_as(self.weights.log_weights)
        self.weights.log_weights = self.weights.log_weights + gain

    def take(self, origin: Int64[Tensor, " BN"]) -> None:
        """Replace each particle by another one, including its order of positions."""
        free = self.canvas.free
        self.canvas.write(free, self.canvas.x_t[origin][free])
        self.times, self.unmasked_in = self.times[origin], self.unmasked_in[origin]
        self.worth = self.worth[origin]

    def show(self, particle: Int64[Tensor, " B"], step: int) -> None:
        """Write one particle of each row to the owner, as it was after a step.

        A replaced particle has the order of its ancestor. So its order tells what was unmasked in
        each step, also before it was replaced.
        """
        first = torch.arange(len(particle), device=particle.device) * self.tokens.shape[1]
        chosen, free = first + particle, self.owner.free
        later = self.unmasked_in[chosen] > step
        tokens = self.canvas.x_t[chosen].masked_fill(later, self.canvas.unknown_id)
        self.owner.write(free, tokens[free])


def _copies(canvas: Canvas, start: int, end: int) -> Canvas:
    """Return the copies of each row with the numbers ``start..end-1`` and noise of their own."""
    batch, device = len(canvas.x_t), canvas.x_t.device
    rows = torch.arange(batch, device=device).repeat_interleave(end - start)
    number = torch.arange(start, end, device=device).repeat(batch)
    return replace(
        canvas,
        draws=canvas.draws.copies(end).take(rows * end + number),
        x_t=canvas.x_t[rows],
        free=canvas.free[rows],
        nfe=torch.zeros_like(rows),
        padding=None if canvas.padding is None else canvas.padding[rows],
        allowed=None if canvas.allowed is None else canvas.allowed[rows],
        signal=None if canvas.signal is None else canvas.signal[rows],
        avoid=None if canvas.avoid is None else canvas.avoid.copies(rows),
        callback=None,
    )


Resampling = Literal["systematic", "multinomial"]


@dataclass(frozen=True, kw_only=True)
class SMCSampler(FirstHittingSampler):
    """First-hitting tilted by any reward: exp(reward / temperature), as particles grow in number.

    N particles per row are unmasked as first-hitting does. Now and then, the weight of each
    particle that still has masks is multiplied by a guess of its final
    ``exp(reward / reward_temperature)``, divided by the guess before; at the end the factor is that
    of the finished row itself. The product is the weight of importance sampling, so guesses only
    guide the search. Particles are resampled where their effective number falls below
    ``ess_threshold`` times N. The sample is one of them, drawn by weight.

    By default, a guess is the reward of drafts, in which the masks are filled in. With diffusion of
    whole rows, particles are weighed before each step but the first, and drafts are drawn from the
    model's present prediction, with the same noise for all particles of a row and all steps. With
    block diffusion, particles are weighed after each block but the last. Drafts take the other
    blocks from rows that are drawn from the model beforehand, as block diffusion predicts only the
    next block. In both cases particles differ only by what they have unmasked.
    ``unfinished_reward`` replaces drafts.

    The distribution tends to ``p(x) exp(reward(x) / reward_temperature) / Z`` like 1/N, where p is
    the distribution of ``FirstHittingSampler`` with the same options, or of ``BlockSampler`` that
    fills blocks by it. For N = 1 it is p. The estimate of Z is unbiased for every N. The cost is N
    times that of p, and for each particle ``num_drafts`` rewards each time it is weighed and one at
    the end; drafts of block diffusion cost ``num_drafts`` rows more. Before the first step the
    reward is tried on two rows. All particles of a batch are in memory.

    Source: Del Moral, Doucet and Jasra 2006, https://doi.org/10.1111/j.1467-9868.2006.00553.x; for
    diffusion models Wu et al. 2023, arXiv:2306.17775, and Singhal et al. 2025, arXiv:2501.06848.

    Attributes:
        reward: Scores rows of ids ``[n, L]`` with one number each, ``[n]``. Higher is more likely,
            and ``-inf`` is impossible. Padding is as in ``x_init``.
        reward_temperature: Divides the reward; lower values tilt more.
        num_particles: N, for each row.
        ess_threshold: Fraction of N in [0, 1] below which particles are resampled; 0 never
            resamples.
        num_drafts: Drafts of a particle each time it is weighed, whose
            ``exp(reward / reward_temperature)`` are averaged.
        resampling: ``systematic`` or ``multinomial``, which has more noise.
        unfinished_reward: Scores rows of ids ``[n, L]`` in which K stands for masks, on the scale
            of ``reward``; ``None`` scores drafts.
    """

    fills_blocks = False
    needs = Needs((Absorbing, Blockwise), any_order=True)
    draws_from = "another"
    reward: Callable  # without parameters: the command line takes any function, annotated or not
    reward_temperature: float = option(
        1.0, lambda x: 0 < x < math.inf, "be above 0 and finite", "1 tilts by exp(reward)"
    )
    num_particles: int = option(16, lambda value: value >= 1, "be at least 1", "raise it")
    ess_threshold: float = option(0.5, lambda x: 0 <= x <= 1, "be in [0, 1]", "0.5 is usual")
    num_drafts: int = option(1, lambda value: value >= 1, "be at least 1", "raise it")
    resampling: Resampling = "systematic"
    unfinished_reward: Callable | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        wanted = "be a function of ids [n, L]"
        require(self, callable(self.reward), "reward", wanted, "give one number per row")
        guess = self.unfinished_reward
        holds = guess is None or callable(guess)
        require(self, holds, "unfinished_reward", wanted, "leave it out to score drafts")
        choices = get_args(Resampling)
        wanted = f"be one of {', '.join(choices)}"
        require(self, self.resampling in choices, "resampling", wanted, "systematic is usual")

    @override
    def fill(self, canvas: Canvas) -> None:
        """Fill every masked position of the canvas.

        The callback sees the first particle of each row, and at the end the steps of the sample.
        """
        self.particles(canvas)

    def particles(self, canvas: Canvas) -> Particles:
        """Fill a canvas with one of the particles of each row, and return all particles.

        Args:
            canvas: From ``Canvas.open``.

        Raises:
            ValueError: If a reward does not take rows of ids or does not give one number per row
                (before the network is called), or gives NaN or infinity, or ``-inf`` for all
                particles of a row.
        """
        self._try_rewards(canvas)
        swarm = Swarm.spread(canvas, self.num_particles)
        if isinstance(canvas.denoiser.process, Blockwise):
            steps = self._grow(swarm)
        else:
            swarm.times, swarm.unmasked_in = draw_queue(swarm.canvas, self.num_steps)
            steps = count_steps(swarm.unmasked_in, swarm.canvas.masked)
            for step in range(steps):
                self._step(swarm, step)
                if step < steps - 1:
                    swarm.show(torch.zeros_like(canvas.nfe), step)
                    canvas.report(step + 1)
        everyone = torch.ones_like(swarm.worth, dtype=torch.bool)
        swarm.weigh(everyone, self._worth(swarm, swarm.canvas.x_t))
        self._refuse_extinct(swarm.weights)
        found = Particles(swarm.tokens, swarm.weights.normalised, swarm.weights.total)
        where = torch.ones_like(found.log_weights[:, :1], dtype=torch.bool)
        chosen = canvas.draws.tokens(found.log_weights, where, 0)
        canvas.nfe += swarm.canvas.nfe.view(-1, self.num_particles).sum(dim=-1)
        for step in range(steps):
            swarm.show(chosen, step)
            canvas.report(step + 1)
        return found

    def _grow(self, swarm: Swarm) -> int:
        """Fill block after block; after each, weigh and resample. Return the number of steps."""
        canvas, owner = swarm.canvas, swarm.owner
        end = real_tokens(canvas)
        if not bool(canvas.masked.any()):
            return 0
        growth = Growth.begin(canvas, end, None)
        blocks = growth.num_blocks
        weighed = self.ess_threshold > 0 and bool((growth.open.sum(dim=-1) > 1).any())
        rows = None
        if weighed and self.unfinished_reward is None:
            rows = self._draft_rows(owner, blocks)

        def show(step: int, x_t: Int64[Tensor, "BN L"]) -> None:
            now = slice(growth.known * growth.size, (growth.known + 1) * growth.size)
            order = swarm.unmasked_in[:, now]
            order[(order < 0) & (x_t[:, now] != canvas.unknown_id)] = step - 1
            swarm.show(torch.zeros_like(owner.nfe), step - 1)
            owner.report(step)

        canvas.callback = show
        for block in growth.grow(super().fill):
            goes_on = growth.open[:, block] & (growth.until > block + 1)
            if weighed and bool(goes_on.any()):
                x_t, masked = canvas.x_t, canvas.masked
                drafts = None if rows is None else [torch.where(masked, r, x_t) for r in rows]
                swarm.weigh(goes_on, self._guess(swarm, goes_on, drafts))
                growth.follow(self._resample(swarm, goes_on, block))
                if canvas.avoid is not None:
                    canvas.avoid.update(canvas.x_t)
        return canvas.step

    def _draft_rows(self, owner: Canvas, blocks: int) -> list[Int64[Tensor, "BN L"]]:
        """Draw rows whose blocks complete particles, with noise that resampling does not use."""
        first, count = self.num_particles + blocks, self.num_drafts
        canvas = _copies(owner, first, first + count)
        for _ in Growth.begin(canvas, real_tokens(canvas), None).grow(super().fill):
            pass
        owner.nfe += canvas.nfe.view(-1, count).sum(dim=-1)
        return [
            canvas.x_t[draft::count].repeat_interleave(self.num_particles, dim=0)
            for draft in range(count)
        ]

    def _guess(
        self,
        swarm: Swarm,
        unfinished: Bool[Tensor, " BN"],
        drafts: Sequence[Int64[Tensor, "BN L"]] | None,
    ) -> Float64[Tensor, " n"]:
        """Return the log of the guessed tilt of unfinished particles.

        Args:
            swarm: The particles.
            unfinished: Those that still have masks.
            drafts: Particles with their masks filled in; ``None`` asks ``unfinished_reward``.
        """
        if drafts is None:
            worth = self._worth(swarm, swarm.canvas.x_t[unfinished], "unfinished_reward")
        else:
            each = torch.stack([self._worth(swarm, draft[unfinished]) for draft in drafts])
            worth = each.logsumexp(dim=0) - math.log(self.num_drafts)
        return self._spare(worth, swarm.worth[unfinished])

    def _step(self, swarm: Swarm, step: int) -> None:
        """Weigh, resample, and unmask the positions of a step."""
        canvas, masked = swarm.canvas, swarm.canvas.masked
        where = masked & (swarm.unmasked_in == step)
        log_probs = canvas.log_probs(masked, step_time(canvas, swarm.times, where))
        drawn = log_probs[where[masked]]
        if step > 0:
            unfinished = masked.any(dim=-1)
            drafts = None
            if self.unfinished_reward is None:
                drafts = self._drafts(swarm, self.shaped(log_probs), masked)
            swarm.weigh(unfinished, self._guess(swarm, unfinished, drafts))
            place = torch.full(where.shape, -1, device=where.device)
            place[where] = torch.arange(len(drawn), device=where.device)
            place = place[self._resample(swarm, unfinished, step)]
            where, drawn = place >= 0, drawn[place[place >= 0]]
        canvas.draw(where, drawn, 2 * step, self.shaped)

    def _worth(
        self, swarm: Swarm, rows: Int64[Tensor, "n L"], name: str = "reward"
    ) -> Float64[Tensor, " n"]:
        """Return reward over temperature of some rows, by one of the two rewards."""
        if not len(rows):
            return swarm.worth[:0]
        rewards = self._one_per_row(getattr(self, name)(rows), len(rows), name)
        worth = rewards.to(swarm.worth.device, torch.float64) / self.reward_temperature
        bad = worth.isnan() | worth.isposinf()
        if bool(bad.any()):
            row = int(bad.nonzero()[0])
            raise ValueError(
                f"SMCSampler.{name} must give numbers, got {float(worth[row])} from "
                f"{self._path(name)} for {rows[row, :8].tolist()}...; -inf excludes a row, NaN "
                "and inf have no meaning"
            )
        return worth

    def _path(self, name: str) -> str:
        """Return a reward as it would be imported, for messages."""
        reward = getattr(self, name)
        called = getattr(reward, "__qualname__", type(reward).__qualname__)
        return f"{getattr(reward, '__module__', None) or '?'}.{called}"

    def _one_per_row(self, rewards: object, rows: int, name: str) -> Tensor:
        """Check that a reward gave a tensor with one number for each row."""
        if isinstance(rewards, Tensor) and rewards.shape == (rows,):
            return rewards
        tensor = isinstance(rewards, Tensor)
        got = f"shape {tuple(rewards.shape)}" if tensor else f"a {type(rewards).__name__}"
        raise ValueError(
            f"SMCSampler.{name} must {_WANTED}, got {got} from {self._path(name)} for {rows} "
            f"rows; {_FIX}"
        )

    def _try_rewards(self, canvas: Canvas) -> None:
        """Score two copies of a row before the network is called, filled in as allowed."""
        first = canvas.x_t[:1].clone()
        masked = canvas.masked[:1]
        first[masked] = 0 if canvas.allowed is None else canvas.allowed[:1][masked].int().argmax(-1)
        if not len(first):
            return
        tried = {"reward": first}
        if self.unfinished_reward is not None:
            tried["unfinished_reward"] = canvas.x_t[:1]
        for name, row in tried.items():
            try:
                given = getattr(self, name)(row.repeat(2, 1))
            except Exception as error:
                raise ValueError(
                    f"SMCSampler.{name} must {_WANTED}, got {type(error).__name__} from "
                    f"{self._path(name)}: {describe_error(error)}; {_FIX}"
                ) from error
            self._one_per_row(given, 2, name)

    def _refuse_extinct(self, weights: Weights) -> None:
        extinct = weights.log_weights.isneginf().all(dim=-1)
        if bool(extinct.any()):
            raise ValueError(
                "SMCSampler.reward must be above -inf for some particle of every row, got -inf for "
                f"all {self.num_particles} of row {int(extinct.nonzero()[0])}; raise num_particles "
                "or num_drafts, or exclude symbols by allowed"
            )

    def _drafts(
        self, swarm: Swarm, log_probs: Float64[Tensor, "N K"], masked: Bool[Tensor, "BN L"]
    ) -> list[Int64[Tensor, "BN L"]]:
        """Fill the masks of particles from the model's prediction, ``num_drafts`` times."""
        draws, found = swarm.owner.draws.repeated(self.num_particles), []
        for draft in range(self.num_drafts):
            tokens = swarm.canvas.x_t.clone()
            tokens[masked] = draws.tokens(log_probs, masked, 1 + draft)
            found.append(tokens)
        return found

    def _spare(
        self, worth: Float64[Tensor, " n"], before: Float64[Tensor, " n"]
    ) -> Float64[Tensor, " n"]:
        """Keep particles whose drafts are all impossible, because they may still end well.

        Any positive number leaves the measure unbiased. By Laplace's rule d failures leave a chance
        of 1 / (d + 2), here of the row's least. If no draft of a row is possible, nothing changes.
        """
        rows = worth.view(-1, self.num_particles)
        possible = rows.isfinite()
        least = torch.where(possible, rows, torch.inf).amin(dim=-1, keepdim=True)
        spared = torch.where(
            least.isfinite(), least - math.log(self.num_drafts + 2), before.view_as(rows)
        )
        return torch.where(possible, rows, spared).flatten()

    def _resample(
        self, swarm: Swarm, unfinished: Bool[Tensor, " BN"], step: int
    ) -> Int64[Tensor, " BN"]:
        """Replace the particles of the rows that need it; return the origin of each particle."""
        weights, count = swarm.weights, self.num_particles
        normalised = weights.normalised
        rows = weights.effective_size < self.ess_threshold * count
        rows &= unfinished.view(-1, count).any(dim=-1)
        chosen = torch.arange(count, device=rows.device).repeat(len(rows), 1)
        if self.resampling == "systematic":
            chosen[rows] = systematic(normalised, swarm.start(step))[rows]
        else:
            where = rows.repeat_interleave(count)[:, None]
            log_probs = normalised[rows].repeat_interleave(count, dim=0)
            chosen[rows] = swarm.canvas.draws.tokens(log_probs, where, 2 * step + 1).view(-1, count)
        weights.settle(rows)
        origin = (chosen + count * torch.arange(len(rows), device=rows.device)[:, None]).flatten()
        swarm.take(origin)
        return origin

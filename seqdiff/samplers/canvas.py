"""The rows that a sampler works on, the network's predictions for them, and their cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Float64, Int, Int64
from torch import Tensor
from torch.nn.functional import pad

from seqdiff.denoiser import Denoiser, Prefix
from seqdiff.parameterization import before_the_end, scores_from_distribution
from seqdiff.process import Absorbing, Blockwise, DiscreteProcess, SymbolProcess
from seqdiff.samplers.avoidance import Completions
from seqdiff.samplers.draws import Draws
from seqdiff.types import Inputs, Signal

StepCallback = Callable[[int, Tensor], None]
Reshape = Callable[[Tensor], Tensor]


@dataclass
class Memory:
    """The network's last prediction for every row, and the tokens it was made from.

    Attributes:
        tokens: The rows at the last evaluation.
        place: Index into ``log_probs`` of each position that was masked at first.
        log_probs: The predictions ``[places, K]``, once there is one.
    """

    tokens: Int64[Tensor, "B L"]
    place: Int64[Tensor, "B L"]
    log_probs: Tensor | None = None

    @classmethod
    def of(cls, masked: Bool[Tensor, "B L"]) -> Memory:
        """Make room for predictions at masked positions."""
        place = masked.flatten().cumsum(dim=0).view(masked.shape) - 1
        return cls(torch.full_like(place, -1), place)

    def keep(
        self, where: Bool[Tensor, "B L"], log_probs: Float[Tensor, "N K"], x_t: Int[Tensor, "B L"]
    ) -> None:
        """Store predictions at some positions, and the rows they were made from."""
        if self.log_probs is None:
            places = int(self.place[-1, -1]) + 1
            self.log_probs = log_probs.new_zeros((places, log_probs.shape[-1]))
        self.log_probs[self.place[where]] = log_probs
        rows = where.any(dim=-1)
        self.tokens[rows] = x_t[rows]

    def stale(self, x_t: Int[Tensor, "B L"]) -> Bool[Tensor, " B"]:
        """Return which rows have changed since their last evaluation."""
        return (x_t != self.tokens).any(dim=-1)


@dataclass
class Canvas:
    """One batch while it is sampled.

    Samplers change its tokens by ``draw``, ``write`` and ``remask``; ``fill_block`` and
    ``Growth.stop`` change those of blocks.

    Attributes:
        denoiser: The model.
        draws: The only source of randomness.
        x_t: The current tokens.
        free: Positions for the sampler to fill; the others are given or padding.
        nfe: Network evaluations spent on each row so far.
        padding: True at positions of padding.
        allowed: Symbols that each position may take.
        callback: Called by ``report``.
        signal: Values that each row, or each position, is conditioned on.
        memory: If set, a row whose tokens have not changed is not evaluated again.
        prefix: If set, the tokens are the next block of rows that a model of block diffusion has
            read up to here.
        length: Tokens of each row, if the sampler may leave rows shorter than they were.
        clamped: Draws of each row whose probabilities had to be clamped, if the sampler may do so.
        chance: If set, the probability that the model gave each token when it was drawn.
        avoid: What forbidden words leave possible, if there are any.
        step: Steps done.
    """

    denoiser: Denoiser
    draws: Draws
    x_t: Int64[Tensor, "B L"]
    free: Bool[Tensor, "B L"]
    nfe: Int64[Tensor, " B"]
    padding: Bool[Tensor, "B L"] | None = None
    allowed: Bool[Tensor, "B L K"] | None = None
    callback: StepCallback | None = None
    signal: Signal | None = None
    memory: Memory | None = None
    prefix: Prefix | None = None
    length: Int64[Tensor, " B"] | None = None
    clamped: Int64[Tensor, " B"] | None = None
    avoid: Completions | None = None
    chance: Float64[Tensor, "B L"] | None = None
    step: int = field(default=0, init=False)

    @classmethod
    def open(
        cls,
        denoiser: Denoiser,
        draws: Draws,
        x_init: Int[Tensor, "B L"],
        padding: Bool[Tensor, "B L"] | None = None,
        allowed: Bool[Tensor, "B L K"] | None = None,
        callback: StepCallback | None = None,
        signal: Signal | None = None,
        avoid: Completions | None = None,
        chance: Float64[Tensor, "B L"] | None = None,
    ) -> Canvas:
        """Start a canvas; all masks but those in padding are free."""
        free = x_init == denoiser.process.unknown_id
        return cls(
            denoiser,
            draws,
            x_init.to(torch.int64, copy=True),
            free if padding is None else free & ~padding,
            torch.zeros(len(x_init), dtype=torch.int64, device=x_init.device),
            padding,
            allowed,
            callback,
            signal,
            avoid=avoid,
            chance=chance,
        )

    @property
    def process(self) -> SymbolProcess:
        """The process of the rows, or of their blocks."""
        process = self.denoiser.process
        process = process.process if isinstance(process, Blockwise) else process
        assert isinstance(process, SymbolProcess)  # by ``Sampler.needs``
        return process

    @property
    def discrete(self) -> DiscreteProcess:
        """The process, for a sampler of processes with independent tokens alone."""
        process = self.process
        assert isinstance(process, DiscreteProcess)  # by ``Sampler.needs``
        return process

    @property
    def absorbing(self) -> Absorbing:
        """The process, for a sampler of masked diffusion alone."""
        process = self.process
        assert isinstance(process, Absorbing)  # by ``Sampler.needs``
        return process

    @property
    def unknown_id(self) -> int:
        """The id of positions that are still to be filled."""
        return self.denoiser.process.unknown_id

    @property
    def masked(self) -> Bool[Tensor, "B L"]:
        """Positions that are still to be filled."""
        return self.free & (self.x_t == self.unknown_id)

    @property
    def real(self) -> Bool[Tensor, "B L"]:
        """Positions that are not padding."""
        return torch.ones_like(self.free) if self.padding is None else ~self.padding

    @property
    def time(self) -> Float64[Tensor, " B"]:
        """The time of each row at which the expected masked fraction is the present one."""
        fraction = self.masked.sum(dim=-1).double() / self.real.sum(dim=-1).clamp_min(1)
        return self.absorbing.schedule.inverse(1 - fraction)

    def remember(self) -> None:
        """Evaluate a row only after it has changed; for networks that ignore time.

        Raises:
            ValueError: If the network depends on time.
        """
        if self.denoiser.time_conditioned:
            raise ValueError(
                "Sampler.denoiser must ignore time for a row to be evaluated only after it has "
                "changed, got a time-conditioned one; use the sampler without a cache"
            )
        self.memory = Memory.of(self.masked)

    def log_probs(
        self,
        where: Bool[Tensor, "B L"],
        t: Float64[Tensor, " B"],
        *,
        rows: Bool[Tensor, " B"] | None = None,
        own: bool = False,
    ) -> Float64[Tensor, "N K"]:
        """Predict the clean token where ``where`` is True, in the order of ``where.nonzero()``.

        The network is given only the rows with such positions, and scores only these positions if
        it can; with a memory, it scores all masked positions of the rows that have changed.

        Args:
            where: Masked positions.
            t: The times of the rows.
            rows: Rows to evaluate; must include those with a position in ``where``.
            own: Predict visible tokens by the network too, instead of copying them.

        Returns:
            Log-probabilities in nats, within the allowed symbols and normalised.

        Raises:
            ValueError: If the model gives all allowed symbols probability 0, or a NaN.
        """
        rows = where.any(dim=-1) if rows is None else rows
        chosen = rows.nonzero().squeeze(-1)
        if not len(chosen):
            return torch.empty((0, self.unknown_id), dtype=torch.float64).to(t.device)
        if own:
            found = self.denoiser.log_loo(*self._ask(chosen, where, t))[:, : self.unknown_id]
        else:
            found = self._predictions(chosen, where, t)
        return self.restricted(found.double(), where)

    def restricted(
        self, log_probs: Float64[Tensor, "N k"], where: Bool[Tensor, "B L"]
    ) -> Float64[Tensor, "N k"]:
        """Restrict distributions to the allowed symbols and normalise them.

        Args:
            log_probs: Distributions at the positions; columns beyond the K symbols stay.
            where: Positions.

        Raises:
            ValueError: If a distribution gives all allowed symbols probability 0, or a NaN.
        """
        if self.allowed is not None:
            never = ~self.allowed[where]
            size = never.shape[-1]
            log_probs = torch.cat(
                (log_probs[:, :size].masked_fill(never, -torch.inf), log_probs[:, size:]), dim=-1
            )
        total = log_probs.logsumexp(dim=-1, keepdim=True)
        _check_chance(total.squeeze(-1), where)
        return log_probs - total

    def reverse(
        self,
        where: Bool[Tensor, "B L"],
        s: Float64[Tensor, ""],
        t: Float64[Tensor, ""],
        shape: Reshape | None = None,
    ) -> Float64[Tensor, "N states"]:
        """Return the distribution of z_s given z_t at some positions.

        Args:
            where: Positions.
            s: Earlier time.
            t: Present time.
            shape: Reshapes the prediction of the clean token that the step is made from.
        """

        def adjust(log_probs: Tensor) -> Tensor:
            return self._adjusted(log_probs, where, shape)

        plain = self.allowed is None and shape is None

        def answer(inputs: Inputs, asked: Tensor) -> Tensor:
            earlier = s.expand(len(inputs.tokens))
            step = self.denoiser.log_reverse(
                inputs, earlier, asked, adjust=None if plain else adjust
            )
            _check_chance(step.logsumexp(dim=-1), where)
            return step

        return self._states(where, t, answer)

    def log_scores(
        self, where: Bool[Tensor, "B L"], t: Float64[Tensor, ""], shape: Reshape | None = None
    ) -> Float64[Tensor, "N states"]:
        """Return the log-scores at some positions at time t, see ``Denoiser.log_scores``."""

        def answer(inputs: Inputs, asked: Tensor) -> Tensor:
            if self.allowed is None and shape is None:
                scores = self.denoiser.log_scores(inputs, asked)
                _check_chance(scores.logsumexp(dim=-1), where)
                return scores
            kept = self._adjusted(self.denoiser.log_loo(inputs, asked), where, shape)
            z, times = inputs.tokens[asked], before_the_end(t).expand(len(kept))
            return scores_from_distribution(kept, z, times, self.discrete)

        return self._states(where, t, answer)

    def marginal(
        self, where: Bool[Tensor, "B L"], s: Float64[Tensor, ""], shape: Reshape | None = None
    ) -> Float64[Tensor, "N states"]:
        """Return the distribution of z_s at some positions given the other positions at s."""

        def answer(inputs: Inputs, asked: Tensor) -> Tensor:
            kept = self._adjusted(self.denoiser.log_loo(inputs, asked), where, shape)
            return self.discrete.log_marginal(kept, s.expand(len(kept)))

        return self._states(where, s, answer)

    def choose_one(self, step: int) -> Bool[Tensor, "B L"]:
        """Choose one position to fill of each row; ``step`` distinguishes the draws of a row."""
        rows = self.free.any(dim=-1).nonzero().squeeze(-1)
        equal = self.free[rows].double().log().log_softmax(dim=-1)
        first = torch.zeros_like(self.free)
        first[rows, 0] = True
        chosen = torch.zeros_like(self.free)
        chosen[rows, self.draws.tokens(equal, first, step)] = True
        return chosen

    def _adjusted(self, log_probs: Tensor, where: Tensor, shape: Reshape | None) -> Tensor:
        kept = self.restricted(log_probs.double(), where)
        return kept if shape is None else shape(kept)

    def _states(
        self, where: Tensor, t: Tensor, answer: Callable[[Inputs, Tensor], Tensor]
    ) -> Float64[Tensor, "N states"]:
        """Compute distributions over states; makes no call if ``where`` is empty."""
        chosen = where.any(dim=-1).nonzero().squeeze(-1)
        if not len(chosen):
            return torch.empty((0, self.process.states), dtype=torch.float64, device=t.device)
        return answer(*self._ask(chosen, where, t.expand(len(where))))

    def _ask(self, chosen: Tensor, where: Tensor, t: Tensor) -> tuple[Inputs, Tensor]:
        """Return what the network is given of some rows, and count the evaluations."""
        padding = None if self.padding is None else self.padding[chosen]
        signal = None if self.signal is None else self.signal[chosen]
        inputs = Inputs(self.x_t[chosen], t[chosen], padding=padding, signal=signal)
        asked = where[chosen]
        self.nfe[chosen] += self.denoiser.evaluations(inputs, asked)
        return inputs, asked

    def _predictions(self, chosen: Tensor, where: Tensor, t: Tensor) -> Tensor:
        """Return log-probabilities ``[N, K]`` from the network or, for unchanged rows, memory."""
        if self.memory is None:
            return self._network(chosen, where, t)
        changed = torch.zeros_like(where[:, :1])
        changed[chosen, 0] = self.memory.stale(self.x_t)[chosen]
        asked = self.masked & changed
        rows = asked.any(dim=-1).nonzero().squeeze(-1)
        if len(rows):
            self.memory.keep(asked, self._network(rows, asked, t), self.x_t)
        assert self.memory.log_probs is not None
        return self.memory.log_probs[self.memory.place[where]]

    def _network(self, chosen: Tensor, where: Tensor, t: Tensor) -> Float[Tensor, "N K"]:
        inputs, asked = self._ask(chosen, where, t)
        if self.prefix is not None:
            prefix = self.prefix if len(chosen) == len(self.x_t) else self.prefix.only(chosen)
            return prefix.log_probs(inputs.tokens, asked)
        return self.denoiser.log_probs(inputs, asked)

    def draw(
        self,
        where: Bool[Tensor, "B L"],
        log_probs: Float64[Tensor, "N states"],
        step: int = 0,
        shape: Reshape | None = None,
    ) -> None:
        """Draw and write a token at each position where ``where`` is True.

        With words to avoid, the tokens of a row are drawn one after the other from left to right,
        each from its distribution restricted to the symbols with which the row can still be filled
        without such a word, and normalised. Tokens at these positions do not count before they are
        drawn. Columns beyond the K symbols leave a position unknown, so they stay.

        Args:
            where: Positions.
            log_probs: Their distributions, in nats, in the order of ``where.nonzero()``.
            step: Distinguishes the draws of a sampler that may draw a position again.
            shape: Reshapes the distributions, after the restriction.

        Raises:
            ValueError: If a distribution gives all symbols that remain probability 0.
        """
        if self.avoid is None:
            shaped = log_probs if shape is None else shape(log_probs)
            self._write_drawn(where, log_probs, self.draws.tokens(shaped, where, step))
            return
        self.remask(where)
        rank = where.cumsum(dim=-1)
        for number in range(1, int(rank.max()) + 1 if rank.numel() else 1):
            now = where & (rank == number)
            never = ~self.avoid.symbols(self.x_t, now)
            never = pad(never, (0, log_probs.shape[-1] - never.shape[-1]))
            kept = log_probs[now[where]].masked_fill(never, -torch.inf)
            total = kept.logsumexp(dim=-1, keepdim=True)
            _check_chance(total.squeeze(-1), now)
            kept = kept - total
            shaped = kept if shape is None else shape(kept)
            self._write_drawn(now, kept, self.draws.tokens(shaped, now, step))
        self.avoid.update(self.x_t)  # which other views of the row read

    def _write_drawn(self, where: Tensor, log_probs: Tensor, tokens: Tensor) -> None:
        self.write(where, tokens)
        if self.chance is not None:
            known = log_probs[:, : self.unknown_id].log_softmax(dim=-1)
            chosen = tokens.clamp_max(self.unknown_id - 1)[:, None]
            chance = known.gather(-1, chosen).squeeze(-1).exp()
            self.chance[where] = chance.masked_fill(tokens == self.unknown_id, torch.nan)

    def write(self, where: Bool[Tensor, "B L"], tokens: Int64[Tensor, " N"]) -> None:
        """Write tokens at the positions that are True."""
        self.x_t[where] = tokens

    def remask(self, where: Bool[Tensor, "B L"]) -> None:
        """Mask positions again."""
        self.x_t[where] = self.unknown_id
        if self.chance is not None:
            self.chance[where] = torch.nan

    def end_step(self) -> None:
        """Count a step and report it."""
        self.report(self.step + 1)

    def report(self, step: int) -> None:
        """Report a step by its number; a number used before replaces the steps from that one on."""
        self.step = step
        if self.callback is not None:
            self.callback(step, self.x_t)

    def window(self, start: int, end: int) -> Canvas:
        """Return a canvas of the positions ``start..end-1`` whose tokens are those of this one."""
        part, before = slice(start, end), self.step
        x_t, signal = self.x_t[:, part], self.signal
        if signal is not None and signal.dim() == 3:
            signal = signal[:, part]
        return Canvas(
            self.denoiser,
            self.draws.window(start),
            x_t,
            self.free[:, part] & (x_t == self.unknown_id),
            self.nfe,
            None if self.padding is None else self.padding[:, part],
            None if self.allowed is None else self.allowed[:, part],
            lambda step, _x_t: self.report(before + step),
            signal,
            avoid=None if self.avoid is None else self.avoid.window(start),
            chance=None if self.chance is None else self.chance[:, part],
        )

    def fill_block(
        self,
        rows: Int64[Tensor, " b"],
        start: int,
        end: int,
        prefix: Prefix,
        fill: Callable[[Canvas], None],
    ) -> None:
        """Fill the positions ``start..end-1`` of some rows as the next block after a prefix.

        The cost does not depend on the length of the rows.

        Args:
            rows: The rows.
            start: End of the prefix.
            end: End of the block; none of the positions is padding.
            prefix: The prefix of these rows.
            fill: Fills the canvas of the block.
        """
        before = self.step

        def show(step: int, x_t: Tensor) -> None:
            self.x_t[rows, start:end] = x_t
            if self.chance is not None and part.chance is not None:
                self.chance[rows, start:end] = part.chance
            self.report(before + step)

        part = Canvas(
            self.denoiser,
            self.draws.take(rows).window(start),
            self.x_t[rows, start:end],
            self.free[rows, start:end],
            torch.zeros_like(rows),
            None,
            None if self.allowed is None else self.allowed[rows, start:end],
            show,
            prefix=prefix,
            avoid=None if self.avoid is None else self.avoid.take(rows).window(start),
            chance=None if self.chance is None else self.chance[rows, start:end],
        )
        fill(part)
        self.x_t[rows, start:end] = part.x_t
        self.nfe[rows] += part.nfe


def _check_chance(total: Float64[Tensor, " N"], where: Bool[Tensor, "B L"]) -> None:
    """Raise ``ValueError`` if log-probabilities that should add up to 1 add up to 0 or NaN."""
    hopeless = ~total.isfinite()
    if bool(hopeless.any()):
        row, column = where.nonzero()[hopeless][0].tolist()
        raise ValueError(
            "Sampler.denoiser must give an allowed symbol a probability above 0, got "
            f"log-probability {float(total[hopeless][0])} at row {row}, position {column}; allow "
            "more symbols there, or check the weights"
        )

"""The rows that a sampler works on: what may be filled, what the network says, what it cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Float64, Int, Int64
from torch import Tensor

from seqdiff.denoiser import Denoiser, Prefix
from seqdiff.parameterization import before_the_end, scores_from_law
from seqdiff.process import Absorbing, Blockwise, DiscreteProcess
from seqdiff.samplers.draws import Draws
from seqdiff.types import Inputs

StepCallback = Callable[[int, Tensor], None]
Reshape = Callable[[Tensor], Tensor]


@dataclass
class Memory:
    """The network's last prediction for every row, and the tokens that it was given for.

    Attributes:
        tokens: What was asked about last.
        place: Where the answer for a position is kept; only those masked at first have a place.
        log_probs: The answers ``[places, K]``, once there is one.
    """

    tokens: Int64[Tensor, "B L"]
    place: Int64[Tensor, "B L"]
    log_probs: Tensor | None = None

    @classmethod
    def of(cls, masked: Bool[Tensor, "B L"]) -> Memory:
        """Make room for the answers about masked positions."""
        place = masked.flatten().cumsum(dim=0).view(masked.shape) - 1
        return cls(torch.full_like(place, -1), place)

    def keep(
        self, where: Bool[Tensor, "B L"], log_probs: Float[Tensor, "N K"], x_t: Int[Tensor, "B L"]
    ) -> None:
        """Note the answer about the rows that hold a position that is True."""
        if self.log_probs is None:
            places = int(self.place[-1, -1]) + 1
            self.log_probs = log_probs.new_zeros((places, log_probs.shape[-1]))
        self.log_probs[self.place[where]] = log_probs
        rows = where.any(dim=-1)
        self.tokens[rows] = x_t[rows]

    def stale(self, x_t: Int[Tensor, "B L"]) -> Bool[Tensor, " B"]:
        """Rows that differ from those last seen, compared as integers."""
        return (x_t != self.tokens).any(dim=-1)


@dataclass
class Canvas:
    """One batch while it is sampled. Only ``place`` and ``hide`` change its tokens.

    Attributes:
        denoiser: The model.
        draws: The only source of randomness.
        x_t: The tokens as they are now.
        free: Positions that are the sampler's to fill; the others are given or padding.
        nfe: Network evaluations spent on each row so far.
        padding: Positions that hold nothing.
        allowed: Symbols that each position may take.
        callback: Called by ``report``.
        memory: If set, a row whose tokens have not changed is not evaluated again.
        prefix: If set, these tokens are the next block of rows that a model of block diffusion has
            read up to here.
        length: Tokens of each row, if the sampler may leave rows shorter than they were.
        clamped: Draws of each row whose probabilities had to be clamped, if the sampler may do so.
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
    memory: Memory | None = None
    prefix: Prefix | None = None
    length: Int64[Tensor, " B"] | None = None
    clamped: Int64[Tensor, " B"] | None = None
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
    ) -> Canvas:
        """A canvas on which nothing has been done yet; all masks but padding are free."""
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
        )

    @property
    def process(self) -> DiscreteProcess:
        """The process of the rows, or of their blocks."""
        process = self.denoiser.process
        process = process.process if isinstance(process, Blockwise) else process
        assert isinstance(process, DiscreteProcess)  # by ``Sampler.needs``
        return process

    @property
    def absorbing(self) -> Absorbing:
        """The process, of a sampler that is for masked diffusion alone."""
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
    def time(self) -> Float64[Tensor, " B"]:
        """The time at which as many tokens are masked, on average, as are now."""
        real = torch.ones_like(self.free) if self.padding is None else ~self.padding
        fraction = self.masked.sum(dim=-1).double() / real.sum(dim=-1).clamp_min(1)
        return self.absorbing.schedule.inverse(1 - fraction)

    def remember(self) -> None:
        """Evaluate a row only after it has changed; for networks that ignore time.

        Raises:
            ValueError: If the network does not.
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

        The network sees only the rows that are asked about, and scores only these positions if it
        can; with a memory, all masked positions of the rows that it is asked about again.

        Args:
            where: Masked positions.
            t: The rows' times.
            rows: Rows to evaluate; those with a position that is asked about are among them.
            own: Whether tokens that are visible are predicted by the network too, not copied.

        Returns:
            Log-probabilities in nats, within the allowed symbols and normalised.

        Raises:
            ValueError: If the model gives none of the allowed letters a chance, or a NaN.
        """
        rows = where.any(dim=-1) if rows is None else rows
        chosen = rows.nonzero().squeeze(-1)
        if not len(chosen):
            return torch.empty((0, self.unknown_id), dtype=torch.float64).to(t.device)
        if own:
            inputs, asked = self._ask(chosen, where, t)
            found = self.denoiser.log_loo(inputs, asked)[:, : self.unknown_id]
        else:
            found = self._predictions(chosen, where, t)
        return self.restricted(found.double(), where)

    def restricted(
        self, log_probs: Float64[Tensor, "N k"], where: Bool[Tensor, "B L"]
    ) -> Float64[Tensor, "N k"]:
        """Keep to the allowed symbols and normalise.

        Args:
            log_probs: Of the positions that are True; columns beyond the K symbols stay.
            where: Positions.

        Raises:
            ValueError: If a distribution gives none of the allowed symbols a chance, or a NaN.
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
        """Distribution of z_s given z_t at every position that is True: one step of every row.

        Args:
            where: Positions.
            s: Earlier time.
            t: Present time.
            shape: Sharpens the prediction of the clean token before the step is made from it.
        """
        if self.allowed is None and shape is None:
            return self._step(where, s, t, None)

        def adjust(log_probs: Tensor) -> Tensor:
            kept = self.restricted(log_probs.double(), where)
            return kept if shape is None else shape(kept)

        return self._step(where, s, t, adjust)

    def _step(self, where: Tensor, s: Tensor, t: Tensor, adjust: Reshape | None) -> Tensor:
        rows = where.any(dim=-1)
        chosen = rows.nonzero().squeeze(-1)
        if not len(chosen):
            return torch.empty((0, self.process.states), dtype=torch.float64, device=s.device)
        inputs, asked = self._ask(chosen, where, t.expand(len(rows)))
        step = self.denoiser.log_reverse(inputs, s.expand(len(chosen)), asked, adjust=adjust)
        _check_chance(step.logsumexp(dim=-1), where)
        return step

    def log_scores(
        self, where: Bool[Tensor, "B L"], t: Float64[Tensor, ""], shape: Reshape | None = None
    ) -> Float64[Tensor, "N states"]:
        """Log-scores of every position that is True; see ``Denoiser.log_scores``.

        Args:
            where: Positions.
            t: Present time.
            shape: See ``reverse``.
        """
        chosen = where.any(dim=-1).nonzero().squeeze(-1)
        if not len(chosen):
            return torch.empty((0, self.process.states), dtype=torch.float64, device=t.device)
        inputs, asked = self._ask(chosen, where, t.expand(len(where)))
        if self.allowed is None and shape is None:
            scores = self.denoiser.log_scores(inputs, asked)
            _check_chance(scores.logsumexp(dim=-1), where)
            return scores
        kept = self.restricted(self.denoiser.log_loo(inputs, asked).double(), where)
        kept = kept if shape is None else shape(kept)
        z, times = inputs.tokens[asked], before_the_end(t).expand(len(kept))
        return scores_from_law(kept, z, times, self.process)

    def marginal(
        self, where: Bool[Tensor, "B L"], s: Float64[Tensor, ""], shape: Reshape | None = None
    ) -> Float64[Tensor, "N states"]:
        """Distribution of z_s at every position that is True given the other positions at s.

        Args:
            where: Positions.
            s: Present time.
            shape: See ``reverse``.
        """
        chosen = where.any(dim=-1).nonzero().squeeze(-1)
        if not len(chosen):
            return torch.empty((0, self.process.states), dtype=torch.float64, device=s.device)
        inputs, asked = self._ask(chosen, where, s.expand(len(where)))
        kept = self.restricted(self.denoiser.log_loo(inputs, asked).double(), where)
        kept = kept if shape is None else shape(kept)
        return self.process.log_marginal(kept, s.expand(len(kept)))

    def choose_one(self, step: int) -> Bool[Tensor, "B L"]:
        """Choose one position of each row among those that are to be filled.

        Args:
            step: Tells apart the draws of a row.
        """
        rows = self.free.any(dim=-1).nonzero().squeeze(-1)
        equal = self.free[rows].double().log().log_softmax(dim=-1)
        first = torch.zeros_like(self.free)
        first[rows, 0] = True
        chosen = torch.zeros_like(self.free)
        chosen[rows, self.draws.letters(equal, first, step)] = True
        return chosen

    def _ask(self, chosen: Tensor, where: Tensor, t: Tensor) -> tuple[Inputs, Tensor]:
        """What the network is given of some rows; counts the evaluations."""
        padding = None if self.padding is None else self.padding[chosen]
        inputs, asked = Inputs(self.x_t[chosen], t[chosen], padding=padding), where[chosen]
        self.nfe[chosen] += self.denoiser.evaluations(inputs, asked)
        return inputs, asked

    def _predictions(self, chosen: Tensor, where: Tensor, t: Tensor) -> Tensor:
        """Log-probabilities ``[N, K]``, from the network or, for unchanged rows, from memory."""
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
            prefix = self.prefix if len(chosen) == len(self.x_t) else self.prefix.take(chosen)
            return prefix.log_probs(inputs.tokens, asked)
        return self.denoiser.log_probs(inputs, asked)

    def place(self, where: Bool[Tensor, "B L"], letters: Int64[Tensor, " N"]) -> None:
        """Write letters at the positions that are True."""
        self.x_t[where] = letters

    def hide(self, where: Bool[Tensor, "B L"]) -> None:
        """Mask positions again."""
        self.x_t[where] = self.unknown_id

    def end_step(self) -> None:
        """Count a step and report it."""
        self.report(self.step + 1)

    def report(self, step: int) -> None:
        """Report a step, by its number; one that has been takes back all from that one on."""
        self.step = step
        if self.callback is not None:
            self.callback(step, self.x_t)

    def window(self, start: int, end: int) -> Canvas:
        """A canvas of the positions ``start..end-1``: what is done to it is done to this one."""
        part, before = slice(start, end), self.step
        x_t = self.x_t[:, part]
        return Canvas(
            self.denoiser,
            self.draws.window(start),
            x_t,
            self.free[:, part] & (x_t == self.unknown_id),
            self.nfe,
            None if self.padding is None else self.padding[:, part],
            None if self.allowed is None else self.allowed[:, part],
            lambda step, _x_t: self.report(before + step),
        )

    def fill_block(
        self,
        rows: Int64[Tensor, " b"],
        start: int,
        end: int,
        prefix: Prefix,
        fill: Callable[[Canvas], None],
    ) -> None:
        """Fill the positions ``start..end-1`` of some rows as the next block of a prefix.

        The work does not depend on the length of the rows.

        Args:
            rows: Which.
            start: Where the prefix ends.
            end: At most a block later; none of the positions is padding.
            prefix: Of these rows.
            fill: Fills the canvas of the block.
        """
        before = self.step

        def show(step: int, x_t: Tensor) -> None:
            self.x_t[rows, start:end] = x_t
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
        )
        fill(part)
        self.x_t[rows, start:end] = part.x_t
        self.nfe[rows] += part.nfe


def _check_chance(total: Float64[Tensor, " N"], where: Bool[Tensor, "B L"]) -> None:
    """Check what the model says of the positions that are True.

    Args:
        total: Log of the sum of what it gives to all symbols.
        where: The positions.

    Raises:
        ValueError: If it is 0, infinite or not a number.
    """
    hopeless = ~total.isfinite()
    if bool(hopeless.any()):
        row, column = where.nonzero()[hopeless][0].tolist()
        raise ValueError(
            "Sampler.denoiser must give some allowed symbol a chance, got log-probability "
            f"{float(total[hopeless][0])} at row {row}, position {column}; allow more symbols "
            "there, or check the weights"
        )

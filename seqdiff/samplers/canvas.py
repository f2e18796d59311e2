"""The rows that a sampler works on: what may be filled, what the network says, what it cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Float64, Int, Int64
from torch import Tensor

from seqdiff.block_denoiser import Prefix
from seqdiff.parameterization import Denoiser
from seqdiff.process import MaskedDiffusion
from seqdiff.samplers.draws import Draws

StepCallback = Callable[[int, Tensor], None]


@dataclass
class Memory:
    """The network's last answer for every row, and the tokens that it was given for.

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
        process: The process it was trained for.
        draws: The only source of randomness.
        x_t: The tokens as they are now.
        free: Positions that are the sampler's to fill; the others are given or padding.
        nfe: Network evaluations spent on each row so far.
        padding: Positions that hold nothing.
        allowed: Letters that each position may take.
        callback: Called by ``report``.
        memory: If set, a row whose tokens have not changed is not evaluated again.
        prefix: If set, these tokens are the next block of rows that a model of block diffusion has
            read up to here.
        length: Tokens of each row, if the sampler may leave rows shorter than they were.
        step: Steps done.
    """

    denoiser: Denoiser
    process: MaskedDiffusion
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
    step: int = field(default=0, init=False)

    @classmethod
    def open(
        cls,
        denoiser: Denoiser,
        process: MaskedDiffusion,
        draws: Draws,
        x_init: Int[Tensor, "B L"],
        padding: Bool[Tensor, "B L"] | None = None,
        allowed: Bool[Tensor, "B L K"] | None = None,
        callback: StepCallback | None = None,
    ) -> Canvas:
        """A canvas on which nothing has been done yet; all masks but padding are free."""
        free = x_init == process.mask_id
        return cls(
            denoiser,
            process,
            draws,
            x_init.to(torch.int64, copy=True),
            free if padding is None else free & ~padding,
            torch.zeros(len(x_init), dtype=torch.int64, device=x_init.device),
            padding,
            allowed,
            callback,
        )

    @property
    def masked(self) -> Bool[Tensor, "B L"]:
        """Positions that are still to be filled."""
        return self.free & (self.x_t == self.process.mask_id)

    @property
    def time(self) -> Float64[Tensor, " B"]:
        """The time at which as many tokens are masked, on average, as are now."""
        real = torch.ones_like(self.free) if self.padding is None else ~self.padding
        share = self.masked.sum(dim=-1).double() / real.sum(dim=-1).clamp_min(1)
        return self.process.schedule.inverse(1 - share)

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

    def law(
        self,
        where: Bool[Tensor, "B L"],
        t: Float64[Tensor, " B"],
        *,
        rows: Bool[Tensor, " B"] | None = None,
    ) -> Float64[Tensor, "N K"]:
        """Ask for the law of every position that is True, in the order of ``where.nonzero()``.

        The network sees only the rows that are asked about, and scores only these positions if it
        can; with a memory, all masked positions of the rows that it is asked about again.

        Args:
            where: Masked positions.
            t: The rows' times.
            rows: Rows to evaluate; those with a position that is asked about are among them.

        Returns:
            Log-probabilities in nats, within the allowed letters and normalised.

        Raises:
            ValueError: If the model gives none of the allowed letters a chance, or a NaN.
        """
        rows = where.any(dim=-1) if rows is None else rows
        chosen = rows.nonzero().squeeze(-1)
        if not len(chosen):
            return torch.empty((0, self.process.vocab_size), dtype=torch.float64).to(t.device)
        law = self._scores(chosen, where, t).double()
        if self.allowed is not None:
            law = law.masked_fill(~self.allowed[where], -torch.inf)
        total = law.logsumexp(dim=-1, keepdim=True)
        hopeless = ~total.squeeze(-1).isfinite()
        if bool(hopeless.any()):
            row, column = where.nonzero()[hopeless][0].tolist()
            raise ValueError(
                "Sampler.denoiser must give some allowed letter a chance, got log-probability "
                f"{float(total[hopeless][0])} at row {row}, position {column}; allow more letters "
                "there, or check the weights"
            )
        return law - total

    def _scores(self, chosen: Tensor, where: Tensor, t: Tensor) -> Tensor:
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
        x_t, asked = self.x_t[chosen], where[chosen]
        padding = None if self.padding is None else self.padding[chosen]
        self.nfe[chosen] += self.denoiser.evaluations(x_t, padding, asked)
        if self.prefix is not None:
            prefix = self.prefix if len(chosen) == len(self.x_t) else self.prefix.take(chosen)
            return prefix.log_probs_at(x_t, asked)
        return self.denoiser.log_probs_at(x_t, asked, t[chosen], padding)

    def place(self, where: Bool[Tensor, "B L"], letters: Int64[Tensor, " N"]) -> None:
        """Write letters at the positions that are True."""
        self.x_t[where] = letters

    def hide(self, where: Bool[Tensor, "B L"]) -> None:
        """Mask positions again."""
        self.x_t[where] = self.process.mask_id

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
            self.process,
            self.draws.window(start),
            x_t,
            self.free[:, part] & (x_t == self.process.mask_id),
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
            self.process,
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

"""Base classes of forward processes: any, discrete ones, and those that mix data with noise.

A discrete process acts on each position independently. Its methods take any leading shape ``*n``,
with one entry and one time for each position. Distributions are log-probabilities in nats, in
float64. Source: Austin et al. 2021, arXiv:2107.03006; Campbell et al. 2022, arXiv:2205.14987;
von Ruette et al. 2025, arXiv:2503.04482.
"""

# No postponed annotations: the configuration parser reads those of a base class in the module of
# a subclass, where names may be missing.
from abc import ABC, abstractmethod
from functools import cache
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Float64, Int, Int64
from torch import Tensor

from seqdiff.rng import categorical
from seqdiff.schedules import NoiseSchedule, require

Context = Literal["row", "block", "prefix"]

_RESOLVED = 2.0**-52  # twice the spacing of float64 below 1


class Process(ABC):
    """How tokens are hidden or distorted.

    Subclasses are frozen: they hold no network and no generator. ``DiscreteProcess`` is for noise
    on the symbols themselves, ``Gaussian`` for noise on their embeddings.

    Attributes:
        name: Name in messages and tables.
        context: Tokens that the distribution of a token is conditioned on: the whole noisy ``row``;
            its noisy ``block`` and the clean blocks before it; or the clean ``prefix`` alone.
        needs_time: Whether a network needs the noise level as an input, because noisy tokens do not
            show it.
        vocab_size: K, the number of real symbols, with ids ``0..K-1``.
    """

    name: ClassVar[str]
    context: ClassVar[Context] = "row"
    needs_time: ClassVar[bool] = True
    vocab_size: int

    @property
    def unknown_id(self) -> int:
        """The id K of an unknown token in the data, and of the mask if there is one."""
        return self.vocab_size

    @abstractmethod
    def sigma(self, t: Float[Tensor, "*n"]) -> Float64[Tensor, "*n"]:
        """The noise level that a time-conditioned network is told; grows with t."""

    def blank(
        self, shape: tuple[int, int], device: torch.device | str = "cpu"
    ) -> Int64[Tensor, "B L"]:
        """Return rows of unknown tokens, for ``Sampler.sample`` to fill."""
        return torch.full(shape, self.unknown_id, dtype=torch.int64, device=device)


class SymbolProcess(Process):
    """A process whose noisy tokens are symbols.

    Attributes:
        uneven: Whether the loss at uniform times has an infinite variance, so that objectives draw
            times by ``time_at``.
        visible_is_clean: Whether a token that is not masked is clean, so that only masks are
            predicted and have terms of the bound.
    """

    uneven: ClassVar[bool] = False
    visible_is_clean: ClassVar[bool] = False

    @property
    @abstractmethod
    def states(self) -> int:
        """Number of states of a noisy token: K, or K + 1 with a mask."""

    @abstractmethod
    def log_prior(self, device: torch.device | str = "cpu") -> Float64[Tensor, " states"]:
        """Distribution of a token at t = 1, from which generation starts."""

    @abstractmethod
    def corrupt(
        self,
        x0: Int[Tensor, "B L"],
        t: Float[Tensor, " B"] | Float[Tensor, "B L"],
        *,
        keep: Bool[Tensor, "B L"] | None = None,
        noise: Float64[Tensor, "B L"],
    ) -> Int64[Tensor, "B L"]:
        """Draw z_t given x0.

        Args:
            x0: Clean ids in ``0..K``; K (unknown) stays as it is.
            t: Times in [0, 1], one per row or one per token.
            keep: Positions that stay as they are.
            noise: Independent uniforms in (0, 1).
        """

    @abstractmethod
    def prior_kl(self, x0: Int[Tensor, "*n"]) -> Float64[Tensor, "*n"]:
        """KL(q_1(. | x0) || prior) of every token in nats, the prior term of the bound."""

    def time_at(
        self, fraction: Float64[Tensor, "*n"]
    ) -> tuple[Float64[Tensor, "*n"], Float64[Tensor, "*n"]]:
        """Time at which a fraction of the noise has been added, and its derivative.

        Estimators draw fractions, so that their variance does not depend on how the schedule
        distributes the noise over time.

        Args:
            fraction: Numbers in (0, 1); here they are the times themselves.
        """
        return fraction, torch.ones_like(fraction)


class DiscreteProcess(SymbolProcess):
    """A Markov chain on symbols that forgets the clean token between t = 0 and t = 1.

    Tokens are independent given the clean ones, and the noise of a token depends on that token
    alone. A subclass implements the abstract methods. The other methods follow from them and may be
    overridden by faster ones.
    """

    @abstractmethod
    def log_marginal(
        self, log_probs: Float[Tensor, "*n k"], t: Float[Tensor, "*n"]
    ) -> Float64[Tensor, "*n states"]:
        """Distribution of z_t when x0 has the given distribution.

        Args:
            log_probs: Distribution of x0 over the K symbols, or over all states (in D3PM the
                prediction may be a mask).
            t: Times in [0, 1].
        """

    @abstractmethod
    def log_step(
        self, z: Int[Tensor, "*n"], s: Float[Tensor, "*n"], t: Float[Tensor, "*n"]
    ) -> Float64[Tensor, "*n states"]:
        """Probability log q(z_t = z | z_s = y) of reaching z from every state y.

        Args:
            z: States at time t.
            s: Earlier times.
            t: Later times.
        """

    @abstractmethod
    def rate_into(
        self, z: Int[Tensor, "*n"], t: Float[Tensor, "*n"]
    ) -> Float64[Tensor, "*n states"]:
        """Rate Q_t(y -> z) of jumping from every other state y to z, per unit time.

        The entry of z itself is not used. The last axis may have size 1 if all rates are equal.
        """

    def log_likelihood(
        self, z: Int[Tensor, "*n"], t: Float[Tensor, "*n"]
    ) -> Float64[Tensor, "*n K"]:
        """Evidence log q_t(z | v) that a noisy token gives for every clean symbol v."""
        size = self.vocab_size
        symbols = torch.eye(size, dtype=torch.float64, device=z.device).log()
        every = self.log_marginal(
            symbols.expand(*z.shape, size, size), t.double()[..., None].expand(*z.shape, size)
        )
        column = z[..., None, None].expand(*z.shape, size, 1)
        return every.gather(-1, column).squeeze(-1)

    def log_posterior(
        self,
        log_probs: Float[Tensor, "*n k"],
        z: Int[Tensor, "*n"],
        s: Float[Tensor, "*n"],
        t: Float[Tensor, "*n"],
    ) -> Float64[Tensor, "*n states"]:
        """Distribution of z_s given z_t when x0 has a distribution that does not depend on z_t.

        This is Bayes' rule at one position: q(z_t | z_s) q_s(z_s | x0), normalised. With the exact
        leave-one-out distribution it is the exact reverse kernel of the position. With a
        distribution that already depends on z_t, the evidence of z_t would count twice.

        Args:
            log_probs: Leave-one-out distribution of x0, see ``log_marginal``.
            z: States at time t.
            s: Earlier times, less than t.
            t: Later times.
        """
        return (self.log_step(z, s, t) + self.log_marginal(log_probs, s)).log_softmax(dim=-1)

    def corrupt(
        self,
        x0: Int[Tensor, "B L"],
        t: Float[Tensor, " B"] | Float[Tensor, "B L"],
        *,
        keep: Bool[Tensor, "B L"] | None = None,
        noise: Float64[Tensor, "B L"],
    ) -> Int64[Tensor, "B L"]:
        """Draw z_t given x0, independently at every position.

        Args:
            x0: Clean ids in ``0..K``; K (unknown) stays as it is.
            t: Times in [0, 1], one per row or one per token.
            keep: Positions that stay as they are.
            noise: Independent uniforms in (0, 1).
        """
        fixed = x0 == self.unknown_id if keep is None else keep | (x0 == self.unknown_id)
        one_hot = self.one_hot(x0.masked_fill(fixed, 0))
        times = t.double() if t.dim() == 2 else t.double()[:, None].expand(x0.shape)
        drawn = categorical(self.log_marginal(one_hot, times), noise)
        return torch.where(fixed, x0.long(), drawn)

    def one_hot(self, x0: Int[Tensor, "*n"]) -> Float64[Tensor, "*n K"]:
        """Log-probabilities of a symbol that is known: 0 for it, ``-inf`` for the others."""
        return torch.nn.functional.one_hot(x0.long(), self.vocab_size).double().log()

    def prior_kl(self, x0: Int[Tensor, "*n"]) -> Float64[Tensor, "*n"]:
        """KL(q_1(. | x0) || prior) of every token in nats, the prior term of the bound."""
        t = torch.ones(x0.shape, dtype=torch.float64, device=x0.device)
        log_q = self.log_marginal(self.one_hot(x0), t)
        return (log_q.exp() * (log_q - self.log_prior(x0.device)).nan_to_num()).sum(dim=-1)

    @property
    def forgets(self) -> bool:
        """Whether z_1 is distributed as the prior, so that the bound needs no prior term."""
        symbols = torch.arange(self.vocab_size)
        return not bool(self.prior_kl(symbols).any())

    @property
    def starts_clean(self) -> bool:
        """Whether z_0 = x0 with certainty, so that the bound needs no reconstruction term."""
        zero = torch.zeros(1, dtype=torch.float64)
        clean = self.log_marginal(self.one_hot(torch.zeros(1, dtype=torch.int64)), zero)
        return float(clean[0, 0]) == 0.0


class Interpolating(DiscreteProcess):
    """A process that keeps a token with probability alpha(t) and replaces it by noise otherwise.

    q_t(y | x) = alpha(t) 1[y = x] + b_t(y). A subclass implements alpha, b and the rates of b.
    """

    @abstractmethod
    def alpha(self, t: Float[Tensor, "*n"]) -> Float64[Tensor, "*n"]:
        """Probability that a token has not been replaced by time t."""

    @abstractmethod
    def noise_probs(self, t: Float[Tensor, "*n"]) -> Float64[Tensor, "*n states"]:
        """Probability b_t(y) that a token has been replaced by y; the last axis may have size 1."""

    def sigma(self, t: Float[Tensor, "*n"]) -> Float64[Tensor, "*n"]:
        """Return -log alpha(t), which is infinite where nothing of x0 is left."""
        return -self.alpha(t).log()

    def log_marginal(
        self, log_probs: Float[Tensor, "*n k"], t: Float[Tensor, "*n"]
    ) -> Float64[Tensor, "*n states"]:
        """Return the distribution of z_t; small probabilities stay exact in the log domain."""
        t, log_probs = t.double(), log_probs.double()
        if log_probs.shape[-1] < self.states:
            log_probs = torch.nn.functional.pad(
                log_probs, (0, self.states - log_probs.shape[-1]), value=-torch.inf
            )
        return torch.logaddexp(
            self.alpha(t).log()[..., None] + log_probs, self.noise_probs(t).log()
        )

    def log_step(
        self, z: Int[Tensor, "*n"], s: Float[Tensor, "*n"], t: Float[Tensor, "*n"]
    ) -> Float64[Tensor, "*n states"]:
        """Stay with probability alpha_t / alpha_s, or be replaced by z after s."""
        stay, replaced = self._after(s, t)
        into = replaced.expand(*z.shape, self.states).gather(-1, z[..., None].long())
        present = torch.nn.functional.one_hot(z.long(), self.states).double()
        return (into + stay * present).log()

    def log_forward(
        self, z: Int[Tensor, "*n"], s: Float[Tensor, "*n"], t: Float[Tensor, "*n"]
    ) -> Float64[Tensor, "*n states"]:
        """Distribution log q(z_t | z_s = z) of a later state.

        Args:
            z: States at time s.
            s: Earlier times.
            t: Later times.
        """
        stay, replaced = self._after(s, t)
        present = torch.nn.functional.one_hot(z.long(), self.states).double()
        return (replaced + stay * present).log()

    def _after(self, s: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        """Probabilities of staying from s to t, and of being replaced by each state."""
        s, t = s.double(), t.double()
        stay = (self.alpha(t) / self.alpha(s))[..., None]
        return stay, (self.noise_probs(t) - stay * self.noise_probs(s)).clamp_min(0.0)

    def inverse(self, alpha: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n"]:
        """Time at which alpha(t) has a value, by bisection."""
        low, high = torch.zeros_like(alpha), torch.ones_like(alpha)
        for _ in range(60):
            middle = (low + high) / 2
            later = self.alpha(middle) > alpha
            low, high = torch.where(later, middle, low), torch.where(later, high, middle)
        return (low + high) / 2

    def log_likelihood(
        self, z: Int[Tensor, "*n"], t: Float[Tensor, "*n"]
    ) -> Float64[Tensor, "*n K"]:
        """Evidence of z: noise for every symbol, and survival for the symbol z itself."""
        t = t.double()
        noise = self.noise_probs(t).expand(*z.shape, self.states)
        from_noise = noise.gather(-1, z[..., None].long())
        kept = torch.nn.functional.one_hot(z.long(), self.states)[..., : self.vocab_size].double()
        return (from_noise + self.alpha(t)[..., None] * kept).log()


class Scheduled(Interpolating):
    """An ``Interpolating`` process with alpha from a noise schedule."""

    schedule: NoiseSchedule

    def alpha(self, t: Float[Tensor, "*n"]) -> Float64[Tensor, "*n"]:
        """Probability of the schedule that a token has not been replaced by time t."""
        return self.schedule.alpha(t.double())

    def inverse(self, alpha: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n"]:
        """Time at which alpha(t) has a value."""
        return self.schedule.inverse(alpha)

    def sigma(self, t: Float[Tensor, "*n"]) -> Float64[Tensor, "*n"]:
        """Return -log alpha(t) of the schedule."""
        return self.schedule.sigma(t.double())

    def time_at(
        self, fraction: Float64[Tensor, "*n"]
    ) -> tuple[Float64[Tensor, "*n"], Float64[Tensor, "*n"]]:
        """Time up to which alpha has fallen by a fraction of its range, and its derivative.

        Fractions are clamped to those that alpha can resolve, because the derivative may be
        infinite at the ends.
        """
        ends = torch.tensor([0.0, 1.0], dtype=torch.float64, device=fraction.device)
        first, last = self.schedule.alpha(ends)
        inside = fraction.clamp(_RESOLVED, 1 - _RESOLVED)
        t = self.schedule.inverse(first - (first - last) * inside)
        return t, (first - last) / -self.schedule.dalpha(t)


class Masking(SymbolProcess):
    """A process with a mask, of id K, that ends with masks alone."""

    @property
    def states(self) -> int:
        """Number of states: the K symbols and the mask."""
        return self.vocab_size + 1

    @property
    def mask_id(self) -> int:
        """The id of the mask, ``vocab_size``."""
        return self.vocab_size

    @property
    def forgets(self) -> bool:
        """True: every token is masked at t = 1."""
        return True

    def prior_kl(self, x0: Int[Tensor, "*n"]) -> Float64[Tensor, "*n"]:
        """Return 0: the prior is a mask too."""
        return torch.zeros(x0.shape, dtype=torch.float64, device=x0.device)

    def log_prior(self, device: torch.device | str = "cpu") -> Float64[Tensor, " states"]:
        """Distribution of a token at t = 1, which is certainly the mask."""
        mask = torch.tensor(self.mask_id, device=device)
        return torch.nn.functional.one_hot(mask, self.states).double().log()


def small_times(
    u: Float64[Tensor, "*n"], bend: Float64[Tensor, "*n"] | float
) -> tuple[Float64[Tensor, "*n"], Float64[Tensor, "*n"]]:
    """Map uniforms to times in (0, 1) whose density is nearly flat above ``bend``.

    Below ``bend`` the density grows like t^(-2/3). That makes the variance of terms finite that are
    of the order 1 / t with a probability of the order t.

    Args:
        u: Numbers in (0, 1).
        bend: Where the density begins to grow.

    Returns:
        The times, and their derivatives with respect to u.
    """
    t = u * (u * (1 + bend) / (u + bend)) ** 2
    return t, t * (u + 3 * bend) / (u * (u + bend))


@cache
def drawable(
    vocab_size: int, reserved: tuple[int, ...] | None, device: torch.device
) -> Float64[Tensor, " K"]:
    """Return 1 for every symbol that noise may draw and 0 for the reserved ones."""
    found = torch.ones(vocab_size, dtype=torch.float64, device=device)
    found[list(reserved or ())] = 0.0
    return found


def check_reserved(owner: str, reserved: tuple[int, ...] | None, vocab_size: int) -> None:
    """Check the symbols that noise never draws.

    Raises:
        ValueError: If one is no symbol or is listed twice, or no symbol is left to draw.
    """
    found = reserved or ()
    inside = all(0 <= symbol < vocab_size for symbol in found)
    require(
        inside and len(set(found)) == len(found) < vocab_size,
        f"{owner}.reserved",
        f"hold different ids below {vocab_size}, and not all of them",
        reserved,
        "list the symbols that no text holds",
    )


def check_vocab_size(owner: str, vocab_size: int) -> None:
    """Check the number of symbols.

    Raises:
        ValueError: If there is none.
    """
    require(
        vocab_size >= 1,
        f"{owner}.vocab_size",
        "be at least 1",
        vocab_size,
        "count the real symbols without the mask",
    )

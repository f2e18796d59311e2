"""Synthetic genomes whose distribution is known exactly.

A Markov chain of order k emits the background. Its transition table has one row for each context of
k bases, indexed by the context's base-4 code, first base leading. At every background position a
motif may start instead: its bases come from its position weight matrix, on either strand with
probability 1/2. The background then resumes with the last k bases as its context, motif or not. The
hidden state (background, or a position within a motif) is a Markov chain of its own, so the forward
algorithm gives the probability of a sequence exactly (Rabiner 1989, Proc. IEEE 77:257, section
III.A); the context is read off the bases.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64, Int64, Integer, UInt8

from genomics.sequence import MASK_ID, PlantedMotif

MAX_ORDER = 5


def append(
    law: Float64[np.ndarray, "*shape C"], probs: Float64[np.ndarray, "*contexts 4"]
) -> Float64[np.ndarray, "*shape C"]:
    """Push a law of contexts through one more letter.

    Args:
        law: Of the last k letters, by base-4 code, first letter leading.
        probs: Law of the next letter, the same for all contexts or one row each.
    """
    words = law[..., None] * probs
    return words.reshape(*law.shape[:-1], 4, law.shape[-1]).sum(axis=-2)


def symmetrise(transitions: Float64[np.ndarray, "C 4"]) -> Float64[np.ndarray, "C 4"]:
    """Average a chain's law of k + 1 letters with its reverse complement.

    The result is the chain with that law; read on the opposite strand it is the same chain.

    Raises:
        ValueError: If the table is no table of positive probabilities.
    """
    checked = check_transitions(transitions)
    contexts = len(checked)
    letters = (contexts.bit_length() + 1) // 2
    words = fixed_point(append(np.eye(contexts), checked))[:, None] * checked
    opposite = np.flip(words.reshape((4,) * letters).transpose()).reshape(contexts, 4)
    both = words + opposite
    return both / both.sum(axis=1, keepdims=True)


def fixed_point(kernel: Float64[np.ndarray, "C C"]) -> Float64[np.ndarray, " C"]:
    """Solve for the stationary law of a kernel that has exactly one, by one dense solve."""
    system = (kernel - np.eye(len(kernel))).T
    system[-1] = 1
    law = np.linalg.solve(system, np.eye(len(kernel))[-1])
    assert np.abs(law @ kernel - law).max() < 1e-13, "stationary law not solved"
    return law / law.sum()


def check_transitions(transitions: Float64[np.ndarray, "C 4"]) -> Float64[np.ndarray, "C 4"]:
    """Return the table if it is one.

    Raises:
        ValueError: If it has another number of rows, or a row is no law of positive probabilities.
    """
    rows = len(transitions)
    if rows not in [4**k for k in range(MAX_ORDER + 1)]:
        raise ValueError(
            f"MarkovGenome.transitions must have 4 ** k rows with k in 0..{MAX_ORDER}, got {rows}; "
            "give one row a context"
        )
    if not (transitions > 0).all() or not np.allclose(transitions.sum(axis=1), 1, atol=1e-12):
        raise ValueError(
            "MarkovGenome.transitions must have rows of positive probabilities that sum to 1, got "
            f"a least entry {transitions.min():.3g} and sums from "
            f"{transitions.sum(axis=1).min():.6g}; divide each row by its sum"
        )
    return transitions


_CHUNK_VALUES = 1 << 20

Seed = int | tuple[int, ...]


class MarkovGenome:
    """A stationary Markov background, with motifs planted on both strands.

    Without motifs this is a Markov chain of order k. With them, a background symmetric under the
    reverse complement makes the source almost symmetric but not exactly: the letters after a motif
    depend on its last letters, the letters before it do not know that it comes. It is exactly
    symmetric for a symmetric background of order 0.

    Hidden states: 0 is the background, then come the positions of each motif, plus strand first.

    Attributes:
        transitions: Law of a background letter by base-4 code of the k letters before it.
        motifs: What is planted.
        emissions: Law of the letter in each hidden state; row 0, the background, is not used.
        starts: Hidden states in which something starts, the background first.
        ends: Hidden states after which something may start, in the same order.
        start_probs: How it is chosen what starts, in the same order.
        boundary: Law of the last k letters where the next thing may start.
        stationary: Joint law of the last k letters and the hidden state of the last one.
    """

    def __init__(
        self, transitions: Float64[np.ndarray, "C 4"], motifs: Sequence[PlantedMotif] = ()
    ) -> None:
        """Solve for the stationary law.

        Args:
            transitions: Probabilities, all positive; ``4 ** k`` rows with k in ``0..5``.
            motifs: What to plant; the rates must leave room for background.

        Raises:
            ValueError: If the table has another shape or no row of positive probabilities, or the
                rates sum to 1 or more.
        """
        self.transitions = check_transitions(transitions)
        self.motifs = tuple(motifs)
        self.order = (len(transitions).bit_length() - 1) // 2
        rates = [motif.rate / 2 for motif in motifs for _ in motif.strands]
        self._background = 1 - sum(rates)
        if self._background <= 0:
            raise ValueError(
                f"MarkovGenome.motifs must have rates that sum to less than 1, got "
                f"{sum(rates):.4g}; plant more sparsely"
            )
        matrices = [matrix for motif in motifs for matrix in motif.strands]
        self.emissions = np.concatenate([np.full((1, 4), np.nan), *matrices])
        widths = np.array([1, *(len(matrix) for matrix in matrices)])
        self.ends = np.cumsum(widths) - 1
        self.starts = self.ends - widths + 1
        self.start_probs = np.array([self._background, *rates])
        self._mean_width = float(widths @ self.start_probs)
        self.boundary = self._boundary_law()
        self.stationary = self._stationary_law()

    @classmethod
    def random(
        cls,
        order: int,
        *,
        concentration: float,
        seed: int,
        strand_symmetric: bool = True,
        motifs: Sequence[PlantedMotif] = (),
    ) -> MarkovGenome:
        """Draw the background from a symmetric Dirichlet law, one draw a context.

        Args:
            order: k, in ``0..5``.
            concentration: Parameter of the Dirichlet law; the larger, the nearer to uniform.
            seed: Of the draw.
            strand_symmetric: Average the background's law of k + 1 letters with that of its reverse
                complement, which makes the background exactly symmetric.
            motifs: What to plant.

        Raises:
            ValueError: If an argument is out of range.
        """
        if not 0 <= order <= MAX_ORDER or not concentration > 0:
            raise ValueError(
                f"MarkovGenome.random needs an order in 0..{MAX_ORDER} and a positive "
                f"concentration, got {order} and {concentration}; use for example 2 and 10.0"
            )
        draws = np.random.default_rng(seed).dirichlet([concentration] * 4, size=4**order)
        if strand_symmetric:
            draws = symmetrise(draws)
        return cls(draws, motifs)

    def sample(self, num: int, length: int, seed: Seed) -> UInt8[np.ndarray, "num length"]:
        """Draw independent stationary windows; ``num = 1`` gives one long genome.

        Raises:
            ValueError: If ``num`` or ``length`` is less than 1.
        """
        if num < 1 or length < 1:
            raise ValueError(
                f"MarkovGenome.sample needs num and length of at least 1, got {num} and {length}; "
                "ask for one window or more"
            )
        letters, _ = self.sample_paths(num, max(length - self.order, 0), seed)
        return letters[:, :length]

    def sample_paths(
        self, num: int, steps: int, seed: Seed
    ) -> tuple[UInt8[np.ndarray, "num letters"], Int64[np.ndarray, "num states"]]:
        """Draw letters together with the hidden states behind them.

        Returns:
            The k letters of a stationary context and ``steps`` more; and the hidden states of the
            last letter of the context (for k = 0, of the letter before the window) and of those.
        """
        generator = np.random.default_rng(seed)
        contexts, num_states = self.stationary.shape
        cumulative = self.stationary.ravel().cumsum()
        start = np.searchsorted(cumulative / cumulative[-1], generator.random(num), side="right")
        context, state = np.divmod(start, num_states)
        letters = np.empty((num, self.order + steps), dtype=np.uint8)
        for j in range(self.order):
            letters[:, j] = context >> 2 * (self.order - 1 - j) & 3
        states = np.empty((num, steps + 1), dtype=np.int64)
        states[:, 0] = state
        # Background and motif laws in one table: contexts first, then hidden states 1, 2, ...
        table = np.concatenate([self.transitions, self.emissions[1:]]).cumsum(axis=1)[:, :3]
        to_start = self.start_probs.cumsum()[:-1]
        at_end = np.isin(np.arange(num_states), self.ends)
        for t in range(steps):
            u, v = generator.random((2, num))
            entered = self.starts[np.searchsorted(to_start, u, side="right")]
            state = np.where(at_end[state], entered, state + 1)
            row = np.where(state == 0, context, contexts + state - 1)
            letter = (v[:, None] >= table[row]).sum(axis=1)
            context = (context * 4 + letter) % contexts
            letters[:, self.order + t], states[:, t + 1] = letter, state
        return letters, states

    def log_prob(self, rows: Integer[np.ndarray, "n L"]) -> Float64[np.ndarray, " n"]:
        """Exact log-probability of stationary windows, in nats.

        An N is unknown: it is summed over. That costs ``4 ** k`` times as much for such rows.

        Args:
            rows: Ids ``0..4``.

        Raises:
            ValueError: If an id is not in ``0..4``.
        """
        _check_ids(rows)
        result = np.empty(len(rows))
        unknown = (rows == MASK_ID).any(axis=1)
        for chosen, size in ((~unknown, 1), (unknown, 4 * len(self.transitions))):
            places = np.flatnonzero(chosen)
            step = max(1, _CHUNK_VALUES // (len(self.emissions) * size))
            for first in range(0, len(places), step):
                part = places[first : first + step]
                if size == 1:
                    result[part] = -self.conditional_nats(rows[part]).sum(axis=1)
                else:
                    result[part] = self._log_marginal(rows[part])
        return result

    def conditional_nats(
        self,
        rows: Integer[np.ndarray, "n L"],
        first_states: Int64[np.ndarray, " n"] | None = None,
    ) -> Float64[np.ndarray, "n L"]:
        """Nats of each letter given the letters before it, by the scaled forward algorithm.

        Args:
            rows: Ids ``0..3``.
            first_states: If given, the hidden states of the letter at place k - 1 (for k = 0, of
                the letter before the window) are known too; places 0..k-1 then score 0.

        Raises:
            ValueError: If an id is not in ``0..3``.
        """
        _check_ids(rows, MASK_ID - 1)
        k, contexts, letters = self.order, len(self.transitions), rows.astype(np.int64)
        nats = np.zeros(rows.shape)
        context = np.zeros(len(rows), dtype=np.int64)
        before = np.zeros(len(rows))
        for j in range(min(k, rows.shape[1])):
            context = context * 4 + letters[:, j]
            prefix = self.stationary.sum(axis=1).reshape(4 ** (j + 1), -1).sum(axis=1)
            so_far = -np.log(prefix[context])
            nats[:, j], before = so_far - before, so_far
        if rows.shape[1] <= k:
            return nats
        if first_states is None:
            alpha = self.stationary[context]
            alpha /= alpha.sum(axis=1, keepdims=True)
        else:
            nats[:, :k] = 0
            alpha = np.eye(len(self.emissions))[first_states]
        by_letter = np.ascontiguousarray(self.emissions.T)
        for t in range(k, rows.shape[1]):
            emission = by_letter[letters[:, t]]
            emission[:, 0] = self.transitions[context, letters[:, t]]
            alpha = self._move(alpha)
            alpha *= emission
            scale = alpha.sum(axis=1)
            alpha /= scale[:, None]
            nats[:, t] = -np.log(scale)
            context = (context * 4 + letters[:, t]) % contexts
        return nats

    def _move(self, alpha: np.ndarray) -> np.ndarray:
        """One step of the hidden chain on laws in the last axis."""
        moved = np.empty_like(alpha)
        moved[..., 1:] = alpha[..., :-1]
        free = alpha[..., self.ends].sum(axis=-1)
        moved[..., self.starts] = free[..., None] * self.start_probs
        return moved

    def _log_marginal(self, rows: np.ndarray) -> np.ndarray:
        """The forward algorithm on (context, hidden state) pairs, with unknown letters."""
        n, contexts = len(rows), len(self.transitions)
        allowed = (rows[..., None] == np.arange(4)) | (rows == MASK_ID)[..., None]
        alpha = np.broadcast_to(self.stationary, (n, *self.stationary.shape))
        for j in range(min(self.order, rows.shape[1])):
            digit = np.arange(contexts) >> 2 * (self.order - 1 - j) & 3
            alpha = alpha * allowed[:, j][:, digit, None]
        emission = np.repeat(self.emissions.T[None], contexts, axis=0)
        emission[:, :, 0] = self.transitions
        result = np.zeros(n)
        for t in range(self.order, rows.shape[1]):
            joint = self._move(alpha)[:, :, None, :] * emission * allowed[:, t, None, :, None]
            alpha = joint.reshape(n, 4, contexts, -1).sum(axis=1)
            scale = alpha.sum(axis=(1, 2))
            alpha /= scale[:, None, None]
            result += np.log(scale)
        return result + np.log(alpha.sum(axis=(1, 2)))

    def _boundary_law(self) -> np.ndarray:
        """Stationary law of the context over the chain that steps from one start to the next."""
        known = np.eye(len(self.transitions))
        kernel = self._background * append(known, self.transitions)
        for rate, first, last in zip(
            self.start_probs[1:], self.starts[1:], self.ends[1:], strict=True
        ):
            law = known
            for probs in self.emissions[first : last + 1]:
                law = append(law, probs)
            kernel += rate * law
        return fixed_point(kernel)

    def _stationary_law(self) -> np.ndarray:
        law = np.empty((len(self.transitions), len(self.emissions)))
        law[:, 0] = self._background * append(self.boundary, self.transitions)
        for rate, first, last in zip(
            self.start_probs[1:], self.starts[1:], self.ends[1:], strict=True
        ):
            context = rate * self.boundary
            for state in range(first, last + 1):
                context = append(context, self.emissions[state])
                law[:, state] = context
        return law / self._mean_width


def _check_ids(rows: np.ndarray, most: int = MASK_ID) -> None:
    if rows.size and not 0 <= rows.min() <= rows.max() <= most:
        raise ValueError(
            f"MarkovGenome.rows must hold ids in 0..{most}, got {rows.min()}..{rows.max()}; "
            "encode with genomics.sequence.alphabet"
        )

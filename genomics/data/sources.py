"""Synthetic genomes whose distribution and entropy are known.

A Markov chain of order k generates the background. Its transition table has one row per context of
k bases, indexed by the context's base-4 code with the first base most significant. At every
background position a motif may start instead. Its bases come from its position weight matrix, on
either strand with probability 1/2. After a motif the background resumes with the last k bases as
its context. The hidden state (background, or a position within a motif) is a Markov chain, so the
forward algorithm gives the exact probability of a sequence (Rabiner 1989, Proc. IEEE 77:257,
section III.A).

Sources for the entropy: Cover and Thomas 2006, Elements of Information Theory, theorem 4.2.4
(entropy rate of a Markov chain) and theorem 4.5.1 (the rate of a hidden Markov process lies between
the conditional entropies with and without the first hidden state).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64, Integer, UInt8

from genomics.sequence import BASES, IUPAC, MASK_ID

MAX_ORDER = 5
_CHUNK_VALUES = 1 << 20
_BLOCK_ROWS = 512

Seed = int | tuple[int, ...]


def consensus_matrix(consensus: str, fidelity: float) -> Float64[np.ndarray, "w 4"]:
    """Turn a consensus into a position weight matrix.

    Args:
        consensus: IUPAC codes in upper case.
        fidelity: Probability of the bases that a position's code stands for, divided equally among
            them; the other bases divide the rest.

    Raises:
        ValueError: If the consensus is empty or not IUPAC, or the fidelity is not in (0, 1].
    """
    unknown = sorted(set(consensus) - set(IUPAC))
    if not consensus or unknown:
        raise ValueError(
            f"consensus_matrix.consensus must be IUPAC codes, got {consensus!r}; "
            f"use {''.join(IUPAC)}"
        )
    if not 0 < fidelity <= 1:
        raise ValueError(
            f"consensus_matrix.fidelity must be in (0, 1], got {fidelity}; use for example 0.95"
        )
    meant = np.array([[base in IUPAC[code] for base in BASES] for code in consensus])
    number = meant.sum(axis=1, keepdims=True)
    others = (1 - fidelity) / np.maximum(4 - number, 1)
    return np.where(number == 4, 0.25, np.where(meant, fidelity / number, others))


@dataclass(frozen=True, eq=False)
class PlantedMotif:
    """A motif and the rate at which it is planted.

    Attributes:
        matrix: Base probabilities of each position, on the plus strand.
        rate: Probability that an instance on either strand starts where one may start.
    """

    matrix: Float64[np.ndarray, "w 4"]
    rate: float

    def __post_init__(self) -> None:
        """Check the matrix and the rate."""
        sums = self.matrix.sum(axis=1)
        if len(sums) == 0 or (self.matrix < 0).any() or not np.allclose(sums, 1, atol=1e-12):
            raise ValueError(
                "PlantedMotif.matrix must have rows that are probabilities and sum to 1, "
                f"got sums {np.round(sums, 6).tolist()}; divide each row by its sum"
            )
        if not 0 < self.rate < 1:
            raise ValueError(
                f"PlantedMotif.rate must be in (0, 1), got {self.rate}; use for example 0.01"
            )

    @property
    def strands(self) -> tuple[Float64[np.ndarray, "w 4"], Float64[np.ndarray, "w 4"]]:
        """The matrix on the plus strand for both orientations of an instance."""
        return self.matrix, np.ascontiguousarray(self.matrix[::-1, ::-1])


def append(
    contexts: Float64[np.ndarray, "*shape C"], probs: Float64[np.ndarray, "*contexts 4"]
) -> Float64[np.ndarray, "*shape C"]:
    """Append one base to the contexts of a distribution.

    Args:
        contexts: Distribution of the last k bases, by base-4 code.
        probs: Distribution of the next base, one for all contexts or one row per context.
    """
    joint = contexts[..., None] * probs
    return joint.reshape(*contexts.shape[:-1], 4, contexts.shape[-1]).sum(axis=-2)


def symmetrise(transitions: Float64[np.ndarray, "C 4"]) -> Float64[np.ndarray, "C 4"]:
    """Average a chain's distribution of k + 1 bases with that of its reverse complement.

    The result is the chain with that distribution, which is the same on both strands.

    Raises:
        ValueError: If the table does not consist of positive probabilities.
    """
    checked = _check_transitions(transitions)
    contexts = len(checked)
    width = (contexts.bit_length() + 1) // 2
    joint = _fixed_point(append(np.eye(contexts), checked))[:, None] * checked
    opposite = np.flip(joint.reshape((4,) * width).transpose()).reshape(contexts, 4)
    both = joint + opposite
    return both / both.sum(axis=1, keepdims=True)


def _fixed_point(kernel: np.ndarray) -> np.ndarray:
    """Solve for the unique stationary distribution of a kernel."""
    system = (kernel - np.eye(len(kernel))).T
    system[-1] = 1
    stationary = np.linalg.solve(system, np.eye(len(kernel))[-1])
    residual = np.abs(stationary @ kernel - stationary).max()
    assert residual < 1e-13, "stationary distribution not solved"
    return stationary / stationary.sum()


def _check_transitions(transitions: np.ndarray) -> np.ndarray:
    rows = len(transitions)
    if rows not in [4**k for k in range(MAX_ORDER + 1)]:
        raise ValueError(
            f"MarkovGenome.transitions must have 4 ** k rows with k in 0..{MAX_ORDER}, got {rows}; "
            "give one row per context"
        )
    if not (transitions > 0).all() or not np.allclose(transitions.sum(axis=1), 1, atol=1e-12):
        raise ValueError(
            "MarkovGenome.transitions must have rows of positive probabilities that sum to 1, got "
            f"a smallest entry {transitions.min():.3g} and sums from "
            f"{transitions.sum(axis=1).min():.6g}; divide each row by its sum"
        )
    return transitions


class MarkovGenome:
    """A stationary Markov background with motifs planted on both strands.

    Without motifs this is a Markov chain of order k. A background that is symmetric under the
    reverse complement makes a source with motifs only approximately symmetric, because the bases
    after a motif depend on it and those before it do not. The source is exactly symmetric for a
    symmetric background of order 0.

    Hidden state 0 is the background, followed by the positions of each motif, plus strand first.

    Attributes:
        transitions: Distribution of a background base by base-4 code of the k preceding bases.
        motifs: The planted motifs.
        emissions: Distribution of the base in each hidden state; row 0, the background, is unused.
        starts: First hidden state of the background and of each motif.
        ends: Last hidden state of each, in the same order.
        start_probs: Probability that each starts after an end, in the same order.
        boundary: Distribution of the last k bases after an end.
        stationary: Joint distribution of the last k bases and the hidden state of the last one.
    """

    def __init__(
        self, transitions: Float64[np.ndarray, "C 4"], motifs: Sequence[PlantedMotif] = ()
    ) -> None:
        """Solve for the stationary distribution.

        Args:
            transitions: Positive probabilities in ``4 ** k`` rows with k in ``0..5``.
            motifs: Motifs whose rates sum to less than 1.

        Raises:
            ValueError: If the table is not valid or the rates sum to 1 or more.
        """
        self.transitions = _check_transitions(transitions)
        self.motifs = tuple(motifs)
        self.order = (len(transitions).bit_length() - 1) // 2
        rates = [motif.rate / 2 for motif in motifs for _ in motif.strands]
        self._background = 1 - sum(rates)
        if self._background <= 0:
            raise ValueError(
                f"MarkovGenome.motifs must have rates that sum to less than 1, got "
                f"{sum(rates):.4g}; use smaller rates"
            )
        matrices = [matrix for motif in motifs for matrix in motif.strands]
        self.emissions = np.concatenate([np.full((1, 4), np.nan), *matrices])
        widths = np.array([1, *(len(matrix) for matrix in matrices)])
        self.ends = np.cumsum(widths) - 1
        self.starts = self.ends - widths + 1
        self.start_probs = np.array([self._background, *rates])
        self._mean_width = float(widths @ self.start_probs)
        self.boundary, self.stationary = self._solve()

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
        """Draw the background from a symmetric Dirichlet distribution, one draw per context.

        Args:
            order: k, in ``0..5``.
            concentration: Parameter of the Dirichlet distribution; larger is closer to uniform.
            seed: Random seed.
            strand_symmetric: Make the background symmetric, see ``symmetrise``.
            motifs: Motifs to plant.

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
                "use at least 1 for both"
            )
        rows, _ = self.sample_paths(num, max(length - self.order, 0), seed)
        return rows[:, :length]

    def sample_paths(
        self, num: int, steps: int, seed: Seed
    ) -> tuple[UInt8[np.ndarray, "num bases"], Int64[np.ndarray, "num states"]]:
        """Draw bases together with their hidden states.

        Returns:
            The k bases of a stationary context and ``steps`` more bases; and the hidden states of
            the last base of the context (for k = 0, of the base before the window) and of each
            further base.
        """
        generator = np.random.default_rng(seed)
        contexts, num_states = self.stationary.shape
        cumulative = self.stationary.ravel().cumsum()
        start = np.searchsorted(cumulative / cumulative[-1], generator.random(num), side="right")
        context, state = np.divmod(start, num_states)
        rows = np.empty((num, self.order + steps), dtype=np.uint8)
        for j in range(self.order):
            rows[:, j] = context >> 2 * (self.order - 1 - j) & 3
        states = np.empty((num, steps + 1), dtype=np.int64)
        states[:, 0] = state
        # Background and motifs in one table: contexts first, then hidden states 1, 2, ...
        table = np.concatenate([self.transitions, self.emissions[1:]]).cumsum(axis=1)[:, :3]
        to_start = self.start_probs.cumsum()[:-1]
        at_end = np.isin(np.arange(num_states), self.ends)
        for t in range(steps):
            u, v = generator.random((2, num))
            entered = self.starts[np.searchsorted(to_start, u, side="right")]
            state = np.where(at_end[state], entered, state + 1)
            row = np.where(state == 0, context, contexts + state - 1)
            base = (v[:, None] >= table[row]).sum(axis=1)
            context = (context * 4 + base) % contexts
            rows[:, self.order + t], states[:, t + 1] = base, state
        return rows, states

    def log_prob(self, rows: Integer[np.ndarray, "n L"]) -> Float64[np.ndarray, " n"]:
        """Exact log-probability of stationary windows, in nats.

        Args:
            rows: Ids ``0..4``. The probability of a row with N sums over the bases that an N may
                stand for, at ``4 ** k`` times the cost.

        Raises:
            ValueError: If an id is not in ``0..4``.
        """
        _check_ids(rows)
        result = np.empty(len(rows))
        unknown = (rows == MASK_ID).any(axis=1)
        for chosen, size in ((~unknown, 1), (unknown, 4 * len(self.transitions))):
            numbers = np.flatnonzero(chosen)
            step = max(1, _CHUNK_VALUES // (len(self.emissions) * size))
            for first in range(0, len(numbers), step):
                part = numbers[first : first + step]
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
        """Nats of each base given the preceding bases, by the scaled forward algorithm.

        Args:
            rows: Ids ``0..3``.
            first_states: Hidden states of the base at position k - 1 (for k = 0, of the base before
                the window) to condition on too. Positions 0..k-1 then have 0 nats.

        Raises:
            ValueError: If an id is not in ``0..3``.
        """
        _check_ids(rows, MASK_ID - 1)
        k, contexts, bases = self.order, len(self.transitions), rows.astype(np.int64)
        nats = np.zeros(rows.shape)
        context = np.zeros(len(rows), dtype=np.int64)
        before = np.zeros(len(rows))
        for j in range(min(k, rows.shape[1])):
            context = context * 4 + bases[:, j]
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
        by_base = np.ascontiguousarray(self.emissions.T)
        for t in range(k, rows.shape[1]):
            emission = by_base[bases[:, t]]
            emission[:, 0] = self.transitions[context, bases[:, t]]
            alpha = self._move(alpha)
            alpha *= emission
            scale = alpha.sum(axis=1)
            alpha /= scale[:, None]
            nats[:, t] = -np.log(scale)
            context = (context * 4 + bases[:, t]) % contexts
        return nats

    def _move(self, alpha: np.ndarray) -> np.ndarray:
        """Advance distributions of the hidden state, in the last axis, by one step."""
        moved = np.empty_like(alpha)
        moved[..., 1:] = alpha[..., :-1]
        free = alpha[..., self.ends].sum(axis=-1)
        moved[..., self.starts] = free[..., None] * self.start_probs
        return moved

    def _log_marginal(self, rows: np.ndarray) -> np.ndarray:
        """Run the forward algorithm on (context, hidden state) pairs, for rows with N."""
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

    def _solve(self) -> tuple[np.ndarray, np.ndarray]:
        """Solve for ``boundary``, by the chain from one start to the next, and ``stationary``."""
        motifs = list(zip(self.start_probs[1:], self.starts[1:], self.ends[1:], strict=True))
        known = np.eye(len(self.transitions))
        kernel = self._background * append(known, self.transitions)
        for rate, first, last in motifs:
            context = known
            for probs in self.emissions[first : last + 1]:
                context = append(context, probs)
            kernel += rate * context
        boundary = _fixed_point(kernel)
        joint = np.empty((len(self.transitions), len(self.emissions)))
        joint[:, 0] = self._background * append(boundary, self.transitions)
        for rate, first, last in motifs:
            context = rate * boundary
            for state in range(first, last + 1):
                context = append(context, self.emissions[state])
                joint[:, state] = context
        return boundary, joint / self._mean_width


def _check_ids(rows: np.ndarray, most: int = MASK_ID) -> None:
    if rows.size and not 0 <= rows.min() <= rows.max() <= most:
        raise ValueError(
            f"MarkovGenome.rows must hold ids in 0..{most}, got {rows.min()}..{rows.max()}; "
            "encode with genomics.sequence.encode"
        )


@dataclass(frozen=True)
class Entropy:
    """The entropy of ``num_tokens`` bases.

    Attributes:
        nats: Total, in nats.
        standard_error: Standard error of ``nats``; 0 for a closed form.
        num_tokens: Number of bases.
        bias_bound: Upper bound on how far the expectation of ``nats`` exceeds the truth, in nats.
    """

    nats: float
    standard_error: float
    num_tokens: int
    bias_bound: float = 0.0

    @property
    def nats_per_token(self) -> float:
        """Nats per base."""
        return self.nats / self.num_tokens

    @property
    def bits_per_token(self) -> float:
        """Bits per base."""
        return self.nats_per_token / math.log(2)

    @property
    def bits_per_token_error(self) -> float:
        """Standard error of ``bits_per_token``."""
        return self.standard_error / self.num_tokens / math.log(2)


def window_entropy(source: MarkovGenome, length: int, *, num: int = 4096, seed: int = 0) -> Entropy:
    """Entropy of a stationary window, a lower bound on any model's expected nats.

    Without motifs it has the closed form ``H(first k bases) + (length - k) h``. With motifs it is
    the mean of the exact -log p over sampled windows, with the control variates of ``_controls``.

    Args:
        source: Source of the windows.
        length: Bases of a window.
        num: Windows to sample, at least 16.
        seed: Random seed.

    Raises:
        ValueError: If an argument is too small.
    """
    _check("window_entropy", length, 1, num)
    k = source.order
    if not source.motifs:
        prefix = source.boundary.reshape(4 ** min(k, length), -1).sum(axis=1)
        nats = _entropy(prefix) + max(length - k, 0) * _background_rate(source)
        return Entropy(float(nats), 0.0, length)
    nats, controls = [], []
    for rows, states in _windows(source, length, num, seed):
        nats.append(-source.log_prob(rows[:, k:]))
        controls.append(_controls(source, rows, states).sum(axis=1))
    mean, error = _regressed(np.concatenate(nats), np.concatenate(controls))
    return Entropy(mean, error, length)


def entropy_rate(
    source: MarkovGenome, *, length: int = 512, num: int = 1024, seed: int = 0
) -> Entropy:
    """Entropy per base of an infinite sequence, with ``num_tokens = 1``.

    With motifs this is the mean nats of the second half of windows given the first half. It exceeds
    the rate by at most ``bias_bound``: the reduction from knowing the first hidden state.

    Args:
        source: The source.
        length: Bases of a window, at least 2.
        num: Windows to sample, at least 16.
        seed: Random seed.

    Raises:
        ValueError: If an argument is too small.
    """
    _check("entropy_rate", length, 2, num)
    k, half = source.order, length // 2
    if not source.motifs:
        return Entropy(_background_rate(source), 0.0, 1)
    nats, gaps, controls = [], [], []
    for rows, states in _windows(source, length, num, seed):
        upper = source.conditional_nats(rows)[:, k + half :]
        lower = source.conditional_nats(rows, states[:, 0])[:, k + half :]
        nats.append(upper.mean(axis=1))
        gaps.append((upper - lower).mean(axis=1))
        controls.append(_controls(source, rows, states)[:, half:].mean(axis=1))
    mean, error = _regressed(np.concatenate(nats), np.concatenate(controls))
    return Entropy(mean, error, 1, max(0.0, float(np.concatenate(gaps).mean())))


def _windows(
    source: MarkovGenome, length: int, num: int, seed: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield blocks of windows, each with its context of k bases, and their hidden states."""
    for first in range(0, num, _BLOCK_ROWS):
        yield source.sample_paths(min(_BLOCK_ROWS, num - first), length, (seed, first))


def _controls(source: MarkovGenome, rows: np.ndarray, states: np.ndarray) -> np.ndarray:
    """Control variates of mean zero for each position after the context.

    These are the nats of the base given its hidden state and context, in the background and in
    motifs, the nats of the hidden state given the previous one, and whether the state is
    background, each minus its stationary mean.
    """
    k, contexts = source.order, len(source.transitions)
    steps = states.shape[1] - 1
    context = np.zeros((len(rows), steps), dtype=np.int64)
    for j in range(k):
        context = context * 4 + rows[:, j : j + steps]
    base, state = rows[:, k:].astype(np.int64), states[:, 1:]
    background = state == 0
    by_row = np.concatenate([source.transitions, source.emissions[1:]])
    row = np.where(background, context, contexts + state - 1)
    emitted = -np.log(by_row[row, base])
    start_nats = np.zeros(len(source.emissions))
    start_nats[source.starts] = -np.log(source.start_probs)
    probs = source.stationary.sum(axis=0)
    free = probs[source.ends].sum()
    values = (background * emitted, ~background * emitted, start_nats[state], background)
    means = (
        probs[0] * _background_rate(source),
        sum(p * _entropy(e) for p, e in zip(probs[1:], source.emissions[1:], strict=True)),
        free * _entropy(source.start_probs),
        probs[0],
    )
    return np.stack([v - m for v, m in zip(values, means, strict=True)], axis=-1)


def _regressed(
    values: Float64[np.ndarray, " n"], controls: Float64[np.ndarray, "n c"]
) -> tuple[float, float]:
    """Return the mean of ``values`` and its standard error by regression on the controls."""
    design = np.column_stack([np.ones(len(values)), controls])
    coefficients, _, rank, _ = np.linalg.lstsq(design, values)
    residual = values - design @ coefficients
    inverse = np.linalg.pinv(design.T @ design)
    variance = float(residual @ residual) / (len(values) - int(rank))
    return float(coefficients[0]), math.sqrt(variance * float(inverse[0, 0]))


def _background_rate(source: MarkovGenome) -> float:
    return float(source.boundary @ [_entropy(row) for row in source.transitions])


def _entropy(probs: np.ndarray) -> float:
    positive = probs[probs > 0]
    return float(-(positive * np.log(positive)).sum())


def _check(owner: str, length: int, least: int, num: int) -> None:
    if length < least or num < 16:
        raise ValueError(
            f"{owner} needs length of at least {least} and num of at least 16, got {length} and "
            f"{num}; use for example length=512, num=1024"
        )

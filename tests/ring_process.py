"""A process that seqdiff does not include, as a user would add it: a random walk on a ring."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from seqdiff.data.dataset import SequenceDataset, Split
from seqdiff.parameterization import Parameterization, log_softmax
from seqdiff.process import DiscreteProcess, Process
from tests.integration.toy_domain import RingSet, ToyData

_TERMS = 80


@dataclass(frozen=True)
class Ring(DiscreteProcess):
    """A token moves to either neighbour on a ring of K symbols, at a rate of ``speed`` / 2 each.

    Attributes:
        vocab_size: K.
        speed: Mean number of moves of a token between t = 0 and t = 1; at most 10.
    """

    vocab_size: int
    speed: float = 6.0
    name = "ring"

    @property
    def states(self) -> int:
        return self.vocab_size

    def sigma(self, t: Tensor) -> Tensor:
        return self.speed * t.double()

    def log_marginal(self, log_probs: Tensor, t: Tensor) -> Tensor:
        distribution = log_probs.double().exp()
        return (distribution[..., None, :] @ self.transition(self.sigma(t))).squeeze(-2).log()

    def log_step(self, z: Tensor, s: Tensor, t: Tensor) -> Tensor:
        move = self.transition(self.sigma(t) - self.sigma(s))
        return move.gather(-1, z[..., None, None].expand(*move.shape[:-1], 1)).squeeze(-1).log()

    def rate_into(self, z: Tensor, t: Tensor) -> Tensor:
        return self.speed * self.moves.T[z]

    def log_prior(self, device: torch.device | str = "cpu") -> Tensor:
        return torch.full((self.vocab_size,), 1 / self.vocab_size, dtype=torch.float64).log()

    @property
    def moves(self) -> Tensor:
        """Probability of each symbol after one move, by previous symbol."""
        one = torch.eye(self.vocab_size, dtype=torch.float64)
        return (one.roll(1, dims=1) + one.roll(-1, dims=1)) / 2

    def transition(self, sigma: Tensor) -> Tensor:
        """exp(sigma (moves - 1)), a Poisson mixture of numbers of moves: ``[*n, K, K]``.

        All of its terms are positive, so that small probabilities stay accurate.
        """
        powers, term = [], torch.eye(self.vocab_size, dtype=torch.float64)
        for number in range(_TERMS):
            powers.append(term)
            term = term @ self.moves / (number + 1)
        weights = sigma[..., None] ** torch.arange(_TERMS)
        mixture = torch.einsum("...n,nxy->...xy", weights, torch.stack(powers))
        return (-sigma).exp()[..., None, None] * mixture


@dataclass(frozen=True)
class Offsets(Parameterization):
    """Output d is the logit of the clean token at distance d from the noisy one."""

    name = "offsets"
    kind = "loo"
    processes = (Ring,)

    def read(self, outputs: Tensor, z: Tensor, t: Tensor | None, process: Process) -> Tensor:
        symbols = torch.arange(process.vocab_size, device=z.device)
        return log_softmax(outputs).gather(-1, (symbols - z[..., None]) % process.vocab_size)


class FirstSymbols(RingSet):
    """Rows of the first symbol or of the second, which are easy to learn."""

    def rows(
        self, indices: Int64[np.ndarray, " B"]
    ) -> tuple[Int64[np.ndarray, "B L"], Bool[np.ndarray, "B L"]]:
        tokens = np.repeat(indices[:, None] % 2, self.length, axis=1)
        return tokens, np.ones_like(tokens, dtype=bool)


class EasyData(ToyData):
    def dataset(self, split: Split) -> SequenceDataset:
        return FirstSymbols(32, self.length, 0)

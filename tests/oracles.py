"""Small models whose distributions are enumerated."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from seqdiff.backbones import Backbone
from seqdiff.denoiser.discrete import Denoiser
from seqdiff.losses import continuous_terms
from seqdiff.process import Absorbing
from seqdiff.schedules import (
    Completed,
    Cosine,
    CosineSquared,
    Geometric,
    Linear,
    LogLinear,
    NoiseSchedule,
    Polynomial,
)
from seqdiff.types import Batch, Inputs

COMPLETE_SCHEDULES: list[NoiseSchedule] = [
    Linear(),
    LogLinear(),
    Cosine(),
    CosineSquared(),
    Polynomial(2.0),
    Polynomial(3.0),
    Completed(Geometric(1e-2, 5.0)),
    Completed(LogLinear(1e-3)),
    Completed(Cosine(1e-2)),
]


def all_sequences(num_symbols: int, length: int) -> Tensor:
    """Every row over ``num_symbols`` symbols, in the order of their base-K codes."""
    return torch.tensor(list(itertools.product(range(num_symbols), repeat=length)))


def all_masks(length: int) -> Tensor:
    return all_sequences(2, length).bool()


@dataclass(frozen=True)
class Joint:
    """A random joint table p over K^L."""

    vocab_size: int
    length: int
    probs: Tensor  # [K^L] float64

    @staticmethod
    def random(vocab_size: int, length: int, seed: int) -> Joint:
        generator = torch.Generator().manual_seed(seed)
        weights = torch.rand(vocab_size**length, dtype=torch.float64, generator=generator)
        weights = weights**3 + 1e-3
        return Joint(vocab_size, length, weights / weights.sum())

    @property
    def sequences(self) -> Tensor:
        return all_sequences(self.vocab_size, self.length)


class TableBackbone(Backbone):
    """A backbone without layers: its logits are one function of the inputs."""

    width, num_layers = 1, 0

    def __init__(self, num_logits: int) -> None:
        super().__init__()
        self.num_logits = num_logits

    @abstractmethod
    def logits(self, inputs: Inputs) -> Tensor:
        """Score every position."""

    def embed(self, inputs: Inputs) -> Tensor:
        return inputs.tokens[..., None].double()

    def body(self, h: Tensor, inputs: Inputs, layer: int | None = None) -> Tensor:
        return h

    def head(self, h: Tensor, inputs: Inputs, where: Tensor | None = None) -> Tensor:
        logits = self.logits(inputs)
        return logits if where is None else logits[where]


class OracleBackbone(TableBackbone):
    """Emits the exact conditionals of a joint table."""

    def __init__(self, joint: Joint) -> None:
        super().__init__(joint.vocab_size)
        self.joint = joint

    def logits(self, inputs: Inputs) -> Tensor:
        tokens, sequences = inputs.tokens, self.joint.sequences
        visible = tokens != self.joint.vocab_size
        agrees = ((tokens[:, None] == sequences[None]) | ~visible[:, None]).all(dim=-1)
        weights = agrees * self.joint.probs
        one_hot = nn.functional.one_hot(sequences, self.joint.vocab_size).double()
        return torch.einsum("bs,slk->blk", weights, one_hot).log()


class LookupBackbone(TableBackbone):
    """Arbitrary conditionals: one random table of logits for every corrupted sequence."""

    def __init__(self, vocab_size: int, length: int, seed: int) -> None:
        super().__init__(vocab_size)
        generator = torch.Generator().manual_seed(seed)
        shape = ((vocab_size + 1) ** length, length, vocab_size)
        self.table = torch.randn(shape, dtype=torch.float64, generator=generator)
        self.base = vocab_size + 1
        self.rows_seen: list[int] = []

    def logits(self, inputs: Inputs) -> Tensor:
        tokens = inputs.tokens
        powers = self.base ** torch.arange(tokens.shape[1] - 1, -1, -1)
        self.rows_seen.append(len(tokens))
        return self.table[(tokens * powers).sum(dim=-1)]


class UniformBackbone(TableBackbone):
    """Predicts a uniform distribution."""

    def logits(self, inputs: Inputs) -> Tensor:
        return torch.zeros(*inputs.tokens.shape, self.num_logits, dtype=torch.float64)


def mask_distribution(masks: Tensor, alpha: float) -> Tensor:
    """P(mask pattern) when every position is masked with probability 1 - alpha."""
    hidden = masks.sum(dim=-1).double()
    return (1 - alpha) ** hidden * alpha ** (masks.shape[-1] - hidden)


def unit_quadrature(nodes: int = 32, panels: int = 4) -> tuple[Tensor, Tensor]:
    """Composite Gauss-Legendre nodes and weights on (0, 1)."""
    x, w = np.polynomial.legendre.leggauss(nodes)
    edges = np.linspace(0, 1, panels + 1)
    t = ((edges[:-1, None] + edges[1:, None]) / 2 + (edges[1] / 2) * x[None]).ravel()
    return torch.from_numpy(t), torch.from_numpy(np.tile(w * edges[1] / 2, panels))


def masked_model(backbone: Backbone, schedule: NoiseSchedule | None = None) -> Denoiser:
    """A masked diffusion model."""
    return Denoiser(backbone, Absorbing(backbone.num_logits, schedule or Linear()))


LossTerm = Callable[[Denoiser, Batch, Tensor, Tensor], Tensor]


def density(denoiser: Denoiser, batch: Batch, x_t: Tensor, t: Tensor) -> Tensor:
    """The loss of masked diffusion with times of equal weight."""
    return continuous_terms(denoiser, batch, x_t, t, torch.ones_like(t))


def copies(x0: Tensor, count: int) -> Batch:
    """Copies of a row with different indices; all tokens count."""
    rows = x0.expand(count, -1)
    return Batch(rows, torch.ones_like(rows, dtype=torch.bool), torch.arange(count))


def enumerated_nelbo(denoiser: Denoiser, x0: Tensor, term: LossTerm = density) -> float:
    """E over t and every mask pattern of ``term``, summed over the row, without sampling."""
    process = denoiser.process
    assert isinstance(process, Absorbing)
    masks = all_masks(len(x0))
    nodes, weights = unit_quadrature()
    hidden = masks.repeat(len(nodes), 1)
    batch = copies(x0, len(hidden))
    x_t = batch.tokens.masked_fill(hidden, process.mask_id)
    rows = term(denoiser, batch, x_t, nodes.repeat_interleave(len(masks))).sum(dim=-1)
    chances = torch.stack([mask_distribution(masks, float(process.alpha(t))) for t in nodes])
    return float(weights @ (chances * rows.view_as(chances)).sum(dim=-1))

"""Joint distributions small enough to enumerate, with their exact predictions under noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from seqdiff.backbones.base import Backbone
from seqdiff.parameterization import evidence_added
from seqdiff.process import DiscreteProcess
from seqdiff.types import Inputs
from tests.oracles import all_sequences


@dataclass(frozen=True)
class World:
    """A joint table p over K^L and a process."""

    process: DiscreteProcess
    probs: Tensor  # [K^L] float64
    length: int

    @property
    def size(self) -> int:
        return self.process.vocab_size

    @property
    def clean(self) -> Tensor:
        return all_sequences(self.size, self.length)

    @property
    def noisy(self) -> Tensor:
        return all_sequences(self.process.states, self.length)

    def log_q(self, t: Tensor) -> Tensor:
        """log q_t(z | x) of every clean row x and noisy row z, ``[K^L, states^L]``, at one time."""
        clean, noisy = self.clean, self.noisy
        table = self.process.log_marginal(
            self.process.one_hot(torch.arange(self.size)), t.expand(self.size)
        )
        return table[clean[:, None, :], noisy[None, :, :]].sum(dim=-1)

    def log_loo(self, z: Tensor, t: Tensor) -> Tensor:
        """Exact p(x^l | z^-l), ``[B, L, K]``, at one time per row."""
        symbols, count = torch.arange(self.size), len(z)
        one_hot = self.process.one_hot(symbols).expand(count, -1, -1)
        table = self.process.log_marginal(one_hot, t.double()[:, None].expand(count, self.size))
        table = table.gather(-1, z[:, None, :].expand(-1, self.size, -1))  # [B, K, L]
        positions = torch.arange(self.length)
        each = table[:, self.clean, positions]  # [B, K^L, L]
        own = torch.eye(self.length, dtype=torch.bool)
        others = torch.where(own, 0.0, each[..., None, :]).sum(dim=-1)  # [B, K^L, L]
        weights = self.probs.log()[:, None] + others
        holds = torch.nn.functional.one_hot(self.clean, self.size).bool()
        by_symbol = torch.where(holds, weights[..., None], -torch.inf).logsumexp(dim=1)
        return by_symbol.log_softmax(dim=-1)

    def log_full(self, z: Tensor, t: Tensor) -> Tensor:
        """Exact p(x^l | z), ``[B, L, K]``."""
        return evidence_added(self.log_loo(z, t), z, t[:, None].expand(z.shape), self.process)


class TableBackbone(Backbone):
    """Outputs are an arbitrary function of the noisy tokens and the time."""

    time_conditioned = True
    width = 1

    def __init__(self, outputs: Callable[[Tensor, Tensor], Tensor], num_logits: int) -> None:
        super().__init__()
        self.outputs = outputs
        self.num_logits = num_logits
        self.calls = 0

    @property
    def num_layers(self) -> int:
        return 0

    def embed(self, inputs: Inputs) -> Tensor:
        raise AssertionError("a table has no layers")

    def body(self, h: Tensor, inputs: Inputs, layer: int | None = None) -> Tensor:
        raise AssertionError("a table has no layers")

    def forward(self, inputs: Inputs, where: Tensor | None = None) -> Tensor:
        self.calls += 1
        assert inputs.t is not None
        outputs = self.outputs(inputs.tokens, inputs.t)
        return outputs if where is None else outputs[where]


def golden_probs() -> Tensor:
    """p(0,0) .5, p(0,1) .1, p(1,0) .1, p(1,1) .3."""
    return torch.tensor([0.5, 0.1, 0.1, 0.3], dtype=torch.float64)


def random_probs(count: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    weights = torch.rand(count, dtype=torch.float64, generator=generator) ** 3 + 1e-3
    return weights / weights.sum()


def ends_quadrature(nodes: int = 64) -> tuple[Tensor, Tensor]:
    """Nodes and weights on (0, 1) by the double exponential rule, for singularities at both ends.

    Source: Takahasi and Mori 1974.
    """
    u = torch.linspace(-3.1, 3.1, nodes, dtype=torch.float64)
    place = torch.sigmoid(torch.pi * torch.sinh(u))
    slope = torch.pi * torch.cosh(u) * place * torch.sigmoid(-torch.pi * torch.sinh(u))
    return place, slope * (u[1] - u[0])


Term = Callable[[Tensor, Tensor, Tensor], Tensor]


def bound_integral(world: World, term: Term, x: Tensor, nodes: int = 64) -> float:
    """The integral over time of E_q sum_l term(x0, z, t), for one clean row ``[L]``.

    Args:
        world: The process and its rows.
        term: Function of clean ids, noisy ids and times at single positions ``[n, L]``, in nats per
            unit of time.
        x: The row.
    """
    place, weight = ends_quadrature(nodes)
    t, speed = world.process.time_at(place)
    number = int((world.clean == x).all(dim=1).nonzero())
    chances = torch.stack([world.log_q(time)[number].exp() for time in t])  # [nodes, states^L]
    z = world.noisy.repeat(nodes, 1)
    times = t.repeat_interleave(len(world.noisy))[:, None].expand(z.shape)
    total = (weight * speed)[:, None] * chances
    possible = total.flatten() > 0
    terms = term(x.expand(z.shape)[possible], z[possible], times[possible]).sum(dim=-1)
    return float(total.flatten()[possible] @ terms)

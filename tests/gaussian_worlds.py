"""Gaussian diffusion with a known exact posterior, and integrals over its noise."""

from __future__ import annotations

import itertools
import math

import numpy as np
import torch
from torch import Tensor

from seqdiff.backbones import Backbone
from seqdiff.denoiser.gaussian import GaussianDenoiser, NoisyEmbeddings
from seqdiff.losses import gaussian_prior, gaussian_reconstruction, gaussian_terms
from seqdiff.process import Gaussian
from seqdiff.types import Batch, Inputs


class ExactNetwork(Backbone):
    """Outputs the log leave-one-out probabilities p(x_i | z of the others) of a joint distribution.

    It recovers z from the residual stream, in the form that the denoiser of ``exact_world`` writes.
    With one position the outputs are the logarithms of p. It has no learned parameters.
    """

    def __init__(self, joint: Tensor, vectors: Tensor, process: Gaussian) -> None:
        super().__init__()
        size, dim = vectors.shape
        self.width, self.num_logits = dim, size
        self.time_conditioned = True
        self.joint, self.vectors, self.process = joint, vectors, process

    @property
    def num_layers(self) -> int:
        return 0

    def embed(self, inputs: Inputs) -> Tensor:
        return torch.zeros((*inputs.tokens.shape, self.width), dtype=torch.float64)

    def body(self, h: Tensor, inputs: Inputs, layer: int | None = None) -> Tensor:
        return h

    def head(self, h: Tensor, inputs: Inputs, where: Tensor | None = None) -> Tensor:
        gamma = inputs.sigma.expm1().log()
        signal2, noise2 = torch.sigmoid(-gamma), torch.sigmoid(gamma)
        size = (signal2 / self.vectors.shape[1] + noise2).sqrt()[:, None, None]
        weight = (signal2.sqrt() / noise2)[:, None, None]
        evidence = weight * (h * size) @ self.vectors.T
        length, symbols = h.shape[1], len(self.vectors)
        out = torch.empty((*h.shape[:2], symbols), dtype=torch.float64)
        for place in range(length):
            total = self.joint.log()[None]
            for other in range(length):
                if other != place:
                    shape = [len(h)] + [1] * length
                    shape[1 + other] = symbols
                    total = total + evidence[:, other].view(shape)
            rest = [1 + other for other in range(length) if other != place]
            out[:, place] = total.logsumexp(dim=rest) if rest else total
        return out if where is None else out[where]


def exact_world(
    joint: Tensor,
    vectors: Tensor,
    ends: tuple[float, float] = (-3.0, 6.0),
    *,
    self_conditioning: bool = False,
) -> GaussianDenoiser:
    """A denoiser whose predictions are the exact posterior of ``joint``, in float64."""
    size, dim = vectors.shape
    process = Gaussian(size, dim, *ends, self_conditioning=self_conditioning)
    denoiser = GaussianDenoiser(ExactNetwork(joint, vectors, process), process).double().eval()
    with torch.no_grad():
        denoiser.table.weight.copy_(vectors)
        denoiser.enter.weight.copy_(torch.eye(dim))
        denoiser.enter.bias.zero_()
        if denoiser.recall is not None:
            denoiser.recall.weight.zero_()
    return denoiser


def coin_world(p: tuple[float, float] = (0.8, 0.2), **options: object) -> GaussianDenoiser:
    """K = 2, embeddings 1 and -1, one position."""
    vectors = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    return exact_world(torch.tensor(p, dtype=torch.float64), vectors, **options)


def planar_world(p: tuple[float, ...], **options: object) -> GaussianDenoiser:
    """Symbols at irregular angles of the unit circle, one position."""
    angles = torch.linspace(0, 1, len(p), dtype=torch.float64) ** 1.5 * 4
    vectors = torch.stack((angles.cos(), angles.sin()), dim=-1)
    return exact_world(torch.tensor(p, dtype=torch.float64), vectors, **options)


def normal_grid(points: int, dims: int, width: float = 9.0) -> tuple[Tensor, Tensor]:
    """Nodes ``[n, dims]`` and weights of the trapezoidal rule for the standard normal."""
    x = torch.linspace(-width, width, points, dtype=torch.float64)
    weight = (-(x**2) / 2).exp() / math.sqrt(2 * math.pi) * (x[1] - x[0])
    nodes = torch.cartesian_prod(*[x] * dims).view(-1, dims)
    return nodes, torch.cartesian_prod(*[weight] * dims).view(-1, dims).prod(dim=-1)


def rows_of(x: tuple[int, ...], count: int) -> Batch:
    """Copies of a row."""
    tokens = torch.tensor([x]).expand(count, -1)
    return Batch(tokens, torch.ones_like(tokens, dtype=torch.bool), torch.arange(count))


@torch.no_grad()
def bound(
    denoiser: GaussianDenoiser, x: tuple[int, ...], *, points: int, times: int
) -> tuple[float, float, float]:
    """Reconstruction, integral and prior of a row in nats, by quadrature over noise and time."""
    dim = denoiser.process.dim
    nodes, weights = normal_grid(points, len(x) * dim)
    noise, batch = nodes.view(-1, len(x), dim), rows_of(x, len(nodes))
    one = torch.ones(len(nodes), dtype=torch.float64)
    at_zero = denoiser.corrupt(batch, denoiser.schedule(one - 1).gamma, noise)
    decoded = gaussian_reconstruction(denoiser, batch, at_zero, one).sum(dim=-1)
    integral = 0.0
    for t, share in zip(*np.polynomial.legendre.leggauss(times), strict=True):
        level = denoiser.schedule(one * (t + 1) / 2)
        inputs = denoiser.corrupt(batch, level.gamma, noise)
        terms = gaussian_terms(denoiser, batch, inputs, level, one).sum(dim=-1)
        integral += share / 2 * float(weights @ terms)
    prior = float(gaussian_prior(denoiser, rows_of(x, 1)).sum())
    return float(weights @ decoded), integral, prior


def final_kls(denoiser: GaussianDenoiser, joint: Tensor, points: int) -> tuple[Tensor, float]:
    """KL(q_1(. | x) || N) - KL(q_1(. | x) || p_1) of every row x, and KL(p_1 || N).

    Computed from the definitions, on a grid of z.
    """
    gamma = denoiser.schedule(torch.ones((), dtype=torch.float64)).gamma.detach()
    signal, spread = torch.sigmoid(-gamma).sqrt(), torch.sigmoid(gamma).sqrt()
    vectors = denoiser.vectors.detach()
    size, dim = vectors.shape
    length = joint.dim()
    places = list(itertools.product(range(size), repeat=length))
    means = torch.stack([signal * vectors[list(x)].flatten() for x in places])
    probs = torch.stack([joint[x] for x in places])
    nodes, weights = normal_grid(points, length * dim)

    def log_q(z: Tensor) -> Tensor:
        squared = ((z[:, None] - means) / spread).square().sum(dim=-1)
        return -squared / 2 - length * dim * (spread.log() + math.log(2 * math.pi) / 2)

    def log_normal(z: Tensor) -> Tensor:
        return -z.square().sum(dim=-1) / 2 - length * dim * math.log(2 * math.pi) / 2

    differences, total = [], 0.0
    for mean, p in zip(means, probs, strict=True):
        z = mean + spread * nodes
        log_p = (log_q(z) + probs.log()).logsumexp(dim=-1)
        differences.append(weights @ (log_p - log_normal(z)))
        total += float(p * differences[-1])
    return torch.stack(differences).view(joint.shape), total


def decoder_gap(denoiser: GaussianDenoiser, joint: Tensor, points: int) -> float:
    """Cost of decoding the positions of z_0 separately: mean of sum_i H(x_i) - H(x) given z_0.

    The bound of an exact network exceeds H + KL(p_1 || N) by it. With one position it is 0.
    """
    gamma = denoiser.schedule(torch.zeros((), dtype=torch.float64)).gamma.detach()
    signal, spread = torch.sigmoid(-gamma).sqrt(), torch.sigmoid(gamma).sqrt()
    vectors = denoiser.vectors.detach()
    places = list(itertools.product(range(len(vectors)), repeat=joint.dim()))
    means = torch.stack([signal * vectors[list(x)].flatten() for x in places])
    probs = torch.stack([joint[x] for x in places])
    nodes, weights = normal_grid(points, means.shape[1])
    gap = 0.0
    for mean, p in zip(means, probs, strict=True):
        z = mean + spread * nodes
        log_q = -((z[:, None] - means) / spread).square().sum(dim=-1) / 2
        distribution = (log_q + probs.log()).softmax(dim=-1).view(-1, *joint.shape)
        each = -torch.special.entr(distribution).flatten(1).sum(dim=-1)
        for place in range(joint.dim()):
            rest = [1 + other for other in range(joint.dim()) if other != place]
            each = each + torch.special.entr(distribution.sum(dim=rest)).sum(dim=-1)
        gap += float(p * (weights @ each))
    return gap


def noisy_row(
    denoiser: GaussianDenoiser, z: Tensor, gamma: float, tokens: Tensor | None = None
) -> NoisyEmbeddings:
    """One row of noisy embeddings."""
    unknown = denoiser.process.unknown_id
    ids = torch.full((1, len(z)), unknown) if tokens is None else tokens
    return NoisyEmbeddings(
        ids, z=z[None], noisy=ids == unknown, gamma=torch.tensor([gamma], dtype=torch.float64)
    )

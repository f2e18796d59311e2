"""The denoiser of Gaussian diffusion on embeddings, its learned schedule and embedding."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor, nn
from typing_extensions import override

from seqdiff.backbones import Backbone
from seqdiff.denoiser.discrete import Denoiser
from seqdiff.parameterization import Parameterization
from seqdiff.process import Gaussian, log_signal, scales
from seqdiff.types import Batch, Inputs

_UNITS = 64
_SLOPE = 16.0
# Learning rate of the schedule and the embedding over that of the network: 1e-2 / 1.4e-3.
_LR_SCALE = 1e-2 / 1.4e-3


@dataclass(kw_only=True)
class NoisyEmbeddings(Inputs):
    """The inputs of ``GaussianDenoiser``: given tokens, and noisy embeddings of the others.

    Attributes:
        tokens: Ids of given tokens; K at noisy and at unknown positions.
        z: Noisy embeddings; 0 at positions without one.
        noisy: True at positions with a noisy embedding.
        gamma: Negative log signal-to-noise ratio of each row.
        conditioned: Rows for which the network reads its own first prediction, if the process is
            self-conditioned; ``None`` means all rows.
    """

    z: Float[Tensor, "B L d"]
    noisy: Bool[Tensor, "B L"]
    gamma: Float64[Tensor, " B"]
    conditioned: Bool[Tensor, " B"] | None = None


class Level(NamedTuple):
    """A noise level.

    Attributes:
        gamma: Negative log signal-to-noise ratio g(t).
        dgamma: Its derivative by t.
    """

    gamma: Float64[Tensor, "*n"]
    dgamma: Float64[Tensor, "*n"]


class LearnedSchedule(nn.Module):
    """The schedule g(t) = g(0) + (g(1) - g(0)) h(t), with learned ends and learned h from 0 to 1.

    h is the scaled sum of a straight line and tanh units with positive weights, initialised close
    to the line. All computations are in float64. Source: Kingma et al. 2021, arXiv:2107.00630,
    appendix H; Gulrajani and Hashimoto 2023, arXiv:2305.18619, with 1,024 units.

    Args:
        gamma_0: Initial g(0).
        gamma_1: Initial g(1).
    """

    def __init__(self, gamma_0: float, gamma_1: float) -> None:
        super().__init__()
        self.ends = nn.Parameter(torch.tensor([gamma_0, gamma_1]))
        self.line = nn.Parameter(torch.zeros(1))
        self.log_weights = nn.Parameter(torch.full((_UNITS,), -math.log(_UNITS)))
        self.log_slopes = nn.Parameter(torch.full((_UNITS,), math.log(_SLOPE)))
        self.centres = nn.Parameter((torch.arange(_UNITS) + 0.5) / _UNITS)

    def forward(self, t: Float[Tensor, "*n"]) -> Level:
        """Return the noise level at times in [0, 1]."""
        return self.between_ends(*self.shape(t))

    def shape(self, t: Float[Tensor, "*n"]) -> tuple[Float64[Tensor, "*n"], Float64[Tensor, "*n"]]:
        """Return h and its derivative."""
        zero, one = t.new_tensor([0.0, 1.0], dtype=torch.float64)
        (start, _), (end, _) = self._raw(zero), self._raw(one)
        value, slope = self._raw(t.double())
        return (value - start) / (end - start), slope / (end - start)

    def between_ends(self, shape: Float64[Tensor, "*n"], slope: Float64[Tensor, "*n"]) -> Level:
        """Return g and its derivative, given h and its derivative."""
        first, last = self.ends.double()
        return Level(first + (last - first) * shape, (last - first) * slope)

    def _raw(self, t: Tensor) -> tuple[Tensor, Tensor]:
        line, weights = self.line.double().exp().squeeze(), self.log_weights.double().exp()
        slopes, centres = self.log_slopes.double().exp(), self.centres.double()
        bent = torch.tanh(slopes * (t[..., None] - centres))
        value = line * t + (weights * bent).sum(dim=-1)
        return value, line + (weights * slopes * (1 - bent**2)).sum(dim=-1)


class GaussianDenoiser(Denoiser):
    """A network that predicts tokens from noisy embeddings of them.

    The embedding (with rows of norm 1), the noise schedule and the input maps are learned. The
    input at a noisy position is the network's vector of an unknown token plus a linear map of z,
    scaled so that the coordinates of z have mean square 1. The input at a given token is the same
    without noise, plus a learned vector; at an unknown position there is no z. At a noisy position,
    the evidence of its own embedding is added to the logits, (A / S^2) z . E_v for symbol v.
    Therefore a network with outputs of 0 gives the exact posterior of a single token.

    Source: Gulrajani and Hashimoto 2023, arXiv:2305.18619. Unlike there, the evidence is not phased
    in, there is no muP, and the network is the run's backbone. As published, the learning rate of
    the embedding and the schedule is 7.1 times that of the other weights.

    Args:
        backbone: A time-conditioned network that reads one strand and embeds K + 1 ids.
        process: The process.
        parameterization: ``None`` means ``Categorical``.

    Attributes:
        table: The embedding before its rows are normalised.
        schedule: The schedule g.

    Raises:
        ValueError: If the parts do not fit together.
    """

    process: Gaussian
    reads_embeddings: ClassVar[bool] = True

    def __init__(
        self,
        backbone: Backbone,
        process: Gaussian,
        parameterization: Parameterization | None = None,
    ) -> None:
        super().__init__(backbone, process, parameterization)
        if backbone.strands != 1:
            raise ValueError(
                "GaussianDenoiser.backbone must read one strand, since a noisy embedding has no "
                f"complement, got {backbone.strands} from {type(backbone).__name__}; set "
                "variant=ph"
            )
        self.table = nn.Embedding(process.vocab_size, process.dim)
        nn.init.normal_(self.table.weight, std=process.dim**-0.5)
        self.schedule = LearnedSchedule(process.gamma_0, process.gamma_1)
        for parameter in (self.table.weight, *self.schedule.parameters()):
            parameter._lr_scale = _LR_SCALE  # pyright: ignore[reportAttributeAccessIssue]
        self.enter = nn.Linear(process.dim, backbone.width)
        self.given = nn.Parameter(torch.zeros(backbone.width))
        self.recall = None
        if process.self_conditioning:
            self.recall = nn.Linear(process.dim, backbone.width, bias=False)
        for layer in (self.enter, self.recall):  # as large as the initial embeddings of networks
            if layer is not None:
                nn.init.normal_(layer.weight, std=0.02)
        nn.init.zeros_(self.enter.bias)

    @property
    def vectors(self) -> Float64[Tensor, "K d"]:
        """The embedding of each symbol."""
        return F.normalize(self.table.weight.double(), dim=-1)

    def embed(self, tokens: Int[Tensor, "*n"]) -> Float64[Tensor, "*n d"]:
        """Embed symbols; 0 for unknown ones."""
        known = tokens < self.vocab_size
        return self.vectors[tokens.where(known, 0)] * known[..., None]

    def mean(self, log_probs: Float[Tensor, "*n K"]) -> Float64[Tensor, "*n d"]:
        """Return the mean embedding under a distribution of the token."""
        return (log_probs.exp() @ self.vectors.to(log_probs.dtype)).double()

    def corrupt(
        self,
        batch: Batch,
        gamma: Float64[Tensor, " B"],
        noise: Float64[Tensor, "B L d"],
        conditioned: Bool[Tensor, " B"] | None = None,
    ) -> NoisyEmbeddings:
        """Add noise to the tokens that count; the other tokens are given or unknown.

        Args:
            batch: Clean tokens.
            gamma: Noise level of each row.
            noise: Independent standard normals.
            conditioned: See ``NoisyEmbeddings``.
        """
        noisy = batch.loss_mask & (batch.tokens != self.process.unknown_id)
        kept, spread = (scale[:, None, None] for scale in scales(gamma))
        z = (kept * self.embed(batch.tokens) + spread * noise) * noisy[..., None]
        return NoisyEmbeddings(
            batch.tokens.masked_fill(noisy, self.process.unknown_id),
            padding=batch.padding,
            label=batch.label,
            signal=batch.signal,
            z=z,
            noisy=noisy,
            gamma=gamma,
            conditioned=conditioned,
        )

    @property
    @override
    def evaluations_per_call(self) -> int:
        return 2 if self.process.self_conditioning else 1

    @override
    def log_probs(
        self, inputs: Inputs, where: Bool[Tensor, "B L"] | None = None
    ) -> Float[Tensor, "*positions K"]:
        return self(inputs, where)

    def _outputs(self, inputs: Inputs, where: Tensor | None, x0: Tensor | None = None) -> Tensor:
        """Evaluate the network and add the evidence of the positions' own embeddings."""
        del x0
        if not isinstance(inputs, NoisyEmbeddings):
            raise ValueError(
                "GaussianDenoiser.inputs must be NoisyEmbeddings, got tokens alone; make them with "
                "GaussianDenoiser.corrupt"
            )
        if self.recall is None:
            return self._logits(inputs, where, self._read_in(inputs))
        h = self._read_in(inputs)
        return self._logits(inputs, where, h + self._recalled(inputs, h))

    def _read_in(self, inputs: NoisyEmbeddings) -> Tensor:
        """Compute what is added to the network's vectors of tokens, ``[B, L, width]``."""
        signal, noise = scales(inputs.gamma)
        dim, given = self.process.dim, inputs.tokens < self.vocab_size
        size = (signal**2 / dim + noise**2).sqrt()[:, None, None]
        vectors = inputs.z / size + self.embed(inputs.tokens) * math.sqrt(dim)
        entered = self.enter(vectors.to(self.enter.weight.dtype))
        shown = inputs.noisy | given
        return entered * shown[..., None] + self.given * given[..., None]

    def _recalled(self, inputs: NoisyEmbeddings, h: Tensor) -> Tensor:
        """Embed the network's own first prediction, without a gradient through it."""
        assert self.recall is not None
        last = torch.zeros_like(inputs.z)
        rows = slice(None) if inputs.conditioned is None else inputs.conditioned
        part = inputs.take(rows)
        assert isinstance(part, NoisyEmbeddings)
        if len(part.tokens):
            with torch.no_grad():
                found = self._read(self._logits(part, part.noisy, h[rows]), part, part.noisy)
                shown = torch.zeros_like(part.z).masked_scatter(
                    part.noisy[..., None], self.mean(found) * math.sqrt(self.process.dim)
                )
            last[rows] = shown
        return self.recall(last.to(self.recall.weight.dtype))

    def _logits(self, inputs: NoisyEmbeddings, where: Tensor | None, h: Tensor) -> Tensor:
        backbone, inputs = self.backbone, self._conditioned(inputs)
        backbone.check_condition(inputs)
        told = replace(inputs, sigma=-log_signal(inputs.gamma))
        body = backbone.body(backbone.embed(told) + h, told)
        outputs = self._checked(backbone.head(body, told, where))
        with torch.autocast(outputs.device.type, enabled=False):
            outputs = outputs.to(torch.promote_types(outputs.dtype, torch.float32))
            return outputs + self._evidence(inputs, where, outputs.dtype)

    def _evidence(
        self, inputs: NoisyEmbeddings, where: Tensor | None, dtype: torch.dtype
    ) -> Tensor:
        """Compute log q(z | v) for each symbol v, up to a constant."""
        signal, noise = scales(inputs.gamma)
        weighted = inputs.z * (signal / noise**2)[:, None, None]
        weighted = weighted if where is None else weighted[where]
        return weighted.to(dtype) @ self.vectors.to(dtype).T

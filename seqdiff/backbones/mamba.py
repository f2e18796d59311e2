"""The mixers of Mamba and Mamba-2, in one direction or in both. No direction flips its input."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from seqdiff.backbones.layers import (
    Norm,
    exempt_from_decay,
    exempt_from_muon,
    require_choice,
    require_positive,
)
from seqdiff.ops.bimamba import Direction, mamba_both_ways, mamba_direction
from seqdiff.ops.causal_conv import causal_conv1d
from seqdiff.ops.linear import linear
from seqdiff.ops.ssd import ssd

Combine = Literal["add", "ew_multiply"]
Mixer = Literal["mamba", "ssd"]
DEFAULT_STATES: dict[Mixer, int] = {"mamba": 16, "ssd": 64}
_USUAL_HEAD = 64


def initialise_projections(
    inputs: Sequence[nn.Linear], outputs: Sequence[nn.Linear], n_layer: int
) -> None:
    """Set the biases to zero, and divide the weights of ``outputs`` by ``sqrt(n_layer)``."""
    for projection in (*inputs, *outputs):
        if projection.bias is not None:
            nn.init.zeros_(projection.bias)
    with torch.no_grad():
        for projection in outputs:
            projection.weight.div_(math.sqrt(n_layer))


@dataclass(frozen=True)
class MambaConfig:
    """Sizes and initialisation of a mixer, under the names of Gu and Dao 2023 and Dao and Gu 2024.

    Attributes:
        d_state: State width of each channel.
        d_conv: Width of the causal depthwise convolution.
        expand: Inner width as a multiple of the model width.
        dt_rank: Rank of the step-size projection of ``mamba``; ``auto`` is a sixteenth of the model
            width, rounded up.
        dt_min: Smallest initial step size.
        dt_max: Largest initial step size.
        dt_init_floor: Lower bound of the initial step sizes.
        conv_bias: Whether the convolution has a bias.
        bias: Whether the input and output projections have a bias.
        mixer: ``mamba``, whose channels decay at ``d_state`` rates each, or ``ssd``, the mixer of
            Mamba-2, whose heads decay at one rate each.
        headdim: Channels of a head of ``ssd``; ``auto`` is the divisor of the inner width that is
            closest to 64.
    """

    d_state: int = 16
    d_conv: int = 4
    expand: int = 2
    dt_rank: int | Literal["auto"] = "auto"
    dt_min: float = 1e-3
    dt_max: float = 1e-1
    dt_init_floor: float = 1e-4
    conv_bias: bool = True
    bias: bool = False
    mixer: Mixer = "mamba"
    headdim: int | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        """Check the sizes.

        Raises:
            ValueError: If a size is below one, not ``0 < dt_min <= dt_max``, or a size of the other
                mixer is set.
        """
        require_choice("Mamba", "mixer", self.mixer, get_args(Mixer))
        require_positive("Mamba", "d_state", self.d_state)
        require_positive("Mamba", "d_conv", self.d_conv)
        require_positive("Mamba", "expand", self.expand)
        if self.dt_rank != "auto":
            require_positive("Mamba", "dt_rank", self.dt_rank)
        if self.headdim != "auto":
            require_positive("Mamba", "headdim", self.headdim)
        other = "dt_rank" if self.mixer == "ssd" else "headdim"
        if getattr(self, other) != "auto":
            raise ValueError(
                f'Mamba.{other} must be auto with mixer="{self.mixer}", which has no {other}, got '
                f"{getattr(self, other)}; leave it out"
            )
        if not 0 < self.dt_min <= self.dt_max:
            raise ValueError(
                "Mamba.dt_min and dt_max must satisfy 0 < dt_min <= dt_max, "
                f"got {self.dt_min} and {self.dt_max}"
            )

    def rank(self, d_model: int) -> int:
        """Return the rank of the step-size projection for a model width."""
        return math.ceil(d_model / 16) if self.dt_rank == "auto" else self.dt_rank

    def head(self, d_model: int) -> int:
        """Return the channels of a head for a model width.

        Raises:
            ValueError: If the heads do not divide the inner width.
        """
        inner = self.expand * d_model
        divisors = [size for size in range(1, inner + 1) if inner % size == 0]
        usual = min(divisors, key=lambda size: max(size, _USUAL_HEAD) / min(size, _USUAL_HEAD))
        if self.headdim == "auto":
            return usual
        if self.headdim not in divisors:
            raise ValueError(
                f"Mamba.headdim must divide the inner width expand * d_model = {inner}, got "
                f"{self.headdim}; {usual} does"
            )
        return self.headdim

    def projected(self, d_model: int) -> int:
        """Return the outputs of the input projection for a model width."""
        inner = self.expand * d_model
        if self.mixer == "mamba":
            return 2 * inner
        return 2 * inner + 2 * self.d_state + inner // self.head(d_model)

    def direction(self, d_model: int, backend: str) -> SelectiveSSM | ScalarSSM:
        """Build one direction for a model width."""
        inner = self.expand * d_model
        if self.mixer == "mamba":
            return SelectiveSSM(inner, self.rank(d_model), self, backend)
        return ScalarSSM(inner, self.head(d_model), self, backend)


def _new_filter(channels: int, config: MambaConfig) -> tuple[nn.Parameter, nn.Parameter | None]:
    """Draw the weights and, if there is one, the bias of the convolution."""
    bound = config.d_conv**-0.5
    weight = nn.Parameter(torch.empty(channels, config.d_conv).uniform_(-bound, bound))
    bias = nn.Parameter(torch.empty(channels).uniform_(-bound, bound)) if config.conv_bias else None
    return weight, bias


def _new_steps(count: int, config: MambaConfig) -> Tensor:
    """Draw log-uniform step sizes, and return what softplus maps to them."""
    log_min, log_max = math.log(config.dt_min), math.log(config.dt_max)
    dt = torch.empty(count).uniform_(log_min, log_max).exp().clamp(min=config.dt_init_floor)
    return dt + torch.log(-torch.expm1(-dt))


class SelectiveSSM(nn.Module):
    """One direction of Mamba without its projections: convolution, selective scan, gate.

    Source: Gu and Dao 2023, arXiv:2312.00752, sections 3.2 to 3.6. Initially, ``A_log`` is
    log(1..d_state), ``D`` is one, and the step sizes are log-uniform in [dt_min, dt_max].

    Args:
        d_inner: Channels.
        dt_rank: Rank of the step-size projection.
        config: The other sizes and options.
        backend: Kernel of the scan, and of the convolution if it has a kernel of this name.
    """

    def __init__(
        self, d_inner: int, dt_rank: int, config: MambaConfig, backend: str = "auto"
    ) -> None:
        super().__init__()
        self.backend = backend
        self.conv_weight, self.conv_bias = _new_filter(d_inner, config)
        self.x_proj = nn.Linear(d_inner, dt_rank + 2 * config.d_state, bias=False)
        self.dt_proj = nn.Linear(dt_rank, d_inner)
        nn.init.uniform_(self.dt_proj.weight, -(dt_rank**-0.5), dt_rank**-0.5)
        exempt_from_muon(self.conv_weight, self.x_proj.weight, self.dt_proj.weight)
        with torch.no_grad():
            self.dt_proj.bias.copy_(_new_steps(d_inner, config))
        states = torch.arange(1, config.d_state + 1, dtype=torch.get_default_dtype())
        self.A_log = exempt_from_decay(nn.Parameter(states.log().repeat(d_inner, 1)))
        self.D = nn.Parameter(torch.ones(d_inner))

    def forward(
        self,
        xz: Float[Tensor, "B L E"],
        padding: Bool[Tensor, "B L"] | None = None,
        *,
        reverse: bool = False,
    ) -> Float[Tensor, "B L D"]:
        """Run the direction over rows.

        Args:
            xz: Input and gate side by side, ``E = 2 D``; zero where padded.
            padding: See ``BiMamba.forward``.
            reverse: Whether to run from the last position to the first.
        """
        return mamba_direction(xz, self.weights(), padding, reverse=reverse, backend=self.backend)

    def weights(self) -> Direction:
        """Return the parameters in the form that the operators take."""
        return Direction(
            self.conv_weight,
            self.conv_bias,
            self.x_proj.weight,
            self.dt_proj.weight,
            self.dt_proj.bias,
            -torch.exp(self.A_log),
            self.D,
        )


class ScalarSSM(nn.Module):
    """One direction of Mamba-2 without its projections: convolution, scan, gate, norm.

    Source: Dao and Gu 2024, arXiv:2405.21060, section 7.1 and figure 6, with one group of B and C.
    Initially, the decay rates are uniform in [1, 16], ``D`` is one, and the step sizes are
    log-uniform in [dt_min, dt_max].

    Args:
        d_inner: Channels.
        headdim: Channels of a head, which divide ``d_inner``.
        config: The other sizes and options.
        backend: Form of the scan, and kernel of the convolution.
    """

    def __init__(
        self, d_inner: int, headdim: int, config: MambaConfig, backend: str = "auto"
    ) -> None:
        super().__init__()
        self.backend = backend
        self.heads, self.states = d_inner // headdim, config.d_state
        self.conv_weight, self.conv_bias = _new_filter(d_inner + 2 * config.d_state, config)
        exempt_from_muon(self.conv_weight)
        self.dt_bias = nn.Parameter(_new_steps(self.heads, config))
        self.A_log = nn.Parameter(torch.empty(self.heads).uniform_(1, 16).log())
        self.D = nn.Parameter(torch.ones(self.heads))
        self.norm = Norm(d_inner)

    def forward(
        self,
        xz: Float[Tensor, "B L E"],
        padding: Bool[Tensor, "B L"] | None = None,
        *,
        reverse: bool = False,
    ) -> Float[Tensor, "B L D"]:
        """Run the direction over rows.

        Args:
            xz: Gate, input, B, C and the raw step sizes side by side; zero where padded.
            padding: See ``BiMamba.forward``.
            reverse: Whether to run from the last position to the first.
        """
        return self.run(*self.parts(xz), padding, reverse=reverse)

    def parts(self, xz: Float[Tensor, "B L E"]) -> tuple[Tensor, Tensor, Tensor]:
        """Return the activated gate, the input of the convolution and the raw step sizes."""
        channels = len(self.norm.weight)
        z, xBC, dt = xz.split((channels, channels + 2 * self.states, self.heads), dim=-1)
        return F.silu(z), xBC, dt

    def run(
        self, gate: Tensor, xBC: Tensor, dt: Tensor, padding: Tensor | None, *, reverse: bool
    ) -> Tensor:
        """Run the direction on what ``parts`` returns."""
        convolved = causal_conv1d(
            xBC.mT,
            self.conv_weight,
            self.conv_bias,
            activation="silu",
            reverse=reverse,
            backend=self.backend,
        ).mT
        if padding is not None:
            convolved = convolved.masked_fill(padding[..., None], 0)
        x, B, C = convolved.split((gate.shape[-1], self.states, self.states), dim=-1)
        steps = F.softplus(dt.to(torch.promote_types(dt.dtype, torch.float32)) + self.dt_bias)
        rates = -torch.exp(self.A_log)
        x = x.unflatten(-1, (self.heads, -1))
        y = ssd(x, steps, rates, B, C, self.D, reverse=reverse, backend=self.backend)
        return self.norm(y.flatten(2) * gate)


class BiMamba(nn.Module):
    """Two directions of Mamba or of Mamba-2 whose outputs are added or multiplied.

    Source: Schiff et al. 2024, arXiv:2403.03234, section 3.1. A projection acts on each position
    separately. A tied input projection is therefore computed once for both directions, and a tied
    output projection is applied once to the sum of the directions if they are added.

    Args:
        d_model: Model width.
        config: Sizes of the mixer.
        tied: Whether both directions use the same ``in_proj`` and ``out_proj``.
        combine: ``add`` or ``ew_multiply``.
        backend: Kernel of the convolutions and scans.
    """

    def __init__(
        self,
        d_model: int,
        config: MambaConfig,
        *,
        tied: bool = True,
        combine: Combine = "add",
        backend: str = "auto",
    ) -> None:
        super().__init__()
        d_inner, projected = config.expand * d_model, config.projected(d_model)
        self.combine = combine
        self.backend = backend
        self.in_proj = nn.Linear(d_model, projected, bias=config.bias)
        self.out_proj = nn.Linear(d_inner, d_model, bias=config.bias)
        self.in_proj_rev: nn.Linear | None = None
        self.out_proj_rev: nn.Linear | None = None
        if not tied:
            self.in_proj_rev = nn.Linear(d_model, projected, bias=config.bias)
            self.out_proj_rev = nn.Linear(d_inner, d_model, bias=config.bias)
        self.fwd = config.direction(d_model, backend)
        self.rev = config.direction(d_model, backend)

    def initialise_projections(self, n_layer: int) -> None:
        """Initialise the projections for a network of ``n_layer`` layers."""
        outputs = [p for p in (self.out_proj, self.out_proj_rev) if p is not None]
        inputs = [p for p in (self.in_proj, self.in_proj_rev) if p is not None]
        initialise_projections(inputs, outputs, n_layer)

    def forward(
        self,
        x: Float[Tensor, "B L D"],
        padding: Bool[Tensor, "B L"] | None = None,
        *,
        mirrored: bool = False,
    ) -> Float[Tensor, "B L D"]:
        """Run both directions over rows and combine them.

        Args:
            x: Input.
            padding: True at padding, which must come before the first or after the last real
                position. It does not affect the outputs at real positions.
            mirrored: Whether ``x`` and the result are reversed in length and in channels:
                ``forward(x.flip(1, 2), mirrored=True) == forward(x).flip(1, 2)``.
        """
        xz = project_in(self.in_proj, x, padding, mirrored)
        if self.combine == "add" and self.out_proj_rev is None:
            y = self._sum(xz, padding, mirrored)
            return project_out(self.out_proj, y, mirrored, directions=2)
        xz_rev = xz
        if self.in_proj_rev is not None:
            xz_rev = project_in(self.in_proj_rev, x, padding, mirrored)
        y_fwd = self.fwd(xz, padding, reverse=mirrored)
        y_rev = self.rev(xz_rev, padding, reverse=not mirrored)
        out_fwd = project_out(self.out_proj, y_fwd, mirrored)
        out_rev = project_out(self.out_proj_rev or self.out_proj, y_rev, mirrored)
        return out_fwd + out_rev if self.combine == "add" else out_fwd * out_rev

    def weights(self) -> tuple[Direction, Direction]:
        """Return the parameters of both directions of ``mamba`` in the form that operators take."""
        assert isinstance(self.fwd, SelectiveSSM)
        assert isinstance(self.rev, SelectiveSSM)
        return self.fwd.weights(), self.rev.weights()

    def _sum(self, xz: Tensor, padding: Tensor | None, mirrored: bool) -> Tensor:
        """Add the outputs of both directions, which have the same input."""
        if isinstance(self.fwd, SelectiveSSM):
            ways = self.weights()
            return mamba_both_ways(xz, *ways, padding, mirrored=mirrored, backend=self.backend)
        assert isinstance(self.rev, ScalarSSM)
        parts = self.fwd.parts(xz)
        y = self.fwd.run(*parts, padding, reverse=mirrored)
        return y + self.rev.run(*parts, padding, reverse=not mirrored)


def project_in(proj: nn.Linear, x: Tensor, padding: Tensor | None, mirrored: bool) -> Tensor:
    """Project the input of the directions, and set it to zero at padding."""
    weight = proj.weight.flip(1) if mirrored else proj.weight
    xz = linear(x, weight, proj.bias)
    return xz if padding is None else xz.masked_fill(padding[..., None], 0)


def project_out(proj: nn.Linear, y: Tensor, mirrored: bool, directions: int = 1) -> Tensor:
    """Project the sum of ``directions`` outputs; the bias is added once for each of them."""
    weight = proj.weight.flip(0) if mirrored else proj.weight
    bias = proj.bias
    if bias is not None:
        bias = directions * (bias.flip(0) if mirrored else bias)
    return linear(y, weight, bias)

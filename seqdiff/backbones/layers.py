"""Parts that several backbones use."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from seqdiff.ops.rms_norm import rms_norm
from seqdiff.types import Signal

NormKind = Literal["rms", "layer"]


class Norm(nn.Module):
    """RMSNorm (Zhang and Sennrich 2019) or LayerNorm over the last axis, with learned gains.

    Args:
        d_model: Channels.
        kind: ``rms`` has a gain only; ``layer`` centres first and has a gain and a shift.
        eps: Added to the mean square.
    """

    def __init__(self, d_model: int, kind: NormKind = "rms", eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model)) if kind == "layer" else None

    def forward(
        self, x: Float[Tensor, "*shape D"], *, mirrored: bool = False
    ) -> Float[Tensor, "*shape D"]:
        """Normalise each vector.

        Args:
            x: Activations.
            mirrored: The channels of ``x`` are stored in reverse order.
        """
        weight = self.weight.flip(0) if mirrored else self.weight
        if self.bias is None:
            return rms_norm(x, weight, self.eps)
        bias = self.bias.flip(0) if mirrored else self.bias
        return F.layer_norm(x, weight.shape, weight, bias, self.eps)


class LabelEmbedding(nn.Module):
    """A learned vector for each class, and one for rows without a label.

    Training drops some labels, so that one network models both distributions that classifier-free
    guidance combines: with and without the label. Source: Ho and Salimans 2022, arXiv:2207.12598.

    Args:
        num_classes: Number of classes, which are numbered from 0.
        d_model: Channels.
    """

    def __init__(self, num_classes: int, d_model: int) -> None:
        super().__init__()
        self.table = nn.Embedding(num_classes + 1, d_model)
        nn.init.normal_(self.table.weight, std=0.02)

    def forward(
        self, label: Int[Tensor, " B"] | None, like: Shaped[Tensor, "B L *C"]
    ) -> Float[Tensor, "B 1 D"]:
        """Return each row's vector.

        Args:
            label: Classes, negative for a row without a label; ``None`` if no row has one.
            like: A tensor with as many rows, on the same device.

        Raises:
            IndexError: On the CPU, if a class does not exist.
        """
        if label is None:
            label = torch.full((len(like),), -1, device=like.device)
        return self.table((label + 1).clamp_min(0))[:, None]


# Angular frequencies of the features of a standardised value: the longest period spans about 25
# standard deviations, and the shortest about one and a half.
_FREQUENCIES = tuple(0.25 * 2.0**octave for octave in range(5))


class SignalEmbedding(nn.Module):
    """An embedding of measured values, such as the activity of a promoter.

    Each value is standardised by the training data and turned into Fourier features, which a small
    MLP maps to a vector. Nearby values have nearby vectors. An unknown value has features of its
    own, so one network models the distributions with and without each value.
    Source of the features: Tancik et al. 2020, arXiv:2006.10739.

    Args:
        num_signals: Number of values of a row, or of a position.
        d_model: Channels of the embedding.

    Attributes:
        mean: Mean of each signal in the training data.
        std: Its standard deviation.
        range: Its smallest and its largest value, ``[2, S]``.
    """

    mean: Tensor
    std: Tensor
    range: Tensor

    def __init__(self, num_signals: int, d_model: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(num_signals))
        self.register_buffer("std", torch.ones(num_signals))
        self.register_buffer("range", torch.zeros(2, num_signals))
        features = num_signals * (2 + 2 * len(_FREQUENCIES))
        self.hidden = nn.Linear(features, d_model)
        self.out = nn.Linear(d_model, d_model)
        nn.init.normal_(self.out.weight, std=0.02)
        nn.init.zeros_(self.out.bias)
        exempt_from_muon(self.hidden.weight, self.out.weight)

    def standardise_by(
        self,
        mean: Float[Tensor, " S"],
        std: Float[Tensor, " S"],
        low: Float[Tensor, " S"],
        high: Float[Tensor, " S"],
    ) -> None:
        """Set the statistics of the training data.

        Args:
            mean: Mean of each signal.
            std: Standard deviation of each, above 0.
            low: Smallest value of each.
            high: Largest value of each.
        """
        with torch.no_grad():
            self.mean.copy_(mean)
            self.std.copy_(std)
            self.range.copy_(torch.stack((low, high)))

    def forward(self, signal: Signal | None, rows: int) -> Float[Tensor, "B l D"]:
        """Embed values.

        Args:
            signal: Values in the units of the training data, NaN where one is unknown; ``None``
                if no row has one.
            rows: Number of rows.

        Returns:
            One vector for each row, with ``l = 1``, or one for each position.
        """
        weight = self.hidden.weight
        if signal is None:
            signal = torch.full((rows, len(self.mean)), torch.nan, device=weight.device)
        wide = torch.promote_types(weight.dtype, torch.float32)
        values = signal.to(wide)
        known = ~values.isnan()
        values = torch.where(known, (values - self.mean) / self.std, 0.0)
        angles = values[..., None] * values.new_tensor(_FREQUENCIES)
        features = torch.cat(
            (torch.ones_like(values)[..., None], values[..., None], angles.sin(), angles.cos()), -1
        )
        features = torch.where(known[..., None], features, 0.0).flatten(-2)
        found = self.out(F.silu(self.hidden(features.to(weight.dtype))))
        return found if found.dim() == 3 else found[:, None]


def positions_of(
    signal: Float[Tensor, "B l D"] | None, start: int, end: int
) -> Float[Tensor, "B n D"] | None:
    """Return the embedded signal of the positions ``start..end-1``.

    Args:
        signal: From ``SignalEmbedding``: one vector for each row, or one for each position.
        start: First position.
        end: Position after the last.

    Raises:
        ValueError: If there are vectors for fewer positions.
    """
    if signal is None or signal.shape[1] == 1:
        return signal
    if end > signal.shape[1]:
        raise ValueError(
            f"Backbone.signal must have values for the {end} positions of the rows so far, got "
            f"{signal.shape[1]}; give NaN where a value is unknown"
        )
    return signal[:, start:end]


def shifted(
    tokens: Int[Tensor, "B L"], padding: Bool[Tensor, "B L"] | None, start: int
) -> Int[Tensor, "B L"]:
    """Shift tokens right by one position.

    Args:
        tokens: Ids.
        padding: True at padding.
        start: Id at the first position, and at every position that follows padding.
    """
    before = tokens.roll(1, dims=1)
    before[:, :1] = start
    return before if padding is None else before.masked_fill(padding.roll(1, dims=1), start)


def exempt_from_decay(parameter: nn.Parameter) -> nn.Parameter:
    """Exempt a parameter from weight decay; vectors and embeddings are exempt without this.

    Args:
        parameter: Gets the attribute ``_no_weight_decay``, which ``decay_groups`` reads.

    Returns:
        The same parameter.
    """
    parameter._no_weight_decay = True  # pyright: ignore[reportAttributeAccessIssue]
    return parameter


def exempt_from_muon(*parameters: Tensor) -> None:
    """Let AdamW train matrices that are not of a layer's main path even if Muon trains others.

    Args:
        parameters: Get the attribute ``_no_muon``, which ``muon_matrices`` reads.
    """
    for parameter in parameters:
        parameter._no_muon = True  # pyright: ignore[reportAttributeAccessIssue]


def load_in_place_of(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Let tensors take the place of a module's parameters, without a copy.

    ``load_state_dict(assign=True)`` does the same but loses what ``exempt_from_decay`` and
    ``exempt_from_muon`` have noted.

    Args:
        module: The module.
        state: Its whole state.
    """
    notes = {name: vars(parameter) for name, parameter in module.named_parameters()}
    module.load_state_dict(state, assign=True)
    for name, parameter in module.named_parameters():
        vars(parameter).update(notes[name])


def require_positive(owner: str, name: str, size: int) -> None:
    """Check that a size is a positive integer.

    Args:
        owner: Name of the class, for the message.
        name: Name of the argument.
        size: Its value.

    Raises:
        ValueError: If it is not.
    """
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ValueError(f"{owner}.{name} must be an integer of at least 1, got {size!r}")


def require_layer(owner: str, layer: int | None, num_layers: int) -> None:
    """Check the number of layers to run.

    Args:
        owner: Name of the network, for the message.
        layer: Number of layers; ``None`` for all.
        num_layers: Layers of the network.

    Raises:
        ValueError: If the network has fewer layers.
    """
    if layer is not None and not 0 <= layer <= num_layers:
        raise ValueError(
            f"{owner}.layer must be in 0..{num_layers}, the layers that states have passed, got "
            f"{layer}; leave it out for the states that the head reads"
        )


def require_choice(owner: str, name: str, value: str, choices: Collection[str]) -> None:
    """Check that an argument is one of the valid choices.

    Args:
        owner: Name of the class, for the message.
        name: Name of the argument.
        value: Its value.
        choices: The valid values.

    Raises:
        ValueError: If it is not.
    """
    if value not in choices:
        raise ValueError(f"{owner}.{name} must be one of {', '.join(choices)}; got {value!r}")


SINUSOID_WIDTH = 256
# -log alpha at 1 - alpha = 0.999, the highest noise level that published networks are trained on.
MAX_SIGMA = -math.log(1e-3)


class SigmaEmbedding(nn.Module):
    """Embedding of the total noise sigma = -log alpha: sinusoids, then an MLP.

    Args:
        cond_dim: Number of channels of the embedding.
    """

    def __init__(self, cond_dim: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Linear(SINUSOID_WIDTH, cond_dim), nn.SiLU(), nn.Linear(cond_dim, cond_dim)
        )
        exempt_from_muon(*self.mlp.parameters())

    def forward(self, sigma: Float[Tensor, " B"]) -> Float[Tensor, "B C"]:
        """Embed each row's noise, clamped to the range that published networks are trained on.

        Args:
            sigma: Noise of each row, at least 0; infinite where everything is masked.
        """
        weight = next(self.parameters())
        half = SINUSOID_WIDTH // 2
        wide = torch.promote_types(weight.dtype, torch.float32)
        steps = torch.arange(half, dtype=wide, device=sigma.device) / half
        angles = sigma.to(wide).clamp_max(MAX_SIGMA)[:, None] * 1e4**-steps
        return self.mlp(torch.cat((angles.cos(), angles.sin()), dim=-1).to(weight.dtype))

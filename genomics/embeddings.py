"""What a network makes of sequences inside: the activations of one of its layers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from jaxtyping import Float, Float32, UInt8
from torch import Tensor, nn

from seqdiff.parameterization import Denoiser
from seqdiff.process import MaskedDiffusion

from .alphabet import reverse_complement
from .strands import device_of


def find_layers(denoiser: Denoiser) -> nn.ModuleList:
    """Find the stack of layers of a network: its longest list of modules.

    Raises:
        ValueError: If there is none, or the model reads clean and noisy tokens side by side, so
            that no layer has one activation a position.
    """
    if denoiser.kind == "block":
        raise ValueError(
            "embed.directory must be a run of masked diffusion or an autoregressive one, got one "
            "of block diffusion, whose layers read clean and noisy tokens side by side"
        )
    stacks = [module for module in denoiser.modules() if isinstance(module, nn.ModuleList)]
    if not any(len(stack) for stack in stacks):
        raise ValueError(
            f"embed.directory must be a run whose network keeps its layers in a ModuleList, got "
            f"{type(denoiser.backbone).__name__}, which has none"
        )
    return max(stacks, key=len)


def choose_layer(denoiser: Denoiser, layer: int) -> nn.Module:
    """Choose a layer by its number, from the end if that is negative.

    Raises:
        ValueError: If there is no such layer; see ``find_layers``.
    """
    layers = find_layers(denoiser)
    if not -len(layers) <= layer < len(layers):
        raise ValueError(
            f"embed.layer must be in {-len(layers)}..{len(layers) - 1}, the layers of "
            f"{type(denoiser.backbone).__name__}, got {layer}; -1 is the last"
        )
    return layers[layer]


@torch.no_grad()
def activations(
    denoiser: Denoiser,
    process: MaskedDiffusion,
    rows: UInt8[np.ndarray, "B L"],
    layer: nn.Module,
) -> Float32[np.ndarray, "B L D"]:
    """Run a network over clean rows and their reverse complements, and average what a layer gives.

    Positions of the reverse complement are read backwards, so that both belong to one base. A
    network that runs both strands itself, as Caduceus-PS, gives those of the strand it was shown.

    Args:
        denoiser: In eval mode.
        process: Says what time it is when nothing is hidden.
        rows: Ids ``0..4``; N is the mask.
        layer: From ``choose_layer``.

    Raises:
        ValueError: If the layer does not give one vector a position.
    """
    both = (rows, reverse_complement(rows))
    here, there = (_activations(denoiser, process, ids, layer) for ids in both)
    return ((here + there.flip(1)) / 2).cpu().numpy()


def _activations(
    denoiser: Denoiser, process: MaskedDiffusion, ids: np.ndarray, layer: nn.Module
) -> Float[Tensor, "B L D"]:
    """What a layer gives for some rows, in float32."""
    tokens = torch.from_numpy(ids.astype(np.int64)).to(device_of(denoiser))
    t = process.schedule.inverse(torch.ones(len(ids), dtype=torch.float64, device=tokens.device))
    with _watched(layer) as seen:
        denoiser(tokens, t)
    found = seen[0] if len(seen) == 1 else None
    if found is None or found.dim() != 3 or found.shape[1] != tokens.shape[1]:
        raise ValueError(
            "embed.layer must give one vector a position, got "
            f"{[tuple(each.shape) for each in seen]} from {type(layer).__name__} for "
            f"{tuple(tokens.shape)} tokens; choose another layer or network"
        )
    return found[: len(ids)].float()


@contextmanager
def _watched(layer: nn.Module) -> Iterator[list[Tensor]]:
    """Keep what a layer gives while the block runs."""
    seen: list[Tensor] = []

    def keep(module: nn.Module, given: tuple[object, ...], output: object) -> None:
        if isinstance(output, Tensor):
            seen.append(output)

    handle = layer.register_forward_hook(keep)
    try:
        yield seen
    finally:
        handle.remove()

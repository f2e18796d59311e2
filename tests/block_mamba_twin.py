"""BlockMamba written token by token, with faults that are easy to miss."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from seqdiff.backbones import BlockMamba
from seqdiff.backbones.mamba import SelectiveSSM

Fault = Literal["noisy state", "no tail", "open end", "late border", "clean unlabelled"]
FAULTS: tuple[Fault, ...] = ("noisy state", "no tail", "open end", "late border")


def build(seed: int = 0, dtype: torch.dtype = torch.float64, **options: object) -> BlockMamba:
    """Small, with weights for which every part of the network has an effect."""
    torch.manual_seed(seed)
    sizes = {"num_embeddings": 5, "num_logits": 4, "d_state": 3, **options}
    network = BlockMamba(6, 2, **sizes).double()
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            loud = 1.0 if "embedding" in name else 0.3
            parameter.add_(loud * torch.randn_like(parameter))
    return network.to(dtype)


def draw(length: int, batch: int = 2, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Independent noisy and clean rows."""
    random = torch.Generator().manual_seed(seed)
    x_t = torch.randint(5, (batch, length), generator=random)
    return x_t, torch.randint(4, (batch, length), generator=random)


def walk(own: SelectiveSSM, xz: Tensor, state: Tensor, tail: Tensor) -> tuple[Tensor, ...]:
    """Read tokens one by one; return outputs, every state and the last inputs of the
    convolution.
    """
    A, rank = -own.A_log.exp(), own.dt_proj.in_features
    outputs, states = [], [state]
    for x, z in zip(*(part.unbind(1) for part in xz.chunk(2, -1)), strict=True):
        window = torch.cat((tail, x[:, None]), 1)
        offset = 0 if own.conv_bias is None else own.conv_bias
        u = F.silu((window * own.conv_weight.T).sum(1) + offset)
        dt, B, C = (u @ own.x_proj.weight.T).split((rank, A.shape[1], A.shape[1]), -1)
        step = F.softplus(dt @ own.dt_proj.weight.T + own.dt_proj.bias)[..., None]
        state = torch.exp(step * A) * state + step * B[:, None] * u[..., None]
        outputs.append(((state * C[:, None]).sum(-1) + own.D * u) * F.silu(z))
        states.append(state)
        tail = window[:, 1:]
    return torch.stack(outputs, 1), torch.stack(states, 1), tail


def twin(
    network: BlockMamba,
    x_t: Tensor,
    x0: Tensor,
    block_size: int,
    fault: Fault | None = None,
    label: Tensor | None = None,
) -> tuple[Tensor, list[Tensor]]:
    """``network.block_logits``, and the states of each layer before every block ``(B,
    n, D, N)``.
    """
    rows, kept = [network.embedding(x0), network.embedding(x_t)], []
    if network.label_embedding is not None:
        rows[1] = rows[1] + network.label_embedding(label, x_t)
        if fault != "clean unlabelled":
            rows[0] = rows[0] + network.label_embedding(label, x0)
    for layer in network.layers:
        mixer = layer.mixer
        channels = mixer.fwd.A_log.shape[0]
        clean, noisy = (mixer.in_proj(layer.norm(x)) for x in rows)
        state = clean.new_zeros(len(x0), channels, mixer.fwd.A_log.shape[1])
        tail = clean.new_zeros(len(x0), mixer.fwd.conv_weight.shape[1] - 1, channels)
        nothing, outputs, states = (state, tail), ([], []), []
        for block in zip(clean.split(block_size, 1), noisy.split(block_size, 1), strict=True):
            states.append(state)
            before = (state, torch.zeros_like(tail) if fault == "no tail" else tail)
            for part, out in zip(block, outputs, strict=True):
                backward = walk(mixer.rev, part.flip(1), *nothing)[0].flip(1)
                out.append(walk(mixer.fwd, part, *before)[0] + backward)
            followed = block[1] if fault == "noisy state" else block[0]
            _, inner, tail = walk(mixer.fwd, followed, state, tail)
            state = inner[:, -2 if fault == "late border" else -1]
        if fault == "open end":
            forward = walk(mixer.fwd, clean, *nothing)[0]
            outputs = [forward + walk(mixer.rev, clean.flip(1), *nothing)[0].flip(1)], outputs[1]
        bias = 0 if mixer.out_proj.bias is None else mixer.out_proj.bias
        rows = [
            x + mixer.out_proj(torch.cat(out, 1)) + bias
            for x, out in zip(rows, outputs, strict=True)
        ]
        kept.append(torch.stack(states, 1))
    return F.linear(network.norm(rows[1]), network.embedding.weight[:4]), kept

"""Mamba over rows divided into token blocks, for block diffusion.

Block diffusion reads the clean blocks of a row, and noisy blocks each of which follows the clean
blocks before it. Over the clean blocks, the direction from left to right runs without
interruption. At every border (the boundary before a block, or after the last one), it returns its
state and its tail, the last inputs of its convolution. A noisy version of the next block starts
from there. The direction from right to left restarts at the end of every block, so it depends on no
later block.

On the CPU in float32 and float64, and under autocast to bfloat16, one operator runs both
directions, as in ``mamba_both_ways``. It has no second derivative; ``backend="reference"`` has one.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from seqdiff.blocks import cut, join, num_blocks
from seqdiff.ops.bimamba.directions import mamba_direction, scan_inputs
from seqdiff.ops.bimamba.inputs import Direction, check_direction, fits_cpu
from seqdiff.ops.operators import compute_dtype
from seqdiff.ops.selective_scan.dispatch import selective_scan


class Borders(NamedTuple):
    """What the direction from left to right carries across n borders.

    Attributes:
        states: State of the scan at each border ``(B, n, D, N)``.
        tails: The ``W - 1`` inputs of the convolution before each border ``(B, n, W - 1, D)``.
    """

    states: Tensor
    tails: Tensor


def no_borders(batch: int, conv_weight: Float[Tensor, "D W"], A: Float[Tensor, "D N"]) -> Borders:
    """Return the border before the first token of a row, which is zero.

    Args:
        batch: Number of rows.
        conv_weight: Filter of the direction from left to right.
        A: Decay rates of that direction, or any tensor of their shape and dtype.
    """
    channels, width = conv_weight.shape
    return Borders(
        A.new_zeros(batch, 1, *A.shape, dtype=compute_dtype(A)),
        conv_weight.new_zeros(batch, 1, width - 1, channels),
    )


def mamba_through(
    xz: Float[Tensor, "B L E"],
    fwd: Direction,
    rev: Direction,
    block_size: int,
    start: Borders,
    padding: Bool[Tensor, "B L"] | None = None,
    *,
    backend: str = "auto",
) -> tuple[Float[Tensor, "B L D"], Borders]:
    """Run both directions over clean blocks, and return the borders.

    Args:
        xz: Input and gate side by side, ``E = 2 D``; zero where padded.
        fwd: Weights of the direction from left to right, which runs over all blocks.
        rev: Weights of the other direction, which restarts at the end of every block.
        block_size: Length of a block; divides L.
        start: The border before the first block (n = 1).
        padding: See ``mamba_direction``.
        backend: See ``mamba_direction``.

    Returns:
        The sum of both directions, and all ``L / block_size + 1`` borders, including the one after
        the last block.

    Raises:
        ValueError: The length is not a multiple of ``block_size``, or ``start`` is not one border.
            See also ``mamba_direction``.
    """
    check_direction(xz, fwd, padding)
    check_direction(xz, rev, padding)
    _check_whole("mamba_through", xz, block_size)
    _check_borders("mamba_through.start", start, len(xz), 1, fwd)
    if fits_cpu(backend, xz, *fwd, *rev, *start):
        from seqdiff.ops.bimamba.cpu import mamba_cpu

        y, *borders = mamba_cpu(
            xz, fwd, rev, padding, block_size=block_size, borders=start, through=True
        )
        return y, Borders(*borders)
    u, delta, B, C, tail = scan_inputs(xz, fwd, padding, backend, tail=start.tails[:, 0])
    y = selective_scan(
        *(u, delta, fwd.A, B, C, fwd.D, xz.chunk(2, dim=-1)[1].mT, fwd.dt_bias, True),
        initial_state=start.states[:, 0],
        backend=backend,
    )
    assert isinstance(y, Tensor)  # without a last state
    states = _states_at_borders(u, delta, B, C, fwd, block_size, start.states, backend)
    y = y.mT + _backwards(xz, rev, block_size, padding, backend)
    return y, Borders(states, _tails(tail, block_size, fwd.conv_weight.shape[1] - 1))


def mamba_borders(
    x: Float[Tensor, "B L D"],
    fwd: Direction,
    block_size: int,
    start: Borders,
    padding: Bool[Tensor, "B L"] | None = None,
    *,
    backend: str = "auto",
) -> Borders:
    """Compute the borders of ``mamba_through`` without its output.

    Args:
        x: Input, without a gate.
        fwd: See ``mamba_through``.
        block_size: See ``mamba_through``.
        start: See ``mamba_through``.
        padding: See ``mamba_direction``.
        backend: See ``mamba_direction``.

    Raises:
        ValueError: See ``mamba_through``.
    """
    check_direction(x, fwd, padding, gated=False)
    _check_whole("mamba_borders", x, block_size)
    _check_borders("mamba_borders.start", start, len(x), 1, fwd)
    if fits_cpu(backend, x, *fwd, *start):
        from seqdiff.ops.bimamba.cpu import mamba_cpu

        _, *borders = mamba_cpu(
            x, fwd, None, padding, block_size=block_size, borders=start, through=True
        )
        return Borders(*borders)
    u, delta, B, C, tail = scan_inputs(x, fwd, padding, backend, tail=start.tails[:, 0])
    states = _states_at_borders(u, delta, B, C, fwd, block_size, start.states, backend)
    return Borders(states, _tails(tail, block_size, fwd.conv_weight.shape[1] - 1))


def mamba_from(
    xz: Float[Tensor, "B L E"],
    fwd: Direction,
    rev: Direction,
    block_size: int,
    borders: Borders,
    padding: Bool[Tensor, "B L"] | None = None,
    *,
    backend: str = "auto",
) -> Float[Tensor, "B L D"]:
    """Run both directions over blocks, each of which starts from its own border.

    Args:
        xz: Input and gate side by side, ``E = 2 D``; zero where padded.
        fwd: Weights of the direction from left to right.
        rev: Weights of the other direction.
        block_size: Length of a block; the last one may be shorter.
        borders: The border before each block.
        padding: See ``mamba_direction``.
        backend: See ``mamba_direction``.

    Returns:
        The sum of both directions.

    Raises:
        ValueError: There is not one border for each block. See also ``mamba_direction``.
    """
    check_direction(xz, fwd, padding)
    check_direction(xz, rev, padding)
    _check_borders("mamba_from.borders", borders, len(xz), num_blocks(xz.shape[1], block_size), fwd)
    if fits_cpu(backend, xz, *fwd, *rev, *borders):
        from seqdiff.ops.bimamba.cpu import mamba_cpu

        return mamba_cpu(xz, fwd, rev, padding, block_size=block_size, borders=borders)[0]
    blocks = cut(xz, block_size)
    absent = None if padding is None else cut(padding, block_size, fill=True)
    tails = borders.tails.flatten(0, 1)
    u, delta, B, C, _ = scan_inputs(blocks, fwd, absent, backend, tail=tails)
    y = selective_scan(
        *(u, delta, fwd.A, B, C, fwd.D, blocks.chunk(2, dim=-1)[1].mT, fwd.dt_bias, True),
        initial_state=borders.states.flatten(0, 1),
        backend=backend,
    )
    assert isinstance(y, Tensor)  # without a last state
    length = xz.shape[1]
    return join(y.mT, length) + _backwards(xz, rev, block_size, padding, backend)


def _check_whole(owner: str, x: Tensor, block_size: int) -> None:
    if x.shape[1] % block_size:
        raise ValueError(
            f"{owner}.block_size must divide the length {x.shape[1]}, got {block_size}"
        )


def _check_borders(owner: str, borders: Borders, batch: int, count: int, own: Direction) -> None:
    channels, states = own.A.shape
    expected = {
        "states": (batch, count, channels, states),
        "tails": (batch, count, own.conv_weight.shape[1] - 1, channels),
    }
    for name, shape in expected.items():
        found = tuple(getattr(borders, name).shape)
        if found != shape:
            raise ValueError(f"{owner}.{name} must have shape {shape}, got {found}")


def _backwards(
    xz: Tensor, rev: Direction, block_size: int, padding: Tensor | None, backend: str
) -> Tensor:
    """Run the direction from right to left inside every block."""
    batch, length = xz.shape[:2]
    if padding is None and length % block_size:
        padding = xz.new_zeros(batch, length, dtype=torch.bool)
    absent = None if padding is None else cut(padding, block_size, fill=True)
    y = mamba_direction(cut(xz, block_size), rev, absent, reverse=True, backend=backend)
    return join(y, length)


def _states_at_borders(
    u: Tensor,
    delta: Tensor,
    B: Tensor,
    C: Tensor,
    own: Direction,
    block_size: int,
    start: Tensor,
    backend: str,
) -> Tensor:
    """Compute the states at all borders.

    Each block maps the state h before it to ``decay * h + gain``. A parallel prefix scan composes
    these maps in about log2(n) rounds.
    """
    n = num_blocks(u.shape[2], block_size)
    u, delta, B, C = (cut(m.mT, block_size).mT for m in (u, delta, B, C))
    _, gain = selective_scan(
        u, delta, own.A, B, C, None, None, own.dt_bias, True, True, backend=backend
    )
    steps = F.softplus(delta.to(gain.dtype) + own.dt_bias[:, None]).sum(-1)
    decay = torch.exp(steps[..., None] * own.A).unflatten(0, (-1, n))
    gain = torch.cat((start.to(gain.dtype), gain.unflatten(0, (-1, n))), dim=1)
    decay = torch.cat((torch.zeros_like(decay[:, :1]), decay), dim=1)
    joined = 1
    while joined <= n:  # each map covers the last `joined` blocks before its border
        before = (0, 0, 0, 0, joined, 0)
        gain = gain + decay * F.pad(gain, before)[:, : n + 1]
        decay = decay * F.pad(decay, before)[:, : n + 1]
        joined *= 2
    return gain


def _tails(x: Tensor, block_size: int, width: int) -> Tensor:
    """Return the ``width`` inputs before every border; ``x`` begins with those before the first."""
    return x.unfold(1, width, block_size).mT

"""The scan compared with mambapy's parallel scan, or on CUDA with the kernel of mamba_ssm.

Both sides compute ``y = C h + D u`` from the same u, delta, A, B, C and D, and their outputs and
gradients are compared before anything is timed. The scan is timed with adjacent channels of u and
delta in memory (``channels_last``), as in our layers, and with adjacent positions
(``channels_first``), which mamba_ssm needs. Run ``python -m benchmarks.scan``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.common import (
    Ratio,
    Side,
    begin,
    interleave,
    make_parser,
    positive,
    print_table,
    refuse,
    require_same,
    write_json,
)
from seqdiff.ops.selective_scan import selective_scan

Inputs = tuple[Tensor, ...]
Scan = Callable[..., Tensor]
TOLERANCE = 1e-4


def inputs(batch: int, channels: int, length: int, states: int) -> Inputs:
    """Draw u, delta (B, D, L), A (D, N), B, C (B, N, L) and D (D,); channels are adjacent."""
    torch.manual_seed(0)
    u = torch.randn(batch, length, channels).mT
    delta = (torch.rand(batch, length, channels) * 0.1 + 0.001).mT
    A = -torch.arange(1.0, states + 1).repeat(channels, 1)
    B, C = (torch.randn(batch, length, states).mT for _ in range(2))
    return u, delta, A, B, C, torch.ones(channels)


def our_scan(u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor) -> Tensor:
    """Run the scan that is measured."""
    out = selective_scan(u, delta, A, B, C, D, backend="triton" if u.is_cuda else "cpu")
    assert isinstance(out, Tensor)  # the last state was not requested
    return out


def mamba_ssm_scan(u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor) -> Tensor:
    """Compute the same with mamba_ssm's kernel."""
    out = selective_scan(u, delta, A, B, C, D, backend="mamba_ssm")
    assert isinstance(out, Tensor)
    return out


def parallel_scan(u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor) -> Tensor:
    """Compute the same with mambapy.pscan, whose layout is (B, L, D, N)."""
    from mambapy.pscan import pscan

    step = delta.mT[..., None]
    states = pscan(torch.exp(step * A), step * B.mT[:, :, None] * u.mT[..., None])
    assert isinstance(states, Tensor)
    return ((states @ C.mT[..., None])[..., 0] + D * u.mT).mT


def forward(scan: Scan, values: Inputs) -> dict[str, Tensor]:
    """Return the output only."""
    with torch.no_grad():
        return {"y": scan(*values)}


def forward_backward(scan: Scan, values: Inputs) -> dict[str, Tensor]:
    """Return the output and the gradient of every input."""
    leaves = [v.detach().requires_grad_() for v in values]
    out = scan(*leaves)
    grads = torch.autograd.grad(out, leaves, torch.ones_like(out))
    names = ("u", "delta", "A", "B", "C", "D")
    return {"y": out.detach(), **dict(zip(map("d{}".format, names), grads, strict=True))}


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    work: str
    layout: str
    largest_gap: float
    ratio: Ratio

    def cells(self) -> tuple[str, ...]:
        """Return the cells of the printed table."""
        ours, theirs = 1e3 * self.ratio.seconds, 1e3 * self.ratio.their_seconds
        figures = (f"{ours:.2f}", f"{theirs:.1f}", str(self.ratio), f"{self.largest_gap:.0e}")
        return self.work, self.layout, *figures

    def record(self) -> dict[str, object]:
        """Return the record for the JSON file."""
        named = {"pass": self.work, "layout": self.layout, "largest_gap": self.largest_gap}
        return {**named, **self.ratio.record()}


def compare(values: Inputs, pairs: int) -> list[Row]:
    """Return the times of both sides and their ratio, by pass and layout."""
    rows = []
    device = values[0].device.type
    other, their_scan, repeats = {
        "cpu": ("mambapy", parallel_scan, 1),
        "cuda": ("mamba_ssm", mamba_ssm_scan, 10),
    }[device]
    layouts = {"channels_last": values, "channels_first": tuple(v.contiguous() for v in values)}
    for name, work in (("forward", forward), ("forward+backward", forward_backward)):
        their_values = values if device == "cpu" else layouts["channels_first"]
        theirs = work(their_scan, their_values)
        gap = max(
            require_same(f"{name}, {layout}", work(our_scan, v), theirs, TOLERANCE)
            for layout, v in layouts.items()
        )
        sides = [Side(other, lambda w=work, v=their_values: w(their_scan, v), calls=repeats)]
        sides += [
            Side(layout, lambda w=work, v=v: w(our_scan, v), calls=10)
            for layout, v in layouts.items()
        ]
        seconds = interleave(sides, pairs, device)
        rows += [Row(name, k, gap, Ratio(seconds[k], seconds[other])) for k in layouts]
    return rows


def main(arguments: list[str] | None = None) -> None:
    """Print the table and write it as JSON if a path is given."""
    parser = make_parser(__doc__)
    for name, default in (("batch", 4), ("channels", 256), ("length", 1024), ("states", 16)):
        parser.add_argument(f"--{name}", type=positive, default=default)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        refuse("scan: --device cuda needs a CUDA device, and PyTorch sees none")
    shape = {name: getattr(options, name) for name in ("batch", "channels", "length", "states")}
    described = begin(options.device)
    print("float32,", ", ".join(f"{k} {v}" for k, v in shape.items()))
    rows = compare(tuple(v.to(options.device) for v in inputs(**shape)), options.pairs)
    other = "mambapy" if options.device == "cpu" else "mamba_ssm"
    print_table(
        ("pass", "layout", "ours ms", f"{other} ms", "ratio (over pairs)", "gap"),
        [row.cells() for row in rows],
    )
    settings = {**shape, "pairs": options.pairs}
    write_json(options.json, "scan", described, settings, [row.record() for row in rows])


if __name__ == "__main__":
    main()

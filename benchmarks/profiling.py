"""Profile of a training step: time by operator, and the minimum memory traffic."""

from __future__ import annotations

import time

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.common import print_table
from benchmarks.training_step import TrainingStep
from seqdiff.backbones.caduceus import CaduceusConfig

MATRIX_PRODUCTS = {
    "aten::mm",
    "aten::addmm",
    "aten::addmm_",
    "aten::bmm",
    "aten::baddbmm",
    "aten::_addmm_activation",
}
_STEPS, _SHOWN = 3, 10


def profile_step(step: TrainingStep, device: str) -> dict[str, object]:
    """Print the ten ops that take most time, and the fraction spent in matrix products."""
    activities = [ProfilerActivity.CPU]
    if device == "cuda":
        activities.append(ProfilerActivity.CUDA)
    step()
    with profile(activities=activities) as profiled:
        for _ in range(_STEPS):
            step()
    spent: list[tuple[float, str, float]] = []
    for event in profiled.key_averages():
        if event.device_type.name == "CPU":  # the time of a kernel is counted for its op
            own = event.self_device_time_total if device == "cuda" else event.self_cpu_time_total
            spent.append((own / _STEPS / 1e3, event.key, event.count / _STEPS))
    spent.sort(reverse=True)
    total = sum(ms for ms, _, _ in spent)
    products = sum(ms for ms, name, _ in spent if name in MATRIX_PRODUCTS)
    print_table(
        ("op, own time", "calls a step", "ms a step", "share"),
        [(n, f"{c:.0f}", f"{ms:.2f}", f"{ms / total:.1%}") for ms, n, c in spent[:_SHOWN]],
    )
    print(
        f"matrix products take {products:.2f} of {total:.2f} ms, {products / total:.1%}: the step "
        f"takes {total / products:.2f} times as long as they do"
    )
    return {
        "milliseconds": total,
        "matrix_products": products,
        "share_of_matrix_products": products / total,
        "ops": [{"op": n, "calls": c, "milliseconds": ms} for ms, n, c in spent[:_SHOWN]],
    }


def copy_bandwidth(device: str, size: int = 1 << 30, copies: int = 20) -> float:
    """Return the bytes per second, read plus written, of copies within a CUDA device's memory."""
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    target.copy_(source)
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(copies):
        target.copy_(source)
    torch.cuda.synchronize()
    return 2 * size * copies / (time.perf_counter() - start)


def least_bytes(config: CaduceusConfig, tokens: int, width: int) -> int:
    """Return the bytes of activations that a step moves if every op reads and writes each once.

    The same formula is used for all sides, so that the achieved bandwidth compares useful work. It
    counts norm and residual, one input projection, convolution, projections and gated scan in each
    direction, their sum and one output projection. The backward pass counts twice the forward pass.
    Weights, the embedding and the head are not counted.

    Args:
        config: The network.
        tokens: Positions in the batch.
        width: Bytes of one activation.
    """
    d, mamba = config.d_model, config.mamba
    e, rank, states = mamba.expand * d, mamba.rank(d), mamba.d_state
    convolution = 2 * e
    projections = (e + rank + 2 * states) + (rank + e)
    scan = 4 * e + 2 * states
    around = 5 * d + (d + 2 * e) + 3 * e + (e + d)
    forward = around + 2 * (convolution + projections + scan)
    return 3 * forward * config.n_layer * tokens * width

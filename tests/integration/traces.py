"""Hand-made traces, and the colours that they are drawn in."""

import torch

from seqdiff.samplers import Recorder
from seqdiff.trace import Trace

A, C, G, T = (0, 158, 115), (0, 114, 178), (230, 159, 0), (213, 94, 0)
MASK, AGAIN = (230, 230, 230), (85, 85, 85)


def record(states: list[list[int]], symbols: str | list[str], name: str = "one") -> Trace:
    found = Recorder()
    found.start(torch.tensor([[0] * len(states[0]), states[0]]), [0, 1])
    for step, state in enumerate(states[1:], start=1):
        found(step, torch.tensor([[0] * len(state), state]))
    return found.trace(sampler="mine", names=["zero", name], symbols=list(symbols))


def small_trace() -> Trace:
    """Three states of four positions; the third position is masked again."""
    return record([[0, 4, 4, 4], [0, 4, 2, 3], [0, 1, 4, 3]], "ACGTN")

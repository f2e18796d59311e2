"""Sampling a million bases with BlockMamba: memory and speed by position in the row.

The first part samples one row to its end and prints the memory of the process each time the row
passes 10^3, 10^4, ... tokens. The tokens themselves take 9 bytes each. The second part draws the
same number of blocks after 10^3, 10^4, ... given tokens. It alternates between these positions, and
the row ends after the drawn blocks. Run ``python -m benchmarks.block_length``.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor

from benchmarks.block_drawing import Drawing
from benchmarks.common import Ratio, begin, make_parser, positive, print_table, refuse, write_json
from seqdiff.backbones import BlockMamba
from seqdiff.denoiser import Denoiser
from seqdiff.process import Absorbing, Blockwise
from seqdiff.samplers import BlockSampler, FirstHittingSampler

GOAL = 0.1
SYMBOLS = 4


def make_network(d_model: int, n_layer: int) -> BlockMamba:
    """Return a network for four bases and the mask, with the same weights at every call."""
    torch.manual_seed(0)
    network = BlockMamba(d_model, n_layer, num_embeddings=SYMBOLS + 1, num_logits=SYMBOLS)
    return network.eval()


def resident() -> int:
    """Return the resident memory of this process in bytes.

    Raises:
        SystemExit: If the system is not Linux.
    """
    status = Path("/proc/self/status")
    if not status.exists():
        raise SystemExit("block_length reads /proc/self/status, which only Linux has")
    lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
    return int(lines["VmRSS"].split()[0]) * 1024


@dataclass
class Watch:
    """A sampling callback that records memory and time at some positions of the row.

    Attributes:
        tokens_of_step: Tokens known after each number of steps.
        places: Positions to record at, in order.
        memory: Resident bytes at each position.
        times: Seconds since the start at each position.
    """

    tokens_of_step: Callable[[int], int]
    places: list[int]
    memory: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    start: float = field(default_factory=time.perf_counter)

    def __call__(self, step: int, x_t: Int[Tensor, "B L"]) -> None:
        """See ``Sampler.sample``."""
        here = len(self.memory)
        if here < len(self.places) and self.tokens_of_step(step) >= self.places[here]:
            self.memory.append(resident())
            self.times.append(time.perf_counter() - self.start)


def draw_whole(denoiser: Denoiser, inner: FirstHittingSampler, places: list[int]) -> Watch:
    """Sample a row that ends at the last position."""
    size, steps = denoiser.block_size, inner.num_steps or denoiser.block_size
    blank = denoiser.process.blank((1, places[-1]))
    watch = Watch(lambda step: step * size // steps, places)
    BlockSampler(inner).sample(
        denoiser, blank, seeds=torch.zeros(1, dtype=torch.int64), callback=watch
    )
    return watch


def compare_places(drawings: list[Drawing], pairs: int) -> list[list[float]]:
    """Return the seconds per token at each position and pair; odd pairs run in reverse."""
    seconds: list[list[float]] = [[] for _ in drawings]
    for drawing in drawings:
        drawing.seconds()
    for pair in range(pairs):
        order = list(range(len(drawings)))
        for i in reversed(order) if pair % 2 else order:
            seconds[i].append(drawings[i].seconds()[0] / drawings[i].tokens)
    return seconds


def main(arguments: list[str] | None = None) -> None:
    """Print one line per position and write them as JSON if a path is given."""
    parser = make_parser(__doc__)
    parser.set_defaults(pairs=15)
    parser.add_argument("--bases", type=positive, default=1_000_000, help="of the row")
    parser.add_argument("--block_size", type=positive, default=64, help="bases of a block")
    parser.add_argument("--steps", type=positive, default=4, help="evaluations of a block")
    parser.add_argument("--width", type=positive, default=64, help="of the network")
    parser.add_argument("--layers", type=positive, default=2, help="of the network")
    parser.add_argument("--blocks", type=positive, default=16, help="drawn in turns at each place")
    options = parser.parse_args(arguments)
    if options.bases < 10_000 or options.block_size > 1000:
        refuse(
            "block_length.bases must be at least 10,000 and block_size at most 1,000, got "
            f"{options.bases} and {options.block_size}; the places begin at 1,000"
        )
    described = begin()
    network = make_network(options.width, options.layers)
    process = Blockwise(Absorbing(SYMBOLS), options.block_size)
    denoiser = Denoiser(network, process).eval()
    inner = FirstHittingSampler(min(options.steps, options.block_size))
    places = [10**n for n in range(3, 12) if 10**n < options.bases] + [options.bases]
    # kernels are compiled before the clock starts
    draw_whole(denoiser, inner, [4 * options.block_size])
    watch = draw_whole(denoiser, inner, places)
    whole = options.bases / watch.times[-1]
    drawings = [
        Drawing(denoiser, inner, place // options.block_size * options.block_size, options.blocks)
        for place in places
    ]
    seconds = compare_places(drawings, options.pairs)
    ratios = [Ratio(seconds[0], ours) for ours in seconds]
    print_table(
        ("place", "memory", "tokens/s there", "time of a token over that at 1,000"),
        [
            (
                f"{place:,}",
                f"{memory / 2**20:.1f} MiB",
                f"{1 / statistics.median(spent):,.0f}",
                str(ratio),
            )
            for place, memory, spent, ratio in zip(
                places, watch.memory, seconds, ratios, strict=True
            )
        ],
    )
    grown = (watch.memory[-1] - watch.memory[0]) / 2**20
    print(f"all {options.bases:,} bases: {watch.times[-1]:,.0f} s, {whole:,.0f} tokens/s")
    print(f"memory from 1,000 bases to the last: {grown:+.1f} MiB")
    print(f"asked: flat memory, and times that differ by at most {GOAL:.0%}")
    settings: dict[str, object] = {"seconds_of_the_row": watch.times[-1]}
    settings |= {name: value for name, value in vars(options).items() if name != "json"}
    results = [
        {"place": place, "bytes": memory, "seconds_at": spent} | ratio.record()
        for place, memory, spent, ratio in zip(
            places, watch.memory, watch.times, ratios, strict=True
        )
    ]
    write_json(options.json, "block_length", described, settings, results)


if __name__ == "__main__":
    main()

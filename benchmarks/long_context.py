"""Time and memory per base of a training step of Caduceus-Ph, by length of the row.

Prints the time per base at each length, over batches of equally many bases, relative to the
shortest length, and the peak memory of a step on one row, compared with the two-pass layer that
uses mambapy's parallel scan. Before that it checks that a step of both sides gives the same loss
and gradients, and that a scan over the longest row equals scans over its parts, each started from
the previous state. Run ``python -m benchmarks.long_context``.
"""

from __future__ import annotations

from argparse import Namespace

import torch

from benchmarks.common import (
    Ratio,
    Side,
    begin,
    interleave,
    make_parser,
    positive,
    print_table,
    require_same,
    write_json,
)
from benchmarks.peak_memory import step_memory
from benchmarks.scan import inputs, our_scan
from benchmarks.training_step import TrainingStep, make_network
from benchmarks.two_pass import mambapy_layer, two_pass_twin
from seqdiff.ops.selective_scan import selective_scan

LENGTHS = (1024, 4096, 16_384, 65_536, 131_072)
MEMORY_LENGTHS = (1024, 2048, 4096, 8192)
PARALLEL_LENGTH = 4096
TOLERANCE = 1e-3
_CHECKED_CHANNELS, _STATES = 16, 16
_CHECKED_LENGTH = 256


def scan_in_pieces(values: tuple[torch.Tensor, ...], piece: int) -> torch.Tensor:
    """Scan a long row part by part."""
    u, delta, A, B, C, D = values
    outputs, state = [], None
    for first in range(0, u.shape[-1], piece):
        part = slice(first, first + piece)
        out, state = selective_scan(
            u[..., part],
            delta[..., part],
            A,
            B[..., part],
            C[..., part],
            D,
            return_last_state=True,
            initial_state=state,
        )
        outputs.append(out)
    return torch.cat(outputs, dim=-1)


def check(options: Namespace) -> dict[str, float]:
    """Return the largest differences between sides, and between whole and split scan."""
    network = make_network(options.width, options.layers)
    ours, theirs = (
        TrainingStep(n, 1, _CHECKED_LENGTH).numbers()
        for n in (network, two_pass_twin(network, mambapy_layer))
    )
    gaps = {"step": require_same("a training step", ours, theirs, TOLERANCE)}
    longest, shortest = max(options.lengths), min(options.lengths)
    values = inputs(1, _CHECKED_CHANNELS, longest, _STATES)
    whole, pieces = our_scan(*values), scan_in_pieces(values, shortest)
    what = f"a scan of {longest:,} and its pieces of {shortest:,}"
    gaps["scan"] = require_same(what, {"y": whole}, {"y": pieces}, TOLERANCE)
    return gaps


def time_per_base(options: Namespace) -> dict[int, Ratio]:
    """Return the time of a step on equally many bases by length, relative to the first."""
    sides = []
    for length in options.lengths:
        network = make_network(options.width, options.layers)
        step = TrainingStep(network, max(options.lengths) // length, length)
        sides.append(Side(str(length), step))
    seconds = interleave(sides, options.pairs)
    first = seconds[str(options.lengths[0])]
    return {length: Ratio(first, seconds[str(length)]) for length in options.lengths}


def show_times(ratios: dict[int, Ratio], bases: int) -> list[dict[str, object]]:
    """Print the table of times and return it for the JSON file."""
    rows, records = [], []
    for length, ratio in ratios.items():
        per_base = 1e6 * ratio.their_seconds / bases
        rows.append((f"{length:,}", str(bases // length), f"{per_base:.2f}", str(ratio)))
        records.append(
            {
                "length": length,
                "batch": bases // length,
                "microseconds_per_base": per_base,
                "times_the_first_length": ratio.median,
                "of_each_pair": ratio.pairs,
            }
        )
    first = f"{min(ratios):,}"
    print_table(("length", "batch", "us a base", f"of length {first}'s (over pairs)"), rows)
    return records


def peak_memory(options: Namespace) -> list[dict[str, object]]:
    """Print the table of memory and return it for the JSON file."""
    lengths = sorted({*options.memory_lengths, options.parallel_length})
    shape = (options.width, options.layers, 1)
    ours = {length: step_memory("ours", *shape, length) for length in lengths}
    theirs = step_memory("two-pass", *shape, options.parallel_length)
    rows, records = [], []
    for length, peak in ours.items():
        growth = peak / length / (ours[lengths[0]] / lengths[0])
        other = theirs if length == options.parallel_length else None
        cells = (f"{length:,}", f"{peak / 2**20:.1f}", f"{peak / length:,.0f}", f"{growth:.2f}x")
        shown = ("", "") if other is None else (f"{other / 2**20:.1f}", f"1/{other / peak:.1f}")
        rows.append((*cells, *shown))
        records.append(
            {
                "length": length,
                "peak_bytes": peak,
                "per_base_of_first_length": growth,
                "parallel_scan_peak_bytes": other,
                "parallel_scan_ratio": None if other is None else other / peak,
            }
        )
    each = f"of length {lengths[0]:,}'s"
    print_table(("length", "peak MiB", "bytes a base", each, "parallel MiB", "ratio"), rows)
    return records


def read_options(arguments: list[str] | None) -> Namespace:
    """Parse the options and check that the lengths fit."""
    parser = make_parser(__doc__)
    parser.add_argument("--width", type=positive, default=118, help="of the model")
    parser.add_argument("--layers", type=positive, default=4)
    parser.add_argument("--lengths", type=positive, nargs="+", default=list(LENGTHS))
    parser.add_argument("--memory-lengths", type=positive, nargs="+", default=list(MEMORY_LENGTHS))
    parser.add_argument(
        "--parallel-length",
        type=positive,
        default=PARALLEL_LENGTH,
        help="where the parallel scan's memory is measured",
    )
    options = parser.parse_args(arguments)
    options.lengths = sorted(set(options.lengths))
    longest = options.lengths[-1]
    odd = [length for length in options.lengths if longest % length]
    if odd:
        parser.error(f"--lengths must divide the longest, {longest}; {odd[0]} does not")
    return options


def main(arguments: list[str] | None = None) -> None:
    """Print both tables and write them as JSON if a path is given."""
    options = read_options(arguments)
    described = begin()
    print(f"training step of Caduceus-Ph {options.width}x{options.layers}, float32")
    gaps = check(options)
    print(
        f"two passes of mambapy and ours agree to {gaps['step']:.0e}, a scan of "
        f"{options.lengths[-1]:,} and its pieces to {gaps['scan']:.0e}"
    )
    times = show_times(time_per_base(options), options.lengths[-1])
    memory = peak_memory(options)
    settings = {
        "width": options.width,
        "layers": options.layers,
        "pairs": options.pairs,
        "largest_gaps": gaps,
    }
    results = {"time": times, "memory": memory}
    write_json(options.json, "long_context", described, settings, results)


if __name__ == "__main__":
    main()

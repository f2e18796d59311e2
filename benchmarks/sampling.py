"""Cost of each sampler: network evaluations, time per sequence, time outside of the network.

All samplers fill the same blank rows with the same seeds from one Caduceus-Ph. The script fails
unless cached ancestral draws the same rows as ancestral. A few rows may differ, because float32
rounding depends on the batch size. Evaluations are counted per row. The time outside of the network
is a fraction of the wall time. ``left_to_right``, ``block``, ``gibbs`` and ``gaussian`` are not
measured, because they are for other kinds of models. Run ``python -m benchmarks.sampling``.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from benchmarks.common import begin, make_parser, positive, print_table, wait, write_json
from benchmarks.training_step import SYMBOLS, make_network
from seqdiff.denoiser import Denoiser
from seqdiff.process import Absorbing
from seqdiff.samplers import (
    AncestralSampler,
    CachedAncestralSampler,
    ConfidenceSampler,
    EntropyBudgetSampler,
    EntropySampler,
    FirstHittingSampler,
    MarginSampler,
    PredictorCorrectorSampler,
    RemaskCapSampler,
    RemaskConfSampler,
    RemaskLoopSampler,
    RemaskRescaleSampler,
    Sampler,
    SemiAutoregressiveSampler,
    SMCSampler,
    TauLeapingSampler,
    ThresholdSampler,
    TweedieSampler,
)
from seqdiff.types import Inputs, SampleOutput

PLAIN, CACHED, JUMPS = "ancestral", "cached_ancestral", "first_hitting"
PARTICLES = 4
FEWER, OUTSIDE, ROUNDED, SHARPER = 3.0, 0.10, 1 / 16, 10.0


class TimedDenoiser(Denoiser):
    """Denoiser that measures the time spent in the network, including its log-softmax."""

    seconds = 0.0

    def forward(
        self, inputs: Inputs, where: Bool[Tensor, "B L"] | None = None
    ) -> Float[Tensor, "*positions columns"]:
        """Predict, and add the time to ``seconds``."""
        wait(inputs.tokens.device.type)
        start = time.perf_counter()
        answer = super().forward(inputs, where)
        wait(inputs.tokens.device.type)
        self.seconds += time.perf_counter() - start
        return answer


def make_samplers(steps: int, length: int) -> dict[str, Sampler]:
    """Return the samplers to measure, by their names on the command line."""
    window = max(2, length // 2)
    return {
        PLAIN: AncestralSampler(steps),
        CACHED: CachedAncestralSampler(steps),
        JUMPS: FirstHittingSampler(),
        "first_hitting, L/4 steps": FirstHittingSampler(max(1, length // 4)),
        "confidence": ConfidenceSampler(),
        "margin": MarginSampler(),
        "entropy": EntropySampler(),
        "threshold": ThresholdSampler(),
        "entropy_budget": EntropyBudgetSampler(),
        "semi_autoregressive": SemiAutoregressiveSampler(window, window // 2),
        "remask_cap": RemaskCapSampler(length),
        "remask_rescale": RemaskRescaleSampler(length),
        "remask_conf": RemaskConfSampler(length),
        "remask_loop": RemaskLoopSampler(length),
        "predictor_corrector": PredictorCorrectorSampler(length),
        "tweedie": TweedieSampler(length),
        "tau_leaping": TauLeapingSampler(length),
        f"smc, {PARTICLES} particles, L/8 steps": SMCSampler(
            reward=first_symbols, num_particles=PARTICLES, num_steps=max(1, length // 8)
        ),
    }


def first_symbols(tokens: Int[Tensor, "n L"]) -> Float[Tensor, " n"]:
    """Reward of negligible cost: the fraction of the first symbol."""
    return (tokens == 0).double().mean(dim=-1)


@dataclass
class Cost:
    """The cost of one sampler, with one entry per repeat."""

    nfe: Tensor
    seconds: list[float] = field(default_factory=list)
    network: list[float] = field(default_factory=list)

    @property
    def evaluations(self) -> float:
        """Return the mean over the rows."""
        return float(self.nfe.double().mean())

    @property
    def outside(self) -> float:
        """Return the median fraction of the time that is spent outside of the network."""
        pairs = zip(self.network, self.seconds, strict=True)
        return statistics.median(1 - network / whole for network, whole in pairs)

    def record(self, name: str) -> dict[str, object]:
        """Return the record for the JSON file."""
        return {
            "sampler": name,
            "evaluations": self.evaluations,
            "most_evaluations": int(self.nfe.max()),
            "seconds_a_sequence": [s / len(self.nfe) for s in self.seconds],
            "share_outside_the_network": self.outside,
        }


class Bench:
    """One network and one set of blank rows.

    Args:
        rows: Sequences.
        length: Bases of each.
        shape: Width and depth of the network.
        device: ``cpu`` or ``cuda``.
    """

    def __init__(self, rows: int, length: int, shape: tuple[int, int], device: str) -> None:
        network = make_network(*shape)
        # Fresh weights predict almost uniformly: stale predictions would draw the same rows.
        for name, parameter in network.named_parameters():
            if name.startswith("embedding") or "out_proj" in name:
                parameter.data.mul_(SHARPER)
        process = Absorbing(SYMBOLS)
        self.denoiser = TimedDenoiser(network, process).to(device).eval()
        self.blank = process.blank((rows, length), device)
        self.seeds = torch.arange(rows, device=device)

    def sample(self, sampler: Sampler) -> SampleOutput:
        """Fill the rows."""
        return sampler.sample(self.denoiser, self.blank, seeds=self.seeds)

    def measure(self, sampler: Sampler, cost: Cost | None) -> tuple[Cost, Tensor]:
        """Run and time a sampler once."""
        self.denoiser.seconds = 0.0
        start = time.perf_counter()
        drawn = self.sample(sampler)
        wait(self.blank.device.type)
        whole = time.perf_counter() - start
        cost = Cost(drawn.nfe) if cost is None else cost
        cost.seconds.append(whole)
        cost.network.append(self.denoiser.seconds)
        return cost, drawn.tokens


def compare(bench: Bench, samplers: dict[str, Sampler], pairs: int) -> tuple[dict[str, Cost], int]:
    """Measure every sampler in every repeat; every other repeat runs in reverse order.

    Returns:
        The costs, and the number of rows in which cached and plain ancestral differ.

    Raises:
        SystemExit: If that number is larger than rounding explains.
    """
    costs: dict[str, Cost] = {}
    tokens: dict[str, Tensor] = {}
    bench.sample(FirstHittingSampler(1))  # kernels are compiled before the clock starts
    for pair in range(pairs):
        for name in list(samplers)[:: -1 if pair % 2 else 1]:
            costs[name], tokens[name] = bench.measure(samplers[name], costs.get(name))
    differ = (tokens[PLAIN] != tokens[CACHED]).any(dim=-1)
    if differ.double().mean() > ROUNDED:
        raise SystemExit(
            f"sampling: {CACHED} and {PLAIN} differ in {int(differ.sum())} of {len(differ)} rows, "
            "more than rounding explains; nothing is reported"
        )
    return costs, int(differ.sum())


def main(arguments: list[str] | None = None) -> None:
    """Print one line per sampler and write them as JSON if a path is given."""
    parser = make_parser(__doc__)
    parser.set_defaults(pairs=1)
    parser.add_argument("--rows", type=positive, default=64, help="sequences")
    parser.add_argument("--length", type=positive, default=256, help="bases of a sequence")
    parser.add_argument("--steps", type=positive, default=1000, help="of ancestral sampling")
    parser.add_argument("--width", type=positive, default=118, help="of the network")
    parser.add_argument("--layers", type=positive, default=4, help="of the network")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args(arguments)
    described = begin(options.device)
    bench = Bench(options.rows, options.length, (options.width, options.layers), options.device)
    costs, differ = compare(bench, make_samplers(options.steps, options.length), options.pairs)
    print_table(
        ("sampler", "evaluations", "most", "ms/sequence", "outside"),
        [
            (
                name,
                f"{cost.evaluations:.1f}",
                f"{int(cost.nfe.max())}",
                f"{1e3 * statistics.median(cost.seconds) / options.rows:.1f}",
                f"{cost.outside:.1%}",
            )
            for name, cost in costs.items()
        ],
    )
    fewer = costs[PLAIN].evaluations / costs[CACHED].evaluations
    print(f"{CACHED}: {fewer:.2f}x fewer evaluations than {PLAIN}, asked {FEWER:.0f}x")
    print(f"{CACHED}: {differ} of {options.rows} rows differ from {PLAIN} by rounding")
    print(f"{JUMPS}: {int(costs[JUMPS].nfe.max())} evaluations, asked at most {options.length}")
    print("left_to_right: not measured, it is for autoregressive models")
    print("block: not measured, it is for block diffusion; see benchmarks.block_sampling")
    print("gibbs: not measured, it is for uniform and hybrid noise")
    print("gaussian: not measured, it is for Gaussian diffusion")
    print(f"outside the network: asked less than {OUTSIDE:.0%}")
    settings: dict[str, object] = {"rows_that_differ_by_rounding": differ}
    settings |= {name: value for name, value in vars(options).items() if name != "json"}
    results = [cost.record(name) for name, cost in costs.items()]
    write_json(options.json, "sampling", described, settings, results)


if __name__ == "__main__":
    main()

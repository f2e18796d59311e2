"""Ways to reach wanted activities at equal compute: conditions, SMC, classifier, best of n.

Designs are drawn for wanted values that are taken from a table, evenly spaced in its first signal.
A guide steers or ranks, and a judge that was trained on other sequences predicts the designs.
Compute is counted in network and oracle evaluations, weighted by the seconds that one of each
takes. The budget is that of conditions + smc with ``--particles``. The other ways that use the
guide get as many particles or candidates as fit. Ways without the guide cost less and are given for
comparison. Run ``python -m benchmarks.guidance --table T --signals S --run RUN --guide ORACLE
--judge ORACLE``.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from benchmarks.common import begin, make_parser, positive, print_table, refuse, write_json
from genomics.design import Oracle, OracleGoal, check_judge, check_masked, pairwise_distances
from genomics.io import read_table
from genomics.sequence import count_kmers, encode, join, js_divergence
from seqdiff.run import Run, guide, load, open_sampler

_ROWS = 256  # particles or candidates in a batch
_K = 6


@dataclass(frozen=True)
class Way:
    """A way to draw designs.

    Attributes:
        name: Its name in the table.
        guidance: Strength of guidance by the conditions; 0 leaves them out.
        uses: What the guide does: ``nothing``, ``smc``, ``classifier`` or ``ranks``. Candidates of
            a classifier are ranked too, if several fit into the budget.
    """

    name: str
    guidance: float
    uses: str = "nothing"


WAYS = (
    Way("no conditions", 0.0),
    Way("conditions", 1.0),
    Way("conditions, guidance 1.5", 1.5),
    Way("conditions, guidance 2", 2.0),
    Way("smc", 0.0, "smc"),
    Way("conditions + smc", 1.0, "smc"),
    Way("guidance 1.5 + smc", 1.5, "smc"),
    Way("classifier", 0.0, "classifier"),
    Way("conditions + classifier", 1.0, "classifier"),
    Way("best of n", 0.0, "ranks"),
    Way("conditions, best of n", 1.0, "ranks"),
    Way("guidance 1.5, best of n", 1.5, "ranks"),
)
_BUDGET = WAYS[5]


@dataclass
class Spent:
    """Evaluations, in rows.

    Attributes:
        network: Those of the run's network.
        oracle: Those of the guide.
    """

    network: float = 0.0
    oracle: float = 0.0

    def cost(self, unit: Spent) -> float:
        """Return the seconds that they take, given those of one of each."""
        return self.network * unit.network + self.oracle * unit.oracle


class Bench:
    """A run, its wanted values and the guide.

    Args:
        run: The run.
        oracle: The guide.
        wanted: Wanted values of each target, in the order of the run's signals.
        signals: Names of the signals that the guide predicts.
        length: Bases of a design.
    """

    def __init__(
        self,
        run: Run,
        oracle: Oracle,
        wanted: Float32[np.ndarray, "T S"],
        signals: list[str],
        length: int,
    ) -> None:
        self.run, self.wanted, self.length = run, wanted, length
        names = run.datamodule.signals or []
        self.goals = [
            OracleGoal(oracle=oracle, targets={n: float(row[names.index(n)]) for n in signals})
            for row in wanted
        ]
        self.spent = Spent()
        oracle.register_forward_hook(self._count)

    def _count(self, _: object, given: tuple[Tensor, ...], __: object) -> None:
        self.spent.oracle += len(given[0])

    @torch.no_grad()
    def draw(self, way: Way, copies: int, target: int, count: int, seed: int) -> list[str]:
        """Draw designs for a target.

        Args:
            way: The way.
            copies: Particles, or candidates for each design.
            target: Number of the target.
            count: Number of designs.
            seed: Seed of all draws for the target.
        """
        run, goal = self.run, self.goals[target]
        given = way.guidance > 0
        model = guide("guidance", run, None, way.guidance if given else None, signal=given).denoiser
        if way.uses == "classifier":
            model = goal.steer(model, self.length).eval()
        particles = way.uses == "smc"
        sampler = goal.sampler(copies) if particles else open_sampler(run, None, [])
        rows = count if particles else count * copies
        seeds = run.row_seeds(rows, seed)
        before, tokens = self.spent.oracle, []
        for part in seeds.split(max(1, _ROWS // copies) if particles else _ROWS):
            signal = torch.from_numpy(self.wanted[[target] * len(part)]) if given else None
            x_init = run.process.blank((len(part), self.length))
            found = sampler.sample(model, x_init, seeds=part, signal=signal)
            tokens.append(found.tokens)
            self.spent.network += int(found.nfe.sum())
        if way.uses == "classifier":  # whose evaluations are in the sampler's count, too
            self.spent.network -= self.spent.oracle - before
        drawn = torch.cat(tokens)
        if rows > count:
            scores = goal.reward(drawn).view(count, copies)
            drawn = drawn.view(count, copies, -1)[torch.arange(count), scores.argmax(dim=1)]
        return [run.tokenizer.decode(row.numpy()) for row in drawn]

    def measure(self, work: Callable[[], object]) -> tuple[Spent, float]:
        """Do some work; return the evaluations and the seconds that it took."""
        self.spent = Spent()
        start = time.perf_counter()
        work()
        return self.spent, time.perf_counter() - start

    def units(self, count: int) -> Spent:
        """Return the seconds of one evaluation of the network and of the guide."""
        self.draw(WAYS[1], 1, 0, count, 0)  # compiles kernels
        spent, seconds = self.measure(lambda: self.draw(WAYS[1], 1, 0, count, 0))
        rows = torch.zeros((_ROWS, self.length), dtype=torch.int64)
        with torch.no_grad():
            self.goals[0].reward(rows)
            asked, taken = self.measure(lambda: self.goals[0].reward(rows))
        return Spent(seconds / spent.network, taken / asked.oracle)


def choose_copies(bench: Bench, particles: int, unit: Spent) -> dict[str, int]:
    """Choose how many particles or candidates of each way cost what the budget allows."""
    costs = {}
    for way in WAYS:
        copies = 2 if way.uses == "smc" else 1
        spent, _ = bench.measure(lambda way=way, copies=copies: bench.draw(way, copies, 0, 2, 0))
        costs[way.name] = spent.cost(unit) / copies
    budget = particles * costs[_BUDGET.name]
    chosen = {
        way.name: 1 if way.uses == "nothing" else max(1, round(budget / costs[way.name]))
        for way in WAYS
    }
    return chosen | {_BUDGET.name: particles}


def judge_designs(
    judge: Oracle,
    signals: list[str],
    wanted: Float32[np.ndarray, "N S"],
    sequences: list[list[str]],
    known: Int64[np.ndarray, " kmers"],
) -> dict[str, float]:
    """Measure designs.

    Args:
        judge: Predicts them.
        signals: Names of the wanted values.
        wanted: Wanted values of each target.
        sequences: Designs of each target.
        known: Counts of the k-mers of the table's sequences.

    Returns:
        Pearson correlation and mean squared error of predicted and wanted values, averaged over
        signals; Jensen-Shannon divergence of k-mers from the table; median edit distance of the
        designs of a target.
    """
    flat = [row for rows in sequences for row in rows]
    goals = np.repeat(wanted, [len(rows) for rows in sequences], axis=0).astype(np.float64)
    columns = [judge.column(name) for name in signals]
    predicted = judge.predict(flat)[:, columns]
    pearson = [float(np.corrcoef(predicted[:, i], goals[:, i])[0, 1]) for i in range(len(signals))]
    pairs = [pairwise_distances(rows)[np.triu_indices(len(rows), 1)] for rows in sequences]
    counts = count_kmers(join([encode(row) for row in flat]))[_K - 1]
    return {
        "pearson": statistics.fmean(pearson),
        "mse": float(((predicted - goals) ** 2).mean()),
        "kmer_js": js_divergence(counts, known),
        "distance": float(np.median(np.concatenate(pairs))),
    }


def read_wanted(
    table: Path, signals: list[str], targets: int, run: Run
) -> tuple[Float32[np.ndarray, "T S"], Int64[np.ndarray, " kmers"]]:
    """Take the values of rows that are evenly spaced in the first signal, and count k-mers.

    Raises:
        ValueError: If the run has no such signal, or no row has all values.
    """
    names = run.datamodule.signals or []
    if not set(signals) <= set(names):
        raise ValueError(
            f"guidance.signals must be signals of the run, {', '.join(names) or 'none'}, got "
            f"{', '.join(signals)}; correct the names"
        )
    rows = read_table(table, signals=signals)
    values = rows.values[~np.isnan(rows.values).any(axis=1)]
    if not len(values):
        raise ValueError(
            f"guidance.table must hold a row with all of {', '.join(signals)}, got none; check "
            "the columns"
        )
    order = np.argsort(values[:, 0], kind="stable")
    places = ((np.arange(targets) + 0.5) / targets * len(values)).astype(int)
    wanted = np.full((targets, len(names)), np.nan, dtype=np.float32)
    wanted[:, [names.index(name) for name in signals]] = values[order[places]]
    return wanted, count_kmers(join([encode(row) for row in rows.sequences]))[_K - 1]


def main(arguments: list[str] | None = None) -> None:
    """Print the table and write it as JSON if a path is given."""
    parser = make_parser(__doc__)
    for flag in ("table", "run", "guide", "judge"):
        parser.add_argument(f"--{flag}", type=Path, required=True)
    parser.add_argument("--signals", nargs="+", required=True)
    parser.add_argument("--num", type=positive, default=32, help="designs for each target")
    parser.add_argument("--targets", type=positive, default=8, help="wanted values")
    parser.add_argument("--particles", type=positive, default=8, help="of conditions + smc")
    parser.set_defaults(pairs=3)
    options = parser.parse_args(arguments)
    if options.num < 2 or options.targets < 2:
        refuse("guidance.num and targets must be at least 2, so that designs can be compared")
    described = begin()
    try:
        run = load(options.run, device="cpu")
        oracle, judge = Oracle.load(options.guide), Oracle.load(options.judge)
        check_masked(oracle)
        check_judge(judge, oracle)
        for name in options.signals:
            oracle.column(name)
            judge.column(name)
        wanted, known = read_wanted(options.table, options.signals, options.targets, run)
    except (ValueError, OSError) as error:
        refuse(str(error))
    bench = Bench(run, oracle, wanted, options.signals, run.usual_length("guidance.length"))
    unit = bench.units(options.num)
    copies = choose_copies(bench, options.particles, unit)
    found: dict[str, list[dict[str, float]]] = {way.name: [] for way in WAYS}
    columns = [(run.datamodule.signals or []).index(name) for name in options.signals]
    for repeat in range(options.pairs):
        for way in WAYS[::-1] if repeat % 2 else WAYS:
            designs: list[list[str]] = []

            def work(way: Way = way, into: list[list[str]] = designs, seed: int = repeat) -> None:
                for target in range(options.targets):
                    own = seed * options.targets + target
                    into.append(bench.draw(way, copies[way.name], target, options.num, own))

            spent, seconds = bench.measure(work)
            total = options.num * options.targets
            measured = judge_designs(judge, options.signals, wanted[:, columns], designs, known)
            found[way.name].append(
                {
                    **measured,
                    "network_evaluations": spent.network / total,
                    "oracle_evaluations": spent.oracle / total,
                    "cost": spent.cost(unit) / total,
                    "seconds": seconds / total,
                }
            )
    rows, results = [], {}
    for name, repeats in found.items():
        mean = {key: statistics.fmean(each[key] for each in repeats) for key in repeats[0]}
        results[name] = {"copies": copies[name], "mean": mean, "repeats": repeats}
        spread = statistics.pstdev(each["pearson"] for each in repeats)
        rows.append(
            (
                name,
                str(copies[name]),
                f"{mean['pearson']:.3f} ({spread:.3f})",
                *(f"{mean[key]:.3f}" for key in ("mse", "kmer_js")),
                f"{mean['distance']:.0f}",
                *(f"{mean[f'{key}_evaluations']:.0f}" for key in ("network", "oracle")),
                *(f"{1000 * mean[key]:.1f}" for key in ("cost", "seconds")),
            )
        )
    header = ("way", "copies", "Pearson (sd)", "MSE", "6-mer JS", "distance", "network", "oracle")
    print_table((*header, "counted ms", "ms"), rows)
    hidden = ("json", "table", "run", "guide", "judge")
    settings = {key: value for key, value in vars(options).items() if key not in hidden}
    settings |= {key: str(getattr(options, key)) for key in hidden[1:]}
    settings |= {"seconds_per_network_evaluation": unit.network}
    settings |= {"seconds_per_oracle_evaluation": unit.oracle}
    write_json(options.json, "guidance", described, settings, results)


if __name__ == "__main__":
    main()

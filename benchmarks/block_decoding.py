"""Confidence-parallel decoding of blocks, against one token per evaluation, at equal perplexity.

All sides draw rows from one run of block diffusion with the same seeds, in turns. ``plain`` unmasks
the tokens of a block one at a time in a random order, which is the model's own distribution; it is
also measured with fewer steps per block. The other sides unmask all tokens above a threshold at
once (Wu et al. 2025, arXiv:2505.22618), with and without the approximate cache within a block. An
autoregressive run of the same tokens judges the samples. The result is the fastest side whose
generative perplexity is at most that of ``plain``. Perplexity alone can be lowered by repeating
words, so the unigram entropy stands beside it. Run
``python -m benchmarks.block_decoding RUN --judge RUN``.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from benchmarks.common import (
    Ratio,
    begin,
    make_parser,
    positive,
    print_table,
    refuse,
    wait,
    write_json,
)
from seqdiff.denoiser import Denoiser
from seqdiff.likelihood import Likelihood, evaluate, ratio_error
from seqdiff.run import Run, load
from seqdiff.samplers import BlockSampler, FirstHittingSampler, ThresholdSampler
from seqdiff.types import Batch

GOAL = 3.0
PLAIN = "plain"


@dataclass
class Drawn:
    """What one side has drawn.

    Attributes:
        sampler: The side.
        seconds: Seconds of each pair.
        tokens: The rows of each pair.
        nfe: Evaluations of each row, in blocks.
    """

    sampler: BlockSampler
    seconds: list[float] = field(default_factory=list)
    tokens: list[Int64[Tensor, "B L"]] = field(default_factory=list)
    nfe: list[Int64[Tensor, " B"]] = field(default_factory=list)

    def draw(self, denoiser: Denoiser, rows: int, length: int, pair: int) -> None:
        """Draw rows whose seeds depend on the pair only, and keep them."""
        device = next(denoiser.parameters()).device
        blank = denoiser.process.blank((rows, length)).to(device)
        seeds = torch.arange(rows, device=device) + pair * rows
        wait(device.type)
        start = time.perf_counter()
        found = self.sampler.sample(denoiser, blank, seeds=seeds)
        wait(device.type)
        self.seconds.append(time.perf_counter() - start)
        self.tokens.append(found.tokens)
        self.nfe.append(found.nfe)

    def judged(self, judge: Denoiser) -> Likelihood:
        """Compute -log p of the rows under the judge."""
        rows = torch.cat(self.tokens)
        every = Batch(rows, torch.ones_like(rows, dtype=torch.bool), torch.arange(len(rows)))
        parts = torch.arange(len(rows)).split(max(1, 16_384 // rows.shape[1]))
        return evaluate(judge, [every.take(part.to(rows.device)) for part in parts])

    def entropies(self) -> np.ndarray:
        """Compute the unigram entropy of each row, in nats."""
        counts = [row.unique(return_counts=True)[1] for row in torch.cat(self.tokens)]
        return np.array([float(torch.special.entr(n / n.sum()).sum()) for n in counts])


def make_sides(size: int, thresholds: list[float]) -> dict[str, BlockSampler]:
    """Return the samplers by their names in the table."""
    sides = {PLAIN: BlockSampler(FirstHittingSampler())}
    for steps in dict.fromkeys(max(1, size // part) for part in (2, 4)):
        sides[f"plain, {steps} steps"] = BlockSampler(FirstHittingSampler(steps))
    for threshold in thresholds:
        inner = ThresholdSampler(threshold)
        sides[f"threshold {threshold}"] = BlockSampler(inner)
        sides[f"threshold {threshold}, refresh {size}"] = BlockSampler(inner, refresh=size)
    return sides


def open_runs(blocks: Path, judge: Path, device: str) -> tuple[Run, Run]:
    """Load both runs.

    Raises:
        SystemExit: If one is of another kind, or their tokens differ.
    """
    run, other = (load(path, device=device) for path in (blocks, judge))
    if run.denoiser.context != "block" or not run.denoiser.backbone.reuses_keys:
        refuse(f"block_decoding.run must be a transformer of block diffusion, got {blocks}")
    if other.denoiser.context != "prefix":
        refuse(f"block_decoding.judge must be an autoregressive run, got {judge}")
    names = [
        [r.datamodule.tokenizer.decode([i]) for i in range(r.process.vocab_size)]
        for r in (run, other)
    ]
    if names[0] != names[1]:
        refuse(f"block_decoding.judge must have the tokens of {blocks}, got others in {judge}")
    return run, other


def main(arguments: list[str] | None = None) -> None:
    """Print one line per side and write them as JSON if a path is given."""
    parser = make_parser(__doc__)
    parser.add_argument("run", type=Path, help="run of block diffusion by a Transformer")
    parser.add_argument("--judge", type=Path, required=True, help="autoregressive run")
    parser.add_argument("--rows", type=positive, default=16, help="rows of a batch")
    parser.add_argument("--length", type=positive, help="tokens of a row; default: as in training")
    parser.add_argument("--thresholds", type=float, nargs="+", default=[0.9, 0.7, 0.5, 0.4, 0.3])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        refuse("block_decoding: --device cuda needs a CUDA device, and PyTorch sees none")
    run, other = open_runs(options.run, options.judge, options.device)
    length = options.length or run.datamodule.context_length
    if length is None:
        refuse(f"block_decoding.length must be given, {options.run} has rows of any length")
    described = begin(options.device)
    sides = {
        name: Drawn(sampler)
        for name, sampler in make_sides(run.denoiser.block_size, options.thresholds).items()
    }
    warm = Drawn(sides[PLAIN].sampler)
    warm.draw(run.denoiser, options.rows, min(length, 2 * run.denoiser.block_size), 0)
    for pair in range(options.pairs):
        for side in list(sides.values())[:: -1 if pair % 2 else 1]:
            side.draw(run.denoiser, options.rows, length, pair)
    plain = sides[PLAIN]
    base = plain.judged(other.denoiser).perplexity
    rows, results, fitting = [], [], {}
    for name, side in sides.items():
        nats = side.judged(other.denoiser)
        entropy, ratio = side.entropies(), Ratio(side.seconds, plain.seconds)
        equal = nats.perplexity <= base
        if equal:
            fitting[name] = ratio
        tokens = options.rows * length
        calls = float(torch.cat(side.nfe).double().mean()) / length
        error = nats.perplexity * ratio_error(nats.nats, nats.num_tokens, stretches=len(nats.nats))
        rows.append(
            (
                name,
                f"{calls:.3f}",
                f"{tokens / ratio.seconds:,.0f}",
                str(ratio),
                f"{nats.perplexity:.3f} ± {error:.3f}",
                f"{entropy.mean():.3f}",
                "yes" if equal else "no",
            )
        )
        results.append(
            {
                "side": name,
                "evaluations_per_token": calls,
                "tokens_per_second": tokens / ratio.seconds,
                "perplexity": nats.perplexity,
                "perplexity_error": error,
                "entropy": float(entropy.mean()),
                "entropy_error": float(entropy.std(ddof=1) / len(entropy) ** 0.5)
                if len(entropy) > 1
                else None,
                "at_most_plain": equal,
                **ratio.record(),
            }
        )
    heading = ("evaluations/token", "tokens/s", "ratio", "perplexity", "entropy", "equal or better")
    print_table(("", *heading), rows)
    fastest = max(fitting, key=lambda name: fitting[name].median)
    print(f"at equal perplexity: {fastest}, {fitting[fastest]}; asked: at least {GOAL:.0f}x")
    settings = {
        name: str(value) if isinstance(value, Path) else value
        for name, value in vars(options).items()
        if name != "json"
    }
    write_json(options.json, "block_decoding", described, settings | {"length": length}, results)


if __name__ == "__main__":
    main()

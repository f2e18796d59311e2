"""A training step of the transformer, in tokens/s and as a fraction of the matrix-product rate.

A step is corruption, forward, bound, backward and AdamW on one batch, with dropout, as in training.
A large product of square matrices alternates with the step, so that both see the same machine. The
loss and gradients of the step are compared with float64 on the CPU before anything is timed. With
``--device cuda`` the activations are in bfloat16 and the blocks are compiled. Run ``python -m
benchmarks.transformer_step``.
"""

from __future__ import annotations

import re
import statistics
from argparse import ArgumentTypeError, BooleanOptionalAction, Namespace
from dataclasses import dataclass, replace

import torch

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
from benchmarks.transformer_training import Shape, TransformerStep, make_network, matrix_flops

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
DEFAULT_DTYPE = {"cpu": "float32", "cuda": "bfloat16"}
DEFAULT_BATCH = {"cpu": 1, "cuda": 16}
DEFAULT_PRODUCT = {"cpu": 2048, "cuda": 8192}
SMALL = Shape(768, 12, 12, 1024)
GPT2_VOCABULARY = 50_257
DROPOUT = 0.1
CHECKED_LENGTH = 64


def shape(text: str) -> Shape:
    """Read ``WIDTHxLAYERSxHEADSxLENGTH``."""
    if re.fullmatch(r"[1-9]\d*(x[1-9]\d*){3}", text) is None:
        raise ArgumentTypeError(
            f"must be WIDTHxLAYERSxHEADSxLENGTH as in 768x12x12x1024, got {text!r}"
        )
    read = Shape(*map(int, text.split("x")))
    if read.d_model % (2 * read.n_heads):
        raise ArgumentTypeError(f"must have a width that 2 * heads divide, got {text!r}")
    return read


class Product:
    """A product of square matrices, which measures the peak rate of the machine.

    Args:
        side: Rows and columns.
        device: ``cpu`` or ``cuda``.
        dtype: Type of the matrices.
    """

    def __init__(self, side: int, device: str, dtype: torch.dtype) -> None:
        self.left, self.right = (torch.randn(side, side).to(device, dtype) for _ in range(2))
        self.result = torch.empty_like(self.left)
        self.flops = 2 * side**3

    def __call__(self) -> None:
        """Multiply the matrices."""
        torch.mm(self.left, self.right, out=self.result)


def tolerance(dtype: str) -> float:
    """Return the largest allowed difference from float64, relative to a tensor's largest value."""
    return 1e-1 if dtype == "bfloat16" else 1e-3


def check(at: Shape, options: Namespace) -> float:
    """Compare the step on short rows without dropout with float64 on the CPU."""
    short = replace(at, length=min(at.length, CHECKED_LENGTH))
    size = (2, short.length)
    ours = TransformerStep(
        make_network(short, options.vocabulary, 0.0),
        *size,
        device=options.device,
        dtype=DTYPES[options.dtype],
        compiled=options.compile,
    ).numbers()
    exact = TransformerStep(
        make_network(short, options.vocabulary, 0.0).double(),
        *size,
        device="cpu",
        dtype=torch.float64,
        compiled=False,
    ).numbers()
    what = f"{at}, {options.dtype} on {options.device} and float64"
    return require_same(what, ours, exact, tolerance(options.dtype))


@dataclass(frozen=True)
class Row:
    """Measurements at one shape.

    Attributes:
        shape: Shape of network and row.
        batch: Rows.
        scored: Positions at which the vocabulary is scored.
        tokens: Tokens of the batch.
        flops: Operations of the step's matrix products.
        product_flops: Operations of the product that it is compared with.
        times: Times of the step and of the product.
        gap: Largest difference from float64.
        peak_bytes: Peak CUDA memory.
    """

    shape: Shape
    batch: int
    scored: int
    tokens: int
    flops: int
    product_flops: int
    times: Ratio
    gap: float
    peak_bytes: int | None

    @property
    def shares(self) -> list[float]:
        """Return the step's rate as a fraction of the product's, pair by pair."""
        return [self.flops / self.product_flops * ratio for ratio in self.times.pairs]

    @property
    def tokens_per_second(self) -> float:
        """Return the throughput."""
        return self.tokens / self.times.seconds

    def cells(self) -> tuple[str, ...]:
        """Return the cells of the printed table."""
        rates = (self.flops / self.times.seconds, self.product_flops / self.times.their_seconds)
        share, low, high = statistics.median(self.shares), min(self.shares), max(self.shares)
        return (
            str(self.shape),
            str(self.batch),
            f"{self.times.seconds:.3f}",
            f"{self.tokens_per_second:,.0f}",
            *(f"{rate / 1e12:.3f}" for rate in rates),
            f"{share:.1%} ({low:.1%} to {high:.1%})",
            f"{self.gap:.0e}",
            "-" if self.peak_bytes is None else f"{self.peak_bytes / 2**30:.1f}",
        )

    def record(self) -> dict[str, object]:
        """Return the record for the JSON file."""
        return {
            "shape": str(self.shape),
            "batch": self.batch,
            "scored_positions": self.scored,
            "seconds": self.times.seconds,
            "tokens_per_second": self.tokens_per_second,
            "matrix_flops": self.flops,
            "flops_per_second": self.flops / self.times.seconds,
            "product_flops_per_second": self.product_flops / self.times.their_seconds,
            "share_of_product_rate": statistics.median(self.shares),
            "share_of_each_pair": self.shares,
            "largest_gap": self.gap,
            "peak_bytes": self.peak_bytes,
        }


def measure(at: Shape, options: Namespace) -> Row:
    """Check and time one shape."""
    device, dtype = options.device, DTYPES[options.dtype]
    gap = check(at, options)
    network = make_network(at, options.vocabulary, DROPOUT)
    step = TransformerStep(
        network, options.batch, at.length, device=device, dtype=dtype, compiled=options.compile
    )
    product = Product(options.product, device, dtype)
    sides = [Side("step", step), Side("product", product, calls=5)]
    seconds = interleave(sides, options.pairs, device)
    return Row(
        shape=at,
        batch=options.batch,
        scored=step.scored,
        tokens=step.tokens,
        flops=matrix_flops(network.config, step.tokens, at.length, step.scored),
        product_flops=product.flops,
        times=Ratio(seconds["step"], seconds["product"]),
        gap=gap,
        peak_bytes=torch.cuda.max_memory_allocated() if device == "cuda" else None,
    )


def read_options(arguments: list[str] | None) -> Namespace:
    """Parse the options and fill in those that depend on the device."""
    parser = make_parser(__doc__)
    parser.add_argument("--device", choices=sorted(DEFAULT_DTYPE), default="cpu")
    parser.add_argument("--dtype", choices=sorted(DTYPES), help="bfloat16 on CUDA, else float32")
    parser.add_argument("--shape", type=shape, nargs="+", default=[SMALL])
    parser.add_argument("--vocabulary", type=positive, default=GPT2_VOCABULARY)
    parser.add_argument("--batch", type=positive, help="rows; 1 on the CPU, 16 on CUDA")
    parser.add_argument("--product", type=positive, help="rows of the matrices that are multiplied")
    parser.add_argument(
        "--compile", action=BooleanOptionalAction, help="compile the blocks; by default on CUDA"
    )
    options = parser.parse_args(arguments)
    options.dtype = options.dtype or DEFAULT_DTYPE[options.device]
    options.batch = options.batch or DEFAULT_BATCH[options.device]
    options.product = options.product or DEFAULT_PRODUCT[options.device]
    if options.compile is None:
        options.compile = options.device == "cuda"
    return options


def main(arguments: list[str] | None = None) -> None:
    """Print the table and write it as JSON if a path is given."""
    options = read_options(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        refuse("transformer_step: --device cuda needs a CUDA device, and PyTorch sees none")
    described = begin(options.device)
    rows = [measure(at, options) for at in options.shape]
    compiled = "compiled" if options.compile else "not compiled"
    print(f"{options.dtype}, {compiled}, vocabulary {options.vocabulary:,}")
    rates = ("TFLOP/s", "of the product", "share over pairs")
    header = ("shape", "batch", "s", "tokens/s", *rates, "gap", "peak GiB")
    print_table(header, [row.cells() for row in rows])
    settings = {
        "dtype": options.dtype,
        "compiled": options.compile,
        "vocabulary": options.vocabulary,
        "product": options.product,
        "pairs": options.pairs,
        "dropout": DROPOUT,
    }
    kind = "-compiled" if options.compile and options.device == "cpu" else ""
    write_json(
        options.json,
        f"transformer_step-{options.dtype}{kind}",
        described,
        settings,
        [row.record() for row in rows],
    )


if __name__ == "__main__":
    main()

"""Block diffusion with and without its cache: tokens/s of rows of 1,024 tokens.

Both sides draw the same blocks from one transformer with the same seeds, token by token. Their
tokens are compared before anything is reported. One side keeps keys and values of the clean blocks.
The other keeps the tokens and reads all of them again for each evaluation. It does so in one clean
pass, which is less work than the training pass over both halves. Blocks are drawn in the middle of
equal parts of the row, so their mean cost is that of the whole row. Run
``python -m benchmarks.block_sampling``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from benchmarks.block_drawing import Drawing
from benchmarks.common import Ratio, begin, make_parser, positive, print_table, refuse, write_json
from seqdiff.backbones import BlockCache, Transformer
from seqdiff.denoiser import Denoiser, Prefix
from seqdiff.process import Absorbing, Blockwise
from seqdiff.samplers import FirstHittingSampler

GOAL = 5.0
SYMBOLS = 27
DIFFER, SHARPER = 0.02, 1.5
SIZES, BATCHES = (4, 16), (1, 16)


@dataclass
class TokensOnly:
    """A ``BlockCache`` that keeps the tokens and reads all of them again."""

    network: Transformer
    size: int
    tokens: Int64[Tensor, "B p"]

    @property
    def length(self) -> int:
        """Return the number of tokens kept."""
        return self.tokens.shape[1]

    def logits(
        self, x_t: Int64[Tensor, "B l"], where: Bool[Tensor, "B l"] | None = None
    ) -> Float[Tensor, ...]:
        """Score a block after reading all tokens again."""
        cache: BlockCache = self.network.block_cache(len(x_t), self.size)
        if self.length:
            cache.append(self.tokens)
        return cache.logits(x_t, where)

    def append(self, x0: Int64[Tensor, "B l"]) -> None:
        """Keep the tokens of a clean block."""
        self.tokens = torch.cat((self.tokens, x0), dim=1)

    def take(self, rows: Int64[Tensor, " b"]) -> TokensOnly:
        """Return the cache of some rows."""
        return TokensOnly(self.network, self.size, self.tokens[rows])


class Recomputing(Denoiser):
    """The same model without its cache."""

    def start(
        self,
        batch_size: int,
        *,
        window: int | None = None,
        label: Tensor | None = None,
        signal: Tensor | None = None,
    ) -> Prefix:
        """Start with no tokens kept."""
        assert isinstance(self.backbone, Transformer)
        device = next(self.parameters()).device
        nothing = torch.empty((batch_size, 0), dtype=torch.int64, device=device)
        return Prefix(self, TokensOnly(self.backbone, self.block_size, nothing))


def make_network(shape: tuple[int, int, int], length: int) -> Transformer:
    """Return a transformer whose tokens depend on earlier ones, the same at every call."""
    torch.manual_seed(0)
    network = Transformer(
        *shape, num_embeddings=SYMBOLS + 1, num_logits=SYMBOLS, max_length=length
    ).eval()
    with torch.no_grad():
        for weight in network.parameters():
            if weight.dim() > 1:
                weight.copy_(torch.randn_like(weight) * SHARPER / weight.shape[-1] ** 0.5)
    return network


def compare(
    network: Transformer, size: int, rows: int, places: list[int], pairs: int
) -> tuple[Ratio, float]:
    """Time both sides in turns at all places.

    Returns:
        Seconds per token, and the fraction of tokens that differ by rounding.

    Raises:
        SystemExit: If the tokens of the two sides differ by more than rounding explains.
    """
    inner, process = FirstHittingSampler(), Blockwise(Absorbing(SYMBOLS), size)
    drawings = [
        [Drawing(kind(network, process).eval(), inner, place, 1, rows) for place in places]
        for kind in (Denoiser, Recomputing)
    ]
    tokens = sum(drawing.tokens for drawing in drawings[0])
    found = [[drawing.seconds()[1] for drawing in side] for side in drawings]
    differ = sum(int((a != b).sum()) for a, b in zip(*found, strict=True)) / tokens
    if differ > DIFFER:
        raise SystemExit(
            f"block_sampling: {differ:.1%} of the tokens differ with and without cache, more than "
            "rounding explains; nothing is reported"
        )
    seconds: tuple[list[float], list[float]] = ([], [])
    for pair in range(pairs):
        for side in (1, 0) if pair % 2 else (0, 1):
            seconds[side].append(sum(drawing.seconds()[0] for drawing in drawings[side]) / tokens)
    return Ratio(*seconds), differ


def main(arguments: list[str] | None = None) -> None:
    """Print one line per block size and batch and write them as JSON if a path is given."""
    parser = make_parser(__doc__)
    parser.set_defaults(pairs=3)
    parser.add_argument("--length", type=positive, default=1024, help="tokens of a row")
    parser.add_argument("--places", type=positive, default=4, help="where in the row, at how many")
    parser.add_argument("--width", type=positive, default=256, help="of the network")
    parser.add_argument("--layers", type=positive, default=4, help="of the network")
    parser.add_argument("--heads", type=positive, default=4, help="of the network")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        refuse("block_sampling: --device cuda needs a CUDA device, and PyTorch sees none")
    part = options.length // options.places
    if part < 2 * max(SIZES):
        refuse(
            f"block_sampling.length must hold {2 * max(SIZES)} tokens for each of the "
            f"{options.places} places, got {options.length}; raise it"
        )
    described = begin(options.device)
    network = make_network((options.width, options.layers, options.heads), options.length)
    network.to(options.device)
    results: list[dict[str, object]] = []
    rows: list[tuple[str, ...]] = []
    for size in SIZES:
        places = [(place * part + part // 2) // size * size for place in range(options.places)]
        for batch in BATCHES:
            ratio, differ = compare(network, size, batch, places, options.pairs)
            rows.append(
                (
                    f"blocks of {size}, batch {batch}",
                    f"{1 / ratio.seconds:,.0f}",
                    f"{1 / ratio.their_seconds:,.0f}",
                    str(ratio),
                    f"{differ:.2%}",
                )
            )
            results.append(
                {"block_size": size, "batch": batch, "tokens_that_differ": differ} | ratio.record()
            )
    print_table(("tokens/s", "with cache", "without", "ratio", "turned by rounding"), rows)
    print(f"asked: at least {GOAL:.0f}x at 1,024 tokens")
    settings = {name: value for name, value in vars(options).items() if name != "json"}
    write_json(options.json, "block_sampling", described, settings, results)


if __name__ == "__main__":
    main()

"""Semi-autoregressive sampling of long rows by masked diffusion, compared with SSD-LM's schedule.

Our side slides a window of the context along the row by half of its length and fills every window
by cached ancestral sampling. SSD-LM (Han et al. 2022, arXiv:2210.17432) samples left to right in
blocks of 25 tokens. For each block it runs T full passes over at most 200 positions; each pass
reads a distribution over the whole vocabulary at each position and draws as many Gaussians. The
comparison is a cost model: one such pass is timed with the same network and multiplied by the
number of passes. No SSD-LM is trained or sampled. The published comparison (Sahoo et al. 2024,
arXiv:2406.07524, table 5) uses networks of about 400 and 110 million parameters; here both sides
use the same network.
"""

from __future__ import annotations

import math
import time

import torch

from benchmarks.common import Ratio, begin, make_parser, positive, print_table, write_json
from seqdiff.backbones import Transformer
from seqdiff.denoiser import Denoiser
from seqdiff.process import Absorbing
from seqdiff.samplers import CachedAncestralSampler, SemiAutoregressiveSampler
from seqdiff.types import Inputs

BLOCK, POSITIONS = 25, 200


def ssd_pass(network: Transformer, logits: torch.Tensor) -> torch.Tensor:
    """Run one pass of SSD-LM's decoding, from noisy logits [1, l, K] to the next ones."""
    weights = network.embedding.weight[: logits.shape[-1]]
    inputs = Inputs(torch.zeros(logits.shape[:2], dtype=torch.int64))
    h = logits.softmax(dim=-1) @ weights
    scores = network.head(network.body(h, inputs), inputs)
    drawn = torch.full_like(logits, -5.0).scatter(-1, scores.argmax(dim=-1, keepdim=True), 5.0)
    return 0.7 * drawn + 0.7 * 5 * torch.randn_like(logits)


@torch.no_grad()
def main(arguments: list[str] | None = None) -> None:
    """Print the passes and the seconds of both sides, and their ratio."""
    parser = make_parser(__doc__)
    parser.set_defaults(pairs=3)
    parser.add_argument("--length", type=positive, default=2048, help="tokens of the row")
    parser.add_argument("--context", type=positive, default=1024, help="of the network")
    parser.add_argument("--steps", type=positive, default=1000, help="of a window, and T of SSD-LM")
    parser.add_argument("--vocabulary", type=positive, default=8192)
    parser.add_argument("--width", type=positive, default=128)
    parser.add_argument("--layers", type=positive, default=4)
    options = parser.parse_args(arguments)
    described = begin()
    torch.manual_seed(0)
    network = Transformer(
        options.width,
        options.layers,
        4,
        num_embeddings=options.vocabulary + 1,
        num_logits=options.vocabulary,
        max_length=options.context,
        dropout=0.0,
    ).eval()
    denoiser = Denoiser(network, Absorbing(options.vocabulary)).eval()
    sampler = SemiAutoregressiveSampler(
        options.context, options.context // 2, CachedAncestralSampler(num_steps=options.steps)
    )
    blank = denoiser.process.blank((1, options.length))
    logits = torch.randn(1, POSITIONS, options.vocabulary)
    passes = math.ceil(options.length / BLOCK) * options.steps
    ours, theirs, spent = [], [], 0
    ssd_pass(network, logits)
    for pair in range(options.pairs):
        start = time.perf_counter()
        drawn = sampler.sample(denoiser, blank, seeds=torch.tensor([pair]))
        middle = time.perf_counter()
        for _ in range(50):
            ssd_pass(network, logits)
        ours.append(middle - start)
        theirs.append((time.perf_counter() - middle) / 50 * passes)
        spent = int(drawn.nfe[0])
    ratio = Ratio(ours, theirs)
    print_table(
        ("", "passes", "positions a pass", "seconds"),
        [
            ("masked diffusion", str(spent), str(options.context), f"{ratio.seconds:.1f}"),
            ("SSD-LM's schedule", str(passes), str(POSITIONS), f"{ratio.their_seconds:.1f}"),
        ],
    )
    print(f"{ratio} the time; the published figure, with other networks, is 27.7x")
    settings = {name: value for name, value in vars(options).items() if name != "json"}
    results = {"passes": spent, "their_passes": passes, **ratio.record()}
    write_json(options.json, "semi_autoregressive", described, settings, results)


if __name__ == "__main__":
    main()

"""A step of Muon for the matrices of a network: seqdiff's against that of PyTorch.

PyTorch's computes its products in bfloat16 everywhere, seqdiff's in float32 on a CPU. Both begin
with the same weights and gradients, and their first updates are compared before anything is timed.
Run ``python -m benchmarks.muon``.
"""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor, nn

from benchmarks.common import (
    Ratio,
    Side,
    begin,
    interleave,
    make_parser,
    print_table,
    require_same,
    write_json,
)
from seqdiff.backbones import Caduceus, Transformer
from seqdiff.training.optim import Muon, muon_matrices

_TOLERANCE = 0.1  # bfloat16 has 8 bits, and 15 products follow each other
_RATE = 0.02


def networks() -> dict[str, nn.Module]:
    """Return the networks of ``fasta.yaml`` and ``wap_characters.yaml``."""
    torch.manual_seed(0)
    return {
        "Caduceus 118x4": Caduceus(118, 4, num_embeddings=7, num_logits=5),
        "transformer 192x4": Transformer(192, 4, 4, num_embeddings=112, num_logits=111),
    }


def updated(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Do one step and return what it added to each matrix."""
    matrices = [matrix for group in optimizer.param_groups for matrix in group["params"]]
    before = [matrix.detach().clone() for matrix in matrices]
    optimizer.step()
    pairs = zip(before, matrices, strict=True)
    return {str(number): after.detach() - old for number, (old, after) in enumerate(pairs)}


def compare(network: nn.Module, pairs: int) -> tuple[int, float, Ratio]:
    """Check and time both; return the number of matrices, the largest difference, and the times."""
    names, parameters = muon_matrices(network), dict(network.named_parameters())
    ours = [nn.Parameter(parameters[name].detach().clone()) for name in sorted(names)]
    for matrix in ours:
        matrix.grad = torch.randn_like(matrix)
    theirs = deepcopy(ours)
    for matrix, other in zip(ours, theirs, strict=True):
        other.grad = matrix.grad
    muon = Muon([{"params": ours, "lr": _RATE}], weight_decay=0.0)
    reference = torch.optim.Muon(theirs, lr=_RATE, weight_decay=0.0)
    gap = require_same("a step of Muon", updated(muon), updated(reference), _TOLERANCE)
    sides = [Side("seqdiff", muon.step), Side("PyTorch", reference.step)]
    seconds = interleave(sides, pairs)
    return len(names), gap, Ratio(seconds["seqdiff"], seconds["PyTorch"])


def main(arguments: list[str] | None = None) -> None:
    """Print the table and write it as JSON if a path is given."""
    options = make_parser(__doc__).parse_args(arguments)
    described = begin()
    found = {name: compare(network, options.pairs) for name, network in networks().items()}
    rows = [
        (name, str(count), f"{1e3 * ratio.seconds:.1f}", str(ratio), f"{gap:.0e}")
        for name, (count, gap, ratio) in found.items()
    ]
    print_table(("network", "matrices", "ms", "times as fast", "gap"), rows)
    records = [
        {"network": name, "matrices": count, "largest_gap": gap, **ratio.record()}
        for name, (count, gap, ratio) in found.items()
    ]
    write_json(options.json, "muon", described, {"pairs": options.pairs}, records)


if __name__ == "__main__":
    main()

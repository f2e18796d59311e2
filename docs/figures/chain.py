"""A source that can be enumerated, and networks that know it exactly or nearly."""

import itertools

import torch
from torch import Tensor

from seqdiff.backbones import Backbone
from seqdiff.denoiser import Denoiser
from seqdiff.process import Absorbing
from seqdiff.types import Inputs

STAY = 0.9


class ChainNetwork(Backbone):
    """p(x_i | visible tokens) of a chain of two symbols that changes at 10% of the steps.

    Args:
        length: Tokens of a row.
        sharpness: Power of the probabilities, then normalised: 1 is exact, more is overconfident.
    """

    num_layers = 1

    def __init__(self, length: int, sharpness: float) -> None:
        super().__init__()
        self.width, self.num_logits, self.max_length = 2, 2, length
        self.unused = torch.nn.Parameter(torch.zeros(()))
        self.head = lambda h, inputs, where=None: (h if where is None else h[where]) * sharpness

    def embed(self, inputs: Inputs) -> Tensor:
        """Likelihood of what is visible given each symbol: [B, L, 2]; ones at a mask."""
        visible = torch.nn.functional.one_hot(inputs.tokens, 3)[..., :2].double()
        return torch.where((inputs.tokens == 2)[..., None], 1.0, visible)

    def body(self, h: Tensor, inputs: Inputs, layer: int | None = None) -> Tensor:
        """Messages from the left and from the right, then log-probabilities: [B, L, 2]."""
        move = torch.tensor([[STAY, 1 - STAY], [1 - STAY, STAY]], dtype=torch.float64)
        left, right = [torch.full_like(h[:, 0], 0.5)], [torch.ones_like(h[:, 0])]
        for i in range(h.shape[1] - 1):
            left.append((left[-1] * h[:, i]) @ move)
            right.append((right[-1] * h[:, -1 - i]) @ move)
        found = torch.stack(left, 1) * torch.stack(right[::-1], 1)
        return (found / found.sum(-1, keepdim=True)).log()


def denoiser(length: int, sharpness: float = 1.0) -> Denoiser:
    """Masked diffusion with such a network."""
    return Denoiser(ChainNetwork(length, sharpness), Absorbing(2)).eval()


def all_rows(length: int) -> Tensor:
    """Every row of two symbols: [2^L, L]."""
    return torch.tensor(list(itertools.product((0, 1), repeat=length)))


def log_prob(rows: Tensor) -> Tensor:
    """Log p of whole rows under the chain, in nats: [B, L] -> [B]."""
    same = (rows[:, 1:] == rows[:, :-1]).double()
    log = torch.tensor([1 - STAY, STAY], dtype=torch.float64).log()
    return torch.tensor(0.5).log() + (same * log[1] + (1 - same) * log[0]).sum(1)


def token_nats(model: Denoiser, rows: Tensor, hidden: tuple[int, ...]) -> Tensor:
    """-log p(token | visible tokens) at the hidden positions: [B, len(hidden)]."""
    noisy = rows.clone()
    noisy[:, hidden] = 2
    found = model.log_probs(Inputs(noisy)).gather(-1, rows[..., None]).squeeze(-1)
    return -found[:, hidden].double()


def model_prob(model: Denoiser, rows: Tensor) -> Tensor:
    """Distribution of a masked diffusion model: the mean over all orders of unmasking, [B]."""
    length = rows.shape[1]
    table = {(): torch.ones(len(rows), dtype=torch.float64)}
    for number in range(1, length + 1):
        for hidden in itertools.combinations(range(length), number):
            first = (-token_nats(model, rows, hidden)).exp()
            rest = [table[tuple(j for j in hidden if j != i)] for i in hidden]
            table[hidden] = (first * torch.stack(rest, 1)).mean(1)
    return table[tuple(range(length))]

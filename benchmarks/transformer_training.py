"""One training step of a transformer: corruption, forward, bound, backward, AdamW."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seqdiff.backbones import Transformer
from seqdiff.backbones.transformer import TransformerShape
from seqdiff.denoiser import Denoiser
from seqdiff.objectives import ContinuousNELBO
from seqdiff.process import Absorbing
from seqdiff.rng import CounterNoise
from seqdiff.training import OptimConfig, build_optimizer, decay_groups
from seqdiff.types import Batch


@dataclass(frozen=True)
class Shape:
    """Width, depth and heads of the network, and the length of a row."""

    d_model: int
    n_layer: int
    n_heads: int
    length: int

    def __str__(self) -> str:
        """Return the shape as the command line writes it."""
        return f"{self.d_model}x{self.n_layer}x{self.n_heads}x{self.length}"


def make_network(at: Shape, vocab_size: int, dropout: float) -> Transformer:
    """Return the same weights at every call; none is zero, so that every gradient matters."""
    torch.manual_seed(0)
    network = Transformer(
        at.d_model,
        at.n_layer,
        at.n_heads,
        num_embeddings=vocab_size + 1,
        num_logits=vocab_size,
        dropout=dropout,
        max_length=at.length,
    )
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    return network


class TransformerStep:
    """A network, its optimiser and one batch.

    Args:
        network: The network; it is moved to the device and its parameters are trained.
        batch: Rows.
        length: Tokens of a row.
        device: ``cpu`` or ``cuda``.
        dtype: Type of the activations; float32 and float64 do not use autocast.
        compiled: Whether the blocks are compiled by ``torch.compile``.
    """

    def __init__(
        self,
        network: Transformer,
        batch: int,
        length: int,
        *,
        device: str,
        dtype: torch.dtype,
        compiled: bool,
    ) -> None:
        vocab_size = network.config.num_logits
        self.network = network.to(device)
        if compiled:
            for block in self.network.blocks:
                block.compile()
        self.denoiser = Denoiser(self.network, Absorbing(vocab_size))
        self.optimizer = build_optimizer(self.denoiser, OptimConfig(), decay_groups(self.denoiser))
        self.objective, self.noise = ContinuousNELBO(), CounterNoise(0)
        source = torch.Generator().manual_seed(0)
        tokens = torch.randint(vocab_size, (batch, length), generator=source)
        self.batch = Batch(tokens, tokens >= 0, torch.arange(batch)).to(device)
        self.tokens = batch * length
        self.scored = 0
        self.network.head.linear.register_forward_hook(self._count)
        self.autocast = torch.autocast(device, dtype, enabled=dtype == torch.bfloat16)

    def _count(self, _layer: object, inputs: tuple[Tensor], _scores: Tensor) -> None:
        """Record at how many positions the vocabulary is scored."""
        self.scored = inputs[0].numel() // inputs[0].shape[-1]

    def loss(self) -> Tensor:
        """Return the bound in nats per token."""
        with self.autocast:
            terms = self.objective.terms(self.denoiser, self.batch, self.noise)
        return terms.sum() / self.tokens

    def numbers(self) -> dict[str, Tensor]:
        """Return the loss and every gradient before any step."""
        loss = self.loss()
        loss.backward()
        grads = {
            n: p.grad.clone() for n, p in self.network.named_parameters() if p.grad is not None
        }
        self.optimizer.zero_grad()
        return {"loss": loss.detach(), **grads}

    def __call__(self) -> None:
        """Take one step."""
        self.loss().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def matrix_flops(config: TransformerShape, tokens: int, length: int, scored: int) -> int:
    """Return the floating-point operations of a step's matrix products.

    Counts projections and MLPs of the blocks, attention over whole rows, and the head where it is
    evaluated; backward counts twice forward. Operations on a row's condition alone, recomputation
    and everything other than matrix products do not count.

    Args:
        config: The network.
        tokens: Tokens of the batch.
        length: Tokens of a row.
        scored: Positions at which the vocabulary is scored.
    """
    d = config.d_model
    block = 12 * d * d + 2 * length * d
    forward = 2 * (config.n_layer * block * tokens + d * config.num_logits * scored)
    return 3 * forward

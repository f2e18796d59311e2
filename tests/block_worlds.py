"""Small models of block diffusion that are fully known."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from seqdiff.backbones import Backbone
from seqdiff.blocks import num_blocks
from seqdiff.denoiser.discrete import Denoiser
from seqdiff.process import Absorbing, Blockwise
from seqdiff.schedules import Linear, NoiseSchedule
from seqdiff.types import Inputs
from tests.oracles import Joint, OracleBackbone, TableBackbone, all_masks, unit_quadrature


class RecomputingCache:
    """A ``BlockCache`` that keeps the tokens and evaluates all of them again."""

    def __init__(
        self,
        network: Backbone,
        block_size: int,
        tokens: Tensor,
        label: Tensor | None = None,
        signal: Tensor | None = None,
    ) -> None:
        self.network, self.block_size = network, block_size
        self.tokens, self.label, self.signal = tokens, label, signal

    @property
    def length(self) -> int:
        return self.tokens.shape[1]

    def logits(self, x_t: Tensor, where: Tensor | None = None) -> Tensor:
        row = torch.cat((self.tokens, x_t), dim=1)
        signal = self.signal
        if signal is not None and signal.dim() == 3:
            signal = signal[:, : row.shape[1]]
        inputs = Inputs(row, label=self.label, signal=signal)
        logits = self.network.block_logits(inputs, row, self.block_size)[:, self.length :]
        return logits if where is None else logits[where]

    def append(self, x0: Tensor) -> None:
        self.tokens = torch.cat((self.tokens, x0), dim=1)

    def take(self, rows: Tensor) -> RecomputingCache:
        label = None if self.label is None else self.label[rows]
        signal = None if self.signal is None else self.signal[rows]
        return type(self)(self.network, self.block_size, self.tokens[rows], label, signal)


class BlockWorld(TableBackbone):
    """Scores a block given clean earlier blocks and masked later ones."""

    reads_blocks, reads_noisy_prefix = True, False

    def block_logits(
        self, inputs: Inputs, x0: Tensor, block_size: int, where: Tensor | None = None
    ) -> Tensor:
        x_t, place = inputs.tokens, torch.arange(x0.shape[1])
        parts = []
        for start in range(0, x_t.shape[1], block_size):
            before = x_t if self.reads_noisy_prefix else x0
            row = torch.where(place < start, before, x_t)
            row = torch.where(place < start + block_size, row, self.num_logits)
            parts.append(self.score(row, start)[:, start : start + block_size])
        logits = torch.cat(parts, dim=1)
        return logits if where is None else logits[where]

    def logits(self, inputs: Inputs) -> Tensor:
        return self.block_logits(inputs, inputs.tokens, inputs.tokens.shape[1])

    def score(self, row: Tensor, start: int) -> Tensor:
        raise NotImplementedError

    def block_cache(
        self,
        batch_size: int,
        block_size: int,
        *,
        window: int | None = None,
        label: Tensor | None = None,
        signal: Tensor | None = None,
    ) -> RecomputingCache:
        nothing = torch.empty((batch_size, 0), dtype=torch.int64)
        return RecomputingCache(self, block_size, nothing, label, signal)


class BlockOracle(BlockWorld):
    """Emits the exact conditionals of a joint table."""

    def __init__(self, joint: Joint) -> None:
        super().__init__(joint.vocab_size)
        self.oracle = OracleBackbone(joint)
        self.length = joint.length

    def score(self, row: Tensor, start: int) -> Tensor:
        missing = self.length - row.shape[1]
        whole = nn.functional.pad(row, (0, missing), value=self.num_logits)
        return self.oracle(Inputs(whole))[:, : row.shape[1]]


class NoisyPrefixOracle(BlockOracle):
    """Broken: reads the corrupted earlier blocks."""

    reads_noisy_prefix = True


class FactorisedOracle(BlockOracle):
    """Emits the exact conditionals given the earlier blocks only, not the block itself."""

    def score(self, row: Tensor, start: int) -> Tensor:
        place = torch.arange(row.shape[1])
        return super().score(torch.where(place < start, row, self.num_logits), start)


class BlockLookup(BlockWorld):
    """Arbitrary conditionals: one random table of logits for every possible input row."""

    def __init__(self, vocab_size: int, length: int, seed: int) -> None:
        super().__init__(vocab_size)
        self.base, self.length = vocab_size + 1, length
        generator = torch.Generator().manual_seed(seed)
        shape = (length, self.base**length, length, vocab_size)
        self.table = torch.randn(shape, dtype=torch.float64, generator=generator)

    def score(self, row: Tensor, start: int) -> Tensor:
        missing = self.length - row.shape[1]
        whole = nn.functional.pad(row, (0, missing), value=self.num_logits)
        powers = self.base ** torch.arange(self.length - 1, -1, -1)
        return self.table[start, (whole * powers).sum(dim=-1)][:, : row.shape[1]]


def mask_weights(masks: Tensor, fractions: tuple[float, float]) -> Tensor:
    """Probability of every mask over the fraction, averaged over fractions in an interval."""
    nodes, weights = unit_quadrature()
    low, high = fractions
    fraction = (low + (high - low) * nodes)[:, None]
    hidden = masks.sum(dim=-1)
    distribution = fraction**hidden * (1 - fraction) ** (masks.shape[1] - hidden)
    return weights @ (distribution / fraction)


def block_denoiser(
    network: Backbone, block_size: int, schedule: NoiseSchedule | None = None
) -> Denoiser:
    """A block diffusion model."""
    inner = Absorbing(network.num_logits, schedule or Linear())
    return Denoiser(network, Blockwise(inner, block_size))


def enumerated_block_bound(
    denoiser: Denoiser, x0: Tensor, *, fractions: tuple[float, float] = (0.0, 1.0)
) -> float:
    """Sum over blocks of E over the masked fraction and every mask of the block, without sampling.

    The fraction is uniform on an interval, and a masked token has the weight of one over it.
    """
    network, process = denoiser.backbone, denoiser.process
    assert isinstance(process, Blockwise)
    size, total = process.block_size, 0.0
    place = torch.arange(len(x0))
    for block in range(num_blocks(len(x0), size)):
        inside = place // size == block
        masks = all_masks(int(inside.sum()))
        hidden = torch.zeros((len(masks), len(x0)), dtype=torch.bool)
        hidden[:, inside] = masks
        clean = x0.expand(len(masks), -1)
        x_t = torch.where(hidden, process.mask_id, clean)
        distribution = network.block_logits(Inputs(x_t), clean, size).log_softmax(dim=-1)
        nats = -distribution.gather(-1, clean[..., None])[..., 0]
        cost = torch.where(hidden, nats, 0.0).sum(dim=-1)
        total += float(mask_weights(masks, fractions) @ cost)
    return total


class LabelledBlocks(BlockWorld):
    """One table for rows with each of two labels, and one for rows without."""

    num_classes = 2

    def __init__(self, vocab_size: int, length: int) -> None:
        super().__init__(vocab_size)
        tables = [BlockLookup(vocab_size, length, seed=seed) for seed in range(3)]
        self.tables = nn.ModuleList(tables)

    def block_logits(
        self, inputs: Inputs, x0: Tensor, block_size: int, where: Tensor | None = None
    ) -> Tensor:
        x_t, label = Inputs(inputs.tokens), inputs.label
        every = torch.stack([table.block_logits(x_t, x0, block_size) for table in self.tables])
        chosen = torch.full_like(x0[:, 0], -1) if label is None else label
        logits = every[chosen, torch.arange(len(x0))]
        return logits if where is None else logits[where]


class ChainOfBlocks(BlockWorld):
    """Scores every token of a block given the last token of the previous block; nothing grows."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__(vocab_size)
        generator = torch.Generator().manual_seed(0)
        self.table = torch.randn(
            (vocab_size + 1, vocab_size), dtype=torch.float64, generator=generator
        )

    def score(self, row: Tensor, start: int) -> Tensor:
        last = row[:, start - 1] if start else torch.full_like(row[:, 0], self.num_logits)
        return self.table[last][:, None].expand(-1, row.shape[1], -1)

    def block_cache(
        self,
        batch_size: int,
        block_size: int,
        *,
        window: int | None = None,
        label: Tensor | None = None,
        signal: Tensor | None = None,
    ) -> LastToken:
        return LastToken(self, torch.full((batch_size,), self.num_logits))


@dataclass
class LastToken:
    """The cache of a ``ChainOfBlocks``."""

    network: ChainOfBlocks
    last: Tensor
    length: int = 0

    def logits(self, x_t: Tensor, where: Tensor | None = None) -> Tensor:
        logits = self.network.table[self.last][:, None].expand(-1, x_t.shape[1], -1)
        return logits if where is None else logits[where]

    def append(self, x0: Tensor) -> None:
        self.last, self.length = x0[:, -1], self.length + x0.shape[1]

    def take(self, rows: Tensor) -> LastToken:
        return LastToken(self.network, self.last[rows], self.length)

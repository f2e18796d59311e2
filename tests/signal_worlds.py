"""Small models whose distributions depend on measured values in a known way."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from seqdiff.denoiser import Denoiser
from seqdiff.process import DiscreteProcess
from seqdiff.types import Inputs
from tests.block_worlds import BlockLookup, BlockWorld
from tests.oracles import LookupBackbone, TableBackbone

SIGNALS, CLASSES = 2, 2


class Tilt(nn.Module):
    """Logits of a label and of two values: linear in each value, and any number if unknown."""

    def __init__(self, k: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(8)

        def table(*shape: int) -> Tensor:
            return torch.randn(*shape, k, dtype=torch.float64, generator=generator)

        self.slopes, self.unknown = table(SIGNALS), table(SIGNALS)
        self.labels = table(CLASSES + 1)

    def forward(self, inputs: Inputs) -> Tensor:
        """``[B, 1, K]``, or ``[B, L, K]`` for tracks."""
        rows, signal, label = len(inputs.tokens), inputs.signal, inputs.label
        signal = torch.full((rows, SIGNALS), torch.nan) if signal is None else signal
        signal = (signal if signal.dim() == 3 else signal[:, None]).double()
        tilted = signal.nan_to_num()[..., None] * self.slopes
        tilted = torch.where(signal.isnan()[..., None], self.unknown, tilted).sum(dim=-2)
        label = torch.full((rows,), -1) if label is None else label
        return tilted + self.labels[label][:, None]


class SignalWorld(TableBackbone):
    """Arbitrary conditionals that a label and two values tilt."""

    num_classes, num_signals = CLASSES, SIGNALS

    def __init__(self, k: int, length: int) -> None:
        super().__init__(k)
        self.lookup, self.tilt = LookupBackbone(k, length, seed=0), Tilt(k)

    def logits(self, inputs: Inputs) -> Tensor:
        return self.lookup.logits(inputs) + self.tilt(inputs)


class NoisyWorld(SignalWorld):
    """The same for noise that has no mask: the times tilt too."""

    time_conditioned = True

    def logits(self, inputs: Inputs) -> Tensor:
        assert inputs.t is not None
        wave = (3 * inputs.t[:, None, None] + torch.arange(self.num_logits)).double().cos()
        return super().logits(inputs) + wave


class SignalBlocks(BlockWorld):
    """Arbitrary conditionals of blocks that a label and two values tilt."""

    num_classes, num_signals = CLASSES, SIGNALS

    def __init__(self, k: int, length: int) -> None:
        super().__init__(k)
        self.lookup, self.tilt = BlockLookup(k, length, seed=0), Tilt(k)

    def block_logits(
        self, inputs: Inputs, x0: Tensor, block_size: int, where: Tensor | None = None
    ) -> Tensor:
        logits = self.lookup.block_logits(Inputs(inputs.tokens), x0, block_size)
        logits = logits + self.tilt(inputs)
        return logits if where is None else logits[where]


def noisy_model(k: int, length: int, process: DiscreteProcess) -> Denoiser:
    return Denoiser(NoisyWorld(k, length), process)

"""Small joint distributions with labels, their exact denoisers and classifiers."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from seqdiff.denoiser.discrete import Denoiser
from seqdiff.samplers import FirstHittingSampler
from seqdiff.types import Inputs
from tests.enumeration import Distribution, outcomes
from tests.oracles import Joint, LookupBackbone, OracleBackbone, TableBackbone, masked_model

CLASSES = 2
SIZES = [(2, 4), (3, 3), (4, 2)]


class LabelledWorld(TableBackbone):
    """One backbone per label, and a last one for no label."""

    num_classes = CLASSES

    def __init__(self, parts: list[TableBackbone]) -> None:
        super().__init__(parts[0].num_logits)
        self.parts = nn.ModuleList(parts)

    def logits(self, inputs: Inputs) -> Tensor:
        answers = torch.stack([part(replace(inputs, label=None)) for part in self.parts])
        rows = len(inputs.tokens)
        label = torch.full((rows,), -1) if inputs.label is None else inputs.label
        return answers[label, torch.arange(rows)]


def joints(k: int, length: int) -> list[Joint]:
    """p(x | y) for each y, then p(x) for a uniform y."""
    parts = [Joint.random(k, length, seed=seed) for seed in range(CLASSES)]
    return [*parts, Joint(k, length, sum(part.probs for part in parts) / CLASSES)]


def exact_world(k: int, length: int) -> Denoiser:
    return masked_model(LabelledWorld([OracleBackbone(joint) for joint in joints(k, length)]))


def lookup_world(k: int, length: int) -> Denoiser:
    tables = [LookupBackbone(k, length, seed=seed) for seed in range(CLASSES + 1)]
    return masked_model(LabelledWorld(tables))


class ExactClassifier:
    """p(y | x_t) of the joint distribution, summed over every completion."""

    def __init__(self, k: int, length: int, label: int) -> None:
        self.parts, self.label, self.k = joints(k, length), label, k
        self.rows_seen = 0

    def __call__(
        self, tokens: Tensor, t: Tensor | None = None, padding: Tensor | None = None
    ) -> Tensor:
        self.rows_seen += len(tokens)
        sequences = self.parts[-1].sequences
        agrees = ((tokens[:, None] == sequences) | (tokens[:, None] == self.k)).all(dim=-1).double()
        wanted, either = (agrees @ self.parts[i].probs for i in (self.label, -1))
        return (wanted / CLASSES / either).log()


class LinearClassifier:
    """log p(y | x) as a sum over positions, of tokens or of rows of vectors."""

    def __init__(self, k: int, length: int, bend: float = 0.0) -> None:
        generator = torch.Generator().manual_seed(5)
        self.slope = torch.randn(length, k + 1, dtype=torch.float64, generator=generator)
        self.bend = bend

    def __call__(
        self, tokens: Tensor, t: Tensor | None = None, padding: Tensor | None = None
    ) -> Tensor:
        if tokens.ndim == 2:
            tokens = nn.functional.one_hot(tokens, self.slope.shape[1]).double()
        total = (tokens * self.slope).sum(dim=(1, 2))
        return total + self.bend * total**2


def one_at_a_time(denoiser: Denoiser, k: int, length: int) -> Distribution:
    return outcomes(FirstHittingSampler(), denoiser, torch.full((length,), k)).distribution

"""N-gram experts for a network that has been trained."""

from __future__ import annotations

from copy import copy

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from seqdiff.data import Examples, SequenceDataModule, SequenceDataset
from seqdiff.denoiser import Denoiser, Masked
from seqdiff.experts import FOLDS, Rows
from seqdiff.objectives import Autoregressive, validation_objective
from seqdiff.progress import progress
from seqdiff.rng import CounterNoise
from seqdiff.types import Inputs

_MOST_POSITIONS = 2**17  # masked positions that gates are chosen on
_MOST_VALUES = 2**25  # probabilities at these positions: one for each position and symbol
_ENOUGH_ROWS = 256  # read also if only a part of their masked positions is used
_MOST_READ = 2**22  # tokens of these rows
_MOST_DRAWS = 8


def fit_experts(
    denoiser: Denoiser, data: SequenceDataModule, *, seed: int
) -> dict[int | None, tuple[float, float]]:
    """Count the n-grams of the training split, and choose the gates on the validation split.

    The gates minimise the bound of the mixture. Every block size has gates of its own.

    Args:
        denoiser: A trained model with experts.
        data: Its data.
        seed: Seed of the masks.

    Returns:
        By block size, or by ``None`` without blocks: nats per token of the validation rows, of the
        network alone and of the mixture.

    Raises:
        ValueError: If a split holds too little, or there are no experts.
    """
    train, valid, experts = data.dataset("train"), data.dataset("valid"), denoiser.experts
    assert experts is not None

    def read(rows: range) -> Rows:
        with_progress.advance(task, len(rows))
        tokens, _ = train.rows(np.arange(rows.start, rows.stop))
        return tokens, tokens < denoiser.vocab_size

    with progress() as with_progress:
        task = with_progress.add_task("counting n-grams", total=None)
        experts.count(len(train), read)
    found: dict[int | None, tuple[float, float]] = {}
    for size in denoiser.block_sizes or (None,):
        model = denoiser if size is None else denoiser.in_blocks(size)
        found[size] = model.fit_experts(*_draw(model, valid, data.eval_batch_size, seed))
    return found


def _draw(
    denoiser: Denoiser, dataset: SequenceDataset, batch_size: int, seed: int
) -> tuple[list[Masked], int]:
    """Mask evenly spaced rows as the bound does, and count the tokens that gates are chosen on.

    If rows are long or there are many symbols, a random subset of the masked positions is used.
    """
    length = dataset.rows(np.zeros(1, dtype=np.int64))[0].shape[1]
    prefix = denoiser.context == "prefix"  # masks nothing, and predicts all tokens of a row
    # About half of the tokens are masked.
    wanted = min(_MOST_POSITIONS, _MOST_VALUES // denoiser.vocab_size) * (1 if prefix else 2)
    enough = max(FOLDS, min(_ENOUGH_ROWS, _MOST_READ // length))
    number = min(len(dataset), max(enough, wanted // length))
    rows = np.linspace(0, len(dataset) - 1, number).astype(np.int64)
    draws = 1 if prefix else max(1, min(_MOST_DRAWS, wanted // (number * length)))
    part = min(1.0, wanted / (number * length * draws))
    chance = torch.Generator().manual_seed(seed)
    objective, noise = validation_objective(Autoregressive(), denoiser), CounterNoise(seed)
    device = next(denoiser.parameters()).device
    found: list[Masked] = []
    tokens = 0
    for first in range(0, number, batch_size):
        chosen = rows[first : first + batch_size]
        examples = Examples.read(dataset, chosen)
        tokens += int(examples.loss_mask.sum())
        numbers = torch.arange(first, first + len(chosen), device=device)
        for draw in range(draws):
            batch = examples.batch(chosen + draw * len(dataset)).to(device)
            asked = _Asked(denoiser)
            weight = objective.terms(asked.denoiser, batch, noise)
            where = asked.where
            if part < 1:
                where = where & (torch.rand(where.shape, generator=chance) < part).to(device)
            found.append(Masked(asked.inputs, batch.tokens, where, weight[where], numbers))
    return found, max(1, round(part * tokens))


class _Asked:
    """What an objective asks a model."""

    inputs: Inputs
    where: Bool[Tensor, "B L"]

    def __init__(self, denoiser: Denoiser) -> None:
        self.denoiser = copy(denoiser)
        self.denoiser.nats = self._keep

    def _keep(
        self, inputs: Inputs, x0: Int[Tensor, "B L"], where: Bool[Tensor, "B L"]
    ) -> Float[Tensor, "B L"]:
        """Answer 1 everywhere, so that the terms of the objective are its weights."""
        del x0
        self.inputs, self.where = inputs, where
        return torch.ones_like(where, dtype=torch.float32)

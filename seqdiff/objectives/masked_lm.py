"""BERT's masked language model, as a baseline of masked diffusion."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from seqdiff.denoiser import Denoiser, Needs
from seqdiff.losses import weighted
from seqdiff.objectives.base import Objective, position_noise
from seqdiff.process import Absorbing
from seqdiff.rng import REPLACE_STREAM, CounterNoise, permutation_rank
from seqdiff.types import Batch


@dataclass(frozen=True)
class MaskedLM(Objective):
    """BERT's masked language model: predict a few chosen tokens, most of which are masked.

    Of the n positions of a sequence that count, ``max(1, round(fraction n))`` are chosen, as many
    in every sequence of that n. A chosen token is shown as the mask with probability
    ``mask_probability``, as a symbol drawn uniformly from the K real ones with
    ``random_probability``, and as itself otherwise. Its cross-entropy counts n over the number
    chosen, so that the loss per token is the mean over chosen tokens; it bounds no likelihood.

    Runs are validated, evaluated and sampled as the denoisers that their networks are: by the same
    bound as masked diffusion, in which a network meets mask fractions that this objective never
    showed it. Source: Devlin et al. 2019, arXiv:1810.04805, section 3.1 and appendix A.1.

    Attributes:
        fraction: Of positions that are chosen, in (0, 1].
        mask_probability: Of a chosen token to be masked.
        random_probability: Of a chosen token to be replaced.
    """

    needs: ClassVar[Needs] = Needs((Absorbing,), any_order=True)
    fraction: float = 0.15
    mask_probability: float = 0.8
    random_probability: float = 0.1

    def __post_init__(self) -> None:
        """Check the probabilities.

        Raises:
            ValueError: If one is out of its range.
        """
        if not 0 < self.fraction <= 1:
            raise ValueError(
                f"MaskedLM.fraction must be in (0, 1], got {self.fraction}; 0.15 is usual"
            )
        hidden = self.mask_probability + self.random_probability
        least = min(self.mask_probability, self.random_probability)
        if not (least >= 0 and (hidden < 1 or math.isclose(hidden, 1))):
            raise ValueError(
                "MaskedLM.mask_probability and random_probability must be at least 0 and add up to "
                f"1 at most, got {self.mask_probability} and {self.random_probability}; 0.8 and "
                "0.1 are usual"
            )

    def terms(self, denoiser: Denoiser, batch: Batch, noise: CounterNoise) -> Float[Tensor, "B L"]:
        """See ``Objective``; the sum of a row is no bound."""
        process = denoiser.process
        assert isinstance(process, Absorbing)  # by ``needs``
        total = batch.loss_mask.sum(dim=-1)
        count = (self.fraction * total.double()).round().long().clamp_min(1)
        rank = permutation_rank(position_noise(batch, noise), batch.loss_mask)
        chosen = batch.loss_mask & (rank < count[:, None])
        shown = torch.where(chosen, self._disguise(process, batch, noise), batch.tokens)
        masked = (chosen & (shown == process.unknown_id)).sum(dim=-1)
        t = process.schedule.inverse(1 - masked.double() / total.clamp_min(1))
        where = chosen & (batch.tokens != process.unknown_id)
        return weighted(denoiser, batch, shown, t, where, total.double() / count)

    def _disguise(
        self, process: Absorbing, batch: Batch, noise: CounterNoise
    ) -> Int64[Tensor, "B L"]:
        """What each position would show if it were chosen."""
        draws = noise.uniform(batch.index, 2 * batch.tokens.shape[1], stream=REPLACE_STREAM)
        fate, place = draws.unflatten(1, (-1, 2)).unbind(dim=-1)
        symbol = (place * process.vocab_size).long().clamp_max(process.vocab_size - 1)
        replaced = fate < self.mask_probability + self.random_probability
        shown = torch.where(replaced, symbol, batch.tokens)
        return torch.where(fate < self.mask_probability, process.unknown_id, shown)

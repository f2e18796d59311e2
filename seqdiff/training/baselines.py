"""What masked diffusion is compared with, trained alike: autoregressive models and BERT's MLM."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from seqdiff.backbones import Backbone
from seqdiff.causal import CausalDenoiser
from seqdiff.parameterization import Denoiser
from seqdiff.process import MaskedDiffusion
from seqdiff.rng import MASK_STREAM, REPLACE_STREAM, CounterNoise, permutation_rank
from seqdiff.training.objectives import Objective
from seqdiff.types import Batch


@dataclass(frozen=True)
class Autoregressive(Objective):
    """The exact negative log-likelihood from left to right, by the chain rule, in one pass.

    The backbone must be causal. Positions outside the loss mask are context: given to those after
    them, not counted; an unknown symbol is seen as the mask. Runs are validated by the same.
    """

    def denoiser(self, backbone: Backbone, process: MaskedDiffusion) -> Denoiser:
        """See ``Objective``.

        Raises:
            ValueError: If the backbone sees a token that it is to predict.
        """
        return CausalDenoiser(backbone, process.vocab_size)

    def validation(self) -> Objective:
        """See ``Objective``: the likelihood is exact, so there is no bound to estimate."""
        return self

    def terms(
        self, denoiser: Denoiser, process: MaskedDiffusion, batch: Batch, noise: CounterNoise
    ) -> Float[Tensor, "B L"]:
        """See ``Objective``; nothing is random.

        Raises:
            ValueError: If the denoiser is not causal.
        """
        del noise
        if denoiser.kind != "causal":
            raise ValueError(
                "Autoregressive.denoiser must be causal, got one of masked diffusion; "
                "make it by Autoregressive().denoiser(backbone, process)"
            )
        where = batch.loss_mask & (batch.tokens != process.mask_id)
        return denoiser.nats(
            batch.tokens, batch.tokens, where, padding=batch.padding, label=batch.label
        )


@dataclass(frozen=True)
class MaskedLM(Objective):
    """BERT's masked language model: predict a few chosen tokens, most of which are masked.

    Of the n positions of a sequence that count, ``max(1, round(share n))`` are chosen, as many in
    every sequence of that n. A chosen token is shown as the mask with probability
    ``mask_probability``, as a symbol drawn uniformly from the K real ones with
    ``random_probability``, and as itself otherwise. Its cross-entropy counts n over the number
    chosen, so that the loss per token is the mean over chosen tokens; it bounds no likelihood.

    Runs are validated, evaluated and sampled as the denoisers that their networks are: by the same
    bound as masked diffusion, in which a network meets shares of masks that this objective never
    showed it. Source: Devlin et al. 2019, arXiv:1810.04805, section 3.1 and appendix A.1.

    Attributes:
        share: Of positions that are chosen, in (0, 1].
        mask_probability: Of a chosen token to be masked.
        random_probability: Of a chosen token to be replaced.
    """

    share: float = 0.15
    mask_probability: float = 0.8
    random_probability: float = 0.1

    def __post_init__(self) -> None:
        """Check the probabilities.

        Raises:
            ValueError: If one is out of its range.
        """
        if not 0 < self.share <= 1:
            raise ValueError(f"MaskedLM.share must be in (0, 1], got {self.share}; 0.15 is usual")
        hidden = self.mask_probability + self.random_probability
        least = min(self.mask_probability, self.random_probability)
        if not (least >= 0 and (hidden < 1 or math.isclose(hidden, 1))):
            raise ValueError(
                "MaskedLM.mask_probability and random_probability must be at least 0 and add up to "
                f"1 at most, got {self.mask_probability} and {self.random_probability}; 0.8 and "
                "0.1 are usual"
            )

    def terms(
        self, denoiser: Denoiser, process: MaskedDiffusion, batch: Batch, noise: CounterNoise
    ) -> Float[Tensor, "B L"]:
        """See ``Objective``; the sum of a row is no bound.

        Raises:
            ValueError: If the denoiser is causal.
        """
        if denoiser.kind == "causal":
            raise ValueError(
                "MaskedLM.denoiser must see both sides of a token, got a causal one; "
                "make it by MaskedLM().denoiser(backbone, process)"
            )
        total = batch.loss_mask.sum(dim=-1)
        count = (self.share * total.double()).round().long().clamp_min(1)
        draws = noise.uniform(batch.index, batch.tokens.shape[1], stream=MASK_STREAM)
        chosen = batch.loss_mask & (permutation_rank(draws, batch.loss_mask) < count[:, None])
        shown = torch.where(chosen, self._disguise(process, batch, noise), batch.tokens)
        masked = (chosen & (shown == process.mask_id)).sum(dim=-1)
        t = process.schedule.inverse(1 - masked.double() / total.clamp_min(1))
        where = chosen & (batch.tokens != process.mask_id)
        nats = denoiser.nats(shown, batch.tokens, where, t.float(), batch.padding, batch.label)
        return nats * (total.double() / count).to(nats.dtype)[:, None]

    def _disguise(
        self, process: MaskedDiffusion, batch: Batch, noise: CounterNoise
    ) -> Int64[Tensor, "B L"]:
        """What each position would show if it were chosen."""
        draws = noise.uniform(batch.index, 2 * batch.tokens.shape[1], stream=REPLACE_STREAM)
        fate, letter = draws.unflatten(1, (-1, 2)).unbind(dim=-1)
        symbol = (letter * process.vocab_size).long().clamp_max(process.vocab_size - 1)
        replaced = fate < self.mask_probability + self.random_probability
        shown = torch.where(replaced, symbol, batch.tokens)
        return torch.where(fate < self.mask_probability, process.mask_id, shown)

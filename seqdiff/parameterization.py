"""How logits become laws: SUBS, and the denoiser that losses and samplers call."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor, nn
from torch.nn import functional as F

from seqdiff.backbones import Backbone
from seqdiff.schedules import NoiseSchedule
from seqdiff.types import Inputs

Kind = Literal["masked", "causal", "block"]


def subs_log_probs(
    logits: Float[Tensor, "B L K"], x_t: Int[Tensor, "B L"]
) -> Float[Tensor, "B L K"]:
    """Normalise in float32 or better, and copy the visible tokens.

    Zero masking probability holds by shape, since there is no column for the mask; carry-over
    unmasking by the copy. Source: Sahoo et al. 2024, arXiv:2406.07524, section 3.2.3.

    Args:
        logits: Scores of the K symbols.
        x_t: Ids in ``0..K``; K is the mask.

    Returns:
        Log-probabilities in nats; at visible positions 0 for the token and ``-inf`` elsewhere.
    """
    vocab_size = logits.shape[-1]
    law = own_log_probs(logits)
    masked = (x_t == vocab_size)[..., None]
    copied = x_t[..., None] == torch.arange(vocab_size, device=x_t.device)
    visible = torch.where(copied, 0.0, -torch.inf).to(law.dtype)
    return torch.where(masked, law, visible)


def own_log_probs(logits: Float[Tensor, "*n K"]) -> Float[Tensor, "*n K"]:
    """Normalise in float32 or better."""
    return logits.log_softmax(dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))


class Denoiser(nn.Module):
    """A backbone with its parameterization: the only thing that losses and samplers call.

    Attributes:
        kind: What the law of a token is given: for ``masked``, all visible tokens; for ``causal``
            the tokens before it, see ``seqdiff.causal``; for ``block`` the visible tokens of its
            block and those before, see ``seqdiff.block_denoiser``.
    """

    kind: Kind = "masked"

    def __init__(
        self, backbone: Backbone, vocab_size: int, schedule: NoiseSchedule | None = None
    ) -> None:
        """Wrap a backbone.

        Args:
            backbone: Embeds K+1 ids, emits K logits.
            vocab_size: K.
            schedule: Turns times into the sigma that a time-conditioned backbone is told; of no
                consequence for others.

        Raises:
            ValueError: If the backbone is time-conditioned and there is no schedule.
        """
        super().__init__()
        self.backbone = backbone
        self.vocab_size = vocab_size
        self.schedule = schedule
        if self.time_conditioned and schedule is None:
            raise ValueError(
                "Denoiser.schedule must be given for a backbone that is time-conditioned, got None "
                f"with {type(backbone).__name__}; pass the schedule of the process"
            )

    @property
    def time_conditioned(self) -> bool:
        """Whether the law of x0 given x_t depends on t too."""
        return self.backbone.time_conditioned

    @property
    def num_classes(self) -> int | None:
        """How many classes a row can be labelled with; None for a network without labels."""
        return self.backbone.num_classes

    def evaluations(
        self,
        x_t: Int[Tensor, "B L"],
        padding: Bool[Tensor, "B L"] | None = None,
        where: Bool[Tensor, "B L"] | None = None,
    ) -> Int64[Tensor, " B"]:
        """Count the network evaluations that a call spends on each row.

        Args:
            x_t: See ``forward``.
            padding: See ``forward``.
            where: See ``log_probs_at``; ``None`` for a call of ``forward``.
        """
        del padding, where
        return torch.ones(len(x_t), dtype=torch.int64, device=x_t.device)

    def forward(
        self,
        x_t: Int[Tensor, "B L"],
        t: Float[Tensor, " B"] | None = None,
        padding: Bool[Tensor, "B L"] | None = None,
        label: Int[Tensor, " B"] | None = None,
    ) -> Float[Tensor, "B L K"]:
        """Give the law of every clean token, in nats.

        Args:
            x_t: Ids in ``0..K``.
            t: Diffusion time in [0, 1].
            padding: Positions that hold nothing.
            label: Class of each row or ``NO_LABEL``; ``None`` gives the law without a label.

        Raises:
            ValueError: If the backbone does not emit K logits, there are labels and it has no
                classes, or it is time-conditioned and there is no time.
        """
        return self._normalise(self._logits(x_t, t, padding, label), x_t)

    def log_probs_at(
        self,
        x_t: Int[Tensor, "B L"],
        where: Bool[Tensor, "B L"],
        t: Float[Tensor, " B"] | None = None,
        padding: Bool[Tensor, "B L"] | None = None,
        label: Int[Tensor, " B"] | None = None,
    ) -> Float[Tensor, "N K"]:
        """Give the law of some clean tokens, in nats: ``forward(...)[where]``, up to rounding.

        The backbone scores these positions only. A subclass that overrides ``forward`` alone is
        asked through it.

        Args:
            x_t: See ``forward``.
            where: Positions that are asked about.
            t: See ``forward``.
            padding: See ``forward``.
            label: See ``forward``.

        Returns:
            One row for each position, in the order of ``where.nonzero()``.

        Raises:
            ValueError: See ``forward``.
        """
        if type(self).forward is not Denoiser.forward:
            return self(x_t, t, padding, label)[where]
        logits = self._logits(x_t, t, padding, label, where)
        return self._normalise(logits[None], x_t[where][None])[0]

    def nats(
        self,
        x_t: Int[Tensor, "B L"],
        x0: Int[Tensor, "B L"],
        where: Bool[Tensor, "B L"],
        t: Float[Tensor, " B"] | None = None,
        padding: Bool[Tensor, "B L"] | None = None,
        label: Int[Tensor, " B"] | None = None,
    ) -> Float[Tensor, "B L"]:
        """Give -log p(x0) at some positions, what losses and likelihoods are made of.

        By the network's own law: a visible token is not copied. Whom it asks, see ``log_probs_at``.

        Args:
            x_t: See ``forward``.
            x0: Clean ids; below K at these positions.
            where: Positions that are asked about.
            t: See ``forward``.
            padding: See ``forward``.
            label: See ``forward``.

        Returns:
            In float32 or better; 0 elsewhere.

        Raises:
            ValueError: See ``forward``.
        """
        if type(self).forward is not Denoiser.forward:
            law = self.log_probs_at(x_t, where, t, padding, label)
        else:
            law = self._own_law(self._logits_beside(x0, x_t, t, padding, label, where))
        terms = F.nll_loss(law, x0[where], reduction="none")
        return terms.new_zeros(where.shape).masked_scatter(where, terms)

    def _logits_beside(
        self,
        x0: Tensor,
        x_t: Tensor,
        t: Tensor | None,
        padding: Tensor | None,
        label: Tensor | None,
        where: Tensor,
    ) -> Tensor:
        """Scores ``[N, K]`` where x0 is known; most models have no use for it."""
        del x0
        return self._logits(x_t, t, padding, label, where)

    def _logits(
        self,
        x_t: Tensor,
        t: Tensor | None,
        padding: Tensor | None,
        label: Tensor | None,
        where: Tensor | None = None,
    ) -> Tensor:
        """Scores ``[B, L, K]``; with ``where``, ``[N, K]``."""
        self._check_label(label)
        inputs = Inputs(x_t, t, self._sigma(t), padding, label)
        return self._checked(self.backbone(inputs, where))

    def _check_label(self, label: Tensor | None) -> None:
        if label is not None and self.num_classes is None:
            raise ValueError(
                f"Denoiser.label must be None, got labels for {type(self.backbone).__name__}, "
                "which has no classes; use a backbone that takes num_classes"
            )

    def _checked(self, logits: Tensor) -> Tensor:
        if logits.shape[-1] != self.vocab_size:
            raise ValueError(
                f"Denoiser.backbone must emit vocab_size = {self.vocab_size} logits, got "
                f"{logits.shape[-1]}; build it with num_logits={self.vocab_size}"
            )
        return logits

    def _normalise(self, logits: Tensor, x_t: Tensor) -> Tensor:
        """The law of x0, from logits of any positions."""
        with torch.autocast(logits.device.type, enabled=False):
            return subs_log_probs(logits, x_t)

    def _own_law(self, logits: Tensor) -> Tensor:
        """The network's law, visible tokens or not, from logits of any positions."""
        with torch.autocast(logits.device.type, enabled=False):
            return own_log_probs(logits)

    def _sigma(self, t: Tensor | None) -> Tensor | None:
        """The noise level that a time-conditioned backbone is told."""
        if not self.time_conditioned:
            return None
        if t is None:
            raise ValueError(
                "Denoiser.t must be given for a time-conditioned backbone, got None; pass the time "
                "of each row"
            )
        assert self.schedule is not None
        return self.schedule.sigma(t)

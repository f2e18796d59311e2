"""Autoregressive models: one network, one pass, the law of every token given those before it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import functional_call

from seqdiff.backbones import Backbone
from seqdiff.parameterization import Denoiser
from seqdiff.types import Inputs

_PROBE_LENGTH = 4
_PROBE_TOLERANCE = 1e-4


class CausalDenoiser(Denoiser):
    """A causal backbone: the law of token l is ``p(x_l | x_0 .. x_{l-1})``, visible or not.

    It has the place of a ``Denoiser`` in a run, but it is no law of masked tokens given *all*
    visible ones: samplers and estimators of masked diffusion refuse it, and those for it refuse a
    ``Denoiser``. Masks among the tokens are unknown symbols. The time is not told to the network.
    """

    kind = "causal"

    def __init__(self, backbone: Backbone, vocab_size: int) -> None:
        """Wrap a backbone.

        Args:
            backbone: Embeds K+1 ids, emits K logits; those of a position depend on the tokens
                before it alone, so the shift by one is inside.
            vocab_size: K.

        Raises:
            ValueError: If the backbone sees a token that it is to predict.
        """
        super().__init__(backbone, vocab_size)
        seen = first_leak(backbone, vocab_size)
        if seen is not None:
            raise ValueError(
                "CausalDenoiser.backbone must score each position from the tokens before it, got "
                f"{type(backbone).__name__}, whose position {seen[0]} depends on token {seen[1]}; "
                "choose a causal backbone, or an objective of masked diffusion"
            )

    def _normalise(self, logits: Tensor, x_t: Tensor) -> Tensor:
        return self._own_law(logits)

    def _logits(
        self,
        x_t: Tensor,
        t: Tensor | None,
        padding: Tensor | None,
        label: Tensor | None,
        where: Tensor | None = None,
    ) -> Tensor:
        return super()._logits(x_t, None, padding, label, where)


@torch.no_grad()
def first_leak(backbone: Backbone, vocab_size: int) -> tuple[int, int] | None:
    """Look for a position whose scores depend on a token that is not before it.

    The network is tried with random weights in place of its own, since a head that starts at zero
    would hide what it sees.

    Args:
        backbone: The network; it stays as it is.
        vocab_size: K.

    Returns:
        The position, from 0, and the token; ``None`` if there is none.
    """
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(vocab_size + 1, (_PROBE_LENGTH,), generator=generator)
    changed = (tokens + torch.eye(_PROBE_LENGTH, dtype=torch.int64)) % (vocab_size + 1)
    rows = torch.cat((tokens[None], changed))
    scores = _with_random_weights(backbone, rows, generator).double().cpu()
    scores = scores.masked_fill(scores.isinf(), 0.0)  # a symbol that is ruled out
    base, others = scores[0], scores[1:]
    change = (others - base).abs().amax(dim=-1)
    moved = ~(change <= _PROBE_TOLERANCE * base.abs().amax())  # a NaN tells nothing, so it is one
    leaks = (moved & torch.ones_like(moved).tril()).nonzero().tolist()
    return (leaks[0][1], leaks[0][0]) if leaks else None


def _with_random_weights(backbone: Backbone, rows: Tensor, generator: torch.Generator) -> Tensor:
    """Logits of a network in eval mode whose weights have the usual size, and none is zero."""
    weights = {
        name: (
            torch.randn(weight.shape, generator=generator)
            * (weight.shape[-1] ** -0.5 if weight.dim() > 1 else 1.0)
        ).to(weight)
        for name, weight in backbone.named_parameters()
    }
    device = next((weight.device for weight in weights.values()), rows.device)
    was_training = backbone.training
    backbone.eval()
    try:
        logits = functional_call(backbone, weights, (Inputs(rows.to(device)),))
    finally:
        backbone.train(was_training)
    assert isinstance(logits, Tensor)
    return logits

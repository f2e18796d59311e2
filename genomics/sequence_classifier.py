"""A classifier on top of a backbone: the mean of its states over positions, a linear layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from seqdiff.backbones import Backbone
from seqdiff.samplers.conjoining import read_back
from seqdiff.types import Inputs

from .benchmark_protocol import Conjoin, Pooling


class SequenceClassifier(nn.Module):
    """Scores classes by the mean state, on one strand or averaged over both.

    A network that reads both strands (Caduceus-PS) gives two states, which share the head and whose
    scores are averaged, so that a sequence and its reverse complement have the same scores, in
    training too. Any other network reads one strand, unless it is conjoined: then it is run on both
    and their scores are averaged, at test or in training too. Source: Schiff et al. 2024,
    arXiv:2403.03234, section 4.

    Attributes:
        backbone: The network.
        head: Of the classes.
        conjoin: When one strand's network is run on both.
        pooling: Over real positions alone, or as published code does: padding is read as unknown
            bases, and pooled with the rest.
    """

    def __init__(
        self,
        backbone: Backbone,
        num_classes: int,
        *,
        complement: Sequence[int],
        conjoin: Conjoin = "none",
        pooling: Pooling = "real",
    ) -> None:
        """Put a new head on a network.

        Args:
            backbone: The network.
            num_classes: Classes to tell apart.
            complement: The id of each base on the other strand.
            conjoin: See the class; ``none`` for a network that reads both strands.
            pooling: See the class.

        Raises:
            ValueError: If a network that reads both strands is to be conjoined.
        """
        super().__init__()
        if backbone.strands == 2 and conjoin != "none":
            raise ValueError(
                f"SequenceClassifier.conjoin must be none for a network that reads both strands, "
                f"got {conjoin}; its scores are averaged over them as it is"
            )
        self.backbone = backbone
        self.conjoin: Conjoin = conjoin
        self.pooling: Pooling = pooling
        self.complement: Tensor
        device = next(backbone.parameters()).device
        with_mask = torch.tensor([*complement, len(complement)], device=device)
        self.register_buffer("complement", with_mask, persistent=False)
        self.head = nn.Linear(backbone.width, num_classes, device=device)

    def forward(
        self, tokens: Int[Tensor, "B L"], padding: Bool[Tensor, "B L"]
    ) -> Float[Tensor, "B C"]:
        """Score the classes.

        Args:
            tokens: Ids, the mask where a base is unknown.
            padding: True where there is no base; every row has at least one.
        """
        both = self.conjoin == "train" or (self.conjoin == "test" and not self.training)
        return self.score(self.pool(tokens, padding, both=both))

    def pool(
        self, tokens: Int[Tensor, "B L"], padding: Bool[Tensor, "B L"], *, both: bool
    ) -> Float[Tensor, "B S D"]:
        """Average the states over positions, for each strand that is read.

        Args:
            tokens: See ``forward``.
            padding: See ``forward``.
            both: Whether to run the network on the other strand too.
        """
        if self.pooling == "padded":
            padding = torch.zeros_like(padding)
        if both:
            other = read_back(tokens, self.complement, padding)
            rows = torch.cat((tokens, other)), torch.cat((padding, padding))
            return torch.cat(self.pool(*rows, both=False).chunk(2), dim=1)
        inputs = Inputs(tokens, padding=padding if padding.any() else None)
        states = self.backbone.hidden(inputs)
        states = states.unflatten(-1, (self.backbone.strands, -1))
        real = (~padding)[..., None, None]
        return states.masked_fill(~real, 0).sum(dim=1) / real.sum(dim=1)

    def score(self, pooled: Float[Tensor, "B S D"]) -> Float[Tensor, "B C"]:
        """Score the classes by pooled states: the mean of the strands' scores.

        Args:
            pooled: From ``pool``.
        """
        return self.head(pooled).mean(dim=1)

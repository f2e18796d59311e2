"""Guidance towards a label for models of block diffusion."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor

from seqdiff.backbones import BlockCache
from seqdiff.block_denoiser import BlockDenoiser, Prefix
from seqdiff.parameterization import own_log_probs
from seqdiff.samplers.guidance import check_gamma, check_label, mix
from seqdiff.types import NO_LABEL


class BlockClassifierFree(BlockDenoiser):
    """``ClassifierFree`` for block diffusion: the law of every block, given the ones before it.

    Both laws remember the prefix for themselves, so that a block costs twice as much to score and
    to take in as without guidance, unless gamma is 0 or 1.

    Args:
        denoiser: Of a network that knows classes; it is not guided yet.
        label: The class, for all rows.
        gamma: Strength, see ``ClassifierFree``.

    Raises:
        ValueError: If the network has no such class, or the strength is out of range.
    """

    def __init__(self, denoiser: BlockDenoiser, label: int, gamma: float = 1.0) -> None:
        super().__init__(denoiser.backbone, denoiser.vocab_size, denoiser.block_size)
        if isinstance(denoiser, BlockClassifierFree):
            raise ValueError(
                "BlockClassifierFree.denoiser must not be guided yet, got one guided to "
                f"{denoiser.label}; guide the model itself"
            )
        check_gamma(type(self).__name__, gamma)
        check_label(type(self).__name__, label, denoiser.num_classes)
        self.label, self.gamma = label, gamma

    @property
    def _labels(self) -> tuple[int, ...]:
        """Which laws are asked."""
        if self.gamma in (0, 1):
            return (self.label if self.gamma else NO_LABEL,)
        return self.label, NO_LABEL

    def evaluations(
        self,
        x_t: Int[Tensor, "B L"],
        padding: Bool[Tensor, "B L"] | None = None,
        where: Bool[Tensor, "B L"] | None = None,
    ) -> Int64[Tensor, " B"]:
        """See ``Denoiser``."""
        return super().evaluations(x_t, padding, where) * len(self._labels)

    def _block_logits(
        self,
        x_t: Tensor,
        x0: Tensor,
        padding: Tensor | None,
        label: Tensor | None,
        where: Tensor | None,
    ) -> Tensor:
        self._refuse(label)
        parts = [
            super(BlockClassifierFree, self)._block_logits(
                x_t, x0, padding, torch.full_like(x_t[:, 0], one), where
            )
            for one in self._labels
        ]
        return _combine(parts, self.gamma)

    def start(
        self,
        batch_size: int,
        *,
        window: int | None = None,
        label: Int[Tensor, " B"] | None = None,
    ) -> Prefix:
        """See ``BlockDenoiser``.

        Raises:
            ValueError: If there is another label.
        """
        self._refuse(label)
        device = next(self.parameters(), torch.empty(0)).device
        caches = [
            self.backbone.block_cache(
                batch_size,
                self.block_size,
                window=window,
                label=torch.full((batch_size,), one, device=device),
            )
            for one in self._labels
        ]
        return Prefix(self, GuidedCache(tuple(caches), self.gamma))

    def _refuse(self, label: Tensor | None) -> None:
        if label is not None:
            raise ValueError(
                f"BlockClassifierFree.label must not be given twice, since it has {self.label}, "
                f"got one of shape {tuple(label.shape)}; guide one denoiser for each label"
            )


@dataclass
class GuidedCache:
    """See ``BlockCache``: that of one law, or those of two that are mixed.

    Attributes:
        caches: With the label, and without.
        gamma: Strength.
    """

    caches: tuple[BlockCache, ...]
    gamma: float

    @property
    def length(self) -> int:
        """See ``BlockCache``."""
        return self.caches[0].length

    def logits(
        self, x_t: Int[Tensor, "B l"], where: Bool[Tensor, "B l"] | None = None
    ) -> Float[Tensor, "B l K"] | Float[Tensor, "N K"]:
        """See ``BlockCache``."""
        return _combine([cache.logits(x_t, where) for cache in self.caches], self.gamma)

    def append(self, x0: Int[Tensor, "B l"]) -> None:
        """See ``BlockCache``."""
        for cache in self.caches:
            cache.append(x0)

    def take(self, rows: Int[Tensor, " b"]) -> GuidedCache:
        """See ``BlockCache``."""
        return GuidedCache(tuple(cache.take(rows) for cache in self.caches), self.gamma)


def _combine(parts: list[Tensor], gamma: float) -> Tensor:
    """The logits of one law, or those of the mixture of two."""
    if len(parts) == 1:
        return parts[0]
    with_label, without = (own_log_probs(part) for part in parts)
    return mix(with_label, without, gamma)

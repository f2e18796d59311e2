"""Block diffusion models: the law of a token given its noisy block and the clean blocks before."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Bool, Float, Int
from torch import Tensor

from seqdiff.backbones import Backbone, BlockCache
from seqdiff.parameterization import Denoiser
from seqdiff.process import check_block_size
from seqdiff.types import Inputs


class BlockDenoiser(Denoiser):
    """A backbone that reads the blocks before a token's own as they are, and none after it.

    Called with x_t alone, as samplers do, it takes the earlier blocks of x_t for clean ones; masks
    in them are unknown symbols. ``nats``, where x0 is known, reads them from x0. The time is not
    told to the network. Source: Arriola et al. 2025, arXiv:2503.09573, section 3.

    Attributes:
        block_size: L', tokens of a block.
    """

    kind = "block"

    def __init__(self, backbone: Backbone, vocab_size: int, block_size: int) -> None:
        """Wrap a backbone.

        Args:
            backbone: Embeds K+1 ids, emits K logits, and reads blocks.
            vocab_size: K.
            block_size: L'.

        Raises:
            ValueError: If the backbone cannot score blocks, or is time-conditioned, for each block
                has a noise of its own.
        """
        check_block_size("BlockDenoiser", block_size)
        if not backbone.reads_blocks:
            raise ValueError(
                "BlockDenoiser.backbone must score blocks given the clean ones before them, got "
                f"{type(backbone).__name__}; choose Transformer or BlockMamba"
            )
        if backbone.time_conditioned:
            raise ValueError(
                "BlockDenoiser.backbone must be time-free, since each block has a noise of its "
                f"own, got a time-conditioned {type(backbone).__name__}; set time_conditioned=False"
            )
        super().__init__(backbone, vocab_size)
        self.block_size = block_size

    def _logits(
        self,
        x_t: Tensor,
        t: Tensor | None,
        padding: Tensor | None,
        label: Tensor | None,
        where: Tensor | None = None,
    ) -> Tensor:
        return self._block_logits(x_t, x_t, padding, label, where)

    def _logits_beside(
        self,
        x0: Tensor,
        x_t: Tensor,
        t: Tensor | None,
        padding: Tensor | None,
        label: Tensor | None,
        where: Tensor,
    ) -> Tensor:
        return self._block_logits(x_t, x0, padding, label, where)

    def _block_logits(
        self,
        x_t: Tensor,
        x0: Tensor,
        padding: Tensor | None,
        label: Tensor | None,
        where: Tensor | None,
    ) -> Tensor:
        self._check_label(label)
        inputs = Inputs(x_t, padding=padding, label=label)
        return self._checked(self.backbone.block_logits(inputs, x0, self.block_size, where))

    def start(
        self,
        batch_size: int,
        *,
        window: int | None = None,
        label: Int[Tensor, " B"] | None = None,
    ) -> Prefix:
        """Begin rows that grow block by block, with nothing behind them yet.

        Args:
            batch_size: Rows.
            window: See ``Backbone.block_cache``.
            label: Class of each row or ``NO_LABEL``.

        Raises:
            ValueError: If there are labels and the backbone has no classes, or the window does not
                fit it.
        """
        self._check_label(label)
        cache = self.backbone.block_cache(batch_size, self.block_size, window=window, label=label)
        return Prefix(self, cache)


@dataclass(frozen=True)
class Prefix:
    """The clean blocks of some rows as a network remembers them.

    Attributes:
        denoiser: The model.
        cache: What it remembers.
    """

    denoiser: BlockDenoiser
    cache: BlockCache

    def log_probs_at(
        self, x_t: Int[Tensor, "B l"], where: Bool[Tensor, "B l"]
    ) -> Float[Tensor, "N K"]:
        """Give the law of some tokens of the next block, in nats; see ``Denoiser.log_probs_at``.

        Args:
            x_t: The next block, which may be cut short.
            where: Positions that are asked about.
        """
        logits = self.denoiser._checked(self.cache.logits(x_t, where))
        return self.denoiser._normalise(logits[None], x_t[where][None])[0]

    def append(self, x0: Int[Tensor, "B l"]) -> None:
        """Take in clean tokens: one or several whole blocks."""
        self.cache.append(x0)

    def take(self, rows: Int[Tensor, " b"]) -> Prefix:
        """Remember some rows, in this order; see ``BlockCache.take``."""
        return Prefix(self.denoiser, self.cache.take(rows))

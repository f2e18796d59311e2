"""Sampling from a model of block diffusion: one block after the other."""

from __future__ import annotations

from dataclasses import dataclass, field

from seqdiff.denoiser import Denoiser, Needs
from seqdiff.process import Absorbing, Blockwise
from seqdiff.samplers.canvas import Canvas
from seqdiff.samplers.checks import check_numbers
from seqdiff.samplers.first_hitting import FirstHittingSampler
from seqdiff.samplers.grid import TauLeapingSampler
from seqdiff.samplers.growth import Growth, StopRules, real_tokens
from seqdiff.samplers.protocol import Sampler
from seqdiff.samplers.semi_autoregressive import SemiAutoregressiveSampler
from seqdiff.samplers.smc import SMCSampler

_WHOLE_ROWS = (SemiAutoregressiveSampler, SMCSampler, TauLeapingSampler)


@dataclass(frozen=True)
class BlockSampler(Sampler):
    """For block diffusion: fills block after block given the clean ones before; any sampler inside.

    The network keeps what it needs of finished blocks: a state, so that a block costs the same
    wherever it lies, or as many tokens as its window holds. What the sampler itself does for a
    block does not depend on the length of the row. Visible tokens may be anywhere: a prompt of any
    length, another for each row, or gaps to fill. Tokens to the right of a block are not seen from
    it, so with those the law is the one that this order gives, block by block, and not the model's
    law given all that is visible. A row that has no masks left leaves the batch. Source: Arriola et
    al. 2025, arXiv:2503.09573, section 3.

    A row may end before it is full, ``SampleOutput.length`` says where: with the first stop symbol
    that was drawn, which stays its last token, or after a block that leaves its end monotonous. It
    never ends before its last visible token, nor with a stop symbol in the first place, where some
    texts have it as their beginning.

    Network evaluations are counted in blocks. A block is evaluated as often as the sampler inside
    asks, and once more, clean, when it is taken in: a block of a prompt only that once, the last
    block of a row never.

    Attributes:
        inner: Fills each block; temperature and its like are its own.
        window: Tokens that the network looks at at a time, those of the block among them; those
            further back are forgotten. A row may be longer, by any amount. By default the network
            decides; one that keeps a state has no use for it.
        stop_id: The symbol that ends a row.
        min_entropy: A row ends after a block that leaves the unigram entropy of its last
            ``entropy_window`` tokens, a prompt's among them, below this number of nats. For text in
            subwords 4 is published; natural text must lie well above it.
        entropy_window: See ``min_entropy``; rows that are shorter go on.
    """

    needs = Needs((Blockwise,), any_order=True)
    directed = True
    inner: Sampler = field(default_factory=FirstHittingSampler)
    window: int | None = None
    stop_id: int | None = None
    min_entropy: float | None = None
    entropy_window: int = 256

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            ValueError: If one is out of its range, or what is inside cannot fill a block.
        """
        check_numbers(self)
        if not isinstance(self.inner, Sampler):
            raise ValueError(
                f"BlockSampler.inner must be a sampler, got {self.inner!r}; build one, such as "
                "FirstHittingSampler()"
            )
        masks = self.inner.needs.include(Absorbing, "loo")
        if not masks or isinstance(self.inner, _WHOLE_ROWS):
            raise ValueError(
                "BlockSampler.inner must be a sampler of masked diffusion that can fill a block "
                f"by itself, got {type(self.inner).__name__}; choose first_hitting or ancestral"
            )
        if self.entropy_window < 1:
            raise ValueError(
                f"BlockSampler.entropy_window must be at least 1, got {self.entropy_window}; "
                "256 is published"
            )

    @property
    def _rules(self) -> StopRules:
        return StopRules(self.stop_id, self.min_entropy, self.entropy_window)

    def reach(self, length: int) -> int:
        """See ``Sampler``."""
        return length if self.window is None else min(length, self.window)

    def fill(self, canvas: Canvas) -> None:
        """See ``Sampler``; steps are those of all blocks, one after the other.

        Raises:
            ValueError: If the model is of another kind, the window does not hold two blocks,
                padding is not at the end of rows, or a stop rule does not fit the symbols.
        """
        size, rules = self.check(canvas.denoiser), self._rules
        end = real_tokens(canvas)
        if not rules.idle:
            canvas.length = end
        if not bool(canvas.masked.any()):
            return
        behind = None if self.window is None else (self.window // size - 1) * size
        growth = Growth.begin(canvas, end, behind)
        for block in range(growth.num_blocks):
            growth.leave(block)
            if growth.is_open(block):
                growth.catch_up(block)
                growth.fill(block, self.inner)
                if not rules.idle:
                    growth.stop(block, rules)

    def check(self, denoiser: Denoiser) -> int:
        """Refuse what does not fit the model.

        Args:
            denoiser: The model.

        Returns:
            The tokens of a block.

        Raises:
            ValueError: See ``fill``.
        """
        self.check_fit(denoiser)
        size = denoiser.block_size
        if self.window is not None and self.window < 2 * size:
            raise ValueError(
                f"BlockSampler.window must hold two blocks of {size} tokens, got {self.window}; "
                "the length of the training rows is a good choice"
            )
        self._rules.check(type(self).__name__, denoiser.vocab_size)
        return size

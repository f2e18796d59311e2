"""Semi-autoregressive sampling: slide a window along a row that is longer than the context."""

from __future__ import annotations

from dataclasses import dataclass, field

from seqdiff.process import Absorbing
from seqdiff.samplers.canvas import Canvas
from seqdiff.samplers.checks import check_numbers
from seqdiff.samplers.first_hitting import FirstHittingSampler
from seqdiff.samplers.protocol import Sampler


@dataclass(frozen=True)
class SemiAutoregressiveSampler(Sampler):
    """Fill a sliding window, move it on by a stride and keep its tokens; any sampler inside.

    The network sees one window at a time, so a row may be longer than what it was trained on. The
    first window is drawn whole; each next one sees the tokens it shares with the one before; what
    of the last one lies beyond the row is cut off. Source: Sahoo et al. 2024, arXiv:2406.07524.

    Attributes:
        window: Tokens that the network sees at a time.
        stride: Tokens that the window moves by, at most ``window``.
        inner: Fills each window; temperature and its like are its own.
    """

    directed = True
    draws_from = "another"
    window: int
    stride: int
    inner: Sampler = field(default_factory=FirstHittingSampler)

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            ValueError: If window or stride is no integer, the stride is not in 1..window, or what
                is inside is no sampler of masked diffusion.
        """
        check_numbers(self)
        if not isinstance(self.inner, Sampler):
            raise ValueError(
                f"SemiAutoregressiveSampler.inner must be a sampler, got {self.inner!r}; build one,"
                " such as FirstHittingSampler()"
            )
        if not self.inner.needs.include(Absorbing, "loo"):
            raise ValueError(
                "SemiAutoregressiveSampler.inner must be a sampler of masked diffusion, got "
                f"{type(self.inner).__name__}; choose first_hitting or ancestral"
            )
        if not 1 <= self.stride <= self.window:
            raise ValueError(
                f"SemiAutoregressiveSampler.stride must be in 1..window = {self.window}, got "
                f"{self.stride}; half the window is a good choice"
            )

    def reach(self, length: int) -> int:
        """See ``Sampler``."""
        return self.inner.reach(min(length, self.window))

    def fill(self, canvas: Canvas) -> None:
        """See ``Sampler``; steps are those of all windows, one after the other."""
        length = canvas.x_t.shape[1]
        for start in range(0, max(1, length - self.window + self.stride), self.stride):
            self.inner.fill(canvas.window(start, min(start + self.window, length)))

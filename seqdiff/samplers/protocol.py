"""What every sampler promises, and the call that all of them share."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from seqdiff.parameterization import Denoiser
from seqdiff.process import MaskedDiffusion
from seqdiff.samplers.canvas import Canvas, StepCallback
from seqdiff.samplers.checks import check_kind, check_request
from seqdiff.samplers.draws import SeededDraws, row_seeds
from seqdiff.types import SampleOutput


class Sampler(ABC):
    """Draws sequences by running the process backwards.

    A new sampler implements ``fill``; the rest is done here, once for all.

    Attributes:
        directed: Whether its law depends on the end from which a row is read, even where the
            model's does not.
        kind: Of the models that it is for.
    """

    # Without annotations, which the configuration parser would have to resolve.
    directed = False
    kind = "masked"

    def reach(self, length: int) -> int:
        """Say how many positions of a row the network is given at a time, at most.

        Args:
            length: Of the row.
        """
        return length

    @torch.no_grad()
    def sample(
        self,
        denoiser: Denoiser,
        process: MaskedDiffusion,
        x_init: Int[Tensor, "B L"],
        *,
        generator: torch.Generator | None = None,
        seeds: Int[Tensor, " B"] | None = None,
        allowed: Bool[Tensor, "B L K"] | None = None,
        padding: Bool[Tensor, "B L"] | None = None,
        callback: StepCallback | None = None,
    ) -> SampleOutput:
        """Fill the masked positions of ``x_init``; visible tokens stay.

        A row's noise is a function of its own seed and the place in the row. The same seed gives
        the same sample in whatever batch, as far as the network's output for a row is the same in
        any batch (matrix products may round differently).

        Args:
            denoiser: The model; put it in eval mode first.
            process: The process it was trained for.
            x_init: Ids in ``0..K``; ``process.prior(...)`` for generation from nothing.
            generator: Draws one seed a row; on any device.
            seeds: The rows' seeds themselves, in [0, 2^63); give either these or a generator.
            allowed: Letters that each position may take; the model's law is restricted to them and
                normalised.
            padding: Positions that hold nothing: neither filled nor attended to, and returned as
                they are. Without it, all positions are real.
            callback: Called after each step with the step's number (from 1) and its tokens, which
                the next step overwrites. A number that has been called before takes back what was
                told of that step and of later ones: who samples with particles learns at the end
                which of them is the sample, and then tells its steps from the first on.

        Raises:
            ValueError: Before any network call, if the model is of the other kind, an id is not the
                process's, a shape does not fit, both or neither of generator and seeds are given, a
                visible letter is not allowed, or a masked position is allowed none.
        """
        check_kind(type(self).__name__, denoiser, kind=self.kind)
        check_request(x_init, process, allowed, padding, generator, seeds)
        if seeds is None:
            assert generator is not None  # by check_request
            seeds = row_seeds(len(x_init), generator)
        draws = SeededDraws(seeds.to(x_init.device, torch.int64))
        canvas = Canvas.open(denoiser, process, draws, x_init, padding, allowed, callback)
        self.fill(canvas)
        assert not canvas.masked.any()  # what ``fill`` promises
        return SampleOutput(canvas.x_t, canvas.nfe, canvas.length)

    @abstractmethod
    def fill(self, canvas: Canvas) -> None:
        """Fill every masked position of the canvas.

        Args:
            canvas: The rows, the model and the noise.
        """

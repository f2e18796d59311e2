"""What every sampler promises, the call that all of them share, and the names they go by."""

from __future__ import annotations

import inspect
import re
from abc import ABC, abstractmethod

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from seqdiff.denoiser import Denoiser, Needs
from seqdiff.process import Absorbing
from seqdiff.samplers.canvas import Canvas, StepCallback
from seqdiff.samplers.checks import check_request
from seqdiff.samplers.draws import SeededDraws, row_seeds
from seqdiff.types import SampleOutput


class Sampler(ABC):
    """Draws sequences by running the process backwards.

    A new sampler implements ``fill``; the rest is done here, once for all.

    Attributes:
        directed: Whether its distribution depends on the end from which a row is read, even where
            the model's does not.
        needs: Of the models that it is for.
        draws_from: The model's distribution: ``exactly``, ``in the limit`` of many steps, or
            ``another`` one.
    """

    # Without annotations, which the configuration parser would have to resolve.
    directed = False
    needs = Needs((Absorbing,), any_order=True)
    draws_from = "exactly"

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
        x_init: Int[Tensor, "B L"],
        *,
        generator: torch.Generator | None = None,
        seeds: Int[Tensor, " B"] | None = None,
        allowed: Bool[Tensor, "B L K"] | None = None,
        padding: Bool[Tensor, "B L"] | None = None,
        callback: StepCallback | None = None,
    ) -> SampleOutput:
        """Fill the unknown positions of ``x_init``; the other tokens stay as they are given.

        A row's noise is a function of its own seed and the place in the row. The same seed gives
        the same sample in whatever batch, as far as the network's output for a row is the same in
        any batch (matrix products may round differently).

        Args:
            denoiser: The model; put it in eval mode first.
            x_init: Ids in ``0..K``, K where a token is to be drawn; ``process.blank(...)`` for
                generation from nothing.
            generator: Draws one seed a row; on any device.
            seeds: The rows' seeds themselves, in [0, 2^63); give either these or a generator.
            allowed: Symbols that each position may take; the model's prediction of the clean token
                is restricted to them and normalised.
            padding: Positions that hold nothing: neither filled nor attended to, and returned as
                they are. Without it, all positions are real.
            callback: Called after each step with the step's number (from 1) and its tokens, which
                the next step overwrites. A number that has been called before takes back what was
                told of that step and of later ones: who samples with particles learns at the end
                which of them is the sample, and then tells its steps from the first on.

        Raises:
            ValueError: Before any network call, if the sampler is not for the model, an id is not
                the process's, a shape does not fit, both or neither of generator and seeds are
                given, a given symbol is not allowed, or a position to fill is allowed none.
        """
        self.check_fit(denoiser)
        check_request(x_init, denoiser.process.unknown_id, allowed, padding, generator, seeds)
        if seeds is None:
            assert generator is not None  # by check_request
            seeds = row_seeds(len(x_init), generator)
        draws = SeededDraws(seeds.to(x_init.device, torch.int64))
        canvas = Canvas.open(denoiser, draws, x_init, padding, allowed, callback)
        self.fill(canvas)
        assert not canvas.masked.any()  # what ``fill`` promises
        return SampleOutput(canvas.x_t, canvas.nfe, canvas.length, canvas.clamped)

    def check_fit(self, denoiser: Denoiser) -> None:
        """Check that this sampler is for a model; one that contains another checks that too.

        Raises:
            ValueError: In one line, if it is not, with the samplers that are.
        """
        if not self.needs.met_by(denoiser):
            raise ValueError(
                f"Sampler.denoiser must fit {type(self).__name__}, got the {denoiser.description}; "
                f"its samplers are {', '.join(fitting_samplers(denoiser)) or 'your own'}"
            )

    @abstractmethod
    def fill(self, canvas: Canvas) -> None:
        """Fill every masked position of the canvas.

        Args:
            canvas: The rows, the model and the noise.
        """


def named_samplers() -> dict[str, type[Sampler]]:
    """Every sampler that has been imported, under its name.

    The name of ``FirstHittingSampler`` is ``first_hitting``; an outside sampler has one too.
    """
    found: dict[str, type[Sampler]] = {}
    waiting: list[type[Sampler]] = [Sampler]
    while waiting:
        cls = waiting.pop()
        waiting += cls.__subclasses__()
        if not inspect.isabstract(cls) and ABC not in cls.__bases__:
            found[sampler_name(cls)] = cls
    return dict(sorted(found.items()))


def sampler_name(cls: type[Sampler]) -> str:
    """The name of a sampler: that of its class in snake case, without ``Sampler``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__.removesuffix("Sampler")).lower()


def fitting_samplers(denoiser: Denoiser) -> list[str]:
    """Names of the samplers that are for a model."""
    return [name for name, cls in named_samplers().items() if cls.needs.met_by(denoiser)]


def find_sampler(name: str) -> type[Sampler]:
    """Choose a sampler by its name, with dashes or underscores.

    Raises:
        ValueError: If there is none; with those there are.
    """
    known = named_samplers()
    found = known.get(name.replace("-", "_"))
    if found is None:
        raise ValueError(
            f"sample.sampler must be one of {', '.join(known)}, got {name!r}; "
            "seqdiff samplers says what they do"
        )
    return found

"""The base class of samplers: the call they all answer, its checks, and their names."""

from __future__ import annotations

import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import field, fields, is_dataclass
from numbers import Integral, Real
from typing import Any

import torch
from jaxtyping import Bool, Float64, Int
from torch import Tensor

from seqdiff.denoiser import Denoiser, Needs
from seqdiff.process import Absorbing
from seqdiff.samplers.avoidance import Completions, WordAutomaton
from seqdiff.samplers.canvas import Canvas, StepCallback
from seqdiff.samplers.draws import SeededDraws, row_seeds
from seqdiff.types import Inputs, SampleOutput, Signal

_NUMBERS = {"int": (Integral, "an integer"), "float": (Real, "a number")}


def option(default: object, holds: Callable[[Any], bool], requirement: str, fix: str) -> Any:
    """Declare an option of a sampler whose value is checked when the sampler is built.

    Args:
        default: Its default. ``None`` is always accepted.
        holds: Whether a value is in the range of the option.
        requirement: The range in words, after "must".
        fix: What to do about a value outside of the range.
    """
    return field(default=default, metadata={"check": (holds, requirement, fix)})


def require(sampler: object, holds: bool, name: str, requirement: str, fix: str) -> None:
    """Raise ``ValueError`` for an option of a sampler unless a condition holds."""
    if not holds:
        got = getattr(sampler, name)
        raise ValueError(f"{type(sampler).__name__}.{name} must {requirement}, got {got}; {fix}")


class Sampler(ABC):
    """Draws sequences by running the process backwards. A new sampler implements ``fill``.

    Attributes:
        order_dependent: Whether the distribution depends on the end from which a row is read, even
            if that of the model does not.
        fills_blocks: Whether it can fill a block for ``BlockSampler``.
        needs: The models that the sampler works with.
        draws_from: ``exactly`` for the distribution of the model, ``in the limit`` for one that
            tends to it as the number of steps grows, ``another`` for any other distribution.
    """

    # Without annotations, which the configuration parser would have to resolve.
    order_dependent = False
    fills_blocks = True
    needs = Needs((Absorbing,), any_order=True)
    draws_from = "exactly"

    def __post_init__(self) -> None:
        """Check the options of a sampler that is a dataclass: first their types, then their ranges.

        Raises:
            ValueError: If an option is not a number although it is annotated as one, or is out of
                its range.
        """
        assert is_dataclass(self)
        for entry in fields(self):
            declared = str(getattr(entry.type, "__name__", entry.type))
            kind, requirement = _NUMBERS.get(declared.removesuffix(" | None"), (object, ""))
            value = getattr(self, entry.name)
            absent = value is None and declared.endswith("| None")
            number = isinstance(value, kind) and not (requirement and isinstance(value, bool))
            if not (absent or number):
                raise ValueError(
                    f"{type(self).__name__}.{entry.name} must be {requirement}, got {value!r}; "
                    "convert it"
                )
        for entry in fields(self):
            value = getattr(self, entry.name)
            if value is not None and "check" in entry.metadata:
                holds, requirement, fix = entry.metadata["check"]
                require(self, holds(value), entry.name, requirement, fix)

    def context_length(self, length: int) -> int:
        """Return how many positions of a row of some length the network sees at a time, at most."""
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
        signal: Signal | None = None,
        avoid: WordAutomaton | None = None,
        chance: Float64[Tensor, "B L"] | None = None,
    ) -> SampleOutput:
        """Fill the unknown positions of ``x_init`` and leave all other tokens as they are.

        The noise of a row is a function of its own seed and of the position. The same seed gives
        the same sample in any batch, as long as the network's output for a row does not depend on
        the batch (matrix products may round differently).

        Args:
            denoiser: The model; put it in eval mode first.
            x_init: Ids in ``0..K``, where K stands for a token to draw; ``process.blank(...)``
                generates from nothing.
            generator: Draws one seed per row. It may be on any device.
            seeds: The seeds of the rows, in [0, 2^63). Give either these or a generator.
            allowed: Symbols that each position may take. The model's prediction of the clean token
                is restricted to them and normalised.
            padding: True at positions of padding. They are neither filled nor attended to, and
                returned as they are. By default there is no padding.
            callback: Called after each step with its number (from 1) and the tokens, which the next
                step overwrites. A call with an earlier number replaces that step and removes the
                later ones: ``SMCSampler`` knows only at the end which particle is the sample.
            signal: Values that each row, or each position, is conditioned on, in the units of the
                training data; NaN where a value is unknown.
            avoid: Words that no row may hold. Each token is drawn from the model's conditional
                distribution, restricted to the symbols with which the row, its given tokens and
                ``allowed`` can still be completed without such a word, and normalised. Tokens of
                one step are drawn from left to right. So no row ever holds a word, but rows are
                not distributed as the model's given that they hold none: as with ``allowed``,
                what each token makes likely later is not weighed. Noisy tokens of uniform and
                hybrid noise are restricted in every step as well.
            chance: Is filled with the probability that the model gave each token when it was drawn,
                within the symbols that were possible and before any temperature. Tokens that are
                not drawn by ``Canvas.draw`` leave it as it is.

        Raises:
            ValueError: Before any network call, if the sampler does not work with the model, an id
                or a shape does not fit, both or neither of generator and seeds are given, a given
                symbol is not allowed, no symbol is allowed at a position to fill, or a row cannot
                be filled without a word to avoid. After sampling, if the sampler wrote such a word
                because it does not draw by ``Canvas.draw``.
        """
        self.check_fit(denoiser)
        check_request(x_init, denoiser.process.unknown_id, allowed, padding, generator, seeds)
        completions = None
        if avoid is not None:
            completions = start_avoiding(avoid, denoiser, x_init, allowed, padding)
        if signal is not None:
            denoiser.backbone.check_condition(Inputs(x_init, signal=signal))
        if seeds is None:
            assert generator is not None  # by check_request
            seeds = row_seeds(len(x_init), generator)
        draws = SeededDraws(seeds.to(x_init.device, torch.int64))
        canvas = Canvas.open(
            denoiser, draws, x_init, padding, allowed, callback, signal, completions, chance
        )
        self.fill(canvas)
        assert not canvas.masked.any()  # the contract of ``fill``
        if completions is not None and not bool(completions.hold(canvas.x_t).all()):
            raise ValueError(
                f"Sampler.avoid must go with a sampler that draws by Canvas.draw, got "
                f"{sampler_name(type(self))}, which wrote a forbidden word; choose from "
                f"{', '.join(fitting_samplers(denoiser, own=True)) or 'your own'}"
            )
        return SampleOutput(canvas.x_t, canvas.nfe, canvas.length, canvas.clamped)

    def check_fit(self, denoiser: Denoiser) -> None:
        """Check that this sampler, and any sampler within it, works with a model.

        Raises:
            ValueError: If it does not; names the samplers that do.
        """
        if not self.needs.met_by(denoiser):
            raise ValueError(
                f"sampler must work with the {denoiser.description}, got "
                f"{sampler_name(type(self))}; choose from "
                f"{', '.join(fitting_samplers(denoiser)) or 'your own'}"
            )

    @abstractmethod
    def fill(self, canvas: Canvas) -> None:
        """Fill every masked position of the canvas, which holds the rows, the model and the noise.

        Args:
            canvas: The rows.
        """


def named_samplers() -> dict[str, type[Sampler]]:
    """Return every sampler that has been imported, by name.

    The name of ``FirstHittingSampler`` is ``first_hitting``. Samplers defined outside of the
    package are included.
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
    """Return the name of a sampler: its class in snake case, without ``Sampler``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__.removesuffix("Sampler")).lower()


def fitting_samplers(denoiser: Denoiser, *, own: bool = False) -> list[str]:
    """Return the names of the samplers that work with a model.

    Args:
        denoiser: The model.
        own: Whether to leave out samplers that are defined outside of this package.
    """
    room = __name__.rpartition(".")[0]
    return [
        name
        for name, cls in named_samplers().items()
        if cls.needs.met_by(denoiser) and (not own or cls.__module__.startswith(room))
    ]


def find_sampler(name: str) -> type[Sampler]:
    """Find a sampler by its name, written with dashes or underscores.

    Raises:
        ValueError: If there is none; lists the names.
    """
    known = named_samplers()
    found = known.get(name.replace("-", "_"))
    if found is None:
        raise ValueError(
            f"sample.sampler must be one of {', '.join(known)}, got {name!r}; "
            "seqdiff samplers says what they do"
        )
    return found


def start_avoiding(
    avoid: WordAutomaton,
    denoiser: Denoiser,
    x_init: Int[Tensor, "B L"],
    allowed: Bool[Tensor, "B L K"] | None,
    padding: Bool[Tensor, "B L"] | None,
) -> Completions:
    """Compute which symbols words to avoid leave possible.

    Raises:
        ValueError: If the words are of another vocabulary, or a row cannot be filled without one.
    """
    if avoid.vocab_size != denoiser.vocab_size:
        raise ValueError(
            f"Sampler.avoid must be over the {denoiser.vocab_size} symbols of the model, got words "
            f"over {avoid.vocab_size}; build it with vocab_size={denoiser.vocab_size}"
        )
    found = Completions.begin(avoid, x_init, allowed, padding)
    conflict = found.conflict()
    if conflict is not None:
        row, position, word = conflict
        raise ValueError(
            "Sampler.avoid must leave a way to fill every row, got "
            + (f"the word {word}" if word else "none")
            + f" at row {row}, position {position}; change what is given there, or forbid less"
        )
    return found


def check_request(
    x_init: Tensor,
    unknown_id: int,
    allowed: Tensor | None,
    padding: Tensor | None,
    generator: torch.Generator | None,
    seeds: Tensor | None,
) -> None:
    """Check that the arguments of ``Sampler.sample`` fit together.

    Raises:
        ValueError: If they do not; names the first bad position.
    """
    _check_rows(x_init, unknown_id)
    for name, mask in (("padding", padding), ("allowed", allowed)):
        if mask is not None and mask.dtype != torch.bool:
            raise ValueError(f"Sampler.{name} must be bool, got {mask.dtype}; call .bool() on it")
    if padding is not None:
        _check_shape("padding", padding, tuple(x_init.shape))
    if (generator is None) == (seeds is None):
        got = "neither" if seeds is None else "both"
        raise ValueError(
            f"Sampler.generator or seeds must be given, and only one of them, got {got}; "
            "pass generator=torch.Generator().manual_seed(0)"
        )
    if seeds is not None:
        _check_shape("seeds", seeds, (len(x_init),))
        if seeds.is_floating_point():
            raise ValueError(f"Sampler.seeds must be integers, got {seeds.dtype}; round them")
        if len(seeds) and int(seeds.min()) < 0:
            raise ValueError(
                f"Sampler.seeds must be in [0, 2^63), got {int(seeds.min())}; make it positive"
            )
    if allowed is not None:
        _check_shape("allowed", allowed, (*x_init.shape, unknown_id))
        _check_allowed(x_init, unknown_id, allowed, padding)


def _check_shape(name: str, tensor: Tensor, wanted: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != wanted:
        raise ValueError(
            f"Sampler.{name} must have shape {wanted} like x_init, got {tuple(tensor.shape)}; "
            "give one entry for each"
        )


def _check_rows(x_init: Tensor, unknown_id: int) -> None:
    got = fix = ""
    if not isinstance(x_init, Tensor):
        got, fix = f"a {type(x_init).__name__}", "torch.tensor makes one"
    elif x_init.dtype == torch.bool or x_init.is_floating_point() or x_init.is_complex():
        got, fix = str(x_init.dtype), "call .long() on ids"
    elif x_init.dim() != 2:
        got, fix = f"shape {tuple(x_init.shape)}", "a single row is x_init[None]"
    if got:
        raise ValueError(f"Sampler.x_init must be a tensor of integers [B, L], got {got}; {fix}")
    bad = (x_init < 0) | (x_init > unknown_id)
    if bad.any():
        row, column = bad.nonzero()[0].tolist()
        raise ValueError(
            f"Sampler.x_init must hold ids in 0..{unknown_id} ({unknown_id} is unknown),"
            f" got {x_init[row, column].item()} at row {row}, position {column}; re-encode it"
        )


def _check_allowed(
    x_init: Tensor, unknown_id: int, allowed: Tensor, padding: Tensor | None
) -> None:
    real = torch.ones_like(x_init, dtype=torch.bool) if padding is None else ~padding
    visible = x_init != unknown_id
    token = torch.where(visible, x_init, 0).long()[..., None]
    for bad, requirement, fix in (
        (visible & ~allowed.gather(-1, token).squeeze(-1), "hold the visible symbol", "mask it"),
        (~visible & ~allowed.any(dim=-1), "hold a symbol", "allow at least one"),
    ):
        if bool((bad & real).any()):
            row, column = (bad & real).nonzero()[0].tolist()
            got = allowed[row, column].nonzero().squeeze(-1).tolist()
            given = int(x_init[row, column])
            raise ValueError(
                f"Sampler.allowed must {requirement} of every position, got only {got} at row "
                f"{row}, position {column} where x_init is {given}; {fix} or change the constraint"
            )

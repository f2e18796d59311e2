"""A denoiser that reads both strands, so that a sequence is as likely as its other strand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor
from typing_extensions import override

from seqdiff.denoiser import Denoiser
from seqdiff.process import TokenScheduled
from seqdiff.samplers.guidance import DerivedDenoiser
from seqdiff.types import Inputs


def read_back(
    ids: Int[Tensor, "B L"],
    complement: Int[Tensor, " V"],
    padding: Bool[Tensor, "B L"] | None = None,
) -> Int[Tensor, "B L"]:
    """Read rows on the other strand: real positions backwards, padding in place.

    Args:
        ids: The rows.
        complement: The id of each symbol on the other strand.
        padding: True at positions of padding.
    """
    return complement[ids].gather(1, _mirror(ids, padding))


def _mirror(ids: Tensor, padding: Tensor | None) -> Tensor:
    """Return where each position of a row lies when its real positions are read backwards."""
    place = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    if padding is None:
        return place.flip(1)
    real_first = padding.long().argsort(dim=1, stable=True)
    last = (~padding).sum(dim=1, keepdim=True) - 1
    rank = (~padding).cumsum(dim=1) - 1
    return torch.where(padding, place, real_first.gather(1, (last - rank).clamp_min(0)))


class Conjoined(DerivedDenoiser):
    """The mean of a denoiser's predictions for a row and for its other strand.

    ``p(. | x_t)`` becomes the mean of itself and ``RC p(. | RC x_t)``, where RC is the reverse
    complement. So samplers that are not ``order_dependent`` draw x and
    RC x with the same probability (up to ties in top-k and the nucleus). An equivariant network is
    not changed. Source of the name, there for classifiers: Schiff et al. 2024, arXiv:2403.03234,
    section 4.

    Probabilities are averaged, not logits. So the result is normalised: it is the prediction of a
    strand chosen by a fair coin. A symbol that is impossible on one strand only stays possible. By
    Jensen's inequality the bound is at most the mean of the bounds of the two strands.

    Every call takes twice the evaluations of the denoiser.

    Args:
        denoiser: The denoiser, which may be guided.
        complement: The id in ``0..K-1`` of each symbol on the other strand, its own inverse.

    Raises:
        ValueError: If ``complement`` is not its own inverse on the K symbols, or the model predicts
            scores, which do not average, reads from left to right, has a guided reverse step, or
            masks tokens by schedules of their own.
    """

    def __init__(self, denoiser: Denoiser, complement: Sequence[int]) -> None:
        super().__init__(denoiser)
        if denoiser.kind in ("score", "step") or denoiser.context == "prefix":
            raise ValueError(
                "Conjoined.denoiser must predict the clean token from both sides of it, got the "
                f"{denoiser.description}; train masked, uniform or hybrid diffusion without scores"
                + (", and conjoin before guiding" if denoiser.kind == "step" else "")
            )
        if isinstance(denoiser.process, TokenScheduled):
            raise ValueError(
                "Conjoined.denoiser must mask both strands alike, got the "
                f"{denoiser.description}; sample it without conjoining"
            )
        symbols = list(range(denoiser.vocab_size))
        inverse = sorted(complement) == symbols and all(
            complement[complement[i]] == i for i in symbols
        )
        if not inverse:
            raise ValueError(
                "Conjoined.complement must be its own inverse on the ids "
                f"0..{denoiser.vocab_size - 1}, got {list(complement)}; for A C G T give 3 2 1 0"
            )
        self.complement: Tensor
        device = next((p.device for p in denoiser.parameters()), None)
        with_mask = torch.tensor([*complement, denoiser.vocab_size], device=device)
        self.register_buffer("complement", with_mask, persistent=False)

    @override
    def evaluations(
        self, inputs: Inputs, where: Bool[Tensor, "B L"] | None = None
    ) -> Int64[Tensor, " B"]:
        place = _mirror(inputs.tokens, inputs.padding)
        other = replace(inputs, tokens=self.complement[inputs.tokens].gather(1, place))
        there = None if where is None else where.gather(1, place)
        straight = self.denoiser.evaluations(inputs, where)
        return straight + self.denoiser.evaluations(other, there)

    def forward(
        self, inputs: Inputs, where: Bool[Tensor, "B L"] | None = None
    ) -> Float[Tensor, "*positions K"]:
        """Predict from both strands.

        A sequence has the same label and signal on both; the signals of its positions are reversed.
        """
        inputs = self._conditioned(inputs)
        tokens, count = inputs.tokens, len(inputs.tokens)
        asked = torch.ones_like(tokens, dtype=torch.bool) if where is None else where
        place = _mirror(tokens, inputs.padding)
        there = asked.gather(1, place)
        twice = inputs.take(torch.arange(2 * count, device=tokens.device) % count)
        back = self.complement[tokens].gather(1, place)
        signal = twice.signal
        if inputs.signal is not None and inputs.signal.dim() == 3:
            turned = inputs.signal.gather(1, place[..., None].expand_as(inputs.signal))
            signal = torch.cat((inputs.signal, turned))
        both = self.denoiser(
            replace(twice, tokens=torch.cat((tokens, back)), signal=signal),
            torch.cat((asked, there)),
        )
        straight, other = both.chunk(2)
        number = torch.zeros_like(tokens)
        number[there] = torch.arange(len(other), device=tokens.device)
        other = other[number.gather(1, place)[asked]][:, self.complement[: straight.shape[-1]]]
        mean = torch.logaddexp(straight, other) - math.log(2)
        if self.any_order:  # visible tokens are copied, on both strands
            mean = torch.where((tokens[asked] == self.vocab_size)[:, None], mean, straight)
        return mean if where is not None else mean.view(*tokens.shape, -1)

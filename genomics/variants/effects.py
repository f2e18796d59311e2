"""What a model says of variants: likelihood ratios and masked-marginal scores, on both strands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from genomics.sequence import STRANDS, both_strands, device_of, masked_log_probs
from genomics.variants.windows import AlleleWindows
from seqdiff.denoiser import Denoiser
from seqdiff.likelihood import Estimator, Likelihood, contrast


class LikelihoodRatio(NamedTuple):
    """log p(alternative) - log p(reference) in nats; of bounds where the model has bounds.

    Attributes:
        nats: The estimate, the mean of both strands.
        standard_error: Of ``nats``, from the estimator's draws.
        low: Lower end of the 95% interval.
        high: Upper end.
    """

    nats: float
    standard_error: float
    low: float
    high: float


def likelihood_ratios(
    denoiser: Denoiser,
    windows: Sequence[AlleleWindows],
    *,
    estimator: Estimator,
    seed: int = 0,
    batch_size: int = 32,
) -> list[LikelihoodRatio]:
    """Compare the likelihoods of both windows of each variant, under the same masks.

    A ratio is a function of the windows and the seed, not of where the variant lies or what else is
    scored; alternatives at one site share their noise too.

    Args:
        denoiser: The model, in eval mode.
        windows: Of any lengths.
        estimator: Of the model's kind.
        seed: Of the draws.
        batch_size: Most rows of a network call.
    """
    device = device_of(denoiser)
    found: list[LikelihoodRatio | None] = [None] * len(windows)
    for places in _alike(windows):
        refs, alts = [windows[i].ref for i in places], [windows[i].alt for i in places]
        difference = contrast(
            denoiser,
            both_strands(refs, refs).to(device),
            both_strands(alts, refs).to(device),
            estimator=estimator,
            rows_per_call=batch_size,
            seed=seed,
        )
        for number, place in enumerate(places):
            found[place] = _ratio(difference, number)
    return [ratio for ratio in found if ratio is not None]


def _ratio(difference: Likelihood, number: int) -> LikelihoodRatio:
    """Average a variant's strands."""
    mean = difference.mean_of([STRANDS * number + strand for strand in range(STRANDS)])
    low, high = mean.interval()
    return LikelihoodRatio(
        float(mean.nats[0]), float(mean.standard_error[0]), float(low[0]), float(high[0])
    )


def masked_marginals(
    denoiser: Denoiser,
    windows: Sequence[AlleleWindows],
    *,
    batch_size: int = 32,
) -> list[float | None]:
    """Mask the bases that a variant changes and compare both alleles there.

    The score is the sum of log p(alternative) - log p(reference) over these positions, the mean of
    both strands. Source: Meier et al. 2021, "Language models enable zero-shot prediction of the
    effects of mutations on protein function", equation 1.

    Args:
        denoiser: The model, in eval mode.
        windows: Of any lengths.
        batch_size: Rows of a network call.

    Returns:
        In nats; ``None`` where the alleles differ in length: no position holds either.
    """
    scores: list[float | None] = [None] * len(windows)
    for places in _alike(windows):
        fit = [place for place in places if windows[place].changed is not None]
        sites: dict[tuple[bytes, bytes], list[int]] = {}
        for place in fit:
            pair = windows[place]
            key = (pair.ref.tobytes(), _changed(pair).tobytes())
            sites.setdefault(key, []).append(place)
        shared = list(sites.values())
        for first in range(0, len(shared), batch_size):
            part = shared[first : first + batch_size]
            hidden = np.stack([_changed(windows[at[0]]) for at in part])
            ref = np.stack([windows[at[0]].ref for at in part])
            law = masked_log_probs(denoiser, ref, hidden)
            ends = hidden.sum(axis=1).cumsum()[:-1]
            for at, laws in zip(part, np.split(law, ends), strict=True):
                for place in at:
                    scores[place] = _gain(windows[place], laws)
    return scores


def _gain(pair: AlleleWindows, laws: np.ndarray) -> float:
    """Sum the log-ratios over the changed positions, whose laws these are."""
    changed, number = _changed(pair), np.arange(len(laws))
    return float((laws[number, pair.alt[changed]] - laws[number, pair.ref[changed]]).sum())


def _changed(windows: AlleleWindows) -> np.ndarray:
    assert windows.changed is not None
    return windows.changed


def _alike(windows: Sequence[AlleleWindows]) -> list[list[int]]:
    """The places of windows of each length, so that none is padded."""
    places: dict[int, list[int]] = {}
    for place, pair in enumerate(windows):
        places.setdefault(len(pair.ref), []).append(place)
    return list(places.values())

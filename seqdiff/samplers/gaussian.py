"""The ancestral sampler of Gaussian diffusion on embeddings."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from jaxtyping import Float64
from torch import Tensor
from typing_extensions import override

from seqdiff.denoiser import GaussianDenoiser, Needs, NoisyEmbeddings
from seqdiff.process import Gaussian, posterior, scales
from seqdiff.samplers.canvas import Canvas
from seqdiff.samplers.grid import GridSampler
from seqdiff.samplers.protocol import option


@dataclass(frozen=True)
class GaussianSampler(GridSampler):
    """Ancestral steps of Gaussian diffusion, one evaluation per step; off by O(1/steps).

    Each step draws z_s given z_t with the predicted mean embedding in place of the true one. The
    last evaluation decodes z_0. Steps are equal in the learned time, in which all parts of the
    bound have equal weight. Given tokens are shown without noise throughout, which is approximate
    unless the model was trained on rows with given tokens. Temperature, top-k and nucleus reshape
    every prediction of the clean token. A self-conditioned network is evaluated twice per step.
    Source: Gulrajani and Hashimoto 2023, arXiv:2305.18619; Kingma et al. 2021, arXiv:2107.00630,
    appendix A.4.

    Attributes:
        num_steps: Steps; 4,096 are published.
        score_temperature: Divides the score; below 1 sharpens. 0.9 is published.
    """

    needs = Needs((Gaussian,), ("full",))
    score_temperature: float = option(
        1.0,
        lambda value: 0 < value < math.inf,
        "be above 0 and finite",
        "1 is the model's own score",
    )

    @override
    def fill(self, canvas: Canvas) -> None:
        denoiser, free = canvas.denoiser, canvas.free
        assert isinstance(denoiser, GaussianDenoiser)  # by ``needs``
        if not bool(free.any()):
            return
        dim = denoiser.process.dim
        given = canvas.x_t.masked_fill(free, canvas.unknown_id)
        z = canvas.draws.normals(free, dim, 0)
        gammas = denoiser.schedule(self.times(given.device)).gamma
        for step, (now, then) in enumerate(pairwise(gammas), start=1):
            log_probs = self._predict(canvas, given, z, now)
            shaped = log_probs if self.shape is None else self.shape(log_probs)
            predicted = self._tempered(denoiser.mean(shaped), z, now)
            mean, spread = posterior(z, predicted, then, now)
            z = mean + spread * canvas.draws.normals(free, dim, step)
            canvas.write(free, log_probs.argmax(dim=-1))
            canvas.end_step()
        self._draw(canvas, free, self._predict(canvas, given, z, gammas[-1]))
        canvas.end_step()

    def _predict(
        self, canvas: Canvas, given: Tensor, z: Float64[Tensor, "N d"], gamma: Float64[Tensor, ""]
    ) -> Float64[Tensor, "N K"]:
        """Predict the tokens of the free positions, within the allowed symbols."""
        denoiser, free = canvas.denoiser, canvas.free
        rows = free.any(dim=-1)
        full = z.new_zeros((*free.shape, z.shape[-1]))
        full[free] = z
        inputs = NoisyEmbeddings(
            given[rows],
            padding=None if canvas.padding is None else canvas.padding[rows],
            signal=None if canvas.signal is None else canvas.signal[rows],
            z=full[rows],
            noisy=free[rows],
            gamma=gamma.expand(int(rows.sum())),
        )
        canvas.nfe[rows] += denoiser.evaluations(inputs)
        return canvas.restricted(denoiser(inputs, free[rows]).double(), free)

    def _tempered(
        self, predicted: Float64[Tensor, "N d"], z: Float64[Tensor, "N d"], gamma: Tensor
    ) -> Float64[Tensor, "N d"]:
        """Return the prediction whose score is the given one's divided by the temperature."""
        if self.score_temperature == 1:
            return predicted
        signal, _ = scales(gamma)
        return (z - (z - signal * predicted) / self.score_temperature) / signal

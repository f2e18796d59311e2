"""The parameterization of Plaid: a distribution of the token, whose mean embedding is predicted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float, Int
from torch import Tensor
from typing_extensions import override

from seqdiff.parameterization.base import Kind, Parameterization, log_softmax
from seqdiff.process import Gaussian, Process


@dataclass(frozen=True)
class Categorical(Parameterization):
    """Outputs are logits of p(x0 | all noisy embeddings); the prediction of e(x0) is their mean.

    It lies within the hull of the embeddings, and the same distribution at t = 0 decodes tokens.
    ``GaussianDenoiser`` has added the evidence of the position's own embedding to the logits.
    Source: Gulrajani and Hashimoto 2023, arXiv:2305.18619, section 3.2.
    """

    name: ClassVar[str] = "categorical"
    kind: ClassVar[Kind] = "full"
    processes: ClassVar[tuple[type[Process], ...]] = (Gaussian,)

    @override
    def read(
        self,
        outputs: Float[Tensor, "*n K"],
        z: Int[Tensor, "*n"],
        t: Float[Tensor, "*n"] | None,
        process: Process,
    ) -> Float[Tensor, "*n K"]:
        del z, t, process
        return log_softmax(outputs)

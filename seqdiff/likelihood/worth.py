"""What one network evaluation of each row is worth to an estimator."""

from __future__ import annotations

from jaxtyping import Float64, Int64
from torch import Tensor

from seqdiff.likelihood.estimator import Estimator, PassNoise, Rows
from seqdiff.parameterization import Denoiser
from seqdiff.process import MaskedDiffusion


def worth(
    denoiser: Denoiser,
    estimator: Estimator,
    rows: Rows,
    evaluation: Int64[Tensor, " B"],
    *,
    noise: PassNoise,
    process: MaskedDiffusion,
) -> Float64[Tensor, " B"]:
    """Make a query of each row and weigh what the true tokens cost there, in nats.

    Args:
        denoiser: In eval mode, on the device of the rows.
        estimator: Of the denoiser's kind.
        rows: The rows.
        evaluation: Which evaluation of the pass, for each row.
        noise: The pass's noise.
        process: Supplies the mask and the schedule.
    """
    query = estimator.query(rows, evaluation, noise=noise, process=process)
    where = query.scored
    if denoiser.kind != "causal":  # a visible token costs nothing
        where = where & (query.x_t == process.mask_id)
    nats = denoiser.nats(query.x_t, rows.x0, where, query.t, rows.padding, rows.label)
    weight = query.weight.view(len(nats), -1)  # one a row, or one a token
    return (nats.double() * weight).sum(dim=-1)

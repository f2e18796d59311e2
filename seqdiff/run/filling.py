"""What a model expects at the unknown positions of a sequence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float, Int64

from seqdiff.run.directory import Trained
from seqdiff.types import Inputs

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class FillTable:
    """p(token | known tokens) at every unknown position.

    Attributes:
        positions: The unknown positions, from 0.
        symbols: Symbol of each column.
        probabilities: One row for each position; a row sums to 1.
    """

    positions: Int64[np.ndarray, " n"]
    symbols: list[str]
    probabilities: Float[np.ndarray, "n K"]

    def to_pandas(self) -> pd.DataFrame:
        """Return a data frame with a row for each position and a column for each symbol."""
        import pandas as pd

        return pd.DataFrame(
            self.probabilities,
            index=pd.Index(self.positions, name="position"),
            columns=pd.Index(self.symbols),
        )

    def __repr__(self) -> str:
        """Format the table, with the 8 most likely symbols if there are more."""
        lines = []
        for position, row in zip(self.positions, self.probabilities, strict=True):
            columns = range(len(row)) if len(row) <= 8 else np.argsort(-row)[:8]
            cells = "  ".join(f"{self.symbols[k]!r} {row[k]:.3f}" for k in columns)
            lines.append(f"{position:>8}  {cells}")
        return "\n".join(["position  probabilities", *lines])


def fill_table(run: Trained, template: str) -> FillTable:
    """Predict all unknown positions by one network call.

    Args:
        run: The run.
        template: A string with unknown symbols.

    Raises:
        ValueError: If the process is not masked diffusion, no symbol is unknown, or the template is
            too long for the network.
    """
    model = run.denoiser
    if not model.any_order:
        raise ValueError(
            "Run.fill_probabilities must be asked of masked diffusion, got the "
            f"{model.description}, which does not predict unknown tokens from all known ones"
        )
    ids = run.tokenizer.encode(template)
    unknown = ids == run.process.unknown_id
    if not unknown.any():
        raise ValueError(
            f"Run.fill_probabilities.template must have an unknown symbol, got {template!r}"
        )
    if run.max_length is not None and len(ids) > run.max_length:
        raise ValueError(
            f"Run.fill_probabilities.template must have at most {run.max_length:,} tokens, got "
            f"{len(ids):,}"
        )
    device = next(model.parameters()).device
    tokens = torch.from_numpy(ids.astype(np.int64))[None].to(device)
    where = torch.from_numpy(unknown)[None].to(device)
    with torch.no_grad():
        log_probs = model.log_probs(Inputs(tokens), where)
    symbols = [run.tokenizer.decode(np.array([k])) for k in range(run.tokenizer.vocab_size)]
    return FillTable(np.flatnonzero(unknown), symbols, log_probs.double().exp().cpu().numpy())

"""The parameterization of D3PM with an absorbing state: the clean token may be the mask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float, Int
from torch import Tensor

from seqdiff.parameterization.base import Kind, Parameterization, log_softmax
from seqdiff.process import Absorbing, Process


@dataclass(frozen=True)
class MaskColumn(Parameterization):
    """Outputs are logits of the K symbols and, last, of the mask.

    The mass mu on the mask makes unmasking later than it should be. In continuous time this is SEDD
    with scores s_y = alpha p(y) / (alpha mu + 1 - alpha). Source: Austin et al. 2021,
    arXiv:2107.03006, section 3.3; as a baseline Sahoo et al. 2024, arXiv:2406.07524, section 3.2.3.

    Attributes:
        carry_over: See ``Subs``; the baseline in MDLM's table 8 has it off.
    """

    name: ClassVar[str] = "mask-column"
    kind: ClassVar[Kind] = "loo"
    processes: ClassVar[tuple[type[Process], ...]] = (Absorbing,)
    needs_time: ClassVar[bool] = True
    carry_over: bool = True

    def num_outputs(self, process: Process) -> int:
        """See ``Parameterization``: the symbols and the mask."""
        return process.vocab_size + 1

    def read(
        self,
        outputs: Float[Tensor, "*n V"],
        z: Int[Tensor, "*n"],
        t: Float[Tensor, "*n"] | None,
        process: Process,
    ) -> Float[Tensor, "*n V"]:
        """See ``Parameterization``; over the K symbols and the mask."""
        del z, t, process
        return log_softmax(outputs)

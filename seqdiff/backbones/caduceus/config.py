"""The shape of a Caduceus network, checked before anything is built."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from seqdiff.backbones.layers import NormKind, check_mamba_sizes, require_choice
from seqdiff.backbones.mamba import Combine, MambaConfig

Variant = Literal["ph", "ps"]


@dataclass(frozen=True)
class CaduceusConfig:
    """Everything that decides what a Caduceus network computes, except its weights.

    Attributes:
        d_model: Model width.
        n_layer: Number of blocks.
        num_embeddings: Ids that can be embedded.
        num_logits: Ids that are scored, the first ones.
        complement: Complement of every embedded id; None only for ``ph``.
        variant: ``ph`` (plain) or ``ps`` (equivariant to the reverse complement).
        tied: Whether the directions share their input and output projections.
        combine: How the directions meet.
        norm: Kind of norm.
        norm_eps: Added to the mean square.
        swap_strands: Whether ``ps`` swaps the strands before each block.
        mamba: Sizes of the mixer.
        num_classes: Classes that a row can be labelled with; None for a network without labels.
        time_conditioned: Whether the network reads the noise level.
    """

    d_model: int
    n_layer: int
    num_embeddings: int
    num_logits: int
    complement: tuple[int, ...] | None = None
    variant: Variant = "ph"
    tied: bool = True
    combine: Combine = "add"
    norm: NormKind = "rms"
    norm_eps: float = 1e-5
    swap_strands: bool = False
    mamba: MambaConfig = field(default_factory=MambaConfig)
    num_classes: int | None = None
    time_conditioned: bool = False

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            ValueError: If one is out of range, ``complement`` is no involution of the embedded
                ids, or the scored ids are not closed under it.
        """
        check_mamba_sizes(
            "Caduceus",
            d_model=self.d_model,
            n_layer=self.n_layer,
            num_embeddings=self.num_embeddings,
            num_logits=self.num_logits,
            num_classes=self.num_classes,
            norm=self.norm,
            norm_eps=self.norm_eps,
        )
        require_choice("Caduceus", "variant", self.variant, get_args(Variant))
        require_choice("Caduceus", "combine", self.combine, get_args(Combine))
        if self.swap_strands and self.variant != "ps":
            raise ValueError(
                'Caduceus.swap_strands needs variant="ps": a "ph" network has one strand'
            )
        self._check_complement()

    def _check_complement(self) -> None:
        if self.complement is None:
            if self.variant == "ps":
                raise ValueError(
                    'Caduceus.complement is needed by variant="ps"; for the ids A C G T mask '
                    "give (3, 2, 1, 0, 4)"
                )
            return
        ids = range(self.num_embeddings)
        if sorted(self.complement) != list(ids):
            raise ValueError(
                f"Caduceus.complement must hold each of the {self.num_embeddings} embedded ids "
                f"once, got {self.complement}"
            )
        wrong = [i for i in ids if self.complement[self.complement[i]] != i]
        if wrong:
            raise ValueError(
                "Caduceus.complement must be its own inverse; it is not at ids "
                f"{wrong} of {self.complement}"
            )
        leaving = [i for i in range(self.num_logits) if self.complement[i] >= self.num_logits]
        if leaving:
            raise ValueError(
                f"Caduceus.complement must map the {self.num_logits} scored ids among themselves; "
                f"ids {leaving} leave them, so reorder the alphabet or raise num_logits"
            )

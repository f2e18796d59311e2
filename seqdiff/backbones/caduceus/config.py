"""Sizes and options of Mamba networks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from seqdiff.backbones.layers import NormKind, require_choice, require_positive
from seqdiff.backbones.mamba import Combine, MambaConfig

Variant = Literal["ph", "ps"]
_SIZES = ("d_model", "n_layer", "num_embeddings", "num_logits")


@dataclass(frozen=True)
class CaduceusConfig:
    """Sizes and options of a Caduceus network or one of its variants.

    Attributes:
        d_model: Model width.
        n_layer: Number of blocks.
        num_embeddings: Number of ids that can be embedded.
        num_logits: Number of ids that are scored, which are the first ones.
        complement: Complement of every embedded id; required for ``ps``.
        variant: ``ph`` (plain) or ``ps`` (equivariant to the reverse complement).
        tied: Whether both directions use the same input and output projections.
        combine: How the outputs of the directions are combined.
        norm: ``rms`` or ``layer``.
        norm_eps: Added to the mean square.
        swap_strands: Whether ``ps`` swaps the strands before each block.
        mamba: Sizes of the mixer.
        num_classes: Number of classes that a row can be labelled with; ``None`` without classes.
        num_signals: Number of values that a row can be conditioned on; ``None`` without signals.
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
    num_signals: int | None = None
    time_conditioned: bool = False

    def check(self, owner: str) -> None:
        """Check every field.

        Args:
            owner: Name of the network, for messages.

        Raises:
            ValueError: If a field is out of range, ``complement`` is not an involution of the
                embedded ids, or it maps a scored id to one that is not scored.
        """
        sizes = {name: getattr(self, name) for name in _SIZES}
        for name in ("num_classes", "num_signals"):
            if getattr(self, name) is not None:
                sizes[name] = getattr(self, name)
        for name, size in sizes.items():
            require_positive(owner, name, size)
        require_choice(owner, "norm", self.norm, get_args(NormKind))
        if not self.norm_eps > 0:
            raise ValueError(
                f"{owner}.norm_eps must be above 0, got {self.norm_eps}; 1e-5 is usual"
            )
        if self.num_logits > self.num_embeddings:
            raise ValueError(
                f"{owner}.num_logits must not exceed num_embeddings, whose first rows are the "
                f"head; got {self.num_logits} > {self.num_embeddings}"
            )
        require_choice(owner, "variant", self.variant, get_args(Variant))
        require_choice(owner, "combine", self.combine, get_args(Combine))
        if self.swap_strands and self.variant != "ps":
            raise ValueError(
                f'{owner}.swap_strands needs variant="ps": a "ph" network has one strand'
            )
        self._check_complement(owner)

    def _check_complement(self, owner: str) -> None:
        if self.complement is None:
            if self.variant == "ps":
                raise ValueError(
                    f'{owner}.complement is needed by variant="ps"; for the ids A C G T mask '
                    "give (3, 2, 1, 0, 4)"
                )
            return
        ids = range(self.num_embeddings)
        if sorted(self.complement) != list(ids):
            raise ValueError(
                f"{owner}.complement must hold each of the {self.num_embeddings} embedded ids "
                f"once, got {self.complement}"
            )
        wrong = [i for i in ids if self.complement[self.complement[i]] != i]
        if wrong:
            raise ValueError(
                f"{owner}.complement must be its own inverse; it is not at ids "
                f"{wrong} of {self.complement}"
            )
        leaving = [i for i in range(self.num_logits) if self.complement[i] >= self.num_logits]
        if leaving:
            raise ValueError(
                f"{owner}.complement must map the {self.num_logits} scored ids among themselves; "
                f"ids {leaving} leave them, so reorder the alphabet or raise num_logits"
            )

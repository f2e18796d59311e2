"""Caduceus: bidirectional Mamba blocks, optionally equivariant to the reverse complement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ..ops.selective_scan import BACKENDS
from .caduceus_block import CaduceusBlock
from .caduceus_config import CaduceusConfig, Variant
from .caduceus_hub import read_config, read_weights, write_hub
from .layers import LabelEmbedding, Norm, NormKind, require_choice, require_layer
from .mamba import BiMamba, Combine, MambaConfig


class Caduceus(nn.Module):
    """The time-free network of Schiff et al. 2024, arXiv:2403.03234.

    ``ph`` is a plain bidirectional network. ``ps`` runs the same blocks on a row and on its reverse
    complement, so that the logits of a reverse complement are the row's logits, complemented and
    flipped. The head is the first ``num_logits`` rows of the embedding.

    Both strands are rows of one batch, each in its own orientation. ``swap_strands`` makes them
    change places before every block, as in the weights published with a fused add-norm. A strand
    that changes places is reversed in length and in channels; instead of reversing activations,
    every other block is applied mirrored, which reverses weights and exchanges scan directions, so
    that only logits are ever flipped.

    A row's label adds one vector to the embedding of each of its tokens, on either strand in that
    strand's own orientation. A strand and its reverse complement have the same label, so this
    keeps ``ps`` equivariant: p(x | y) = p(RC x | y).

    Args:
        d_model: Model width.
        n_layer: Number of blocks.
        num_embeddings: Ids that can be embedded; K + 1 with a mask.
        num_logits: Ids that are scored, the first ones; K with a mask.
        num_classes: Classes that a row can be labelled with; None for a network without labels.
        complement: Complement of every embedded id; needed for ``ps``.
        variant: ``ph`` or ``ps``.
        tied: Share the input and output projections between the directions.
        combine: How the directions meet: ``add`` or ``ew_multiply``.
        norm: ``rms`` or ``layer``.
        norm_eps: Added to the mean square.
        swap_strands: Whether ``ps`` swaps the strands before each block.
        d_state: State width of each channel.
        d_conv: Width of the causal convolution.
        expand: Inner width as a multiple of ``d_model``.
        dt_rank: Rank of the step-size projection; ``auto`` is ``ceil(d_model / 16)``.
        dt_min: Smallest initial step size.
        dt_max: Largest initial step size.
        dt_init_floor: Initial step sizes are raised to this.
        conv_bias: Whether the convolution has a bias.
        bias: Whether the input and output projections have one.
        backend: Kernel of the convolutions and scans; ``auto`` takes the fastest that fits.

    Attributes:
        config: The checked arguments.

    Raises:
        ValueError: If an argument is out of range, ``complement`` is no involution of the embedded
            ids, or the scored ids are not closed under it.
    """

    def __init__(
        self,
        d_model: int,
        n_layer: int,
        *,
        num_embeddings: int,
        num_logits: int,
        num_classes: int | None = None,
        complement: Sequence[int] | None = None,
        variant: Variant = "ph",
        tied: bool = True,
        combine: Combine = "add",
        norm: NormKind = "rms",
        norm_eps: float = 1e-5,
        swap_strands: bool = False,
        d_state: int = 16,
        d_conv: int = 4,
        expand: int = 2,
        dt_rank: int | Literal["auto"] = "auto",
        dt_min: float = 1e-3,
        dt_max: float = 1e-1,
        dt_init_floor: float = 1e-4,
        conv_bias: bool = True,
        bias: bool = False,
        backend: str = "auto",
    ) -> None:
        super().__init__()
        mamba = MambaConfig(
            d_state, d_conv, expand, dt_rank, dt_min, dt_max, dt_init_floor, conv_bias, bias
        )
        config = CaduceusConfig(
            d_model=d_model,
            n_layer=n_layer,
            num_embeddings=num_embeddings,
            num_logits=num_logits,
            complement=None if complement is None else tuple(complement),
            variant=variant,
            tied=tied,
            combine=combine,
            norm=norm,
            norm_eps=norm_eps,
            swap_strands=swap_strands,
            mamba=mamba,
            num_classes=num_classes,
        )
        require_choice("Caduceus", "backend", backend, BACKENDS)
        self.config = config
        self.embedding = nn.Embedding(num_embeddings, d_model)
        self.layers = nn.ModuleList(CaduceusBlock(config, backend) for _ in range(n_layer))
        self.norm = Norm(d_model, norm, norm_eps)
        self.complement: Tensor
        self.register_buffer(
            "complement", torch.tensor(config.complement or range(num_embeddings)), persistent=False
        )
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.num_classes = num_classes
        self.label_embedding: LabelEmbedding | None = None
        for module in self.modules():
            if isinstance(module, BiMamba):
                module.initialise_projections(n_layer)
        if num_classes is not None:  # last, so that the other weights do not depend on it
            self.label_embedding = LabelEmbedding(num_classes, d_model)

    def forward(
        self,
        tokens: Int[Tensor, "B L"],
        t: Float[Tensor, " B"] | None = None,
        padding: Bool[Tensor, "B L"] | None = None,
        label: Int[Tensor, " B"] | None = None,
    ) -> Float[Tensor, "B L K"]:
        """Score ``num_logits`` ids at every position.

        Args:
            tokens: Ids below ``num_embeddings``.
            t: Ignored; the network does not depend on time.
            padding: True at positions before the first or after the last real one. The logits at
                the real ones are those of the row without padding.
            label: See ``LabelledBackbone``; only for a network with classes.

        Raises:
            ValueError: If there is a label and the network has no classes.
        """
        first, *second = [
            F.linear(strand, head) for strand, head in self._strands(tokens, padding, label)
        ]
        return first + second[0].flip(1) if second else first

    def logits_at(
        self,
        tokens: Int[Tensor, "B L"],
        where: Bool[Tensor, "B L"],
        t: Float[Tensor, " B"] | None = None,
        padding: Bool[Tensor, "B L"] | None = None,
        label: Int[Tensor, " B"] | None = None,
    ) -> Float[Tensor, "N K"]:
        """See ``SelectiveBackbone``; the arguments and refusals are those of ``forward``."""
        row, position = where.nonzero(as_tuple=True)
        places = (position, where.shape[1] - 1 - position)
        first, *second = [
            F.linear(strand[row, place], head)
            for (strand, head), place in zip(
                self._strands(tokens, padding, label), places, strict=False
            )
        ]
        return first + second[0] if second else first

    @property
    def num_layers(self) -> int:
        """See ``HiddenBackbone``."""
        return len(self.layers)

    @property
    def strands(self) -> int:
        """See ``HiddenBackbone``."""
        return 2 if self.config.variant == "ps" else 1

    def hidden(
        self,
        tokens: Int[Tensor, "B L"],
        padding: Bool[Tensor, "B L"] | None = None,
        layer: int | None = None,
    ) -> Float[Tensor, "B L C"]:
        """See ``HiddenBackbone``."""
        require_layer("Caduceus", layer, self.num_layers)
        x, mirrored = self._residual(tokens, padding, None, layer)
        x = self.norm(x, mirrored=mirrored) if layer is None else x
        if self.strands == 1:
            return x
        first, second = x.chunk(2)
        if mirrored:
            return torch.cat((second.flip(1, 2), first.flip(2)), dim=-1)
        return torch.cat((first, second.flip(1)), dim=-1)

    def _strands(
        self, tokens: Tensor, padding: Tensor | None, label: Tensor | None
    ) -> list[tuple[Tensor, Tensor]]:
        """Activations and head of the row and, for ``ps``, of its reverse: scores add up."""
        x, mirrored = self._residual(tokens, padding, label)
        x = self.norm(x, mirrored=mirrored)
        head = self.embedding.weight[: self.config.num_logits]
        if self.strands == 1:
            return [(x, head)]
        complemented = head[self.complement[: self.config.num_logits]]
        if mirrored:  # the strands have changed places: the first half now holds the second strand
            head, complemented = complemented.flip(1), head.flip(1)
        forward, backward = x.chunk(2)
        return [(forward, head), (backward, complemented)]

    def _residual(
        self,
        tokens: Tensor,
        padding: Tensor | None,
        label: Tensor | None,
        layer: int | None = None,
    ) -> tuple[Tensor, bool]:
        """Activations after a layer, of two strands one after the other; whether mirrored."""
        equivariant = self.strands == 2
        if equivariant:
            tokens = torch.cat((tokens, self.complement[tokens.flip(1)]))
            padding = None if padding is None else torch.cat((padding, padding.flip(1)))
        x = self.embedding(tokens)
        if self.label_embedding is not None:
            both = label.repeat(2) if equivariant and label is not None else label
            x = x + self.label_embedding(both, tokens)
        elif label is not None:
            raise ValueError(
                "Caduceus.label must be None for a network without classes, got one of shape "
                f"{tuple(label.shape)}; build it with num_classes"
            )
        mirrored = False
        for block in self.layers[:layer]:
            mirrored = mirrored != self.config.swap_strands
            x = block(x, padding, mirrored=mirrored)
        return x, mirrored

    @classmethod
    def of(cls, config: CaduceusConfig, *, backend: str = "auto") -> Caduceus:
        """Build the network of a configuration.

        Args:
            config: Everything but the weights.
            backend: As in the constructor.
        """
        fields = asdict(config)
        mamba = fields.pop("mamba")
        return cls(**fields, **mamba, backend=backend)

    @classmethod
    def from_hub(cls, directory: str | Path, *, backend: str = "auto") -> Caduceus:
        """Load a published network; its forward then takes and scores the published ids.

        Args:
            directory: Folder with ``config.json`` and ``model.safetensors``.
            backend: As in the constructor.

        Raises:
            FileNotFoundError: If a file is not there.
            ValueError: If a file is damaged, the configuration holds what is not supported, or the
                weights do not fit it.
        """
        config = read_config(directory)
        model = cls.of(config, backend=backend)
        model.load_state_dict(read_weights(directory, config, model.state_dict()))
        return model

    def to_hub(self, directory: str | Path) -> None:
        """Write the network in the published format, where every embedded id is also scored.

        Args:
            directory: Folder, made if it is not there.

        Raises:
            OSError: If it cannot be written; each file there is then still whole, old or new.
            ValueError: If the network has classes, for which the format has no place.
        """
        if self.num_classes is not None:
            raise ValueError(
                f"Caduceus.to_hub must be given a network without classes, got {self.num_classes}; "
                "the published format has no labels, so keep the run directory"
            )
        write_hub(directory, self.config, self.state_dict())

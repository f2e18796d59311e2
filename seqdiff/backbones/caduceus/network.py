"""Caduceus and its variants: networks of Mamba blocks, in one direction or in both."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from seqdiff.backbones.base import Backbone
from seqdiff.backbones.caduceus.config import CaduceusConfig, Variant
from seqdiff.backbones.caduceus.hub import read_config, read_weights, write_hub
from seqdiff.backbones.layers import (
    LabelEmbedding,
    Norm,
    NormKind,
    SigmaEmbedding,
    require_choice,
    shifted,
)
from seqdiff.backbones.mamba import (
    DEFAULT_STATES,
    BiMamba,
    Combine,
    MambaConfig,
    Mixer,
    SelectiveSSM,
    initialise_projections,
    project_in,
    project_out,
)
from seqdiff.ops.selective_scan import BACKENDS
from seqdiff.ops.ssd import BACKENDS as SSD_BACKENDS
from seqdiff.types import Inputs


class CaduceusBlock(nn.Module):
    """Pre-norm residual block around a bidirectional mixer; there is no MLP.

    Args:
        config: Sizes of the network.
        backend: Kernel of the convolutions and scans.
    """

    def __init__(self, config: CaduceusConfig, backend: str = "auto") -> None:
        super().__init__()
        self.norm = Norm(config.d_model, config.norm, config.norm_eps)
        self.mixer = BiMamba(
            config.d_model,
            config.mamba,
            tied=config.tied,
            combine=config.combine,
            backend=backend,
        )

    def forward(
        self,
        x: Float[Tensor, "B L D"],
        padding: Bool[Tensor, "B L"] | None = None,
        *,
        mirrored: bool = False,
    ) -> Float[Tensor, "B L D"]:
        """Add the mixer's output to the residual stream.

        Args:
            x: Residual stream.
            padding: See ``BiMamba.forward``.
            mirrored: Whether ``x`` and the result are reversed in length and in channels.
        """
        return x + self.mixer(self.norm(x, mirrored=mirrored), padding, mirrored=mirrored)


class MambaNetwork(Backbone):
    """Embedding, Mamba blocks, and a head whose weights are the first rows of the embedding.

    Args:
        config: Sizes and options.
        backend: Kernel of the convolutions and scans.

    Attributes:
        config: The checked arguments.

    Raises:
        ValueError: If an argument is out of range.
    """

    layers: nn.ModuleList

    def __init__(self, config: CaduceusConfig, backend: str) -> None:
        super().__init__()
        owner = type(self).__name__
        config.check(owner)
        if config.mamba.mixer == "mamba":
            require_choice(owner, "backend", backend, BACKENDS)
        else:
            require_choice(owner, 'backend with mixer="ssd"', backend, SSD_BACKENDS)
        self.config = config
        self.width, self.num_logits = config.d_model, config.num_logits
        self.num_classes, self.time_conditioned = config.num_classes, config.time_conditioned
        self.embedding = nn.Embedding(config.num_embeddings, config.d_model)
        self.add_layers(backend)
        self.norm = Norm(config.d_model, config.norm, config.norm_eps)
        # Drawn last, so that the other initial weights do not depend on these options.
        self.label_embedding: LabelEmbedding | None = None
        if config.num_classes is not None:
            self.label_embedding = LabelEmbedding(config.num_classes, config.d_model)
        self.sigma_map: SigmaEmbedding | None = None
        if config.time_conditioned:
            self.sigma_map = SigmaEmbedding(config.d_model)
            for weight in self.sigma_map.parameters():  # small, so as not to outweigh the tokens
                nn.init.normal_(weight, std=0.02 if weight.ndim == 2 else 0.0)
        self.add_signals(config.num_signals, config.d_model)

    @abstractmethod
    def add_layers(self, backend: str) -> None:
        """Build ``layers`` and draw the initial weights of the embedding and the layers."""

    @property
    def num_layers(self) -> int:
        """Number of blocks."""
        return len(self.layers)

    def embed(self, inputs: Inputs) -> Float[Tensor, "rows L D"]:
        """Embed tokens."""
        return self.embedding(inputs.tokens)

    def conditioned(
        self,
        h: Float[Tensor, "B L D"],
        label: Int[Tensor, " B"] | None,
        signal: Float[Tensor, "B l D"] | None,
    ) -> Float[Tensor, "B L D"]:
        """Add the vectors of the label and of the signal, if the network has classes and signals.

        Args:
            h: From ``embed``.
            label: Class of each row or ``NO_LABEL``; ``None`` if no row has one.
            signal: From ``embedded_signal``, of these positions.
        """
        h = h if self.label_embedding is None else h + self.label_embedding(label, h)
        return h if signal is None else h + signal

    def body(
        self, h: Float[Tensor, "rows L D"], inputs: Inputs, layer: int | None = None
    ) -> Float[Tensor, "rows L D"]:
        """Run the blocks.

        Args:
            h: See ``Backbone.body``. In a causal network, position l holds the embedding of token
                l - 1.
            inputs: Padding must come before the first or after the last real position of a row.
                Outputs at real positions are the same as without padding.
            layer: See ``Backbone.body``.
        """
        h = self.conditioned(h, inputs.label, self.embedded_signal(inputs.signal, len(h)))
        for block in self.layers[:layer]:
            h = block(h, inputs.padding)
        return h

    def head(
        self, h: Float[Tensor, "rows L D"], inputs: Inputs, where: Bool[Tensor, "B L"] | None = None
    ) -> Float[Tensor, "*positions K"]:
        """Score positions with the first rows of the embedding as weights."""
        h = h if where is None else h[where]
        return F.linear(self.norm(h), self.embedding.weight[: self.num_logits])

    def _states(
        self, h: Float[Tensor, "rows L D"], inputs: Inputs, layer: int | None
    ) -> Float[Tensor, "B L C"]:
        return self.norm(h) if layer is None else h


class _Bidirectional(MambaNetwork):
    """A network whose blocks run in both directions."""

    block: type[CaduceusBlock] = CaduceusBlock  # class of the layers

    def add_layers(self, backend: str) -> None:
        """Build ``layers`` and draw the initial weights of the embedding and the layers."""
        count = self.config.n_layer
        self.layers = nn.ModuleList(self.block(self.config, backend) for _ in range(count))
        nn.init.normal_(self.embedding.weight, std=0.02)
        for block in self.stack:
            block.mixer.initialise_projections(count)

    @property
    def stack(self) -> Sequence[CaduceusBlock]:
        """The layers, from first to last."""
        return [layer for layer in self.layers if isinstance(layer, CaduceusBlock)]


class Caduceus(_Bidirectional):
    """The network of Schiff et al. 2024, arXiv:2403.03234, optionally time-conditioned.

    ``ph`` is a plain bidirectional network. ``ps`` runs the same blocks on a row and on its reverse
    complement. The logits of the reverse complement of a row are then the logits of the row,
    complemented and flipped. The weights of the head are the first ``num_logits`` rows of the
    embedding.

    The two strands are two rows of one batch, each in its own orientation. ``swap_strands`` makes
    them change places before every block, as networks published with a fused add-norm do. A strand
    that changes places is reversed in length and in channels. Instead of reversing activations, the
    network applies every other block mirrored, with reversed weights and swapped scan directions,
    and flips only the logits.

    The label of a row adds the same vector to the embedding of each of its tokens, on both strands.
    This keeps ``ps`` equivariant: p(x | y) = p(RC x | y). The measured values of a row are added in
    the same way, and those of its positions are reversed for the other strand. A time-conditioned
    network adds an embedding of the noise level sigma = -log alpha(t) in the same way.

    Args:
        d_model: Model width.
        n_layer: Number of blocks.
        num_embeddings: Number of ids that can be embedded; K + 1 with a mask.
        num_logits: Number of ids that are scored, which are the first ones; K with a mask.
        num_classes: Number of classes that a row can be labelled with; ``None`` without classes.
        num_signals: Number of values that a row can be conditioned on; ``None`` without signals.
        time_conditioned: Whether the network reads the noise level. ``Denoiser`` then gives it
            sigma.
        complement: Complement of every embedded id; required for ``ps``.
        variant: ``ph`` or ``ps``.
        tied: Whether both directions use the same input and output projections.
        combine: How the outputs of the directions are combined: ``add`` or ``ew_multiply``.
        norm: ``rms`` or ``layer``.
        norm_eps: Added to the mean square.
        swap_strands: Whether ``ps`` swaps the strands before each block.
        mixer: ``mamba``, or ``ssd`` for the mixer of Mamba-2 (Dao and Gu 2024, arXiv:2405.21060).
        d_state: State width of each channel; 16 for ``mamba`` and 64 for ``ssd`` by default.
        d_conv: Width of the causal convolution.
        expand: Inner width as a multiple of ``d_model``.
        dt_rank: Rank of the step-size projection of ``mamba``; ``auto`` is ``ceil(d_model / 16)``.
        headdim: Channels of a head of ``ssd``; ``auto`` is the divisor of the inner width that is
            closest to 64.
        dt_min: Smallest initial step size.
        dt_max: Largest initial step size.
        dt_init_floor: Lower bound of the initial step sizes.
        conv_bias: Whether the convolution has a bias.
        bias: Whether the input and output projections have a bias.
        backend: Kernel of the convolutions and scans; ``auto`` chooses one for the device. ``ssd``
            takes only ``auto`` and ``reference``.

    Attributes:
        config: The checked arguments.

    Raises:
        ValueError: If an argument is out of range, ``complement`` is not an involution of the
            embedded ids, or it maps a scored id to one that is not scored.
    """

    def __init__(
        self,
        d_model: int,
        n_layer: int,
        *,
        num_embeddings: int,
        num_logits: int,
        num_classes: int | None = None,
        num_signals: int | None = None,
        time_conditioned: bool = False,
        complement: Sequence[int] | None = None,
        variant: Variant = "ph",
        tied: bool = True,
        combine: Combine = "add",
        norm: NormKind = "rms",
        norm_eps: float = 1e-5,
        swap_strands: bool = False,
        mixer: Mixer = "mamba",
        d_state: int | None = None,
        d_conv: int = 4,
        expand: int = 2,
        dt_rank: int | Literal["auto"] = "auto",
        headdim: int | Literal["auto"] = "auto",
        dt_min: float = 1e-3,
        dt_max: float = 1e-1,
        dt_init_floor: float = 1e-4,
        conv_bias: bool = True,
        bias: bool = False,
        backend: str = "auto",
    ) -> None:
        require_choice("Caduceus", "mixer", mixer, get_args(Mixer))
        mamba = MambaConfig(
            d_state=DEFAULT_STATES[mixer] if d_state is None else d_state,
            d_conv=d_conv,
            expand=expand,
            dt_rank=dt_rank,
            dt_min=dt_min,
            dt_max=dt_max,
            dt_init_floor=dt_init_floor,
            conv_bias=conv_bias,
            bias=bias,
            mixer=mixer,
            headdim=headdim,
        )
        if mixer == "ssd":
            mamba = replace(mamba, headdim=mamba.head(d_model))
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
            num_signals=num_signals,
            time_conditioned=time_conditioned,
        )
        super().__init__(config, backend)
        self.strands = 2 if variant == "ps" else 1
        self.complement: Tensor
        self.register_buffer(
            "complement", torch.tensor(config.complement or range(num_embeddings)), persistent=False
        )

    def embed(self, inputs: Inputs) -> Float[Tensor, "rows L D"]:
        """Embed a row and, for ``ps``, its reverse complement as another row of the batch."""
        tokens = inputs.tokens
        if self.strands == 2:
            tokens = torch.cat((tokens, self.complement[tokens.flip(1)]))
        return self.embedding(tokens)

    def body(
        self, h: Float[Tensor, "rows L D"], inputs: Inputs, layer: int | None = None
    ) -> Float[Tensor, "rows L D"]:
        """Run the layers.

        Args:
            h: See ``Backbone.body``; for ``ps``, the second half of the batch is the other strand.
            inputs: Padding must come before the first or after the last real position of a row.
                Outputs at real positions are the same as without padding. Sigma is clamped to at
                most -log 1e-3.
            layer: See ``Backbone.body``.

        Raises:
            ValueError: If a time-conditioned network gets no ``sigma``.
        """
        label = None if inputs.label is None else inputs.label.repeat(self.strands)
        signal = self.embedded_signal(inputs.signal, len(inputs.tokens))
        if signal is not None and self.strands == 2:
            signal = torch.cat((signal, signal.flip(1)))
        h = self.conditioned(h, label, signal)
        if self.sigma_map is not None:
            h = h + self.sigma_map(self._sigma(inputs)).repeat(self.strands, 1)[:, None]
        padding = inputs.padding
        if padding is not None and self.strands == 2:
            padding = torch.cat((padding, padding.flip(1)))
        for number, block in enumerate(self.layers[:layer]):
            h = block(h, padding, mirrored=self._mirrored(number + 1))
        return h

    def head(
        self,
        h: Float[Tensor, "rows L D"],
        inputs: Inputs,
        where: Bool[Tensor, "B L"] | None = None,
    ) -> Float[Tensor, "*positions K"]:
        """Score each position; for ``ps``, the scores of the two strands are added."""
        mirrored = self._mirrored(self.num_layers)
        h = self.norm(h, mirrored=mirrored)
        weight = self.embedding.weight[: self.num_logits]
        if self.strands == 1:
            return F.linear(h if where is None else h[where], weight)
        complemented = weight[self.complement[: self.num_logits]]
        if mirrored:  # the strands have changed places: the first half now holds the second strand
            weight, complemented = complemented.flip(1), weight.flip(1)
        first, second = h.chunk(2)
        if where is None:
            return F.linear(first, weight) + F.linear(second, complemented).flip(1)
        row, position = where.nonzero(as_tuple=True)
        other = where.shape[1] - 1 - position
        return F.linear(first[row, position], weight) + F.linear(second[row, other], complemented)

    def _states(
        self, h: Float[Tensor, "rows L D"], inputs: Inputs, layer: int | None
    ) -> Float[Tensor, "B L C"]:
        mirrored = self._mirrored(self.num_layers if layer is None else layer)
        h = self.norm(h, mirrored=mirrored) if layer is None else h
        if self.strands == 1:
            return h
        first, second = h.chunk(2)
        if mirrored:
            return torch.cat((second.flip(1, 2), first.flip(2)), dim=-1)
        return torch.cat((first, second.flip(1)), dim=-1)

    def _mirrored(self, layers: int) -> bool:
        """Whether the strands have changed places after this many layers."""
        return self.config.swap_strands and layers % 2 == 1

    @classmethod
    def of(cls, config: CaduceusConfig, *, backend: str = "auto") -> Caduceus:
        """Build the network of a configuration.

        Args:
            config: The configuration.
            backend: As in the constructor.
        """
        fields = asdict(config)
        mamba = fields.pop("mamba")
        return cls(**fields, **mamba, backend=backend)

    @classmethod
    def from_hub(cls, directory: str | Path, *, backend: str = "auto") -> Caduceus:
        """Load a published network, which embeds and scores the published ids.

        Args:
            directory: Folder with ``config.json`` and ``model.safetensors``.
            backend: As in the constructor.

        Raises:
            FileNotFoundError: If a file does not exist.
            ValueError: If a file is damaged, the configuration has an unsupported value, or the
                weights do not fit it.
        """
        config = read_config(directory)
        model = cls.of(config, backend=backend)
        model.load_state_dict(read_weights(directory, config, model.state_dict()))
        return model

    def to_hub(self, directory: str | Path) -> None:
        """Write the network in the published format, where every embedded id is also scored.

        Args:
            directory: Folder, created if it does not exist.

        Raises:
            OSError: If a file cannot be written. Every file in the folder is then either the
                complete old or the complete new one.
            ValueError: If the network has classes or signals or is time-conditioned, which the
                format does not support.
        """
        if self.time_conditioned:
            raise ValueError(
                "Caduceus.to_hub must be given a time-free network, got one with "
                "time_conditioned=True, which the published format does not have; keep the run "
                "directory"
            )
        if self.num_classes is not None or self.num_signals is not None:
            raise ValueError(
                f"Caduceus.to_hub must be given a network without classes and signals, got "
                f"{self.num_classes} classes and {self.num_signals} signals; the published format "
                "has neither, so keep the run directory"
            )
        write_hub(directory, self.config, self.state_dict())


class PlainMamba(MambaNetwork):
    """A network of one strand that is not time-conditioned.

    Args:
        d_model: Model width.
        n_layer: Number of layers.
        num_embeddings: Number of ids that can be embedded; K + 1 with a mask.
        num_logits: Number of ids that are scored, which are the first ones; K with a mask.
        num_classes: Number of classes that a row can be labelled with; ``None`` without classes.
        num_signals: Number of values that a row can be conditioned on; ``None`` without signals.
        norm: ``rms`` or ``layer``.
        norm_eps: Added to the mean square.
        d_state: State width of each channel.
        d_conv: Width of the causal convolution.
        expand: Inner width as a multiple of ``d_model``.
        dt_rank: Rank of the step-size projection; ``auto`` is ``ceil(d_model / 16)``.
        dt_min: Smallest initial step size.
        dt_max: Largest initial step size.
        dt_init_floor: Lower bound of the initial step sizes.
        conv_bias: Whether the convolution has a bias.
        bias: Whether the input and output projections have a bias.
        backend: Kernel of the convolutions and scans; ``auto`` chooses one for the device.

    Raises:
        ValueError: If an argument is out of range.
    """

    def __init__(
        self,
        d_model: int,
        n_layer: int,
        *,
        num_embeddings: int,
        num_logits: int,
        num_classes: int | None = None,
        num_signals: int | None = None,
        norm: NormKind = "rms",
        norm_eps: float = 1e-5,
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
        mamba = MambaConfig(
            d_state, d_conv, expand, dt_rank, dt_min, dt_max, dt_init_floor, conv_bias, bias
        )
        config = CaduceusConfig(
            d_model=d_model,
            n_layer=n_layer,
            num_embeddings=num_embeddings,
            num_logits=num_logits,
            norm=norm,
            norm_eps=norm_eps,
            mamba=mamba,
            num_classes=num_classes,
            num_signals=num_signals,
        )
        super().__init__(config, backend)


class AutoregressiveMamba(PlainMamba):
    """Mamba from left to right: the logits at position l depend only on the tokens before l.

    The network shifts its input right by one position, with the last embedded id, the mask, as the
    start symbol. One pass over a clean row therefore gives its exact log-likelihood. The weights of
    the head are the first ``num_logits`` rows of the embedding, as in ``Caduceus``.

    On DNA, 4 blocks of width 128 have 467 thousand parameters, as many as a ``Caduceus`` of 4
    blocks of width 118.

    Source: Gu and Dao 2023, arXiv:2312.00752, section 3.4.

    The arguments are those of ``PlainMamba``; the last embedded id is the mask.
    """

    causal = True

    def add_layers(self, backend: str) -> None:
        """Build ``layers`` and draw the initial weights of the embedding and the layers."""
        nn.init.normal_(self.embedding.weight, std=0.02)
        count = self.config.n_layer
        self.layers = nn.ModuleList(MambaBlock(self.config, backend) for _ in range(count))

    def embed(self, inputs: Inputs) -> Float[Tensor, "B L D"]:
        """Embed at each position the token before it; the last token of a row is not read."""
        start = self.embedding.num_embeddings - 1
        return self.embedding(shifted(inputs.tokens, inputs.padding, start))


class MambaBlock(nn.Module):
    """Pre-norm residual block around a Mamba mixer of one direction; there is no MLP.

    Args:
        config: Sizes of the network. The initial output weights are divided by the square root of
            the number of blocks.
        backend: Kernel of the convolution and scan.
    """

    def __init__(self, config: CaduceusConfig, backend: str) -> None:
        super().__init__()
        d_model, mamba = config.d_model, config.mamba
        d_inner = mamba.expand * d_model
        self.norm = Norm(d_model, config.norm, config.norm_eps)
        self.in_proj = nn.Linear(d_model, 2 * d_inner, bias=mamba.bias)
        self.ssm = SelectiveSSM(d_inner, mamba.rank(d_model), mamba, backend)
        self.out_proj = nn.Linear(d_inner, d_model, bias=mamba.bias)
        initialise_projections([self.in_proj], [self.out_proj], config.n_layer)

    def forward(
        self, x: Float[Tensor, "B L D"], padding: Bool[Tensor, "B L"] | None = None
    ) -> Float[Tensor, "B L D"]:
        """Add the mixer's output to the residual stream.

        Args:
            x: Residual stream.
            padding: True at positions before the first or after the last real one.
        """
        xz = project_in(self.in_proj, self.norm(x), padding, mirrored=False)
        return x + project_out(self.out_proj, self.ssm(xz, padding), mirrored=False)

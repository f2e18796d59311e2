"""A published Caduceus checkpoint as a backbone for DNA."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from typing_extensions import override

from genomics.sequence import DNATokenizer
from seqdiff.backbones import Backbone, Caduceus
from seqdiff.backbones.caduceus import CaduceusConfig
from seqdiff.data import NoData, SequenceDataModule
from seqdiff.files import names_files
from seqdiff.types import Inputs

# Ids of A C G T and [MASK] in the published vocabularies: that of Caduceus, which has at least 12
# tokens, and that of PlantCaduceus and PlantCAD2.
HUB_IDS = (7, 8, 9, 10, 3)
PLANT_IDS = (3, 4, 5, 6, 1)
_LAST_TOKEN, _PLANT_TOKENS = 11, (7, 8)


class PublishedCaduceus(Backbone):
    """A network from a hub folder that takes and scores the ids of A C G T and the mask.

    The published network scores 16 tokens, or 8 for PlantCaduceus and PlantCAD2; the scores of
    A C G T are used, which ``Denoiser`` normalises. N is the mask here, so the network sees
    ``[MASK]`` for unknown bases. Equivariance to the reverse complement is preserved. All
    parameters are trainable.

    Attributes:
        checkpoint: Folder of the weights.
        network: The published network.
    """

    def __init__(
        self,
        checkpoint: str,
        published_shape: CaduceusConfig | None = None,
        *,
        num_embeddings: int,
        num_logits: int,
        backend: str = "auto",
    ) -> None:
        """Load a checkpoint strictly.

        Args:
            checkpoint: Folder with config.json and model.safetensors.
            published_shape: See ``PublishedBackbone``; set by the run.
            num_embeddings: Must be 5.
            num_logits: Must be 4.
            backend: See ``Caduceus``.

        Raises:
            FileNotFoundError: If a file is missing.
            ValueError: If the data is not DNA, or the folder has no published Caduceus with the
                published vocabulary.
        """
        super().__init__()
        if (num_embeddings, num_logits) != (5, 4):
            raise ValueError(
                "PublishedCaduceus must be used on data of 4 tokens, A C G T, got "
                f"{num_logits}; choose another backbone"
            )
        if published_shape is None:
            network = Caduceus.from_hub(checkpoint, backend=backend)
        else:
            network = Caduceus.of(published_shape, backend=backend)
        complement = network.config.complement
        count = network.config.num_embeddings
        ids = PLANT_IDS if count in _PLANT_TOKENS else HUB_IDS
        small = count <= _LAST_TOKEN and ids is HUB_IDS
        strand = None if complement is None or small else tuple(complement[i] for i in ids[:4])
        if small or strand not in (None, ids[3::-1]):
            raise ValueError(
                "PublishedCaduceus.checkpoint must have the published tokens, A C G T being "
                f"{HUB_IDS[0]} to {HUB_IDS[3]} of at least {_LAST_TOKEN + 1} or {PLANT_IDS[0]} to "
                f"{PLANT_IDS[3]} of {_PLANT_TOKENS[-1]}, got {count} tokens in {checkpoint}; use "
                "seqdiff's own run"
            )
        self.checkpoint = checkpoint
        self.network = network
        self.width, self.num_logits = network.width, num_logits
        self.strands = network.strands
        self.hub_ids: Tensor
        self.register_buffer("hub_ids", torch.tensor(ids), persistent=False)
        self._first, self._last = ids[0], ids[3]

    @classmethod
    def is_path(cls, argument: str, value: str) -> bool:
        """Tell whether the value of an argument names a file; see ``seqdiff.run.Located``."""
        return argument == "checkpoint" and names_files(value)

    @property
    def published_shape(self) -> dict[str, object]:
        """The constructor argument that builds the same network without the folder."""
        return asdict(self.network.config)

    @property
    def num_layers(self) -> int:
        """Number of layers of the published network."""
        return self.network.num_layers

    @override
    def embed(self, inputs: Inputs) -> Float[Tensor, "rows L D"]:
        return self.network.embed(self._published(inputs))

    @override
    def body(
        self, h: Float[Tensor, "rows L D"], inputs: Inputs, layer: int | None = None
    ) -> Float[Tensor, "rows L D"]:
        return self.network.body(h, inputs, layer)

    def head(
        self,
        h: Float[Tensor, "rows L D"],
        inputs: Inputs,
        where: Bool[Tensor, "B L"] | None = None,
    ) -> Float[Tensor, "*positions K"]:
        """Score the four bases."""
        return self.network.head(h, inputs, where)[..., self._first : self._last + 1]

    @override
    def hidden(self, inputs: Inputs, layer: int | None = None) -> Float[Tensor, "B L C"]:
        return self.network.hidden(self._published(inputs), layer)

    def _published(self, inputs: Inputs) -> Inputs:
        return replace(inputs, tokens=self.hub_ids[inputs.tokens])


def open_hub(directory: Path) -> tuple[SequenceDataModule, Backbone, int | None]:
    """Open the folder of a published Caduceus for ``seqdiff.load``.

    Returns:
        The tokens of DNA without data, the network, and no block size.

    Raises:
        ValueError: If the folder holds no published Caduceus.
    """
    backbone = PublishedCaduceus(str(directory), num_embeddings=5, num_logits=4)
    return NoData(DNATokenizer(), token_name="base", file_suffix="fa"), backbone.eval(), None

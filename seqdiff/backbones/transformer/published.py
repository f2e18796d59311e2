"""A published MDLM as a backbone that a run can name."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import torch

from seqdiff.backbones.base import RunTokens
from seqdiff.backbones.hub import check_tokens, read_tokens
from seqdiff.backbones.transformer.config import TransformerConfig
from seqdiff.backbones.transformer.hub import read_config
from seqdiff.backbones.transformer.network import Transformer
from seqdiff.files import names_files


class PublishedTransformer(Transformer):
    """A ``Transformer`` with the weights of a hub folder, without its head's column for the mask.

    The published network scores the mask too, which its SUBS parameterization sets to ``-inf``
    before it normalises (Sahoo et al. 2024, arXiv:2406.07524, section 3.2.3). Without that column,
    ``Denoiser`` gives the same law. Everything can be trained on.

    Args:
        checkpoint: Folder that holds config.json and model.safetensors.
        published_shape: See ``PublishedBackbone``; a run sets it.
        num_embeddings: K + 1; the last id is the mask, here as there.
        num_logits: K.
        blocks: Whether the folder holds a BD3-LM, which denoises a block given those before it.

    Raises:
        FileNotFoundError: If a file is not there.
        ValueError: If a file is damaged, the folder holds no MDLM, the weights do not fit the
            configuration, or the vocabulary has another size.
    """

    def __init__(
        self,
        checkpoint: str,
        published_shape: TransformerConfig | None = None,
        *,
        num_embeddings: int,
        num_logits: int,
        blocks: bool = False,
    ) -> None:
        if published_shape is not None:
            super().__init__(**asdict(published_shape))
            self.checkpoint = checkpoint
            return
        config, block_fields = read_config(checkpoint)
        if (block_fields is not None) != blocks:
            wanted, found = ("a BD3-LM", "an MDLM") if blocks else ("an MDLM", "a BD3-LM")
            raise ValueError(
                f"PublishedTransformer.checkpoint must be {wanted}, got {found} in {checkpoint}; "
                "load it by seqdiff.load(...)"
            )
        if config.num_embeddings != num_embeddings:
            raise ValueError(
                "PublishedTransformer.checkpoint must embed the tokens of data.tokenizer and the "
                f"mask, {num_embeddings}, got {config.num_embeddings} in {checkpoint}; use the "
                "tokenizer of the checkpoint"
            )
        published = Transformer.from_hub(checkpoint)
        with torch.device("meta"):
            super().__init__(**asdict(replace(config, num_logits=num_logits)))
        self.checkpoint = checkpoint
        state = published.state_dict()
        for name in ("head.linear.weight", "head.linear.bias"):
            state[name] = state[name][:num_logits].clone()
        self.load_state_dict(state, assign=True)

    @classmethod
    def is_path(cls, argument: str, value: str) -> bool:
        """See ``seqdiff.run.Located``."""
        return argument == "checkpoint" and names_files(value)

    @property
    def published_shape(self) -> dict[str, object]:
        """See ``PublishedBackbone``."""
        return asdict(self.config)

    def check_tokens(self, run: RunTokens) -> None:
        """See ``TokenizedBackbone``; a folder without files of a tokenizer says nothing."""
        found = read_tokens(Path(self.checkpoint))
        if found is not None:
            check_tokens("PublishedTransformer.checkpoint", *found, run)

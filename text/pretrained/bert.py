"""BERT checkpoints in the format of transformers, as backbones for masked diffusion."""

from __future__ import annotations

import json
from typing import TypedDict

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from seqdiff.backbones import Backbone, RunTokens, check_tokens
from seqdiff.files import names_files
from seqdiff.types import Inputs
from text.pretrained.models import build_model, load_model, load_tokenizer

# A text that shows whether a tokenizer keeps case and accents.
_PROBE = "The Café of the NAIVE"
# Pretraining heads that masked diffusion does not use.
_OTHER_HEADS = ("cls.seq_relationship.", "bert.pooler.")


class BertShape(TypedDict):
    """Arguments that build a BERT without its folder.

    Attributes:
        config: Contents of config.json.
        mask_token_id: Id of ``[MASK]``.
    """

    config: dict[str, object]
    mask_token_id: int


class BertBackbone(Backbone):
    """A published BERT with its masked-language-model head.

    The network has K logits and does not depend on time. The mask of the core, id K, is replaced by
    the ``[MASK]`` token of BERT. The logit of ``[MASK]`` is ``-inf``, because a clean token is
    never the mask.

    Attributes:
        checkpoint: Folder or hub name of the weights and the tokenizer.
        network: ``BertForMaskedLM`` of transformers.
        mask_token_id: BERT's id of ``[MASK]``.
        vocab_size: K.
        published_shape: See ``seqdiff.backbones.PublishedBackbone``.
    """

    def __init__(
        self,
        checkpoint: str,
        published_shape: BertShape | None = None,
        *,
        num_embeddings: int,
        num_logits: int,
    ) -> None:
        """Load a checkpoint; missing or unexpected weights raise an error.

        Args:
            checkpoint: A folder with config.json, safetensors and a tokenizer, or a hub name.
            published_shape: See ``PublishedBackbone``; set when a run is loaded.
            num_embeddings: K + 1.
            num_logits: K, the size of BERT's vocabulary including special tokens.

        Raises:
            OSError: If a folder has no model.
            ValueError: If the model is not a BERT with ``[MASK]``, or its vocabulary has another
                size.
        """
        super().__init__()
        owner = "BertBackbone.checkpoint"
        if published_shape is None:
            mask_token_id = load_tokenizer(owner, checkpoint).mask_token_id
            network = load_model(owner, checkpoint, "AutoModelForMaskedLM", beside=_OTHER_HEADS)
        else:
            mask_token_id = published_shape["mask_token_id"]
            network = build_model(owner, published_shape["config"], "BertForMaskedLM")
        if network.config.model_type != "bert" or mask_token_id is None:
            raise ValueError(
                f"{owner} must be a BERT whose tokenizer has a mask token, got {checkpoint} of "
                f"type {network.config.model_type}; choose another checkpoint"
            )
        size = network.config.vocab_size
        if (num_logits, num_embeddings) != (size, size + 1):
            raise ValueError(
                f"{owner} must have as many tokens as data.tokenizer, {num_logits}, got {size} in "
                f"{checkpoint}; use the tokenizer of the checkpoint"
            )
        self.checkpoint = checkpoint
        self.network: nn.Module = network.train()  # its dropout follows this module's mode
        self.mask_token_id: int = mask_token_id
        self._num_layers: int = network.config.num_hidden_layers
        self.published_shape: BertShape = {
            "config": json.loads(network.config.to_json_string()),
            "mask_token_id": mask_token_id,
        }
        self.vocab_size: int = size
        self.width, self.num_logits = network.config.hidden_size, num_logits
        self.max_length = network.config.max_position_embeddings

    @classmethod
    def is_path(cls, argument: str, value: str) -> bool:
        """Return whether the value of an argument is a path; see ``seqdiff.run.Located``."""
        return argument == "checkpoint" and names_files(value)

    @property
    def encoder(self) -> nn.Module:
        """``BertModel`` of transformers, without the head."""
        return self.network.get_submodule("bert")

    def check_tokens(self, run: RunTokens) -> None:
        """Check the tokenizer of a run, see ``TokenizedBackbone``.

        Raises:
            OSError: If a folder has no model.
            ValueError: If an id stands for different tokens, or the tokenizers treat case or
                accents differently.
        """
        owner = "BertBackbone.checkpoint"
        tokenizer = load_tokenizer(owner, self.checkpoint)
        published = {place: token for token, place in tokenizer.get_vocab().items()}
        check_tokens(owner, self.checkpoint, published, run)
        wanted = tokenizer(_PROBE, add_special_tokens=False).input_ids
        if run.encode(_PROBE).tolist() != wanted:
            raise ValueError(
                f"{owner} must encode text as data.tokenizer does ({run.tokenizer}), got different "
                f"ids for {_PROBE!r} in {self.checkpoint}; make both treat case and accents alike, "
                "for example with data.tokenizer.lowercase"
            )

    @property
    def num_layers(self) -> int:
        """Number of layers of the encoder."""
        return self._num_layers

    def embed(self, inputs: Inputs) -> Float[Tensor, "B L D"]:
        """Embed tokens, with ``[MASK]`` for masked tokens; the body adds positions."""
        tokens = inputs.tokens
        shown = tokens.masked_fill(tokens == self.vocab_size, self.mask_token_id)
        return self.encoder.get_submodule("embeddings.word_embeddings")(shown)

    def body(
        self, h: Float[Tensor, "B L D"], inputs: Inputs, layer: int | None = None
    ) -> Float[Tensor, "B L D"]:
        """Run the encoder.

        Args:
            h: See ``Backbone.body``.
            inputs: See ``Backbone.body``.
            layer: See ``Backbone.body``; the states after 0 layers include positions.
        """
        padding = inputs.padding
        real = torch.ones_like(inputs.tokens) if padding is None else (~padding).long()
        some = {} if layer is None else {"output_hidden_states": True}
        states = self.encoder(inputs_embeds=h, attention_mask=real, **some)
        return states.last_hidden_state if layer is None else states.hidden_states[layer]

    def head(
        self, h: Float[Tensor, "B L D"], inputs: Inputs, where: Bool[Tensor, "B L"] | None = None
    ) -> Float[Tensor, "*positions K"]:
        """Compute the logits; that of ``[MASK]`` is ``-inf``."""
        logits = self.network.get_submodule("cls")(h if where is None else h[where])
        never = torch.arange(logits.shape[-1], device=logits.device) == self.mask_token_id
        return logits.masked_fill(never, -torch.inf)

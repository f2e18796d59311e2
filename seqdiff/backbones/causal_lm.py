"""GPT-2 checkpoints as the start of masked diffusion: attention that opens while it is trained."""

from __future__ import annotations

import json
from typing import Any, TypedDict, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from typing_extensions import override

from seqdiff.backbones.base import RunTokens
from seqdiff.backbones.hub import check_tokens
from seqdiff.backbones.layers import require_layer
from seqdiff.backbones.masked_lm import HubNetwork
from seqdiff.pretrained import (
    TokenFacts,
    build_model,
    check_num_tokens,
    check_sizes,
    load_model,
    load_tokenizer,
    token_facts,
)
from seqdiff.types import Inputs

_OWNER = "HubCausalBackbone.checkpoint"


class CausalShape(TypedDict):
    """Arguments that build a ``HubCausalBackbone`` without its folder.

    Attributes:
        config: Contents of config.json.
        start: Id of the token before a row.
        reserved: Ids that are never predicted.
    """

    config: dict[str, object]
    start: int
    reserved: list[int]


class HubCausalBackbone(HubNetwork):
    """A GPT-2 checkpoint that learns to denoise, as DiffuGPT does.

    The hidden state of a position predicts the token after it, as in the checkpoint, so a row is
    read after a start token and its logits are shifted by one position. A new vector, at first the
    mean of all embeddings, stands for the mask. Attention to later positions is closed at first.
    In training, each pair of a position and a later one is open with a probability that rises
    linearly from 0 to 1 in ``annealing_steps`` steps, drawn anew in every forward pass. Otherwise,
    such as in validation, the same pairs are always open at one probability.
    Source: Gong et al. 2025, "Scaling diffusion language models via adaptation from autoregressive
    models", arXiv:2410.17891, section 3 and algorithm 1.

    Attributes:
        checkpoint: Folder or hub name of the weights and the tokenizer.
        network: ``GPT2LMHeadModel`` of transformers.
        vocab_size: K.
        positions: Length of the longest row with its start token.
        openness: Probability that attention to a later position is open.
        published_shape: See ``seqdiff.backbones.PublishedBackbone``.
    """

    transposed = True  # GPT-2's Conv1D

    def __init__(
        self,
        checkpoint: str,
        published_shape: CausalShape | None = None,
        *,
        num_embeddings: int,
        num_logits: int,
        annealing_steps: int = 10_000,
    ) -> None:
        """Load a checkpoint; missing or unexpected weights raise an error.

        Args:
            checkpoint: A folder with config.json, safetensors and a tokenizer, or a hub name.
            published_shape: See ``PublishedBackbone``; set when a run is loaded.
            num_embeddings: K + 1.
            num_logits: K, the number of tokens of its tokenizer.
            annealing_steps: Optimizer steps until attention is open; 0 opens it at once.

        Raises:
            OSError: If a folder has no model.
            ValueError: If the model is not a GPT-2, or has another number of tokens.
        """
        super().__init__()
        if annealing_steps < 0:
            raise ValueError(
                f"HubCausalBackbone.annealing_steps must be at least 0, got {annealing_steps}; "
                "10000 is usual"
            )
        if published_shape is None:
            network = load_model(_OWNER, checkpoint, "AutoModelForCausalLM")
            facts = token_facts(_OWNER, checkpoint, load_tokenizer(_OWNER, checkpoint))
            published_shape = _describe(checkpoint, network, facts)
            check_num_tokens(_OWNER, checkpoint, facts, num_logits)
        else:
            network = build_model(_OWNER, published_shape["config"], "AutoModelForCausalLM")
        self.checkpoint, self.published_shape = checkpoint, published_shape
        self.network = network.train()  # its dropout follows this module's mode
        config = cast(Any, network).config
        self.vocab_size, self.num_logits, self.width = num_logits, num_logits, config.hidden_size
        self.positions: int = config.max_position_embeddings
        self.max_length = self.positions - 1  # and the start token
        self.mask_embedding = nn.Parameter(self._table().detach().mean(dim=0))
        self.annealing_steps = annealing_steps
        self.openness: Tensor
        self.register_buffer("openness", torch.tensor(0.0 if annealing_steps else 1.0))
        never = torch.zeros(num_logits, dtype=torch.bool)
        never[published_shape["reserved"]] = True
        self._never: Tensor
        self.register_buffer("_never", never, persistent=False)

    def set_step(self, step: int) -> None:
        """Open attention as far as an optimizer step wants it, see ``ScheduledBackbone``."""
        if self.annealing_steps:
            self.openness.fill_(min(1.0, (step + 1) / self.annealing_steps))

    def check_tokens(self, run: RunTokens) -> None:
        """Check the tokenizer of a run, see ``TokenizedBackbone``.

        Raises:
            OSError: If a folder has no model.
            ValueError: If an id stands for different tokens, or the tokenizer encodes text to
                special tokens.
        """
        facts = token_facts(_OWNER, self.checkpoint, load_tokenizer(_OWNER, self.checkpoint))
        check_tokens(_OWNER, self.checkpoint, dict(enumerate(facts.names)), run)
        if not set(facts.reserved) <= set(run.reserved):
            raise ValueError(
                f"{_OWNER} must go with a tokenizer that never writes "
                f"{facts.names[facts.reserved[0]]}, which is read before every row, got "
                f"{run.tokenizer}; use seqdiff.data.HubTokenizer"
            )

    def embed(self, inputs: Inputs) -> Float[Tensor, "B L D"]:
        """Embed tokens; the body adds the start token and positions."""
        table = torch.cat((self._table()[: self.vocab_size], self.mask_embedding[None]))
        return nn.functional.embedding(inputs.tokens, table)

    def body(
        self, h: Float[Tensor, "B L D"], inputs: Inputs, layer: int | None = None
    ) -> Float[Tensor, "B L D"]:
        """Run the layers; the state of a position is that of the one before it.

        Args:
            h: See ``Backbone.body``.
            inputs: See ``Backbone.body``.
            layer: See ``Backbone.body``.

        Raises:
            ValueError: If rows are longer than ``max_length``.
        """
        length = h.shape[1]
        if length >= self.positions:
            raise ValueError(
                f"HubCausalBackbone.tokens must have at most max_length = {self.max_length} per "
                f"row, got {length}; cut the rows"
            )
        start = self._table()[self.published_shape["start"]].expand(len(h), 1, -1)
        some = {} if layer is None else {"output_hidden_states": True}
        states = self.encoder(
            inputs_embeds=torch.cat((start, h), dim=1),
            attention_mask=self._seen(length + 1, inputs.padding, h),
            use_cache=False,
            **some,
        )
        found = states.last_hidden_state if layer is None else states.hidden_states[layer]
        return found[:, :length]

    @override
    def hidden(self, inputs: Inputs, layer: int | None = None) -> Float[Tensor, "B L C"]:
        require_layer(type(self).__name__, layer, self.num_layers)
        self.check_condition(inputs)
        return self.body(self.embed(inputs), inputs, layer)

    def head(
        self, h: Float[Tensor, "B L D"], inputs: Inputs, where: Bool[Tensor, "B L"] | None = None
    ) -> Float[Tensor, "*positions K"]:
        """Compute the logits; those of special tokens are ``-inf``."""
        logits = self.network.get_submodule("lm_head")(h if where is None else h[where])
        return logits[..., : self.vocab_size].masked_fill(self._never, -torch.inf)

    def _table(self) -> Float[Tensor, "V D"]:
        return cast(Any, self.network).get_input_embeddings().weight

    def _seen(
        self, size: int, padding: Bool[Tensor, "B L"] | None, like: Tensor
    ) -> Float[Tensor, "B 1 M M"]:
        """Return 0 where a position attends to another one, and a large negative number elsewhere.

        One draw serves all rows and layers, as published.
        """
        if self.training:
            chance = torch.rand(size, size, device=like.device)
        else:
            generator = torch.Generator().manual_seed(0)
            chance = torch.rand(self.positions, self.positions, generator=generator)
            chance = chance[:size, :size].to(like.device)
        seen = torch.ones(size, size, device=like.device, dtype=torch.bool).tril()
        seen = (seen | (chance < self.openness)).expand(like.shape[0], 1, size, size)
        if padding is not None:
            real = nn.functional.pad(~padding, (1, 0), value=True)
            seen = seen & real[:, None, None, :]
        least = torch.finfo(like.dtype).min
        return torch.zeros(seen.shape, device=like.device, dtype=like.dtype).masked_fill(
            ~seen, least
        )


def _describe(checkpoint: str, network: nn.Module, facts: TokenFacts) -> CausalShape:
    """Describe a published model, and check that it can be used.

    Raises:
        ValueError: If it is not a GPT-2 with a start token, or has other tokens.
    """
    config = cast(Any, network).config
    if config.model_type != "gpt2" or config.bos_token_id is None:
        raise ValueError(
            f"{_OWNER} must be a GPT-2 with a bos_token_id in config.json, got {checkpoint} of "
            f"type {config.model_type}; choose another checkpoint"
        )
    check_sizes(_OWNER, checkpoint, facts, config.vocab_size)
    return {
        "config": json.loads(config.to_json_string()),
        "start": config.bos_token_id,
        "reserved": list(facts.reserved),
    }

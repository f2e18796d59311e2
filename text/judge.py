"""A published autoregressive model with its tokenizer, to judge samples by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64
from torch import nn

from .pretrained import load_model, load_tokenizer


@dataclass(frozen=True)
class Judge:
    """An autoregressive model of transformers.

    Attributes:
        network: In eval mode; its call gives ``logits``.
        tokenizer: Of transformers.
        vocab_size: Ids that the network knows.
        context: Most tokens that it reads at once; ``None`` if there is no limit.
        bos: Token that starts a text; ``None`` if the model has none.
        bos_name: How that is spelled.
    """

    network: nn.Module
    tokenizer: Callable
    vocab_size: int
    context: int | None
    bos: int | None
    bos_name: str | None

    @staticmethod
    def load(owner: str, name: str) -> Judge:
        """Load from a folder or the hub.

        Args:
            owner: Who was given the name, for the messages.
            name: See ``text.pretrained.load_model``.

        Raises:
            OSError: If a folder is no model's, or has no safetensors.
            ValueError: If transformers is not installed, there is no such model, or its weights do
                not fit its configuration.
        """
        tokenizer = load_tokenizer(owner, name)
        network = load_model(owner, name, "AutoModelForCausalLM")
        config = network.config
        return Judge(
            network,
            tokenizer,
            vocab_size=config.vocab_size,
            context=getattr(config, "max_position_embeddings", None),
            bos=tokenizer.bos_token_id,
            bos_name=tokenizer.bos_token,
        )

    def encode(self, texts: Sequence[str]) -> list[Int64[np.ndarray, " _"]]:
        """Tokenise; what spells a special token becomes it, and nothing is added."""
        ids = self.tokenizer(list(texts), add_special_tokens=False).input_ids
        return [np.array(row, dtype=np.int64) for row in ids]

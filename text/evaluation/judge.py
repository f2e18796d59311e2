"""A published autoregressive model and its tokenizer, which score samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int64
from torch import nn

from seqdiff.pretrained import load_model, load_tokenizer


@dataclass(frozen=True)
class Judge:
    """An autoregressive model of transformers.

    Attributes:
        network: The model in eval mode; calling it returns ``logits``.
        tokenizer: Its tokenizer.
        vocab_size: Number of ids that the network knows.
        context: Maximum number of tokens that it reads at once; ``None`` if there is no limit.
        bos: Token that starts a text; ``None`` if the model has none.
        bos_name: Name of that token.
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
            owner: The argument with the name, for error messages.
            name: See ``seqdiff.pretrained.load_model``.

        Raises:
            OSError: If a folder has no model, or no safetensors.
            ValueError: If transformers is not installed, the model does not exist, its weights do
                not match its configuration, or it is not autoregressive.
        """
        tokenizer = load_tokenizer(owner, name)
        network = load_model(owner, name, "AutoModelForCausalLM")
        config = network.config
        if looks_ahead(network, config.vocab_size):
            raise ValueError(
                f"{owner} must predict each token from earlier tokens only, got {name} of type "
                f"{config.model_type}, which also reads later tokens; choose an autoregressive "
                "model"
            )
        return Judge(
            network,
            tokenizer,
            vocab_size=config.vocab_size,
            context=getattr(config, "max_position_embeddings", None),
            bos=tokenizer.bos_token_id,
            bos_name=tokenizer.bos_token,
        )

    def encode(self, texts: Sequence[str]) -> list[Int64[np.ndarray, " _"]]:
        """Tokenize without adding tokens; names of special tokens become special tokens."""
        ids = self.tokenizer(list(texts), add_special_tokens=False).input_ids
        return [np.array(row, dtype=np.int64) for row in ids]


@torch.no_grad()
def looks_ahead(network: nn.Module, vocab_size: int) -> bool:
    """Test whether the prediction of the next token depends on later tokens.

    Args:
        network: A model in eval mode, on the CPU; calling it returns ``logits``.
        vocab_size: Number of ids that it knows.
    """
    row = torch.arange(4) % vocab_size
    rows = torch.stack((row, torch.cat((row[:3], (row[3:] + vocab_size // 2) % vocab_size))))
    first, second = network(input_ids=rows).logits[:, :3].double()
    return not bool((first - second).abs().max() <= 1e-4 * first.abs().max())

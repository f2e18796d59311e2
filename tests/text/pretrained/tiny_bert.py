"""A tiny BERT with a WordPiece tokenizer in a folder, and a data module with its tokens."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Int64, Integer
from transformers import BertConfig, BertForMaskedLM, BertForPreTraining, BertTokenizerFast

from seqdiff.data.datamodule import SequenceDataModule, Split
from seqdiff.data.dataset import SequenceDataset

WORDS = ["good", "bad", "film", "a", "the", "is", "was", "it", "##s", "dog", "."]
VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
SIZE, MASK = len(VOCAB), VOCAB.index("[MASK]")


def save_bert(folder: Path, *, seed: int = 0, pretraining: bool = False) -> Path:
    """Save a BERT; with ``pretraining`` it includes the heads of the published checkpoints."""
    folder.mkdir(exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(VOCAB) + "\n")
    BertTokenizerFast(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
    config = BertConfig(
        vocab_size=SIZE,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=24,
    )
    kind = BertForPreTraining if pretraining else BertForMaskedLM
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = kind(config)
        with torch.no_grad():
            for weight in network.parameters():
                weight.add_(0.1 * torch.randn_like(weight))
    network.save_pretrained(folder)
    return folder


class WordTokenizer:
    """The vocabulary as a tokenizer of the core."""

    vocab_size = SIZE
    fingerprint = "words"
    reserved_ids = tuple(range(5))

    def encode(self, string: str) -> Int64[np.ndarray, " L"]:
        found = [VOCAB.index(word) if word in VOCAB else SIZE for word in string.lower().split()]
        return np.array(found, dtype=np.int64)

    def decode(self, ids: Sequence[int] | Integer[np.ndarray, " L"]) -> str:
        return " ".join([*VOCAB, "?"][int(i)] for i in ids)


class WordSet(SequenceDataset):
    def __len__(self) -> int:
        return 24

    def rows(
        self, indices: Int64[np.ndarray, " B"]
    ) -> tuple[Int64[np.ndarray, "B L"], Bool[np.ndarray, "B L"]]:
        tokens = 5 + (indices[:, None] * 3 + np.arange(8)) % len(WORDS)
        return tokens, np.ones_like(tokens, dtype=bool)


class WordData(SequenceDataModule):
    def __init__(self, *, batch_size: int = 8) -> None:
        super().__init__(WordTokenizer(), batch_size=batch_size)

    def dataset(self, split: Split) -> SequenceDataset:
        return WordSet()

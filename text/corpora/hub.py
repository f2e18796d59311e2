"""Opens published text models for ``seqdiff.load``."""

from __future__ import annotations

from pathlib import Path

from seqdiff.backbones import CONFIG_FILE, Backbone, PublishedTransformer, read_json
from seqdiff.data import NoData, SequenceDataModule
from text.tokenizers import BertTokenizer, GPT2Tokenizer

# Tokenizers by the number of embeddings, which is the size of the vocabulary plus the mask.
_TOKENIZERS = {50258: (GPT2Tokenizer, "gpt2"), 30523: (BertTokenizer, "bert-base-uncased")}


def open_hub(directory: Path) -> tuple[SequenceDataModule, Backbone, int | None]:
    """Open the folder of a published MDLM or BD3-LM.

    The size of the vocabulary tells whether the tokenizer is that of GPT-2 or of BERT. Its files
    are read from the folder if they are there. Otherwise they are looked up by the name of the
    vocabulary, as in ``GPT2Tokenizer`` and ``BertTokenizer``.

    Returns:
        A data module without data, the network, and the block size of a BD3-LM.

    Raises:
        ValueError: If the folder holds neither, or the vocabulary has another size.
    """
    fields = read_json(directory / CONFIG_FILE)
    size = fields.get("vocab_size")
    if not isinstance(size, int) or size not in _TOKENIZERS:
        known = " or ".join(str(one) for one in _TOKENIZERS)
        raise ValueError(
            f"{directory / CONFIG_FILE}: vocab_size must be {known}, the vocabulary of GPT-2 or "
            f"BERT plus the mask, got {size}; for another tokenizer, use seqdiff train --backbone "
            "seqdiff.backbones.PublishedTransformer"
        )
    kind, name = _TOKENIZERS[size]
    here = any((directory / file).is_file() for layout in kind.layouts for file in layout)
    tokenizer = kind(str(directory) if here else name)
    found = fields.get("block_size") if fields.get("model_type") == "bd3lm" else None
    block_size = found if isinstance(found, int) else None
    backbone = PublishedTransformer(
        str(directory), num_embeddings=size, num_logits=size - 1, blocks=block_size is not None
    )
    data = NoData(tokenizer, token_name="token", file_suffix="txt")
    data.context_length = backbone.max_length
    return data, backbone.eval(), block_size

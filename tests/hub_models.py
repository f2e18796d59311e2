"""Tiny randomly initialised models of transformers, saved as hub folders with their tokenizers."""

import json
import tempfile
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from seqdiff.backbones import HubBackbone
from seqdiff.data import HubTokenizer
from seqdiff.types import Inputs

_SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
_SMALL = {**_SIZES, "intermediate_size": 24, "max_position_embeddings": 40}
WORDS = ["good", "bad", "film", "a", "the", "is", "was", "it", "##s", "dog", "."]
PIECES = ["A", "C", "G", "T", "AC", "GT", "ACG", "TTT", "GATTACA"]
TEXT, DNA, PROTEIN = "the dog is good .", "GATTACAACGTTTTAACG", "MKTLAGVX"


def _wordpiece(folder: Path) -> None:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused0]"]
    (folder / "vocab.txt").write_text("\n".join([*special, *WORDS]) + "\n")
    transformers.BertTokenizerFast(vocab=str(folder / "vocab.txt")).save_pretrained(folder)


def _bpe(folder: Path, *, special: tuple[str, ...] = ("<s>", "<pad>", "</s>", "<unk>")) -> None:
    """Byte-level BPE as of RoBERTa and ModernBERT, without merges."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: place for place, token in enumerate([*special, *letters, "<mask>"])}
    engine = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>"))
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder = decoders.ByteLevel()
    engine.post_processor = processors.RobertaProcessing(
        ("</s>", vocabulary["</s>"]), ("<s>", vocabulary["<s>"])
    )
    names = {"bos": "<s>", "cls": "<s>", "eos": "</s>", "sep": "</s>", "pad": "<pad>"}
    names |= {"unk": "<unk>", "mask": "<mask>"}
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=engine, **{f"{name}_token": token for name, token in names.items()}
    ).save_pretrained(folder)


def _dna_bpe(folder: Path) -> None:
    """BPE of DNA as of GENA-LM."""
    special = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
    vocabulary = {token: place for place, token in enumerate([*special, *PIECES])}
    merges = [("A", "C"), ("G", "T"), ("AC", "G")]
    engine = Tokenizer(models.BPE(vocabulary, merges, unk_token="[UNK]"))
    engine.normalizer = normalizers.Strip()
    engine.pre_tokenizer = pre_tokenizers.Whitespace()
    engine.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    names = {name.strip("[]").lower(): name for name in special}
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=engine, **{f"{name}_token": token for name, token in names.items()}
    ).save_pretrained(folder)


def _residues(folder: Path) -> None:
    tokens = "<cls> <pad> <eos> <unk> L A G V S E R T I D P K Q N F Y M H W C X B U Z O . -"
    (folder / "vocab.txt").write_text("\n".join([*tokens.split(), "<null_1>", "<mask>"]))
    transformers.EsmTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)


def _kmers(folder: Path) -> None:
    """3-mers and single bases as of the Nucleotide Transformer, which closes no row."""
    special = ["<unk>", "<pad>", "<mask>", "<cls>"]
    tokens = [*special, *map("".join, product("ATCG", repeat=3)), *"ATCGN"]
    (folder / "vocab.txt").write_text("\n".join(tokens))
    transformers.EsmTokenizer(
        str(folder / "vocab.txt"), eos_token=None, cls_token="<cls>"
    ).save_pretrained(folder)


def _esm(**options: Any) -> dict[str, Any]:
    return {**_SMALL, "mask_token_id": 32, "pad_token_id": 1, **options}


# The tokenizer, the configuration and a sequence of each family.
FAMILIES: dict[str, tuple[Callable[[Path], None], Callable[..., Any], dict[str, Any], str]] = {
    "bert": (_wordpiece, transformers.BertConfig, _SMALL, TEXT),
    "distilbert": (
        _wordpiece,
        transformers.DistilBertConfig,
        {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24, "max_position_embeddings": 40},
        TEXT,
    ),
    "roberta": (
        _bpe,
        transformers.RobertaConfig,
        {**_SMALL, "bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "type_vocab_size": 1},
        TEXT,
    ),
    "modernbert": (
        _bpe,
        transformers.ModernBertConfig,
        {**_SMALL, "local_attention": 4, "global_attn_every_n_layers": 2, "pad_token_id": 1},
        TEXT,
    ),
    "deberta-v2": (
        _wordpiece,
        transformers.DebertaV2Config,
        {
            **_SMALL,
            "relative_attention": True,
            "position_biased_input": False,
            "pos_att_type": ["p2c", "c2p"],
            "position_buckets": 8,
            "norm_rel_ebd": "layer_norm",
            "share_att_key": True,
            "type_vocab_size": 0,
        },
        TEXT,
    ),
    "electra": (_wordpiece, transformers.ElectraConfig, {**_SMALL, "embedding_size": 8}, TEXT),
    "esm-2": (
        _residues,
        transformers.EsmConfig,
        _esm(position_embedding_type="rotary", token_dropout=True),
        PROTEIN,
    ),
    "nucleotide-transformer": (
        _kmers,
        transformers.EsmConfig,
        _esm(
            position_embedding_type="absolute",
            token_dropout=True,
            mask_token_id=2,
            emb_layer_norm_before=True,
        ),
        DNA,
    ),
    "gena-lm": (_dna_bpe, transformers.BertConfig, {**_SMALL, "pad_token_id": 3}, DNA),
}


def save_family(family: str, folder: Path, *, seed: int = 0, spare: int = 0) -> Path:
    """Save a tiny model of a family, with ``spare`` embeddings beyond the tokenizer's."""
    write_tokenizer, config, options, _ = FAMILIES[family]
    folder.mkdir(parents=True, exist_ok=True)
    write_tokenizer(folder)
    # AutoTokenizer asks the type of the model.
    (folder / "config.json").write_text(json.dumps({"model_type": config.model_type}))
    size = len(transformers.AutoTokenizer.from_pretrained(folder))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = transformers.AutoModelForMaskedLM.from_config(
            config(vocab_size=size + spare, **options)
        )
        with torch.no_grad():
            for weight in network.parameters():
                weight.add_(0.1 * torch.randn_like(weight))
    network.save_pretrained(folder)
    return folder


def largest_difference(family: str, folder: Path) -> float:
    """Return the largest difference of a logit from the model's own forward.

    The row is the sequence of the family with a mask, as the model's tokenizer frames it, in a
    batch with a longer one. Special tokens, which have no logit in ``HubBackbone``, are left out.
    """
    backbone, tokenizer = HubBackbone.from_hub(folder).eval(), HubTokenizer(str(folder))
    facts, size = tokenizer.facts, tokenizer.vocab_size
    ids = torch.tensor(tokenizer.encode(FAMILIES[family][-1])).long()[None]
    ids[0, 2] = size
    own = transformers.AutoTokenizer.from_pretrained(folder)
    framed = own("A").input_ids
    first = [i for i in framed[:1] if i == own.cls_token_id]
    last = [i for i in framed[-1:] if i in (own.sep_token_id, own.eos_token_id)]
    shown = [own.mask_token_id if i == size else i for i in ids[0].tolist()]
    whole = torch.tensor([[*first, *shown, *last]])
    network = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    with torch.no_grad():
        wanted = network(input_ids=whole, attention_mask=torch.ones_like(whole)).logits[0]
        longer = torch.cat((ids, ids[:, -2:]), dim=1)
        padding = torch.zeros(2, longer.shape[1], dtype=torch.bool)
        padding[0, -2:] = True
        batch = Inputs(longer.repeat(2, 1), padding=padding)
        found = backbone(batch, ~padding)[: ids.shape[1]]
    ordinary = [place for place in range(size) if place not in facts.reserved]
    inside = slice(len(first), len(first) + len(shown))
    return float((found - wanted[inside, :size])[:, ordinary].abs().max())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as root:
        for name in FAMILIES:
            made = save_family(name, Path(root) / name, spare=5)
            print(f"| {name} | {largest_difference(name, made):.1e} |")

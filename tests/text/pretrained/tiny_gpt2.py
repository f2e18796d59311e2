"""A tiny GPT-2 with a tokenizer in a folder, and its likelihood written in float64."""

from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

CONTEXT, WIDTH, HEADS = 12, 16, 2
BOS = "<|endoftext|>"
TEXTS = ["the cat sat on the mat", "a dog", "the dog sat on a cat on a mat, and then it slept"]
LONG = [*TEXTS, "the mat", "then a dog sat on the mat and a cat, and the cat slept on it, then"]


def save_tokenizer(folder: Path, *, bos: bool = True) -> int:
    """Save a byte-level BPE like GPT-2's; return the number of its tokens."""
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = [BOS] if bos else []
    trainer = trainers.BpeTrainer(
        vocab_size=280, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    raw.train_from_iterator(TEXTS, trainer)
    names = {"bos_token": BOS, "eos_token": BOS} if bos else {}
    PreTrainedTokenizerFast(tokenizer_object=raw, **names).save_pretrained(folder)
    return raw.get_vocab_size()


def save_gpt2(folder: Path, *, bos: bool = True) -> Path:
    folder.mkdir(exist_ok=True)
    config = GPT2Config(
        vocab_size=save_tokenizer(folder, bos=bos),
        n_positions=CONTEXT,
        n_embd=WIDTH,
        n_layer=2,
        n_head=HEADS,
        bos_token_id=0,
        eos_token_id=0,
    )
    network = GPT2LMHeadModel(config)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in network.named_parameters():
            if "ln_" not in name:
                weight.normal_(0, 0.4, generator=generator)
    network.save_pretrained(folder)
    return folder


def _norm(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * weight + bias


def log_probs(
    w: dict[str, np.ndarray], ids: np.ndarray, seen: np.ndarray | None = None
) -> np.ndarray:
    """GPT-2 (Radford et al. 2019) on one row, in float64: the distribution after each token.

    ``seen[i, j]`` says whether position i attends to position j; by default if j <= i.
    """
    n = len(ids)
    seen = np.tril(np.ones((n, n), bool)) if seen is None else seen
    x = w["wte.weight"][ids] + w["wpe.weight"][:n]
    for layer in range(2):
        p = {k.removeprefix(f"h.{layer}."): v for k, v in w.items() if k.startswith(f"h.{layer}.")}
        hidden = _norm(x, p["ln_1.weight"], p["ln_1.bias"])
        qkv = hidden @ p["attn.c_attn.weight"] + p["attn.c_attn.bias"]
        q, k, v = (
            part.reshape(n, HEADS, -1).transpose(1, 0, 2) for part in np.split(qkv, 3, axis=-1)
        )
        scores = q @ k.transpose(0, 2, 1) / np.sqrt(WIDTH / HEADS)
        scores = np.where(seen, scores, -np.inf)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        mixed = (shares @ v).transpose(1, 0, 2).reshape(n, -1)
        x = x + mixed @ p["attn.c_proj.weight"] + p["attn.c_proj.bias"]
        hidden = _norm(x, p["ln_2.weight"], p["ln_2.bias"])
        up = hidden @ p["mlp.c_fc.weight"] + p["mlp.c_fc.bias"]
        up = 0.5 * up * (1 + np.tanh(np.sqrt(2 / np.pi) * (up + 0.044715 * up**3)))
        x = x + up @ p["mlp.c_proj.weight"] + p["mlp.c_proj.bias"]
    logits = _norm(x, w["ln_f.weight"], w["ln_f.bias"]) @ w["wte.weight"].T
    best = logits.max(-1, keepdims=True)
    return logits - best - np.log(np.exp(logits - best).sum(-1, keepdims=True))


def weights(network: torch.nn.Module) -> dict[str, np.ndarray]:
    state = network.state_dict()
    return {k.removeprefix("transformer."): v.double().numpy() for k, v in state.items()}


def sample_nats(w: dict[str, np.ndarray], ids: np.ndarray) -> float:
    """-log p of the tokens after the first, each given the previous tokens of its window."""
    total, done, start = 0.0, 1, 0
    while done < len(ids):
        end = min(start + CONTEXT, len(ids))
        distribution = log_probs(w, ids[start:end])
        for place in range(done, end):
            total -= distribution[place - 1 - start, ids[place]]
        done, start = end, start + CONTEXT // 2
    return total


def by_hand(network: torch.nn.Module, samples: list[np.ndarray], *lead: int) -> np.ndarray:
    """Nats of each sample after the tokens ``lead``."""
    w = weights(network)
    return np.array([sample_nats(w, np.array([*lead, *sample])) for sample in samples])

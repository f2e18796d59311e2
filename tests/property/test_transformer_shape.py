"""The transformer: block diffusion, sizes, initial values, dropout, precision, invalid input."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from seqdiff.backbones import Transformer
from seqdiff.backbones.transformer.packing import Padded
from seqdiff.training.optim import decay_groups
from seqdiff.types import Inputs
from tests.gaps import norm_gap
from tests.small_transformers import K, build, draw_tokens

ROOT = Path(__file__).parents[2]


def test_one_block_as_long_as_the_row_is_the_ordinary_network() -> None:
    model, x_t = build(), draw_tokens(2, 6)
    torch.testing.assert_close(
        model.block_logits(Inputs(x_t), draw_tokens(2, 6, 5), 6), model(Inputs(x_t))
    )


@pytest.mark.parametrize("block_size", [1, 2, 3, 4])
def test_a_block_reads_itself_and_the_clean_blocks_before_it(block_size: int) -> None:
    """Change one token at a time: exactly the logits that may depend on it change."""
    model, length = build(), 6
    x_t, x0 = torch.full((1, length), K), draw_tokens(1, length) % K
    before = model.block_logits(Inputs(x_t), x0, block_size)
    block = torch.arange(length) // block_size
    for place in range(length):
        for noisy in (True, False):
            changed = (x_t if noisy else x0).clone()
            changed[0, place] = (changed[0, place] + 1) % K
            ours, clean = (changed, x0) if noisy else (x_t, changed)
            after = model.block_logits(Inputs(ours), clean, block_size)
            moved = (after - before).abs().amax(dim=(0, 2)) > 1e-9
            allowed = block == block[place] if noisy else block > block[place]
            assert moved.tolist() == allowed.tolist(), (place, noisy)


# Sizes and initial values


def test_number_of_parameters_by_hand() -> None:
    d, layers, c, v = 24, 3, 10, 50
    with torch.device("meta"):
        model = Transformer(d, layers, 2, num_embeddings=v, num_logits=v - 1, cond_dim=c)
    block = 12 * d * d + 5 * d + 2 * d + (c + 1) * 6 * d
    sigma, head = 257 * c + (c + 1) * c, d + (c + 1) * 2 * d + (d + 1) * (v - 1)
    assert sum(p.numel() for p in model.parameters()) == v * d + sigma + layers * block + head


def test_initial_values_are_the_published_ones() -> None:
    torch.manual_seed(0)
    model = Transformer(64, 2, 4, num_embeddings=500, num_logits=499).eval()
    assert not model(Inputs(torch.arange(10)[None])).any(), "uniform at first"
    assert model.embedding.weight.abs().max().item() == pytest.approx(64**-0.5, rel=0.01)
    x = torch.randn(1, 5, 64)
    rotary = model._rotary(torch.arange(5))
    assert torch.equal(model.blocks[0](x, torch.randn(1, 128), rotary, Padded(torch.arange(5))), x)


def test_dropout_acts_on_both_branches_in_training_only() -> None:
    model, tokens = build(dropout=0.5), draw_tokens(1, 6)
    assert torch.equal(model(Inputs(tokens)), model(Inputs(tokens)))
    for gates in (slice(24, 36), slice(60, 72)):  # gates of attention and of the MLP
        open_ones = build(dropout=0.5).train()
        for block in open_ones.blocks:
            keep = torch.zeros(72).double()
            keep[gates] = 1
            block.modulation.weight.data.mul_(0)
            block.modulation.bias.data.copy_(keep)
        assert not torch.equal(open_ones(Inputs(tokens)), open_ones(Inputs(tokens)))


def test_parameters_that_weight_decay_reaches() -> None:
    model = build(num_classes=2)
    decayed, _ = decay_groups(model)
    matrices = {n for n, p in model.named_parameters() if p.ndim == 2}
    assert set(decayed) == matrices - {"embedding.weight", "label_embedding.table.weight"}


def test_under_autocast_norms_and_the_residual_stream_stay_in_float32() -> None:
    model, tokens = build().float(), draw_tokens(2, 9)
    seen = {}
    block = model.blocks[1]
    block.norm1.register_forward_hook(lambda _m, i, o: seen.update(x=i[0].dtype, norm=o.dtype))
    block.attn_qkv.register_forward_hook(lambda _m, _i, o: seen.update(qkv=o.dtype))
    with torch.autocast("cpu", torch.bfloat16):
        low = model(Inputs(tokens))
    assert seen == {"x": torch.float32, "norm": torch.float32, "qkv": torch.bfloat16}
    assert low.dtype == torch.bfloat16
    assert norm_gap(low, model(Inputs(tokens))) < 0.05, "three times the error of rounding"


# Invalid input


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"d_model": 0}, "d_model must be an integer of at least 1, got 0"),
        ({"d_model": "8"}, "d_model must be an integer of at least 1, got '8'"),
        ({"d_model": 10}, r"d_model must be a multiple of 2 \* n_heads = 4, .*got 10; change"),
        ({"n_heads": 3}, r"d_model must be a multiple of 2 \* n_heads = 6"),
        ({"n_layer": 0}, "n_layer must be an integer of at least 1"),
        ({"n_heads": 0}, "n_heads must be an integer of at least 1"),
        ({"max_length": 0}, "max_length must be an integer of at least 1"),
        ({"cond_dim": 0}, "cond_dim must be an integer of at least 1"),
        ({"num_classes": 0}, "num_classes must be an integer of at least 1"),
        ({"num_logits": 6}, "num_logits must not exceed num_embeddings"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\), got 1.0; 0 switches"),
        ({"dropout": float("nan")}, r"dropout must be in \[0, 1\), got nan"),
    ],
)
def test_bad_arguments(options: dict[str, object], message: str) -> None:
    sizes = {"d_model": 8, "n_layer": 1, "n_heads": 2, "num_embeddings": 5, "num_logits": 4}
    with pytest.raises(ValueError, match=rf"^Transformer\.{message}"):
        Transformer(**{**sizes, **options})


def test_bad_calls() -> None:
    model, tokens = build(max_length=6), draw_tokens(1, 7)
    too_long = r"^Transformer\.tokens must be at most max_length = 6 long, got 7; cut the rows"
    with pytest.raises(ValueError, match=too_long):
        model(Inputs(tokens))
    with pytest.raises(ValueError, match=too_long):
        model.block_logits(Inputs(tokens), tokens, 2)
    with pytest.raises(ValueError, match=r"^Transformer\.block_size must be an integer of at leas"):
        model.block_logits(Inputs(tokens[:, :6]), tokens[:, :6], 0)
    with pytest.raises(ValueError, match=r"^Transformer\.label must be None .*with num_classes$"):
        model(Inputs(tokens[:, :6], label=torch.zeros(1, dtype=torch.int64)))
    timed = build(time_conditioned=True)
    with pytest.raises(ValueError, match=r"^Transformer\.sigma must be given to a time-cond"):
        timed(Inputs(tokens))
    with pytest.raises(ValueError, match=r"^Transformer\.block_logits must be called on a time-fr"):
        timed.block_logits(Inputs(tokens), tokens, 2)


# Compilation


COMPILED = """
from dataclasses import replace

import torch
from torch._dynamo.utils import counters
from seqdiff.backbones import AutoregressiveTransformer
from seqdiff.types import Inputs
from tests.small_transformers import K, build, draw_tokens

def numbers(network, model, inputs):
    model.zero_grad()
    logits = network(inputs)
    logits.square().sum().backward()
    return [logits, *(p.grad for p in model.parameters() if p.grad is not None)]

def drawn(seed):
    source = torch.Generator().manual_seed(seed)
    lengths = torch.randint(10, (5, 1), generator=source)
    sigma = torch.tensor([0.3, torch.inf, 0.1, 1, 2])
    padding = torch.arange(9).expand(5, 9) >= lengths
    return Inputs(draw_tokens(5, 9, seed), sigma=sigma, padding=padding)

def same(*pair):
    torch.testing.assert_close(*pair, atol=1e-9, rtol=1e-9)

label = torch.tensor([1, 0, -1, 0, 1])
"""
WHOLE = """
model = build(time_conditioned=True, num_classes=2)
network = torch.compile(model, backend="aot_eager", fullgraph=True)
padded = replace(drawn(0), label=label)
for inputs in (replace(padded, padding=None), padded):
    same(numbers(network, model, inputs), numbers(model, model, inputs))
causal = AutoregressiveTransformer(12, 2, 2, num_embeddings=K + 1, num_logits=K).double()
network = torch.compile(causal, backend="aot_eager", fullgraph=True)
for inputs in (replace(drawn(0), padding=None), drawn(0)):
    same(numbers(network, causal, inputs), numbers(causal, causal, inputs))
"""
BLOCKS = """
model, plain = (build(time_conditioned=True, num_classes=2) for _ in range(2))
for block in model.blocks:
    block.compile(backend="aot_eager")
graphs = []
for seed in range(9):
    inputs = replace(drawn(seed), label=label)
    same(numbers(model, model, inputs), numbers(plain, plain, inputs))
    graphs.append(counters["stats"]["unique_graphs"])
assert graphs[4] == graphs[-1] > 0, graphs
"""


@pytest.mark.slow
@pytest.mark.parametrize("program", [WHOLE, BLOCKS], ids=["whole, as one graph", "block by block"])
def test_it_compiles(program: str) -> None:
    """Forward and backward in a separate process, because dynamo cannot trace our shape checker.

    aot_eager traces like Inductor, without its minute of C++ compilation. Blocks are not traced
    again for every combination of lengths.
    """
    subprocess.run([sys.executable, "-c", COMPILED + program], check=True, cwd=ROOT)

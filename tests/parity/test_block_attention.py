"""Block diffusion's structured attention against one mask over [x_t ; x0]."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import jaxtyping
import pytest
import torch
from torch import Tensor

from seqdiff.backbones import Transformer
from seqdiff.backbones.transformer import block_diffusion
from seqdiff.backbones.transformer import network as transformer
from seqdiff.types import NO_LABEL, Inputs
from tests.small_transformers import K, build, draw_tokens

ROOT = Path(__file__).parents[2]
EXACT = 1e-10
CHUNK = 64
LENGTHS = [200, 77, 0, 64, 3]
LABEL = torch.tensor([1, 0, NO_LABEL, 1, 0])
MASK, BACKWARD = block_diffusion._mask, block_diffusion._attend_backward

Numbers = dict[str, Tensor]


def batch(length: int, padded: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    x_t, x0 = draw_tokens(5, length), draw_tokens(5, length, 2) % K
    padding = torch.arange(length) >= torch.tensor(LENGTHS).clamp_max(length)[:, None]
    return x_t, x0, padding if padded else None


def numbers(
    model: Transformer,
    way: Callable,
    block_size: int,
    length: int = 200,
    padded: bool = False,
    label: Tensor | None = None,
    backward: bool = True,
) -> Numbers:
    """The logits, and the gradients of a randomly weighted sum."""
    x_t, x0, padding = batch(length, padded)
    model.zero_grad()
    with pytest.MonkeyPatch.context() as patch, torch.set_grad_enabled(backward):
        patch.setattr(transformer, "choose_pass", lambda _pair: way)
        logits = model.block_logits(Inputs(x_t, padding=padding, label=label), x0, block_size)
    if backward:
        weights = torch.linspace(-1, 1, logits.numel(), dtype=logits.dtype)
        (logits * weights.view_as(logits)).sum().backward()
    grads = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return {"logits": logits.detach(), **grads}


def gap(ours: Numbers, theirs: Numbers) -> float:
    """The largest difference relative to a tensor's largest value."""
    assert ours.keys() == theirs.keys()
    gaps = [(ours[n] - theirs[n]).abs().max() / theirs[n].abs().max() for n in theirs]
    return float(torch.stack(gaps).max())


def both(**options: object) -> tuple[Numbers, Numbers]:
    ways = (block_diffusion.structured_pass, block_diffusion.dense_pass)
    classes = None if options.get("label") is None else 2
    ours, theirs = (numbers(build(max_length=200, num_classes=classes), w, **options) for w in ways)
    return ours, theirs


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("block_size", [1, 4, 16, 64, 70, 150, 200])
def test_values_and_gradients(block_size: int, padded: bool) -> None:
    """Blocks shorter and longer than a chunk, which divide the row or not."""
    for label in (None, LABEL):
        assert gap(*both(block_size=block_size, padded=padded, label=label)) < EXACT


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 127, 128, 129, 132])
def test_rows_that_end_near_a_chunk(length: int) -> None:
    for block_size in (1, 4, 16, 64):
        assert gap(*both(block_size=block_size, length=length, padded=True)) < EXACT


def test_in_float32() -> None:
    """The differences are rounding: both sides differ equally from float64."""
    model = build(max_length=200).float()
    ours = numbers(model, block_diffusion.structured_pass, 4)
    theirs = numbers(build(max_length=200).float(), block_diffusion.dense_pass, 4)
    assert gap(ours, theirs) < 1e-4
    assert float((ours["logits"] - theirs["logits"]).abs().max()) < 1e-4


FLEX = """
import torch
from seqdiff.backbones.transformer.block_diffusion import dense_pass, flex_pass
from tests.parity.test_block_attention import EXACT, LABEL, gap, numbers
from tests.small_transformers import build

model, options = build(max_length=200, num_classes=2), {"label": LABEL, "backward": False}
for block_size in (1, 4, 16, 70, 199):
    for padded in (False, True):
        wanted = numbers(model, dense_pass, block_size, padded=padded, **options)
        assert gap(numbers(model, flex_pass, block_size, padded=padded, **options), wanted) < EXACT
    assert gap(numbers(model, flex_pass, 2 * block_size, **options), wanted) > 1e-2
"""


@pytest.mark.slow
def test_flex_attention_uncompiled() -> None:
    """Forward only and in a separate process, because dynamo cannot trace our shape checker."""
    subprocess.run([sys.executable, "-W", "ignore", "-c", FLEX], check=True, cwd=ROOT)


@pytest.mark.parametrize("way", [block_diffusion.structured_pass, block_diffusion.dense_pass])
def test_rows_are_what_they_would_be_alone(way: Callable) -> None:
    model = build(max_length=200)
    x_t, x0, padding = batch(200, True)
    where = (torch.arange(200) % 3 == 0).expand(5, -1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transformer, "choose_pass", lambda _pair: way)
        together = model.block_logits(Inputs(x_t, padding=padding), x0, 4)
        some = model.block_logits(Inputs(x_t, padding=padding), x0, 4, where)
        assert not together[padding].any()
        torch.testing.assert_close(some, together[where], atol=EXACT, rtol=EXACT)
        for row, length in enumerate(LENGTHS):
            if length:
                alone = model.block_logits(
                    Inputs(x_t[row : row + 1, :length]), x0[row : row + 1, :length], 4
                )
                torch.testing.assert_close(together[row, :length], alone[0], atol=EXACT, rtol=EXACT)


def test_the_rule_of_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    def chosen(device: str, block_size: int) -> Callable:
        tokens = torch.empty((1, 8), dtype=torch.int64, device=device)
        return block_diffusion.choose_pass(block_diffusion.Pair(tokens, tokens, block_size, None))

    assert chosen("cpu", 7) is block_diffusion.structured_pass
    assert chosen("meta", 7) is block_diffusion.dense_pass
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert chosen("cpu", 7) is block_diffusion.dense_pass
    assert {chosen(device, 8) for device in ("cpu", "meta")} == {block_diffusion.plain_pass}


# Skipped work


def positions_seen(model: Transformer, block_size: int, padded: bool) -> list[list[int]]:
    """Count the noisy and clean positions that pass through each block's MLP."""
    seen: list[list[int]] = []
    for block in model.blocks:
        seen.append(passed := [])
        block.mlp.register_forward_hook(
            lambda _m, i, _o, passed=passed: passed.append(i[0].numel() // i[0].shape[-1])
        )
    numbers(model, block_diffusion.structured_pass, block_size, padded=padded)
    return [sorted(passed, reverse=True) for passed in seen]


def test_neither_padding_nor_what_nobody_reads_is_worked_on() -> None:
    """The last clean blocks and the last clean layer are skipped; all of them if a
    block is a row.
    """
    sizes = lambda: build(max_length=200)  # noqa: E731
    assert positions_seen(sizes(), 4, False) == [[1000, 980], [1000, 980], [1000]]
    real, clean = sum(LENGTHS), 196 + 76 + 60
    assert positions_seen(sizes(), 4, True) == [[real, clean], [real, clean], [real]]
    assert positions_seen(sizes(), 200, False) == [[1000]] * 3


def test_scores_are_about_a_quarter_of_the_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    """L^2 and 3 L per token of a chunk, where the mask has (2 L)^2."""
    scores = 0
    right = block_diffusion._attend

    def counted(q: Tensor, k: Tensor, v: Tensor, **options: Tensor | None) -> tuple:
        nonlocal scores
        scores += q.shape[0] * q.shape[2] * k.shape[2]
        return right(q, k, v, **options)

    monkeypatch.setattr(block_diffusion, "_attend", counted)
    model = build(max_length=1024)
    length = 1024
    model.block_logits(Inputs(draw_tokens(1, length)), draw_tokens(1, length), 4)
    assert 0 < scores / len(model.blocks) <= length**2 + 3 * CHUNK * length


# Broken twins


def halves(x: Tensor) -> Tensor:
    return torch.full_like(x, 0.5)


def mask_of_twice_the_size(size: int, clean: int, block_size: int, *rest: object) -> Tensor | None:
    return MASK(size, clean, 2 * block_size, *rest)


def no_gradient_without_a_mask(
    grad: Tensor, *rest: Tensor, **options: Tensor
) -> tuple[Tensor, ...]:
    found = BACKWARD(grad, *rest, **options)
    return found if options.get("attn_mask") is not None else tuple(x * 0 for x in found)


@pytest.mark.parametrize(
    ("owner", "name", "twin"),
    [
        (Tensor, "sigmoid", halves),
        (block_diffusion, "_mask", mask_of_twice_the_size),
        (block_diffusion, "_attend_backward", no_gradient_without_a_mask),
        (block_diffusion, "clean_length", lambda length, size: (length - 1) // size * size - size),
    ],
)
def test_broken_twins_are_far_off(
    owner: object, name: str, twin: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Uniform weights, other blocks, partial gradients, and one clean block too few."""
    monkeypatch.setattr(block_diffusion, "_plan", block_diffusion._Plan.of)
    assert gap(*both(block_size=4)) < EXACT
    monkeypatch.setattr(owner, name, twin)
    assert gap(*both(block_size=4)) > 1e-2


LOW_TWINS = [
    (Tensor, "sigmoid", halves, True),
    (block_diffusion, "_mask", mask_of_twice_the_size, True),
    (block_diffusion, "_attend_backward", no_gradient_without_a_mask, False),
]


def test_under_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors are a few roundings of bfloat16; those of each broken twin are many.

    Three blocks of about eight consecutive products: their roundings add up like a random walk to
    sqrt(24) eps in the forward pass, and again in the backward pass.
    """
    model = build(max_length=200).float()
    monkeypatch.setattr(block_diffusion, "_plan", block_diffusion._Plan.of)
    wanted = numbers(model, block_diffusion.structured_pass, 4)
    eps = torch.finfo(torch.bfloat16).eps

    def errors() -> tuple[float, float]:
        """Errors of the logits and of the gradients, in norm and in multiples of eps."""
        with torch.autocast("cpu", torch.bfloat16):
            low = numbers(model, block_diffusion.structured_pass, 4)
        assert low["logits"].dtype == torch.bfloat16 and low.keys() == wanted.keys()
        off = {n: float((low[n] - wanted[n]).norm() / wanted[n].norm()) / eps for n in wanted}
        return off.pop("logits"), max(off.values())

    logits, gradients = errors()
    assert logits < 5 and gradients < 10
    for owner, name, twin, forward in LOW_TWINS:
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, twin)
            logits, gradients = errors()
        assert gradients > 30, name
        assert not forward or logits > 15, name


# Invalid input


@contextmanager
def unchecked() -> Iterator[None]:
    """Disable the shape checker, as for users."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def test_bad_calls() -> None:
    model, tokens = build(), draw_tokens(2, 8)
    other = r"^Transformer\.x0 must have the shape \(2, 8\) of x_t, got \(2, 4\); pass the row"
    with unchecked(), pytest.raises(ValueError, match=other):
        model.block_logits(Inputs(tokens), tokens[:, :4], 4)
    padding = torch.tensor([[True] + 7 * [False], 8 * [False]])
    with pytest.raises(ValueError, match=r"^Transformer\.padding must come after the last token"):
        model.block_logits(Inputs(tokens, padding=padding), tokens, 4)
    with pytest.raises(ValueError, match=r"^Transformer\.label must be None for a network without"):
        model.block_logits(Inputs(tokens, label=torch.zeros(2, dtype=torch.int64)), tokens, 4)

"""Rows of different lengths: padding changes nothing, and each row equals the row alone."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from seqdiff.backbones import AutoregressiveTransformer, Transformer
from seqdiff.backbones.transformer import packing
from seqdiff.backbones.transformer.packing import Packed, Padded
from seqdiff.types import NO_LABEL, Inputs
from tests.gaps import norm_gap
from tests.small_transformers import K, build, draw_tokens

EXACT = 1e-9  # float64; the requirement is 1e-5
LENGTHS = [5, 9, 0, 5, 1, 9, 7]
STARTS = [0, 0, 0, 3, 8, 0, 1]
SIGMA = torch.tensor([0.1, 2.0, 0.5, 1.0, 0.3, 4.0, 0.7], dtype=torch.float64)
LABEL = torch.tensor([1, 0, 1, NO_LABEL, 0, 1, 0])

packed = Packed.of

Numbers = dict[str, torch.Tensor]


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens, and the padding before and after the tokens of each row."""
    tokens, place = draw_tokens(len(LENGTHS), 9), torch.arange(9)
    start, length = torch.tensor(STARTS)[:, None], torch.tensor(LENGTHS)[:, None]
    return tokens, (place < start) | (place >= start + length)


def build_causal() -> AutoregressiveTransformer:
    torch.manual_seed(0)
    model = AutoregressiveTransformer(12, 3, 2, num_embeddings=K + 1, num_logits=K).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def both() -> list[torch.nn.Module]:
    return [build(time_conditioned=True, num_classes=2), build_causal()]


def call(model: torch.nn.Module, tokens: torch.Tensor, rows: slice, **options) -> torch.Tensor:
    if isinstance(model, Transformer):
        return model(Inputs(tokens, sigma=SIGMA[rows], label=LABEL[rows], **options))
    return model(Inputs(tokens, **options))


def numbers(model: torch.nn.Module, logits: torch.Tensor) -> Numbers:
    """The logits at real positions, and the gradients of a randomly weighted sum."""
    model.zero_grad()
    (logits * torch.linspace(-1, 1, logits.numel()).view_as(logits)).sum().backward()
    grads = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    return {"logits": logits.detach(), **grads}


def together(model: torch.nn.Module) -> Numbers:
    tokens, padding = batch()
    return numbers(model, call(model, tokens, slice(None), padding=padding)[~padding])


def alone(model: torch.nn.Module) -> Numbers:
    tokens, logits = batch()[0], []
    for i, (start, length) in enumerate(zip(STARTS, LENGTHS, strict=True)):
        if length:
            row = tokens[i : i + 1, start : start + length]
            logits.append(call(model, row, slice(i, i + 1))[0])
    return numbers(model, torch.cat(logits))


def gap(ours: Numbers, theirs: Numbers) -> float:
    """The largest difference relative to a tensor's largest value."""
    assert ours.keys() == theirs.keys()
    gaps = [(ours[n] - theirs[n]).abs().max() / theirs[n].abs().max() for n in theirs]
    return float(torch.stack(gaps).max())


@pytest.mark.parametrize("model", both(), ids=["bidirectional", "causal"])
def test_logits_and_gradients_are_those_of_each_row_alone(model: torch.nn.Module) -> None:
    assert gap(together(model), alone(model)) < EXACT


def across_rows(self: Packed, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)


def unsorted(padding: torch.Tensor, *, causal: bool = False) -> Packed:
    right = packed(padding, causal=causal)
    row, positions = (~padding).nonzero(as_tuple=True)
    return right._replace(row=row, positions=positions)


def from_zero(padding: torch.Tensor, *, causal: bool = False) -> Packed:
    right = packed(padding, causal=causal)
    return right._replace(row=torch.zeros_like(right.row))


@pytest.mark.parametrize("model", both(), ids=["bidirectional", "causal"])
@pytest.mark.parametrize(
    ("name", "broken"), [("mix", across_rows), ("of", unsorted), ("of", from_zero)]
)
def test_broken_twins_are_far_off(
    model: torch.nn.Module, name: str, broken: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that see each other, rows cut at the wrong places, tokens of the first row only."""
    monkeypatch.setattr(Packed, name, staticmethod(broken) if name == "of" else broken)
    assert gap(together(model), alone(model)) > 1e-2


@settings(max_examples=30)
@given(seed=st.integers(0, 999), share=st.sampled_from([0.2, 0.6, 1.0]), causal=st.booleans())
def test_it_is_what_masked_attention_over_padding_gives(
    seed: int, share: float, causal: bool
) -> None:
    """Padding at any place, with single positions too; at padding both give 0."""
    model = both()[causal]
    generator = torch.Generator().manual_seed(seed)
    tokens, padding = draw_tokens(7, 9, seed), torch.rand(7, 9, generator=generator) < share
    where = torch.rand(7, 9, generator=generator) < 0.5
    found = call(model, tokens, slice(None), padding=padding)
    assert not found[padding].any()
    if not causal:
        some = model(Inputs(tokens, sigma=SIGMA, padding=padding, label=LABEL), where)
        torch.testing.assert_close(some, found[where], atol=EXACT, rtol=EXACT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.compiler, "is_compiling", lambda: True)
        wanted = call(model, tokens, slice(None), padding=padding)
        if not causal:
            also = model(Inputs(tokens, sigma=SIGMA, padding=padding, label=LABEL), where)
            torch.testing.assert_close(also, found[where], atol=EXACT, rtol=EXACT)
    torch.testing.assert_close(found, wanted, atol=EXACT, rtol=EXACT)


def one_by_one(model: torch.nn.Module, where: torch.Tensor, *, picked: bool) -> Numbers:
    """Scored at some positions only, or at all positions and then selected."""
    tokens, padding = batch()
    if picked:
        return numbers(model, call(model, tokens, slice(None), padding=padding)[where])
    told = {"sigma": SIGMA, "label": LABEL} if isinstance(model, Transformer) else {}
    return numbers(model, model(Inputs(tokens, padding=padding, **told), where))


@pytest.mark.parametrize("model", both(), ids=["bidirectional", "causal"])
def test_single_positions_are_learned_from_as_all_are(
    model: torch.nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Losses and likelihoods give the same gradients with selected positions."""
    where = torch.rand(batch()[1].shape, generator=torch.Generator().manual_seed(3)) < 0.5
    wanted = one_by_one(model, where, picked=True)
    assert len(wanted) == 1 + len(list(model.parameters()))
    assert gap(one_by_one(model, where, picked=False), wanted) < EXACT

    head = model.head.forward
    monkeypatch.setattr(
        model.head, "forward", lambda *given: head(*given).detach().requires_grad_()
    )
    assert one_by_one(model, where, picked=False).keys() == {"logits"}, "the twin learns nothing"


def worked_on(model: torch.nn.Module, monkeypatch: pytest.MonkeyPatch) -> tuple[set[int], int]:
    """Positions in each product of the blocks and the head, and the scores of attention."""
    seen: set[int] = set()
    scores = 0
    tokens, padding = batch()
    right = F.scaled_dot_product_attention

    def counted(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options) -> torch.Tensor:
        nonlocal scores
        scores += q.shape[0] * q.shape[2] * k.shape[2]
        return right(q, k, v, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", counted)
    for module in (model.head.linear, *(m for b in model.blocks for m in (b.attn_qkv, b.mlp[2]))):
        module.register_forward_hook(lambda _m, i, _o: seen.add(i[0].numel() // i[0].shape[-1]))
    call(model, tokens, slice(None), padding=padding)
    return seen, scores // len(model.blocks)


@pytest.mark.parametrize("which", [0, 1], ids=["bidirectional", "causal"])
def test_no_work_is_done_on_padding(which: int, monkeypatch: pytest.MonkeyPatch) -> None:
    squares = sum(length**2 for length in LENGTHS)
    assert worked_on(both()[which], monkeypatch) == ({sum(LENGTHS)}, squares)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert worked_on(both()[which], monkeypatch) == ({7 * 9}, 7 * 9**2)


@pytest.mark.parametrize("model", both(), ids=["bidirectional", "causal"])
def test_a_batch_of_nothing_but_padding(model: torch.nn.Module) -> None:
    logits = call(model, batch()[0], slice(None), padding=torch.ones(7, 9) > 0)
    assert logits.shape == (7, 9, K) and not logits.any()
    logits.sum().backward()
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())


def test_padding_that_is_nowhere_changes_no_layout() -> None:
    tokens, none = draw_tokens(2, 9), torch.zeros(2, 9) > 0
    for padding in (None, none):
        layout = packing.lay_out(tokens, padding)
        assert isinstance(layout, Padded) and layout.mask is None and layout.padding is None
    assert torch.equal(build()(Inputs(tokens, padding=none)), build()(Inputs(tokens)))


@pytest.mark.parametrize(
    ("model", "most"), zip(both(), (0.05, 0.025), strict=True), ids=["bidirectional", "causal"]
)
def test_under_autocast(model: torch.nn.Module, most: float) -> None:
    """The bounds are three times the errors of rounding."""
    tokens, padding = batch()
    exact = call(model, tokens, slice(None), padding=padding)
    with torch.autocast("cpu", torch.bfloat16):
        low = call(model.float(), tokens, slice(None), padding=padding)
    assert low.dtype == torch.bfloat16
    assert norm_gap(low, exact) < most
    low.float().square().sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("model", both(), ids=["bidirectional", "causal"])
def test_padding_of_another_shape(model: torch.nn.Module) -> None:
    wrong = r"Transformer\.padding must have the shape \(7, 9\) of tokens, got \(1, 9\); pass one"
    with pytest.raises(ValueError, match=wrong):
        call(model, batch()[0], slice(None), padding=torch.zeros(1, 9) > 0)

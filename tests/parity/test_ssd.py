"""State-space duality: chunks against the recurrence, and a direction against transformers."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from seqdiff.backbones.mamba import MambaConfig, ScalarSSM
from seqdiff.ops.ssd import chunked, ssd
from tests.gaps import largest_gap

NAMES = ("x", "dt", "A", "B", "C", "D")
LENGTHS = [1, 2, 7, 64, 65, 150]


def case(
    length: int = 23, heads: int = 3, width: int = 4, states: int = 5, batch: int = 2
) -> list[Tensor]:
    """Arguments in float64, with step sizes from 1e-3 to 1; the first head does not decay."""
    random = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64)

    x, d_skip = normal(batch, length, heads, width), normal(heads)
    B, C = normal(batch, length, states), normal(batch, length, states)
    exponents = torch.rand(batch, length, heads, generator=random, dtype=torch.float64)
    rates = -16 * torch.arange(heads, dtype=torch.float64) / heads
    return [t.requires_grad_() for t in (x, 10 ** (-3 * exponents), rates, B, C, d_skip)]


def numbers(inputs: list[Tensor], **options: object) -> list[Tensor]:
    """Output and all gradients."""
    out = ssd(*inputs, **options)
    random = torch.Generator().manual_seed(1)
    d_out = torch.randn(out.shape, generator=random, dtype=torch.float64).to(out.dtype)
    return [out.detach(), *torch.autograd.grad(out, inputs, d_out)]


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("length", LENGTHS)
def test_chunks_equal_the_recurrence(length: int, reverse: bool) -> None:
    inputs = case(length)
    wanted = numbers(inputs, reverse=reverse, backend="reference")
    for chunk in (1, 5, 16, 64, 1000):
        got = numbers(inputs, reverse=reverse, chunk=chunk)
        for ours, theirs in zip(got, wanted, strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=1e-10)


def test_the_other_direction_is_the_flipped_row() -> None:
    inputs = [t.detach() for t in case()]
    wanted = ssd(*inputs, reverse=True)
    flipped = [t.flip(1) if t.ndim > 1 else t for t in inputs]
    assert largest_gap([ssd(*flipped, chunk=8).flip(1)], [wanted]) < 1e-10
    assert largest_gap([ssd(*inputs)], [wanted]) > 1e-2


def test_pieces_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = case(length=40, batch=3)
    wanted = numbers(inputs, chunk=8)
    for cached in (1, 3 * 8 * 3 * 4, 1 << 30):
        monkeypatch.setattr(chunked, "_CACHED", cached)
        assert largest_gap(numbers(inputs, chunk=8), wanted) < 1e-13


def test_gradients_are_those_of_finite_differences() -> None:
    inputs = case(length=7, heads=2, width=2, states=3, batch=1)
    for reverse in (False, True):
        assert torch.autograd.gradcheck(
            lambda *t, r=reverse: ssd(*t, reverse=r, chunk=3), inputs, raise_exception=True
        )


def without_carry(added: Tensor, *_: object) -> Tensor:
    """Broken twin: every chunk starts from a state of zero."""
    return torch.zeros_like(added)


def carry_without_decay(added: Tensor, sums: Tensor, *others: object) -> Tensor:
    """Broken twin: the state does not decay over a chunk."""
    return CARRY(added, torch.zeros_like(sums), *others)


def inclusive(values: Tensor, reverse: bool) -> Tensor:
    """Broken twin: the decay of a position does not include its own step."""
    return RUNNING(values, reverse) - values


CARRY, RUNNING = chunked._carry, chunked._running


@pytest.mark.parametrize(
    ("name", "twin"),
    [("_carry", without_carry), ("_carry", carry_without_decay), ("_running", inclusive)],
    ids=["no carry", "no decay", "exclusive sums"],
)
def test_broken_chunks_would_be_found(monkeypatch: pytest.MonkeyPatch, name: str, twin) -> None:
    inputs = case()
    wanted = ssd(*inputs, backend="reference")
    monkeypatch.setattr(chunked, name, twin)
    assert largest_gap([ssd(*inputs, chunk=8)], [wanted]) > 1e-3


@pytest.mark.parametrize(("scale", "tolerance"), [(1, 5e-6), (50, 1e-3)])
def test_float32_is_close_and_strong_decay_is_finite(scale: float, tolerance: float) -> None:
    inputs = case(length=500, heads=2)
    with torch.no_grad():
        inputs[1].mul_(scale)  # decays of down to exp(-400) for a step
    single = [t.detach().float().requires_grad_() for t in inputs]
    got = [t.double() for t in numbers(single)]
    assert largest_gap(got, numbers(inputs, backend="reference")) < tolerance


def test_low_precision_is_computed_in_float32() -> None:
    inputs = [t.detach() for t in case(length=130)]
    half = [t.bfloat16() for t in inputs]
    got = ssd(*half)
    assert got.dtype == torch.bfloat16
    wanted = ssd(*(t.float() for t in half), backend="reference")
    torch.testing.assert_close(got, wanted.bfloat16(), atol=1e-2, rtol=1e-2)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(ssd(*(t.float() for t in half)), ssd(*(t.float() for t in half)))
        exact = ssd(*inputs)
    assert largest_gap([exact], [ssd(*inputs)]) < 1e-12


def test_there_is_no_second_derivative() -> None:
    inputs = case()
    (slope,) = torch.autograd.grad(ssd(*inputs).square().sum(), inputs[0], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.sum().backward()
    out = ssd(*inputs, backend="reference").square().sum()
    (slope,) = torch.autograd.grad(out, inputs[0], create_graph=True)
    slope.sum().backward()


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"x": torch.zeros(2, 23, 12)}, r"^ssd\.x must have shape \(batch, length, heads, chann"),
        ({"x": torch.zeros(2, 0, 3, 4)}, r"^ssd\.x must have shape .* none of them 0, got"),
        ({"dt": torch.zeros(2, 23)}, r"^ssd\.dt must have shape \(2, 23, 3\) .*, got \(2, 23\)"),
        ({"A": torch.zeros(2)}, r"^ssd\.A must have shape \(3,\) for x of \(2, 23, 3, 4\) and 5"),
        ({"C": torch.zeros(2, 23, 6)}, r"^ssd\.C must have shape \(2, 23, 5\)"),
        ({"B": torch.zeros(2, 23, 0)}, r"^ssd\.B must have shape \(2, 23, 1\)"),
        (
            {"D": torch.zeros(3, dtype=torch.int64)},
            r"^ssd\.D must be one of float64, .*torch\.int64",
        ),
        ({"D": torch.zeros(3, device="meta")}, r"^ssd\.D must be on x's device cpu, got meta; mov"),
        ({"chunk": 0}, r"^ssd\.chunk must be at least 1, got 0; the default is 64"),
        ({"backend": "triton"}, r"^ssd\.backend must be one of auto, reference, got 'triton'"),
    ],
)
def test_wrong_arguments(changed: dict[str, object], message: str) -> None:
    arguments = {**dict(zip(NAMES, case(), strict=True)), **changed}
    with pytest.raises(ValueError, match=message) as caught:
        ssd(**arguments)
    assert "\n" not in str(caught.value)


# One direction with its projections, against an independent implementation


@pytest.mark.parametrize("length", [1, 5, 40])
@pytest.mark.parametrize("conv_bias", [True, False])
def test_a_direction_equals_that_of_transformers(length: int, conv_bias: bool) -> None:
    mamba2 = pytest.importorskip("transformers.models.mamba2.modeling_mamba2")
    configuration = pytest.importorskip("transformers.models.mamba2.configuration_mamba2")
    theirs = mamba2.Mamba2Mixer(
        configuration.Mamba2Config(
            hidden_size=12,
            num_heads=3,
            head_dim=8,
            state_size=6,
            n_groups=1,
            use_conv_bias=conv_bias,
            chunk_size=16,
            hidden_act="silu",
        ),
        layer_idx=0,
    )
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    ours = ScalarSSM(24, 8, MambaConfig(d_state=6, conv_bias=conv_bias, mixer="ssd"))
    state = {name.replace("conv1d.", "conv_"): p for name, p in theirs.state_dict().items()}
    state["conv_weight"] = state["conv_weight"][:, 0]
    outer = {name: state.pop(name) for name in ("in_proj.weight", "out_proj.weight")}
    ours.load_state_dict(state)
    h = torch.randn(2, length, 12)
    wanted = theirs.torch_forward(h) if hasattr(theirs, "torch_forward") else theirs.eval()(h)
    xz = F.linear(h, outer["in_proj.weight"])
    got = F.linear(ours(xz), outer["out_proj.weight"])
    torch.testing.assert_close(got, wanted, atol=2e-5, rtol=1e-4)
    flipped = F.linear(ours(xz.flip(1), reverse=True).flip(1), outer["out_proj.weight"])
    torch.testing.assert_close(flipped, wanted, atol=2e-5, rtol=1e-4)
    # The published order is gate, then norm; the other order is far off.
    with torch.no_grad():
        swapped = ours(torch.cat((torch.full_like(xz[..., :24], 1e3), xz[..., 24:]), -1))
        gated = F.linear(swapped * F.silu(xz[..., :24]), outer["out_proj.weight"])
    assert (gated - wanted).abs().max() > 1e-2

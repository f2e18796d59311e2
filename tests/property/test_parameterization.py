"""SUBS: normalised where masked, copied where visible, float32 or better."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from seqdiff.denoiser.discrete import Denoiser
from seqdiff.parameterization import Subs
from seqdiff.process import Absorbing
from tests.oracles import UniformBackbone


@given(
    seed=st.integers(0, 2**31),
    vocab_size=st.integers(1, 7),
    dtype=st.sampled_from([torch.bfloat16, torch.float32, torch.float64]),
)
def test_subs(seed: int, vocab_size: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = (8 * torch.randn(2, 6, vocab_size, generator=generator)).to(dtype)
    x_t = torch.randint(0, vocab_size + 1, (2, 6), generator=generator)
    log_probs = Subs().read(logits, x_t, None, Absorbing(vocab_size))
    assert log_probs.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    probs = log_probs.exp()
    torch.testing.assert_close(probs.sum(-1), torch.ones_like(probs[..., 0]))
    visible = x_t != vocab_size
    assert torch.equal(probs[visible].argmax(-1), x_t[visible])
    assert (log_probs[visible].max(-1).values == 0).all()
    expected = logits.double().log_softmax(-1)[~visible]
    torch.testing.assert_close(log_probs[~visible].double(), expected, atol=1e-5, rtol=1e-5)


def test_gradient_flows_only_through_masked_positions() -> None:
    logits = torch.randn(1, 3, 4, requires_grad=True)
    x_t = torch.tensor([[4, 2, 4]])
    Subs().read(logits, x_t, None, Absorbing(4))[0, :, 2].sum().backward()
    assert logits.grad is not None and logits.grad.isfinite().all()
    assert (logits.grad[0, 1] == 0).all() and (logits.grad[0, 0] != 0).any()


def test_mask_column_is_refused() -> None:
    with pytest.raises(ValueError, match="must emit 4 outputs for subs, got 5 from Uniform"):
        Denoiser(UniformBackbone(5), Absorbing(4))

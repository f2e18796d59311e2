"""The text variant of Caduceus: bidirectional Mamba over any vocabulary."""

from pathlib import Path

import pytest
import torch
import yaml

from seqdiff.backbones import Caduceus
from seqdiff.denoiser.discrete import Denoiser
from seqdiff.losses import continuous_terms
from seqdiff.process import Absorbing
from seqdiff.types import Batch, Inputs

CONFIG = Path(__file__).parents[2] / "configs" / "backbone" / "dimamba_small.yaml"
BYTES = 256
TEXT = "Well, Prince, so Genoa and Lucca are now just family estates of the Buonapartes."


def build() -> Caduceus:
    named = yaml.safe_load(CONFIG.read_text())
    assert named["class_path"] == "seqdiff.backbones.Caduceus"
    torch.manual_seed(0)
    small = {**named["init_args"], "d_model": 32, "n_layer": 2}
    return Caduceus(**small, num_embeddings=BYTES + 1, num_logits=BYTES)


def test_it_reads_both_sides_and_no_complement() -> None:
    model = build().double()
    assert model.config.variant == "ph" and model.config.complement is None
    tokens = torch.tensor(list(TEXT[:12].encode()))[None]
    before = model(Inputs(tokens))
    for place in (0, 5, 11):
        changed = tokens.clone()
        changed[0, place] = BYTES
        assert ((model(Inputs(changed)) - before).abs().amax(dim=(0, 2)) > 1e-12).all()
    assert before.shape == (1, 12, BYTES)


def test_it_is_time_free() -> None:
    model, tokens = build(), torch.tensor([list(TEXT.encode())])
    denoiser = Denoiser(model, Absorbing(BYTES))
    assert not denoiser.time_conditioned
    early, late = (denoiser(Inputs(tokens, torch.full((1,), t))) for t in (0.1, 0.9))
    assert torch.equal(early, late)


def test_it_learns_a_line_of_text() -> None:
    """From the uniform distribution, log 256 = 5.5 nats per byte, to below independent bytes."""
    model, process = build(), Absorbing(BYTES)
    denoiser, x0 = Denoiser(model, process), torch.tensor([list(TEXT.encode())])
    t = torch.full((1,), 0.3)
    noise = torch.rand(x0.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x_t = process.corrupt(x0, t, noise=noise)
    hidden = int((x_t == BYTES).sum())
    batch = Batch(x0, x0 >= 0, torch.zeros(1, dtype=torch.int64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(40):
        terms = continuous_terms(denoiser, batch, x_t, t, torch.ones(1))
        losses.append(0.3 * terms.sum() / hidden)
        losses[-1].backward()
        optimizer.step()
        optimizer.zero_grad()
    assert losses[0].item() == pytest.approx(5.545, abs=0.1)
    counts = x0.flatten().bincount().double()
    chances = (counts / counts.sum())[x0[x_t == BYTES]]
    assert losses[-1].item() < -chances.log().mean().item() - 0.5

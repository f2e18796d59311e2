"""In-silico mutagenesis and embeddings, against enumeration and against the strands' symmetry."""

import numpy as np
import pytest
import torch
from torch import nn

from genomics.alphabet import BASES, encode, reverse_complement
from genomics.cache import Genome
from genomics.embeddings import activations, choose_layer
from genomics.mutagenesis import mutation_effects
from genomics.variant_effects import masked_marginals
from genomics.variant_windows import allele_windows
from genomics.vcf import Variant
from seqdiff.backbones import AutoregressiveTransformer, BlockMamba, Caduceus, Transformer
from seqdiff.block_denoiser import BlockDenoiser
from seqdiff.causal import CausalDenoiser
from seqdiff.parameterization import Denoiser
from seqdiff.process import MaskedDiffusion
from seqdiff.schedules import Linear
from tests.oracles import Joint, LookupBackbone, OracleBackbone

PROCESS = MaskedDiffusion(4, Linear())
SIZES = {"num_embeddings": 5, "num_logits": 4}


def test_effects_are_ratios_of_the_joint_law() -> None:
    joint = Joint.random(4, 5, seed=4)
    ids = encode("ACGTA")
    found = mutation_effects(
        Denoiser(OracleBackbone(joint), 4), PROCESS, ids, window=5, batch_size=2
    )

    def log_prob(row: np.ndarray) -> float:
        return float(
            joint.probs[(joint.sequences == torch.from_numpy(row.astype(int))).all(1)].log()
        )

    want = np.empty((5, 4))
    for place in range(5):
        for base in range(4):
            mutant = ids.copy()
            mutant[place] = base
            want[place, base] = (log_prob(mutant) - log_prob(ids)) / 2
            mutant, wild = reverse_complement(mutant), reverse_complement(ids)
            want[place, base] += (log_prob(mutant) - log_prob(wild)) / 2
    np.testing.assert_allclose(found, want, rtol=0, atol=1e-12)
    assert np.abs(found[:, ::-1] - want).max() > 0.1, "the twin in the order TGCA"


def test_windows_of_a_longer_sequence_are_those_of_variants() -> None:
    """One by one as ``variants`` scores them, ends included; N has no effect to tell."""
    model = Denoiser(LookupBackbone(4, 5, seed=3), 4)
    letters = "ACGTTGNAACGT"
    ids, told = encode(letters), []
    found = mutation_effects(
        model, PROCESS, ids, window=5, batch_size=4, progress=lambda n: told.append(n)
    )
    genome = Genome.from_records({"c": ids})
    for place, ref in enumerate(letters):
        if ref == "N":
            assert np.isnan(found[place]).all()
            continue
        for base, alt in enumerate(BASES):
            if alt == ref:
                assert found[place, base] == 0
                continue
            pair = allele_windows(Variant(1, "c", place + 1, ".", ref, alt), genome, 5)
            assert masked_marginals(model, PROCESS, [pair])[0] == pytest.approx(
                found[place, base], abs=1e-12
            )
    assert sum(told) == 11


def test_a_sequence_without_a_known_base() -> None:
    model = Denoiser(LookupBackbone(4, 3, seed=3), 4)
    assert np.isnan(mutation_effects(model, PROCESS, encode("NNN"), window=5)).all()


def networks() -> dict[str, Denoiser]:
    torch.manual_seed(0)
    ps = {"variant": "ps", "complement": [3, 2, 1, 0, 4]}
    built = {
        "ph": Denoiser(Caduceus(8, 2, **SIZES), 4),
        "ps": Denoiser(Caduceus(8, 2, **SIZES, **ps), 4),
        "swapped": Denoiser(Caduceus(8, 3, **SIZES, **ps, swap_strands=True), 4),
        "transformer": Denoiser(Transformer(16, 2, 2, **SIZES, cond_dim=8, max_length=16), 4),
        "timed": Denoiser(
            Transformer(16, 2, 2, **SIZES, cond_dim=8, max_length=16, time_conditioned=True),
            4,
            Linear(),
        ),
        "causal": CausalDenoiser(AutoregressiveTransformer(16, 2, 2, **SIZES, max_length=16), 4),
        "mamba": Denoiser(BlockMamba(8, 2, **SIZES), 4),
    }
    for model in built.values():
        for parameter in model.eval().parameters():
            nn.init.normal_(parameter, std=0.3)
    return built


@pytest.mark.parametrize("name", list(networks()))
def test_embeddings_belong_to_bases_on_either_strand(name: str) -> None:
    """Those of the reverse complement are the same, read backwards; rows do not mix."""
    model = networks()[name]
    rows = np.stack([encode("ACGTTGNAACG"), encode("TTTGACCCATG")])
    for layer in (0, -1):
        chosen = choose_layer(model, layer)
        found = activations(model, PROCESS, rows, chosen)
        there = activations(model, PROCESS, reverse_complement(rows), chosen)
        assert found.shape[:2] == rows.shape and found.std() > 0
        np.testing.assert_allclose(found, there[:, ::-1], rtol=1e-4, atol=1e-5)
        assert np.abs(found - there).max() > 1e-2, "the twin that does not read backwards"
        alone = activations(model, PROCESS, rows[1:], chosen)
        np.testing.assert_allclose(found[1:], alone, rtol=1e-4, atol=1e-5)
    assert not any(module._forward_hooks for module in model.modules())


def test_the_layer_is_the_networks_own() -> None:
    """By hand: the mean of what the second block gives for a row and its reverse complement."""
    model = networks()["ph"]
    ids = encode("ACGTTGNAACG")[None]

    def by_hand(row: np.ndarray) -> torch.Tensor:
        x = model.backbone.embedding(torch.from_numpy(row.astype(np.int64)))
        for block in model.backbone.layers:
            x = block(x)
        return x

    with torch.no_grad():
        want = (by_hand(ids) + by_hand(reverse_complement(ids)).flip(1)) / 2
    found = activations(model, PROCESS, ids, choose_layer(model, 1))
    np.testing.assert_allclose(found, want.numpy(), rtol=1e-5, atol=1e-6)
    first = activations(model, PROCESS, ids, choose_layer(model, 0))
    assert np.abs(first - found).max() > 1e-2


def test_layers_that_cannot_be_had() -> None:
    models = networks()
    with pytest.raises(ValueError, match=r"embed.layer must be in -2\.\.1, .* Caduceus, got 2"):
        choose_layer(models["ph"], 2)
    with pytest.raises(ValueError, match="ModuleList, got LookupBackbone, which has none"):
        choose_layer(Denoiser(LookupBackbone(4, 3, seed=3), 4), -1)
    with pytest.raises(ValueError, match="got one of block diffusion"):
        choose_layer(BlockDenoiser(BlockMamba(8, 2, **SIZES), 4, 4), -1)
    with pytest.raises(ValueError, match=r"embed\.layer must give one vector a position"):
        activations(models["ph"], PROCESS, encode("ACGT")[None], nn.Identity())

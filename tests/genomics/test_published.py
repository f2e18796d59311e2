"""A published Caduceus folder as a run on DNA."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from genomics.pretrained import PublishedCaduceus
from genomics.sequence.alphabet import DNATokenizer
from seqdiff.backbones import Caduceus
from seqdiff.cli.app import main
from seqdiff.run import load
from seqdiff.types import Inputs

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "configs" / "experiment" / "genomics" / "fasta.yaml"
COMPLEMENT = (0, 1, 2, 3, 4, 5, 6, 10, 9, 8, 7, 11, 12, 13, 14, 15)
OURS = torch.tensor([3, 2, 1, 0, 4])
HUB = torch.tensor([7, 8, 9, 10, 3])


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SEQDIFF_CACHE", str(tmp_path / "cache"))
    torch.manual_seed(0)
    sizes = {"num_embeddings": 16, "num_logits": 16, "d_state": 4}
    network = Caduceus(8, 2, variant="ps", complement=COMPLEMENT, **sizes)
    with torch.no_grad():
        network.embedding.weight.normal_()
    network.to_hub(tmp_path / "hub")
    return tmp_path / "hub"


def draw() -> torch.Tensor:
    return torch.randint(5, (3, 20), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("variant", ["ph_rms", "ps_rms_fused"])
def test_its_distribution_is_the_published_one_of_the_bases(
    golden: Path, tmp_path: Path, variant: str
) -> None:
    """The golden rows contain N too, which is added to the valid ids."""
    with safe_open(golden / f"caduceus_{variant}.safetensors", "pt") as file:
        (tmp_path / "config.json").write_text(file.metadata()["config"])
        state = {k: file.get_tensor(k) for k in file.keys() if k.startswith("state/")}
        ids, wanted = file.get_tensor("input_ids"), file.get_tensor("logits")
    tensors = {name.removeprefix("state/"): value for name, value in state.items()}
    save_file(tensors, tmp_path / "model.safetensors")
    net = PublishedCaduceus(str(tmp_path), num_embeddings=5, num_logits=4)
    net.hub_ids = torch.cat((net.hub_ids, torch.tensor([11])))
    spelled = ids[..., None] == net.hub_ids
    assert spelled.any(-1).all()
    distribution = net(Inputs(spelled.int().argmax(-1))).log_softmax(-1)
    torch.testing.assert_close(
        distribution, wanted[..., 7:11].log_softmax(-1), atol=2e-4, rtol=1e-4
    )
    for twin in (wanted.log_softmax(-1)[..., 7:11], wanted[..., 6:10].log_softmax(-1)):
        assert (distribution - twin).abs().max() > 1e-2


def test_a_strand_and_its_other_one_have_one_distribution(hub: Path) -> None:
    net = PublishedCaduceus(str(hub), num_embeddings=5, num_logits=4)
    tokens = draw()
    there = net(Inputs(OURS[tokens].flip(1)))
    torch.testing.assert_close(there.flip(1)[..., OURS[:4]], net(Inputs(tokens)))
    where = tokens == 4
    torch.testing.assert_close(net(Inputs(tokens), where), net(Inputs(tokens))[where])


def test_a_run_of_it_scores_dna(hub: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    run, out = tmp_path / "run", tmp_path / "s.tsv"
    net = ["--backbone=genomics.pretrained.PublishedCaduceus", f"--backbone.checkpoint={hub}"]
    command = ["train", str(CONFIG), "--data.fasta=none.fa", *net, f"--output={run}"]
    assert main([*command, "--trainer.max_steps=0"]) == 0
    (tmp_path / "a.fa").write_text(">a\nACGTTNGCA\n")
    score = ["score", str(run), "--fasta", str(tmp_path / "a.fa"), "--out", str(out)]
    hub.rename(tmp_path / "gone")
    assert main([*score, "--estimator=fixed-order"]) == 0
    assert isinstance(load(run).denoiser.backbone, PublishedCaduceus), "without the folder"
    (tmp_path / "gone").rename(hub)
    nats = float(out.read_text().splitlines()[1].split("\t")[2])
    network = Caduceus.from_hub(hub)
    row, total = torch.from_numpy(DNATokenizer().encode("ACGTTNGCA")).long(), 0.0
    for place in range(len(row)):
        shown = row.clone()
        shown[place:] = 4
        distribution = network(Inputs(HUB[shown][None]))[0, place, 7:11].log_softmax(-1)
        total -= distribution[row[place]].item() if row[place] < 4 else 0.0
    assert nats == pytest.approx(total, rel=1e-4)


@pytest.mark.parametrize("variant", ["ph", "ps"])
def test_a_folder_of_plantcad2_scores_its_own_ids_of_the_bases(
    tmp_path: Path, variant: str
) -> None:
    torch.manual_seed(0)
    plant = {"complement": (0, 1, 2, 6, 5, 4, 3, 7), "mixer": "ssd", "d_state": 4}
    network = Caduceus(8, 2, num_embeddings=8, num_logits=8, variant=variant, **plant)
    with torch.no_grad():
        network.embedding.weight.normal_()
    network.to_hub(tmp_path)
    net = PublishedCaduceus(str(tmp_path), num_embeddings=5, num_logits=4)
    tokens = draw()
    ids = torch.tensor([3, 4, 5, 6, 1])  # [PAD] 0, [MASK] 1, [UNK] 2, then A C G T
    assert torch.equal(net(Inputs(tokens)), network(Inputs(ids[tokens]))[..., 3:7])
    again = PublishedCaduceus("gone", net.network.config, num_embeddings=5, num_logits=4)
    again.load_state_dict(net.state_dict())
    assert torch.equal(again(Inputs(tokens)), net(Inputs(tokens)))


@pytest.mark.usefixtures("unchecked")
def test_other_vocabularies_are_refused(hub: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"must be used on data of 4 tokens, A C G T, got 256"):
        PublishedCaduceus(str(hub), num_embeddings=257, num_logits=256)
    ours = Caduceus(8, 1, num_embeddings=5, num_logits=4, d_state=4)
    ours.to_hub(tmp_path / "ours")
    with pytest.raises(ValueError, match=r"must have the published tokens, .* got 5 tokens in"):
        PublishedCaduceus(str(tmp_path / "ours"), num_embeddings=5, num_logits=4)
    config = json.loads((hub / "config.json").read_text())
    assert config["complement_map"]["7"] == 10

"""Networks for fine-tuning: from a run, from a published folder, untrained; and their
identities.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from torch import Tensor

from genomics.finetune.models import Pretrained, load_models
from genomics.pretrained import PublishedCaduceus
from seqdiff.backbones import Caduceus
from seqdiff.cli.app import main
from seqdiff.types import Inputs
from tests.genomics.toy_tasks import run_config, small, write_table

CPU = torch.device("cpu")
HUB_COMPLEMENT = (0, 1, 2, 3, 4, 5, 6, 10, 9, 8, 7, 11, 12, 13, 14, 15)
TOKENS = torch.tensor([[0, 1, 2, 3, 3, 4, 0, 2]])


def written(tmp_path_factory: pytest.TempPathFactory, **backbone: object) -> Path:
    folder = tmp_path_factory.mktemp("run")
    (folder / "c.yaml").write_text(yaml.safe_dump(run_config(folder, **backbone)))
    assert main(["train", str(folder / "c.yaml")]) == 0
    return folder / "tiny"


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory)


@pytest.fixture(scope="module")
def ps_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory, variant="ps", complement=[3, 2, 1, 0, 4])


@pytest.fixture
def hub(tmp_path: Path) -> Path:
    torch.manual_seed(99)
    sizes = {"num_embeddings": 16, "num_logits": 16, "d_state": 4}
    network = Caduceus(8, 2, variant="ps", complement=HUB_COMPLEMENT, **sizes)
    network.to_hub(tmp_path / "hub")
    return tmp_path / "hub"


def load(path: Path, *, scratch: bool = False) -> list[Pretrained]:
    return load_models([path], CPU, scratch=scratch)


def states(model: Pretrained, seed: int = 0) -> Tensor:
    built = model.build(seed)
    assert isinstance(built, Caduceus | PublishedCaduceus)
    with torch.no_grad():
        return built.eval().hidden(Inputs(TOKENS))


def test_networks_of_one_shape_have_one_untrained_twin(run_folder: Path, tmp_path: Path) -> None:
    """Seeds draw the weights; another shape with as many parameters has its own untrained twin."""
    config, other = run_folder.parent / "c.yaml", tmp_path / "other"
    assert main(["train", str(config), "--seed", "1", "--output", str(tmp_path / "again")]) == 0
    flags = ["--backbone.dt_max", "0.2", "--output", str(other)]
    assert main(["train", str(config), *flags]) == 0
    runs, device = [run_folder, tmp_path / "again", other], CPU
    *trained, twin, last = load_models(runs, device, scratch=True)
    assert [model.name for model in trained] == ["tiny", "again", "other"]
    assert last.name == f"{twin.name} 2", "as large, and another row of the table"
    assert twin.weights.startswith("new ") and last.weights not in (twin.weights, "")

    def weights(model: Pretrained, seed: int) -> Tensor:
        built = model.build(seed)
        assert isinstance(built, Caduceus)
        return built.embedding.weight

    first = weights(twin, 0)
    assert torch.equal(first, weights(twin, 0)) and not torch.equal(first, weights(twin, 1))
    assert torch.equal(weights(trained[0], 0), weights(trained[0], 1)), "weights that are kept"
    assert not torch.equal(weights(trained[0], 0), weights(trained[1], 0))
    assert trained[0].weights != trained[1].weights, "one shape, other weights: other cells"
    assert len(load_models(runs, device, scratch=False)) == 3


def test_an_untrained_network_is_another_one_and_each_seed_has_its_own(run_folder: Path) -> None:
    model, twin = load(run_folder, scratch=True)
    assert (model.seeded, twin.seeded) == (False, True)
    assert torch.equal(states(model, 0), states(model, 1))
    assert torch.equal(states(twin, 7), states(twin, 7))
    found = [states(model), *(states(twin, seed) for seed in (5, 6))]
    for one in range(3):
        for other in range(one):
            assert (found[one] - found[other]).abs().max() > 1e-3


@pytest.mark.parametrize("kind", ["run", "hub"])
def test_a_run_that_changes_its_network_leaves_the_next_one_as_it_was(
    kind: str, run_folder: Path, hub: Path
) -> None:
    model, *_ = load(run_folder if kind == "run" else hub)
    before, used = states(model), model.build(0)
    assert isinstance(used, torch.nn.Module)
    with torch.no_grad():
        for parameter in used.parameters():
            parameter.add_(1.0)
    torch.testing.assert_close(states(model), before, atol=0, rtol=0)


# What determines a result


def test_options_of_the_network_are_part_of_what_a_result_follows_from(
    ps_folder: Path, tmp_path: Path
) -> None:
    """The same weights with swapped strands give other states and so other cells."""
    shutil.copytree(ps_folder, tmp_path / "tiny")
    file = tmp_path / "tiny" / "run.yaml"
    assert load(tmp_path / "tiny")[0].weights == load(ps_folder)[0].weights
    changed = file.read_text().replace("swap_strands: false", "swap_strands: true")
    assert changed != file.read_text()
    file.write_text(changed)
    assert load(tmp_path / "tiny")[0].weights != load(ps_folder)[0].weights


def test_the_configuration_of_a_published_folder_counts_too(hub: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / "hub"
    shutil.copytree(hub, other)
    assert load(other)[0].weights == load(hub)[0].weights
    config = json.loads((hub / "config.json").read_text())
    assert config["norm_epsilon"] < 0.1
    (other / "config.json").write_text(json.dumps(config | {"norm_epsilon": 0.5}))
    assert load(other)[0].weights != load(hub)[0].weights


# A published folder


def test_a_published_folder_is_its_network_in_our_ids(hub: Path) -> None:
    model, twin = load(hub, scratch=True)
    assert (model.name, model.strands, twin.strands) == ("hub", 2, 2)
    ids = torch.tensor([7, 8, 9, 10, 3])[TOKENS]
    with torch.no_grad():
        expected = Caduceus.from_hub(hub).eval().hidden(Inputs(ids))
    torch.testing.assert_close(states(model), expected)
    assert twin.name == "PublishedCaduceus from scratch"
    assert (states(twin, 0) - states(twin, 1)).abs().max() > 1e-3
    assert (states(twin, 0) - expected).abs().max() > 1e-3


@pytest.mark.parametrize("kind", ["ps", "hub"])
def test_a_network_of_two_strands_goes_through_the_command(
    kind: str, ps_folder: Path, hub: Path, tmp_path: Path
) -> None:
    path, out = ps_folder if kind == "ps" else hub, tmp_path / "out"
    task = small()
    write_table(tmp_path / "task/train.csv", task.train)
    write_table(tmp_path / "task/test.csv", task.test)
    command = ["finetune", str(path), "--data", str(tmp_path / "task"), "--out", str(out)]
    command += ["--epochs", "1", "--seeds", "1", "--batch_size", "32", "--lr", "0.01"]
    command += ["--conjoin", "train", "test", "--strategy", "full", "probe", "--baselines"]
    assert main([*command, "--device", "cpu"]) == 0
    rows = json.loads((out / "table.json").read_text())["rows"]
    assert [row["method"] for row in rows] == [f"{path.name}, full", f"{path.name}, probe"]
    keys = [json.loads(line)["key"] for line in (out / "results.jsonl").read_text().splitlines()]
    assert {key["conjoin"] for key in keys} == {"none"} and len(keys) == 2


# Errors


def test_a_run_on_other_letters_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("All happy families are alike.\n" * 40)
    config = {
        "data": {
            "class_path": "text.corpora.TextDataModule",
            "init_args": {
                "tokenizer": {"class_path": "text.tokenizers.ByteTokenizer"},
                "train": str(tmp_path / "t.txt"),
                "document": "line",
                "length": 16,
                "batch_size": 2,
            },
        },
        "backbone": {
            "class_path": "seqdiff.backbones.Caduceus",
            "init_args": {"d_model": 8, "n_layer": 1, "d_state": 2},
        },
        "trainer": {"max_steps": 0, "accelerator": "cpu", "enable_progress_bar": False},
        "output": str(tmp_path / "words"),
    }
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(config))
    assert main(["train", str(tmp_path / "c.yaml")]) == 0
    with pytest.raises(ValueError, match=r"must be networks of DNA, got .*words, whose tokenizer"):
        load(tmp_path / "words")


def test_a_folder_that_is_no_network_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"run\.yaml"):
        load(tmp_path)

"""A synthetic family: an alignment of 12 columns in which column 6 + i repeats column i."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

import seqdiff
from seqdiff.run import Run

COLUMNS, PAIRS = 12, 6
REPEATED = 0.9


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


def draw_family(num: int, seed: int) -> list[str]:
    """Draw rows: a column is A, C, D or a gap, and its partner repeats it in 9 of 10 rows."""
    random = np.random.default_rng(seed)
    first = random.choice(4, (num, PAIRS), p=[0.4, 0.3, 0.2, 0.1])
    other = random.choice(4, (num, PAIRS), p=[0.4, 0.3, 0.2, 0.1])
    partner = np.where(random.random((num, PAIRS)) < REPEATED, first, other)
    return ["".join("ACD-"[i] for i in row) for row in np.concatenate([first, partner], axis=1)]


@pytest.fixture(scope="session")
def family(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("family") / "family.tsv"
    rows = draw_family(1200, seed=0)
    splits = ["train"] * 1000 + ["valid"] * 100 + ["test"] * 100
    lines = [f"p{i}\t{row}\t{s}" for i, (row, s) in enumerate(zip(rows, splits, strict=True))]
    path.write_text("\n".join(["name\tsequence\tsplit", *lines, ""]))
    return path


def write_config(folder: Path, path: Path, kind: str = "AlignedProteins", **more: object) -> Path:
    """Write a configuration of a small run."""
    config = {
        "output": str(folder / "run"),
        "data": {
            "class_path": f"seqdiff_proteins.{kind}",
            "init_args": {"path": str(path), "length": COLUMNS, "batch_size": 64},
        },
        "backbone": {
            "class_path": "seqdiff_proteins.SiteNetwork",
            "init_args": {"length": COLUMNS, "width": 64, "layers": 1, "dropout": 0.0},
        },
        "optim": {"lr": 5e-3, "muon_lr": 0.02, "warmup_steps": 10, "schedule": "cosine"},
        "objective": {
            "class_path": "seqdiff.objectives.ContinuousNELBO",
            "init_args": {"time_sampler": {"class_path": "seqdiff.objectives.Sobol"}},
        },
        "ema_decay": 0.95,
        "trainer": {"max_steps": 300, "val_check_interval": 300, "enable_progress_bar": False},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump({**config, **more}))
    return folder / "config.yaml"


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory, family: Path) -> Run:
    """A run on the family; tests only read it."""
    return seqdiff.train(write_config(tmp_path_factory.mktemp("aligned"), family))


@pytest.fixture(scope="session")
def proteins() -> Path:
    """The folder with real proteins."""
    value = os.environ.get("SEQDIFF_DATA")
    if value is None:
        pytest.skip("SEQDIFF_DATA is not set")
    return Path(value) / "proteins"

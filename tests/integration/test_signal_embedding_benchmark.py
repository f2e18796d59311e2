"""Test the benchmark of embeddings of measured values on a small table."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

from benchmarks import signal_embedding
from genomics.sequence import decode


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write 60 rows of 20 bases."""
    generator = np.random.default_rng(0)
    lines = ["sequence\tvalue"]
    for row in generator.integers(0, 4, (60, 20)).astype(np.uint8):
        lines.append(f"{decode(row)}\t{generator.normal():.4f}")
    path = tmp_path_factory.mktemp("table") / "rows.tsv"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.slow
def test_each_embedding_has_its_layers(table: Path, tmp_path: Path, capsys) -> None:
    """The three runs have networks of their own, and the table shows a gap for two of them."""
    work = tmp_path / "work"
    arguments = [str(table), "--signal", "value", "--work", str(work), "--steps", "2"]
    signal_embedding.main([*arguments, "--pairs", "2", "--json", str(tmp_path / "out.json")])
    shown = capsys.readouterr().out
    assert shown.count("±") == 2
    shapes = {}
    for name in ("fourier-features-and-mlp", "mlp", "fourier-features"):
        weights = load_file(work / f"{name}-1" / "model.safetensors")
        shapes[name] = {
            key.rpartition("signal_map.")[2]: tuple(value.shape)
            for key, value in weights.items()
            if "signal_map." in key and key.endswith("weight")
        }
    assert shapes["fourier-features-and-mlp"] == {"hidden.weight": (64, 12), "out.weight": (64, 64)}
    assert shapes["mlp"] == {"hidden.weight": (64, 2), "out.weight": (64, 64)}
    assert shapes["fourier-features"] == {"hidden.weight": (64, 12)}


def test_one_seed_has_no_error(table: Path, tmp_path: Path, capsys) -> None:
    """An error over seeds needs two."""
    with pytest.raises(SystemExit) as stopped:
        signal_embedding.main([str(table), *"--signal value --pairs 1 --work".split(), "w"])
    assert stopped.value.code == 2
    assert "pairs must be at least 2" in capsys.readouterr().err

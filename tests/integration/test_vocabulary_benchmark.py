"""The benchmark of large vocabularies at small size."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import vocabulary
from seqdiff.denoiser.discrete import Denoiser

ROOT = Path(__file__).parents[2]
SMALL = ["--pairs", "2", "--shape", "8x1x2x24", "--vocabulary", "9", "--batch", "3"]


def test_runs_and_records(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(vocabulary, "in_fresh_process", lambda module, side, *rest: len(side) << 20)
    path = tmp_path / "figures.json"
    vocabulary.main([*SMALL, "--json", str(path)])
    assert "vocabulary 9, 3 rows" in capsys.readouterr().out
    counted, everywhere = json.loads(path.read_text())["results"]
    assert (counted["side"], everywhere["side"]) == ("counted", "everywhere")
    assert 0 < counted["scored_positions"] < everywhere["scored_positions"] == 3 * 24
    assert counted["times_the_first_side"] == 1 and len(everywhere["of_each_pair"]) == 2
    assert (counted["peak_bytes"], everywhere["peak_bytes"]) == (7 << 20, 10 << 20)


def test_the_cost_of_the_neighbour_is_refused(monkeypatch) -> None:
    real = Denoiser.nats

    def nats(self, inputs, x0, where):
        return real(self, inputs, x0.roll(1, dims=1), where)

    monkeypatch.setattr(Denoiser, "nats", nats)
    with pytest.raises(SystemExit, match=r"counted and everywhere.* nothing was timed"):
        vocabulary.main(SMALL)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells")
@pytest.mark.slow
def test_memory_is_that_of_a_process_of_its_own() -> None:
    """Scores, distributions and copies of 64 positions with 60,000 symbols are 15 MB each."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.vocabulary",
        "everywhere",
        "4x1x1x64",
        "60000",
        "1",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(done.stdout) > 3 * (64 * 60_000 * 4)

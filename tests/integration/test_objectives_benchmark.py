"""The comparison of systems: its step weights, against enumeration of all masks."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from benchmarks.objectives import excess_of_steps, step_weight, tables


@pytest.mark.parametrize("num_steps", [1, 2, 5, 40])
def test_weights_of_steps_are_those_of_the_chain(num_steps: int) -> None:
    """Step i masks every token with probability i/T at its noisier end and reveals it with 1/i."""
    n = 4
    masks = np.array(list(itertools.product([0, 1], repeat=n)))
    cost = np.random.default_rng(0).random(len(masks)) * masks.any(axis=1)
    k = masks.sum(axis=1)
    wanted = 0.0
    for i in range(1, num_steps + 1):
        chance = (i / num_steps) ** k * (1 - i / num_steps) ** (n - k)
        wanted += float(chance @ cost) / i
    counts = np.arange(1, n + 1)
    means = np.array([cost[k == count].mean() for count in counts])
    found = step_weight(counts, np.full(n, n), num_steps)
    assert found @ means == pytest.approx(wanted, rel=1e-12)


def test_weights_of_many_steps_tend_to_those_of_the_bound() -> None:
    k = np.arange(1, 9)
    limit = step_weight(k, np.full(8, 8), 20_000)
    assert np.allclose(limit, 1 / k, rtol=1e-3)


def test_excess_of_steps() -> None:
    """Zero for independent tokens; one step draws all tokens at once from the blank row."""
    independent = [np.arange(1, n + 1) * 0.7 for n in (3, 5, 5)]
    assert excess_of_steps(independent, 4) == pytest.approx((0, 0), abs=1e-12)
    rng = np.random.default_rng(0)
    rows = [rng.random(n) for n in (3, 5, 4)]
    wanted = [row[-1] - (row / np.arange(1, len(row) + 1)).sum() for row in rows]
    found, error = excess_of_steps(rows, 1)
    assert found == pytest.approx(sum(wanted) / 12 / np.log(2), rel=1e-12) and error > 0


def test_the_page_shows_the_tables_of_the_results() -> None:
    docs = Path(__file__).parents[2] / "docs"
    page = (docs / "benchmarks" / "models.md").read_text().splitlines()
    lines = "\n\n".join(tables()).splitlines()
    assert len(lines) > 100 and [line for line in lines if line not in page] == []

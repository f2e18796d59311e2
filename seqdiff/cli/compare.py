"""``seqdiff compare``."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import Annotated, Literal

from seqdiff.checks import check_seed
from seqdiff.cli.options import FlatOptions
from seqdiff.files import check_apart, check_parent, replacing, write_bytes
from seqdiff.run import EstimatorOptions, choose_estimator

_DEFAULTS = EstimatorOptions()
_FORMATS = (".pdf", ".png", ".svg")


def compare(
    run: Path,
    /,
    *others: Path,
    split: Literal["train", "valid", "test"] = "test",
    estimation: Annotated[EstimatorOptions, FlatOptions] = _DEFAULTS,
    seed: int = 0,
    json: Path | None = None,
    plot: Path | None = None,
    device: str | None = None,
) -> None:
    """Compare the likelihoods of the same sequences under several runs.

    Differences to the first run are taken sequence by sequence, with the same noise, so that their
    standard errors are smaller than those of the runs.

    Args:
        run: Run directory, or name of a packaged model, whose data all runs are compared on.
        others: Other runs of the same tokenizer.
        split: Split of the first run's data.
        estimation: How the likelihood is estimated.
        seed: Seed of the draws.
        json: Also write the numbers to this file.
        plot: Draw the differences with their 95% intervals: .png, .svg or .pdf.
        device: cpu, cuda, ...; default: cuda if there is one, else cpu.

    Raises:
        ValueError: If an option or a run cannot be used.
    """
    check_seed("compare.seed", seed)
    if not others:
        raise ValueError(f"compare.runs must be at least two, got {run} alone; name another run")
    if plot is not None:
        if plot.suffix not in _FORMATS:
            raise ValueError(
                f"compare.plot must end in one of {', '.join(_FORMATS)}, got {plot}; rename it"
            )
        check_parent("compare.plot", plot)
        check_apart("compare.plot", plot, {"--json": json})
    if json is not None:
        check_parent("compare.json", json)
    choose_estimator("compare", estimation)
    from rich.console import Console

    from seqdiff.run import choose_device, compare_runs, load

    place = choose_device(device)
    runs = [load(directory, device=place) for directory in (run, *others)]
    comparison = compare_runs(runs, split, options=estimation, seed=seed)
    Console().print(comparison.table)
    print("\n".join(comparison.verdicts))
    if plot is not None:
        from seqdiff.plots import draw_differences, write_figure

        names = [found.name for found in comparison.runs[1:]]
        gaps = [found.difference for found in comparison.runs[1:]]
        widths = [comparison.width * found.difference_error for found in comparison.runs[1:]]
        label = f"bits/{comparison.unit} minus {run}, with 95% interval"
        with replacing(plot) as temporary:
            write_figure(temporary, draw_differences(names, gaps, widths, label))
    if json is not None:
        write_bytes(json, (json_format.dumps(comparison.content(), indent=2) + "\n").encode())

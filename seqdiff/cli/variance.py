"""``seqdiff variance``."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import Literal

from seqdiff.checks import check_count
from seqdiff.files import check_apart, check_parent, replacing, write_bytes

_FORMATS = (".pdf", ".png", ".svg")


def variance(
    run: Path,
    /,
    *,
    split: Literal["train", "valid", "test"] = "valid",
    batches: int = 64,
    gradient: bool = False,
    out: Path | None = None,
    json: Path | None = None,
    device: str | None = None,
) -> None:
    """Compare intervals of mask fractions by the variance of block diffusion's training loss.

    Args:
        run: Run directory, or name of a packaged model, of block diffusion.
        split: Split whose batches are read.
        batches: Number of training batches, 36 network passes each.
        gradient: Measure the variance of the gradient instead of the loss.
        out: Draw a heat map: .png, .svg or .pdf.
        json: Also write the numbers to this file.
        device: cpu, cuda, ...; default: cuda if there is one, else cpu.

    Raises:
        ValueError: If an option or the run cannot be used.
    """
    check_count("variance.batches", batches, 2)
    if out is not None:
        if out.suffix not in _FORMATS:
            raise ValueError(
                f"variance.out must end in one of {', '.join(_FORMATS)}, got {out}; rename it"
            )
        check_parent("variance.out", out)
        check_apart("variance.out", out, {"--json": json})
    if json is not None:
        check_parent("variance.json", json)
    from rich.console import Console

    from seqdiff.run import build_grid, choose_device, load, measure_variance

    trained = load(run, device=choose_device(device))
    report = measure_variance(trained, split, batches=batches, gradient=gradient)
    Console().print(build_grid(report, f"{run}, {split} split"))
    if out is not None:
        from seqdiff.plots import draw_variances, write_figure

        with replacing(out) as temporary:
            picture = draw_variances(report.found, report.title, report.unit, report.in_use)
            write_figure(temporary, picture)
    if json is not None:
        content = {"run": str(run), "split": split, **report.content()}
        write_bytes(json, (json_format.dumps(content, indent=2) + "\n").encode())

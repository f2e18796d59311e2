"""``seqdiff export``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from seqdiff.cells import say
from seqdiff.cli.extensions import command_line

_LICENSE = re.compile(r"[a-z0-9][a-z0-9.+-]*")


def export(
    run: Path,
    directory: Path,
    /,
    *,
    to: Literal["hub"] = "hub",
    split: Literal["train", "valid", "test", "none"] = "test",
    license: str = "unknown",
    device: str | None = None,
) -> None:
    """Write a folder for the hub: weights, configuration, tokenizer and a model card.

    A run on a network of transformers is written in the format of transformers, any other run as a
    run directory without logs. Adapters are merged. Every command takes the folder in place of a
    run.

    Args:
        run: Run directory, name of a packaged model, or hub folder.
        directory: New folder to write.
        to: hub: a folder to upload to the Hugging Face hub.
        split: Split whose likelihood the model card states; none leaves it out.
        license: Identifier of the license of the weights on the hub, such as mit or cc-by-4.0, for
            the model card.
        device: cpu, cuda, ...; default: cuda if there is one, else cpu.

    Raises:
        ValueError: If the run cannot be written in this format.
    """
    if not _LICENSE.fullmatch(license):
        raise ValueError(
            f"export.license must be an identifier such as mit or cc-by-4.0, got {license!r}; see "
            "https://huggingface.co/docs/hub/repositories-licenses"
        )
    from seqdiff.run import choose_device, export_hub, load

    trained = load(run, device=choose_device(device))
    export_hub(trained, directory, split=None if split == "none" else split, license=license)
    said = [f"{directory}: written", f"next: {command_line('sample', directory)}"]
    if license == "unknown":
        said.insert(1, "the license in README.md is unknown: set it there, or by --license")
    say("; ".join(said))

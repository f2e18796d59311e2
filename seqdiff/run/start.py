"""Starting a run with the weights of another one."""

from __future__ import annotations

from pathlib import Path

from seqdiff.data import Tokenizer
from seqdiff.denoiser import Denoiser
from seqdiff.run.config import parse_run
from seqdiff.training import (
    MODEL,
    WEIGHTS_NAME,
    check_prediction,
    check_weights,
    read_purpose,
    read_weights,
)

CONFIG_NAME = "run.yaml"


def start_weights(directory: Path, denoiser: Denoiser, tokenizer: Tokenizer) -> None:
    """Fill a new network with what another run exported, all of it.

    Args:
        directory: The other run; it is not needed afterwards.
        denoiser: The new network.
        tokenizer: The new run's.

    Raises:
        FileNotFoundError: If there is no run directory, or nothing has been saved in it.
        ValueError: If it is a published network, was trained on other tokens, its outputs mean
            something else, or it does not fit, by the first name.
    """
    path = directory / CONFIG_NAME
    if not path.is_file():
        if (directory / "config.json").is_file():
            raise ValueError(
                f"RunConfig.start_from must be a run directory, got the hub folder {directory}; "
                "make it a run first: --backbone seqdiff.backbones.PublishedTransformer "
                f"--backbone.checkpoint {directory} --trainer.max_steps 0"
            )
        raise FileNotFoundError(
            f"RunConfig.start_from must be a run directory, got {directory} without {CONFIG_NAME}; "
            "check the path"
        )
    saved = (parse_run(path)["provenance"] or {}).get("tokenizer")
    if saved != tokenizer.fingerprint:
        raise ValueError(
            f"RunConfig.start_from must be of the tokenizer {tokenizer.fingerprint}, got {saved} "
            f"in {directory}; use the data.tokenizer of that run"
        )
    weights = read_weights(directory / WEIGHTS_NAME)
    owner = f"RunConfig.start_from {directory}"
    check_prediction(owner, denoiser, read_purpose(directory / WEIGHTS_NAME).get(MODEL))
    fix = "give both runs the same backbone, and as many outputs and time inputs"
    check_weights(owner, denoiser.state_dict(), weights, to_fit="the backbone", fix=fix)
    denoiser.load_state_dict(weights)

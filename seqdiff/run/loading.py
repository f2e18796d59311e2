"""Loading of weights: of runs, of published networks, and of those that a run starts from."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path

import torch

from seqdiff.backbones import (
    CONFIG_FILE,
    Backbone,
    HubBackbone,
    HubNetwork,
    published_weights,
    read_json,
)
from seqdiff.data import HubTokenizer, NoData, SequenceDataModule, Tokenizer
from seqdiff.denoiser import Denoiser
from seqdiff.process import Absorbing
from seqdiff.run.config import RunConfig, parse_run
from seqdiff.run.directory import CONFIG_NAME, Trained, compose, open_config
from seqdiff.run.packaged import find_run
from seqdiff.training import (
    MODEL,
    WEIGHTS_NAME,
    check_prediction,
    check_weights,
    load_weights,
    read_purpose,
    read_weights,
    weights_digest,
    without_experts,
)


def load_trained(directory: Path | str, *, device: torch.device | str = "cpu") -> Trained:
    """Load a run directory. Nothing is unpickled.

    Raises:
        FileNotFoundError: If it is no run directory, or nothing has been saved yet.
        ValueError: If the tokenizer or the weights do not fit the configuration, or those below its
            adapter are not there any more.
    """
    directory = Path(directory)
    parsed, config = open_config(directory)
    written = (parsed["provenance"] or {}).get("base")

    def start(denoiser: Denoiser) -> None:
        load_base(config, denoiser)
        if weights_digest(published_weights(denoiser.state_dict())) != written:
            raise ValueError(
                f"{directory} must have the weights below its adapter that it was trained with "
                f"({written}), got others in {base_of(config)}; restore that folder"
            )

    denoiser = compose(config, None if config.adapter is None else start)
    load_weights(directory / WEIGHTS_NAME, denoiser, config.data.tokenizer.fingerprint)
    digest = weights_digest(denoiser.state_dict())
    return Trained(directory, config, denoiser.eval().to(device), digest)


def base_of(config: RunConfig) -> str:
    """Name the folder with the weights that a run starts from; empty if there is none."""
    if config.start_from is not None:
        return str(config.start_from)
    return config.backbone.checkpoint if isinstance(config.backbone, HubNetwork) else ""


def load_base(config: RunConfig, denoiser: Denoiser) -> None:
    """Load the weights that a run starts from into a new model.

    Raises:
        FileNotFoundError: If they are not there.
        ValueError: See ``start_weights``.
    """
    if config.start_from is not None:
        start_weights(config.start_from, denoiser, config.data.tokenizer)
    elif isinstance(denoiser.backbone, HubNetwork):
        denoiser.backbone.reload()


def load_hub(directory: Path, *, device: torch.device | str = "cpu") -> Trained:
    """Load a published network with its tokenizer.

    Args:
        directory: A folder with ``config.json`` and ``model.safetensors``.
        device: Device of the network.

    Raises:
        ValueError: If no installed domain registers such networks, and it is not a masked language
            model of transformers.
    """
    kind = str(read_json(directory / CONFIG_FILE).get("model_type"))
    known = {entry.name: entry for entry in entry_points(group="seqdiff.hubs")}
    opened = known[kind].load()(directory) if kind in known else _open_masked_lm(directory)
    data, backbone, block_size = opened
    process = Absorbing(data.tokenizer.vocab_size)
    config = RunConfig(directory, data, backbone, process, block_size=block_size)
    denoiser = compose(config)
    digest = weights_digest(denoiser.state_dict())
    return Trained(directory, config, denoiser.eval().to(device), digest)


def _open_masked_lm(directory: Path) -> tuple[SequenceDataModule, Backbone, None]:
    """Open a masked language model of transformers."""
    backbone = HubBackbone.from_hub(directory)
    data = NoData(HubTokenizer(str(directory)), token_name="token", file_suffix="txt")
    data.context_length = backbone.max_length
    return data, backbone.eval(), None


def start_weights(directory: Path, denoiser: Denoiser, tokenizer: Tokenizer) -> None:
    """Load the weights that another run exported into a new model.

    Args:
        directory: The other run, the name of a packaged model, or a hub folder; it is not needed
            afterwards.
        denoiser: The new model.
        tokenizer: Tokenizer of the new run.

    Raises:
        FileNotFoundError: If there is no run directory, or nothing has been saved in it.
        ValueError: If it has another tokenizer, its outputs have another meaning, or its weights do
            not fit (names the first).
    """
    directory = find_run(directory)
    path = directory / CONFIG_NAME
    if not path.is_file():
        if not (directory / CONFIG_FILE).is_file():
            raise FileNotFoundError(
                f"RunConfig.start_from must be a run directory or a hub folder, got {directory} "
                f"without {CONFIG_NAME} and {CONFIG_FILE}; check the path"
            )
        published = load_hub(directory)
        saved, weights = published.tokenizer.fingerprint, published.denoiser.state_dict()
        description = published.denoiser.description
    else:
        saved = (parse_run(path)["provenance"] or {}).get("tokenizer")
        weights = read_weights(directory / WEIGHTS_NAME)
        description = read_purpose(directory / WEIGHTS_NAME).get(MODEL)
    if saved != tokenizer.fingerprint:
        raise ValueError(
            f"RunConfig.start_from must be of the tokenizer {tokenizer.fingerprint}, got {saved} "
            f"in {directory}; use the data.tokenizer of that run"
        )
    owner = f"RunConfig.start_from {directory}"
    check_prediction(owner, denoiser, description)
    fix = "give both runs the same backbone, and as many outputs and time inputs"
    # Experts are those of the new training split.
    weights = without_experts(weights, denoiser)
    check_weights(owner, denoiser.state_dict(), weights, to_fit="the backbone", fix=fix)
    denoiser.load_state_dict(weights)

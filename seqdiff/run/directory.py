"""The run directory and what it holds.

``run.yaml``: the resolved configuration with its provenance; ``model.safetensors``: the weights to
use; ``last.ckpt``: what resuming needs; ``metrics.csv`` and ``tensorboard/``: logs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Int64
from torch import Tensor

from seqdiff.data import SequenceDataModule, Tokenizer
from seqdiff.denoiser import Denoiser, GaussianDenoiser
from seqdiff.process import Absorbing, Blockwise, Gaussian, Process
from seqdiff.run.config import ParsedRun, RunConfig, instantiate, parse_run
from seqdiff.samplers import row_seeds
from seqdiff.training import WEIGHTS_NAME, load_weights, weights_digest

CONFIG_NAME = "run.yaml"


@dataclass(frozen=True)
class Trained:
    """A model with the configuration of its run.

    Attributes:
        directory: Where it lies.
        config: What it was made of.
        denoiser: The network with the exported weights, in eval mode.
        digest: Of the exported weights; what wraps the network does not change it.
    """

    directory: Path
    config: RunConfig
    denoiser: Denoiser
    digest: str

    @property
    def process(self) -> Process:
        """The forward process."""
        return self.denoiser.process

    @property
    def tokenizer(self) -> Tokenizer:
        """The run's tokenizer."""
        return self.config.data.tokenizer

    @property
    def datamodule(self) -> SequenceDataModule:
        """The run's data; no file is opened before a split is."""
        return self.config.data

    def row_seeds(self, num: int, seed: int) -> Int64[Tensor, " {num}"]:
        """Give the seeds of the sequences that a command draws from this run.

        They follow from the seed, the weights and the tokenizer. With the seed alone the sequences
        of two similar models would have the same noise and be near-copies of each other, which
        makes a comparison look more certain than it is. Wherever a copy of the run lies, it has the
        same seeds; the first seeds of more sequences are those of fewer.

        Args:
            num: Sequences.
            seed: Not negative.
        """
        key = f"{seed} {self.digest} {self.tokenizer.fingerprint}"
        mixed = int.from_bytes(hashlib.sha256(key.encode()).digest()[:4])
        return row_seeds(num, torch.Generator().manual_seed(mixed))

    @property
    def max_length(self) -> int | None:
        """Most tokens of a row that the network can take; ``None`` without a bound."""
        return self.denoiser.backbone.max_length


def load_trained(directory: Path | str, *, device: torch.device | str = "cpu") -> Trained:
    """Load a run directory. Nothing is unpickled.

    Args:
        directory: A run directory.
        device: Where the network goes.

    Raises:
        FileNotFoundError: If it is no run directory, or nothing has been saved yet.
        ValueError: If the tokenizer or the weights do not fit the configuration.
    """
    directory = Path(directory)
    _, config = open_config(directory)
    denoiser = compose(config)
    load_weights(directory / WEIGHTS_NAME, denoiser, config.data.tokenizer.fingerprint)
    digest = weights_digest(denoiser.state_dict())
    return Trained(directory, config, denoiser.eval().to(device), digest)


def choose_device(name: str | None) -> torch.device:
    """Turn the name of a device into the device.

    Args:
        name: As torch spells it; ``None`` takes a GPU if there is one.

    Raises:
        ValueError: If there is no such device.
    """
    wanted = ("cuda" if torch.cuda.is_available() else "cpu") if name is None else name
    try:
        device = torch.device(wanted)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
    else:
        if device.type != "meta" and (device.type != "cpu" or not device.index):
            return device
        reason = "it holds no numbers" if device.type == "meta" else "there is one cpu"
    raise ValueError(f"--device must be usable, got {wanted!r}: {reason}; try cpu")


def open_config(directory: Path, flags: Sequence[str] = ()) -> tuple[ParsedRun, RunConfig]:
    """Parse and build run.yaml, and check that the tokenizer is still the one it was.

    Raises:
        FileNotFoundError: If the directory has no run.yaml.
        ValueError: If the tokenizer is another one.
    """
    path = directory / CONFIG_NAME
    if not path.is_file():
        raise FileNotFoundError(
            f"a run directory must hold {CONFIG_NAME}, got none in {directory}; check the path"
        )
    parsed = parse_run(path, flags)
    config = instantiate(parsed)
    saved = (parsed["provenance"] or {}).get("tokenizer")
    if saved != config.data.tokenizer.fingerprint:
        raise ValueError(
            f"{path} must describe the tokenizer it was trained with ({saved}), got "
            f"{config.data.tokenizer.fingerprint}; restore the data.tokenizer of the run"
        )
    return parsed, config


def compose(config: RunConfig) -> Denoiser:
    """Build the denoiser of a configuration, and check that its parts fit together.

    Raises:
        ValueError: If they do not.
    """
    process = config.process
    if config.block_size is not None:
        if not isinstance(process, Absorbing):
            raise ValueError(
                f"RunConfig.block_size must be null with the process {process.name}, got "
                f"{config.block_size}; leave block_size out, or choose the absorbing process"
            )
        process = Blockwise(process, config.block_size)
    if isinstance(process, Gaussian):
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(config.seed + 2**32)  # apart from the backbone's
            denoiser = GaussianDenoiser(config.backbone, process, config.parameterization)
    else:
        denoiser = Denoiser(config.backbone, process, config.parameterization)
    config.objective.check(denoiser)
    return denoiser

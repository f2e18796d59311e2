"""The run directory and its model.

``run.yaml`` is the resolved configuration with its provenance, ``model.safetensors`` the exported
weights, ``last.ckpt`` the checkpoint to resume from; ``metrics.csv`` and ``tensorboard/`` are logs,
and ``loggers.json`` has the names that services gave to the run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Int64
from torch import Tensor

from seqdiff.backbones import add_adapter
from seqdiff.data import SequenceDataModule, SequenceDataset, Split, Tokenizer
from seqdiff.denoiser import ByContextDenoiser, BySymbolDenoiser, Denoiser, GaussianDenoiser
from seqdiff.experts import NGramExperts
from seqdiff.process import (
    Absorbing,
    AbsorbingByContext,
    AbsorbingBySymbol,
    Blockwise,
    Gaussian,
    Process,
)
from seqdiff.run.config import ParsedRun, RunConfig, instantiate, parse_run
from seqdiff.run.packaged import CONFIG_NAME, no_run, packaged_name
from seqdiff.samplers import row_seeds

TOKENIZER_NAME = "tokenizer"  # folder of an exported run with the files of its tokenizer


@dataclass(frozen=True)
class Trained:
    """A model with the configuration of its run.

    Attributes:
        directory: The run directory.
        config: The configuration.
        denoiser: The model with the exported weights, in eval mode.
        digest: Hash of the exported weights; wrapping the network does not change it.
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
        """The run's data; files are opened when a split is read."""
        return self.config.data

    def dataset(self, split: Split) -> SequenceDataset:
        """Open a split of the run's data.

        Raises:
            FileNotFoundError: If the files are not there; packaged models come without.
            ValueError: If there is no such split, or it holds nothing.
        """
        try:
            return self.datamodule.dataset(split)
        except FileNotFoundError as error:
            name = packaged_name(self.directory)
            if name is None:
                raise
            raise FileNotFoundError(
                f"{name} is packaged without its data, which this needs in the current folder: "
                f"{error}"
            ) from error

    def row_seeds(self, num: int, seed: int) -> Int64[Tensor, " {num}"]:
        """Derive the seeds of sequences from a seed, the weights and the tokenizer.

        With the seed alone, the sequences of two similar models would have the same noise and be
        nearly equal, which would make a comparison look more certain than it is. A copy of the run
        has the same seeds. The first n seeds do not depend on ``num``.

        Args:
            num: Number of sequences.
            seed: A number that is not negative.
        """
        key = f"{seed} {self.digest} {self.tokenizer.fingerprint}"
        mixed = int.from_bytes(hashlib.sha256(key.encode()).digest()[:4])
        return row_seeds(num, torch.Generator().manual_seed(mixed))

    @property
    def max_length(self) -> int | None:
        """Maximum row length of the network in tokens; ``None`` if there is no limit."""
        return self.denoiser.backbone.max_length


def choose_device(name: str | None) -> torch.device:
    """Find a device by its name.

    Args:
        name: Name in torch; ``None`` chooses a GPU if there is one.

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
    """Parse and build run.yaml, and check that the tokenizer has not changed.

    Raises:
        FileNotFoundError: If the directory has no run.yaml.
        ValueError: If the tokenizer has changed.
    """
    path = directory / CONFIG_NAME
    if not path.is_file():
        raise no_run(directory)
    parsed = parse_run(path, flags)
    _find_tokenizer(parsed, directory)
    config = instantiate(parsed)
    saved = (parsed["provenance"] or {}).get("tokenizer")
    if saved != config.data.tokenizer.fingerprint:
        raise ValueError(
            f"{path} must describe the tokenizer it was trained with ({saved}), got "
            f"{config.data.tokenizer.fingerprint}; restore the data.tokenizer of the run"
        )
    return parsed, config


def _find_tokenizer(parsed: ParsedRun, directory: Path) -> None:
    """Name the tokenizer's files that were exported with a run by their folder."""
    data = parsed["data"].get("init_args") or {}
    options = (data.get("tokenizer") or {}).get("init_args") or {}
    if options.get("vocabulary") == TOKENIZER_NAME:
        options["vocabulary"] = str(directory / TOKENIZER_NAME)


@contextmanager
def _apart(seed: int) -> Iterator[None]:
    """Draw weights apart from those of the backbone."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed + 2**32)
        yield


def compose(config: RunConfig, start: Callable[[Denoiser], None] | None = None) -> Denoiser:
    """Build the denoiser of a configuration, and check that its parts fit together.

    Args:
        config: The configuration.
        start: Loads weights, before adapters are added to the network.

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
        sizes = config.block_size if isinstance(config.block_size, list) else [config.block_size]
        several = tuple(sorted(sizes)) if len(sizes) > 1 else ()
        process = Blockwise(process, max(sizes), several)
    if isinstance(process, Gaussian):
        if config.experts is not None:
            raise ValueError(
                f"RunConfig.experts must be null with the process {process.name}, got order "
                f"{config.experts.order}; set experts to null, or choose masked diffusion"
            )
        with _apart(config.seed):
            denoiser = GaussianDenoiser(config.backbone, process, config.parameterization)
    else:
        experts = None
        if config.experts is not None:
            sizes = process.sizes if isinstance(process, Blockwise) else ()
            complement = config.data.complement
            experts = NGramExperts(process.vocab_size, config.experts, complement, sizes)
        parts = config.parameterization, experts
        if isinstance(process, AbsorbingBySymbol):
            denoiser = BySymbolDenoiser(config.backbone, process, *parts)
        elif isinstance(process, AbsorbingByContext):
            with _apart(config.seed):
                denoiser = ByContextDenoiser(config.backbone, process, *parts)
        else:
            denoiser = Denoiser(config.backbone, process, *parts)
    config.objective.check(denoiser)
    if start is not None:
        start(denoiser)
    if config.adapter is not None:
        with _apart(config.seed):
            add_adapter(denoiser.backbone, config.adapter)
    return denoiser

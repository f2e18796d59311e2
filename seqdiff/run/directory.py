"""The run directory: how a run starts, goes on, and is loaded.

``run.yaml``: the resolved configuration with its provenance; ``model.safetensors``: the weights to
use; ``last.ckpt``: what going on needs; ``metrics.csv`` and ``tensorboard/``: what was logged.
"""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from seqdiff.backbones import Backbone, PublishedBackbone, RunTokens, TokenizedBackbone
from seqdiff.data import SequenceDataModule, SequenceDataset, Tokenizer, token_names
from seqdiff.denoiser import Denoiser, GaussianDenoiser
from seqdiff.files import check_folder, write_bytes
from seqdiff.process import Absorbing, Blockwise, Gaussian, Process
from seqdiff.run.config import ParsedRun, RunConfig, dump, instantiate, parse_run
from seqdiff.run.config_files import make_absolute
from seqdiff.run.start import CONFIG_NAME, start_weights
from seqdiff.samplers import row_seeds
from seqdiff.training import (
    CHECKPOINT_NAME,
    WEIGHTS_NAME,
    DiffusionModule,
    Progress,
    build_trainer,
    encode_weights,
    is_first_process,
    load_weights,
    loaders,
    read_progress,
    weights_digest,
)


@dataclass(frozen=True)
class Run:
    """A trained run.

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


def load_run(directory: Path | str, *, device: torch.device | str = "cpu") -> Run:
    """Load a run for use: the only way there is, and nothing is unpickled.

    Args:
        directory: A run directory.
        device: Where the network goes.

    Raises:
        FileNotFoundError: If it is no run directory, or nothing has been saved yet.
        ValueError: If the tokenizer or the weights do not fit the configuration.
    """
    directory = Path(directory)
    _, config = _open(directory)
    denoiser = _compose(config)
    load_weights(directory / WEIGHTS_NAME, denoiser, config.data.tokenizer.fingerprint)
    digest = weights_digest(denoiser.state_dict())
    return Run(directory, config, denoiser.eval().to(device), digest)


def start_run(parsed: ParsedRun) -> Path:
    """Train from the beginning; with ``max_steps`` 0, keep the network as it is built.

    Files are written down by absolute names, so that the run can be used from any folder.

    Args:
        parsed: From ``parse_run``.

    Returns:
        The run directory.

    Raises:
        FileExistsError: If the run directory already holds a checkpoint or weights. What a run left
            that saved neither is overwritten.
        OSError: If the run directory cannot be made or written to.
        ValueError: If the configuration does not fit together, names no run directory, or starts
            from weights that do not fit.
    """
    if Path(parsed["output"]) == Path():
        raise ValueError(
            "RunConfig.output must name a folder of its own, got an empty path or '.'; "
            "set output, for example to runs/first"
        )
    check_folder("RunConfig.output", Path(parsed["output"]))
    make_absolute(parsed)
    config = instantiate(parsed)
    directory = config.output
    if is_first_process() and (directory / CHECKPOINT_NAME).exists():
        raise FileExistsError(
            f"RunConfig.output must not hold a run already, got {directory}; "
            f"go on with: seqdiff train --resume {directory}, or choose another --output"
        )
    if is_first_process() and (directory / WEIGHTS_NAME).exists():
        raise FileExistsError(
            f"RunConfig.output must not hold weights already, got {directory / WEIGHTS_NAME} "
            f"without a {CHECKPOINT_NAME} to go on from; choose another --output"
        )
    _check_tokens(config)
    if isinstance(config.backbone, PublishedBackbone):
        options = parsed["backbone"]["init_args"]
        if options.get("published_shape") is not None:
            raise ValueError(
                "RunConfig.backbone.published_shape must be left out of what starts a run, got one "
                "for weights that are not here; drop it, the checkpoint has it"
            )
        options["published_shape"] = config.backbone.published_shape  # the run needs no folder
    if config.trainer.max_steps == 0:
        return _keep(parsed, config, directory)
    return _fit(parsed, config, directory, resume=False)


def resume_run(directory: Path, flags: Sequence[str] = ()) -> Path:
    """Go on with a run as if it had never stopped.

    Args:
        directory: The run directory.
        flags: Overrides, for example a larger ``--trainer.max_steps``.

    Raises:
        FileNotFoundError: If there is nothing to go on from.
        ValueError: If the checkpoint does not fit, the run is already finished, or a flag would
            move it elsewhere.
    """
    parsed, config = _open(directory, flags)
    written = parse_run(directory / CONFIG_NAME)
    for key, instead in (("output", f"copy {directory} first"), ("start_from", "drop it")):
        if parsed[key] != written[key]:
            raise ValueError(
                f"resume.flags must leave {key} at {written[key]}, got {parsed[key]}; {instead}"
            )
    make_absolute(parsed)
    return _fit(parsed, config, directory, resume=True)


def _open(directory: Path, flags: Sequence[str] = ()) -> tuple[ParsedRun, RunConfig]:
    """Parse and build run.yaml, and check that the tokenizer is still the one it was."""
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


def _check_tokens(config: RunConfig) -> None:
    """Compare a published network with the tokenizer."""
    if isinstance(config.backbone, TokenizedBackbone):
        tokenizer = config.data.tokenizer
        name = f"{type(tokenizer).__name__} of fingerprint {tokenizer.fingerprint[:12]}"
        config.backbone.check_tokens(
            RunTokens(name, partial(token_names, tokenizer), tokenizer.encode)
        )


def _compose(config: RunConfig) -> Denoiser:
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


def _begin(config: RunConfig) -> Denoiser:
    """Compose with the weights that the run starts with."""
    denoiser = _compose(config)
    if config.start_from is not None:
        start_weights(config.start_from, denoiser, config.data.tokenizer)
    return denoiser


def _keep(parsed: ParsedRun, config: RunConfig, directory: Path) -> Path:
    """Write a run that has not been trained, and cannot be resumed."""
    denoiser = _begin(config)
    _sign(parsed, config.data.tokenizer, None)
    if is_first_process():
        _write_config(directory, dump(parsed))
        tokenizer = config.data.tokenizer.fingerprint
        weights = encode_weights(denoiser.state_dict(), tokenizer, denoiser.description)
        write_bytes(directory / WEIGHTS_NAME, weights)
    return directory


def _fit(parsed: ParsedRun, config: RunConfig, directory: Path, *, resume: bool) -> Path:
    denoiser = _compose(config) if resume else _begin(config)
    module = DiffusionModule(
        denoiser,
        config.objective,
        config.optim,
        seed=config.seed,
        max_steps=config.trainer.max_steps,
        log_every_n_steps=config.trainer.log_every_n_steps,
        label_dropout=config.label_dropout,
    )
    data = loaders(config.data)
    checkpoint = directory / CHECKPOINT_NAME if resume else None
    done = Progress() if checkpoint is None else read_progress(checkpoint, module, data)
    _sign(parsed, config.data.tokenizer, None if checkpoint is None else done.step)
    trainer = build_trainer(
        config.trainer,
        directory,
        ema_decay=config.ema_decay,
        checkpoint_every_n_steps=config.checkpoint_every_n_steps,
        search_batches=config.search_batches,
        done=done,
        on_start=partial(_write_config, directory, dump(parsed)),
        tokenizer=config.data.tokenizer.fingerprint,
    )
    if is_first_process():  # The others wait for it before Lightning opens their data.
        _check_length(config.backbone, config.data.dataset("train"))
        if config.trainer.val_check_interval is not None:
            config.data.dataset("valid")
    ours = not torch.distributed.is_initialized()
    trainer.fit(module, datamodule=data, ckpt_path=checkpoint, weights_only=True)
    if ours and torch.distributed.is_initialized():
        # Its threads may abort an interpreter that ends before them (pytorch/pytorch#190489), and
        # Lightning ends only NCCL's.
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
    return directory


def _check_length(backbone: Backbone, dataset: SequenceDataset) -> None:
    """Look at one row before anything is written; all are equally long."""
    most = backbone.max_length
    if most is None or len(dataset) == 0:
        return
    tokens, _ = dataset.rows(np.zeros(1, dtype=np.int64))
    if tokens.shape[1] > most:
        raise ValueError(
            f"RunConfig.backbone must take rows as long as those of data, {tokens.shape[1]}, got "
            f"max_length = {most}; raise backbone.max_length, or cut the rows"
        )


def _write_config(directory: Path, text: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    write_bytes(directory / CONFIG_NAME, text.encode())


def _sign(parsed: ParsedRun, tokenizer: Tokenizer, resumed_at: int | None) -> None:
    """Put into a configuration what makes the run, after what made it before."""
    made_by = {name: version(name) for name in ("seqdiff", "torch", "lightning")}
    revision = git_revision(Path(__file__).parent)
    if revision is not None:
        made_by["git_revision"] = revision
    if resumed_at is None:
        parsed["provenance"] = made_by | {"tokenizer": tokenizer.fingerprint}
        parsed["resumed"] = None
    else:
        parsed["resumed"] = [*(parsed["resumed"] or []), {"step": str(resumed_at)} | made_by]


def git_revision(package: Path) -> str | None:
    """Find the revision of the checkout that a package is imported from.

    Args:
        package: Its folder.

    Returns:
        The commit, with a ``+`` if tracked files have changed since; ``None`` if the package is not
        part of a checkout, even if it is installed inside one.
    """
    tracked = ["ls-files", "--error-unmatch", "__init__.py"]
    describe = ["describe", "--always", "--abbrev=40", "--dirty=+", "--exclude=*"]
    try:
        for command in (tracked, describe):
            done = subprocess.run(
                ["git", "-C", str(package), *command], capture_output=True, text=True, check=True
            )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()

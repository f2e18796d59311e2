"""Starting and resuming runs, which needs Lightning."""

from __future__ import annotations

import itertools
import logging
import re
import shlex
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
import yaml
from torch import Tensor

from seqdiff.backbones import (
    Backbone,
    PublishedBackbone,
    RunTokens,
    TokenizedBackbone,
    published_weights,
    without_base,
)
from seqdiff.cells import say
from seqdiff.data import (
    ReservingTokenizer,
    SequenceDataModule,
    SequenceDataset,
    signal_statistics,
    token_names,
)
from seqdiff.denoiser import Denoiser
from seqdiff.experts import FOLDS, most_order
from seqdiff.files import LOCK_NAME, check_folder, owning, remove_abandoned, write_bytes
from seqdiff.run.config import ParsedRun, RunConfig, dump, instantiate, parse_run
from seqdiff.run.config_files import make_absolute
from seqdiff.run.directory import (
    CONFIG_NAME,
    choose_device,
    compose,
    open_config,
)
from seqdiff.run.drawing import draw_samples
from seqdiff.run.loading import load_base, load_trained
from seqdiff.run.packaged import find_run, no_run, packaged_name
from seqdiff.run.trust import trust_options
from seqdiff.training import (
    CHECKPOINT_NAME,
    METRICS_NAME,
    WEIGHTS_NAME,
    DiffusionModule,
    Progress,
    build_trainer,
    check_compile,
    check_loggers,
    encode_weights,
    fit_experts,
    is_first_process,
    is_over,
    loaders,
    read_average,
    read_progress,
    steps_done,
    was_stopped,
    weights_digest,
    where_to_look,
    without_experts,
)

_NOISE = (
    r"`isinstance\(treespec, LeafSpec\)` is deprecated",
    r"The '\w+' does not have many workers",
    r"It is recommended to use `self\.log\('val/\w+', \.\.\., sync_dist=True\)`",
    r"Be aware that when using `ckpt_path`, callbacks .*: \[('(EMA|Timer)'(, )?)+\]",
)


def start_run(parsed: ParsedRun) -> Path:
    """Train from the beginning; with ``max_steps`` 0, save the network without training.

    If the run directory holds a checkpoint of the same configuration, that run is continued: a job
    that was killed can be repeated with its own command. Names of files are saved as absolute
    paths, so that the run can be used from any folder.

    Args:
        parsed: From ``parse_run``.

    Returns:
        The run directory.

    Raises:
        FileExistsError: If the run directory already holds a checkpoint of another configuration,
            or weights without one. Other files of a run are overwritten.
        KeyboardInterrupt: If a signal stopped the training; it is saved if it has begun.
        OSError: If the run directory cannot be made or written to, or another process trains in it.
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
    check_loggers(config.trainer.loggers)
    check_compile(config.trainer, config.backbone)
    if config.adapter is not None and config.start_from is not None:
        parsed["start_from"] = find_run(config.start_from).absolute()  # it is needed afterwards
        config = replace(config, start_from=parsed["start_from"])
    directory = config.output
    _check_tokens(config)
    if isinstance(config.backbone, PublishedBackbone):
        options = parsed["backbone"]["init_args"]
        if options.get("published_shape") is not None:
            raise ValueError(
                "RunConfig.backbone.published_shape must be left out of what starts a run, got one "
                "for weights that are not here; drop it, the checkpoint has it"
            )
        options["published_shape"] = config.backbone.published_shape  # the run needs no folder
    for argument, value in config.data.found().items():
        parsed["data"]["init_args"][argument] = value
    if (directory / CHECKPOINT_NAME).exists() and _is_of(directory, parsed):
        return resume_run(directory)
    if is_first_process():
        _check_unused(directory)
    if config.trainer.max_steps == 0:
        return _keep(parsed, config, directory)
    return _fit(parsed, config, directory)


def resume_run(directory: Path, flags: Sequence[str] = ()) -> Path:
    """Continue a run as if it had never stopped; without flags, a finished run stays as it is.

    Args:
        directory: The run directory.
        flags: Overrides, for example a larger ``--trainer.max_steps``. Other ``--experts`` are
            counted for a finished run too.

    Raises:
        FileNotFoundError: If there is no run, or no checkpoint in it.
        KeyboardInterrupt: If a signal stopped the training; it is saved if it has begun.
        OSError: If another process trains in the run directory.
        ValueError: If the checkpoint does not fit, the run is already finished and there are
            flags, one of them changes the run directory or ``start_from``, or it is a packaged
            model.
    """
    packaged = packaged_name(find_run(directory))
    if packaged is not None:
        raise ValueError(
            f"resume.directory must be a run with a checkpoint, got the packaged model {packaged}; "
            f"start another run from its weights: --start_from {packaged}"
        )
    if not (directory / CONFIG_NAME).is_file():
        raise no_run(directory)
    written = parse_run(directory / CONFIG_NAME)
    _check_network(written, parse_run(directory / CONFIG_NAME, flags))
    parsed, config = open_config(directory, flags)
    check_loggers(config.trainer.loggers)
    check_compile(config.trainer, config.backbone)
    for key, instead in (
        ("output", f"copy {directory} first"),
        ("start_from", "drop it"),
    ):
        if parsed[key] != written[key]:
            old, new = (yaml.safe_load(dump(one))[key] for one in (written, parsed))
            raise ValueError(f"resume.flags must leave {key} at {old}, got {new}; {instead}")
    make_absolute(parsed)
    with _alone("resume.directory", directory):
        named = any(flag.startswith("--experts") for flag in flags)
        new_experts = named and _is_of(directory, parsed, but=("experts",))
        return _fit(
            *(parsed, config, directory),
            resume=True,
            may_be_done=not flags or new_experts,
            new_experts=new_experts,
        )


def _is_of(directory: Path, parsed: ParsedRun, but: Sequence[str] = ()) -> bool:
    """Whether a run directory holds a run of this configuration, but for some keys."""
    path = directory / CONFIG_NAME
    if not path.is_file():
        return False
    both = [yaml.safe_load(dump(one)) for one in (parsed, parse_run(path))]
    for content, key in itertools.product(both, ("provenance", "resumed", *but)):
        content.pop(key, None)
    return both[0] == both[1]


def _check_network(written: ParsedRun, parsed: ParsedRun) -> None:
    """Raise ``ValueError`` if flags change the names or shapes of a run's weights."""
    old, new = (dict(config["backbone"].items()) for config in (written, parsed))
    changed = [key for key in old.keys() | new.keys() if old.get(key) != new.get(key)]
    if not changed:
        return

    def shapes(config: ParsedRun) -> dict[str, torch.Size]:
        return {n: v.shape for n, v in compose(instantiate(config)).state_dict().items()}

    try:
        fits = shapes(parsed) == shapes(written)
    except (TypeError, ValueError):  # no network at all
        fits = False
    if not fits:
        key = min(changed)
        flag = f"backbone.{key.removeprefix('init_args.')}" if key != "class_path" else "backbone"
        raise ValueError(
            f"resume.flags must leave {flag} at {old.get(key)}, got {new.get(key)}, since a run "
            f"keeps its network when it is resumed; drop --{flag}, or start another run with it"
        )


def _check_unused(directory: Path) -> None:
    """Raise ``FileExistsError`` if there is a run that could be resumed, or its result."""
    if (directory / CHECKPOINT_NAME).exists():
        raise FileExistsError(
            "RunConfig.output must not hold a run of another configuration, got "
            f"{directory}; resume that one: {_resume(directory)}, or choose another --output"
        )
    if (directory / WEIGHTS_NAME).exists():
        raise FileExistsError(
            f"RunConfig.output must not hold weights already, got {directory / WEIGHTS_NAME} "
            f"without a {CHECKPOINT_NAME} to resume from; choose another --output"
        )


def _resume(directory: Path) -> str:
    return shlex.join(["seqdiff", "train", "--resume", str(directory), *trust_options()])


@contextmanager
def _alone(owner: str, directory: Path) -> Iterator[None]:
    """Lock the run directory in the first process, which writes, and clean up after dead ones."""
    if not is_first_process():
        yield
        return
    with owning(owner, directory):
        for name in (CHECKPOINT_NAME, WEIGHTS_NAME, CONFIG_NAME, METRICS_NAME):
            remove_abandoned(directory / name, owned=True)
        yield


@contextmanager
def _unused(directory: Path) -> Iterator[None]:
    """Make and lock the directory of a new run; remove it if nothing was written to it."""
    if not is_first_process():
        yield
        return
    directory.mkdir(parents=True, exist_ok=True)
    with _alone("RunConfig.output", directory):
        try:
            _check_unused(directory)  # again: another process may have trained until now
            yield
        except BaseException:
            if {path.name for path in directory.iterdir()} == {LOCK_NAME}:
                (directory / LOCK_NAME).unlink()
                directory.rmdir()
            raise


def _check_tokens(config: RunConfig) -> None:
    """Check that a published network fits the tokenizer."""
    if isinstance(config.backbone, TokenizedBackbone):
        tokenizer = config.data.tokenizer
        name = f"{type(tokenizer).__name__} of fingerprint {tokenizer.fingerprint[:12]}"
        reserved = tokenizer.reserved_ids if isinstance(tokenizer, ReservingTokenizer) else ()
        config.backbone.check_tokens(
            RunTokens(name, partial(token_names, tokenizer), tokenizer.encode, reserved)
        )


def _begin(config: RunConfig) -> Denoiser:
    """Build the model with its first weights."""
    return compose(config, partial(_load_first, config))


def _load_first(config: RunConfig, denoiser: Denoiser) -> None:
    embedding = config.backbone.signal_embedding
    if embedding is not None:
        found = signal_statistics(config.data.dataset("train"), config.data.signals or [])
        embedding.standardise_by(*map(torch.from_numpy, found))
    if config.start_from is not None:
        own = None if embedding is None else embedding.range.clone()
        load_base(config, denoiser)
        if embedding is not None and own is not None:
            # The mean and the standard deviation stay those that the weights were trained with.
            embedding.range.copy_(own)


def _add_experts(directory: Path, config: RunConfig) -> None:
    """Add experts to the weights of a trained run, if it is to have some and has none yet."""
    if config.experts is None or not is_first_process():
        return
    run = load_trained(directory)
    experts = run.denoiser.experts
    if experts is None or experts.counted:
        return
    _fit_experts(run.denoiser, run.config)
    _write_weights(directory, run.config, run.denoiser, run.denoiser.state_dict())


def _exchange_experts(
    parsed: ParsedRun, config: RunConfig, directory: Path, weights: dict[str, Tensor]
) -> None:
    """Give a finished run other experts, or none; nothing is written until they are fitted."""
    if not is_first_process():
        return
    denoiser = compose(config).eval()
    denoiser.load_state_dict(without_experts(weights, denoiser))
    if config.experts is not None:
        _check_for_experts(config.data)
        _fit_experts(denoiser, config)
    # Weights without experts fit both configurations, so that a kill leaves a run that opens.
    _write_weights(directory, config, denoiser, weights)
    _write_config(directory, dump(parsed))
    if config.experts is not None:
        _write_weights(directory, config, denoiser, denoiser.state_dict())


def _fit_experts(denoiser: Denoiser, config: RunConfig) -> None:
    """Count the n-grams of the training split, choose their gates, and print what they change."""
    experts = denoiser.experts
    assert experts is not None
    on_cpu = config.trainer.accelerator == "cpu"
    denoiser.to(choose_device("cpu" if on_cpu else None))
    fitted = fit_experts(denoiser, config.data, seed=config.seed)
    denoiser.cpu()
    if experts.table_order < experts.order:
        why = "the tables of a higher order are too large"
        if experts.table_order == most_order(experts.vocab_size):
            why = f"longer words of {experts.vocab_size} symbols do not fit into 63 bits"
        print(
            f"seqdiff: experts.order is {experts.table_order} instead of {experts.order}: {why}",
            file=sys.stderr,
        )
    rows = len(config.data.dataset("valid"))
    for size, (before, after) in fitted.items():
        blocks = "" if size is None else f" in blocks of {size}"
        if after < before:
            said = (
                f"with n-gram experts the validation loss is {after:.4f} instead of {before:.4f} "
                f"nats a token{blocks}"
            )
        elif rows < FOLDS:
            said = (
                f"n-gram experts need at least {FOLDS} validation rows, got {rows}, so they stay "
                "unused"
            )
        else:
            said = f"n-gram experts do not help on the validation rows{blocks}, so they stay unused"
        print(f"seqdiff: {said}", file=sys.stderr)


def _is_finished(config: RunConfig, done: Progress) -> bool:
    """Whether a run has done its steps, or has spent its time where only time limits it."""
    if config.trainer.max_steps is None:
        return is_over(config.trainer, done)
    return done.step >= config.trainer.max_steps


def _keep(parsed: ParsedRun, config: RunConfig, directory: Path) -> Path:
    """Write a run without training and without experts; it cannot be resumed."""
    if config.experts is not None:
        config, parsed["experts"] = replace(config, experts=None), None
        if is_first_process():
            print("seqdiff: trainer.max_steps 0 reads no data, so no experts", file=sys.stderr)
    denoiser = _begin(config)
    _sign(parsed, config, denoiser, None)
    if is_first_process():
        with _unused(directory):
            _write_config(directory, dump(parsed))
            _write_weights(directory, config, denoiser, denoiser.state_dict())
    return directory


def _fit(
    parsed: ParsedRun,
    config: RunConfig,
    directory: Path,
    *,
    resume: bool = False,
    may_be_done: bool = False,
    new_experts: bool = False,
) -> Path:
    denoiser = compose(config) if resume else _begin(config)
    denoiser.experts = None  # they are counted after the training of the network
    module = DiffusionModule(
        denoiser,
        config.objective,
        config.optim,
        seed=config.seed,
        max_steps=config.trainer.max_steps,
        log_every_n_steps=config.trainer.log_every_n_steps,
        dropout=config.dropout,
        compiled=config.trainer.compile,
    )
    data = loaders(config.data, config.trainer.limit_val_batches)
    checkpoint = directory / CHECKPOINT_NAME if resume else None
    done = Progress() if checkpoint is None else read_progress(checkpoint, module, data)
    exported = (directory / WEIGHTS_NAME).exists()
    if checkpoint is not None and _is_finished(config, done):
        if new_experts:
            _exchange_experts(parsed, config, directory, read_average(checkpoint))
            return directory
        if is_first_process() and not exported:
            # The process was killed between the two files of its first and last save.
            _write_config(directory, dump(parsed))
            _write_weights(directory, config, denoiser, read_average(checkpoint))
        if not exported or may_be_done:
            _add_experts(directory, config)
            return directory
    _sign(parsed, config, denoiser, None if checkpoint is None else done.step)
    trainer = build_trainer(
        config.trainer,
        directory,
        ema_decay=config.ema_decay,
        checkpoint_every_n_steps=config.checkpoint_every_n_steps,
        search_batches=config.search_batches,
        done=done,
        on_start=partial(_begin_training, directory, dump(parsed), config),
        describe=lambda: yaml.safe_load(dump(parsed)),
        draw_samples=partial(draw_samples, directory, seed=config.seed),
        tokenizer=config.data.tokenizer.fingerprint,
    )
    if is_first_process():  # The others wait for it before Lightning opens their data.
        _check_length(config.backbone, config.data.dataset("train"))
        if config.trainer.val_check_interval is not None:
            config.data.dataset("valid")
        if config.experts is not None:
            _check_for_experts(config.data)
    ours = not torch.distributed.is_initialized()
    with nullcontext() if resume else _unused(directory):
        with _plain_errors(directory):
            trainer.fit(module, datamodule=data, ckpt_path=checkpoint, weights_only=True)
    if ours and torch.distributed.is_initialized():
        # Its threads may abort an interpreter that ends before them (pytorch/pytorch#190489), and
        # Lightning ends only NCCL's.
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
    # Lightning kills the first process if one that it has launched ends with an error before.
    if was_stopped(trainer) and is_first_process():
        raise KeyboardInterrupt
    _add_experts(directory, config)
    return directory


@contextmanager
def _plain_errors(directory: Path) -> Iterator[None]:
    """Report errors in one line each, with what can be done with the run directory.

    Raises:
        ConnectionError: If another process of a distributed run has ended.
        FloatingPointError: If the training diverged.
    """
    checkpoint = directory / CHECKPOINT_NAME
    shown = threading.excepthook

    def show(failed: threading.ExceptHookArgs) -> None:
        # TensorBoard raises its thread's error again where the run logs.
        if not type(failed.thread).__module__.startswith("tensorboard."):
            shown(failed)

    threading.excepthook = show
    try:
        yield
    except FloatingPointError as error:
        kept = "no checkpoint was saved before"
        if checkpoint.exists():
            step = steps_done(checkpoint)
            kept = f"{checkpoint} of step {step} is kept; resume it with this change"
        raise FloatingPointError(f"{error}; {kept}") from error
    except RuntimeError as error:
        # Gloo raises RuntimeError itself, and names its source file.
        if not isinstance(error, torch.distributed.DistError) and "gloo" not in str(error):
            raise
        fix = "start it again with the command that started it"
        if checkpoint.exists():
            fix = f"continue: {_resume(directory)}"
        reason = re.sub(r"^\[\S+\] |\. This is.*", "", str(error).strip().partition("\n")[0])
        raise ConnectionError(
            "a distributed run must keep all its processes, got the end of another one "
            f"({reason}); see what it printed, then {fix}"
        ) from error
    finally:
        threading.excepthook = shown


def _check_length(backbone: Backbone, dataset: SequenceDataset) -> None:
    """Check the length of the first row, before anything is written; all are equally long."""
    most = backbone.max_length
    if most is None or len(dataset) == 0:
        return
    tokens, _ = dataset.rows(np.zeros(1, dtype=np.int64))
    if tokens.shape[1] > most:
        raise ValueError(
            f"RunConfig.backbone must take rows as long as those of data, {tokens.shape[1]}, got "
            f"max_length = {most}; raise backbone.max_length, or cut the rows"
        )


def _check_for_experts(data: SequenceDataModule) -> None:
    """Check, before training, that experts will have a validation split and rows to count."""
    if len(data.dataset("train")) < 2:
        raise ValueError(
            "RunConfig.experts must be null for a training split of one row; train on more rows, "
            "or add --experts null"
        )
    try:
        data.dataset("valid")
    except ValueError as error:
        raise ValueError(
            f"RunConfig.experts must be null without a validation split, which chooses their gates "
            f"({error}); add --experts null"
        ) from error


def _begin_training(directory: Path, text: str, config: RunConfig) -> None:
    _write_config(directory, text)
    say(f"seqdiff: {where_to_look(config.trainer.loggers, directory)}", error=True)


def _write_config(directory: Path, text: str) -> None:
    write_bytes(directory / CONFIG_NAME, text.encode())


def _write_weights(
    directory: Path, config: RunConfig, denoiser: Denoiser, weights: dict[str, Tensor]
) -> None:
    tokenizer = config.data.tokenizer.fingerprint
    weights = without_base(weights)
    write_bytes(directory / WEIGHTS_NAME, encode_weights(weights, tokenizer, denoiser.description))


def _sign(parsed: ParsedRun, config: RunConfig, denoiser: Denoiser, resumed_at: int | None) -> None:
    """Add the versions that make the run to its configuration."""
    made_by = {name: version(name) for name in ("seqdiff", "torch", "lightning")}
    revision = git_revision(Path(__file__).parent)
    if revision is not None:
        made_by["git_revision"] = revision
    if resumed_at is None:
        made_by["tokenizer"] = config.data.tokenizer.fingerprint
        if config.adapter is not None:
            made_by["base"] = weights_digest(published_weights(denoiser.state_dict()))
        parsed["provenance"] = made_by
        parsed["resumed"] = None
    else:
        parsed["resumed"] = [*(parsed["resumed"] or []), {"step": str(resumed_at)} | made_by]


def git_revision(package: Path) -> str | None:
    """Find the revision of the checkout that a package is imported from.

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


def quieten_lightning() -> None:
    """Silence messages of Lightning that are not meant for users of seqdiff."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    for message in _NOISE:
        warnings.filterwarnings("ignore", message=message, module="lightning")
    warnings.filterwarnings("ignore", message="Grad strides do not match bucket view strides")
    # It says that in-place changes of such a view go wrong. Our networks make none.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")

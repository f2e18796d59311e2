"""Folders for the hub: a run's weights, configuration, tokenizer and a model card."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from seqdiff.backbones import HubBackbone, has_adapter, merge_adapter
from seqdiff.data import HubTokenizer, Split, Tokenizer
from seqdiff.files import check_folder, write_bytes
from seqdiff.process import Absorbing
from seqdiff.run.config import dump, parse_run
from seqdiff.run.config_files import make_bare
from seqdiff.run.directory import CONFIG_NAME, TOKENIZER_NAME
from seqdiff.run.evaluation import Evaluation
from seqdiff.run.run import Run
from seqdiff.training import WEIGHTS_NAME, encode_weights

_CARD = "README.md"


def export_hub(run: Run, directory: Path, *, split: Split | None, license: str) -> None:
    """Write a folder for the hub, which ``seqdiff.load`` reads back; adapters are merged.

    A run on a network of transformers becomes a folder in the format of transformers. Any other run
    becomes a run directory without logs and checkpoint. In either case the folder has a model card.

    Args:
        run: The run.
        directory: A new folder.
        split: Split whose likelihood goes into the card; ``None`` leaves it out.
        license: Identifier of the hub for the license of the weights, for the card.

    Raises:
        FileExistsError: If the folder exists.
        FileNotFoundError: If the data to evaluate on is not there.
        OSError: If the folder cannot be written.
        ValueError: If the format of transformers cannot hold the run.
    """
    check_folder("export.directory", directory.parent)
    if directory.exists():
        raise FileExistsError(
            f"export.directory must be a new folder, got {directory}, which exists; choose another"
        )
    network = run.denoiser.backbone
    published = isinstance(network, HubBackbone)
    if published:
        _check_published(run)
    evaluation = None if split is None else run.evaluate(split)
    if has_adapter(network):
        merge_adapter(network)
    directory.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
    try:
        if isinstance(network, HubBackbone):
            network.to_hub(temporary)
            tokenizer = run.tokenizer
            assert isinstance(tokenizer, HubTokenizer)
            tokenizer.save(temporary)
        else:
            _write_run(run, temporary)
        card = model_card(run, directory.name, evaluation, license)
        write_bytes(temporary / _CARD, card.encode())
        for file in temporary.iterdir():
            file.chmod(0o666 & ~_umask())
        temporary.chmod(0o777 & ~_umask())
        temporary.rename(directory)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def _check_published(run: Run) -> None:
    """Raise ``ValueError`` if the format of transformers cannot hold a run."""
    if run.denoiser.experts is not None:
        raise ValueError(
            f"export.run must have no n-gram experts, which the format of transformers cannot "
            f"hold, got {run.directory}; remove them: seqdiff train --resume {run.directory} "
            "--experts null"
        )
    if type(run.process) is not Absorbing:
        raise ValueError(
            f"export.run must be masked diffusion to be a masked language model of transformers, "
            f"got the process {run.process.name} in {run.directory}; keep the run directory"
        )
    if not isinstance(run.tokenizer, HubTokenizer):
        raise ValueError(
            f"export.run must have a seqdiff.data.HubTokenizer, got a "
            f"{type(run.tokenizer).__name__} in {run.directory}; keep the run directory"
        )


def _write_run(run: Run, folder: Path) -> None:
    """Write a run directory that names no folder of this machine."""
    parsed = parse_run(run.directory / CONFIG_NAME)
    parsed["output"] = Path(run.directory.name)
    parsed["start_from"] = parsed["adapter"] = parsed["resumed"] = None  # merged
    make_bare(parsed)
    if _save_tokenizer(run.tokenizer, folder / TOKENIZER_NAME):
        parsed["data"]["init_args"]["tokenizer"]["init_args"]["vocabulary"] = TOKENIZER_NAME
    write_bytes(folder / CONFIG_NAME, dump(parsed).encode())
    weights = run.denoiser.state_dict()
    fingerprint, description = run.tokenizer.fingerprint, run.denoiser.description
    write_bytes(folder / WEIGHTS_NAME, encode_weights(weights, fingerprint, description))


def _save_tokenizer(tokenizer: Tokenizer, folder: Path) -> bool:
    """Write the files of a tokenizer, if it has some on this machine.

    Returns:
        Whether it has.
    """
    if isinstance(tokenizer, HubTokenizer):
        tokenizer.save(folder)
        return True
    vocabulary = getattr(tokenizer, "vocabulary", None)
    layouts = getattr(tokenizer, "layouts", ())
    if vocabulary is None or not Path(vocabulary).exists():
        return False
    given = Path(vocabulary)
    folder.mkdir()
    for name in {name for layout in layouts for name in layout}:
        source = given / name if given.is_dir() else given
        if source.is_file() and (given.is_dir() or (name,) in layouts):
            shutil.copyfile(source, folder / name)
    return True


def model_card(run: Run, name: str, evaluation: Evaluation | None, license: str) -> str:
    """Write the model card of a run: what it is, its data, its bound and the commands that use it.

    Args:
        run: The run.
        name: Name of the folder.
        evaluation: Likelihood of a split, if any.
        license: Identifier of the hub.
    """
    published = isinstance(run.denoiser.backbone, HubBackbone)
    size = sum(parameter.numel() for parameter in run.denoiser.parameters())
    head: dict[str, object] = {
        "license": license,
        "library_name": "transformers" if published else "seqdiff",
        "tags": ["seqdiff", "masked-diffusion"],
    }
    if published:
        head["pipeline_tag"] = "fill-mask"
    parts = [
        f"---\n{yaml.safe_dump(head, sort_keys=False)}---",
        f"# {name}",
        f"A discrete diffusion model: {run.denoiser.description}, "
        f"{type(run.denoiser.backbone).__name__} of {size:,} parameters. Written by seqdiff "
        f"{version('seqdiff')}.",
        f"## Data\n\n{_data(run)}",
        f"## Likelihood\n\n{_likelihood(run, evaluation)}",
        f"## Use\n\n{_use(run, name, published)}",
    ]
    return "\n\n".join(parts) + "\n"


def _data(run: Run) -> str:
    path = run.directory / CONFIG_NAME
    if not path.is_file():
        return "Not known: the weights were not trained by seqdiff."
    parsed = parse_run(path)
    make_bare(parsed)
    options = yaml.safe_load(dump(parsed))["data"]
    shown = {key: value for key, value in _settings(options).items() if value is not None}
    return f"```yaml\n{yaml.safe_dump(shown, sort_keys=False)}```"


def _settings(options: Mapping[str, Any]) -> dict[str, Any]:
    return {"class_path": options["class_path"], **(options.get("init_args") or {})}


def _likelihood(run: Run, evaluation: Evaluation | None) -> str:
    if evaluation is None:
        return "Not evaluated."
    unit, model = evaluation.data.token_name, evaluation.model
    lines = [f"| {evaluation.split} split | bits/{unit} | ± SE |", "|---|---:|---:|"]
    for row in evaluation.rows:
        error = "" if row.bits_per_token_error is None else f"{row.bits_per_token_error:.4f}"
        lines.append(f"| {row.name} | {row.bits_per_token:.4f} | {error} |")
    about = (
        f"{model.num_sequences:,} sequences, {model.num_tokens:,} {unit}s; estimator "
        f"{evaluation.estimator.name}, convention {evaluation.estimator.convention}."
    )
    if evaluation.units is not None:
        name, per_token = evaluation.units
        about += f" A {unit} has {per_token:.3f} {name}s on average, so that the model has "
        about += f"{model.bits_per_token / per_token:.4f} bits/{name}."
    return "\n".join([*lines, "", about])


def _use(run: Run, name: str, published: bool) -> str:
    length = run.datamodule.context_length or 100
    commands = [f"seqdiff sample {name} --num 4 --length {length}", f"seqdiff score {name} FILE"]
    code = [
        "import seqdiff",
        "",
        f"run = seqdiff.load({name!r})",
        f"run.sample(4, length={length})",
    ]
    text = f"```sh\n{chr(10).join(commands)}\n```\n\n```python\n{chr(10).join(code)}\n```"
    if published:
        text += (
            "\n\nIt is also a masked language model of transformers: "
            f"`AutoModelForMaskedLM.from_pretrained({name!r})`."
        )
    return text

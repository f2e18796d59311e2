"""Networks to fine-tune: from a run, from a hub folder, or with new weights."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch

from genomics.pretrained import PublishedCaduceus
from genomics.sequence import BASES, DNATokenizer
from seqdiff.backbones import CONFIG_FILE, WEIGHTS_FILE, Backbone


@dataclass(frozen=True)
class Pretrained:
    """A network to fine-tune.

    Attributes:
        name: Name in tables.
        weights: A digest of the initial weights and of the network's options, which change the
            output for the same weights (``swap_strands``).
        seeded: Whether each seed has its own weights.
        strands: See ``Backbone``.
        max_length: Maximum number of bases of a row; ``None`` without a limit.
        build: Returns a new copy of the network for a seed.
    """

    name: str
    weights: str
    seeded: bool
    strands: int
    max_length: int | None
    build: Callable[[int], Backbone]


def load_models(paths: Sequence[Path], device: torch.device, *, scratch: bool) -> list[Pretrained]:
    """Load networks, and optionally build untrained networks, one of each shape.

    Args:
        paths: Run directories, or folders of a published Caduceus.
        device: Device of the networks.
        scratch: Whether to add networks of the same shapes with new weights for each seed.

    Raises:
        FileNotFoundError: If a path is neither a run nor such a folder.
        ValueError: If a network is not one of DNA, or returns no hidden states.
    """
    opened = [_open(path) for path in paths]
    models = [_pretrained(path, found, device) for path, found in zip(paths, opened, strict=True)]
    if scratch:
        twins = {twin.weights: twin for twin in (_untrained(found, device) for found in opened)}
        models += _told_apart(list(twins.values()))
    return models


def _told_apart(twins: Sequence[Pretrained]) -> Iterator[Pretrained]:
    """Add numbers to the names of untrained networks of the same class and different shapes."""
    names = [twin.name for twin in twins]
    for place, twin in enumerate(twins):
        number = names[: place + 1].count(twin.name)
        yield replace(twin, name=f"{twin.name} {number}") if number > 1 else twin


class _Opened(NamedTuple):
    """A network, a function that builds it for a seed, and a key of its shape."""

    backbone: Backbone
    build: Callable[[int], Backbone]
    shape: str


def _pretrained(path: Path, found: _Opened, device: torch.device) -> Pretrained:
    kept = found.backbone.to(device)
    digest = _digest((path / WEIGHTS_FILE).read_bytes() + found.shape.encode())
    name = path.resolve().name
    return _described(name, digest, False, found.backbone, lambda _: copy.deepcopy(kept))


def _untrained(found: _Opened, device: torch.device) -> Pretrained:
    name = f"{type(found.backbone).__name__} from scratch"

    def build(seed: int) -> Backbone:
        with torch.random.fork_rng(devices=[]):
            return found.build(seed).to(device)

    return _described(name, f"new {_digest(found.shape.encode())}", True, found.backbone, build)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _described(
    name: str,
    weights: str,
    seeded: bool,
    backbone: Backbone,
    build: Callable[[int], Backbone],
) -> Pretrained:
    return Pretrained(name, weights, seeded, backbone.strands, backbone.max_length, build)


def _open(path: Path) -> _Opened:
    if (path / CONFIG_FILE).is_file() and not (path / "run.yaml").is_file():
        return _open_hub(path)
    return _open_run(path)


def _open_hub(path: Path) -> _Opened:
    ids, bases = len(BASES) + 1, len(BASES)
    loaded = PublishedCaduceus(str(path), num_embeddings=ids, num_logits=bases)
    shape = loaded.network.config

    def fresh(seed: int) -> Backbone:
        torch.manual_seed(seed)
        return PublishedCaduceus(str(path), shape, num_embeddings=ids, num_logits=bases)

    return _Opened(loaded, fresh, str(shape))


def _open_run(path: Path) -> _Opened:
    from seqdiff.run import instantiate, load, parse_run

    loaded = load(path)
    wanted = DNATokenizer().fingerprint
    if loaded.tokenizer.fingerprint != wanted:
        raise ValueError(
            f"finetune.models must be networks of DNA, got {path}, whose tokenizer is "
            f"{loaded.tokenizer.fingerprint}; choose another run"
        )
    if loaded.denoiser.reads_embeddings:
        raise ValueError(
            f"finetune.models must be networks that read bases, got {path} of the process "
            f"{loaded.process.name}, whose network reads noisy vectors; choose another run"
        )
    parsed = parse_run(path / "run.yaml")

    def fresh(seed: int) -> Backbone:
        config = parsed.clone()
        config["seed"] = seed
        return instantiate(config).backbone

    return _Opened(loaded.denoiser.backbone, fresh, str(parsed["backbone"]))

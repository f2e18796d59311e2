"""Networks to fine-tune: from a run, from a hub folder, or with new weights."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from genomics.pretrained import PublishedCaduceus
from genomics.sequence import BASES, DNATokenizer
from seqdiff.backbones import CONFIG_FILE, WEIGHTS_FILE, Backbone
from seqdiff.run import find_run


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
        paths: Run directories, names of packaged models, or folders of a published Caduceus.
        device: Device of the networks.
        scratch: Whether to add networks of the same shapes with new weights for each seed.

    Raises:
        FileNotFoundError: If a path is neither a run nor such a folder.
        ValueError: If a network is not one of DNA, or returns no hidden states.
    """
    paths = [find_run(path) for path in paths]
    opened = [_open(path) for path in paths]
    models = []
    for path, (backbone, _, shape) in zip(paths, opened, strict=True):
        digest = _digest((path / WEIGHTS_FILE).read_bytes() + shape.encode())
        name, kept = path.resolve().name, backbone.to(device)
        shown = Pretrained(
            name, digest, False, backbone.strands, backbone.max_length, partial(_copied, kept)
        )
        models.append(shown)
    if scratch:
        twins = {twin.weights: twin for twin in (_untrained(*found, device) for found in opened)}
        names: list[str] = []
        for twin in twins.values():
            names.append(twin.name)
            number = names.count(twin.name)  # of networks of one class, the shapes differ
            models.append(replace(twin, name=f"{twin.name} {number}") if number > 1 else twin)
    return models


def _copied(backbone: Backbone, seed: int) -> Backbone:
    del seed  # its weights are given
    return copy.deepcopy(backbone)


# A network, a function that builds it for a seed, and a key of its shape.
_Opened = tuple[Backbone, Callable[[int], Backbone], str]


def _untrained(
    backbone: Backbone, fresh: Callable[[int], Backbone], shape: str, device: torch.device
) -> Pretrained:
    name, weights = f"{type(backbone).__name__} from scratch", f"new {_digest(shape.encode())}"

    def build(seed: int) -> Backbone:
        with torch.random.fork_rng(devices=[]):
            return fresh(seed).to(device)

    return Pretrained(name, weights, True, backbone.strands, backbone.max_length, build)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _open(path: Path) -> _Opened:
    if (path / CONFIG_FILE).is_file() and not (path / "run.yaml").is_file():
        ids, bases = len(BASES) + 1, len(BASES)
        published = PublishedCaduceus(str(path), num_embeddings=ids, num_logits=bases)
        shape = published.network.config

        def redrawn(seed: int) -> Backbone:
            torch.manual_seed(seed)
            return PublishedCaduceus(str(path), shape, num_embeddings=ids, num_logits=bases)

        return published, redrawn, str(shape)
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

    return loaded.denoiser.backbone, fresh, str(parsed["backbone"])
